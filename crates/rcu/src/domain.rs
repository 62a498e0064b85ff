//! Domains: the interface.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use sync::{Clock, RealClock};

use crate::callbacks::{Callbacks, WorkQueue};
use crate::gp::{GracePeriods, Reader, Unlocked};
use crate::handle::Handle;
use crate::inner::Inner;
use crate::local;
use crate::polls::Polls;
use crate::seq::Cookie;
use crate::stats::{Counters, Stats};
use crate::ticks::GpTick;
use crate::work::Work;

/// How a domain behaves.
#[derive(Debug, Clone)]
pub struct DomainOptions {
    /// Normal grace periods begin at most this often, so that many share one. 4 ms, a tick of a
    /// kernel with 250 Hz; about 20 ms resemble a real-time kernel.
    pub tick: Duration,
    /// Callbacks that may wait at a time, among them values whose memory was not given back yet.
    /// The caller that queues the last one waits until there is room again. From 1024 on, each
    /// living thread may have 63 beyond that: they are counted by 64.
    pub callbacks_max: usize,
    /// The grace periods' numbers go on from here: for tests of the wrap-around. Must be even.
    pub first_number: u64,
    /// Whether a grace period may have every running thread of the process pass a fence
    /// (membarrier(2), which interrupts their processors), so that readers need none. Without, as
    /// where the kernel lacks the call, each outermost section costs two full fences, and no
    /// processor is interrupted.
    pub membarrier: bool,
    /// The clock of ticks and of stall warnings. One that is set by hand needs
    /// [`Domain::clock_moved`].
    pub clock: Arc<dyn Clock>,
}

impl Default for DomainOptions {
    fn default() -> Self {
        static CLOCK: LazyLock<Arc<RealClock>> = LazyLock::new(Arc::default);
        let clock = Arc::clone(&*CLOCK);
        Self {
            tick: Duration::from_millis(4),
            callbacks_max: 100_000,
            first_number: 0,
            membarrier: true,
            clock,
        }
    }
}

/// Readers, and the threads that wait for them.
///
/// Domains are independent: a reader of one never holds up a grace period of another. A clone is
/// the same domain. A value that a domain protects is read, replaced and retired with that domain
/// alone.
#[derive(Clone)]
pub struct Domain {
    pub(crate) inner: Handle,
}

/// A read section: a value that is read under it stays until the guard is dropped.
///
/// Sections nest, cost no system call and write no memory that other readers read. They should
/// be short: every thread that frees something in the domain waits for them. A guard that is never
/// dropped (`mem::forget`) keeps its domain's grace periods from ending.
#[must_use = "the section ends when the guard is dropped"]
pub struct Guard<'d> {
    /// `None` is the default domain, whose reader is found without it.
    inner: Option<&'d Inner>,
    reader: NonNull<Reader>,
    /// A section belongs to its thread.
    of_thread: PhantomData<*mut ()>,
}

/// Begins a read section of the [default domain](Domain::global): the shortest way into one.
///
/// ```
/// use watertight_rcu::{Domain, RcuCell, read};
///
/// let cell = RcuCell::new(Domain::global(), 1);
/// let guard = read();
/// assert_eq!(*cell.load(&guard), 1);
/// ```
#[inline]
pub fn read() -> Guard<'static> {
    let reader = local::default_reader(|| &Domain::global().inner);
    // SAFETY: this thread's, and lives until the thread ends or its last section does.
    GracePeriods::read_lock(unsafe { reader.as_ref() });
    Guard { inner: None, reader, of_thread: PhantomData }
}

impl Default for Domain {
    fn default() -> Self {
        Self::new()
    }
}

