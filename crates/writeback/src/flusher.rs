//! The flushers of one backing device.
//!
//! They wait on `control` for one of: an inode's time has come, the cache is over its background
//! threshold, somebody asked, or the end. Each takes one inode at a time, so that one that hangs holds up
//! one flusher; `fsync` and `sync` write inodes themselves and need no flusher at all. Flushers serve the device's wbs in
//! turn, so that a cgroup with many dirty inodes holds up no other.
//!
//! There is a flusher when there is something for it to do: the first dirty inode has one made, that one has another one made while
//! more inodes wait than flushers run, and one that has found nothing listed for [`IDLE`] ends. So thousands of idle devices cost no
//! thread. It decides that under `control`, after a look at the lists; who lists an inode takes `control` afterwards. Either
//! the flusher sees the inode, or who listed it sees that the flusher is gone.
//!
//! Lock order: as in `bdi`.
//!
//! Shutdown: `stop` sets `stopping`; each flusher ends after the inode it is writing, and says so by
//! `Control::running` and `ended`. Whoever drains does so before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::atomic::Ordering;
use sync::mutant::is_on;
use sync::thread;

use crate::Bdi;
use crate::group::Request;
use crate::limit::Direction;
use crate::link::{Inode, Outcome};
use crate::wb::{Listed, Wb};

/// How long a flusher without anything to do stays. Models have no time: there it leaves at once.
const IDLE: Duration = if cfg!(any(loom, shuttle)) { Duration::ZERO } else { Duration::from_secs(1) };

#[derive(Debug, Default)]
pub(crate) struct Control {
    stopping: bool,
    /// Somebody wants the list shortened without regard to age.
    kicked: bool,
    flushers: Vec<thread::JoinHandle<()>>,
    /// Flushers that have not ended.
    running: usize,
    /// Flushers that were made so far.
    made: usize,
}

/// One flusher, for as long as it runs.
struct Running<'a, I: Inode> {
    bdi: &'a Bdi<I>,
    is_counted: bool,
}

impl<I: Inode> Running<'_, I> {
    /// It has nothing to do, and nobody will wake it.
    fn leave(&mut self, control: &mut Control) {
        control.running -= 1;
        self.is_counted = false;
        self.bdi.ended.notify_all();
    }
}

impl<I: Inode> Drop for Running<'_, I> {
    fn drop(&mut self) {
        if self.is_counted {
            self.bdi.control.lock().running -= 1;
            self.bdi.ended.notify_all();
        }
    }
}

impl<I: Inode> Bdi<I> {
    /// Sees to it that `wanted` flushers run, or as many as may.
    pub(crate) fn need_flushers(&self, control: &mut Control, wanted: usize) {
        while !control.stopping && control.running < wanted.min(self.options.flushers) {
            // None: the last reference is going, and with it whoever could list an inode.
            let Some(this) = self.this.upgrade() else { return };
            let body = move || {
                let mut running = Running { bdi: &this, is_counted: true };
                this.flush_loop(&mut running);
            };
            let name = format!("flush-{}-{}", self.name, control.made % self.options.flushers);
            // A serving thread may have made the inode dirty, whose class is not to be inherited.
            thread::will_make_threads();
            match thread::Builder::new().name(name).stack_size(256 * 1024).spawn(body) {
                Ok(thread) => {
                    // Under the lock: the thread cannot count itself out before it is counted.
                    control.running += 1;
                    control.made += 1;
                    if control.running <= control.flushers.len() {
                        control.flushers.retain(|thread| !has_left(thread));
                    }
                    control.flushers.push(thread);
                }
                Err(error) => {
                    // Who syncs writes by itself, as does who waits for room; the next one who has something to write asks again.
                    tracing::warn!(%error, "no thread to write back with");
                    return;
                }
            }
        }
    }

    /// Limits changed, or somebody may write sooner than was told.
    pub(crate) fn wake_flushers(&self) {
        // As in `mark_dirty`: after a flusher's look, and before its wait.
        let mut control = self.control.lock();
        if self.dirty_inodes() > 0 {
            self.need_flushers(&mut control, 1);
        }
        drop(control);
        self.changed.notify_all();
    }

    /// Whether more than the `part`th part of the background thresholds is used.
    pub(crate) fn is_above(&self, part: u64) -> bool {
        self.budget.used() > self.options.background_pages / part
            || self.dirty_inodes() as u64 > self.options.background_inodes as u64 / part
    }

    /// Asks the flushers to write without regard to age, until half of both thresholds is free.
    pub fn kick(&self) {
        let mut control = self.control.lock();
        if !control.kicked {
            control.kicked = true;
            let useful = self.dirty_inodes();
            self.need_flushers(&mut control, useful);
            drop(control);
            self.changed.notify_all();
        }
    }

    /// Inodes written by flushers.
    pub fn inodes_flushed(&self) -> u64 {
        self.written.get()
    }

    /// Ends the flushers and waits for those that are not inside a write-back that hangs, until `deadline`
    /// at the latest. Says how many did not end.
    pub fn stop(&self, deadline: Instant) -> usize {
        let mut control = self.control.lock();
        control.stopping = true;
        self.changed.notify_all();
        while control.running > 0 {
            if self.ended.wait_until(&mut control, deadline) {
                break;
            }
        }
        let (left, threads) = (control.running, std::mem::take(&mut control.flushers));
        drop(control);
        for thread in threads {
            // Where none is left, all are past their last step, and those that are not finished are about to be.
            if (left == 0 || thread::is_finished(&thread)) && thread.join().is_err() {
                tracing::error!("a flusher panicked outside a write-back");
            }
        }
        left
    }

