//! Aborting a volume, and what its report can contain.
//!
//! Purpose: a caller that aborts a volume does not wait for its store any longer. Calls under way
//! at that moment get [`CALLS`] to return, each from its own beginning, so that data which an
//! answering store has written is not reported as lost; after that nothing here waits for the
//! store. Threads of their own, which the store may keep, make the calls that may hang for ever:
//! the store's sync, the names of files, and closing what was open (`wt-given-up`): close(2) of a
//! file on a server that hangs waits for the server.
//!
//! A store of which no call hung when it was aborted may be healthy: its sync and its close get
//! `HEALTHY`, so that its next user finds it durable and free.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use rustix::thread::Pid;
use store::ErrorKind;
use sync::atomic::{AtomicUsize, Ordering};
use sync::mutant::is_on;
use sync::{Mutex, thread};

use crate::core::Core;
use crate::handles::{DirHandle, FileHandle, TakenHandles};
use crate::inode::{Inode, OpenFile};
use crate::lifecycle::state::{DrainReport, Unwritten};
use crate::volume::Volume;

/// How long calls may take that are under way when a volume is aborted.
pub const CALLS: Duration = Duration::from_millis(40);
/// How long the last calls of a store that shows no sign of hanging may take.
const HEALTHY: Duration = Duration::from_secs(1);

/// How long the store may take to name the files that were not written: all of them, and each if
/// the volume is aborted. A moment for a person, and enough for a store that answers on a machine
/// that is busy.
const NAMING: Duration = Duration::from_secs(1);
const NAMING_FORCED: Duration = CALLS;
/// How often the caller checks whether the store is at a name.
const LOOK: Duration = Duration::from_millis(5);

/// Stores that were aborted and whose files are still being closed.
// ORDERING: Relaxed throughout, a figure for a person.
static CLOSING: AtomicUsize = AtomicUsize::new(0);

/// How many stores that were aborted are still being closed, each by a thread that waits for its
/// store.
#[must_use]
pub fn closing() -> usize {
    CLOSING.load(Ordering::Relaxed)
}

/// A store that is still being closed.
struct Closing;

impl Closing {
    fn new() -> Self {
        CLOSING.fetch_add(1, Ordering::Relaxed);
        Self
    }
}

