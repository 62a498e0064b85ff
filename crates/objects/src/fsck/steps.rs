//! What a check says of itself while it goes on.

use std::fmt;
use std::sync::Arc;

/// The operation, in errors.
pub(super) const OP: &str = "fsck";

/// How far a check has come: what it does, and how many inodes, names, extents or bytes it has
/// seen.
pub type Progress = dyn Fn(&'static str, u64) + Send + Sync;

/// Tells of progress now and then.
#[derive(Clone)]
pub(super) struct Steps(pub(super) Arc<Progress>);

impl fmt::Debug for Steps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Steps").finish_non_exhaustive()
    }
}

impl Steps {
    /// So many are between two calls.
    const EACH: u64 = 4096;

    pub(super) fn tell(&self, what: &'static str, count: u64) {
        if count.is_multiple_of(Self::EACH) {
            (self.0)(what, count);
        }
    }
}