    fn flush_loop(self: &Arc<Self>, running: &mut Running<'_, I>) {
        while let Some(listed) = self.next(running) {
            // A panic over one inode must not end write-back for all others.
            let attempt = catch_unwind(AssertUnwindSafe(|| listed.inode.write_back()));
            let outcome = attempt.unwrap_or_else(|_| {
                self.panics.add(1);
                tracing::error!(inode = ?listed.inode, "write-back panicked; it will be tried again");
                Outcome::Failed
            });
            self.written.add(1);
            // Nor must one in what an inode does when its last reference goes.
            if catch_unwind(AssertUnwindSafe(|| self.done(listed, outcome))).is_err() {
                self.panics.add(1);
                tracing::error!("an inode panicked after its write-back");
            }
        }
    }

    /// Waits for the next inode to write; `None` at the end, and where there has been none for a while.
    fn next(&self, running: &mut Running<'_, I>) -> Option<Listed<I>> {
        let mut control = self.control.lock();
        let mut idle_until = None;
        loop {
            if control.stopping {
                return None;
            }
            let now = self.options.clock.now();
            let urgent = control.kicked && self.is_above(2);
            let before = if urgent { Some(now) } else { now.checked_sub(self.options.dirty_after) };
            let wbs = self.all_wbs();
            // Those whose owner is over its own limit as well.
            let section = self.switcher.grace().read();
            let has_limits = self.dirty_limits.is_used();
            let is_urgent: Vec<bool> = wbs
                .iter()
                .map(|wb| urgent || (has_limits && self.is_over_background(&section, wb)))
                .collect();
            drop(section);
            let mut due: Vec<Option<Duration>> =
                wbs.iter().zip(&is_urgent).map(|(wb, urgent)| self.due(wb, *urgent)).collect();
            // ORDERING: Relaxed, only so that all have their turn.
            let first = self.turn.fetch_add(1, Ordering::Relaxed) % wbs.len();
            for at in (first..wbs.len()).chain(0..first) {
                let before = if is_urgent[at] { Some(now) } else { before };
                if due[at].is_some_and(|due| due <= now)
                    && let Some(listed) = wbs[at].take(before, now)
                {
                    let useful = self.dirty_inodes() + 1;
                    self.need_flushers(&mut control, useful);
                    return Some(listed);
                }
                // Taken by another flusher meanwhile.
                due[at] = due[at].filter(|due| *due > now);
            }
            let next = due.into_iter().flatten().min();
            control.kicked &= urgent && next.is_some();
            match next {
                None => {
                    let until = *idle_until.get_or_insert_with(|| Instant::now() + IDLE);
                    if Instant::now() < until {
                        self.changed.wait_until(&mut control, until);
                    } else if self.unwritten() == 0 {
                        if !is_on("bdi-leave-uncounted") {
                            running.leave(&mut control);
                        }
                        return None;
                    } else {
                        // Something is being written, or on its way from one wb to another.
                        idle_until = None;
                        self.changed.wait_until(&mut control, Instant::now() + IDLE);
                    }
                }
                Some(due) => {
                    idle_until = None;
                    let until = Instant::now() + due.saturating_sub(now);
                    self.changed.wait_until(&mut control, until);
                }
            }
        }
    }

    /// When a flusher has something to do for `wb`: an inode's time has come (at once, if it is `urgent`), and its limits let it go.
    fn due(&self, wb: &Wb<I>, urgent: bool) -> Option<Duration> {
        let due = wb.next_due(if urgent { Duration::ZERO } else { self.options.dirty_after })?;
        let chain = wb.chain(&self.throttle);
        if chain.is_empty() {
            return Some(due);
        }
        let request =
            Request { direction: Direction::Write, bytes: 1, operations: 1, epoch: u64::MAX, inode: 0 };
        Some(due.max(self.throttle.ready_at(&chain, &request)))
    }
}

/// Whether a flusher has ended. Models cannot tell.
fn has_left(thread: &thread::JoinHandle<()>) -> bool {
    cfg!(not(any(loom, shuttle))) && thread::is_finished(thread)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use sync::{Mutex, RealClock};

    use super::*;
    use crate::link::Link;
    use crate::{BdiOptions, Budget, Owner};

    /// Says that it is being written, and is until it is told to end.
    #[derive(Debug)]
    struct Slow {
        link: Link<Self>,
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

        fn link(&self) -> &Link<Self> {
            &self.link
        }
    }

    fn bdi(flushers: usize) -> Arc<Bdi<Slow>> {
        let options = BdiOptions {
            flushers,
            dirty_after: Duration::ZERO,
            background_pages: 1,
            background_inodes: 1,
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
        let running = || bdi.control.lock().running;
        assert_eq!(running(), 0);
        let (begun, has_begun) = channel();
        let (go_on, going_on) = channel();
        let slow =
            Arc::new(Slow { link: Link::default(), begun: Mutex::new(begun), go_on: Mutex::new(going_on) });
        for round in 1..=2 {
            bdi.mark_dirty(Arc::clone(&slow), Owner::ROOT);
            has_begun.recv().unwrap();
            assert_eq!(running(), 1, "round {round}");
            go_on.send(()).unwrap();
            let mut control = bdi.control.lock();
            while control.running > 0 {
                bdi.ended.wait(&mut control);
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
        let slow =
            Arc::new(Slow { link: Link::default(), begun: Mutex::new(begun), go_on: Mutex::new(going_on) });
        bdi.mark_dirty(slow, Owner::ROOT);
        has_begun.recv().unwrap();
        assert_eq!(bdi.stop(Instant::now() + Duration::from_millis(10)), 1);
        go_on.send(()).unwrap();
        assert_eq!(bdi.stop(Instant::now() + Duration::from_secs(600)), 0);
        assert_eq!(bdi.inodes_flushed(), 1);
    }
}
