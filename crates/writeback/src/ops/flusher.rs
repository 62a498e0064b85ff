//! The flushers of one backing device.
//!
//! They wait on an eventpoll of the device's wbs. A wb is ready when a flusher should check it:
//! its lists begin with something new, its timer expired, the cache is over its background
//! threshold and the wb holds more than its part, a writer waits for room in the cache, or a limit
//! changed. The eventpoll reports a wb to one flusher at a time. That flusher takes one inode of
//! it, rearms the wb, and writes the inode. So an inode that hangs holds up one flusher, and
//! [`flushers`](crate::device::flushers) keeps the last free flusher away from a wb where another
//! one is, so that a single wb never holds up all of them. `fsync` and `sync` write inodes
//! themselves and need no flusher at all. Wbs are served in the order in which they became ready,
//! so that a cgroup with many dirty inodes holds up no other.
//!
//! An inode that is not due yet gets a timer. One thread sleeps until the next timer and signals
//! the wb then; it never goes to the store, so that it never hangs.
//!
//! # No wake-up is lost
//! * A flusher unsets the wb's `work`, then checks the wb, then rearms the wb. All other threads
//!   change something, then set `work`. A change before the check is found by it; a change after it
//!   leaves `work` set, and rearming a wb checks `work` (`eventpoll` P6).
//! * A writer that waits for room counts itself in `Flushers::waiting`, then sets `work` of every
//!   wb if it is the first; a flusher unsets `work`, then reads that count, then checks the
//!   lists. Either the flusher sees the writer, or `work` is set after it was unset. A writer that
//!   finds nothing unwritten sets nothing: an inode that it does not see counted was listed after
//!   the last check at which no writer waited, and the thread that listed it sets `work`.
//! * A thread that changes a wb's lists sets `work` if they begin with something that the last
//!   check did not see ([`Wb::note_lists`]).
//! * While there is work, a flusher waits for it, if there may be one more: a thread that signals a
//!   wb, or is about to go to the store, makes one if none waits. A flusher that has waited for
//!   [`idle`] in vain ends, after another check under `flushers`; a thread that signals takes
//!   `flushers` afterwards. Either the flusher sees the signal, or the signalling thread sees that
//!   the flusher is gone. The timer thread does the same. So thousands of idle devices cost no
//!   thread.
//!
//! Lock order: as in `bdi`.
//!
//! Shutdown: `stop` closes the eventpoll. Each flusher ends after the inode it is writing, and
//! reports that by `Flushers::running` and `ended`. A caller that drains does so before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::mutant::is_on;
use sync::thread;

use throttle::{Direction, Request};

use crate::device::bdi::Bdi;
use crate::device::flushers::Flushers;
use crate::device::inode::{Inode, Outcome};
use crate::device::wb::{Listed, Wb};

/// How long a flusher without work stays. Models have no time: there it leaves at once, or stays.
fn idle() -> Option<Duration> {
    #[cfg(shuttle)]
    let idle = sync::model::maybe().then_some(Duration::ZERO);
    #[cfg(not(shuttle))]
    let idle = Some(Duration::from_secs(1));
    idle
}

const PAGE: u64 = 4096;

/// Marks that a writer waits for room in the cache.
#[derive(Debug)]
pub struct RoomWait<'a, I: Inode>(&'a Bdi<I>);

impl<I: Inode> Drop for RoomWait<'_, I> {
    fn drop(&mut self) {
        let mut flushers = self.0.flushers.lock();
        flushers.waiting = if is_on("bdi-waits-uncounted") { 0 } else { flushers.waiting - 1 };
    }
}

/// One flusher's state.
struct Flusher<'a, I: Inode> {
    bdi: &'a Bdi<I>,
    events: Vec<eventpoll::Event>,
    is_counted: bool,
}

impl<I: Inode> Flusher<'_, I> {
    /// The flusher has no work, and no signal will wake it.
    fn leave(&mut self, flushers: &mut Flushers<I>) {
        flushers.running -= 1;
        self.is_counted = false;
        self.bdi.ended.notify_all();
    }
}

impl<I: Inode> Drop for Flusher<'_, I> {
    fn drop(&mut self) {
        if self.is_counted {
            let bdi = self.bdi;
            self.leave(&mut bdi.flushers.lock());
        }
    }
}

impl<I: Inode> Bdi<I> {
    /// Makes a flusher if none waits and there may be one more. Called by a thread that has
    /// signalled a wb or is about to go to the store.
    pub(crate) fn ensure_flusher(&self) {
        let mut flushers = self.flushers.lock();
        if flushers.needs_flusher() {
            let name = format!("flush-{}-{}", self.name, flushers.number());
            // Under the lock: the thread cannot count itself out before it is counted.
            flushers.running += usize::from(self.make(&mut flushers, name, |bdi| {
                bdi.flush_loop(&mut Flusher { bdi, events: Vec::new(), is_counted: true });
            }));
        }
    }

