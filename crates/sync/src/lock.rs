//! Locks without poisoning.
//!
//! Plain builds use parking_lot; under loom and shuttle its types are replaced by wrappers of the
//! same shape.

#[cfg(not(any(loom, shuttle)))]
mod real {
    pub use parking_lot::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
    use std::time::Instant;

    /// A condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// A new one.
        #[must_use]
        pub const fn new() -> Self {
            Self(parking_lot::Condvar::new())
        }

        /// Releases the lock, waits for a notification, takes the lock again.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            self.0.wait(guard);
        }

        /// Like [`wait`](Self::wait), until `until` at the latest; returns whether the time ran
        /// out.
        pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, until: Instant) -> bool {
            self.0.wait_until(guard, until).timed_out()
        }

        /// Wakes one waiter.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes all waiters.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

#[cfg(any(loom, shuttle))]
mod real {
    #[cfg(loom)]
    use loom::sync as checked;
    #[cfg(shuttle)]
    use shuttle::sync as checked;
    use std::time::Instant;

    pub use checked::{RwLockReadGuard, RwLockWriteGuard};

    /// A lock guard that a [`Condvar`] can give back meanwhile.
    #[derive(Debug)]
    pub struct MutexGuard<'a, T>(Option<checked::MutexGuard<'a, T>>);

    impl<T> std::ops::Deref for MutexGuard<'_, T> {
        type Target = T;
        fn deref(&self) -> &T {
            self.0.as_ref().expect("present outside wait")
        }
    }

    impl<T> std::ops::DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("present outside wait")
        }
    }

    /// A mutual-exclusion lock.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(checked::Mutex<T>);

    impl<T> Mutex<T> {
        /// A new one.
        pub fn new(value: T) -> Self {
            Self(checked::Mutex::new(value))
        }

        /// Takes the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("models do not panic under a lock")))
        }

        /// Takes the lock if no thread has it.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok().map(|guard| MutexGuard(Some(guard)))
        }

        /// The value, of a lock that no other thread can have.
        pub fn into_inner(self) -> T {
            self.0.into_inner().expect("models do not panic under a lock")
        }
    }

    /// A reader-writer lock.
    #[derive(Debug, Default)]
    pub struct RwLock<T>(checked::RwLock<T>);

    impl<T> RwLock<T> {
        /// A new one.
        pub fn new(value: T) -> Self {
            Self(checked::RwLock::new(value))
        }

        /// Takes the lock shared.
        pub fn read(&self) -> RwLockReadGuard<'_, T> {
            self.0.read().expect("models do not panic under a lock")
        }

        /// Takes the lock exclusively.
        pub fn write(&self) -> RwLockWriteGuard<'_, T> {
            self.0.write().expect("models do not panic under a lock")
        }
    }

    /// A condition variable.
    #[derive(Debug, Default)]
    pub struct Condvar(checked::Condvar);

    impl Condvar {
        /// A new one.
        pub fn new() -> Self {
            Self(checked::Condvar::new())
        }

        /// Releases the lock, waits for a notification, takes the lock again.
        pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let inner = guard.0.take().expect("present outside wait");
            guard.0 = Some(self.0.wait(inner).expect("models do not panic under a lock"));
        }

        /// Like [`wait`](Self::wait); models have no time, so that it never runs out.
        pub fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, _until: Instant) -> bool {
            self.wait(guard);
            false
        }

        /// Wakes one waiter.
        pub fn notify_one(&self) {
            self.0.notify_one();
        }

        /// Wakes all waiters.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }
    }
}

pub use real::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
