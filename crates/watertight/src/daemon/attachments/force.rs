//! Volumes that are given up.
//!
//! A caller that gives one up waits for its store no longer than calls may take that are under way
//! then ([`CALLS`]); threads that may be lost make the requests to the store. Each volume is
//! reported as ended, with its lost data, though its end itself may go on for as long as the store
//! is silent.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use fuse::Detach;
use sync::Mutex;
use volume::abort::CALLS;

use super::types::{Attached, Attachments, Mountpoint};
use crate::host::spawn_for_result;

/// How long a volume that is given up may take to end.
const GIVE_UP: Duration = Duration::from_secs(2);
/// How often the caller checks whether it has.
const LOOK: Duration = Duration::from_millis(5);
/// Threads that collect the lost data of volumes that were given up together, and their stacks.
const REPORTERS: usize = 15;
const STACK: usize = 256 << 10;
/// How often a thread that waits for a store checks whether the volume was given up meanwhile.
const GIVEN_UP_LOOK: Duration = Duration::from_millis(50);

impl Attachments {
    /// Gives all of them up.
    pub fn force(&self) {
        for one in self.all() {
            one.give_up(&self.tree);
            one.volume.abort();
        }
    }

    /// Whether any volume that has not ended has a call under way that was under way `then`.
    #[must_use]
    pub fn has_call_since(&self, then: Instant) -> bool {
        self.all().iter().any(|one| one.volume.has_call_since(then))
    }

    /// Whether no volume that was given up `then` and has not ended is worth waiting for: its calls
    /// have had their time.
    #[must_use]
    pub fn are_left_to_their_stores(&self, then: Instant) -> bool {
        self.all().iter().all(|one| one.volume.report().is_some() || one.volume.is_left_to_its_store(then))
    }

    /// Whether any is known to be stalled.
    #[must_use]
    pub fn is_any_stalled(&self) -> bool {
        self.all().iter().any(|one| one.volume.is_known_to_stall())
    }

    /// Whether any volume has not ended and had no call under way then.
    #[must_use]
    pub fn is_any_at_work(&self, then: Instant) -> bool {
        let has_ended = |one: &Attached| one.volume.report().is_some();
        self.all().iter().any(|one| !has_ended(one) && !one.volume.has_call_since(then))
    }

    /// Records the end of volumes that were given up, and whose ends wait for their stores.
    pub fn give_up_hanging(&self) {
        Self::tell_given_up(&self.all());
    }

    pub(super) fn tell_given_up(all: &[Arc<Attached>]) {
        let left = Mutex::new(all.iter());
        // Beside each other: each store is asked for names.
        sync::thread::run_scoped(all.len().saturating_sub(1).min(REPORTERS), STACK, || {
            while let Some(one) = next(&left) {
                one.tell_given_up();
            }
        });
    }

    /// The volume that is attached uppermost at a path; where a store on the way hangs, the one
    /// that was seen there last. That one may have been renamed since: unless a store is known to
    /// stall, the path is looked up for as long as a volume may take to end. Also one that no path
    /// leads to any more, and that has not ended: its detach waits for its store, or open files keep
    /// it. With it the place that was found, which may be a directory's that is seen twice.
    pub(super) fn at_for_force(
        self: &Arc<Self>,
        mountpoint: &Mountpoint,
        path: &Path,
    ) -> Result<(Option<Arc<Attached>>, Option<fuse::Attached>), String> {
        let (all, there, below) = (Arc::clone(self), mountpoint.clone(), path.to_owned());
        let look = move || there.tree.found_at(&below).ok().map(|found| (all.of(&found), found));
        let found = spawn_for_result("look", look).map_err(|e| e.to_string())?;
        let known = || self.list.lock().known_at(&mountpoint.join(path));
        let found = match found.recv_timeout(CALLS) {
            Ok(found) => Ok(found),
            Err(_)
                if (mountpoint.tree.is_stalled() || self.is_any_stalled())
                    && known().is_some_and(|one| one.is_seen()) =>
            {
                return Ok((known(), None));
            }
            Err(_) => found.recv_timeout(GIVE_UP),
        };
        let hangs = found.is_err();
        if let Some((one, found)) = found.ok().flatten() {
            return Ok((one, Some(found)));
        }
        Ok((known().filter(|one| hangs || !one.is_seen()), None))
    }

