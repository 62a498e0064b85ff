//! Whether a volume's store answers.
//!
//! A store is stalled while one of its calls has been under way longer than `stall_after`. Nobody asks the store: the
//! calls are known by [`store::Watch`]. A stall ends by itself when the call returns; nothing is lost by it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use store::{Store, UnderWay, Watch};
use sync::{Counter, Mutex};

use crate::control::api::Stalled;

/// Watches one volume's store.
#[derive(Debug)]
pub struct Stall {
    watch: Arc<Watch>,
    after: Duration,
    /// The call that was told of last, until it returns. A leaf lock.
    told: Mutex<Option<UnderWay>>,
    count: Counter,
}

/// What has changed since the last look.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// The store does not answer.
    Began(Stalled),
    /// It answers again, after so long.
    Ended(Duration),
}

impl Stall {
    /// Watches `store`, which from now on is to be used by way of the one returned.
    #[must_use]
    pub fn over(store: Arc<dyn Store>, after: Duration) -> (Arc<dyn Store>, Self) {
        let (store, watch) = Watch::over(store);
        (store, Self { watch, after, told: Mutex::new(None), count: Counter::default() })
    }

    /// The call that the store does not answer, if there is one.
    #[must_use]
    pub fn now(&self) -> Option<Stalled> {
        self.oldest_late().map(|call| stalled(&call))
    }

    /// Stalls that were noticed so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.get()
    }

    /// What has changed since this was called last; whoever calls it tells of it.
    #[must_use]
    pub fn change(&self) -> Option<Change> {
        let late = self.oldest_late();
        let mut told = self.told.lock();
        match (*told, late) {
            (None, Some(call)) => {
                *told = Some(call);
                self.count.add(1);
                Some(Change::Began(stalled(&call)))
            }
            (Some(call), None) => {
                *told = None;
                Some(Change::Ended(call.since.elapsed()))
            }
            _ => None,
        }
    }

    fn oldest_late(&self) -> Option<UnderWay> {
        self.watch.oldest().filter(|call| Instant::now().duration_since(call.since) >= self.after)
    }
}

fn stalled(call: &UnderWay) -> Stalled {
    let for_ms = u64::try_from(call.since.elapsed().as_millis()).unwrap_or(u64::MAX);
    Stalled { call: call.call.to_owned(), for_ms }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use store::{FaultStore, MemStore};

    use super::*;

    #[test]
    fn a_stall_is_told_of_once_and_so_is_its_end() {
        let hanging = FaultStore::new(MemStore::new(1 << 20), "statfs:hang").unwrap();
        let (store, stall) = Stall::over(Arc::clone(&hanging) as Arc<dyn Store>, Duration::ZERO);
        assert_eq!((stall.now(), stall.change()), (None, None));
        let thread = thread::spawn(move || store.statfs().is_ok());
        assert!(hanging.wait_hanging(1, Duration::from_secs(60)));
        assert_eq!(stall.now().unwrap().call, "statfs");
        assert!(matches!(stall.change(), Some(Change::Began(Stalled { call, .. })) if call == "statfs"));
        assert_eq!((stall.change(), stall.count()), (None, 1));
        hanging.release();
        assert!(thread.join().unwrap());
        assert_eq!(stall.now(), None);
        assert!(matches!(stall.change(), Some(Change::Ended(_))));
        assert_eq!((stall.change(), stall.count()), (None, 1));
    }

    #[test]
    fn a_call_that_is_only_slow_is_no_stall() {
        let hanging = FaultStore::new(MemStore::new(1 << 20), "statfs:hang").unwrap();
        let (store, stall) = Stall::over(Arc::clone(&hanging) as Arc<dyn Store>, Duration::from_secs(3600));
        let thread = thread::spawn(move || store.statfs().is_ok());
        assert!(hanging.wait_hanging(1, Duration::from_secs(60)));
        assert_eq!((stall.now(), stall.change()), (None, None));
        hanging.release();
        assert!(thread.join().unwrap());
    }
}
