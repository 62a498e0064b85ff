//! The end of all that is attached.
//!
//! Threads of this module end the volumes, several at the same time. A volume whose store hangs
//! keeps its thread. So that it holds up no other volume, those that are known to hang come last,
//! and for each that turns out to hang another thread is made.
//!
//! A volume that was given up, before or meanwhile, is waited for only as long as calls of its
//! store that were under way then may take: its thread stays with the store. The thread that gave
//! it up reports what was lost.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use sync::{Condvar, Mutex};

use super::attached_volume::AttachedVolume;
use super::mount_tree::MountTree;

/// Volumes that are ended at the same time, beside those whose stores hang; and the stacks of the
/// threads for that.
const ENDERS: usize = 64;
const STACK: usize = 256 << 10;
/// A store that has not answered a call for this long holds up its thread.
const SILENT: Duration = Duration::from_millis(100);

/// Volumes that are being ended.
#[derive(Default)]
struct Ending {
    queue: Mutex<Queue>,
    /// A thread has ended.
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Arc<AttachedVolume>>,
    in_hand: Vec<Arc<AttachedVolume>>,
    threads: usize,
}

impl MountTree {
    /// Ends everything that is attached, and waits for it, but for volumes that were given up and
    /// whose store does not answer.
    pub(crate) fn end(&self) {
        // Open files may keep a volume, and other threads may be ending it: no client can use it
        // any more.
        end_all(self.volumes());
        let views = [vec![Arc::clone(self.first())], self.clones()].concat();
        for error in views.iter().filter_map(|view| view.namespace.shut().err()) {
            tracing::error!(%error, "cannot end the attached volumes");
        }
        // Volumes that were attached meanwhile.
        end_all(self.volumes());
    }
}

/// Ends these volumes, and returns when all have ended that are to be waited for.
fn end_all(mut volumes: Vec<Arc<AttachedVolume>>) {
    // Checkers have no store that hangs.
    if cfg!(any(loom, shuttle)) {
        return volumes.iter().for_each(|one| mounts::Superblock::shutdown(&**one));
    }
    volumes.retain(|one| !one.is_abandoned());
    if volumes.is_empty() {
        return;
    }
    volumes.sort_by_cached_key(|one| one.volume.stalled().is_some());
    let ending = Arc::<Ending>::default();
    let mut queue = ending.queue.lock();
    queue.waiting = volumes.into();
    sync::thread::will_make_threads();
    loop {
        if queue.waiting.is_empty() && queue.in_hand.iter().all(|one| one.is_abandoned()) {
            return;
        }
        if queue.has_room() {
            let its = Arc::clone(&ending);
            let spawned = thread::Builder::new().stack_size(STACK).spawn(move || its.work());
            if spawned.is_ok() {
                queue.threads += 1;
                continue;
            }
            if queue.threads == 0 {
                // Without threads, one after the other.
                queue.threads += 1;
                drop(queue);
                ending.work();
                queue = ending.queue.lock();
                continue;
            }
        }
        // Also where the host gives no more threads now: the existing ones need the lock to go on.
        ending.changed.wait_until(&mut queue, Instant::now() + SILENT);
    }
}

impl Queue {
    /// Whether another thread is due.
    fn has_room(&self) -> bool {
        let then = Instant::now().checked_sub(SILENT);
        let hangs = |one: &&Arc<AttachedVolume>| then.is_some_and(|then| one.volume.has_call_since(then));
        let hanging = self.in_hand.iter().filter(hangs).count();
        !self.waiting.is_empty()
            && self.threads < (ENDERS + hanging).min(self.waiting.len() + self.in_hand.len())
    }
}

impl Ending {
    /// Ends what is queued.
    fn work(&self) {
        let mut queue = self.queue.lock();
        while let Some(one) = queue.waiting.pop_front() {
            queue.in_hand.push(Arc::clone(&one));
            drop(queue);
            if catch_unwind(AssertUnwindSafe(|| mounts::Superblock::shutdown(&*one))).is_err() {
                tracing::error!(volume = one.volume.name(), "the end of an attached volume panicked");
            }
            queue = self.queue.lock();
            queue.in_hand.retain(|other| !Arc::ptr_eq(other, &one));
        }
        queue.threads -= 1;
        drop(queue);
        self.changed.notify_all();
    }
}
