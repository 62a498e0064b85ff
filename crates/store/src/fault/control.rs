//! Decides about each call, and holds those that hang.
//!
//! Lock order: `Control::state` is a leaf; the wrapped store is not called under it.

use std::time::{Duration, Instant};

use sync::{Condvar, Mutex};

use super::rules::{FaultOp, Rule, When};
use crate::{Error, ErrorKind, Result};

/// The decision about a call that may go on.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Verdict {
    /// Call the wrapped store.
    Pass,
    /// Write the first half, then fail with this.
    Tear(ErrorKind),
}

#[derive(Debug, Default)]
pub(crate) struct Control {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    rules: Vec<Counted>,
    /// By `FaultOp`.
    calls: Vec<u64>,
    /// Raised by a release: calls that hung before go on.
    releases: u64,
    is_released: bool,
    is_closed: bool,
    hanging: usize,
}

#[derive(Debug)]
struct Counted {
    rule: Rule,
    /// Calls that matched so far.
    seen: u64,
}

impl Control {
    pub(crate) fn new(rules: Vec<Rule>) -> Self {
        let control = Self::default();
        control.set_rules(rules);
        control
    }

    pub(crate) fn set_rules(&self, rules: Vec<Rule>) {
        let mut state = self.state.lock();
        state.rules = rules.into_iter().map(|rule| Counted { rule, seen: 0 }).collect();
        state.is_released = false;
    }

    pub(crate) fn calls(&self, op: FaultOp) -> u64 {
        self.state.lock().calls.get(op as usize).copied().unwrap_or(0)
    }

    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        state.releases += 1;
        state.is_released = true;
        drop(state);
        self.changed.notify_all();
    }

    pub(crate) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    pub(crate) fn hanging(&self) -> usize {
        self.state.lock().hanging
    }

    pub(crate) fn wait_hanging(&self, n: usize, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut state = self.state.lock();
        while state.hanging < n {
            if self.changed.wait_until(&mut state, until) {
                return state.hanging >= n;
            }
        }
        true
    }

    /// Counts a call, holds it as long as the rules say, and returns the decision about it.
    pub(crate) fn enter(&self, op: FaultOp) -> Result<Verdict> {
        let mut state = self.state.lock();
        let number = op as usize;
        if state.calls.len() <= number {
            state.calls.resize(number + 1, 0);
        }
        state.calls[number] += 1;
        let mut delay = Duration::ZERO;
        let (mut hangs, mut panics, mut is_torn, mut fail) = (false, false, false, None);
        for counted in state.rules.iter_mut().filter(|c| c.rule.is_for(op)) {
            counted.seen += 1;
            let is_now = match counted.rule.when {
                When::Always => true,
                When::Nth(n) => counted.seen == n,
                When::From(n) => counted.seen >= n,
            };
            if is_now {
                delay += counted.rule.delay;
                hangs |= counted.rule.hangs;
                panics |= counted.rule.panics;
                is_torn |= counted.rule.is_torn;
                fail = fail.or(counted.rule.fail);
            }
        }
        if !delay.is_zero() {
            let until = Instant::now() + delay;
            while !state.is_closed && !self.changed.wait_until(&mut state, until) {}
        }
        if hangs && !state.is_released {
            let before = state.releases;
            state.hanging += 1;
            self.changed.notify_all();
            while state.releases == before && !state.is_closed {
                self.changed.wait(&mut state);
            }
            state.hanging -= 1;
        }
        if state.is_closed {
            return Err(Error::with(ErrorKind::Io, op.name(), "store is closed"));
        }
        drop(state);
        assert!(!panics, "{} panics on purpose", op.name());
        match (is_torn, fail) {
            (true, fail) => Ok(Verdict::Tear(fail.unwrap_or(ErrorKind::Io))),
            (false, Some(kind)) => Err(Error::with(kind, op.name(), "on purpose")),
            (false, None) => Ok(Verdict::Pass),
        }
    }
}
