//! The thread that runs grace periods for pollers.

use crate::inner::Inner;
use crate::seq::{Cookie, is_at_least};
use crate::workers;

impl Inner {
    /// Makes a thread run this grace period.
    pub(crate) fn request_gp(&self, cookie: Cookie, is_urgent: bool) {
        let mut state = self.polls.state.lock();
        // The later of the two: it serves both.
        if state.wanted.is_none_or(|wanted| is_at_least(cookie.0, wanted.0)) {
            state.wanted = Some(cookie);
        }
        state.is_urgent |= is_urgent;
        if state.has_server {
            self.polls.expedite.notify_one();
            return;
        }
        // The next request tries again.
        let asked = workers::serve(self, Self::serve_polls);
        state.has_server = asked.is_ok();
        let lacking = state.spawn_failure.note(asked);
        drop(state);
        if let Some(error) = lacking {
            tracing::error!(%error, "cannot start the grace-period thread: the next caller that polls or waits runs grace periods");
        }
    }

    /// The thread's body: runs grace periods until none is requested.
    fn serve_polls(&self) {
        loop {
            let mut state = self.polls.state.lock();
            // It stays until it has passed: a server that panics begins again here.
            if state.wanted.is_none_or(|wanted| self.gp.poll_state(wanted)) {
                state.wanted = None;
                state.has_server = false;
                return;
            }
            let tick = self.ticks.next(self.gp.now());
            while !(cfg!(any(loom, shuttle)) || state.is_urgent || self.gp.now() >= tick) {
                self.polls.expedite.wait_until(&mut state, self.gp.instant(tick));
            }
            state.is_urgent = false;
            let wanted = state.wanted;
            drop(state);
            wanted.into_iter().for_each(|cookie| self.wait_for(cookie));
        }
    }
}
