//! Segments that rows name before they are in the bucket, because the journal has them.
//!
//! No object of the log is sent before the segments are there that were on their way when it was
//! sealed: its rows may name them.

use std::collections::BTreeSet;
use std::sync::Arc;

use sync::mutant::is_on;

use super::CommitLog;

/// The segments that are on their way, by the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Uploads {
    pub(super) next: u64,
    under_way: BTreeSet<u64>,
}

impl Uploads {
    /// The first that is on its way; all with lower numbers are there.
    pub(super) fn first(&self) -> u64 {
        if is_on("log-before-its-segments") {
            return u64::MAX;
        }
        self.under_way.first().copied().unwrap_or(self.next)
    }
}

impl CommitLog {
    /// A segment is on its way: it holds up what is sealed from here on, until it is there.
    pub(crate) fn upload_begins(&self) -> u64 {
        let mut state = self.state.lock();
        let number = state.uploads.next;
        state.uploads.next += 1;
        state.uploads.under_way.insert(number);
        number
    }

    /// The segment with this number is there.
    pub(crate) fn upload_ends(self: &Arc<Self>, number: u64) {
        let mut state = self.state.lock();
        state.uploads.under_way.remove(&number);
        self.send(&mut state);
    }
}
