//! One thread's io_uring: hands entries to the kernel and takes them back.
//!
//! Purpose: the only place that talks to io_uring. [`Lane::register`] and [`Lane::commit`] give an
//! [`Entry`] away, [`Lane::next`] brings it back with a request in it or with the end of the
//! connection.
//!
//! # Safety
//! The kernel reads and writes an entry's memory from the submission of its command until that
//! command's completion. During that time the entry is in `Lane::away`, where nothing looks into
//! it; if the lane is dropped meanwhile, the memory is leaked, not unmapped ([`Away`]).
//!
//! # Whose thread
//! A lane belongs to the thread that made it. The kernel copies a request into an entry in the
//! context of the thread that handed the entry over, and with `DEFER_TASKRUN` only inside that
//! thread's [`Lane::wait`]. This is why a thread must not hand over an entry and then do something
//! that may block; and it is what makes [`Lane::release_away`] right.

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
/// The completion that reports [`Lane::watch`]; entries have the numbers below.
const WATCHED: u64 = u64::MAX;
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
struct Away(ManuallyDrop<Entry>);

/// An event of a lane.
#[derive(Debug)]
pub(super) enum Event {
    /// There is a request in the entry.
    Request(Entry),
    /// The kernel will not use an entry any more; the entry is gone.
    Dead(Errno),
    /// The descriptor of [`Lane::watch`] can be read.
    Watched,
}

/// An io_uring of the calling thread.
pub(super) struct Lane {
    ring: IoUring<Entry128, cqueue::Entry>,
    away: Vec<Option<Away>>,
    free: Vec<usize>,
}

impl Lane {
    /// A lane for `entries` entries at most, on the connection of `dev`.
    pub(super) fn new(dev: BorrowedFd<'_>, entries: usize) -> io::Result<Self> {
        /// How many commands are handed over at once.
        const BATCH: u32 = 64;
        let count = u32::try_from(entries).map_err(io::Error::other)?;
        // One more for `watch`.
        let queue = (count + 1).min(BATCH);
        let ring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_submit_all()
            .setup_cqsize((count + 1).max(2 * queue))
            .build(queue)?;
        ring.submitter().register_files(&[dev.as_raw_fd()])?;
        let away = std::iter::repeat_with(|| None).take(entries).collect();
        Ok(Self { ring, away, free: (0..entries).rev().collect() })
    }

    /// How many entries the kernel has through this lane.
    pub(super) fn away(&self) -> usize {
        self.away.len() - self.free.len()
    }

    /// Registers an entry with the kernel.
    pub(super) fn register(&mut self, mut entry: Entry) {
        let (vecs, count) = entry.vecs();
        self.give(entry, REGISTER, Some((vecs, count)));
    }

    /// Hands an answered request to the kernel.
    pub(super) fn commit(&mut self, entry: Entry) {
        self.give(entry, COMMIT_AND_FETCH, None);
    }

    fn give(&mut self, entry: Entry, command: u32, vecs: Option<(*const u8, u32)>) {
        let request = CmdReq { flags: 0, commit_id: entry.commit_id(), qid: entry.queue(), padding: [0; 6] };
        let mut cmd = [0; 80];
        cmd[..size_of::<CmdReq>()].copy_from_slice(request.as_bytes());
        let mut sqe = opcode::UringCmd80::new(Fixed(0), command).cmd(cmd);
        if let Some((vecs, _)) = vecs {
            sqe = sqe.addr(Some(vecs.expose_provenance() as u64));
        }
        // A lane is made for as many entries as its owner has.
        let number = self.free.pop().unwrap_or_else(|| {
            self.away.push(None);
            self.away.len() - 1
        });
        let mut sqe = sqe.build().user_data(number as u64);
        if let Some((_, count)) = vecs {
            set_len(&mut sqe, count);
        }
        self.away[number] = Some(Away(ManuallyDrop::new(entry)));
        self.push(&sqe);
    }

    /// Has [`next`](Self::next) report, once, when this descriptor can be read.
    pub(super) fn watch(&mut self, fd: BorrowedFd<'_>) {
        let flags = u32::try_from(libc::POLLIN).unwrap_or(1);
        let sqe = opcode::PollAdd::new(Fd(fd.as_raw_fd()), flags).build().user_data(WATCHED);
        self.push(&sqe.into());
    }

    fn push(&mut self, sqe: &Entry128) {
        loop {
            // SAFETY: a command's memory is that of an entry in `away`, where it stays mapped and
            // untouched until the command has completed; a poll has no memory.
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
                    tracing::warn!(%error, "io_uring takes no commands at the moment");
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
    pub(super) fn next(&mut self) -> Option<Event> {
        let done = self.ring.completion().next()?;
        if done.user_data() == WATCHED {
            return Some(Event::Watched);
        }
        let number = usize::try_from(done.user_data()).ok()?;
        let Away(entry) = self.away.get_mut(number)?.take()?;
        self.free.push(number);
        let entry = ManuallyDrop::into_inner(entry);
        Some(match done.result() {
            0.. => Event::Request(entry),
            error => Event::Dead(Errno::from_raw_os_error(-error)),
        })
    }

    /// Gives the memory of entries' data back to the host while the kernel has them: after
    /// [`submit`](Self::submit), which has taken the answers, and with nothing left for
    /// [`next`](Self::next).
    pub(super) fn release_away(&mut self) {
        debug_assert!(self.ring.completion().is_empty(), "a request would be lost");
        for Away(entry) in self.away.iter_mut().flatten().filter(|away| away.0.had_data()) {
            entry.release();
        }
    }

    /// Gives all memory of entries that were [registered](Self::register) back to the host: after
    /// [`submit`](Self::submit), in which the kernel has read where they are. Most are never used.
    pub(super) fn release_registered(&mut self) {
        if self.ring.submission().is_empty() && self.ring.completion().is_empty() {
            for Away(entry) in self.away.iter_mut().flatten() {
                entry.release_all();
            }
        }
    }

    /// Whether there is an event for [`next`](Self::next).
    pub(super) fn has_news(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }
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
