//! Read sections and grace periods: `rcu`, and what stands for it under the model checkers.
//!
//! There it is a lock of readers and writers: a grace period is the moment at which no thread
//! reads. That gives the guarantees of a domain. The checks here are about the users of the domain,
//! not the domain, which has its own models.

#[cfg(any(loom, shuttle))]
pub(crate) use checked::RcuCell;
#[cfg(any(loom, shuttle))]
pub use checked::{Cookie, Domain, Guard};
#[cfg(not(any(loom, shuttle)))]
pub(crate) use rcu::RcuCell;
#[cfg(not(any(loom, shuttle)))]
pub use rcu::{Cookie, Domain, Guard};

#[cfg(any(loom, shuttle))]
mod checked {
    use std::cell::RefCell;
    use std::sync::Arc;

    use sync::atomic::{AtomicUsize, Ordering};
    use sync::{Mutex, RwLock, RwLockReadGuard, thread};

    /// Read sections, and the grace periods that wait for them.
    #[derive(Debug, Clone, Default)]
    pub struct Domain(Arc<Inner>);

    /// The number of grace periods when it was taken.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct Cookie(usize);

    #[derive(Debug, Default)]
    struct Inner {
        sections: RwLock<()>,
        /// Grace periods so far; changed while no thread reads.
        periods: AtomicUsize,
        callbacks: Mutex<Vec<thread::JoinHandle<()>>>,
    }

    sync::thread_local! {
        /// The domains that this thread has sections of: the checkers' locks cannot be taken twice.
        static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    }

    /// A read section. One within another lasts no longer than the outer one.
    #[derive(Debug)]
    pub struct Guard<'a> {
        address: usize,
        /// None within another one.
        guard: Option<RwLockReadGuard<'a, ()>>,
    }

    impl Drop for Guard<'_> {
        fn drop(&mut self) {
            if let Some(guard) = self.guard.take() {
                HELD.with(|held| held.borrow_mut().retain(|address| *address != self.address));
                drop(guard);
            }
        }
    }

    impl Domain {
        /// Begins a read section.
        pub fn read(&self) -> Guard<'_> {
            let address = Arc::as_ptr(&self.0).addr();
            if HELD.with(|held| held.borrow().contains(&address)) {
                return Guard { address, guard: None };
            }
            let guard = Some(self.0.sections.read());
            HELD.with(|held| held.borrow_mut().push(address));
            Guard { address, guard }
        }

        /// Returns when every section that was open on the call has ended.
        pub fn synchronize(&self) {
            let nobody_reads = self.0.sections.write();
            // ORDERING: AcqRel, as the domain's heavy fence: changes made before a cookie was taken
            // are visible to sections that begin after the grace period that follows it.
            self.0.periods.fetch_add(1, Ordering::AcqRel);
            drop(nobody_reads);
        }

        /// The first grace period that begins from now on.
        pub fn get_state(&self) -> Cookie {
            // ORDERING: AcqRel, a change of the number, so that the next grace period's change
            // comes after it.
            Cookie(self.0.periods.fetch_add(0, Ordering::AcqRel))
        }

        /// Returns when that grace period is over.
        pub fn cond_synchronize(&self, cookie: Cookie) {
            // ORDERING: Acquire, as `rcu`'s `poll_state`.
            if self.0.periods.load(Ordering::Acquire) == cookie.0 {
                self.synchronize();
            }
        }

        /// Runs `work` after a grace period.
        pub fn call(&self, work: impl FnOnce() + Send + 'static) {
            let this = self.clone();
            let callback = thread::spawn(move || {
                this.synchronize();
                work();
            });
            self.0.callbacks.lock().push(callback);
        }

        /// Returns when everything that was given to [`call`](Self::call) before has run.
        pub fn barrier(&self) {
            let callbacks = std::mem::take(&mut *self.0.callbacks.lock());
            for callback in callbacks {
                callback.join().expect("callbacks do not panic");
            }
        }
    }

    /// A value that is replaced while others read it; a reader may get an old one, as far as the
    /// orderings allow.
    #[derive(Debug)]
    pub(crate) struct RcuCell<T> {
        versions: Mutex<Vec<Arc<T>>>,
        current: AtomicUsize,
    }

    /// The old value stays in the cell.
    #[must_use]
    #[derive(Debug)]
    pub(crate) struct Retired;

    impl<T> RcuCell<T> {
        pub(crate) fn new(_: &Domain, value: T) -> Self {
            Self { versions: Mutex::new(vec![Arc::new(value)]), current: AtomicUsize::new(0) }
        }

        pub(crate) fn load(&self, _: &Guard<'_>) -> Arc<T> {
            // ORDERING: Acquire, as `rcu`'s `load`.
            let current = self.current.load(Ordering::Acquire);
            Arc::clone(&self.versions.lock()[current])
        }

        pub(crate) fn replace(&self, value: T) -> Retired {
            let mut versions = self.versions.lock();
            versions.push(Arc::new(value));
            // ORDERING: Release, as `rcu`'s `replace`.
            self.current.store(versions.len() - 1, Ordering::Release);
            Retired
        }
    }
}
