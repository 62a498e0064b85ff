//! The list of an earlier version of the change that took the rwlock out of the kernel (2025,
//! before 6.18): half of it is without a lock. A producer marks the item and pushes it on a stack;
//! the consumer, under the scan's lock, takes the whole stack with one exchange and reverses it.
//!
//! It cannot do the first step of `ReadyBitmap`'s head: a producer may be stopped between the mark
//! and the push. From then until it runs again every other signal of that source finds the mark and
//! relies on a push that is not there.

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use eventpoll::ready::{Pending, ReadyList};

/// An item's place.
#[derive(Debug)]
pub(crate) struct Node {
    slot: usize,
    /// Set by the producer that will push it, cleared by the scan that asks its source.
    is_marked: AtomicBool,
    /// Written by that producer before it pushes, read by the scan that took the stack.
    next: AtomicPtr<Node>,
}

/// The list.
#[derive(Debug, Default)]
pub(crate) struct HalfLockless {
    /// Each node on it is one count of its `Arc`.
    top: AtomicPtr<Node>,
    /// Whether the scan's list has anything; written under the scan's lock.
    is_listed: AtomicBool,
}

/// The nodes by slot.
#[derive(Debug, Default)]
pub(crate) struct Nodes(Vec<Option<Arc<Node>>>);

impl HalfLockless {
    fn push(&self, node: &Arc<Node>) {
        let pushed = Arc::into_raw(Arc::clone(node)).cast_mut();
        // ORDERING: Relaxed, the exchange decides.
        let mut top = self.top.load(Ordering::Relaxed);
        loop {
            // ORDERING: Relaxed: published by the exchange.
            node.next.store(top, Ordering::Relaxed);
            // ORDERING: SeqCst: a consumer that takes the stack sees the change of the source, and
            // `next`; the full barrier before the caller looks for sleepers.
            match self.top.compare_exchange_weak(top, pushed, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => top = now,
            }
        }
    }

    /// The oldest first.
    fn take(&self) -> Vec<Arc<Node>> {
        // ORDERING: SeqCst, pairs with the exchange in `push`; after `is_listed`.
        let mut at = self.top.swap(ptr::null_mut(), Ordering::SeqCst);
        let mut taken = Vec::new();
        while !at.is_null() {
            // SAFETY: `push` made this pointer from an `Arc` and gave its count to the stack, from
            // which only this exchange took it.
            let node = unsafe { Arc::from_raw(at.cast_const()) };
            // ORDERING: Relaxed: it was written before the exchange that published the node, and no
            // producer pushes a marked node again.
            at = node.next.load(Ordering::Relaxed);
            taken.push(node);
        }
        taken.reverse();
        taken
    }
}

impl Drop for HalfLockless {
    fn drop(&mut self) {
        drop(self.take());
    }
}

impl ReadyList for HalfLockless {
    type Link = Arc<Node>;
    type ScanState = Nodes;
    type Guard<'a> = ();
    // An item that is asked is in neither for a moment.
    const IS_EXACT: bool = false;

    fn new_link(&self, nodes: &mut Nodes, slot: usize) -> Arc<Node> {
        if nodes.0.len() <= slot {
            nodes.0.resize(slot + 1, None);
        }
        let (is_marked, next) = (AtomicBool::new(false), AtomicPtr::new(ptr::null_mut()));
        let node = Arc::new(Node { slot, is_marked, next });
        nodes.0[slot] = Some(Arc::clone(&node));
        node
    }

    fn hold(&self) {}

    fn queue(&self, (): &mut (), node: &Arc<Node>) {
        // ORDERING: SeqCst: either the scan that clears the mark sees the change of the source, or
        // this swap sees the mark cleared.
        if !node.is_marked.swap(true, Ordering::SeqCst) {
            self.push(node);
        }
    }

    fn is_empty(&self) -> bool {
        // ORDERING: SeqCst, with the exchanges of both.
        self.top.load(Ordering::SeqCst).is_null() && !self.is_listed.load(Ordering::SeqCst)
    }

    fn start(&self, nodes: &mut Nodes, pending: &mut Pending) {
        // ORDERING: SeqCst: before the stack is seen empty.
        self.is_listed.store(true, Ordering::SeqCst);
        // A node may be unknown: its item is gone, and its place may be another's, because its
        // producer came late.
        let is_known =
            |node: &Arc<Node>| nodes.0[node.slot].as_ref().is_some_and(|known| Arc::ptr_eq(known, node));
        pending.extend(self.take().into_iter().filter(is_known).map(|node| node.slot));
    }

    fn unqueue(&self, _nodes: &mut Nodes, node: &Arc<Node>) {
        // ORDERING: SeqCst, as in `queue`: the full barrier before the source is asked.
        node.is_marked.swap(false, Ordering::SeqCst);
    }

    fn requeue(&self, _nodes: &mut Nodes, node: &Arc<Node>) -> bool {
        // ORDERING: SeqCst, as in `queue`. A producer that has marked it meanwhile pushes it.
        !node.is_marked.swap(true, Ordering::SeqCst)
    }

    fn remove(&self, _nodes: &mut Nodes, node: &Arc<Node>) -> bool {
        // ORDERING: SeqCst, as in `queue`.
        node.is_marked.load(Ordering::SeqCst)
    }

    fn pass(&self, _nodes: &mut Nodes, _slot: usize) {}

    fn end(&self, nodes: &mut Nodes, pending: &mut Pending, stays: bool) {
        self.start(nodes, pending);
        // ORDERING: SeqCst: items queued from here on are on the stack.
        self.is_listed.store(stays || !pending.is_empty(), Ordering::SeqCst);
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
#[path = "../../../eventpoll/tests/steps/mod.rs"]
mod steps;

/// The part of its own tests that `steps` uses.
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod common {
    pub(crate) fn until(what: &str, is_so: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !is_so() {
            assert!(begun.elapsed().as_secs() < 60, "still waiting until {what}");
            std::thread::yield_now();
        }
    }
}

/// The product's test of a producer that is stopped at each of its instructions in turn, with this
/// list.
#[cfg(all(test, target_arch = "x86_64", target_os = "linux"))]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use eventpoll::ready::ReadyBitmap;
    use eventpoll::{EventCounter, EventPoll, Events, Interest, Options};

    use super::steps::at_each_step;
    use super::*;

    /// The number of instructions of one signal at which another, returned signal of the same
    /// source is not seen.
    fn hidden<R: ReadyList>() -> usize {
        let poll = EventPoll::<R>::with_ready_list(Options::default());
        let (source, hidden) = (EventCounter::new(), AtomicUsize::new(0));
        poll.add(&source, Interest::edge(Events::IN), 0).expect("a new source");
        let ask = || poll.wait(&mut Vec::new(), 1, Some(Duration::ZERO)).expect("it is open");
        at_each_step(
            || {
                ask();
                source.take();
            },
            || source.add(1),
            |_step| {
                source.add(1);
                // ORDERING: SeqCst, a test's count.
                hidden.fetch_add(usize::from(ask() == 0), Ordering::SeqCst);
            },
        );
        hidden.into_inner()
    }

    #[test]
    fn a_producer_that_stops_hides_signals_of_the_same_source() {
        assert!(hidden::<HalfLockless>() > 0, "what is known to be wrong with this list does not show");
        assert_eq!(hidden::<ReadyBitmap>(), 0);
    }
}