    pub(super) fn detach_by_force(
        &self,
        mountpoint: &Mountpoint,
        path: &Path,
        (attached, found): (Option<&Arc<Attached>>, Option<fuse::Attached>),
    ) -> Result<(), String> {
        let begun = Instant::now();
        let known = attached.map(Arc::clone);
        // First of all, and without waiting: callers that wait for it get an error.
        known.iter().for_each(|one| one.give_up(&mountpoint.tree));
        let (tree, path) = (mountpoint.tree.clone(), path.to_owned());
        let detach = move || {
            let is_unseen = || known.as_ref().is_some_and(|one| !one.is_seen());
            let result = match found {
                // That place, and no other of the volume's.
                Some(found) => tree.detach_by_force(&found),
                None if is_unseen() || known.as_ref().is_some_and(|one| one.detach_by_force(&tree)) => Ok(()),
                None => tree.detach(&path, Detach::Force),
            };
            // Another caller has taken it away meanwhile.
            if is_unseen() { Ok(()) } else { result }
        };
        let done = spawn_for_result("give up", detach).map_err(|e| e.to_string())?;
        let mut is_away = false;
        loop {
            match done.recv_timeout(LOOK) {
                Ok(result) => {
                    result.map_err(|error| error.to_string())?;
                    is_away = true;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) if is_away => std::thread::sleep(LOOK),
                Err(RecvTimeoutError::Disconnected) => {
                    // It is given up all the same.
                    attached.filter(|one| one.volume.is_aborted()).iter().for_each(|one| one.tell_given_up());
                    return Err(panicked());
                }
            }
            let Some(one) = attached else {
                if is_away || begun.elapsed() >= GIVE_UP {
                    return Ok(());
                }
                continue;
            };
            // In another place still, or ended.
            if is_away && (one.is_seen() || one.how_it_ended().is_some()) {
                return Ok(());
            }
            // Until then something may be written yet, or the path is still there.
            let hangs = !one.is_seen() && one.volume.is_left_to_its_store(begun);
            if hangs || begun.elapsed() >= GIVE_UP {
                break;
            }
        }
        // A store that hangs keeps its threads; its data is given up.
        attached.filter(|one| one.volume.is_aborted()).iter().for_each(|one| one.tell_given_up());
        Ok(())
    }
}

/// Does `work`, which may have to wait for the volume's store, by another thread of the control
/// server's: one that rests has its memory at hand, where a new one would look for some among all
/// that thousands of volumes have left. None: the volume was given up meanwhile, and the thread
/// waits for as long as the store likes. Only from the control server's blocking threads.
pub(super) fn unless_given_up<T: Send + 'static>(
    volume: &Attached,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<Option<T>, String> {
    let (told, done) = channel();
    let step = tracing::Span::current();
    let work = move || {
        let _step = step.entered();
        drop(told.send(work()));
    };
    drop(tokio::runtime::Handle::current().spawn_blocking(work));
    loop {
        match done.recv_timeout(GIVEN_UP_LOOK) {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Timeout) if volume.how_it_ended().is_none() => {}
            // Ended by itself, just now: its detach is about to return.
            Err(RecvTimeoutError::Timeout) if volume.has_returned() => {}
            Err(RecvTimeoutError::Disconnected) if !volume.volume.is_aborted() => return Err(panicked()),
            Err(_) => return Ok(None),
        }
    }
}

fn panicked() -> String {
    "the detach panicked; see the mount process's log".to_owned()
}

fn next<T>(queue: &Mutex<impl Iterator<Item = T>>) -> Option<T> {
    queue.lock().next()
}
