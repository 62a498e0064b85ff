//! The end of a mount that left its namespace: the default way, and the interface by which
//! experiments try others.
//!
//! The default does not wait where no other thread holds the mount. Otherwise a grace period of
//! *its own* namespace has to pass. For a superblock that goes for good, and may have much to
//! write, the default begins that grace period at once and flushes meanwhile; then it waits only
//! for the rest of the grace period.
//!
//! The thread that asked for the unmount runs the clean-ups before the call returns, with no lock
//! held; where several may have to wait, threads of the call's own help.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use rcu::{Cookie, Domain, DomainOptions};
use sync::{Mutex, thread};

use crate::mount::Mount;
use crate::protocol::{Put, UmountUsers};
use crate::superblock::SuperblockRef;

/// Superblocks that one call ends at the same time, and the stacks of the threads for that.
const SHUTDOWN_THREADS: usize = 64;
const STACK: usize = 256 * 1024;

/// A way of ending mounts that left their namespaces.
pub trait Teardown: fmt::Debug + Send + Sync + 'static {
    /// Whether an unmount that finds the count to be 1 may take the clean-up at once.
    fn may_be_alone(&self) -> bool {
        true
    }

    /// The domain of the readers of a new namespace: its own, or one shared with others.
    fn domain(&self, options: &DomainOptions) -> Domain {
        Domain::with_options(options.clone())
    }

    /// Ends all of them.
    fn finish(&self, gone: Vec<UmountedMount>, why: UmountReason);
}

/// The reason why mounts are ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UmountReason {
    /// A synchronous unmount.
    Sync,
    /// A lazy one.
    Lazy,
    /// The end of a namespace.
    End,
}

/// A mount that left its namespace, and whose reference the unmount has not put yet; it must be
/// ended by one of the methods that take it.
#[derive(Debug)]
#[must_use]
pub struct UmountedMount {
    pub(crate) mount: Arc<Mount>,
    pub(crate) users: UmountUsers,
    /// Taken after the mount had left, with a full barrier: when this grace period has passed, no
    /// section is left that could have found it.
    pub(crate) stamp: Cookie,
}

/// The right to clean up.
#[derive(Debug)]
#[must_use]
pub struct FinalPut(Arc<Mount>);

impl UmountedMount {
    /// Whether no other thread had a reference.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        self.users == UmountUsers::None
    }

    /// The number of references, the unmount's own included.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.mount.refs.sum()
    }

    /// The readers that may have found it.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.mount.core.domain
    }

    /// The grace period after it left.
    pub fn stamp(&self) -> Cookie {
        self.stamp
    }

    /// The superblock that was mounted.
    #[must_use]
    pub fn superblock(&self) -> &SuperblockRef {
        &self.mount.superblock
    }

    /// Whether it has a pin, which may stay for any time.
    #[must_use]
    pub fn is_pinned(&self) -> bool {
        self.mount.refs.is_pinned()
    }

    /// Gives the unmount's reference back, however many others there are.
    pub fn put(self) -> Option<FinalPut> {
        let mount = self.mount;
        (mount.refs.put_slow(&mount.core.lock, 0) == Put::Last).then(|| FinalPut(mount))
    }

    /// Like [`put`](Self::put), after `grace_period` if other threads may have a reference. A
    /// synchronous unmount waits until it is alone.
    pub fn complete(self, is_sync: bool, grace_period: impl FnOnce()) -> Option<FinalPut> {
        self.complete_with(is_sync, |_, _| grace_period())
    }

    /// Like [`complete`](Self::complete); `grace_period` gets the domain, and the grace period in
    /// it.
    pub fn complete_with(
        self,
        is_sync: bool,
        grace_period: impl FnOnce(&Domain, Cookie),
    ) -> Option<FinalPut> {
        let mount = self.mount;
        let waits = &mount.core.counters.waits;
        let grace_period = || {
            waits.add(1);
            grace_period(&mount.core.domain, self.stamp);
        };
        let put = mount.refs.complete(&mount.core.lock, self.users, is_sync, grace_period);
        (put == Put::Last).then(|| FinalPut(mount))
    }
}

impl FinalPut {
    /// Shuts the superblock down if this was its last mount.
    pub fn clean_up(self) {
        self.0.clean_up();
    }

