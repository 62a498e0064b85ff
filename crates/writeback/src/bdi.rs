//! One backing device with its flushers.
//!
//! Flushers wait on `control` for one of: an inode's time has come, the cache is over its background
//! threshold, somebody asked, or the end. Each takes one inode at a time, so that one that hangs holds up
//! one flusher; `fsync` and `sync` write inodes themselves and need no flusher at all.
//!
//! Lock order: `Bdi::control`, then a wb's lists. Inodes are written with neither held.
//!
//! Shutdown: `stop` sets `stopping`; each flusher ends after the inode it is writing, and says so by
//! `Control::running` and `ended`. Whoever drains does so before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::mutant::is_on;
use sync::{Clock, Condvar, Counter, Mutex, thread};

use crate::wb::{Inode, Owner, Wb};
use crate::{Budget, Outcome};

/// How a backing device is flushed.
#[derive(Debug, Clone)]
pub struct BdiOptions {
    /// Flusher threads; at least one.
    pub flushers: usize,
    /// Dirty data rests this long before it is written without need.
    pub dirty_after: Duration,
    /// Write without rest above this many cached pages.
    pub background_pages: u64,
    /// Write without rest above this many dirty inodes: each of them holds descriptors and memory.
    pub background_inodes: usize,
    /// Pause after the first failed write-back of an inode; doubles up to 32 times with each further one.
    pub retry_pause: Duration,
    /// Time.
    pub clock: Arc<dyn Clock>,
}

/// One backing device.
#[derive(Debug)]
pub struct Bdi<I: Inode + ?Sized> {
    options: BdiOptions,
    budget: Arc<Budget>,
    root: Wb<I>,
    control: Mutex<Control>,
    changed: Condvar,
    /// A flusher has ended.
    ended: Condvar,
    written: Counter,
}

#[derive(Debug, Default)]
struct Control {
    stopping: bool,
    /// Somebody wants the list shortened without regard to age.
    kicked: bool,
    flushers: Vec<thread::JoinHandle<()>>,
    /// Flushers that have not ended.
    running: usize,
}

/// One flusher, for as long as it runs.
struct Running<'a, I: Inode + ?Sized>(&'a Bdi<I>);

impl<I: Inode + ?Sized> Drop for Running<'_, I> {
    fn drop(&mut self) {
        self.0.control.lock().running -= 1;
        self.0.ended.notify_all();
    }
}

