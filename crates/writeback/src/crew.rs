//! Which flushers of a device are free, at which wbs the others are, and when flushers look at wbs
//! again.
//!
//! A wb is in one of these states:
//!
//! | state | changed by |
//! |---|---|
//! | *armed*: the device's eventpoll reports it when its `work` is set | the report, to one flusher, which has it then |
//! | *taken*: one flusher looks at it | that flusher, before it goes to the store |
//! | *barred*: no flusher may go there; in [`Crew::barred`] | a flusher that leaves a wb, once the rule allows another one there |
//!
//! **The rule**: the last free flusher goes only to a wb where no other is. So however many inodes
//! of one wb hang in the store, a flusher is left for the others.
//!
//! A wb that is barred has flushers: it was barred because of them. So one of them will leave it;
//! or they all hang, which is the case that the rule is about.
//!
//! A flusher is free as long as it is at no wb, even before its thread is made.
//!
//! Lock order: `Bdi::crew`, then `Wb::post`.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sync::mutant::is_on;
use sync::thread;

use crate::link::Inode;
use crate::wb::Wb;

/// The time at which a flusher looks at a wb; the second number keeps equal times apart.
pub(crate) type Alarm = (Duration, u64);

/// The flushers of a device.
#[derive(Debug)]
pub(crate) struct Crew<I: Inode> {
    /// The most flushers that there may be.
    max: usize,
    /// Flushers that have not ended.
    pub(crate) running: usize,
    /// Of these, those that are at a wb.
    busy: usize,
    /// Wbs where no flusher may go, and which no flusher has.
    barred: Vec<Arc<Wb<I>>>,
    alarms: BTreeMap<Alarm, Weak<Wb<I>>>,
    next_alarm: u64,
    /// There is a thread for the alarms.
    pub(crate) is_watched: bool,
    /// The cache is over its background threshold: wbs with much are written without regard to age.
    pub(crate) is_kicked: bool,
    /// Writers that wait for room in the cache: while there is one, everything is written so.
    pub(crate) waiting: usize,
    pub(crate) is_stopping: bool,
    pub(crate) threads: Vec<thread::JoinHandle<()>>,
    made: usize,
}

/// A wb's part of it.
#[derive(Debug, Default)]
pub(crate) struct Post {
    flushers: usize,
    alarm: Option<Alarm>,
}

impl<I: Inode> Crew<I> {
    pub(crate) fn new(max: usize) -> Self {
        Self {
            max,
            running: 0,
            busy: 0,
            barred: Vec::new(),
            alarms: BTreeMap::new(),
            next_alarm: 0,
            is_watched: false,
            is_kicked: false,
            waiting: 0,
            is_stopping: false,
            threads: Vec::new(),
            made: 0,
        }
    }

    /// Whether no flusher waits though there may be one more.
    pub(crate) fn is_one_missing(&self) -> bool {
        self.running == self.busy && self.running < self.max && !self.is_stopping
    }

    /// The next flusher's number; numbers are used again.
    pub(crate) fn number(&mut self) -> usize {
        self.made += 1;
        (self.made - 1) % self.max
    }

    fn may_enter(&self, wb: &Wb<I>) -> bool {
        self.max - self.busy > 1 || wb.post.lock().flushers == 0 || is_on("bdi-last-one-goes")
    }

    /// A free flusher goes to a wb that it has taken; if it may not, the wb is barred.
    pub(crate) fn enter(&mut self, wb: &Arc<Wb<I>>) -> bool {
        if self.bar(wb) {
            return false;
        }
        self.busy += 1;
        wb.post.lock().flushers += 1;
        true
    }

    /// Bars a wb where no flusher may go now. The flusher that has taken it has it no more then.
    pub(crate) fn bar(&mut self, wb: &Arc<Wb<I>>) -> bool {
        let may_enter = self.may_enter(wb);
        if !may_enter {
            self.barred.push(Arc::clone(wb));
        }
        !may_enter
    }

    /// A flusher leaves a wb. Returns wbs that are no longer barred; the caller has taken them.
    pub(crate) fn leave(&mut self, wb: &Wb<I>) -> Vec<Arc<Wb<I>>> {
        self.busy -= 1;
        wb.post.lock().flushers -= 1;
        let barred = std::mem::take(&mut self.barred);
        let (open, barred) = barred.into_iter().partition(|wb| self.may_enter(wb));
        self.barred = barred;
        open
    }

    /// Sets the time at which a flusher looks at a wb, and not before; `None`: at no time. Returns
    /// whether it is the next alarm of all.
    pub(crate) fn set_alarm(&mut self, wb: &Arc<Wb<I>>, at: Option<Duration>) -> bool {
        let mut post = wb.post.lock();
        if let Some(before) = post.alarm.take() {
            self.alarms.remove(&before);
        }
        let Some(at) = at else { return false };
        let alarm = (at, self.next_alarm);
        self.next_alarm += 1;
        post.alarm = Some(alarm);
        self.alarms.insert(alarm, Arc::downgrade(wb));
        self.alarms.first_key_value().is_some_and(|(first, _)| *first == alarm)
    }

    /// A wb whose alarm is due, or else the time of the next alarm.
    pub(crate) fn next_alarm(&mut self, now: Duration) -> Result<Weak<Wb<I>>, Option<Duration>> {
        let Some(first) = self.alarms.first_entry() else { return Err(None) };
        if first.key().0 > now {
            return Err(Some(first.key().0));
        }
        Ok(first.remove())
    }
}