    /// Cleans up all of them, and returns when all are done; superblocks that may have to wait are
    /// ended beside each other.
    pub fn clean_up_all(all: Vec<Self>) {
        let ending = all.into_iter().filter_map(|last| last.0.superblock.put());
        run_concurrently(ending.collect(), |superblock| superblock.may_wait(), |one| one.shutdown());
    }
}

/// Calls `end` with all of them, and returns when all calls have. The caller makes the calls that
/// never wait; several threads make the others, so that one that hangs does not hold up the rest,
/// as long as there are not more of them than threads.
fn run_concurrently<T: Send>(all: Vec<T>, may_wait: impl Fn(&T) -> bool, end: impl Fn(T) + Sync) {
    let (slow, quick): (Vec<T>, Vec<T>) = all.into_iter().partition(may_wait);
    quick.into_iter().for_each(&end);
    let others = slow.len().saturating_sub(1).min(SHUTDOWN_THREADS - 1);
    let queue = Mutex::new(slow.into_iter());
    thread::run_scoped(others, STACK, || {
        while let Some(one) = next(&queue) {
            end(one);
        }
    });
}

fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    queue.lock().next()
}

/// Mounts of one superblock that go together.
struct SuperblockUmount(Vec<UmountedMount>);

impl SuperblockUmount {
    fn all(gone: Vec<UmountedMount>) -> Vec<Self> {
        if gone.len() == 1 {
            return vec![Self(gone)];
        }
        let mut all: Vec<Self> = Vec::new();
        let mut by_superblock = HashMap::new();
        for gone in gone {
            let at = *by_superblock.entry(gone.superblock().address()).or_insert(all.len());
            if at == all.len() {
                all.push(Self(Vec::new()));
            }
            all[at].0.push(gone);
        }
        all
    }

    fn may_wait(&self) -> bool {
        self.0[0].superblock().superblock().may_wait()
    }

    /// No thread will use the superblock for long: these are its last mounts, nothing of it is
    /// open, and every reference is that of a walk that will be gone soon.
    fn is_last_umount(&self) -> bool {
        let superblock = self.0[0].superblock();
        superblock.is_about_to_end(self.0.len()) && !self.0.iter().any(UmountedMount::is_pinned)
    }

    fn end(self, is_sync: bool) {
        if !self.0.iter().all(UmountedMount::is_alone) && self.may_wait() && self.is_last_umount() {
            for gone in self.0.iter().filter(|gone| !gone.is_alone()) {
                // The stamp's own, or a later one: no thread has to wait for it to be begun.
                let _ = gone.domain().start_poll_expedited();
            }
            self.0[0].superblock().superblock().flush();
        }
        self.0.into_iter().filter_map(|gone| complete(gone, is_sync)).for_each(FinalPut::clean_up);
    }
}

/// Ends mounts on which other threads may have a reference. Kept apart, so that an unmount without
/// others does not reserve stack for what is needed here.
#[cold]
#[inline(never)]
fn finish_used(gone: Vec<UmountedMount>, is_sync: bool) {
    run_concurrently(SuperblockUmount::all(gone), SuperblockUmount::may_wait, |one| one.end(is_sync));
}

fn complete(gone: UmountedMount, is_sync: bool) -> Option<FinalPut> {
    gone.complete_with(is_sync, |domain, stamp| domain.cond_synchronize_expedited(stamp))
}

/// The default.
#[derive(Debug, Clone, Copy)]
pub struct OnDemand;

impl Teardown for OnDemand {
    fn finish(&self, gone: Vec<UmountedMount>, why: UmountReason) {
        let is_sync = why == UmountReason::Sync;
        if !gone.iter().all(UmountedMount::is_alone) {
            return finish_used(gone, is_sync);
        }
        // As most unmounts are: there is nothing to be collected, and no other mount to be ended
        // beside.
        if gone.len() == 1 {
            return gone.into_iter().filter_map(|gone| complete(gone, is_sync)).for_each(FinalPut::clean_up);
        }
        FinalPut::clean_up_all(gone.into_iter().filter_map(|gone| complete(gone, is_sync)).collect());
    }
}
