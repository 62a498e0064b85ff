//! What keeps listeners alive while somebody signals.
//!
//! Whoever signals reads the list of listeners in a read section and writes nothing that others read. Whoever changes
//! the list puts another one in its place; the old one goes when no section sees it any more.
//!
//! Models have no thread-locals of the host and no threads in the background; there the same gate protects, whoever
//! replaces waits for the readers, and a value notices when it is given up under one.

#[cfg(not(any(loom, shuttle)))]
pub(crate) use real::{Cell, Retired};

#[cfg(any(loom, shuttle))]
pub(crate) use model::{Cell, Retired};

#[cfg(not(any(loom, shuttle)))]
mod real {
    use std::sync::LazyLock;

    use rcu::{Domain, RcuCell};

    /// All eventpolls of the process: sections are short, and only who changes lists leaves something to it.
    static DOMAIN: LazyLock<Domain> = LazyLock::new(Domain::new);

    /// What was replaced. It is freed when it was dropped and no reader sees it any more; drop it without a lock.
    pub(crate) type Retired<T> = rcu::Retired<T>;

    /// A value that is replaced while others read it.
    #[derive(Debug)]
    pub(crate) struct Cell<T: Send + 'static>(RcuCell<T>);

    impl<T: Send + 'static> Cell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(RcuCell::new(&DOMAIN, value))
        }

        /// Reads the value, which stays meanwhile.
        #[inline]
        pub(crate) fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
            self.0.with(read)
        }

        /// Replaces the value, and gives the old one.
        pub(crate) fn replace(&self, value: T) -> Retired<T> {
            self.0.replace(value)
        }
    }
}

#[cfg(any(loom, shuttle))]
mod model {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[cfg(loom)]
    use loom::{lazy_static, thread_local};
    use rcu::gate::{Counters, Gate, Left, Slot};
    #[cfg(shuttle)]
    use shuttle::{lazy_static, thread_local};
    use sync::Mutex;
    use sync::mutant::is_on;

    lazy_static! {
        static ref GATE: Gate = Gate::new(2);
    }

    thread_local! {
        static READER: Arc<Slot> = {
            let slot = Slot::new("reader".into());
            GATE.join(Arc::clone(&slot));
            slot
        };
    }

    /// A value that is replaced while others read it. A lock holds it: that the pointer may be read without one is
    /// `rcu`'s affair, and checked there.
    #[derive(Debug)]
    pub(crate) struct Cell<T>(Mutex<Arc<Watched<T>>>);

    #[derive(Debug)]
    pub(crate) struct Watched<T> {
        value: T,
        is_free: AtomicBool,
    }

    /// What was replaced.
    #[derive(Debug)]
    pub(crate) struct Retired<T>(Arc<Watched<T>>);

    impl<T> Cell<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(Mutex::new(Arc::new(Watched { value, is_free: AtomicBool::new(false) })))
        }

        pub(crate) fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
            READER.with(|reader| {
                Gate::enter(reader);
                let watched = Arc::clone(&self.0.lock());
                let result = read(&watched.value);
                // ORDERING: SeqCst here and below: the check itself must not be the weak part.
                assert!(!watched.is_free.load(Ordering::SeqCst), "freed under the callback");
                if Gate::leave(reader) != Left::Quietly {
                    GATE.tell_left();
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
                GATE.wait_for(GATE.get_state(), &Counters::default());
            }
            self.0.is_free.store(true, Ordering::SeqCst);
        }
    }
}
