//! Hears, by a dirty page, the syncs that the kernel does not report.
//!
//! Purpose: kernels before 6.18 send no SYNCFS to `fuseblk`. But sync(2), syncfs(2), FIFREEZE and a
//! remount to read-only write the dirty pages of the block device below a file system, and wait for
//! these writes. Where the daemon serves that device (module `mount::sync_device`), it keeps a page
//! of it dirty while the volume may have something that is not durable. The write of the page then
//! shows the daemon that a process syncs, and that process waits for the daemon's answer to the
//! write.
//!
//! # Whose write it is
//! The kernel's flusher also writes pages that have been dirty for long
//! (`vm.dirty_expire_centisecs`), and so does a host that is short of memory. Neither is a sync,
//! and must not have the volume written before it is due. The write itself does not say why it is
//! made. But a process that syncs is in a system call until the answer, and `/proc` shows it
//! (module `callers`). So on each write:
//! 1. Is a process in such a call? Then it is a sync: all is made durable, and the write answered.
//! 2. Else another page is made dirty, and *then* `/proc` is checked again, for a while
//!    ([`WHILE`]). A sync that began before that page was dirty is still in the call; a sync that
//!    begins later has that page written. If no process is in such a call, it was the flusher. The
//!    while is for a host that is short of memory: its flusher would come again at once.
//!
//! Where `/proc` does not show every process of the host, each write is taken for a sync.
//!
//! While files are open, a page is always kept dirty: data that is written through a mapping stays
//! with the kernel until a sync, and nothing reports that it was changed.
//!
//! # Access
//! `state` by any thread. `device` by its mutex, which is held while a page is dirtied (memory
//! only; the kernel may slow down a thread that dirties pages, see [`SyncPage::new`]); never while
//! a store is called.
//!
//! # Lock order
//! `device` is a leaf.
//!
//! # Orderings
//! P1: a thread that changes something does so, then reads `state`, then answers its caller. A
//! thread that notices a sync sets `state` to [`CLEAN`], then has all written. The change and the
//! writing meet under the volume's locks: where the writing came first and missed the change,
//! `state` was clean before the change, and the changing thread sees that and dirties a page before
//! the answer.

mod callers;
pub(crate) mod detector;
mod processes;
#[cfg(all(test, shuttle))]
mod schedules;

use std::fmt;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU8, Ordering};
use sync::mutant::is_on;

/// No page is dirty, or only pages that are being written.
const CLEAN: u8 = 0;
/// A thread is making one dirty.
const BEGUN: u8 = 1;
/// One is dirty.
const DIRTY: u8 = 2;

/// The device below the mount.
pub(crate) trait Device: fmt::Debug + Send + Sync {
    /// Makes a page of it dirty, another one each time.
    fn dirty_a_page(&mut self) -> io::Result<()>;
}

/// How long a process that syncs is looked for before a write is taken for the flusher's.
const WHILE: Duration = Duration::from_secs(1);

/// Says whether a process may be in a system call that waits for dirty pages of the device, now or
/// within the given time.
pub(crate) type Callers = Box<dyn Fn(Duration) -> bool + Send + Sync>;

/// The volumes that a sync makes durable.
pub(crate) trait Volumes {
    /// Whether something may not be durable.
    fn has_undurable(&self) -> bool;
    /// Whether files are open.
    fn has_open_files(&self) -> bool;
    /// Makes all durable.
    fn sync(&self) -> Result<(), Errno>;
}

/// The page, or the pages in turn, of one mount.
pub(crate) struct SyncPage {
    state: AtomicU8,
    /// None at the end, and where the kernel was seen to send SYNCFS.
    device: Mutex<Option<Box<dyn Device>>>,
    callers: Callers,
    is_off: AtomicBool,
    has_heard: AtomicBool,
    has_failed: AtomicBool,
}

impl fmt::Debug for SyncPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncPage").field("state", &self.state).finish_non_exhaustive()
    }
}

impl SyncPage {
    /// The page of this device. The threads that dirty pages are to be `PR_SET_IO_FLUSHER`: a
    /// thread that serves a device must not wait for memory that is only free once that device has
    /// answered.
    pub(crate) fn new(device: Box<dyn Device>, callers: Callers) -> Self {
        Self {
            state: AtomicU8::new(CLEAN),
            device: Mutex::new(Some(device)),
            callers,
            is_off: AtomicBool::new(false),
            has_heard: AtomicBool::new(false),
            has_failed: AtomicBool::new(false),
        }
    }

