//! flock(2) and fcntl(2) locks.
//!
//! A wait for a lock occupies no thread: it is the volume's to keep and answered from its callback.
//!
//! Locks of open file descriptions (`F_OFD_SETLK`) come as record locks whose owner is the description, but the
//! kernel does not say when they end: no FLUSH names such an owner. [`OwnersByHandle`] remembers who locked
//! through which handle; whoever is left at RELEASE was a description's owner.
//!
//! # Lock order
//! `OwnersByHandle::by_node` and [`Closing`](super::Closing)'s lock are leaves, and taken one after the other; the volume is called with
//! neither.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use rustix::io::Errno;
use sync::Mutex;
use sync::atomic::{AtomicUsize, Ordering};
use volume::{HandleId, Lock, LockFamily, LockKind, NodeId, Volume};

use super::{Cx, handle_id};
use crate::abi::{FileLock, LK_FLOCK, LkIn, LkOut, OFFSET_MAX};
use crate::interrupt::Interrupts;
use crate::reply::{ParkedReply, Reply, Sent};

/// What a request wants.
enum Wish {
    Lock(Lock),
    Unlock(Lock),
}

fn wish(arg: &LkIn) -> Option<Wish> {
    let family = if arg.lk_flags & LK_FLOCK != 0 { LockFamily::Flock } else { LockFamily::Posix };
    let FileLock { start, end, r#type, pid } = arg.lk;
    let kind = i32::try_from(r#type).ok()?;
    let is_unlock = kind == libc::F_UNLCK;
    let kind = if kind == libc::F_WRLCK {
        LockKind::Write
    } else if kind == libc::F_RDLCK || is_unlock {
        LockKind::Read
    } else {
        return None;
    };
    let lock = Lock { family, kind, start, end, owner: arg.owner, pid };
    Some(if is_unlock { Wish::Unlock(lock) } else { Wish::Lock(lock) })
}

pub(super) fn get(cx: &Cx<'_>, reply: Reply<'_>, arg: &LkIn) -> Sent {
    let Some(Wish::Lock(lock)) = wish(arg) else { return reply.error(Errno::INVAL) };
    let found = cx.volume().get_lock(cx.node(), &lock);
    reply.result(found.map(|held| LkOut { lk: held.map_or_else(none, |held| file_lock(&held)) }))
}

fn none() -> FileLock {
    FileLock { r#type: libc::F_UNLCK.cast_unsigned(), ..FileLock::default() }
}

fn file_lock(lock: &Lock) -> FileLock {
    let r#type = match lock.kind {
        LockKind::Read => libc::F_RDLCK,
        LockKind::Write => libc::F_WRLCK,
    };
    // The kernel refuses larger offsets.
    let (start, end) = (lock.start.min(OFFSET_MAX), lock.end.min(OFFSET_MAX));
    FileLock { start, end, r#type: r#type.cast_unsigned(), pid: lock.pid }
}

pub(super) fn set(cx: &Cx<'_>, reply: Reply<'_>, arg: &LkIn) -> Sent {
    match wish(arg) {
        None => reply.error(Errno::INVAL),
        Some(Wish::Unlock(lock)) => reply.unit(unlock(cx, &lock)),
        Some(Wish::Lock(lock)) => {
            remember(cx, arg, &lock);
            reply.unit(set_now(cx, handle_id(arg.fh), &lock))
        }
    }
}

/// Takes a lock without waiting for its holder; but a holder whose file was closed is no longer one.
fn set_now(cx: &Cx<'_>, handle: HandleId, lock: &Lock) -> volume::Result<()> {
    let begun = Instant::now();
    loop {
        let outcome = cx.volume().set_lock(cx.node(), lock);
        let is_refused = matches!(outcome, Err(volume::Error::WouldBlock));
        if !(is_refused && cx.shared.closing.wait(cx.wire_node(), handle, begun, cx.before_wait)) {
            return outcome;
        }
    }
}

/// The answer is sent by the volume's callback, or at once.
pub(super) fn wait(cx: &Cx<'_>, reply: ParkedReply, arg: &LkIn) {
    match wish(arg) {
        None => {
            let _sent = reply.unit(Err(volume::Error::Invalid("kind of lock")));
        }
        Some(Wish::Unlock(lock)) => {
            let _sent = reply.unit(unlock(cx, &lock));
        }
        Some(Wish::Lock(lock)) => {
            remember(cx, arg, &lock);
            let request = (cx.header.unique, cx.header.pid);
            wait_parked(cx.volume(), &cx.shared.interrupts, (cx.node(), &lock), request, reply);
        }
    }
}

/// Waits for a lock without a thread.
pub(crate) fn wait_parked(
    volume: &Arc<Volume>,
    interrupts: &Interrupts,
    (node, lock): (NodeId, &Lock),
    (unique, caller): (u64, u32),
    reply: ParkedReply,
) {
    let done = Box::new(move |result| {
        let _sent = reply.unit(result);
    });
    if let Some(wait) = volume.wait_lock(node, lock, done)
        && interrupts.parked(unique, volume, &wait, caller)
    {
        volume.cancel_lock(&wait);
    }
}

fn unlock(cx: &Cx<'_>, lock: &Lock) -> volume::Result<()> {
    cx.volume().unlock(cx.node(), lock.family, lock.owner, lock.start, lock.end)
}

fn remember(cx: &Cx<'_>, arg: &LkIn, lock: &Lock) {
    cx.shared.closing.locks(cx.wire_node(), handle_id(arg.fh));
    if lock.family == LockFamily::Posix {
        cx.shared.owners.locked(cx.wire_node(), handle_id(arg.fh), lock.owner);
    }
}

/// Who took (or tried to take) record locks through which handle.
#[derive(Debug, Default)]
pub(crate) struct OwnersByHandle {
    by_node: Mutex<HashMap<NodeId, Vec<(HandleId, u64)>>>,
    /// How many nodes are in the map: most closes need not take the lock.
    nodes: AtomicUsize,
}

impl OwnersByHandle {
    fn locked(&self, node: NodeId, handle: HandleId, owner: u64) {
        let mut by_node = self.by_node.lock();
        let owners = by_node.entry(node).or_default();
        if !owners.contains(&(handle, owner)) {
            owners.push((handle, owner));
        }
        // ORDERING: Release, pairs with the Acquire in `is_empty`. A close that must see this lock comes after the
        // answer to the request that took it, which the kernel orders.
        self.nodes.store(by_node.len(), Ordering::Release);
    }

    fn is_empty(&self) -> bool {
        // ORDERING: Acquire, see `locked`.
        self.nodes.load(Ordering::Acquire) == 0
    }

    /// A process closed the file: says whether it may have locks on it.
    pub(crate) fn closed(&self, node: NodeId, owner: u64) -> bool {
        let mut found = false;
        self.retain(node, |(_, other)| {
            found |= other == owner;
            other != owner
        });
        found
    }

    /// The handle is gone: calls `unlock` with each owner that is left.
    pub(crate) fn released(&self, node: NodeId, handle: HandleId, mut unlock: impl FnMut(u64)) {
        let mut left = Vec::new();
        self.retain(node, |(other, owner)| {
            if other == handle {
                left.push(owner);
            }
            other != handle
        });
        left.into_iter().for_each(&mut unlock);
    }

    fn retain(&self, node: NodeId, mut keep: impl FnMut((HandleId, u64)) -> bool) {
        if self.is_empty() {
            return;
        }
        let mut by_node = self.by_node.lock();
        if let Some(owners) = by_node.get_mut(&node) {
            owners.retain(|&owner| keep(owner));
            if owners.is_empty() {
                by_node.remove(&node);
                // ORDERING: Release, as in `locked`.
                self.nodes.store(by_node.len(), Ordering::Release);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = store::ObjectId(7);
    const A: HandleId = HandleId(1);
    const B: HandleId = HandleId(2);

    #[test]
    fn only_owners_that_no_close_named_are_left_at_release() {
        let owners = OwnersByHandle::default();
        let process = 10;
        let description = 20;
        owners.locked(NODE, A, process);
        owners.locked(NODE, B, process);
        owners.locked(NODE, A, description);
        assert!(owners.closed(NODE, process));
        assert!(!owners.closed(NODE, process));
        // The process locks again through B before A's release arrives: that lock stays.
        owners.locked(NODE, B, process);
        let mut unlocked = Vec::new();
        owners.released(NODE, A, |owner| unlocked.push(owner));
        assert_eq!(unlocked, [description]);
        assert!(!owners.is_empty());
        assert!(owners.closed(NODE, process));
        assert!(owners.is_empty());
    }

    #[test]
    fn ends_of_locks_fit_the_kernel() {
        let lock = Lock {
            family: LockFamily::Posix,
            kind: LockKind::Write,
            start: 5,
            end: u64::MAX,
            owner: 1,
            pid: 9,
        };
        let wire = file_lock(&lock);
        assert_eq!((wire.start, wire.end, wire.pid), (5, OFFSET_MAX, 9));
        assert_eq!(none().r#type, 2);
    }
}
