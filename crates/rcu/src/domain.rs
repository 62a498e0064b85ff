//! Domains: the interface.

use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use sync::{Clock, Condvar, Mutex, RealClock};

use crate::callbacks::{Callbacks, WorkQueue};
use crate::gate::Gate;
use crate::local::{self, Place};
use crate::seq::Cookie;
use crate::stats::{Counters, Stats};
use crate::work::Work;

/// How a domain behaves.
#[derive(Debug, Clone)]
pub struct DomainOptions {
    /// Normal grace periods begin at most this often, so that many share one. 4 ms, a tick of a kernel with 250 Hz;
    /// about 20 ms resemble a real-time kernel.
    pub tick: Duration,
    /// Callbacks that may wait at a time. Who adds the last one waits until there is room again. With 1024 and more,
    /// each thread may have 63 beyond that: they are counted by 64.
    pub callbacks_max: usize,
    /// The number of the first grace period, for tests of the wrap-around. Must be even.
    pub first_number: u64,
    /// The clock of ticks and of stall warnings. One that is set by hand needs [`Domain::clock_moved`].
    pub clock: Arc<dyn Clock>,
}

impl Default for DomainOptions {
    fn default() -> Self {
        static CLOCK: LazyLock<Arc<RealClock>> = LazyLock::new(Arc::default);
        let clock = Arc::clone(&*CLOCK);
        Self { tick: Duration::from_millis(4), callbacks_max: 100_000, first_number: 0, clock }
    }
}

/// Readers and those who wait for them.
///
/// Domains are independent: a reader of one never holds up a grace period of another. A clone is the same domain.
/// What is protected by a domain is read, replaced and retired with that domain alone.
#[derive(Clone)]
pub struct Domain {
    id: u64,
    pub(crate) inner: Arc<Inner>,
}

/// What a domain's handles, its threads' places and its worker share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) gate: Gate,
    pub(crate) counters: Counters,
    pub(crate) callbacks: Callbacks,
    pub(crate) options: DomainOptions,
    /// Ticks are counted from here.
    begun: Duration,
    /// For those who wait for a tick.
    ticks: Mutex<()>,
    ticked: Condvar,
}

/// A read section: what is read under it stays until it is dropped.
///
/// Sections nest, cost no system call and write no memory that other readers look at. They should be short:
/// everybody who frees something in the domain waits for them. A guard that is never dropped
/// (`mem::forget`) keeps its domain's grace periods from ending.
#[must_use = "the section ends when the guard is dropped"]
pub struct Guard<'d> {
    domain: &'d Domain,
    place: NonNull<Place>,
    /// A section belongs to its thread.
    of_thread: PhantomData<*mut ()>,
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

    /// One that behaves as `options` say.
    ///
    /// # Panics
    /// If `first_number` is odd or `callbacks_max` is zero.
    #[must_use]
    pub fn with_options(options: DomainOptions) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        assert!(options.callbacks_max > 0, "a domain must take callbacks");
        let inner = Inner {
            gate: Gate::with_clock(options.first_number, Arc::clone(&options.clock)),
            counters: Counters::default(),
            callbacks: Callbacks::new(options.callbacks_max),
            begun: options.clock.now(),
            ticks: Mutex::new(()),
            ticked: Condvar::new(),
            options,
        };
        // ORDERING: Relaxed, only a number of its own for each.
        Self { id: NEXT.fetch_add(1, Ordering::Relaxed), inner: Arc::new(inner) }
    }

    /// The domain for whoever needs none of their own.
    pub fn global() -> &'static Self {
        static GLOBAL: LazyLock<Domain> = LazyLock::new(Domain::new);
        &GLOBAL
    }

    /// Begins a read section.
    #[inline]
    pub fn read(&self) -> Guard<'_> {
        let place = local::place(self.id, &self.inner);
        {
            #[allow(unsafe_code, reason = "the thread's own place")]
            // SAFETY: `place` is this thread's, and lives until the thread ends or its last section does.
            let place = unsafe { place.as_ref() };
            if place.open() {
                self.inner.gate.enter(&place.slot);
            }
        }
        Guard { domain: self, place, of_thread: PhantomData }
    }

    /// Returns when every read section that was open on the call has ended.
    ///
    /// Normal: begins at the next tick, so that everybody who asks until then shares it.
    ///
    /// # Panics
    /// Inside a read section of the same domain: it would wait for itself.
    pub fn synchronize(&self) {
        self.cond_synchronize(self.get_state());
    }

    /// The same without waiting for a tick.
    ///
    /// # Panics
    /// As [`synchronize`](Self::synchronize).
    pub fn synchronize_expedited(&self) {
        self.cond_synchronize_expedited(self.get_state());
    }

    /// The grace period that will have passed after everything the caller did before. Take it after the
    /// unpublishing, never before.
    pub fn get_state(&self) -> Cookie {
        self.inner.gate.get_state()
    }

    /// The same, and sees to it that the grace period comes without anybody waiting for it.
    pub fn start_poll(&self) -> Cookie {
        let cookie = self.get_state();
        self.inner.ask(cookie, false);
        cookie
    }

    /// The same without waiting for a tick.
    pub fn start_poll_expedited(&self) -> Cookie {
        let cookie = self.get_state();
        self.inner.ask(cookie, true);
        cookie
    }

    /// Whether that grace period has passed. Never waits.
    #[must_use]
    pub fn poll_state(&self, cookie: Cookie) -> bool {
        self.inner.gate.poll_state(cookie)
    }

    /// Returns when that grace period has passed; at once if it has.
    ///
    /// # Panics
    /// As [`synchronize`](Self::synchronize), if it has not passed.
    pub fn cond_synchronize(&self, cookie: Cookie) {
        if self.poll_state(cookie) {
            return;
        }
        self.check_outside("synchronize");
        self.inner.wait_for_tick(cookie);
        self.inner.wait_for(cookie);
    }

    /// The same without waiting for a tick.
    ///
    /// # Panics
    /// As [`cond_synchronize`](Self::cond_synchronize).
    pub fn cond_synchronize_expedited(&self, cookie: Cookie) {
        if self.poll_state(cookie) {
            return;
        }
        self.check_outside("synchronize");
        self.inner.counters.waiters.add(1);
        self.inner.wait_for(cookie);
    }

    /// Runs `work` after a grace period, on a thread of the domain. Callbacks of one thread run in the order of its
    /// calls; those of different threads in no order.
    ///
    /// Who finds [`callbacks_max`](DomainOptions::callbacks_max) of them waiting then waits until there is room, unless
    /// it is in a read section of this domain (it would wait for itself) or in a callback. `work` should be short and
    /// must not wait for a barrier of the same domain.
    pub fn call(&self, work: impl FnOnce() + Send + 'static) {
        self.queue(Work::call(work));
    }

    /// Drops what is in the box after a grace period, and gives its memory back where it came from: as
    /// [`defer_drop`](Self::defer_drop), and several times faster. The value is dropped by the domain's thread;
    /// its memory is freed by the calling thread in a later call, or by the domain's thread if no such call comes.
    pub fn defer_free<T: Send + 'static>(&self, value: Box<T>) {
        self.queue(Work::drop_box(value));
    }

    pub(crate) fn queue(&self, work: Work) {
        local::with_place(self.id, &self.inner, |place| self.inner.call(place, work));
    }

    /// Drops `value` after a grace period.
    pub fn defer_drop<T: Send + 'static>(&self, value: T) {
        self.call(move || drop(value));
    }

    /// After a grace period hands `work` to `queue`, as `queue_rcu_work` does: for what is long, or may wait.
    pub fn queue_work(&self, queue: &Arc<dyn WorkQueue>, work: impl FnOnce() + Send + 'static) {
        let queue = Arc::clone(queue);
        self.call(move || queue.push(Box::new(work)));
    }

    /// Returns when every callback that was queued before the call has run.
    ///
    /// # Panics
    /// Inside a read section of the same domain, and in one of its callbacks: it would wait for itself.
    pub fn barrier(&self) {
        self.check_outside("barrier");
        self.inner.barrier();
    }

    /// What the domain did so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Who waits for time to pass looks at the clock again: for whoever sets the domain's clock by hand.
    pub fn clock_moved(&self) {
        self.inner.clock_moved();
    }

    fn check_outside(&self, what: &str) {
        assert!(
            !local::is_inside(self.id),
            "{what} in a read section of the same domain would wait for itself"
        );
    }
}

