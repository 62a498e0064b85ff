//! The system calls that rustix has no safe function for. All `unsafe` of the directory store is
//! here and in [`creds`](super::creds).

use std::ffi::CStr;
use std::fmt::Write as _;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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

/// Most bytes of a handle (`MAX_HANDLE_SZ`).
const HANDLE_BYTES_MAX: usize = 128;

/// Names an object of a file system for as long as it exists; never another one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Handle {
    kind: i32,
    bytes: Box<[u8]>,
}

impl Handle {
    /// The handle with these parts.
    pub(crate) fn of_parts(kind: i32, bytes: &[u8]) -> Self {
        Self { kind, bytes: bytes[..bytes.len().min(HANDLE_BYTES_MAX)].into() }
    }

    /// Its type and its bytes.
    pub(crate) fn parts(&self) -> (i32, &[u8]) {
        (self.kind, &self.bytes)
    }

    /// Its 32 bits that differ most likely from any other's.
    pub(crate) fn digest(&self) -> u32 {
        digest(&self.bytes, self.kind.cast_unsigned())
    }
}

/// FNV-1a, folded. Not against an adversary: a process that may open by handle may read everything
/// here anyway.
pub(crate) fn digest(bytes: &[u8], seed: u32) -> u32 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325 ^ u64::from(seed), step);
    let [a, b, c, d, e, f, g, h] = hash.to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) ^ u32::from_le_bytes([e, f, g, h])
}

/// `struct file_handle` with room for any handle.
#[repr(C)]
struct RawHandle {
    len: u32,
    kind: i32,
    bytes: [u8; HANDLE_BYTES_MAX],
}

/// The handle of an open object, `O_PATH` or not.
pub(crate) fn handle_of(fd: BorrowedFd<'_>) -> Result<Handle> {
    let mut raw = RawHandle { len: 128, kind: 0, bytes: [0; HANDLE_BYTES_MAX] };
    let mut mount = 0i32;
    // SAFETY: `raw` has the layout of `struct file_handle` followed by the 128 bytes that `len`
    // announces; both pointers are valid and ours alone through the call; the path is a constant.
    let result = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            fd.as_raw_fd(),
            c"".as_ptr(),
            &raw mut raw,
            &raw mut mount,
            libc::AT_EMPTY_PATH,
        )
    };
    check(result)?;
    let len = usize::try_from(raw.len).unwrap_or(HANDLE_BYTES_MAX).min(HANDLE_BYTES_MAX);
    Ok(Handle { kind: raw.kind, bytes: raw.bytes[..len].into() })
}

/// Opens the object of a handle as with `O_PATH`, on the mount of `medium`. Needs
/// `CAP_DAC_READ_SEARCH`.
pub(crate) fn open_handle(medium: BorrowedFd<'_>, handle: &Handle) -> Result<OwnedFd> {
    let mut raw = RawHandle { len: 0, kind: handle.kind, bytes: [0; HANDLE_BYTES_MAX] };
    let len = handle.bytes.len().min(HANDLE_BYTES_MAX);
    raw.len = u32::try_from(len).map_err(|_| Errno::INVAL)?;
    raw.bytes[..len].copy_from_slice(&handle.bytes[..len]);
    let flags = libc::O_PATH | libc::O_NOFOLLOW | libc::O_CLOEXEC;
    // SAFETY: `raw` has the layout of `struct file_handle` with `len` bytes, and lives through the
    // call.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_open_by_handle_at, medium.as_raw_fd(), &raw mut raw, flags)
    })?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: the kernel just returned this descriptor; nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
