//! One backing device with its flushers, and the superblock on it.
//!
//! Flushers wait on `control` for one of: an inode's time has come, the cache is over its background
//! threshold, somebody asked, or the end. Each takes one inode at a time, so that one that hangs holds up
//! one flusher; `fsync` and `sync` write inodes themselves and need no flusher at all. Flushers serve the device's wbs in
//! turn, so that a cgroup with many dirty inodes holds up no other.
//!
//! Lock order: `Bdi::control`, then `Bdi::switching`, then `Wbs::writer`, then a wb's lists. Inodes are written with none held.
//!
//! Shutdown: `stop` sets `stopping`; each flusher ends after the inode it is writing, and says so by
//! `Control::running` and `ended`. Whoever drains does so before.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize as StdAtomicUsize;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Clock, Condvar, Counter, Mutex, RwLock, thread};

use crate::Budget;
use crate::cgroup::Owner;
use crate::dirty::{self, Balance, DirtyLimits, Domain};
use crate::drain::Drain;
use crate::grace::Section;
use crate::group::Request;
use crate::limit::{CgroupPath, Direction};
use crate::link::{Inode, Link, NONE, Outcome, Place};
use crate::switcher::Switcher;
use crate::throttle::Throttle;
use crate::wb::{Entry, Listed, Lists, Wb, WbStatus};
use crate::wbs::Wbs;

const PAGE: u64 = 4096;

/// How a backing device is flushed.
#[derive(Debug, Clone)]
pub struct BdiOptions {
    /// Flusher threads; with none, inodes are written by who syncs them.
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
pub struct Bdi<I: Inode> {
    options: BdiOptions,
    budget: Arc<Budget>,
    pub(crate) switcher: Arc<Switcher<I>>,
    pub(crate) wbs: Wbs<I>,
    /// Of the one superblock that is on this device.
    pub(crate) superblock: Drain,
    /// The superblock was unmounted: nobody may touch it.
    is_gone: AtomicBool,
    touched_late: Counter,
    pub(crate) switched: Counter,
    drains: Counter,
    drain_nanos: Counter,
    /// `wb_switch_rwsem`: shared by who moves an inode, alone for who must find every dirty one.
    pub(crate) switching: RwLock<()>,
    control: Mutex<Control>,
    changed: Condvar,
    /// A flusher has ended.
    ended: Condvar,
    written: Counter,
    pub(crate) panics: Counter,
    /// The wb that is served next.
    turn: StdAtomicUsize,
    sequence: std::sync::atomic::AtomicU64,
    throttle: Arc<Throttle>,
    pub(crate) dirty_limits: DirtyLimits,
    /// Inodes that are dirty or being written, those on their way to another wb included.
    unwritten: AtomicUsize,
}

/// A device's figures.
#[derive(Debug, Clone)]
pub struct BdiStatus {
    /// Each of its wbs.
    pub wbs: Vec<WbStatus>,
    /// Switches in flight for its superblock, inode by inode.
    pub switches_in_flight: u64,
    /// Inodes that were switched since the start, whether their wbs are still there or not.
    pub switched: u64,
    /// Panics of inodes, in a write-back or in a switch; each was that inode's trouble alone.
    pub panics: u64,
    /// Drains so far.
    pub drains: u64,
    /// Time spent inside of them.
    pub drain_time: Duration,
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
struct Running<'a, I: Inode>(&'a Bdi<I>);

impl<I: Inode> Drop for Running<'_, I> {
    fn drop(&mut self) {
        self.0.control.lock().running -= 1;
        self.0.ended.notify_all();
    }
}

