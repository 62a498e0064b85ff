//! A session's sync page: the device of its mount, and its volumes.
//!
//! # Data that the kernel has collected
//! Before it writes the page, the kernel sends the dirty pages of mapped files (in mode
//! `kernel-writeback`: of all files), and does not wait for the answers. So before all is made
//! durable, the daemon waits until no request is left in the kernel's queues, and then until the
//! requests in hand that carry such data are through. Under a load that never leaves the queues
//! empty it waits [`LONGEST`], and goes on.
//!
//! # Lock order
//! `Collected::state` is a leaf.

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat};
use sync::{Condvar, Mutex};

use super::callers;
use super::{Callers, Device, SyncPage};
use crate::device::Dev;
use crate::in_flight::InFlight;
use crate::mount::{DEVICE_BYTES, SyncDevice, control};

/// How long the kernel's queues are waited for.
const LONGEST: Duration = Duration::from_secs(2);
/// How often they are checked. Nothing reports that they are empty.
const AGAIN: Duration = Duration::from_millis(1);
/// Length of a page, in bytes: the block size of the mount.
const PAGE: u64 = 4096;
/// The content that is written to a page: it means nothing.
const EMPTY: [u8; 4096] = [0; 4096];

/// A session's part of its page.
#[derive(Debug)]
pub(crate) struct SyncDetector {
    pub(crate) page: SyncPage,
    pub(crate) collected: Collected,
    is_only_way: bool,
    /// The control file system, and the connection's directory there.
    control: Option<(OwnedFd, PathBuf)>,
    /// A run that was left behind in a store that did not answer.
    pub(crate) left: Mutex<Option<Receiver<volume::Result<()>>>>,
}

/// The pages of a device, in turn.
#[derive(Debug)]
struct Pages {
    file: File,
    count: u64,
    next: u64,
}

impl Device for Pages {
    fn dirty_a_page(&mut self) -> io::Result<()> {
        let page = self.next % self.count;
        self.next += 1;
        self.file.write_all_at(&EMPTY, page * PAGE)
    }
}

impl SyncDetector {
    /// For a mount that is there, over this device.
    pub(crate) fn new(
        served: &mut SyncDevice,
        device: &Path,
        connection: Option<PathBuf>,
    ) -> io::Result<Self> {
        let (file, is_only_way) = (served.open_device(device)?, served.is_only_way);
        let count = DEVICE_BYTES / PAGE;
        let callers: Callers =
            if callers::can_see_all() { Box::new(callers::may_anybody_sync) } else { Box::new(|_| true) };
        Ok(Self {
            page: SyncPage::new(Box::new(Pages { file, count, next: 0 }), callers),
            collected: Collected::default(),
            is_only_way,
            control: connection.and_then(|dir| Some((control().ok()?, PathBuf::from(dir.file_name()?)))),
            left: Mutex::new(None),
        })
    }

    /// Whether SYNCFS is to be refused.
    pub(crate) fn is_only_way(&self) -> bool {
        self.is_only_way
    }

    /// Waits for the data that the kernel had collected when this was called.
    pub(crate) fn wait_for_collected(&self, in_flight: &InFlight, dev: &Dev) {
        let until = Instant::now() + LONGEST;
        while !self.are_queues_empty(in_flight, dev) && Instant::now() < until {
            std::thread::sleep(AGAIN);
        }
        self.collected.wait(until);
    }

    fn are_queues_empty(&self, in_flight: &InFlight, dev: &Dev) -> bool {
        let text = self.control.as_ref().and_then(|(control, dir)| {
            let file = openat(control, dir.join("waiting"), OFlags::CLOEXEC, Mode::empty()).ok()?;
            io::read_to_string(File::from(file)).ok()
        });
        match text.and_then(|text| text.trim().parse::<usize>().ok()) {
            // It counts those in hand too.
            Some(waiting) => waiting <= in_flight.in_slots(),
            None => {
                let mut fds = [PollFd::from_borrowed_fd(dev.fd(), PollFlags::IN)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                !matches!(poll(&mut fds, Some(&now)), Ok(1..))
            }
        }
    }
}

/// The requests in hand that carry data which the kernel had collected.
#[derive(Debug, Default)]
pub(crate) struct Collected {
    state: Mutex<Tickets>,
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    open: BTreeSet<u64>,
}

/// A request in hand, until this is dropped.
#[derive(Debug)]
pub(crate) struct Ticket<'a>(&'a Collected, u64);

impl Collected {
    /// A request is in hand.
    pub(crate) fn begin(&self) -> Ticket<'_> {
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        state.open.insert(number);
        Ticket(self, number)
    }

    /// Waits for the requests that are in hand now, at most until `until`.
    fn wait(&self, until: Instant) {
        let mut state = self.state.lock();
        let next = state.next;
        while state.open.first().is_some_and(|first| *first < next) {
            if self.ended.wait_until(&mut state, until) {
                return;
            }
        }
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.0.state.lock().open.remove(&self.1);
        self.0.ended.notify_all();
    }
}