impl<I: Inode + ?Sized> Bdi<I> {
    /// A backing device whose pages count against `budget`; its flushers start at once.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn start(name: &str, options: BdiOptions, budget: Arc<Budget>) -> std::io::Result<Arc<Self>> {
        let bdi = Arc::new(Self {
            options,
            budget,
            root: Wb::new(Owner::ROOT),
            control: Mutex::new(Control::default()),
            changed: Condvar::new(),
            ended: Condvar::new(),
            written: Counter::default(),
        });
        for number in 0..bdi.options.flushers.max(1) {
            if let Err(error) = bdi.add_flusher(format!("flush-{name}-{number}")) {
                // Those that were made have nothing to write yet.
                bdi.stop(Instant::now() + Duration::from_secs(1));
                return Err(error);
            }
        }
        Ok(bdi)
    }

    fn add_flusher(self: &Arc<Self>, name: String) -> std::io::Result<()> {
        let this = Arc::clone(self);
        let body = move || {
            let _running = Running(&*this);
            this.flush_loop();
        };
        // Under the lock: the thread cannot count itself out before it is counted.
        let mut control = self.control.lock();
        let thread = thread::Builder::new().name(name).stack_size(256 * 1024).spawn(body)?;
        control.flushers.push(thread);
        control.running += 1;
        Ok(())
    }

    /// The wb of an owner. All data has one owner so far: the root.
    pub fn wb(&self, _owner: Owner) -> &Wb<I> {
        &self.root
    }

    /// Lists an inode that has just become dirty. The caller may hold the lock under which it became so.
    pub fn mark_dirty(&self, inode: Arc<I>, owner: Owner) {
        if self.wb(owner).push(inode, self.options.clock.now()) {
            // The list was empty: flushers may be waiting without a time. Taking `control` orders this
            // after a flusher's look at the list and before its wait, or the wake-up would be lost.
            if !is_on("bdi-wake-unordered") {
                drop(self.control.lock());
            }
            self.changed.notify_one();
        }
    }

    /// Takes an inode off the list of dirty ones; `false` if it is not there, because it is being written or waits
    /// for another attempt. The caller may hold the inode's lock.
    pub fn unlist(&self, inode: &I, owner: Owner) -> bool {
        self.wb(owner).unlist(inode)
    }

    /// Forgets every inode, written or not; for the end, when flushers were stopped and nobody asks any more. Inodes
    /// that hold this device would keep each other for ever.
    pub fn clear(&self) {
        self.root.clear();
    }

    /// Inodes that wait for write-back, as of a moment ago.
    pub fn dirty_inodes(&self) -> usize {
        self.root.dirty_inodes()
    }

    /// Wakes the flushers if the cache is over its background threshold.
    pub fn check_background(&self) {
        if self.is_above(1) {
            self.kick();
        }
    }

    /// Whether more than the `part`th part of the background thresholds is used.
    fn is_above(&self, part: u64) -> bool {
        self.budget.used() > self.options.background_pages / part
            || self.root.dirty_inodes() as u64 > self.options.background_inodes as u64 / part
    }

    /// Asks the flushers to write without regard to age, until half of both thresholds is free.
    pub fn kick(&self) {
        let mut control = self.control.lock();
        if !control.kicked {
            control.kicked = true;
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

    fn flush_loop(&self) {
        while let Some(listed) = self.next() {
            // A panic over one inode must not end write-back for all others.
            let attempt = catch_unwind(AssertUnwindSafe(|| listed.inode.write_back()));
            let outcome = attempt.unwrap_or_else(|_| {
                tracing::error!(inode = ?listed.inode, "write-back panicked; it will be tried again");
                Outcome::Failed
            });
            self.written.add(1);
            let pause = self.options.retry_pause * (1 << listed.failures.min(5));
            self.root.done(listed, outcome, self.options.clock.now(), pause);
        }
    }

    /// Waits for the next inode to write; `None` at the end.
    fn next(&self) -> Option<crate::wb::Listed<I>> {
        let mut control = self.control.lock();
        loop {
            if control.stopping {
                return None;
            }
            let now = self.options.clock.now();
            let urgent = control.kicked && self.is_above(2);
            let before = if urgent { Some(now) } else { now.checked_sub(self.options.dirty_after) };
            if let Some(listed) = self.root.take(before, now) {
                return Some(listed);
            }
            control.kicked = false;
            match self.root.next_due(self.options.dirty_after) {
                None => self.changed.wait(&mut control),
                Some(due) => {
                    let until = Instant::now() + due.saturating_sub(now);
                    self.changed.wait_until(&mut control, until);
                }
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use sync::RealClock;

    use super::*;

    /// Says that it is being written, and is until it is told to end.
    #[derive(Debug)]
    struct Slow {
        begun: Mutex<Sender<()>>,
        go_on: Mutex<Receiver<()>>,
    }

    impl Inode for Slow {
        fn write_back(&self) -> Outcome {
            self.begun.lock().send(()).expect("the test waits");
            // An error: the test has ended.
            let _end = self.go_on.lock().recv();
            Outcome::Clean
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
        Bdi::start("test", options, Budget::new(1)).expect("the host gives threads")
    }

    #[test]
    fn stop_waits_for_those_that_can_end() {
        let bdi = bdi(3);
        assert_eq!(bdi.stop(Instant::now() + Duration::from_secs(600)), 0);
        assert_eq!(bdi.stop(Instant::now()), 0);
    }

    #[test]
    fn stop_counts_those_that_hang_and_waits_no_longer_than_it_may() {
        let bdi = bdi(1);
        let (begun, has_begun) = channel();
        let (go_on, going_on) = channel();
        let slow = Arc::new(Slow { begun: Mutex::new(begun), go_on: Mutex::new(going_on) });
        bdi.mark_dirty(slow, Owner::ROOT);
        has_begun.recv().unwrap();
        assert_eq!(bdi.stop(Instant::now() + Duration::from_millis(10)), 1);
        go_on.send(()).unwrap();
        assert_eq!(bdi.stop(Instant::now() + Duration::from_secs(600)), 0);
        assert_eq!(bdi.inodes_flushed(), 1);
    }
}