impl Domain {
    /// A domain of its own.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options(DomainOptions::default())
    }

    /// A domain that behaves as `options` say.
    ///
    /// # Panics
    /// If `first_number` is odd or `callbacks_max` is zero.
    #[must_use]
    pub fn with_options(options: DomainOptions) -> Self {
        Self::make(options, false)
    }

    fn make(options: DomainOptions, is_default: bool) -> Self {
        assert!(options.callbacks_max > 0, "a domain must take callbacks");
        let inner = Arc::new_cyclic(|this| Inner {
            this: Weak::clone(this),
            gp: GracePeriods::with_clock(
                options.first_number,
                options.membarrier,
                Arc::clone(&options.clock),
            ),
            counters: Counters::default(),
            callbacks: Callbacks::new(options.callbacks_max),
            polls: Polls::default(),
            is_default,
            ticks: GpTick::new(options.clock.now(), options.tick),
        });
        Self { inner: Handle::new(inner) }
    }

    /// The default domain, for callers that need none of their own. [`read`] is the fastest way
    /// into a section of it.
    pub fn global() -> &'static Self {
        static GLOBAL: LazyLock<Domain> = LazyLock::new(|| Domain::make(DomainOptions::default(), true));
        &GLOBAL
    }

    /// Begins a read section.
    #[inline]
    pub fn read(&self) -> Guard<'_> {
        let reader = local::reader(&self.inner);
        // SAFETY: this thread's, and lives until the thread ends or its last section does.
        GracePeriods::read_lock(unsafe { reader.as_ref() });
        Guard { inner: Some(&self.inner), reader, of_thread: PhantomData }
    }

    /// Returns when every read section that was open on the call has ended.
    ///
    /// A normal grace period: it begins at the next tick, so that all threads that ask until then
    /// share it.
    ///
    /// # Panics
    /// Inside a read section of the same domain: it would wait for itself.
    pub fn synchronize(&self) {
        self.cond_synchronize(self.get_state());
    }

    /// As [`synchronize`](Self::synchronize), without waiting for a tick.
    ///
    /// # Panics
    /// As [`synchronize`](Self::synchronize).
    pub fn synchronize_expedited(&self) {
        self.check_outside("synchronize");
        self.inner.counters.waiters.add(1);
        if self.inner.gp.try_now(&self.inner.counters) {
            self.inner.ticks.on_grace_period();
        } else {
            self.inner.wait_for(self.get_state());
        }
    }

    /// The grace period that will have passed after everything the caller did before. Take it after
    /// the unpublishing, never before.
    pub fn get_state(&self) -> Cookie {
        self.inner.gp.get_state()
    }

    /// As [`get_state`](Self::get_state), and requests the grace period, so that it comes without a
    /// thread that waits for it. (Where the host gives no thread for that, which is logged, it
    /// comes with the next request or wait.)
    pub fn start_poll(&self) -> Cookie {
        let cookie = self.get_state();
        self.inner.request_gp(cookie, false);
        cookie
    }

    /// As [`start_poll`](Self::start_poll), without waiting for a tick.
    pub fn start_poll_expedited(&self) -> Cookie {
        let cookie = self.get_state();
        self.inner.request_gp(cookie, true);
        cookie
    }

    /// Whether that grace period has passed. Never waits.
    #[must_use]
    pub fn poll_state(&self, cookie: Cookie) -> bool {
        self.inner.gp.poll_state(cookie)
    }

    /// Returns when that grace period has passed; at once if it has.
    ///
    /// # Panics
    /// As [`synchronize`](Self::synchronize), if it has not passed.
    pub fn cond_synchronize(&self, cookie: Cookie) {
        self.wait_for(cookie, true);
    }

    /// As [`cond_synchronize`](Self::cond_synchronize), without waiting for a tick.
    ///
    /// # Panics
    /// As [`cond_synchronize`](Self::cond_synchronize).
    pub fn cond_synchronize_expedited(&self, cookie: Cookie) {
        self.wait_for(cookie, false);
    }

    fn wait_for(&self, cookie: Cookie, with_tick: bool) {
        if self.poll_state(cookie) {
            return;
        }
        self.check_outside("synchronize");
        self.inner.counters.waiters.add(1);
        if with_tick {
            self.inner.ticks.wait(&self.inner.gp, cookie);
        }
        self.inner.wait_for(cookie);
    }

    /// Runs `work` after a grace period, on a thread of the domain. Callbacks of one thread run in
    /// the order of its calls; those of different threads in no order.
    ///
    /// A caller that finds [`callbacks_max`](DomainOptions::callbacks_max) callbacks waiting waits
    /// until there is room. It does not wait in a read section of any domain (it waits at its next
    /// call outside), in a callback of any domain, or at its thread's end: the room may depend on
    /// it. `work` should be short, must not wait for a barrier of the same domain, and leaves no
    /// section open behind it.
    ///
    /// Where no thread can be had for them callbacks run on a thread that waits for room or for a
    /// [`barrier`](Self::barrier). Those that are left when the domain's last handle goes run then.
    #[inline]
    pub fn call(&self, work: impl FnOnce() + Send + 'static) {
        self.queue(Work::call(work));
    }

    /// Drops the contents of the box after a grace period, and gives its memory back where it came
    /// from: as [`defer_drop`](Self::defer_drop), and several times faster. The domain's thread
    /// drops the value; the calling thread frees its memory in a later call, or the domain's thread
    /// does if no such call comes.
    #[inline]
    pub fn defer_free<T: Send + 'static>(&self, value: Box<T>) {
        self.queue(Work::drop_box(value));
    }

    #[inline]
    pub(crate) fn queue(&self, work: Work) {
        self.inner.call(work);
    }

    /// Drops `value` after a grace period.
    pub fn defer_drop<T: Send + 'static>(&self, value: T) {
        self.call(move || drop(value));
    }

    /// After a grace period hands `work` to `queue`, as `queue_rcu_work` does: for work that is
    /// long, or may wait. It counts as a callback until it is handed over; from there on the queue
    /// bounds it, and [`barrier`](Self::barrier) does not wait for it.
    pub fn queue_work(&self, queue: &Arc<dyn WorkQueue>, work: impl FnOnce() + Send + 'static) {
        let queue = Arc::clone(queue);
        self.call(move || queue.push(Box::new(work)));
    }

    /// Returns when every callback that was queued before the call has run.
    ///
    /// # Panics
    /// Inside a read section of the same domain, and in one of its callbacks: it would wait for
    /// itself.
    pub fn barrier(&self) {
        self.check_outside("barrier");
        self.inner.barrier();
    }

    /// Figures of the domain so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Has threads that wait for a time read the clock again: for callers that set the domain's
    /// clock by hand.
    pub fn clock_moved(&self) {
        self.inner.clock_moved();
    }

    fn check_outside(&self, what: &str) {
        assert!(
            !local::is_inside(&self.inner),
            "{what} in a read section of the same domain would wait for itself"
        );
    }
}

