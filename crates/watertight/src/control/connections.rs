//! Connections that wait for their peers: for a request, or for the answer to be read.
//!
//! A peer that is slow costs a descriptor and some memory, and keeps no other peer from being
//! served: the server takes every connection at once. Where a peer has too many that wait, the one
//! that has waited longest is closed in favour of the new one. A request that comes with its
//! connection is answered before the next connection is taken, and is never in danger.
//!
//! | connections that wait | at most |
//! |---|---|
//! | of one process, at one socket | 16 |
//! | of one user, at one socket | 64 |
//! | of one user, at all sockets of the server | an eighth of the descriptors that the process may have |
//!
//! A user is root or the owner: no other user gets in. So root is served whatever the owner's
//! processes do. A call that takes long (module `call_limits`) leaves this table for a permit of its own
//! kind.
//!
//! Lock order: `Connections::table` is a leaf.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use sync::Mutex;
use tokio::sync::Notify;

/// Of one process at one socket.
pub(super) const OF_PROCESS_MAX: usize = 16;
/// Of one user at one socket.
pub(super) const OF_USER_MAX: usize = 64;
/// How long a peer may take over its request and its answer; a call that takes long itself is left
/// out.
pub(super) const EXCHANGE_MAX: Duration = Duration::from_secs(15);

/// The other end of a connection, as the kernel reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    /// Its process; 0 where that is not visible from here, so that all such count as one.
    pub(super) pid: u32,
    /// Its user.
    pub(super) uid: u32,
}

/// Which of several sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Socket(pub(super) u64);

/// A group of connections that has a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Group {
    Process(Socket, u32),
    User(Socket, u32),
    AllOfUser(u32),
}

/// All that wait for their peers.
#[derive(Debug)]
pub(super) struct Connections {
    table: Mutex<Table>,
    of_user_max: usize,
}

#[derive(Debug, Default)]
struct Table {
    /// The number of the next one: the lower, the longer it has waited.
    next: u64,
    waiting: HashMap<u64, ([Group; 3], Arc<Notify>)>,
    groups: HashMap<Group, BTreeSet<u64>>,
}

/// A connection in the table; no more when this is dropped.
#[derive(Debug)]
pub(super) struct Waiting {
    all: Arc<Connections>,
    number: u64,
    closed: Arc<Notify>,
}

impl Default for Connections {
    fn default() -> Self {
        Self { table: Mutex::default(), of_user_max: descriptors_max() / 8 }
    }
}

/// How many descriptors the process may have open.
pub(super) fn descriptors_max() -> usize {
    getrlimit(Resource::Nofile).current.map_or(usize::MAX, |max| usize::try_from(max).unwrap_or(usize::MAX))
}

impl Connections {
    /// Takes a connection in; where the caller has too many, the one that has waited longest goes.
    pub(super) fn enter(self: &Arc<Self>, socket: Socket, caller: Caller) -> Waiting {
        let closed = Arc::new(Notify::new());
        let groups = [
            (Group::Process(socket, caller.pid), OF_PROCESS_MAX),
            (Group::User(socket, caller.uid), OF_USER_MAX),
            (Group::AllOfUser(caller.uid), self.of_user_max),
        ];
        let mut table = self.table.lock();
        let mut gone = Vec::new();
        for (group, max) in groups {
            while let Some(members) = table.groups.get(&group).filter(|members| members.len() >= max.max(1))
                && let Some(&longest) = members.first()
            {
                gone.extend(table.remove(longest));
            }
        }
        let number = table.next;
        table.next += 1;
        for (group, _) in groups {
            table.groups.entry(group).or_default().insert(number);
        }
        table.waiting.insert(number, (groups.map(|(group, _)| group), Arc::clone(&closed)));
        drop(table);
        gone.iter().for_each(|closed| closed.notify_one());
        Waiting { all: Arc::clone(self), number, closed }
    }
}

impl Table {
    fn remove(&mut self, number: u64) -> Option<Arc<Notify>> {
        let (groups, closed) = self.waiting.remove(&number)?;
        for group in groups {
            if let Some(members) = self.groups.get_mut(&group) {
                members.remove(&number);
                if members.is_empty() {
                    self.groups.remove(&group);
                }
            }
        }
        Some(closed)
    }
}

impl Waiting {
    /// Notified when this connection has to go.
    pub(super) fn closed(&self) -> Arc<Notify> {
        Arc::clone(&self.closed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        drop(self.all.table.lock().remove(self.number));
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Waker};

    use super::*;

    const ROOT: u32 = 0;
    const OWNER: u32 = 1000;

    fn is_closed(waiting: &Waiting) -> bool {
        let closed = waiting.closed();
        let notified = std::pin::pin!(closed.notified());
        notified.poll(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn count(all: &Connections) -> usize {
        all.table.lock().waiting.len()
    }

    #[test]
    fn a_process_takes_no_place_from_another_and_its_oldest_gives_way() {
        let all = Arc::new(Connections::default());
        let slow = Caller { pid: 7, uid: OWNER };
        let other = all.enter(Socket(0), Caller { pid: 8, uid: OWNER });
        let held: Vec<Waiting> = (0..1000).map(|_| all.enter(Socket(0), slow)).collect();
        assert!(!is_closed(&other), "another process's");
        let kept = held.len() - OF_PROCESS_MAX;
        assert!(held[..kept].iter().all(is_closed));
        assert!(!held[kept..].iter().any(is_closed));
        assert_eq!(count(&all), OF_PROCESS_MAX + 1);
        // Another socket's are others.
        let elsewhere = all.enter(Socket(1), slow);
        assert!(!is_closed(&held[kept]) && !is_closed(&elsewhere));
        drop((held, other, elsewhere));
        let table = all.table.lock();
        assert!(table.waiting.is_empty() && table.groups.is_empty());
    }

    #[test]
    fn a_user_takes_no_place_from_root() {
        let all = Arc::new(Connections { of_user_max: 100, ..Connections::default() });
        let root = all.enter(Socket(0), Caller { pid: 1, uid: ROOT });
        let held: Vec<Waiting> =
            (2..1002).map(|pid| all.enter(Socket(0), Caller { pid, uid: OWNER })).collect();
        assert!(!is_closed(&root));
        assert_eq!(count(&all), OF_USER_MAX + 1);
        // Nor do connections at many sockets.
        let more: Vec<Waiting> =
            (0..1000).map(|n| all.enter(Socket(n), Caller { pid: 5, uid: OWNER })).collect();
        assert!(!is_closed(&root));
        assert_eq!(count(&all), 100 + 1);
        drop((held, more));
    }
}
