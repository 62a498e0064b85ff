//! All `unsafe` of this crate.

use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A memory file, mapped: words that another process may have mapped as well.
#[derive(Debug)]
pub(crate) struct Words {
    at: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: it owns the mapping, and gives out only references to atomic words.
unsafe impl Send for Words {}
// SAFETY: as above; atomic words may be used by several threads.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `count` words of a memory file that has so many.
    pub(crate) fn map(file: BorrowedFd<'_>, count: usize) -> io::Result<Self> {
        let len = count * size_of::<AtomicU64>();
        if rustix::fs::fstat(file)?.st_size != i64::try_from(len).map_err(io::Error::other)? {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it has another length"));
        }
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address; the file is a memory file of this length, which
        // is sealed against shrinking, so that each word stays there.
        let at = unsafe { mmap(std::ptr::null_mut(), len, prot, MapFlags::SHARED, file, 0) }?;
        let at = NonNull::new(at.cast()).ok_or_else(|| io::Error::other("mapped at no address"))?;
        Ok(Self { at, count })
    }

    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: so many words are mapped, aligned to a page, until this is dropped; any bytes are
        // a word, and they are changed by atomic accesses only.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this object's own mapping, to which no reference is left. Failure: it stays.
        let _unmapped = unsafe { munmap(self.at.as_ptr().cast(), self.count * size_of::<AtomicU64>()) };
    }
}

/// How many processes of this host the kernel has killed for want of memory, in a cgroup or in all; 0
/// where it does not say.
pub(crate) fn out_of_memory_kills() -> u64 {
    let figures = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
    let kills = figures.lines().find_map(|line| line.strip_prefix("oom_kill "));
    kills.and_then(|kills| kills.trim().parse().ok()).unwrap_or(0)
}

/// Takes a descriptor that was open when the program began.
pub(crate) fn take(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; a number that is not open is refused.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the number was open, and belongs to no object of this program: it is one of those that
    // a keeper passes, and each is taken once.
    unsafe { libc::close(number) };
    // SAFETY: the kernel has just returned this descriptor; nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Has the command's program find these descriptors under these numbers, open through execve(2).
/// No source has one of the numbers.
pub(crate) fn pass(command: &mut Command, descriptors: Vec<(Arc<OwnedFd>, RawFd)>) {
    let place = move || {
        for (fd, number) in &descriptors {
            // SAFETY: numbers only; what was open under it in the child is closed, which is a copy
            // that nothing in the child owns.
            if unsafe { libc::dup2(fd.as_raw_fd(), *number) } < 0 {
                return Err(io::Error::last_os_error());
            }
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only, and allocates nothing unless one fails.
    unsafe { command.pre_exec(place) };
}
