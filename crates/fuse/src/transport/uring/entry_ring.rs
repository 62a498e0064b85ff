//! One thread's io_uring: hands entries to the kernel and takes them back.
//!
//! Purpose: the only place that talks to io_uring. [`EntryRing::register`] and
//! [`EntryRing::commit`] give an [`Entry`] away, [`EntryRing::next`] brings it back with a request
//! in it or with the end of the connection.
//!
//! # Safety
//! The kernel reads and writes an entry's memory from the submission of its command until that
//! command's completion. During that time the entry is in `EntryRing::submitted`, where nothing
//! looks into it; if the ring is dropped meanwhile, the memory is leaked, not unmapped
//! ([`Submitted`]).
//!
//! # Whose thread
//! An entry ring belongs to the thread that made it. The kernel copies a request into an entry in
//! the context of the thread that handed the entry over, and with `DEFER_TASKRUN` only inside that
//! thread's [`EntryRing::wait`]. This is why a thread must not hand over an entry and then do
//! something that may block; and it is what makes [`EntryRing::release_submitted`] right.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use io_uring::types::{Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue::Entry128};
use rustix::io::Errno;
use zerocopy::{Immutable, IntoBytes};

use super::entry::Entry;

/// `FUSE_IO_URING_CMD_REGISTER`: here is an entry.
const REGISTER: u32 = 1;
/// `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`: here is the answer; bring the next request.
const COMMIT_AND_FETCH: u32 = 2;
/// The completion that reports [`EntryRing::poll_readable`]; entries have the numbers below.
const POLL: u64 = u64::MAX;
/// How long to wait when the kernel has no memory for a command.
const PAUSE: Duration = Duration::from_millis(5);

/// `fuse_uring_cmd_req`.
#[derive(IntoBytes, Immutable)]
#[repr(C)]
struct CmdReq {
    flags: u64,
    commit_id: u64,
    qid: u16,
    padding: [u8; 6],
}

const _: () = assert!(size_of::<CmdReq>() == 24);

/// An entry that the kernel has. Dropped as such, it is leaked: the kernel may still write to it.
#[derive(Debug)]
struct Submitted(ManuallyDrop<Entry>);

/// A completion on an entry ring.
#[derive(Debug)]
pub(super) enum Completion {
    /// There is a request in the entry.
    Request(Entry),
    /// The kernel will not use an entry any more; the entry is gone.
    Failed(Errno),
    /// The descriptor of [`EntryRing::poll_readable`] can be read.
    Readable,
}

/// An io_uring of the calling thread.
pub(super) struct EntryRing {
    ring: IoUring<Entry128, cqueue::Entry>,
    submitted: Vec<Option<Submitted>>,
    free: Vec<usize>,
}

impl EntryRing {
    /// An entry ring for `entries` entries at most, on the connection of `dev`.
    pub(super) fn new(dev: BorrowedFd<'_>, entries: usize) -> io::Result<Self> {
        /// How many commands are handed over at once.
        const BATCH: u32 = 64;
        let count = u32::try_from(entries).map_err(io::Error::other)?;
        // One more for `poll_readable`.
        let queue = (count + 1).min(BATCH);
        let ring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize((count + 1).max(2 * queue))
            .build(queue)?;
        ring.submitter().register_files(&[dev.as_raw_fd()])?;
        let submitted = std::iter::repeat_with(|| None).take(entries).collect();
        Ok(Self { ring, submitted, free: (0..entries).rev().collect() })
    }

    /// How many entries the kernel has through this ring.
    pub(super) fn submitted(&self) -> usize {
        self.submitted.len() - self.free.len()
    }

    /// Registers an entry with the kernel.
    pub(super) fn register(&mut self, mut entry: Entry) {
        let (vecs, count) = entry.vecs();
        self.queue_command(entry, REGISTER, Some((vecs, count)));
    }

    /// Hands an answered request to the kernel.
    pub(super) fn commit(&mut self, entry: Entry) {
        self.queue_command(entry, COMMIT_AND_FETCH, None);
    }

    fn queue_command(&mut self, entry: Entry, command: u32, vecs: Option<(*const u8, u32)>) {
        let request = CmdReq { flags: 0, commit_id: entry.commit_id(), qid: entry.queue(), padding: [0; 6] };
        let mut cmd = [0; 80];
        cmd[..size_of::<CmdReq>()].copy_from_slice(request.as_bytes());
        let mut sqe = opcode::UringCmd80::new(Fixed(0), command).cmd(cmd);
        if let Some((vecs, _)) = vecs {
            sqe = sqe.addr(Some(vecs.expose_provenance() as u64));
        }
        // An entry ring is made for as many entries as its owner has.
        let number = self.free.pop().unwrap_or_else(|| {
            self.submitted.push(None);
            self.submitted.len() - 1
        });
        let mut sqe = sqe.build().user_data(number as u64);
        if let Some((_, count)) = vecs {
            set_len(&mut sqe, count);
        }
        self.submitted[number] = Some(Submitted(ManuallyDrop::new(entry)));
        self.push(&sqe);
    }