impl<I: Inode> Bdi<I> {
    /// A backing device whose pages count against `budget`; its flushers start at once.
    ///
    /// # Errors
    /// When the host gives no thread.
    pub fn start(
        name: &str,
        options: BdiOptions,
        budget: Arc<Budget>,
        switcher: &Arc<Switcher<I>>,
    ) -> std::io::Result<Arc<Self>> {
        let throttle = Arc::new(Throttle::new(Arc::clone(&options.clock)));
        let bdi = Arc::new(Self {
            options,
            budget,
            switcher: Arc::clone(switcher),
            wbs: Wbs::new(switcher.grace(), switcher.cgroups().root()),
            superblock: Drain::new(),
            is_gone: AtomicBool::new(false),
            touched_late: Counter::default(),
            switched: Counter::default(),
            drains: Counter::default(),
            drain_nanos: Counter::default(),
            switching: RwLock::new(()),
            control: Mutex::new(Control::default()),
            changed: Condvar::new(),
            ended: Condvar::new(),
            written: Counter::default(),
            panics: Counter::default(),
            turn: StdAtomicUsize::new(0),
            sequence: std::sync::atomic::AtomicU64::new(0),
            throttle,
            dirty_limits: DirtyLimits::default(),
            unwritten: AtomicUsize::new(0),
        });
        let flushers = Arc::downgrade(&bdi);
        bdi.throttle.listen_always(Arc::new(move || {
            if let Some(bdi) = flushers.upgrade() {
                bdi.wake_flushers();
            }
        }));
        switcher.register(&bdi);
        for number in 0..bdi.options.flushers {
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
            let _running = Running(&this);
            this.flush_loop();
        };
        // Under the lock: the thread cannot count itself out before it is counted.
        let mut control = self.control.lock();
        let thread = thread::Builder::new().name(name).stack_size(256 * 1024).spawn(body)?;
        control.flushers.push(thread);
        control.running += 1;
        Ok(())
    }

    pub(crate) fn wb_at(&self, index: u32) -> Option<Arc<Wb<I>>> {
        self.wbs.with(&self.switcher.grace().read(), index, Arc::clone)
    }

    pub(crate) fn all_wbs(&self) -> Vec<Arc<Wb<I>>> {
        self.wbs.all(&self.switcher.grace().read())
    }

    /// The limits of cgroups on this device.
    pub fn throttle(&self) -> &Arc<Throttle> {
        &self.throttle
    }

