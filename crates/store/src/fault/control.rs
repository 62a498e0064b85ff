//! Decides about each call, and holds those that hang.
//!
//! Lock order: `Faults::state` is a leaf; the wrapped store is not called under it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::{Condvar, Mutex};

use super::rules::{self, FaultOp, Rule, When};
use crate::around::AroundStore;
use crate::{Error, ErrorKind, Result, Store};

/// The decision about a call that may go on.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(super) enum Verdict {
    /// Call the wrapped store.
    Pass,
    /// Write the first half, then fail with this.
    Tear(ErrorKind),
}

/// The rules of a [`FaultStore`](crate::FaultStore), and the calls that hang.
#[derive(Debug, Default)]
pub struct Faults {
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

impl AroundStore<Faults> {
    /// Wraps `inner` under `rules`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a rule that is not understood.
    pub fn new(inner: Arc<dyn Store>, rules: &str) -> Result<Arc<Self>> {
        let this = Self { inner, around: Arc::default() };
        this.set_rules(rules)?;
        Ok(Arc::new(this))
    }

    /// Puts other rules in the place of the present ones. Calls that hang go on hanging.
    ///
    /// # Errors
    /// As [`new`](Self::new); the old rules stay then.
    pub fn set_rules(&self, rules: &str) -> Result<()> {
        let rules = rules::parse(rules)?.into_iter().map(|rule| Counted { rule, seen: 0 }).collect();
        let mut state = self.around.state.lock();
        state.rules = rules;
        state.is_released = false;
        Ok(())
    }

    /// Lets all calls that hang go on, and no call hang again until new rules are set.
    pub fn release(&self) {
        let mut state = self.around.state.lock();
        state.releases += 1;
        state.is_released = true;
        drop(state);
        self.around.changed.notify_all();
    }

    /// How many calls hang now.
    #[must_use]
    pub fn hanging(&self) -> usize {
        self.around.state.lock().hanging
    }

    /// Waits until `n` calls hang; `false` if `timeout` came first.
    #[must_use]
    pub fn wait_hanging(&self, n: usize, timeout: Duration) -> bool {
        let until = Instant::now() + timeout;
        let mut state = self.around.state.lock();
        while state.hanging < n {
            if self.around.changed.wait_until(&mut state, until) {
                return state.hanging >= n;
            }
        }
        true
    }

    /// How many calls of `op` came in.
    #[must_use]
    pub fn calls(&self, op: FaultOp) -> u64 {
        self.around.state.lock().calls.get(op as usize).copied().unwrap_or(0)
    }
}

impl Faults {
    /// Ends all calls that hang, and refuses later ones.
    pub(super) fn close(&self) {
        self.state.lock().is_closed = true;
        self.changed.notify_all();
    }

    /// Counts a call, holds it as long as the rules say, and returns the decision about it.
    pub(super) fn enter(&self, op: FaultOp) -> Result<Verdict> {
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
