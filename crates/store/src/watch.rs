//! Whether a store answers: which calls are under way, and since when.
//!
//! A store that hangs gives no error and returns from no call; the only sign is a call that lasts.
//! Each call takes a slot for its time and notes when it began. So [`Watch::oldest`] finds it
//! without asking the store.
//!
//! The time of each call is in the account of the request that it is made for ([`sync::accounting`]).
//!
//! Lock order: a slot is a leaf, and held for a moment only, never during a call.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use sync::Mutex;
use sync::accounting::{Part, Spending, spend_on_since};

use crate::around::{Around, AroundStore};
use crate::{Result, Store};

/// Calls that are told apart; of more at one time only these are watched, and a hang of any of them
/// would be noticed.
const SLOTS: usize = 64;

/// A call that has not returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnderWay {
    /// The method's name.
    pub call: &'static str,
    /// When it began.
    pub since: Instant,
}

/// The calls under way of one store.
#[derive(Debug)]
pub struct Watch {
    slots: [Mutex<Option<UnderWay>>; SLOTS],
}

impl Watch {
    /// Watches `inner`: all calls have to be made by way of the store that is returned.
    #[must_use]
    pub fn over(inner: Arc<dyn Store>) -> (Arc<dyn Store>, Arc<Self>) {
        let watch = Arc::new(Self { slots: std::array::from_fn(|_| Mutex::new(None)) });
        (Arc::new(AroundStore { inner, around: Arc::clone(&watch) }), watch)
    }

    /// The call that has been under way longest. Never asks the store.
    #[must_use]
    pub fn oldest(&self) -> Option<UnderWay> {
        self.slots.iter().filter_map(|slot| *slot.lock()).min_by_key(|call| call.since)
    }

    /// Of the calls that were under way `then` and still are, the one that began last. Never asks
    /// the store.
    #[must_use]
    pub fn newest_of(&self, then: Instant) -> Option<UnderWay> {
        let calls = self.slots.iter().filter_map(|slot| *slot.lock());
        calls.filter(|call| call.since <= then).max_by_key(|call| call.since)
    }

    fn begin(&self, call: &'static str) -> (Spending, Option<Slot<'_>>) {
        let this = UnderWay { call, since: Instant::now() };
        (spend_on_since(Part::Store, this.since), self.take_slot(this))
    }

    fn take_slot(&self, this: UnderWay) -> Option<Slot<'_>> {
        let first = first_slot();
        for n in 0..SLOTS {
            let slot = &self.slots[(first + n) % SLOTS];
            let mut content = slot.lock();
            if content.is_none() {
                *content = Some(this);
                return Some(Slot(slot));
            }
        }
        None
    }
}

/// A slot that is taken; given back also when the call panics.
struct Slot<'a>(&'a Mutex<Option<UnderWay>>);

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

impl Around for Watch {
    fn call<T>(&self, op: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let _under_way = self.begin(op);
        work()
    }

    fn tell<T>(&self, op: &'static str, work: impl FnOnce() -> T) -> T {
        let _under_way = self.begin(op);
        work()
    }

    /// close(2) of a file on a server that hangs waits for the server.
    fn end(&self, op: &'static str, work: impl FnOnce()) {
        self.tell(op, work);
    }
}

/// The slot that a thread tries first: threads that call at the same time seldom meet.
fn first_slot() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        // ORDERING: Relaxed, any number will do.
        static OWN: usize = THREADS.fetch_add(1, Ordering::Relaxed);
    }
    OWN.with(|own| *own)
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::{FaultStore, MemStore, ObjectId};

    #[test]
    fn a_call_that_hangs_is_known_by_name_until_it_returns() {
        let hanging = FaultStore::new(MemStore::new(1 << 20), "statfs:hang").unwrap();
        let (store, watch) = Watch::over(Arc::clone(&hanging) as Arc<dyn Store>);
        assert_eq!(watch.oldest(), None);
        let begun = Instant::now();
        let other = Arc::clone(&store);
        let thread = thread::spawn(move || other.statfs());
        assert!(hanging.wait_hanging(1, Duration::from_secs(60)));
        let oldest = watch.oldest().unwrap();
        assert_eq!(oldest.call, "statfs");
        assert!(oldest.since >= begun);
        assert_eq!(watch.newest_of(oldest.since), Some(oldest));
        assert_eq!(watch.newest_of(begun), Some(oldest).filter(|call| call.since == begun), "it began later");
        // Other calls go on, and the oldest stays the oldest.
        store.attr(ObjectId::ROOT).unwrap();
        assert_eq!(watch.oldest(), Some(oldest));
        hanging.release();
        thread.join().unwrap().unwrap();
        assert_eq!(watch.oldest(), None);
    }

    #[test]
    fn a_close_that_hangs_is_known_too() {
        for (rules, name) in [("file.close:hang", "close_file"), ("dir.close:hang", "close_dir")] {
            let hanging = FaultStore::new(MemStore::new(1 << 20), rules).unwrap();
            let (store, watch) = Watch::over(Arc::clone(&hanging) as Arc<dyn Store>);
            let creator = crate::Creator { uid: 0, gid: 0, umask: 0 };
            let name_of_file = crate::Name::new(std::ffi::OsStr::new("file")).unwrap();
            let file = store.create(ObjectId::ROOT, name_of_file, 0o600, creator).unwrap().file;
            let dir = store.open_dir(ObjectId::ROOT).unwrap();
            let thread = thread::spawn(move || drop((file, dir)));
            assert!(hanging.wait_hanging(1, Duration::from_secs(60)));
            assert_eq!(watch.oldest().unwrap().call, name);
            hanging.release();
            thread.join().unwrap();
            assert_eq!(watch.oldest(), None);
        }
    }

    #[test]
    fn more_calls_than_slots_are_made_all_the_same() {
        let hanging = FaultStore::new(MemStore::new(1 << 20), "statfs:hang").unwrap();
        let (store, watch) = Watch::over(Arc::clone(&hanging) as Arc<dyn Store>);
        let threads: Vec<_> = (0..SLOTS + 8)
            .map(|_| {
                let store = Arc::clone(&store);
                thread::spawn(move || store.statfs().is_ok())
            })
            .collect();
        assert!(hanging.wait_hanging(SLOTS + 8, Duration::from_secs(60)));
        assert!(watch.oldest().is_some());
        hanging.release();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap()));
        assert_eq!(watch.oldest(), None);
    }

    #[test]
    fn a_call_that_panics_gives_its_slot_back() {
        let (_store, watch) = Watch::over(MemStore::new(1 << 20));
        let call = || watch.call("attr", || -> Result<()> { panic!("on purpose") });
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
        assert_eq!(watch.oldest(), None);
    }
}
