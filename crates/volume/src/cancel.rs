//! Ends the waits of one request.
//!
//! Lock order: `Cancel::state` is a leaf; an [`WakeEvent`] is signalled outside it.

use std::sync::Arc;
use std::time::Instant;

use sync::mutant::is_on;
use sync::{Condvar, Mutex};

/// Something to wait for once: set by one side, seen by the other.
#[derive(Debug, Default)]
pub struct WakeEvent {
    set: Mutex<bool>,
    changed: Condvar,
}

impl WakeEvent {
    /// Sets the event and wakes the threads that wait.
    pub fn set(&self) {
        if is_on("event-set-late") {
            self.changed.notify_all();
        }
        *self.set.lock() = true;
        if !is_on("event-set-late") {
            self.changed.notify_all();
        }
    }

    /// Waits until the event is set, clears it, and says `true`; `false` when `until` came first.
    pub fn wait(&self, until: Option<Instant>) -> bool {
        let mut set = self.set.lock();
        while !*set {
            match until {
                None => self.changed.wait(&mut set),
                Some(until) => {
                    if self.changed.wait_until(&mut set, until) && !*set {
                        return false;
                    }
                }
            }
        }
        *set = false;
        true
    }
}

/// Ends the waits of one request, when its caller was killed or interrupted. Several threads may
/// wait for it: a sync's do.
#[derive(Debug, Default)]
pub struct Cancel {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cancelled: bool,
    waiting: Vec<Arc<WakeEvent>>,
}

impl Cancel {
    /// Cancels the request: every later wait ends at once, and so do those under way.
    pub fn cancel(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.cancelled = true;
            std::mem::take(&mut state.waiting)
        };
        for event in waiting {
            event.set();
        }
    }

    /// Whether the request was cancelled.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.state.lock().cancelled
    }

    /// Sets `event` when the request is cancelled (at once if it is), until the guard is dropped.
    #[must_use]
    pub fn watch(&self, event: &Arc<WakeEvent>) -> CancelGuard<'_> {
        let cancelled = {
            let mut state = self.state.lock();
            state.waiting.push(Arc::clone(event));
            state.cancelled
        };
        if cancelled {
            event.set();
        }
        CancelGuard { cancel: self, event: Arc::clone(event) }
    }
}

/// Keeps a [`Cancel`] tied to an event.
#[derive(Debug)]
pub struct CancelGuard<'a> {
    cancel: &'a Cancel,
    event: Arc<WakeEvent>,
}

impl Drop for CancelGuard<'_> {
    fn drop(&mut self) {
        self.cancel.state.lock().waiting.retain(|event| !Arc::ptr_eq(event, &self.event));
    }
}
