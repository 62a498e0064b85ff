//! State and open files that a process keeps while execve(2) replaces its program.
//!
//! A program that is to be replaced writes its state into a memory file ([`seal`]), collects the
//! descriptors that the state names ([`Kept`]), and calls [`replace_program`]. The next program
//! opens the state by the number of its descriptor ([`Incoming::open`]), and takes copies of the
//! descriptors. The originals stay open until [`Incoming::commit`]: until then the next program may
//! call [`replace_program`] again, with the program before it, which finds all as it was.
//!
//! The process stays: its id, its children, its cgroup, its locks on files. Its threads, its memory
//! and its other descriptors do not.
//!
//! # Signals
//! A signal that comes between the handlers of two programs would end the process. The calling
//! thread blocks those that [`TERMINATION`] lists. Such a signal waits, and comes when the next
//! program calls [`unblock_signals`], after it has its own handlers.

#![deny(unsafe_code)]

mod incoming;
#[allow(unsafe_code, reason = "execve(2), signal masks, and descriptors by number")]
mod sys;

use std::ffi::{CString, OsStr, OsString};
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::Arc;

use rustix::fs::{MemfdFlags, SealFlags};

pub use incoming::{Incoming, STATE_BYTES_MAX};
pub use sys::{TERMINATION, unblock_signals};

/// Descriptors that the next program is to find under their numbers. They stay open as long as
/// this lives.
#[derive(Debug, Default)]
pub struct Kept(Vec<Arc<OwnedFd>>);

impl Kept {
    /// Keeps a descriptor; returns its number.
    pub fn share(&mut self, fd: &Arc<OwnedFd>) -> RawFd {
        self.0.push(Arc::clone(fd));
        fd.as_raw_fd()
    }

    /// Keeps a copy of a descriptor; returns its number.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn copy(&mut self, fd: BorrowedFd<'_>) -> io::Result<RawFd> {
        let copy = Arc::new(rustix::io::fcntl_dupfd_cloexec(fd, 3)?);
        Ok(self.share(&copy))
    }

    /// Their numbers, each once.
    #[must_use]
    pub fn numbers(&self) -> Vec<RawFd> {
        let mut numbers: Vec<RawFd> = self.0.iter().map(|fd| fd.as_raw_fd()).collect();
        numbers.sort_unstable();
        numbers.dedup();
        numbers
    }
}

/// A memory file with this content, which cannot be changed any more.
///
/// # Errors
/// When the kernel gives none, or not the memory; and when it is larger than [`Incoming`] reads.
pub fn seal(name: &str, content: &[u8]) -> io::Result<OwnedFd> {
    if content.len() as u64 > STATE_BYTES_MAX {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = std::fs::File::from(rustix::fs::memfd_create(name, flags)?);
    file.write_all(content)?;
    let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
    rustix::fs::fcntl_add_seals(&file, seals)?;
    Ok(file.into())
}

/// Replaces the program of this process by the open file `program`, with these arguments and this
/// process's environment. The descriptors `kept` stay open; of the others those that were not
/// marked close-on-exec stay, too. Does not return unless the kernel refuses: then all is as
/// before.
pub fn replace_program(program: BorrowedFd<'_>, arguments: &[OsString], kept: &[RawFd]) -> io::Error {
    match prepared(arguments) {
        Ok((arguments, environment)) => sys::exec(program, &arguments, &environment, kept),
        Err(error) => error,
    }
}

fn prepared(arguments: &[OsString]) -> io::Result<(Vec<CString>, Vec<CString>)> {
    let c_string = |text: &OsStr| CString::new(text.as_bytes()).map_err(io::Error::other);
    let arguments = arguments.iter().map(|argument| c_string(argument)).collect::<io::Result<_>>()?;
    let pair = |(mut name, value): (OsString, OsString)| {
        name.push("=");
        name.push(value);
        c_string(&name)
    };
    let environment = std::env::vars_os().map(pair).collect::<io::Result<_>>()?;
    Ok((arguments, environment))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;

    #[test]
    fn a_sealed_file_cannot_be_changed() {
        let file = std::fs::File::from(seal("test", b"state").unwrap());
        assert_eq!(file.metadata().unwrap().len(), 5);
        assert!(file.set_len(9).is_err());
        assert!((&file).write_all(b"more").is_err());
    }

    #[test]
    fn each_number_is_listed_once() {
        let mut kept = Kept::default();
        let fd = Arc::new(seal("test", b"").unwrap());
        let number = kept.share(&fd);
        assert_eq!(kept.share(&fd), number);
        let copy = kept.copy(fd.as_fd()).unwrap();
        assert_ne!(copy, number);
        let mut both = vec![number, copy];
        both.sort_unstable();
        assert_eq!(kept.numbers(), both);
    }

    #[test]
    fn what_the_kernel_refuses_leaves_all_as_it_was() {
        let mut kept = Kept::default();
        let fd = Arc::new(seal("test", b"not a program").unwrap());
        let number = kept.share(&fd);
        let error = replace_program(fd.as_fd(), &["x".into()], &kept.numbers());
        assert!(matches!(error.raw_os_error(), Some(libc::EACCES | libc::ENOEXEC)), "{error}");
        let flags = rustix::io::fcntl_getfd(&*fd).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "descriptor {number} would leak");
    }
}
