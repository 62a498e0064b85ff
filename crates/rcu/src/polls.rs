//! Grace periods for those who poll: somebody has to run them, and whoever asked goes on.
//!
//! A thread of the domain's does, while it is asked to; not the one that runs callbacks, which may take long.
//!
//! # Lock order
//! `Polls::state`, then what module `workers` says.

use sync::{Condvar, Mutex};

use crate::domain::Inner;
use crate::seq::{Cookie, is_at_least};
use crate::workers;

/// What is asked for.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    state: Mutex<State>,
    /// For the server: do not wait for the tick.
    hurry: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: Option<Cookie>,
    /// The tick is not waited for.
    is_urgent: bool,
    has_server: bool,
    lack: workers::Lack,
}

impl Polls {
    /// Somebody has moved the clock.
    pub(crate) fn clock_moved(&self) {
        drop(self.state.lock());
        self.hurry.notify_all();
    }
}

impl Inner {
    /// Sees to it that this grace period comes.
    pub(crate) fn ask(&self, cookie: Cookie, is_urgent: bool) {
        let mut state = self.polls.state.lock();
        // The later of the two: it serves both.
        if state.wanted.is_none_or(|wanted| is_at_least(cookie.0, wanted.0)) {
            state.wanted = Some(cookie);
        }
        state.is_urgent |= is_urgent;
        if state.has_server {
            self.polls.hurry.notify_one();
            return;
        }
        // Whoever asks next tries again.
        let asked = workers::serve(self, Self::serve_polls);
        state.has_server = asked.is_ok();
        let lacking = state.lack.note(asked);
        drop(state);
        if let Some(error) = lacking {
            tracing::error!(%error, "no thread for grace periods: they come with who asks or waits next");
        }
    }

    /// Runs grace periods until none is wanted.
    fn serve_polls(&self) {
        loop {
            let mut state = self.polls.state.lock();
            // It stays until it has passed: a server that panics begins again here.
            if state.wanted.is_none_or(|wanted| self.gate.poll_state(wanted)) {
                state.wanted = None;
                state.has_server = false;
                return;
            }
            let tick = self.ticks.next(self.gate.now());
            while !(cfg!(any(loom, shuttle)) || state.is_urgent || self.gate.now() >= tick) {
                self.polls.hurry.wait_until(&mut state, self.gate.instant(tick));
            }
            state.is_urgent = false;
            let wanted = state.wanted;
            drop(state);
            wanted.into_iter().for_each(|cookie| self.wait_for(cookie));
        }
    }
}
