//! Bounds on the calls that take long: so many of each kind, and of those so many of each process,
//! user and cgroup.
//!
//! A call that waits (for the store, for its caller's limits, for the volume's end) leaves the
//! connections that wait for their peers (module `connections`) and takes a permit here, until its
//! connection has ended as well. A kind takes none from another: throttled syncs keep no caller
//! from unmounting. Neither does a cgroup, whose syncs, which may wait for its limits, take turns
//! among themselves; nor a process; nor a user: root finds permits whatever the owner's processes
//! do.
//!
//! | kind | callers | of a user | of a cgroup | of a process | threads | for a user | for a cgroup |
//! |---|---|---|---|---|---|---|---|
//! | `Events`, at one socket | 256 | 192 | 192 | 64 | none | | |
//! | `Wait` | 256 | 192 | 128 | 64 | none | | |
//! | `Sync`, by the caller's policy | 256 | 192 | 64 | 32 | 64 | 48 | 2 |
//! | `SyncAll`, `Umount`, `Force`, `Tree`, `Snapshots`, `Warm` | 64 | 48 | 32 | 16 | 16 | 12 | 8 |
//!
//! All listeners for events at all sockets of a server, whose connections have two descriptors
//! each, are bounded by a sixteenth of the descriptors for each user.
//!
//! A caller too many is refused and gets an error; a caller without a thread waits for one, and
//! holds nothing but its connection.
//!
//! Lock order: `tables` is a leaf. A thread permit of the cgroup's is taken before the user's, and
//! that before the kind's: a call that waits for its own cgroup holds no thread of others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::api::UmountKind;
use super::connections::{Caller, Socket, descriptors_max};

/// The event that a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallKind {
    /// Events of the volume.
    Events,
    /// The volume's end.
    Wait,
    /// The store, and the limits that the caller is under.
    Sync,
    /// The store.
    SyncAll,
    /// The store, and the kernel.
    Umount,
    /// The end of a volume that is given up.
    Force,
    /// A volume to be attached, detached or moved.
    Tree,
    /// The store: what it keeps as it is now.
    Snapshots,
    /// The store: data for the disk cache.
    Warm,
}

impl CallKind {
    /// The kind of a call that unmounts.
    pub(super) const fn of(how: UmountKind) -> Self {
        match how {
            UmountKind::Force => Self::Force,
            UmountKind::Plain | UmountKind::Lazy => Self::Umount,
        }
    }
}

/// How many there may be.
#[derive(Debug, Clone, Copy)]
struct Bound {
    callers: usize,
    threads: usize,
}

/// Bounds of one kind: for all callers together, and for each of the parties that share it.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    all: Bound,
    user: Bound,
    cgroup: Bound,
    process: Bound,
}

const BOUNDS: [Bounds; 9] = {
    const fn bound(callers: usize, threads: usize) -> Bound {
        Bound { callers, threads }
    }
    const SHORT: Bounds =
        Bounds { all: bound(64, 16), user: bound(48, 12), cgroup: bound(32, 8), process: bound(16, 8) };
    [
        Bounds { all: bound(256, 0), user: bound(192, 0), cgroup: bound(192, 0), process: bound(64, 0) },
        Bounds { all: bound(256, 0), user: bound(192, 0), cgroup: bound(128, 0), process: bound(64, 0) },
        Bounds { all: bound(256, 64), user: bound(192, 48), cgroup: bound(64, 2), process: bound(32, 2) },
        SHORT,
        SHORT,
        SHORT,
        SHORT,
        SHORT,
        SHORT,
    ]
};

/// Threads for calls of all kinds.
pub(super) const THREADS_MAX: usize = {
    let (mut sum, mut kind) = (0, 0);
    while kind < BOUNDS.len() {
        sum += BOUNDS[kind].all.threads;
        kind += 1;
    }
    sum
};

/// All limits of a server.
#[derive(Debug)]
pub(super) struct CallLimits {
    kinds: Vec<Arc<KindLimits>>,
    /// Listeners for events at any socket, by user.
    listeners: PermitTable,
    listeners_of_user_max: usize,
}

/// The permits of one kind. Those of events are a socket's, all others the server's.
#[derive(Debug)]
struct KindLimits {
    bounds: Bounds,
    tables: PermitTable,
}

/// A party with permits of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Scope {
    All(Option<Socket>),
    User(Option<Socket>, u32),
    Cgroup(Option<Socket>, String),
    Process(Option<Socket>, u32),
}

impl Scope {
    /// In a sentence about calls.
    const fn words(&self) -> &'static str {
        match self {
            Self::All(_) => "",
            Self::User(..) => " of this user",
            Self::Cgroup(..) => " of this cgroup",
            Self::Process(..) => " of this process",
        }
    }
}

