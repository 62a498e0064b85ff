//! The switches of one superblock that wait for their grace period.
//!
//! Each superblock has a list of its own, so that its drain finds its switches without a look at
//! another's, and each switch names the grace period that it waits for: the first that begins after
//! its flag was set. Switches that wait for the same one are a *batch*. Every batch has one run of
//! a worker, which waits for that grace period, takes the batch, **once**, and moves its inodes. A
//! run that finds its grace period over does not wait: one grace period serves the batches of all
//! superblocks.
//!
//! A drain takes all batches and moves them itself, after the last one's grace period. So it waits
//! for no worker, unless one has taken a batch, and is moving it.
//!
//! # Orderings
//! * P1 the switcher pushes, and checks under this list's lock whether the superblock is closed.
//!   The drain closes it, and reads the list, under the lock. Either the drain finds the switch, or
//!   the switcher finds the superblock closed, and wakes the drain. The drain reads the list under
//!   the waiter's lock before it sleeps, and the wake-up comes after the push, under the waiter's
//!   lock: none is lost.
//! * P2 the flag of a switch is set before its grace period is named, and that is waited for before
//!   the switch is taken.
//! * P3 the waker is fetched under the list's lock, while the switch that was pushed is still
//!   there, with its pin. From the moment at which the lock is released the superblock may be gone:
//!   waking does not touch it.
//!
//! # Lock order
//! The drain's waiter, then `Pending::batches`, which is a leaf.

use std::collections::VecDeque;

use sync::Mutex;
use sync::mutant::is_on;

use crate::switch::domain::{Cookie, Domain};
use crate::switch::drain::{Drain, DrainWaker};

/// See the module.
#[derive(Debug)]
pub struct Pending<T> {
    batches: Mutex<VecDeque<Batch<T>>>,
}

/// Switches that wait for the same grace period.
#[derive(Debug)]
struct Batch<T> {
    after: Cookie,
    items: Vec<T>,
}

/// The threads that must learn of a push.
#[derive(Debug)]
#[must_use = "a switch that nobody hears of is never made"]
pub struct Pushed {
    /// A batch was begun: a worker's run must be queued for it.
    pub run: Option<Cookie>,
    /// The superblock is being drained: wake the drain.
    pub waker: Option<DrainWaker>,
}

impl<T> Default for Pending<T> {
    fn default() -> Self {
        Self { batches: Mutex::default() }
    }
}

impl<T> Pending<T> {
    /// Adds a switch whose flag is set. With `joins_any` it joins the last batch, whichever grace
    /// period that waits for.
    pub fn push(&self, item: T, domain: &Domain, superblock: &Drain, joins_any: bool) -> Pushed {
        let waker_before = is_on("pending-look-before-push").then(|| superblock.waker_if_closed());
        let mut batches = self.batches.lock();
        // Under the lock, so that the batches are in the order of their grace periods (P2).
        let after = domain.get_state();
        let joins_any = joins_any || is_on("pending-joins-any");
        let run = match batches.back_mut().filter(|last| joins_any || last.after == after) {
            Some(last) => {
                last.items.push(item);
                None
            }
            None => {
                batches.push_back(Batch { after, items: vec![item] });
                Some(after)
            }
        };
        if is_on("pending-bell-late") {
            drop(batches);
            return Pushed { run, waker: superblock.waker_if_closed() };
        }
        // P1 and P3.
        let waker = waker_before.unwrap_or_else(|| superblock.waker_if_closed());
        Pushed { run, waker }
    }

    /// Takes the batch that waits for this grace period; nothing if a drain has taken it.
    pub fn take(&self, after: Cookie) -> Vec<T> {
        let mut batches = self.batches.lock();
        let at = batches.iter().position(|batch| batch.after == after);
        at.and_then(|at| batches.remove(at)).map_or_else(Vec::new, |batch| batch.items)
    }

    /// Takes the oldest batch, whichever grace period it waits for.
    pub fn take_first(&self) -> Vec<T> {
        self.batches.lock().pop_front().map_or_else(Vec::new, |batch| batch.items)
    }

    /// Takes all batches, with the grace period after which the last of them may be moved.
    pub fn take_all(&self) -> Option<(Cookie, Vec<T>)> {
        let batches = std::mem::take(&mut *self.batches.lock());
        let last = batches.back()?.after;
        Some((last, batches.into_iter().flat_map(|batch| batch.items).collect()))
    }

    /// Whether there is something to take.
    pub fn is_empty(&self) -> bool {
        self.batches.lock().is_empty()
    }
}