impl Drop for Closing {
    fn drop(&mut self) {
        CLOSING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The files, directories and inodes that a volume has of its store.
pub(crate) struct StoreResources {
    files: TakenHandles<FileHandle>,
    dirs: TakenHandles<DirHandle>,
    inodes: Vec<Arc<Inode>>,
    open: Vec<OpenFile>,
    core: Arc<Core>,
}

impl StoreResources {
    /// Gives all of it back.
    pub(crate) fn close(self) {
        let Self { files, dirs, inodes, open, core } = self;
        drop((files, dirs, inodes, open));
        // A volume that was aborted has not waited for it before.
        core.deferred_close.wait(|| false);
        core.store.close();
    }
}

impl Volume {
    /// Aborts the volume: callers that wait get an error, a drain ends with the data written by
    /// then.
    pub fn abort(&self) {
        self.core.abort();
    }

    /// Whether it was aborted.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.core.is_aborted()
    }

    /// Takes the files, directories and inodes out of the volume.
    pub(crate) fn take_resources(&self) -> StoreResources {
        // The lists of dirty inodes keep the inodes of files that were not written: their open
        // files are taken out here.
        let open = self.dirty_inodes().iter().filter_map(|inode| inode.take_file()).collect();
        StoreResources {
            files: self.files.take(),
            dirs: self.dirs.take(),
            inodes: self.core.table.take(),
            open,
            core: Arc::clone(&self.core),
        }
    }

    /// Closes the files, directories and store of a volume that was aborted; does not wait for a
    /// store that hangs.
    pub(crate) fn close_aborted(&self) {
        let take_resources = self.take_resources();
        if cfg!(any(loom, shuttle)) {
            return take_resources.close();
        }
        let patience = self.patience();
        let (tell, told) = channel();
        let kept = Arc::new(Mutex::new(Some(take_resources)));
        let (taken, closing) = (Arc::clone(&kept), Closing::new());
        let close = move || {
            let take_resources = taken.lock().take();
            take_resources.into_iter().for_each(StoreResources::close);
            drop(closing);
            let _nobody_waits_any_more = tell.send(());
        };
        thread::will_make_threads();
        if let Err(error) = std::thread::Builder::new().name("wt-given-up".to_owned()).spawn(close) {
            tracing::warn!(volume = self.name(), %error, "cannot start a thread that closes the store: its files stay open");
            // Until the process ends: closing them here might hang.
            let _kept: &'static _ = Box::leak(Box::new(kept));
            return;
        }
        if told.recv_timeout(patience).is_err() {
            // A store that can end its calls does: the threads that wait for it go on.
            self.core.store.abort();
            tracing::warn!(
                volume = self.name(),
                "the store's files are still being closed: it does not answer"
            );
        }
    }

    /// How long the store of a volume that was aborted is waited for.
    fn patience(&self) -> Duration {
        if self.core.stall.is_silent_for(CALLS) { CALLS } else { HEALTHY }
    }

    /// The report on a volume that was aborted and whose end waits for its store.
    #[must_use]
    pub fn abort_report(&self) -> DrainReport {
        let looked_first = is_on("volume-report-late").then(|| self.core.unsynced.is_any(|_| true));
        let unwritten = self.unwritten();
        // After that: data of a call that returns meanwhile is noted as not durable before it is
        // taken for written.
        let is_unknown = looked_first.unwrap_or_else(|| self.core.unsynced.is_any(|_| true));
        let sync_error = is_unknown.then(|| self.abort_error(unwritten.is_empty()));
        let seen = DrainReport { unwritten, sync_error, ..DrainReport::default() };
        // In this order: where the store was closed while it was asked for names, its end has them.
        self.lifecycle.final_report.lock().clone().unwrap_or(seen)
    }

    /// Whether the end of a volume that was aborted `then` is not to be waited for: calls that
    /// were under way then still are, and each has had [`CALLS`], counted from its own beginning. A
    /// call that had been under way for longer when the volume was aborted gets no time beyond
    /// that.
    #[must_use]
    pub fn is_left_to_its_store(&self, then: Instant) -> bool {
        self.core.stall.are_all_late(then, CALLS)
    }

    /// Whether the store has not answered yet a call that was under way then.
    #[must_use]
    pub fn has_call_since(&self, then: Instant) -> bool {
        self.core.stall.has_call_since(then)
    }

    fn abort_error(&self, is_all_written: bool) -> store::Error {
        let bytes = self.core.not_known_durable();
        let what = if is_all_written { "everything was written" } else { "given up" };
        let late = match bytes {
            0 => format!("{what}; changes of names and attributes are not known to be durable"),
            bytes => format!("{what}; up to {bytes} bytes are not known to be durable"),
        };
        store::Error::with(ErrorKind::TimedOut, "sync", late)
    }

    /// The store's own sync. A volume that was aborted does not wait long for it.
    pub(crate) fn make_durable(&self) -> store::Result<()> {
        if !self.core.is_aborted() {
            let epoch = self.core.begin_sync();
            self.core.settle_inherited()?;
            self.core.store.sync()?;
            self.core.unsynced.end(epoch);
            return Ok(());
        }
        let (tell, told) = channel();
        let (core, patience) = (Arc::clone(&self.core), self.patience());
        // On a thread of its own, which a store that hangs may keep.
        let sync = move || {
            let epoch = core.begin_sync();
            let synced = core.settle_inherited().and_then(|()| core.store.sync());
            if synced.is_ok() {
                core.unsynced.end(epoch);
            }
            drop(tell.send(synced));
        };
        let late = || self.abort_error(self.dirty_inodes().iter().all(|inode| inode.pending().is_none()));
        thread::will_make_threads();
        std::thread::Builder::new().spawn(sync).map_err(|_| late())?;
        told.recv_timeout(patience).unwrap_or_else(|_| Err(late()))
    }

    /// The data that is not on the store now. The store is asked for the names, for a moment only:
    /// files whose names do not come are reported by their numbers.
    #[must_use]
    pub fn unwritten(&self) -> Vec<Unwritten> {
        let inodes = self.dirty_inodes();
        let (inodes, mut files): (Vec<_>, Vec<_>) = inodes
            .into_iter()
            .filter_map(|inode| inode.pending().map(|pending| (Arc::clone(&inode), inode.unwritten(pending))))
            .unzip();
        for (file, path) in files.iter_mut().zip(self.paths_of(inodes)) {
            file.path = path.or_else(|| file.path.take());
        }
        files
    }

    /// The names of these inodes, in their order, as many as come in time.
    fn paths_of(&self, inodes: Vec<Arc<Inode>>) -> Vec<Option<PathBuf>> {
        if inodes.is_empty() {
            return Vec::new();
        }
        let store = Arc::clone(&self.core.store);
        // Checkers know their own threads only, and have no store that hangs.
        if cfg!(any(loom, shuttle)) {
            return inodes.iter().map(|inode| store.path_of(inode.id)).collect();
        }
        let (tell, told) = channel();
        let asked = Arc::new(Mutex::new(None::<(Pid, Instant)>));
        let asks = Arc::clone(&asked);
        // On a thread of its own, which a store that hangs may keep.
        let ask = move || {
            let thread = rustix::thread::gettid();
            for inode in inodes {
                *asks.lock() = Some((thread, Instant::now()));
                let path = store.path_of(inode.id);
                *asks.lock() = None;
                if tell.send(path).is_err() {
                    return;
                }
            }
        };
        thread::will_make_threads();
        if let Err(error) = std::thread::Builder::new().spawn(ask) {
            tracing::warn!(volume = self.name(), %error, "cannot start a thread that asks the store for names");
        }
        let is_aborted = self.core.is_aborted();
        // A busy machine is not taken for a store that hangs: one call has to last for so long, and
        // the thread in it has to wait for something other than a processor.
        let hangs = || {
            let asked = *asked.lock();
            is_aborted
                && asked.is_some_and(|(thread, since)| since.elapsed() >= NAMING_FORCED && sleeps(thread))
        };
        let until = Instant::now() + NAMING;
        let next = || loop {
            let left = until.saturating_duration_since(Instant::now());
            match told.recv_timeout(left.min(LOOK)) {
                Ok(path) => return Some(path),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) if !left.is_zero() && !hangs() => {}
                Err(_) => return None,
            }
        };
        std::iter::from_fn(next).collect()
    }
}

/// Whether a thread of this process waits for something other than a processor.
fn sleeps(thread: Pid) -> bool {
    let stat = std::fs::read(format!("/proc/self/task/{thread}/stat")).unwrap_or_default();
    // The name, in parentheses, may contain any bytes. The state follows it.
    let state = stat.iter().rposition(|byte| *byte == b')').and_then(|end| stat.get(end + 2));
    state.is_some_and(|state| *state != b'R')
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_on_a_processor_does_not_sleep() {
        assert!(!sleeps(rustix::thread::gettid()));
    }

    #[test]
    fn a_thread_that_waits_for_an_answer_sleeps() {
        let (tell_id, told_id) = channel();
        let (answer, answered) = channel::<()>();
        let waiting = std::thread::spawn(move || {
            tell_id.send(rustix::thread::gettid()).unwrap();
            let _ended = answered.recv();
        });
        let thread = told_id.recv().unwrap();
        // It may not have come to its wait yet.
        while !sleeps(thread) {
            std::thread::yield_now();
        }
        drop(answer);
        waiting.join().unwrap();
    }
}