    /// To be called after a change and before the caller that made it gets its answer.
    pub(crate) fn note_change(&self) {
        // ORDERING: Acquire, pairs with the Release below: the page is dirty when this reads that
        // it is. See P1; were `state` read before the change, the answer to a sync could miss it.
        if self.state.load(Ordering::Acquire) != DIRTY {
            self.dirty();
        }
    }

    fn dirty(&self) {
        let mut device = self.device.lock();
        // ORDERING: Acquire, as in `note_change`: another thread may have dirtied a page while this
        // one waited for the lock.
        if self.state.load(Ordering::Acquire) == DIRTY {
            return;
        }
        let Some(pages) = device.as_mut() else { return };
        let begun = if is_on("page-dirty-too-early") { DIRTY } else { BEGUN };
        // ORDERING: Relaxed: only the holder of the lock sets it to anything but CLEAN, and
        // `written` comes after the page is dirty.
        self.state.store(begun, Ordering::Relaxed);
        match pages.dirty_a_page() {
            // It may have been written already; then the next change dirties another.
            // ORDERING: Release: see `note_change`. Relaxed on failure, nothing is read then.
            Ok(()) if !is_on("page-written-meanwhile") => {
                let _written_meanwhile =
                    self.state.compare_exchange(BEGUN, DIRTY, Ordering::Release, Ordering::Relaxed);
            }
            // ORDERING: as above.
            Ok(()) => self.state.store(DIRTY, Ordering::Release),
            Err(error) => {
                // ORDERING: Relaxed: a thread that reads it checks again with the lock.
                self.state.store(CLEAN, Ordering::Relaxed);
                // ORDERING: Relaxed, only that the log has it once.
                if !self.has_failed.swap(true, Ordering::Relaxed) {
                    tracing::error!(%error, "syncs of the mount go unnoticed: cannot write a page of its device");
                }
            }
        }
    }

    /// The kernel writes the page: the answer to that write.
    pub(crate) fn written(&self, volumes: &dyn Volumes) -> Result<(), Errno> {
        // ORDERING: Relaxed: at the end all is made durable anyway.
        if self.is_off.load(Ordering::Relaxed) {
            return Ok(());
        }
        if !is_on("page-clean-after-sync") {
            self.mark_clean();
        }
        if volumes.has_open_files() && !is_on("page-clean-while-open") {
            self.note_change();
        }
        let outcome = if self.find_sync(volumes) {
            // ORDERING: Relaxed, a note for `status`.
            self.has_heard.store(true, Ordering::Relaxed);
            volumes.sync()
        } else {
            Ok(())
        };
        if is_on("page-clean-after-sync") {
            self.mark_clean();
        }
        if outcome.is_err() {
            // Changes that are not durable yet are still so when the next sync comes.
            self.note_change();
        }
        outcome
    }

    fn mark_clean(&self) {
        // ORDERING: AcqRel: the writing that follows must not begin before it. See P1.
        self.state.swap(CLEAN, Ordering::AcqRel);
    }

    /// Finds out whether the write is part of a sync. If not, a page is dirty again where one has
    /// to be.
    fn find_sync(&self, volumes: &dyn Volumes) -> bool {
        if (self.callers)(Duration::ZERO) {
            return true;
        }
        if is_on("page-asked-once") {
            self.note_change();
            return false;
        }
        if !volumes.has_undurable() && !volumes.has_open_files() {
            // The next change dirties a page.
            return false;
        }
        self.note_change();
        (self.callers)(WHILE)
    }

    /// Whether a sync was ever noticed.
    pub(crate) fn has_heard(&self) -> bool {
        // ORDERING: Relaxed, as where it is set.
        self.has_heard.load(Ordering::Relaxed)
    }

    /// The kernel sends SYNCFS, or the end has come: no page is made dirty any more, and writes are
    /// answered at once.
    pub(crate) fn end(&self) {
        // ORDERING: Relaxed: only spares a caller that comes often the lock.
        if !self.is_off.swap(true, Ordering::Relaxed) {
            let device = self.device.lock().take();
            // ORDERING: Relaxed: nothing is to be dirtied.
            self.state.store(DIRTY, Ordering::Relaxed);
            drop(device);
        }
    }
}