    /// Makes a thread; returns whether that succeeded.
    fn make(
        &self,
        flushers: &mut Flushers<I>,
        name: String,
        body: impl FnOnce(&Arc<Self>) + Send + 'static,
    ) -> bool {
        // None: the last reference is going, and with it every thread that could list an inode.
        let Some(this) = self.this.upgrade() else { return false };
        // The caller may be a serving thread, whose scheduling class the new thread must not
        // inherit.
        thread::will_make_threads();
        let body = move || {
            let _of_the_device = this.span.enter();
            body(&this);
        };
        match thread::Builder::new().name(name).stack_size(256 * 1024).spawn(body) {
            Ok(thread) => {
                flushers.threads.retain(|thread| !has_left(thread));
                flushers.threads.push(thread);
                true
            }
            Err(error) => {
                // A syncing caller writes by itself, and so does a writer that waits for room. The
                // next thread that has something to write tries again.
                self.span.in_scope(|| tracing::warn!(%error, "cannot start a flusher"));
                false
            }
        }
    }

    /// Limits changed, or a wb may write sooner than its timer says.
    pub(crate) fn signal_all(&self) {
        if self.unwritten() > 0 {
            self.wbs.signal_all(&self.switcher.domain().read());
            self.ensure_flusher();
        }
    }

    /// Whether more than the `part`th part of the background thresholds is used.
    pub(crate) fn over_bg_thresh(&self, part: u64) -> bool {
        self.budget.used() > self.options.background_pages / part
            || self.dirty_inodes() as u64 > self.options.background_inodes as u64 / part
    }

    /// Asks the flushers to write, without regard to age, inodes of wbs that hold more than their
    /// part, until half of both thresholds is free.
    pub fn start_background(&self) {
        if !std::mem::replace(&mut self.flushers.lock().is_background, true) {
            self.signal_all();
        }
    }

