//! Which flushers of a device are free, at which wbs the others are, and when flushers check wbs
//! again.
//!
//! A wb is in one of these states:
//!
//! | state | changed by |
//! |---|---|
//! | *armed*: the device's eventpoll reports it when its `work` is set | the report, to one flusher, which has it then |
//! | *taken*: one flusher checks it | that flusher, before it goes to the store |
//! | *blocked*: no flusher may go there; in [`Flushers::blocked`] | a flusher that leaves a wb, once the rule allows another one there |
//!
//! **The rule**: the last free flusher goes only to a wb where no other is. So however many inodes
//! of one wb hang in the store, a flusher is left for the others.
//!
//! A wb that is blocked has flushers: it was blocked because of them. So one of them will leave it;
//! or they all hang, which is the case that the rule is about.
//!
//! A flusher is free as long as it is at no wb, even before its thread is made.
//!
//! Lock order: `Bdi::flushers`, then `Wb::slot`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sync::mutant::is_on;
use sync::thread;

use crate::device::inode::Inode;
use crate::device::wb::{Timer, Wb};

/// The flushers of a device.
#[derive(Debug)]
pub(crate) struct Flushers<I: Inode> {
    /// The most flushers that there may be.
    max: usize,
    /// Flushers that have not ended.
    pub(crate) running: usize,
    /// Of these, those that are at a wb.
    busy: usize,
    /// Wbs where no flusher may go, and which no flusher has.
    blocked: Vec<Arc<Wb<I>>>,
    timers: BTreeMap<Timer, Weak<Wb<I>>>,
    next_timer: u64,
    /// There is a thread for the timers.
    pub(crate) has_timer_thread: bool,
    /// The cache is over its background threshold: wbs with much are written without regard to age.
    pub(crate) is_background: bool,
    /// Writers that wait for room in the cache: while there is one, everything is written so.
    pub(crate) waiting: usize,
    pub(crate) is_stopping: bool,
    pub(crate) threads: Vec<thread::JoinHandle<()>>,
    made: usize,
}

impl<I: Inode> Flushers<I> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            running: 0,
            busy: 0,
            blocked: Vec::new(),
            timers: BTreeMap::new(),
            next_timer: 0,
            has_timer_thread: false,
            is_background: false,
            waiting: 0,
            is_stopping: false,
            threads: Vec::new(),
            made: 0,
        }
    }

    /// Whether no flusher waits though there may be one more.
    pub(crate) fn needs_flusher(&self) -> bool {
        self.running == self.busy && self.running < self.max && !self.is_stopping
    }

    /// The next flusher's number; numbers are used again.
    pub(crate) fn number(&mut self) -> usize {
        self.made += 1;
        (self.made - 1) % self.max
    }

    fn may_admit(&self, wb: &Wb<I>) -> bool {
        self.max - self.busy > 1 || wb.slot.lock().flushers == 0 || is_on("bdi-last-one-goes")
    }

    /// A free flusher goes to a wb that it has taken; if it may not, the wb is blocked.
    pub(crate) fn admit(&mut self, wb: &Arc<Wb<I>>) -> bool {
        if self.block(wb) {
            return false;
        }
        self.busy += 1;
        wb.slot.lock().flushers += 1;
        true
    }

    /// Blocks a wb where no flusher may go now. The flusher that has taken it has it no more then.
    pub(crate) fn block(&mut self, wb: &Arc<Wb<I>>) -> bool {
        let may_admit = self.may_admit(wb);
        if !may_admit {
            self.blocked.push(Arc::clone(wb));
        }
        !may_admit
    }

    /// A flusher leaves a wb. Returns wbs that are no longer blocked; the caller has taken them.
    pub(crate) fn leave(&mut self, wb: &Wb<I>) -> Vec<Arc<Wb<I>>> {
        self.busy -= 1;
        wb.slot.lock().flushers -= 1;
        let blocked = std::mem::take(&mut self.blocked);
        let (open, blocked) = blocked.into_iter().partition(|wb| self.may_admit(wb));
        self.blocked = blocked;
        open
    }

    /// Sets the time at which a flusher checks a wb, and not before; `None`: at no time. Returns
    /// whether it is the next timer of all.
    pub(crate) fn set_timer(&mut self, wb: &Arc<Wb<I>>, at: Option<Duration>) -> bool {
        let mut slot = wb.slot.lock();
        if let Some(before) = slot.timer.take() {
            self.timers.remove(&before);
        }
        let Some(at) = at else { return false };
        let timer = (at, self.next_timer);
        self.next_timer += 1;
        slot.timer = Some(timer);
        self.timers.insert(timer, Arc::downgrade(wb));
        self.timers.first_key_value().is_some_and(|(first, _)| *first == timer)
    }

    /// A wb whose timer is due, or else the time of the next timer.
    pub(crate) fn next_timer(&mut self, now: Duration) -> Result<Weak<Wb<I>>, Option<Duration>> {
        let Some(first) = self.timers.first_entry() else { return Err(None) };
        if first.key().0 > now {
            return Err(Some(first.key().0));
        }
        Ok(first.remove())
    }
}
