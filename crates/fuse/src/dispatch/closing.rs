//! Locks that end with the last close of a file.
//!
//! A description's locks (flock(2), `F_OFD_SETLK`) end with its last close, of which the kernel tells by RELEASE. close(2)
//! does not wait for that: a request sent afterwards may be served first, above all from another CPU when requests come over io_uring.
//! A lock that is refused then would be refused because of somebody who is gone, which programs that take
//! turns (`flock -n`) do not expect.
//!
//! But close(2) waits for FLUSH. So a request that must not wait, before it is refused, waits for the RELEASE of those handles of the file
//! that were used for locks and closed lately. One of them may have been closed through a duplicate and still be
//! in use: [`GRACE`] after its close nobody waits for it any more, and the lock is refused. So a refusal may come as
//! much later than it could.
//!
//! # Lock order
//! `Closing::handles` is a leaf: nothing is called under it.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicUsize, Ordering};
use sync::{Condvar, Mutex};
use volume::{HandleId, NodeId};

/// How long after a close its RELEASE is waited for. It takes far less unless the host is very busy.
const GRACE: Duration = Duration::from_millis(500);

#[derive(Debug)]
struct Used {
    /// When it was last closed through one of its descriptors.
    closed: Option<Instant>,
}

/// The handles that were used for locks.
#[derive(Debug, Default)]
pub(crate) struct Closing {
    /// By the kernel's number of the node, and the handle: volumes have handles of the same number.
    handles: Mutex<HashMap<(NodeId, HandleId), Used>>,
    released: Condvar,
    /// How many handles are in the map: most closes need not take the lock.
    len: AtomicUsize,
}

impl Closing {
    /// A handle is about to be used for a lock.
    pub(super) fn locks(&self, node: NodeId, handle: HandleId) {
        let mut handles = self.handles.lock();
        handles.entry((node, handle)).or_insert(Used { closed: None });
        // ORDERING: Release, pairs with the Acquire in `is_empty`. A close that must see this comes after the answer
        // to the request that uses the handle, which the kernel orders.
        self.len.store(handles.len(), Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        // ORDERING: Acquire, see `locks`.
        self.len.load(Ordering::Acquire) == 0
    }

    /// One of a handle's descriptors is being closed.
    pub(super) fn closes(&self, node: NodeId, handle: HandleId) {
        if self.is_empty() {
            return;
        }
        if let Some(used) = self.handles.lock().get_mut(&(node, handle)) {
            used.closed = Some(Instant::now());
        }
    }

    /// A handle and its locks are gone.
    pub(super) fn released(&self, node: NodeId, handle: HandleId) {
        if self.is_empty() {
            return;
        }
        let mut handles = self.handles.lock();
        if handles.remove(&(node, handle)).is_some() {
            // ORDERING: Release, as in `locks`.
            self.len.store(handles.len(), Ordering::Release);
            drop(handles);
            self.released.notify_all();
        }
    }

    /// Waits for the end of one of the file's handles that were closed lately, but before `begun`, when the request
    /// came. `false`, at once, if there is none but `mine`; `about_to_wait` is called otherwise.
    pub(super) fn wait(
        &self,
        node: NodeId,
        mine: HandleId,
        begun: Instant,
        about_to_wait: impl FnOnce(),
    ) -> bool {
        let mut handles = self.handles.lock();
        let now = Instant::now();
        let Some((&handle, until)) = handles
            .iter()
            .filter(|&(&(of, handle), _)| of == node && handle != mine)
            .filter_map(|(handle, used)| {
                Some((handle, used.closed.filter(|&closed| closed <= begun)? + GRACE))
            })
            .filter(|&(_, until)| until > now)
            .min_by_key(|&(_, until)| until)
        else {
            return false;
        };
        drop(handles);
        about_to_wait();
        handles = self.handles.lock();
        while handles.contains_key(&handle) {
            if self.released.wait_until(&mut handles, until) {
                break;
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = store::ObjectId(7);
    const OTHER: NodeId = store::ObjectId(8);
    const MINE: HandleId = HandleId(1);
    const THEIRS: HandleId = HandleId(2);

    fn waits(closing: &Closing) -> bool {
        let mut is_about_to = false;
        let waited = closing.wait(NODE, MINE, Instant::now(), || is_about_to = true);
        assert_eq!(waited, is_about_to);
        waited
    }

    #[test]
    fn nobody_waits_for_handles_that_are_in_use_or_gone_or_of_other_files() {
        let closing = Closing::default();
        closing.closes(NODE, THEIRS);
        assert!(!waits(&closing));
        closing.locks(NODE, THEIRS);
        assert!(!waits(&closing));
        closing.locks(NODE, MINE);
        closing.closes(NODE, MINE);
        closing.locks(OTHER, HandleId(3));
        closing.closes(OTHER, HandleId(3));
        assert!(!waits(&closing));
        closing.closes(NODE, THEIRS);
        closing.released(NODE, THEIRS);
        assert!(!waits(&closing));
        closing.released(NODE, MINE);
        closing.released(OTHER, HandleId(3));
        assert!(closing.is_empty());
    }

    #[test]
    fn a_closed_handle_is_waited_for_until_it_is_gone() {
        let closing = Closing::default();
        closing.locks(NODE, THEIRS);
        closing.closes(NODE, THEIRS);
        std::thread::scope(|scope| {
            let (send, about_to) = std::sync::mpsc::channel();
            let waiter =
                scope.spawn(|| closing.wait(NODE, MINE, Instant::now(), move || send.send(()).unwrap()));
            about_to.recv().unwrap();
            closing.released(NODE, THEIRS);
            assert!(waiter.join().unwrap());
        });
        assert!(!waits(&closing));
    }

    #[test]
    fn a_handle_closed_through_a_duplicate_is_waited_for_once() {
        let closing = Closing::default();
        closing.locks(NODE, THEIRS);
        closing.closes(NODE, THEIRS);
        // Until its time is over, which it is afterwards.
        assert!(waits(&closing));
        assert!(!waits(&closing));
        // Closed once more after the request came, it was in use when it came.
        let begun = Instant::now();
        while Instant::now() <= begun {
            std::thread::yield_now();
        }
        closing.closes(NODE, THEIRS);
        assert!(!closing.wait(NODE, MINE, begun, || panic!("waits")));
    }
}
