//! Grace periods for pollers (`start_poll_synchronize_rcu`): another thread runs them, the caller
//! goes on.
//!
//! A thread of the domain runs them, for as long as some are requested. It is not the worker that
//! invokes callbacks, which may take long.
//!
//! # Lock order
//! `Polls::state`, then what module `workers` says.

mod worker;

use sync::{Condvar, Mutex};

use crate::seq::Cookie;
use crate::ticket::SpawnFailure;

/// The requested grace periods.
#[derive(Debug, Default)]
pub(crate) struct Polls {
    state: Mutex<State>,
    /// Wakes the thread before its tick.
    expedite: Condvar,
}

#[derive(Debug, Default)]
struct State {
    wanted: Option<Cookie>,
    /// Whether the thread must not wait for the tick.
    is_urgent: bool,
    has_server: bool,
    spawn_failure: SpawnFailure,
}

impl Polls {
    /// The clock was moved: the thread reads it again.
    pub(crate) fn clock_moved(&self) {
        drop(self.state.lock());
        self.expedite.notify_all();
    }
}