    /// Has [`next`](Self::next) report, once, when this descriptor can be read.
    pub(super) fn poll_readable(&mut self, fd: BorrowedFd<'_>) {
        let flags = u32::try_from(libc::POLLIN).unwrap_or(1);
        let sqe = opcode::PollAdd::new(Fd(fd.as_raw_fd()), flags).build().user_data(POLL);
        self.push(&sqe.into());
    }

    fn push(&mut self, sqe: &Entry128) {
        loop {
            // SAFETY: a command's memory is that of an entry in `submitted`, where it stays mapped
            // and untouched until the command has completed; a poll has no memory.
            if unsafe { self.ring.submission().push(sqe) }.is_ok() || self.enter(0).is_err() {
                return;
            }
        }
    }

    /// Hands over the queued commands, without waiting.
    pub(super) fn submit(&mut self) -> Result<(), Errno> {
        self.enter(0)
    }

    /// Hands over the queued commands and waits for an event. An error is for ever.
    pub(super) fn wait(&mut self) -> Result<(), Errno> {
        while self.ring.completion().is_empty() {
            self.enter(1)?;
        }
        Ok(())
    }

    fn enter(&mut self, want: usize) -> Result<(), Errno> {
        loop {
            let Err(error) = self.ring.submit_and_wait(want) else { return Ok(()) };
            match Errno::from_io_error(&error).unwrap_or(Errno::IO) {
                Errno::INTR => {}
                // The kernel has no memory, or no room for completions; both pass.
                Errno::AGAIN | Errno::BUSY | Errno::NOMEM => {
                    tracing::warn!(%error, "io_uring takes no commands now: trying again");
                    std::thread::sleep(PAUSE);
                }
                errno => {
                    tracing::error!(%error, "io_uring failed");
                    return Err(errno);
                }
            }
        }
    }

    /// The next event that was not reported yet.
    pub(super) fn next(&mut self) -> Option<Completion> {
        let done = self.ring.completion().next()?;
        if done.user_data() == POLL {
            return Some(Completion::Readable);
        }
        let number = usize::try_from(done.user_data()).ok()?;
        let Submitted(entry) = self.submitted.get_mut(number)?.take()?;
        self.free.push(number);
        let entry = ManuallyDrop::into_inner(entry);
        Some(match done.result() {
            0.. => Completion::Request(entry),
            error => Completion::Failed(Errno::from_raw_os_error(-error)),
        })
    }

    /// Gives the memory of entries' data back to the host while the kernel has them: after
    /// [`submit`](Self::submit), which has taken the answers, and with nothing left for
    /// [`next`](Self::next).
    pub(super) fn release_submitted(&mut self) {
        debug_assert!(self.ring.completion().is_empty(), "a request would be lost");
        for Submitted(entry) in self.submitted.iter_mut().flatten().filter(|submitted| submitted.0.had_data())
        {
            entry.release();
        }
    }

    /// Gives all memory of entries that were [registered](Self::register) back to the host: after
    /// [`submit`](Self::submit), in which the kernel has read where they are. Most are never used.
    pub(super) fn release_registered(&mut self) {
        if self.ring.submission().is_empty() && self.ring.completion().is_empty() {
            for Submitted(entry) in self.submitted.iter_mut().flatten() {
                entry.release_all();
            }
        }
    }

    /// Whether there is an event for [`next`](Self::next).
    pub(super) fn has_completion(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }
}

/// Whether an entry came back because the connection has ended.
pub(super) fn ends_connection(errno: Errno) -> bool {
    matches!(errno, Errno::NOTCONN | Errno::CONNABORTED | Errno::CANCELED | Errno::NODEV)
}

/// Sets a command's `len`, for which the crate has no name with this operation.
fn set_len(sqe: &mut Entry128, len: u32) {
    /// Where it is in an `io_uring_sqe`.
    const LEN_AT: usize = 24;
    const _: () = assert!(size_of::<Entry128>() == 128 && align_of::<Entry128>() >= align_of::<u32>());
    let start = std::ptr::from_mut(sqe).cast::<u8>();
    // SAFETY: an `Entry128` is an `io_uring_sqe` of 128 bytes in C layout, as asserted and
    // documented by the crate, of which the four bytes at 24 are the field `len`; any value of them
    // is valid.
    unsafe { start.add(LEN_AT).cast::<u32>().write(len) };
}