    /// A writer waits for room in the cache: until the result is dropped, everything is written
    /// without regard to age, whichever cgroup owns it.
    #[must_use]
    pub fn begin_room_wait(&self) -> RoomWait<'_, I> {
        if is_on("bdi-waits-told-first") {
            self.signal_all();
        }
        let is_first = {
            let mut flushers = self.flushers.lock();
            flushers.waiting += 1;
            flushers.waiting == 1
        };
        if is_first && !is_on("bdi-waits-told-first") {
            self.signal_all();
        }
        RoomWait(self)
    }

    /// Whether a wb holds more than its part of what may be there below half of the background
    /// thresholds. As long as there is too much, one wb does. A wb with little is left alone beside
    /// one that has much and may not write it.
    pub(crate) fn over_fair_share(&self, wb: &Wb<I>) -> bool {
        let parts = 2 * self.wbs.count(&self.switcher.domain().read()) as u64;
        // Only the root's wb: it holds whatever there is.
        parts <= 2
            || wb.unwritten_bytes().div_ceil(PAGE) > self.options.background_pages / parts
            || wb.dirty_inodes() as u64 > self.options.background_inodes as u64 / parts
    }

    /// Inodes written by flushers.
    pub fn inodes_flushed(&self) -> u64 {
        self.written.get()
    }

    /// Ends the flushers and waits for those that are not inside a write-back that hangs, until
    /// `deadline` at the latest. Says how many did not end.
    pub fn stop(&self, deadline: Instant) -> usize {
        self.wbs.close();
        let mut flushers = self.flushers.lock();
        flushers.is_stopping = true;
        self.timers_changed.notify_all();
        // The timer thread never hangs.
        while flushers.has_timer_thread {
            self.ended.wait(&mut flushers);
        }
        while flushers.running > 0 {
            if self.ended.wait_until(&mut flushers, deadline) {
                break;
            }
        }
        let (left, threads) = (flushers.running, std::mem::take(&mut flushers.threads));
        drop(flushers);
        for thread in threads {
            // Where no flusher is left, all are past their last step, and threads that are not
            // finished are about to be.
            if (left == 0 || thread::is_finished(&thread)) && thread.join().is_err() {
                self.span.in_scope(|| tracing::error!("a flusher panicked outside a write-back"));
            }
        }
        left
    }

    fn flush_loop(self: &Arc<Self>, flusher: &mut Flusher<'_, I>) {
        let mut kept = None;
        while let Some(wb) = self.next_wb(flusher, kept.take()) {
            kept = self.serve(wb);
        }
    }

    /// Waits for the next wb, which the caller then serves alone. A wb that the caller kept comes
    /// after those that wait. `None` at the end, and after a while without any.
    fn next_wb(&self, flusher: &mut Flusher<'_, I>, kept: Option<Arc<Wb<I>>>) -> Option<Arc<Wb<I>>> {
        let ready = self.wbs.ready.as_ref()?;
        let timeout = if kept.is_some() { Some(Duration::ZERO) } else { idle() };
        loop {
            // It fails when it is closed.
            if ready.wait(&mut flusher.events, 1, timeout).ok()? == 0 {
                if kept.is_some() {
                    return kept;
                }
                let mut flushers = self.flushers.lock();
                let is_checked = !is_on("bdi-leave-unchecked");
                if !is_checked || ready.wait(&mut flusher.events, 1, Some(Duration::ZERO)).ok()? == 0 {
                    flusher.leave(&mut flushers);
                    return None;
                }
            }
            let index = u32::try_from(flusher.events[0].token).ok()?;
            // None there: the wb was given back.
            if let Some(wb) = self.wb_at(index) {
                kept.iter().for_each(|kept| self.wbs.rearm(kept, true));
                return Some(wb);
            }
        }
    }

    /// Looks at a wb and writes an inode of it, if one is to be written. Returns the wb if the
    /// caller still has it.
    fn serve(self: &Arc<Self>, wb: Arc<Wb<I>>) -> Option<Arc<Wb<I>>> {
        if !is_on("bdi-unset-after-look") {
            wb.unset_work();
        }
        let (is_background, is_wanted) = {
            let mut flushers = self.flushers.lock();
            flushers.is_background &= self.over_bg_thresh(2);
            if !flushers.admit(&wb) {
                return None;
            }
            (flushers.is_background, flushers.waiting > 0)
        };
        let now = self.options.clock.now();
        let is_due = is_wanted || (is_background && self.over_fair_share(&wb)) || self.is_urgent(&wb);
        let rest = if is_due { Duration::ZERO } else { self.options.dirty_after };
        let (listed, next) = wb.take(now, rest, self.held_until(&wb));
        if is_on("bdi-unset-after-look") {
            wb.unset_work();
        }
        // Before going to the store, which may take long.
        self.requeue_wb(&wb, now, next);
        if let Some(listed) = listed {
            self.ensure_flusher();
            self.write_back(listed);
        }
        self.leave(&wb)
    }

    /// Rearms a wb that has something to do at `next`, unless no other flusher may follow.
    fn requeue_wb(&self, wb: &Arc<Wb<I>>, now: Duration, next: Option<Duration>) {
        let is_due = next.is_some_and(|next| next <= now);
        {
            let mut flushers = self.flushers.lock();
            if is_due && flushers.block(wb) {
                return;
            }
            if flushers.set_timer(wb, next.filter(|_| !is_due)) {
                self.start_timer_thread(&mut flushers);
            }
        }
        self.wbs.rearm(wb, is_due);
    }

    /// The caller leaves the wb. Returns the wb if it was blocked until now: then the caller still
    /// has it.
    fn leave(&self, left: &Arc<Wb<I>>) -> Option<Arc<Wb<I>>> {
        let open = self.flushers.lock().leave(left);
        let mut kept = None;
        for wb in open {
            if Arc::ptr_eq(&wb, left) {
                kept = Some(wb);
            } else if !is_on("bdi-barred-for-good") {
                self.wbs.rearm(&wb, true);
            }
        }
        kept
    }

    fn write_back(self: &Arc<Self>, listed: Listed<I>) {
        // A panic over one inode must not end write-back for all others.
        let attempt = catch_unwind(AssertUnwindSafe(|| listed.inode.write_back()));
        let outcome = attempt.unwrap_or_else(|_| {
            self.panics.add(1);
            tracing::error!(inode = ?listed.inode, "write-back panicked: trying again later");
            Outcome::Failed
        });
        self.written.add(1);
        // A panic in what an inode does when its last reference goes must not end it either.
        if catch_unwind(AssertUnwindSafe(|| self.requeue_inode(listed, outcome))).is_err() {
            self.panics.add(1);
            tracing::error!("an inode panicked after its write-back");
        }
    }

    /// Whether a wb has more data than may rest, or its owner is over a limit of its own.
    pub(crate) fn is_urgent(&self, wb: &Wb<I>) -> bool {
        self.options.write_behind_bytes.is_some_and(|max| wb.unwritten_bytes() > max)
            || self.dirty_limits.is_used() && self.is_over_background(wb)
    }

    /// The time at which its limits let a wb write.
    fn held_until(&self, wb: &Wb<I>) -> Duration {
        let chain = wb.chain(&self.throttle);
        if chain.is_empty() {
            return Duration::ZERO;
        }
        let request =
            Request { direction: Direction::Write, bytes: 1, operations: 1, epoch: u64::MAX, inode: 0 };
        self.throttle.ready_at(&chain, &request)
    }

    /// Makes the timer thread, or wakes it because the next timer is new.
    fn start_timer_thread(&self, flushers: &mut Flushers<I>) {
        if flushers.has_timer_thread {
            self.timers_changed.notify_all();
        } else if !flushers.is_stopping {
            flushers.has_timer_thread =
                self.make(flushers, format!("alarm-{}", self.name), |bdi| bdi.run_timers());
        }
    }

    /// Signals wbs whose timer is due, until no timer is left.
    fn run_timers(&self) {
        let mut flushers = self.flushers.lock();
        while !flushers.is_stopping {
            let now = self.options.clock.now();
            match flushers.next_timer(now) {
                Ok(wb) => {
                    drop(flushers);
                    if let Some(wb) = wb.upgrade() {
                        wb.signal();
                        self.ensure_flusher();
                    }
                    flushers = self.flushers.lock();
                }
                Err(None) => break,
                Err(Some(next)) => {
                    let until = Instant::now() + next.saturating_sub(now);
                    self.timers_changed.wait_until(&mut flushers, until);
                }
            }
        }
        flushers.has_timer_thread = false;
        self.ended.notify_all();
    }
}