#[derive(Debug, Default)]
struct PermitTable(Mutex<HashMap<Scope, Weak<Permits>>>);

#[derive(Debug)]
struct Permits {
    callers: Arc<Semaphore>,
    threads: Arc<Semaphore>,
}

/// A caller's permit.
#[derive(Debug)]
pub(super) struct CallPermit {
    /// The parties in whose names a thread is taken, in this order.
    permits: [Arc<Permits>; 3],
    _callers: Vec<(Arc<Permits>, OwnedSemaphorePermit)>,
}

/// A caller with a thread to itself.
#[derive(Debug)]
pub(super) struct ThreadPermit {
    _permit: Arc<CallPermit>,
    _thread: [Option<OwnedSemaphorePermit>; 3],
}

impl Default for CallLimits {
    fn default() -> Self {
        let of_kind = |bounds| Arc::new(KindLimits { bounds, tables: PermitTable::default() });
        Self {
            kinds: BOUNDS.into_iter().map(of_kind).collect(),
            listeners: PermitTable::default(),
            listeners_of_user_max: descriptors_max() / 16,
        }
    }
}

impl Permits {
    fn new(bound: Bound) -> Self {
        Self {
            callers: Arc::new(Semaphore::new(bound.callers.min(Semaphore::MAX_PERMITS))),
            threads: Arc::new(Semaphore::new(bound.threads)),
        }
    }
}

impl CallLimits {
    /// A permit for a caller in this cgroup.
    ///
    /// # Errors
    /// The holders of all permits.
    pub(super) fn admit(
        &self,
        kind: CallKind,
        socket: Socket,
        caller: Caller,
        cgroup: String,
    ) -> Result<CallPermit, String> {
        let of_kind = &self.kinds[kind as usize];
        let bounds = of_kind.bounds;
        let at = (kind == CallKind::Events).then_some(socket);
        let mut callers = Vec::with_capacity(5);
        let mut take = |tables: &PermitTable, scope: Scope, bound: Bound| {
            let words = scope.words();
            let permits = tables.of(scope, bound);
            let permit = Arc::clone(&permits.callers).try_acquire_owned();
            let permit = permit.map_err(|_| match kind {
                CallKind::Events => {
                    format!("{} callers{words} read events already, which is the limit", bound.callers)
                }
                _ => format!(
                    "{} calls of this kind{words} are under way already, which is the limit",
                    bound.callers
                ),
            })?;
            callers.push((Arc::clone(&permits), permit));
            Ok::<_, String>(permits)
        };
        take(&of_kind.tables, Scope::Process(at, caller.pid), bounds.process)?;
        let of_cgroup = take(&of_kind.tables, Scope::Cgroup(at, cgroup), bounds.cgroup)?;
        let of_user = take(&of_kind.tables, Scope::User(at, caller.uid), bounds.user)?;
        if kind == CallKind::Events {
            let bound = Bound { callers: self.listeners_of_user_max.max(1), threads: 0 };
            take(&self.listeners, Scope::User(None, caller.uid), bound)?;
        }
        let all = take(&of_kind.tables, Scope::All(at), bounds.all)?;
        Ok(CallPermit { permits: [of_cgroup, of_user, all], _callers: callers })
    }
}

impl PermitTable {
    fn of(&self, scope: Scope, bound: Bound) -> Arc<Permits> {
        let mut tables = self.0.lock();
        if let Some(known) = tables.get(&scope).and_then(Weak::upgrade) {
            return known;
        }
        // So there are never more than a few for each caller.
        tables.retain(|_, permits| permits.strong_count() > 0);
        let permits = Arc::new(Permits::new(bound));
        tables.insert(scope, Arc::downgrade(&permits));
        permits
    }
}

