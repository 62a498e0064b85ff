//! Where a journal's files are. They have numbers, from 1 on.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use store::Result;

/// See the [module](self). The error of a full disk is `NoSpace`.
#[async_trait]
pub(crate) trait Disk: fmt::Debug + Send + Sync + 'static {
    /// The numbers of the files that are there, in their order.
    async fn files(&self) -> Result<Vec<u64>>;

    /// Makes a file with `header`; both are on the disk when this returns, and there is room for
    /// `room` bytes where the disk can promise that.
    async fn create(&self, file: u64, header: Bytes, room: u64) -> Result<()>;

    /// Writes at an offset, behind all that was written, one call at a time: what is behind it may be
    /// overwritten. With `is_synced` this and all that was written before is on the disk
    /// when this returns.
    async fn write(&self, file: u64, at: u64, parts: Vec<Bytes>, is_synced: bool) -> Result<()>;

    /// Reads `len` bytes, or up to the file's end.
    async fn read(&self, file: u64, at: u64, len: u64) -> Result<Bytes>;

    /// Removes a file; it does not come back.
    async fn remove(&self, file: u64) -> Result<()>;

    /// Puts all files out of the way under a name with `word`, which is returned as a person names
    /// it. Afterwards there are none.
    async fn set_aside(&self, word: &str) -> Result<String>;

    /// What holds it for this process; none once it is unlocked.
    fn lock(&self) -> Option<Arc<OwnedFd>> {
        None
    }

    /// Lets other processes have it. Nothing is written any more.
    fn unlock(&self);
}
