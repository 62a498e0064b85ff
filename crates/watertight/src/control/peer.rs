//! The peer of a connection, and what the connection waits for.

use std::sync::Arc;
use std::time::Duration;

use sync::Mutex;
use tokio::sync::watch;

use super::call_limits::{CallKind, CallLimits, CallPermit};
use super::connections::{Caller, EXCHANGE_MAX, Socket, Waiting};
use super::service::Service;

/// How long a peer may take over a request's head or body.
pub(super) const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The party that a connection waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Its peer, for the request.
    Request,
    /// A call.
    Call,
    /// Its peer, to take the answer: also while a short call is under way.
    Answer,
}

/// One connection. It has a place of one of two kinds, until it has ended.
pub(super) struct Peer {
    pub(super) caller: Caller,
    socket: Socket,
    pub(super) service: Arc<dyn Service>,
    phase: watch::Sender<Phase>,
    /// Its place among the connections that wait for their peers.
    waiting: Mutex<Option<Waiting>>,
    /// Its permit among the calls that take long.
    permit: Mutex<Option<Arc<CallPermit>>>,
    /// The limits on calls that take long.
    call_limits: Arc<CallLimits>,
}

impl Peer {
    pub(super) fn new(
        (caller, socket): (Caller, Socket),
        service: Arc<dyn Service>,
        waiting: Waiting,
        call_limits: Arc<CallLimits>,
    ) -> Self {
        let (phase, waiting) = (watch::Sender::new(Phase::Request), Mutex::new(Some(waiting)));
        Self { caller, socket, service, phase, waiting, permit: Mutex::default(), call_limits }
    }

    pub(super) fn waits_for_request(&self) -> bool {
        *self.phase.borrow() == Phase::Request
    }

    /// Takes a permit for a call that takes long, in exchange for the one among the connections that
    /// wait for their peers.
    ///
    /// # Errors
    /// Whose permits are used up.
    pub(super) fn enter(&self, kind: CallKind) -> Result<Arc<CallPermit>, String> {
        // As the kernel shows it, whichever tree the volume uses; callers that have ended, or are
        // not visible from here, share one cgroup.
        let cgroup = std::fs::read_to_string(format!("/proc/{}/cgroup", self.caller.pid)).unwrap_or_default();
        let permit = Arc::new(self.call_limits.admit(kind, self.socket, self.caller, cgroup)?);
        *self.permit.lock() = Some(Arc::clone(&permit));
        drop(self.waiting.lock().take());
        self.phase.send_replace(Phase::Call);
        Ok(permit)
    }

    /// The request's head is there, or a call that takes long is over: the rest is up to the peer.
    pub(super) fn expect_reader(&self) {
        self.phase.send_replace(Phase::Answer);
    }

    /// Returns once the peer has taken too long.
    pub(super) async fn wait_late(&self) {
        let mut phase = self.phase.subscribe();
        loop {
            let now = *phase.borrow_and_update();
            let changed = phase.changed();
            match now {
                Phase::Call => drop(changed.await),
                Phase::Request | Phase::Answer => {
                    if tokio::time::timeout(EXCHANGE_MAX, changed).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}
