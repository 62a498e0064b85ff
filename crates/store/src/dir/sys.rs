//! The system calls that rustix has no safe function for. All `unsafe` of the directory store is
//! here and in [`creds`](super::creds).

use std::ffi::CStr;
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

type Result<T> = std::result::Result<T, Errno>;

/// The number of a descriptor as a NUL-ended string, for names below `/proc/self/fd`.
#[derive(Debug)]
pub(crate) struct FdName {
    bytes: [u8; 32],
    len: usize,
}

impl FdName {
    /// Just the number: a name in the directory `/proc/self/fd`.
    pub(crate) fn short(fd: BorrowedFd<'_>) -> Self {
        Self::make("", fd)
    }

    /// The whole path.
    pub(crate) fn full(fd: BorrowedFd<'_>) -> Self {
        Self::make("/proc/self/fd/", fd)
    }

    fn make(prefix: &str, fd: BorrowedFd<'_>) -> Self {
        let mut name = Self { bytes: [0; 32], len: 0 };
        // 14 bytes of prefix and at most 11 of number: the NUL behind them always fits.
        let written = write!(name, "{prefix}{}", fd.as_raw_fd());
        debug_assert!(written.is_ok());
        name
    }

    /// As a C string.
    pub(crate) fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.bytes).unwrap_or(c"")
    }
}

impl std::fmt::Write for FdName {
    fn write_str(&mut self, s: &str) -> std::fmt::Result {
        let end = self.len + s.len();
        if end >= self.bytes.len() {
            return Err(std::fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

fn check(result: i64) -> Result<usize> {
    usize::try_from(result).map_err(|_| {
        Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
    })
}

/// Sets the size of the file at an absolute path, links followed.
pub(crate) fn truncate(path: &CStr, size: u64) -> Result<()> {
    let size = i64::try_from(size).map_err(|_| Errno::FBIG)?;
    // SAFETY: `path` is a NUL-ended string that lives through the call.
    check(i64::from(unsafe { libc::truncate(path.as_ptr(), size) })).map(drop)
}

/// chmod of the object itself behind any descriptor, `O_PATH` ones included (Linux 6.6).
pub(crate) fn fchmodat2_empty(fd: BorrowedFd<'_>, mode: u32) -> Result<()> {
    const SYS_FCHMODAT2: i64 = 452;
    // SAFETY: the empty path is a constant; the other arguments are numbers.
    check(unsafe { libc::syscall(SYS_FCHMODAT2, fd.as_raw_fd(), c"".as_ptr(), mode, libc::AT_EMPTY_PATH) })
        .map(drop)
}

/// Fills `buf` with directory entries in the kernel's format; 0 at the end.
pub(crate) fn getdents(fd: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize> {
    // SAFETY: the kernel writes at most `buf.len()` bytes into `buf`, which is ours alone.
    check(unsafe { libc::syscall(libc::SYS_getdents64, fd.as_raw_fd(), buf.as_mut_ptr(), buf.len()) })
}

/// Starts writing the file's dirty pages, and does not wait for the end.
pub(crate) fn start_writing(fd: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: numbers only.
    check(i64::from(unsafe { libc::sync_file_range(fd.as_raw_fd(), 0, 0, libc::SYNC_FILE_RANGE_WRITE) }))
        .map(drop)
}

/// Whether the descriptor is on procfs.
pub(crate) fn is_proc(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|s| s.f_type == rustix::fs::PROC_SUPER_MAGIC)
}
