//! Whether a volume's store answers.
//!
//! One rule: a store is stalled while one of its calls has been under way longer than
//! [`Options::stall_after`](crate::Options::stall_after). The store is not asked: [`store::Watch`]
//! knows the calls. A stall ends by itself when the call returns; nothing is lost by it. A store
//! that refuses is not stalled, nor is one that waits for a limit.
//!
//! A check ([`Volume::look`](crate::Volume::look)) notices the beginning and the end of a stall,
//! and reports each once.
//!
//! Lock order: `Stall::reported`, then what [`store::Watch`] and the journal of the events lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use store::{UnderWay, Watch};
use sync::atomic::{AtomicBool, Ordering};
use sync::mutant::is_on;
use sync::{Mutex, StatCounter};

use crate::events::{Edge, Events};

/// Watches one volume's store.
#[derive(Debug)]
pub(crate) struct Stall {
    watch: Arc<Watch>,
    after: Duration,
    /// The call that was reported last, until it returns. Reports are made under this lock, in
    /// order.
    reported: Mutex<Option<UnderWay>>,
    /// Whether there is one, for a thread that asks at each request. Written under `reported`.
    is_reported: AtomicBool,
    count: StatCounter,
}

impl Stall {
    pub(crate) fn new(watch: Arc<Watch>, after: Duration) -> Self {
        Self {
            watch,
            after,
            reported: Mutex::new(None),
            is_reported: AtomicBool::new(false),
            count: StatCounter::default(),
        }
    }

    /// The call that the store does not answer, if there is one.
    pub(crate) fn now(&self) -> Option<UnderWay> {
        self.watch.oldest().filter(|call| Instant::now().duration_since(call.since) >= self.after)
    }

    /// Whether a call that was under way then has not returned.
    pub(crate) fn has_call_since(&self, then: Instant) -> bool {
        self.watch.oldest().is_some_and(|call| call.since <= then)
    }

    /// Whether calls that were under way `then` still are, and each of them has been so for `time`.
    pub(crate) fn are_all_late(&self, then: Instant, time: Duration) -> bool {
        self.watch.newest_of(then).is_some_and(|call| call.since.elapsed() >= time)
    }

    /// Whether a call has been under way for so long.
    pub(crate) fn is_silent_for(&self, time: Duration) -> bool {
        self.watch.oldest().is_some_and(|call| call.since.elapsed() >= time)
    }

    /// Looks as [`now`](Self::now) does, and reports it if that is news.
    pub(crate) fn look(&self, events: &Events) -> Option<UnderWay> {
        let seen_before = is_on("stall-seen-before").then(|| self.now());
        let mut reported = self.reported.lock();
        // Under the lock: a result from before it may be outdated when other threads have reported
        // later states.
        let late = seen_before.unwrap_or_else(|| self.now());
        if reported.is_some() == late.is_some() {
            return late;
        }
        *reported = late;
        // ORDERING: Relaxed, nothing is published by it.
        self.is_reported.store(late.is_some(), Ordering::Relaxed);
        match late {
            Some(_) => {
                self.count.add(1);
                events.stall(Edge::Begins);
            }
            None => events.stall(Edge::Ends),
        }
        late
    }

    /// Whether the store did not answer at the last check.
    pub(crate) fn is_reported(&self) -> bool {
        // ORDERING: Relaxed, as in `look`.
        self.is_reported.load(Ordering::Relaxed)
    }

    /// Replaces a store that hangs, for checkers.
    #[cfg(all(test, shuttle))]
    pub(crate) fn set_reported(&self) {
        // ORDERING: Relaxed, as in `look`.
        self.is_reported.store(true, Ordering::Relaxed);
    }

    /// Stalls that were noticed so far.
    pub(crate) fn count(&self) -> u64 {
        self.count.get()
    }
}

#[cfg(all(test, shuttle))]
mod schedules;

#[cfg(test)]
mod tests {
    use std::thread;

    use eventpoll::Read;
    use store::{FaultStore, MemStore, Store};

    use super::*;
    use crate::events::What;

    fn reported(events: &Events) -> Vec<What> {
        let mut reader = events.journal().reader(0);
        let next = || match reader.read() {
            Read::Entry { value, .. } => Some(value.what.clone()),
            _ => None,
        };
        std::iter::from_fn(next).collect()
    }

    fn hanging(after: Duration) -> (Arc<FaultStore>, Arc<dyn Store>, Stall) {
        let hanging = FaultStore::new(MemStore::new(1 << 20), "statfs:hang").unwrap();
        let (store, watch) = Watch::over(Arc::clone(&hanging) as Arc<dyn Store>);
        (hanging, store, Stall::new(watch, after))
    }

    #[test]
    fn a_stall_is_told_of_once_and_so_is_its_end() {
        let (hanging, store, stall) = hanging(Duration::ZERO);
        let events = Events::default();
        assert_eq!(stall.look(&events), None);
        let thread = thread::spawn(move || store.statfs().is_ok());
        assert!(hanging.wait_hanging(1, Duration::from_secs(60)));
        assert_eq!(stall.look(&events).unwrap().call, "statfs");
        assert_eq!(stall.look(&events), stall.now());
        assert_eq!((reported(&events), stall.count()), (vec![What::Stall(Edge::Begins)], 1));
        hanging.release();
        assert!(thread.join().unwrap());
        assert_eq!((stall.look(&events), stall.look(&events)), (None, None));
        let both = vec![What::Stall(Edge::Begins), What::Stall(Edge::Ends)];
        assert_eq!((reported(&events), stall.count()), (both, 1));
    }

    #[test]
    fn a_call_that_is_only_slow_is_no_stall() {
        let (hanging, store, stall) = hanging(Duration::from_secs(3600));
        let events = Events::default();
        let thread = thread::spawn(move || store.statfs().is_ok());
        assert!(hanging.wait_hanging(1, Duration::from_secs(60)));
        assert_eq!((stall.look(&events), stall.count()), (None, 0));
        hanging.release();
        assert!(thread.join().unwrap());
        assert_eq!(reported(&events), []);
    }
}
