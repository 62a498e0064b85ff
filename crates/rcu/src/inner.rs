//! A domain's inside.

use std::sync::Weak;

use crate::callbacks::Callbacks;
use crate::gp::GracePeriods;
use crate::polls::Polls;
use crate::seq::Cookie;
use crate::stats::{Counters, Stats};
use crate::ticks::GpTick;

/// The part that a domain's handles, its threads' registrations and its worker share.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) gp: GracePeriods,
    /// A reference to itself, for threads that keep it beyond a call.
    pub(crate) this: Weak<Inner>,
    pub(crate) counters: Counters,
    pub(crate) callbacks: Callbacks,
    pub(crate) polls: Polls,
    /// Whether it is [`Domain::global`](crate::Domain::global).
    pub(crate) is_default: bool,
    pub(crate) ticks: GpTick,
}

impl Inner {
    pub(crate) fn wait_for(&self, cookie: Cookie) {
        if self.gp.wait_for(cookie, &self.counters) {
            self.ticks.on_grace_period();
        }
    }

    pub(crate) fn clock_moved(&self) {
        self.ticks.clock_moved();
        self.gp.clock_moved();
        self.clock_of_callbacks_moved();
        self.polls.clock_moved();
    }

    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.counters;
        let (callbacks_queued, callbacks_run) = self.callbacks.counts();
        Stats {
            grace_periods: self.gp.grace_periods(),
            waiters: counters.waiters.get(),
            callbacks_queued,
            callbacks_run,
            callers_slowed: counters.slowed.get(),
            stalls: counters.stalls.get(),
            longest_reader: counters.longest_wait(),
            readers: self.gp.reader_count(),
        }
    }
}
