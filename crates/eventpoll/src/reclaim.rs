//! Keeps wait entries alive while a producer calls them: read sections of `rcu`.
//!
//! A producer reads the list of entries in a read section and writes nothing that others read. A
//! thread that changes the list replaces it; the old one is freed when no section sees it any more.
//!
//! Under shuttle the code is the product's. Loom knows no threads in the background: there the same
//! grace periods protect, the thread that replaces a list waits for the readers, and a value
//! notices when it is freed under one.

pub(crate) use oracle::Called;

#[cfg(loom)]
pub(crate) use model::{RcuCell, Retired, domain};
#[cfg(not(loom))]
pub(crate) use rcu::{RcuCell, Retired};

/// All eventpolls of the process: sections are short, and only threads that change lists leave work
/// to it.
#[cfg(not(loom))]
pub(crate) fn domain() -> &'static rcu::Domain {
    #[cfg(not(shuttle))]
    static DOMAIN: std::sync::LazyLock<rcu::Domain> = std::sync::LazyLock::new(rcu::Domain::new);
    // One for each schedule. It is not dropped: a schedule's statics are dropped when it has no
    // threads any more.
    #[cfg(shuttle)]
    shuttle::lazy_static! {
        static ref DOMAIN: std::mem::ManuallyDrop<rcu::Domain> = std::mem::ManuallyDrop::new(rcu::Domain::new());
    }
    &DOMAIN
}

/// Under shuttle, a callback's target notices when it is freed during the call.
mod oracle {
    #[cfg(shuttle)]
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// The number of calls inside; empty outside of shuttle.
    #[derive(Debug, Default)]
    pub(crate) struct Called {
        #[cfg(shuttle)]
        inside: AtomicUsize,
    }

    impl Called {
        /// Calls back.
        #[inline]
        pub(crate) fn during<R>(&self, call: impl FnOnce() -> R) -> R {
            // ORDERING: SeqCst, an oracle, which the schedules do not see.
            #[cfg(shuttle)]
            self.inside.fetch_add(1, Ordering::SeqCst);
            let result = call();
            #[cfg(shuttle)]
            self.inside.fetch_sub(1, Ordering::SeqCst);
            result
        }
    }

    #[cfg(shuttle)]
    impl Drop for Called {
        fn drop(&mut self) {
            let inside = *self.inside.get_mut();
            // A panic that ends a schedule early ends it anywhere.
            assert!(inside == 0 || std::thread::panicking(), "freed under the callback");
        }
    }
}

#[cfg(loom)]
mod model {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use loom::{lazy_static, thread_local};
    use rcu::gp::{Counters, GracePeriods, Reader, Unlocked};
    use sync::Mutex;
    use sync::mutant::is_on;

    lazy_static! {
        static ref GRACE_PERIODS: GracePeriods = GracePeriods::new(2);
    }

    thread_local! {
        static READER: Arc<Reader> = {
            let slot = Reader::new("reader".into());
            GRACE_PERIODS.register(Arc::clone(&slot));
            slot
        };
    }

    /// Stands for `rcu::Domain`.
    pub(crate) struct Domain;

    pub(crate) fn domain() -> &'static Domain {
        &Domain
    }

    impl Domain {
        /// Drops at once.
        pub(crate) fn defer_drop<T>(&self, value: T) {
            drop(value);
        }
    }

    /// A value that is replaced while others read it. A lock holds it: `rcu`'s own models check
    /// that readers may read the pointer without one.
    #[derive(Debug)]
    pub(crate) struct RcuCell<T>(Mutex<Arc<Watched<T>>>);

    #[derive(Debug)]
    pub(crate) struct Watched<T> {
        value: T,
        is_free: AtomicBool,
    }

    /// A replaced value.
    #[derive(Debug)]
    pub(crate) struct Retired<T>(Arc<Watched<T>>);

    impl<T> RcuCell<T> {
        pub(crate) fn new(_: &Domain, value: T) -> Self {
            Self(Mutex::new(Arc::new(Watched { value, is_free: AtomicBool::new(false) })))
        }

        pub(crate) fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
            READER.with(|reader| {
                GracePeriods::read_lock(reader);
                let watched = Arc::clone(&self.0.lock());
                let result = read(&watched.value);
                // ORDERING: SeqCst here and below: the check itself must not be the weak part.
                assert!(!watched.is_free.load(Ordering::SeqCst), "freed under the callback");
                if GracePeriods::read_unlock(reader) != Unlocked::Done {
                    GRACE_PERIODS.wake_gp();
                }
                result
            })
        }

        pub(crate) fn replace(&self, value: T) -> Retired<T> {
            let new = Arc::new(Watched { value, is_free: AtomicBool::new(false) });
            Retired(std::mem::replace(&mut self.0.lock(), new))
        }
    }

    impl<T> Drop for Retired<T> {
        fn drop(&mut self) {
            if !is_on("eventpoll-free-under-callback") {
                GRACE_PERIODS.wait_for(GRACE_PERIODS.get_state(), &Counters::default());
            }
            self.0.is_free.store(true, Ordering::SeqCst);
        }
    }
}