impl CallPermit {
    /// Waits for a thread.
    pub(super) async fn acquire_thread(self: Arc<Self>) -> ThreadPermit {
        let mut thread = [None, None, None];
        for (permits, taken) in self.permits.iter().zip(&mut thread) {
            // An error would be a closed semaphore: these are never closed.
            *taken = Arc::clone(&permits.threads).acquire_owned().await.ok();
        }
        ThreadPermit { _permit: self, _thread: thread }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: u32 = 1000;

    fn runs<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn number(n: usize) -> u32 {
        u32::try_from(n).unwrap()
    }

    /// Whether a thread comes without another caller leaving.
    fn at_once(permit: CallPermit) -> Option<ThreadPermit> {
        runs(async { futures_ready(Arc::new(permit).acquire_thread()).await })
    }

    /// Polls once.
    async fn futures_ready<F: Future>(future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match future.as_mut().poll(context) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }

    fn admit(
        call_limits: &CallLimits,
        kind: CallKind,
        (pid, uid): (u32, u32),
        cgroup: &str,
    ) -> Result<CallPermit, String> {
        call_limits.admit(kind, Socket(0), Caller { pid, uid }, cgroup.to_owned())
    }

    #[test]
    fn a_cgroup_takes_no_place_and_no_thread_from_another() {
        let call_limits = CallLimits::default();
        let bounds = BOUNDS[CallKind::Sync as usize];
        let slow = |n: usize| admit(&call_limits, CallKind::Sync, (number(n), OWNER), "slow");
        let mut threads = Vec::new();
        for n in 0..bounds.cgroup.callers {
            let permit = slow(n).unwrap();
            if n < bounds.cgroup.threads {
                threads.push(at_once(permit).expect("a thread"));
            } else {
                // Waits, and keeps its permit as long as it does.
                let mut waiting = Box::pin(Arc::new(permit).acquire_thread());
                assert!(runs(futures_ready(waiting.as_mut())).is_none());
                std::mem::drop(waiting);
            }
        }
        let kept: Vec<CallPermit> =
            (bounds.cgroup.threads..bounds.cgroup.callers).map(|n| slow(n).unwrap()).collect();
        let refused = slow(1000).unwrap_err();
        assert!(refused.contains("of this cgroup"), "{refused}");
        assert!(at_once(admit(&call_limits, CallKind::Sync, (1, OWNER), "other").unwrap()).is_some());
        assert!(at_once(admit(&call_limits, CallKind::Umount, (1, OWNER), "slow").unwrap()).is_some());
        // A caller that leaves lets the next one go on.
        threads.pop();
        assert!(at_once(kept.into_iter().next().unwrap()).is_some());
    }

    #[test]
    fn neither_does_a_process_nor_a_user() {
        for kind in [CallKind::Events, CallKind::Wait, CallKind::Sync, CallKind::Umount] {
            let call_limits = CallLimits::default();
            let bounds = BOUNDS[kind as usize];
            // A cgroup for each caller: an owner may make as many as it likes.
            let of = |pid: u32, uid: u32, n: usize| admit(&call_limits, kind, (pid, uid), &n.to_string());
            let mut held: Vec<CallPermit> =
                (0..bounds.process.callers).map(|n| of(1, OWNER, n).unwrap()).collect();
            assert!(of(1, OWNER, 1000).unwrap_err().contains("of this process"), "{kind:?}");
            held.extend((held.len()..bounds.user.callers).map(|n| of(2 + number(n), OWNER, n).unwrap()));
            assert!(of(1000, OWNER, 1000).unwrap_err().contains("of this user"), "{kind:?}");
            let threads: Vec<ThreadPermit> =
                held.drain(..bounds.user.threads).map(|permit| at_once(permit).expect("a thread")).collect();
            if bounds.user.threads > 0 {
                assert!(at_once(held.pop().unwrap()).is_none(), "{kind:?}");
                assert!(at_once(of(1001, 0, 1001).unwrap()).is_some(), "root waits for the owner's calls");
            } else {
                assert!(of(1001, 0, 1001).is_ok());
            }
            drop(threads);
        }
    }

    #[test]
    fn listeners_have_places_at_each_socket_and_their_descriptors_a_bound() {
        let call_limits = CallLimits { listeners_of_user_max: 300, ..CallLimits::default() };
        let listen = |socket: u64, n: usize, uid: u32| {
            let caller = Caller { pid: number(n), uid };
            call_limits.admit(CallKind::Events, Socket(socket), caller, String::new())
        };
        let held: Vec<CallPermit> = (0..192).map(|n| listen(1, n, OWNER).unwrap()).collect();
        assert!(listen(1, 500, OWNER).is_err());
        let more: Vec<CallPermit> = (0..108).map(|n| listen(2, n, OWNER).unwrap()).collect();
        assert!(listen(2, 500, OWNER).unwrap_err().starts_with("300 callers of this user read events"));
        assert!(listen(2, 500, 0).is_ok());
        drop((held, more));
        assert!(listen(2, 500, OWNER).is_ok());
    }

    #[test]
    fn all_together_are_bounded_and_forgotten() {
        let call_limits = CallLimits::default();
        let bounds = BOUNDS[CallKind::Wait as usize];
        let wait = |n: usize| admit(&call_limits, CallKind::Wait, (number(n), number(n % 2)), &n.to_string());
        let held: Vec<CallPermit> = (0..bounds.all.callers).map(|n| wait(n).unwrap()).collect();
        assert!(wait(bounds.all.callers).unwrap_err().starts_with("256 calls of this kind are"));
        drop(held);
        assert!(wait(0).is_ok());
        assert_eq!(call_limits.kinds[CallKind::Wait as usize].tables.0.lock().len(), 4);
    }
}