impl Inner {
    pub(crate) fn wait_for(&self, cookie: Cookie) {
        self.gate.wait_for(cookie, &self.counters);
    }

    /// When the next tick comes, by the domain's clock.
    pub(crate) fn next_tick(&self) -> Duration {
        let (now, tick) = (self.gate.now(), self.options.tick.as_nanos().max(1));
        let since = now.saturating_sub(self.begun).as_nanos() % tick;
        now + Duration::from_nanos(u64::try_from(tick - since).unwrap_or(u64::MAX))
    }

    /// Waits for the tick, at which one grace period serves all who came. Returns early if another one does.
    fn wait_for_tick(&self, cookie: Cookie) {
        let tick = self.next_tick();
        self.counters.waiters.add(1);
        let mut ticks = self.ticks.lock();
        while !self.gate.poll_state(cookie) && self.gate.now() < tick {
            self.ticked.wait_until(&mut ticks, self.gate.instant(tick));
        }
    }

    fn clock_moved(&self) {
        drop(self.ticks.lock());
        self.ticked.notify_all();
        self.gate.clock_moved();
        self.callbacks.clock_moved();
    }

    fn stats(&self) -> Stats {
        let counters = &self.counters;
        let (callbacks_queued, callbacks_run) = self.callbacks.counts();
        Stats {
            grace_periods: counters.grace_periods.get(),
            waiters: counters.waiters.get(),
            callbacks_queued,
            callbacks_run,
            callers_slowed: counters.slowed.get(),
            stalls: counters.stalls.get(),
            longest_reader: counters.longest_wait(),
            readers: self.gate.readers(),
        }
    }
}

impl Guard<'_> {
    /// The domain that this is a section of.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        self.domain
    }

    pub(crate) fn is_of(&self, inner: &Arc<Inner>) -> bool {
        Arc::ptr_eq(&self.domain.inner, inner)
    }
}

impl Drop for Guard<'_> {
    #[inline]
    fn drop(&mut self) {
        #[allow(unsafe_code, reason = "the thread's own place")]
        // SAFETY: the place lives until this section's end at least, and is this thread's.
        let place = unsafe { self.place.as_ref() };
        if place.close() || sync::mutant::is_on("rcu-nested-end") {
            self.domain.inner.gate.leave(&place.slot);
            if place.is_temporary() {
                #[allow(unsafe_code, reason = "the thread's own place")]
                // SAFETY: temporary, its last section has just ended, and the guard goes with it.
                unsafe {
                    local::end_temporary(&self.domain.inner, self.place);
                }
            }
        }
    }
}

impl fmt::Debug for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Domain").field("id", &self.id).field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Guard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard").field("domain", &self.domain.id).finish_non_exhaustive()
    }
}
