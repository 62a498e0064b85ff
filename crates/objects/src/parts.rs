//! Parts of segments that wait for a turn: those of one tenant share the segment of the first whose turn
//! comes.
//!
//! Many files of a few MiB are so many rounds, each less than a segment. While the bucket takes others,
//! they wait; together they are fewer requests, and a request is what a bucket charges for.

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

/// A part of one file.
#[derive(Debug)]
pub(crate) struct Part {
    id: u64,
    pub(crate) ino: u64,
    pub(crate) extents: Extents,
    len: usize,
    pub(crate) done: oneshot::Sender<Done>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Parts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    next: u64,
    /// Those that wait, of each tenant, in the order in which they came.
    waiting: HashMap<u64, VecDeque<Part>>,
}

/// A part's place among those that wait, until this is dropped.
#[derive(Debug)]
pub(crate) struct Waiting<'a> {
    parts: &'a Parts,
    tenant: u64,
    id: u64,
}

impl Parts {
    /// Adds extents of an inode; what is received is what came of them in another's segment.
    pub(crate) fn wait(
        &self,
        tenant: u64,
        ino: u64,
        extents: Extents,
    ) -> (Waiting<'_>, oneshot::Receiver<Done>) {
        let (done, received) = oneshot::channel();
        let len = extents.iter().flat_map(|(_, pieces)| pieces).map(Bytes::len).sum();
        let mut state = self.0.lock();
        state.next += 1;
        let id = state.next;
        state.waiting.entry(tenant).or_default().push_back(Part { id, ino, extents, len, done });
        (Waiting { parts: self, tenant, id }, received)
    }
}

impl Waiting<'_> {
    /// Takes the part out; `None`: another's segment takes it.
    pub(crate) fn take(&self) -> Option<Part> {
        let mut state = self.parts.0.lock();
        let waiting = state.waiting.get_mut(&self.tenant)?;
        let at = waiting.iter().position(|part| part.id == self.id)?;
        let own = waiting.remove(at);
        if waiting.is_empty() {
            state.waiting.remove(&self.tenant);
        }
        own
    }

    /// Takes out parts that wait beside a part that was taken, the oldest first, as long as all of them
    /// are no more than a segment.
    pub(crate) fn take_others(&self, own: &Part) -> Vec<Part> {
        let mut state = self.parts.0.lock();
        let Some(waiting) = state.waiting.get_mut(&self.tenant) else { return Vec::new() };
        let (mut len, mut others) = (own.len, Vec::new());
        while waiting.front().is_some_and(|part| len + part.len <= EXTENT_BYTES_MAX)
            && let Some(part) = waiting.pop_front()
        {
            len += part.len;
            others.push(part);
        }
        if waiting.is_empty() {
            state.waiting.remove(&self.tenant);
        }
        others
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let _given_up = self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_a_tenant_share_a_segment_and_nobody_else_does() {
        let parts = Parts::default();
        let extents = |len: usize| vec![(0, vec![Bytes::from(vec![0; len])])];
        let third = EXTENT_BYTES_MAX / 3;
        let waiting: Vec<_> = (0..4).map(|ino| parts.wait(1, ino, extents(third))).collect();
        let (other, _received) = parts.wait(2, 9, extents(third));
        let (given_up, _) = parts.wait(1, 4, extents(1));
        drop(given_up);
        let own = waiting[1].0.take().unwrap();
        let others = waiting[1].0.take_others(&own);
        assert_eq!((own.ino, others.iter().map(|part| part.ino).collect::<Vec<_>>()), (1, vec![0, 2]));
        assert!(waiting[0].0.take().is_none(), "it is another's already");
        assert_eq!(waiting[3].0.take().unwrap().ino, 3);
        assert_eq!(other.take_others(&own).len(), 1);
        drop((waiting, other));
        assert!(parts.0.lock().waiting.is_empty());
    }
}
