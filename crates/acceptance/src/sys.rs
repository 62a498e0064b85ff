//! Memory maps and other calls that `std` does not have.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags};

/// Whether this process is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A shared mapping of a file from its beginning.
///
/// Access goes through copies: other processes may change the bytes at any time.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<libc::c_void>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is only reached through `&self`
// calls that copy with raw pointers; unmapping happens once, in `drop`.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, open for reading and writing.
    ///
    /// # Errors
    /// Those of mmap(2).
    pub fn new(file: &File, len: usize) -> io::Result<Self> {
        // SAFETY: no address is asked for, so no other mapping is touched.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )?
        };
        let start = NonNull::new(start).ok_or_else(|| io::Error::other("mmap returned null"))?;
        Ok(Self { start, len })
    }

    /// Copies `data` to `offset`.
    ///
    /// # Panics
    /// When it does not fit. A file cut shorter than the mapping raises SIGBUS, as for any program.
    pub fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.len, "beyond the mapping");
        // SAFETY: the range is inside the mapping (asserted) and writable; `data` is not inside it.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr(),
                self.start.as_ptr().cast::<u8>().add(offset),
                data.len(),
            );
        }
    }

    /// Copies `len` bytes from `offset`.
    ///
    /// # Panics
    /// As [`write`](Self::write).
    #[must_use]
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.len, "beyond the mapping");
        let mut out = vec![0; len];
        // SAFETY: the range is inside the mapping (asserted) and readable; `out` is a fresh
        // allocation.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.start.as_ptr().cast::<u8>().add(offset).cast_const(),
                out.as_mut_ptr(),
                len,
            );
        }
        out
    }

    /// Writes what was changed to the file and waits for it: msync(2) with `MS_SYNC`.
    ///
    /// # Errors
    /// Those of msync(2).
    pub fn sync(&self) -> io::Result<()> {
        // SAFETY: the range is the mapping, which lives as long as `self`.
        unsafe { rustix::mm::msync(self.start.as_ptr(), self.len, MsyncFlags::SYNC)? };
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping, and no reference to it outlives `drop`.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr(), self.len) };
    }
}

/// A buffer aligned to 4 KiB, as O_DIRECT wants.
#[derive(Debug)]
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Aligned {
    /// A copy of `data`, aligned.
    #[must_use]
    pub fn new(data: &[u8]) -> Self {
        let mut bytes = vec![0; data.len() + 4096];
        let start = bytes.as_ptr().align_offset(4096);
        bytes[start..start + data.len()].copy_from_slice(data);
        Self { bytes, start, len: data.len() }
    }

    /// `len` aligned zeros.
    #[must_use]
    pub fn zeroed(len: usize) -> Self {
        Self::new(&vec![0; len])
    }

    /// The bytes.
    #[must_use]
    pub fn get(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    /// The bytes, to be changed.
    pub fn get_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// How many names one file may have in the file system at `path`, as pathconf(3) says.
///
/// # Errors
/// When it says nothing.
pub fn link_max(path: &std::path::Path) -> io::Result<u64> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    let most = unsafe { libc::pathconf(path.as_ptr(), libc::_PC_LINK_MAX) };
    u64::try_from(most).map_err(|_| io::Error::last_os_error())
}

/// Sends this process SIGKILL when the thread that made it ends: call between fork and exec.
///
/// # Errors
/// Those of prctl(2).
pub fn die_with_parent() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    Ok(())
}
