//! Where a volume's blocks are kept, and how a cache of it is opened.

use std::fmt;
use std::io;

use bytes::Bytes;
use store::Result;

use super::{DiskCache, DiskCacheOptions};
use crate::blocks::Key;

/// The files of one volume's blocks.
pub(super) trait Files: fmt::Debug + Send + Sync + 'static {
    /// The file of a block; none: it is not there.
    fn read(&self, key: Key) -> io::Result<Option<Bytes>>;

    /// Writes the file of a block: under its name it is there whole, or not at all.
    fn write(&self, key: Key, parts: &[&[u8]]) -> io::Result<()>;

    /// Removes the file of a block, if it is there.
    fn remove(&self, key: Key) -> io::Result<()>;

    /// Sets the file's time to now; nothing depends on it.
    fn touch(&self, key: Key);

    /// Lets another process use them.
    fn unlock(&self);
}

/// Where the caches of volumes are.
pub(crate) trait CacheDir: fmt::Debug + Send + Sync + 'static {
    /// Opens the cache of a volume.
    ///
    /// # Errors
    /// `Invalid`, in plain words: it may not be used.
    fn open(&self, identity: [u8; 16]) -> Result<DiskCache>;
}

impl CacheDir for DiskCacheOptions {
    fn open(&self, identity: [u8; 16]) -> Result<DiskCache> {
        DiskCache::open(self, identity)
    }
}