/// Whether a thread has ended. Models cannot tell.
fn has_left(thread: &thread::JoinHandle<()>) -> bool {
    cfg!(not(any(loom, shuttle))) && thread::is_finished(thread)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use sync::{Mutex, RealClock};

    use super::*;
    use crate::device::inode::InodeWb;
    use cgroups::CgroupId;

    use crate::{BdiOptions, Budget};

    /// Reports that it is being written, and stays so until the test lets it end.
    #[derive(Debug)]
    struct Slow {
        inode_wb: InodeWb<Self>,
        begun: Mutex<Sender<()>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Inode for Slow {
        fn write_back(self: &Arc<Self>) -> Outcome {
            self.begun.lock().send(()).expect("the test waits");
            // An error: the test has ended.
            let _end = self.go_on.lock().recv();
            Outcome::Clean
        }

        fn inode_wb(&self) -> &InodeWb<Self> {
            &self.inode_wb
        }
    }

    fn bdi(flushers: usize) -> Arc<Bdi<Slow>> {
        let options = BdiOptions {
            flushers,
            dirty_after: Duration::ZERO,
            background_pages: 1,
            background_inodes: 1,
            write_behind_bytes: None,
            retry_pause: Duration::from_secs(1),
            clock: Arc::new(RealClock::default()),
        };
        Bdi::start("test", options, Budget::new(1), &Arc::default())
    }

    #[test]
    fn stop_waits_for_those_that_can_end() {
        let bdi = bdi(3);
        assert_eq!(bdi.stop(Instant::now() + Duration::from_secs(600)), 0);
        assert_eq!(bdi.stop(Instant::now()), 0);
    }

    #[test]
    fn there_is_a_flusher_only_while_there_is_something_to_write() {
        let bdi = bdi(2);
        let running = || bdi.flushers.lock().running;
        assert_eq!(running(), 0);
        let (begun, has_begun) = channel();
        let (go_on, going_on) = channel();
        let slow = Arc::new(Slow {
            inode_wb: InodeWb::default(),
            begun: Mutex::new(begun),
            go_on: Mutex::new(going_on),
        });
        for round in 1..=2 {
            bdi.mark_dirty(Arc::clone(&slow), CgroupId::ROOT);
            has_begun.recv().unwrap();
            assert_eq!(running(), 2, "round {round}: one is in the store, one waits");
            go_on.send(()).unwrap();
            let mut flushers = bdi.flushers.lock();
            while flushers.running > 0 {
                bdi.ended.wait(&mut flushers);
            }
        }
        assert_eq!(bdi.inodes_flushed(), 2);
        assert_eq!(bdi.stop(Instant::now()), 0);
    }

    #[test]
    fn stop_counts_those_that_hang_and_waits_no_longer_than_it_may() {
        let bdi = bdi(1);
        let (begun, has_begun) = channel();
        let (go_on, going_on) = channel();
        let slow = Arc::new(Slow {
            inode_wb: InodeWb::default(),
            begun: Mutex::new(begun),
            go_on: Mutex::new(going_on),
        });
        bdi.mark_dirty(slow, CgroupId::ROOT);
        has_begun.recv().unwrap();
        assert_eq!(bdi.stop(Instant::now() + Duration::from_millis(10)), 1);
        go_on.send(()).unwrap();
        assert_eq!(bdi.stop(Instant::now() + Duration::from_secs(600)), 0);
        assert_eq!(bdi.inodes_flushed(), 1);
    }
}
