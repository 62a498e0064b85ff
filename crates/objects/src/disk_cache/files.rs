//! Where a volume's blocks are kept.

use std::fmt;
use std::io;

use bytes::Bytes;

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