    /// Inodes that are dirty or being written.
    pub(crate) fn unwritten(&self) -> usize {
        // ORDERING: Relaxed: who made an inode dirty before a sync began counted it before that; the count falls only when it is clean.
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Counts an inode that became dirty, or clean.
    fn note_unwritten(&self, change: isize) {
        // ORDERING: Relaxed, see `unwritten`.
        self.unwritten.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
    }

    /// Limits changed, or somebody may write sooner than was told.
    fn wake_flushers(&self) {
        // As in `mark_dirty`: after a flusher's look, and before its wait.
        drop(self.control.lock());
        self.changed.notify_all();
    }

    /// Locks the lists of the wb that owns the inode; `None` before it has one.
    fn with_lists<R>(&self, link: &Link<I>, run: impl FnOnce(&Arc<Wb<I>>, &mut Lists<I>) -> R) -> Option<R> {
        loop {
            let index = link.index();
            if index == NONE {
                return None;
            }
            // None there: it has moved and its wb was given back.
            let Some(wb) = self.wb_at(index) else { continue };
            if let Some(mut lists) = wb.lists_of(link, index) {
                let result = run(&wb, &mut lists);
                wb.note_length(&lists);
                return Some(result);
            }
        }
    }

    /// Gives an inode that was never dirty to the wb of `owner`, or of its nearest ancestor that lives.
    pub fn attach(self: &Arc<Self>, inode: &Arc<I>, owner: Owner) {
        let link = inode.link();
        while link.index() == NONE {
            let wb = {
                let known = self.wbs.find(&self.switcher.grace().read(), owner);
                known.unwrap_or_else(|| Arc::clone(self.target(owner).wb()))
            };
            let mut lists = wb.lists();
            if lists.dying {
                continue;
            }
            let mut state = link.state();
            if link.index() == NONE {
                link.attach_to(self);
                // ORDERING: Release, as in a switch: who finds the index finds the wb.
                link.wb.store(wb.index, Ordering::Release);
                lists.insert(link, &mut state, Entry::Attached(Arc::downgrade(inode)));
            }
            drop(state);
            wb.note_length(&lists);
        }
    }

    /// An inode that goes. Its wb goes with the last one, if its cgroup was removed: nobody else comes back to look.
    pub(crate) fn detach(&self, link: &Link<I>) {
        let left = self.with_lists(link, |wb, lists| {
            for (bytes, sum) in [(&link.dirty, &wb.dirty), (&link.writeback, &wb.writeback)] {
                // ORDERING: Relaxed, nobody else has the inode.
                sum.fetch_sub(bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
            let entry = lists.remove(link, &mut link.state());
            (entry, lists.is_left().then(|| Arc::clone(wb)))
        });
        let Some((entry, left)) = left else { return };
        drop(entry);
        if let Some(wb) = left {
            self.wbs.give_back(&wb);
        }
    }

    fn next_key(&self, since: Duration) -> (Duration, u64) {
        // ORDERING: Relaxed, only a number.
        (since, self.sequence.fetch_add(1, Ordering::Relaxed))
    }

    /// Lists an inode that has just become dirty; it is `owner`'s if it has none yet. The caller may hold the lock under which it became
    /// dirty.
    pub fn mark_dirty(self: &Arc<Self>, inode: Arc<I>, owner: Owner) {
        self.attach(&inode, owner);
        let now = self.options.clock.now();
        let link = inode.link();
        let wakes = self.with_lists(link, |_, lists| {
            let mut state = link.state();
            match state.place {
                Place::Io => state.redirtied = Some(now),
                Place::Attached => {
                    let clean = lists.remove(link, &mut state);
                    let listed = Listed { inode: Arc::clone(&inode), failures: 0 };
                    lists.insert(link, &mut state, Entry::Dirty(self.next_key(now), listed));
                    self.note_unwritten(1);
                    drop(clean);
                    return lists.has_one_dirty();
                }
                // Listed already, or taken off for good.
                _ => {}
            }
            false
        });
        if wakes == Some(true) {
            // The list was empty: flushers may be waiting without a time. Taking `control` orders this
            // after a flusher's look at the list and before its wait, or the wake-up would be lost.
            if !is_on("bdi-wake-unordered") {
                drop(self.control.lock());
            }
            self.changed.notify_one();
        }
    }

    /// Takes an inode off the list of dirty ones; `false` if it is not there, because it is being written or waits
    /// for another attempt. The caller may hold the inode's lock, and has a reference on it.
    pub fn unlist(&self, inode: &Arc<I>) -> bool {
        let link = inode.link();
        let removed = self.with_lists(link, |_, lists| {
            let mut state = link.state();
            if !matches!(state.place, Place::Dirty(_)) {
                return None;
            }
            let removed = lists.remove(link, &mut state);
            lists.insert(link, &mut state, Entry::Attached(Arc::downgrade(inode)));
            self.note_unwritten(-1);
            removed
        });
        removed.flatten().is_some()
    }

    /// Puts an inode back, or among the clean ones, after its write-back.
    fn done(self: &Arc<Self>, listed: Listed<I>, outcome: Outcome) {
        let now = self.options.clock.now();
        let pause = self.options.retry_pause * (1 << listed.failures.min(5));
        let inode = Arc::clone(&listed.inode);
        let link = inode.link();
        let cleans = self.with_lists(link, |wb, lists| {
            let mut state = link.state();
            let redirtied = state.redirtied.take();
            // Not there: taken off for good meanwhile.
            lists.remove(link, &mut state)?;
            let entry = match (outcome, redirtied) {
                (Outcome::Clean, None) => {
                    self.note_unwritten(-1);
                    Entry::Attached(Arc::downgrade(&inode))
                }
                // Its time has come already; its owner's limits have to let it go.
                (Outcome::Held, _) => {
                    Entry::Dirty(self.next_key(now.saturating_sub(self.options.dirty_after)), listed)
                }
                (Outcome::Clean | Outcome::Dirty, since) => {
                    let key = self.next_key(since.unwrap_or(now));
                    Entry::Dirty(key, Listed { failures: 0, ..listed })
                }
                (Outcome::Failed, _) => {
                    let failures = listed.failures + 1;
                    Entry::MoreIo(self.next_key(now + pause), Listed { failures, ..listed })
                }
            };
            lists.insert(link, &mut state, entry);
            (lists.dying && outcome == Outcome::Clean).then_some(wb.index)
        });
        if let Some(wb) = cleans.flatten().and_then(|index| self.wb_at(index)) {
            self.clean_up(&wb);
        }
    }

    /// Tells how many bytes of an inode are dirty and under writeback now; its wb is charged the difference. One call at a time for
    /// each inode.
    pub fn account(&self, inode: &I, dirty: u64, writeback: u64) {
        let link = inode.link();
        let mut section = self.switcher.grace().read();
        // With the flag set the inode may move while we look (P1 of `link`).
        let _pages = (link.is_switching() && !is_on("account-no-page-lock")).then(|| link.pages.lock());
        if is_on("account-two-sections") {
            drop(section);
            section = self.switcher.grace().read();
        }
        self.wbs.with(&section, link.index(), |wb| {
            for (bytes, now, sum) in
                [(&link.dirty, dirty, &wb.dirty), (&link.writeback, writeback, &wb.writeback)]
            {
                // ORDERING: Relaxed; P1 of `link` keeps a transfer away, callers come one at a time.
                let before = bytes.swap(now, Ordering::Relaxed);
                sum.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            }
        });
    }

    /// Counts bytes that somebody dirtied, for the question whose the inode should be.
    pub fn note_write(&self, inode: &I, by: Owner, bytes: u64) {
        let link = inode.link();
        let section = self.switcher.grace().read();
        let owner = self.wbs.with(&section, link.index(), |wb| (wb.owner(), wb.cgroup().is_living()));
        drop(section);
        let Some((owner, is_living)) = owner else { return };
        // Bytes of a removed cgroup do not count, the owner's neither: it cannot win what it cannot have.
        if !(by == owner && is_living) && self.switcher.cgroups().get(by).is_none() {
            return;
        }
        let mut state = link.state();
        let begun = state.foreign.begin(owner);
        state.round.get_or_insert(begun).count(by, bytes);
    }

    /// Who owns the inode.
    pub fn owner_of(&self, inode: &I) -> Option<Owner> {
        self.wbs.with(&self.switcher.grace().read(), inode.link().index(), |wb| wb.owner())
    }

    /// What was counted since the last call was written back: `bytes` in the time `took`. Begins a switch if the inode should be
    /// somebody else's.
    pub fn end_round(self: &Arc<Self>, inode: &Arc<I>, bytes: u64, took: Duration) {
        let link = inode.link();
        let Some(wb) = self.wb_at(link.index()) else { return };
        if bytes > 0 {
            wb.note_written(bytes, took);
        }
        let winner = {
            let mut state = link.state();
            let round = state.round.take();
            round.and_then(|round| state.foreign.end(&round, wb.bandwidth()))
        };
        let cgroups = self.switcher.cgroups();
        // The number was given again, or the removal was told too early: the one that lives has a wb of its own.
        let again = || (!wb.cgroup().is_living() && cgroups.get(wb.owner()).is_some()).then_some(wb.owner());
        if let Some(owner) = winner.or_else(again) {
            self.switch_to(inode, owner);
        } else if !wb.cgroup().is_living() && link.bytes() == (0, 0) {
            self.move_on(inode, &wb);
        }
    }

    /// Every inode that is dirty or being written at this moment. Waits for inodes that are moving, so that none is missed.
    pub fn snapshot(&self) -> Vec<Arc<I>> {
        let _nobody_moves = (!is_on("sync-beside-switch")).then(|| self.switching.write());
        self.all_wbs().iter().flat_map(|wb| wb.snapshot()).collect()
    }

    /// The superblock's part of an unmount: no inode is switched any more when it returns, and none will be. Says how long that took.
    pub fn drain(&self) -> Duration {
        let begun = Instant::now();
        self.switcher.world.discipline.drain(&self.superblock, &*self.switcher);
        let took = begun.elapsed();
        self.drains.add(1);
        self.drain_nanos.add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        took
    }

    /// The end of the superblock, after its [`drain`](Self::drain) and when nobody else has one of its inodes any more: takes every inode off,
    /// written or not. Inodes that hold this device would keep each other for ever. Says how many are still on
    /// their way to another wb ("busy inodes after unmount"): anything but 0 is a defect.
    pub fn evict(&self) -> usize {
        let mut busy = 0;
        for wb in self.all_wbs() {
            let (gone, of_this) = wb.evict();
            drop(gone);
            busy += of_this;
        }
        // ORDERING: Relaxed: in the right discipline nobody looks any more, in the wrong ones a late look is what is counted.
        self.is_gone.store(true, Ordering::Relaxed);
        if busy > 0 {
            tracing::error!(busy, "busy inodes after unmount");
        }
        busy
    }

    /// Counts who touches a superblock that is gone.
    pub(crate) fn note_touch(&self) {
        // ORDERING: Relaxed, see `evict`.
        if self.is_gone.load(Ordering::Relaxed) {
            self.touched_late.add(1);
        }
    }

    /// Switches that touched the superblock after its unmount. Anything but 0 is a defect.
    pub fn touched_late(&self) -> u64 {
        self.touched_late.get()
    }

    /// Its figures.
    pub fn status(&self) -> BdiStatus {
        BdiStatus {
            wbs: self.all_wbs().iter().map(|wb| wb.status()).collect(),
            switches_in_flight: self.superblock.in_flight(),
            switched: self.switched.get(),
            panics: self.panics.get(),
            drains: self.drains.get(),
            drain_time: Duration::from_nanos(self.drain_nanos.get()),
        }
    }

    /// Inodes that wait for write-back, as of a moment ago.
    pub fn dirty_inodes(&self) -> usize {
        self.wbs.dirty_inodes()
    }

    /// Wakes the flushers if the cache is over its background threshold, or the inode's owner over its own.
    pub fn check_background(&self, inode: &I) {
        let owner_is_above = || {
            let section = self.switcher.grace().read();
            let looked = self.wbs.with(&section, inode.link().index(), Arc::clone);
            looked.is_some_and(|wb| self.is_over_background(&section, &wb))
        };
        if self.is_above(1) || (self.dirty_limits.is_used() && owner_is_above()) {
            self.kick();
        }
    }

    /// Sets how many bytes a cgroup and those below it may have that are not on the store (`memory.dirty_max`); `None`: any number.
    pub fn set_dirty_max(&self, path: &CgroupPath, bytes_max: Option<u64>) {
        self.dirty_limits.set(path, bytes_max);
        self.limits_changed();
    }

    /// Sets the same for each cgroup for which nothing else is set, the root left out.
    pub fn set_dirty_max_of_others(&self, bytes_max: Option<u64>) {
        self.dirty_limits.set_of_others(bytes_max);
        self.limits_changed();
    }

    /// What is set by [`set_dirty_max`](Self::set_dirty_max).
    pub fn dirty_max(&self) -> Vec<(CgroupPath, u64)> {
        self.dirty_limits.all()
    }

    /// A cgroup has less than before though nothing was written.
    pub(crate) fn tell_of_less(&self) {
        self.budget.wake_all();
    }

    /// Cgroups have other paths: limits are found again.
    pub(crate) fn paths_changed(&self) {
        self.throttle.paths_changed();
        self.dirty_limits.paths_changed();
        self.limits_changed();
    }

    /// Limits were changed: who waits for one asks again.
    pub fn limits_changed(&self) {
        self.budget.wake_all();
        self.wake_flushers();
    }

    /// Whether the inode's owner may have so many pages more: what its limits say, and what the cache has for it beside the others.
    pub fn balance(&self, inode: &I, pages: u64) -> Balance {
        let section = self.switcher.grace().read();
        let Some(wb) = self.wbs.with(&section, inode.link().index(), Arc::clone) else {
            return Balance::Free;
        };
        let held = wb.unwritten_bytes();
        let is_alone = self.wbs.is_alone(&section);
        if !is_alone && !dirty::has_share(self.budget.limit(), self.budget.used(), held.div_ceil(PAGE), pages)
        {
            return Balance::Full;
        }
        if !self.dirty_limits.is_used() {
            return Balance::Free;
        }
        let bytes = pages * PAGE;
        let domains = wb.domains(&self.dirty_limits);
        let each = domains.limits.iter().map(|domain| {
            dirty::balance(domain.bytes_max, self.held_under(&section, domain), bytes, wb.bandwidth())
        });
        each.fold(Balance::Free, Balance::and)
    }

    /// The bytes that count for a limit.
    fn held_under(&self, section: &Section<'_>, domain: &Domain) -> u64 {
        let counts = |wb: &&Arc<Wb<I>>| wb.domains(&self.dirty_limits).limits.contains(domain);
        self.wbs.all(section).iter().filter(counts).map(|wb| wb.unwritten_bytes()).sum()
    }

    /// Whether a wb's data is to be written at once, for its owner's limits.
    fn is_over_background(&self, section: &Section<'_>, wb: &Wb<I>) -> bool {
        let domains = wb.domains(&self.dirty_limits);
        domains
            .limits
            .iter()
            .any(|domain| dirty::is_over_background(domain.bytes_max, self.held_under(section, domain)))
    }

    /// Whether more than the `part`th part of the background thresholds is used.
    fn is_above(&self, part: u64) -> bool {
        self.budget.used() > self.options.background_pages / part
            || self.dirty_inodes() as u64 > self.options.background_inodes as u64 / part
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

    fn flush_loop(self: &Arc<Self>) {
        while let Some(listed) = self.next() {
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

    /// Waits for the next inode to write; `None` at the end.
    fn next(&self) -> Option<Listed<I>> {
        let mut control = self.control.lock();
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
                    return Some(listed);
                }
                // Taken by another flusher meanwhile.
                due[at] = due[at].filter(|due| *due > now);
            }
            let next = due.into_iter().flatten().min();
            control.kicked &= urgent && next.is_some();
            match next {
                None => self.changed.wait(&mut control),
                Some(due) => {
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use sync::RealClock;

    use super::*;

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
        Bdi::start("test", options, Budget::new(1), &Arc::default()).expect("the host gives threads")
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
