//! Read sections and grace periods, as the rest of the crate needs them.
//!
//! Plain builds use a domain of `rcu`. Under the model checkers a lock of readers and writers
//! stands for it: a grace period is the moment at which no thread reads. That gives the guarantees
//! of a domain. The checks here are about the users of the domain, not the domain, which has its
//! own models.

#[cfg(any(loom, shuttle))]
pub(crate) use checked::Cell;
#[cfg(any(loom, shuttle))]
pub use checked::{Cookie, Grace, Section};
#[cfg(not(any(loom, shuttle)))]
pub use rcu::Cookie;
#[cfg(not(any(loom, shuttle)))]
pub(crate) use real::Cell;
#[cfg(not(any(loom, shuttle)))]
pub use real::{Grace, Section};

#[cfg(not(any(loom, shuttle)))]
mod real {
    use rcu::{Cookie, Domain, Guard, RcuCell, Retired};

    /// Read sections, and the grace periods that wait for them.
    #[derive(Debug, Clone, Default)]
    pub struct Grace(Domain);

    /// A read section.
    #[derive(Debug)]
    pub struct Section<'a>(Guard<'a>);

    impl Grace {
        /// In a domain that exists already.
        #[must_use]
        pub fn of(domain: Domain) -> Self {
            Self(domain)
        }

        /// Begins a read section.
        #[inline]
        pub fn read(&self) -> Section<'_> {
            Section(self.0.read())
        }

        /// Returns when every section that was open on the call has ended.
        pub fn synchronize(&self) {
            self.0.synchronize();
        }

        /// The first grace period that begins from now on: after it every section sees the changes
        /// that the caller made before.
        pub(crate) fn cookie(&self) -> Cookie {
            self.0.get_state()
        }

        /// Returns when that grace period is over; at once if it is.
        pub(crate) fn wait_for(&self, cookie: Cookie) {
            self.0.cond_synchronize(cookie);
        }

        /// Runs `work` after a grace period.
        pub fn call(&self, work: impl FnOnce() + Send + 'static) {
            self.0.call(work);
        }

        /// Returns when everything that was given to [`call`](Self::call) before has run.
        pub fn barrier(&self) {
            self.0.barrier();
        }

        /// Grace periods so far.
        #[must_use]
        pub fn periods(&self) -> u64 {
            self.0.stats().grace_periods
        }
    }

    /// A value that is replaced while others read it.
    #[derive(Debug)]
    pub(crate) struct Cell<T: Send + 'static>(RcuCell<T>);

    impl<T: Send + 'static> Cell<T> {
        pub(crate) fn new(grace: &Grace, value: T) -> Self {
            Self(RcuCell::new(&grace.0, value))
        }

        #[inline]
        pub(crate) fn with<R>(&self, section: &Section<'_>, look: impl FnOnce(&T) -> R) -> R {
            look(self.0.load(&section.0))
        }

        /// Returns the old value. Its drop may wait for room among the domain's callbacks: not
        /// under a lock.
        pub(crate) fn replace(&self, value: T) -> Retired<T> {
            self.0.replace(value)
        }
    }
}

#[cfg(any(loom, shuttle))]
mod checked {
    use std::cell::RefCell;
    use std::sync::Arc;

    use sync::atomic::{AtomicUsize, Ordering};
    use sync::{Mutex, RwLock, RwLockReadGuard, thread};

    /// Read sections, and the grace periods that wait for them.
    #[derive(Debug, Clone, Default)]
    pub struct Grace(Arc<Inner>);

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
    pub struct Section<'a> {
        address: usize,
        /// None within another one.
        guard: Option<RwLockReadGuard<'a, ()>>,
    }

    impl Drop for Section<'_> {
        fn drop(&mut self) {
            if let Some(guard) = self.guard.take() {
                HELD.with(|held| held.borrow_mut().retain(|address| *address != self.address));
                drop(guard);
            }
        }
    }

    impl Grace {
        /// Begins a read section.
        pub fn read(&self) -> Section<'_> {
            let address = Arc::as_ptr(&self.0).addr();
            if HELD.with(|held| held.borrow().contains(&address)) {
                return Section { address, guard: None };
            }
            let guard = Some(self.0.sections.read());
            HELD.with(|held| held.borrow_mut().push(address));
            Section { address, guard }
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
        pub fn cookie(&self) -> Cookie {
            // ORDERING: AcqRel, a change of the number, so that the next grace period's change
            // comes after it.
            Cookie(self.0.periods.fetch_add(0, Ordering::AcqRel))
        }

        /// Returns when that grace period is over.
        pub fn wait_for(&self, cookie: Cookie) {
            // ORDERING: Acquire, as `Domain::poll_state`.
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
    pub(crate) struct Cell<T> {
        versions: Mutex<Vec<Arc<T>>>,
        current: AtomicUsize,
    }

    /// The old value stays in the cell.
    #[must_use]
    #[derive(Debug)]
    pub(crate) struct Retired;

    impl<T> Cell<T> {
        pub(crate) fn new(_: &Grace, value: T) -> Self {
            Self { versions: Mutex::new(vec![Arc::new(value)]), current: AtomicUsize::new(0) }
        }

        pub(crate) fn with<R>(&self, _: &Section<'_>, look: impl FnOnce(&T) -> R) -> R {
            // ORDERING: Acquire, as `RcuCell::load`.
            let current = self.current.load(Ordering::Acquire);
            let version = Arc::clone(&self.versions.lock()[current]);
            look(&version)
        }

        pub(crate) fn replace(&self, value: T) -> Retired {
            let mut versions = self.versions.lock();
            versions.push(Arc::new(value));
            // ORDERING: Release, as `RcuCell::replace`.
            self.current.store(versions.len() - 1, Ordering::Release);
            Retired
        }
    }
}