impl Guard<'_> {
    #[inline]
    pub(crate) fn is_of(&self, domain: &Domain) -> bool {
        match self.inner {
            Some(inner) => domain.inner.is(inner),
            None => domain.inner.is_default,
        }
    }

    fn inner(&self) -> &Inner {
        of_default(self.inner)
    }
}

/// The domain, or the default one.
fn of_default(inner: Option<&Inner>) -> &Inner {
    match inner {
        Some(inner) => inner,
        None => &Domain::global().inner,
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: the reader lives until this section's end at least, and is this thread's.
        let left = GracePeriods::read_unlock(unsafe { self.reader.as_ref() });
        if left != Unlocked::Done {
            // SAFETY: its section has just ended, and the guard goes with it.
            unsafe { after(self.inner, self.reader, left) };
        }
    }
}

/// A section has ended in another way than the usual one. Not given the guard, which so needs no
/// place in memory.
///
/// # Safety
/// The reader is of that domain, it ended as `left` says, and the caller does not use it again.
#[cold]
unsafe fn after(inner: Option<&Inner>, reader: NonNull<Reader>, left: Unlocked) {
    let inner = of_default(inner);
    inner.gp.wake_gp();
    if left == Unlocked::Unregister {
        // SAFETY: temporary; the rest is the caller's promise.
        unsafe { local::end_temporary(inner, reader) };
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain")
            .field("inner", &std::ptr::from_ref::<Inner>(&self.inner))
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("inner", &std::ptr::from_ref(self.inner())).finish_non_exhaustive()
    }
}
