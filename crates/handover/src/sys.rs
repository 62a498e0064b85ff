//! The system calls that need numbers instead of owned descriptors. All `unsafe` of this crate is
//! here.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::ptr;

/// The signals that are blocked while the program is replaced: SIGHUP, SIGINT, SIGTERM.
pub const TERMINATION: [i32; 3] = [libc::SIGHUP, libc::SIGINT, libc::SIGTERM];

/// Whether this number is an open descriptor.
pub(crate) fn is_open(number: RawFd) -> bool {
    // SAFETY: F_GETFD takes no argument; any number may be asked.
    unsafe { libc::fcntl(number, libc::F_GETFD) >= 0 }
}

/// Marks a descriptor to be closed by execve(2), or not to be.
pub(crate) fn set_cloexec(number: RawFd, on: bool) -> io::Result<()> {
    let flags = if on { libc::FD_CLOEXEC } else { 0 };
    // SAFETY: numbers only.
    if unsafe { libc::fcntl(number, libc::F_SETFD, flags) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

/// Marks all descriptors from `first` to `last` to be closed by execve(2). False: the kernel (before 5.11)
/// cannot.
pub(crate) fn set_all_cloexec(first: RawFd, last: RawFd) -> bool {
    let (Ok(first), Ok(last)) = (u32::try_from(first), u32::try_from(last)) else { return false };
    // SAFETY: numbers only; with this flag nothing is closed.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, libc::CLOSE_RANGE_CLOEXEC) == 0 }
}

/// A copy of a descriptor that was open when the program began.
pub(crate) fn copy(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: numbers only; a number that is not open is refused.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) };
    if copy < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just returned this descriptor; nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}

/// Closes a descriptor that was open when the program began.
pub(crate) fn close(number: RawFd) {
    // SAFETY: `Incoming` lists only numbers that were open when it was made, which is before this
    // program had made any of its own; none of its objects owns them, and each is closed once.
    unsafe { libc::close(number) };
}

fn termination() -> libc::sigset_t {
    let mut set = MaybeUninit::uninit();
    // SAFETY: sigemptyset(3) initializes the set that it is given; sigaddset(3) is given that set
    // and valid numbers.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in TERMINATION {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        set.assume_init()
    }
}

/// Lets the signals through that [`replace_program`](crate::replace_program) blocked. For the
/// calling thread, and the threads that it starts.
pub fn unblock_signals() {
    let set = termination();
    // SAFETY: `set` is initialized and lives through the call.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, ptr::null_mut()) };
}

/// See [`replace_program`](crate::replace_program).
pub(crate) fn exec(
    program: BorrowedFd<'_>,
    arguments: &[CString],
    environment: &[CString],
    kept: &[RawFd],
) -> io::Error {
    let pointers =
        |texts: &[CString]| texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>();
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    let undo = |numbers: &[RawFd]| {
        for &number in numbers {
            // It was open a moment ago.
            let _marked = set_cloexec(number, true);
        }
    };
    for (n, &number) in kept.iter().enumerate() {
        if let Err(error) = set_cloexec(number, false) {
            undo(&kept[..n]);
            return error;
        }
    }
    let set = termination();
    // SAFETY: `set` is initialized. The vectors are arrays of pointers to NUL-ended strings that
    // end with a null pointer, and live through the call, as the strings do.
    let error = unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
        libc::fexecve(program.as_raw_fd(), arguments.as_ptr(), environment.as_ptr());
        io::Error::last_os_error()
    };
    unblock_signals();
    undo(kept);
    error
}
