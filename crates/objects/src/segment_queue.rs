//! Extents that wait for their tenant's turn to upload a segment. The first whose turn comes takes others
//! of the same tenant into its segment.
//!
//! Many files of a few MiB are so many rounds, each less than a segment. They wait for each other, and
//! while the bucket takes others; together they are fewer requests, and a request is what a bucket
//! charges for.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use parking_lot::Mutex;
use store::Result;
use tokio::sync::oneshot;

use crate::rows::Stored;
use crate::segments::EXTENT_BYTES_MAX;

/// Extents of a file: where each begins, and its data.
pub(crate) type Extents = Vec<(u64, Vec<Bytes>)>;
/// Where each of them is, once it is durable.
type Done = Result<Vec<Stored>>;

/// Extents of one file that wait.
#[derive(Debug)]
pub(crate) struct Queued {
    id: u64,
    pub(crate) ino: u64,
    pub(crate) extents: Extents,
    len: usize,
    pub(crate) done: oneshot::Sender<Done>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct SegmentQueue(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// All up to this one were there when the last sync of everything began.
    synced: u64,
    /// Those that wait, of each tenant, in the order in which they came.
    waiting: HashMap<u64, VecDeque<Queued>>,
}

/// An entry of the queue, which leaves it when this is dropped.
#[derive(Debug)]
pub(crate) struct QueueEntry<'a> {
    queue: &'a SegmentQueue,
    tenant: u64,
    id: u64,
}

impl SegmentQueue {
    /// Adds extents of an inode; what is received is what came of them in another's segment.
    pub(crate) fn add(
        &self,
        tenant: u64,
        ino: u64,
        extents: Extents,
    ) -> (QueueEntry<'_>, oneshot::Receiver<Done>) {
        let (done, received) = oneshot::channel();
        let len = extents.iter().map(|(_, pieces)| len_of_pieces(pieces)).sum();
        let mut state = self.0.lock();
        state.next += 1;
        let id = state.next;
        state.waiting.entry(tenant).or_default().push_back(Queued { id, ino, extents, len, done });
        (QueueEntry { queue: self, tenant, id }, received)
    }

    /// A sync of everything waits for all that is queued now.
    pub(crate) fn sync_begins(&self) {
        let mut state = self.0.lock();
        state.synced = state.next;
    }
}

impl QueueEntry<'_> {
    /// Whether what its tenant has waiting is enough for a segment.
    pub(crate) fn fills_segment(&self) -> bool {
        let state = self.queue.0.lock();
        let waiting = state.waiting.get(&self.tenant).into_iter().flatten();
        waiting.map(|queued| queued.len).sum::<usize>() >= EXTENT_BYTES_MAX
    }

    /// Takes its extents out of the queue; `None`: another's segment has taken them.
    pub(crate) fn take(&self) -> Option<Queued> {
        let mut state = self.queue.0.lock();
        let waiting = state.waiting.get_mut(&self.tenant)?;
        let at = waiting.iter().position(|queued| queued.id == self.id)?;
        let own = waiting.remove(at);
        if waiting.is_empty() {
            state.waiting.remove(&self.tenant);
        }
        own
    }

    /// Takes out what waits beside `own`, which was taken, the oldest first, as long as all of it is no
    /// more than a segment. Beside one that somebody waits for (`is_awaited`) only if everything is
    /// waited for: no fsync waits for another file.
    pub(crate) fn take_others(&self, own: &Queued, is_awaited: bool) -> Vec<Queued> {
        let mut state = self.queue.0.lock();
        let last = if is_awaited { state.synced } else { u64::MAX };
        if own.id > last {
            return Vec::new();
        }
        let Some(waiting) = state.waiting.get_mut(&self.tenant) else { return Vec::new() };
        let (mut len, mut others) = (own.len, Vec::new());
        let may_go = |queued: &Queued, len| queued.id <= last && len + queued.len <= EXTENT_BYTES_MAX;
        while waiting.front().is_some_and(|queued| may_go(queued, len))
            && let Some(queued) = waiting.pop_front()
        {
            len += queued.len;
            others.push(queued);
        }
        if waiting.is_empty() {
            state.waiting.remove(&self.tenant);
        }
        others
    }
}

impl Drop for QueueEntry<'_> {
    fn drop(&mut self) {
        let _given_up = self.take();
    }
}

/// Bytes of an extent in pieces.
pub(crate) fn len_of_pieces(pieces: &[Bytes]) -> usize {
    pieces.iter().map(Bytes::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_tenant_share_a_segment_and_nobody_else_does() {
        let queue = SegmentQueue::default();
        let extents = |len: usize| vec![(0, vec![Bytes::from(vec![0; len])])];
        let third = EXTENT_BYTES_MAX / 3;
        let waiting: Vec<_> = (0..4).map(|ino| queue.add(1, ino, extents(third))).collect();
        assert!(waiting[0].0.fills_segment());
        let (other, _received) = queue.add(2, 9, extents(third));
        assert!(!other.fills_segment(), "what others have waiting does not count");
        let (given_up, _) = queue.add(1, 4, extents(1));
        drop(given_up);
        let own = waiting[1].0.take().unwrap();
        let others = waiting[1].0.take_others(&own, false);
        assert_eq!((own.ino, others.iter().map(|queued| queued.ino).collect::<Vec<_>>()), (1, vec![0, 2]));
        assert!(waiting[0].0.take().is_none(), "it is another's already");
        assert_eq!(waiting[3].0.take().unwrap().ino, 3);
        assert!(other.take_others(&own, true).is_empty(), "an fsync of one file takes another along");
        queue.sync_begins();
        assert_eq!(other.take_others(&own, true).len(), 1);
        drop((waiting, other));
        assert!(queue.0.lock().waiting.is_empty());
    }
}
