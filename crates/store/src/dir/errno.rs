//! From the kernel's error numbers to this crate's kinds.

use rustix::io::Errno;

use crate::{Error, ErrorKind};

/// The kind of `errno`; [`ErrorKind::Io`] if it has no kind of its own.
pub(crate) fn kind(errno: Errno) -> ErrorKind {
    match errno {
        Errno::NOENT => ErrorKind::NotFound,
        Errno::EXIST => ErrorKind::Exists,
        Errno::NOTDIR => ErrorKind::NotDirectory,
        Errno::ISDIR => ErrorKind::IsDirectory,
        Errno::NOTEMPTY => ErrorKind::NotEmpty,
        Errno::NOSPC => ErrorKind::NoSpace,
        Errno::DQUOT => ErrorKind::Quota,
        Errno::ROFS => ErrorKind::ReadOnly,
        Errno::PERM => ErrorKind::NotPermitted,
        Errno::ACCESS => ErrorKind::AccessDenied,
        Errno::NAMETOOLONG => ErrorKind::NameTooLong,
        Errno::MLINK => ErrorKind::TooManyLinks,
        Errno::LOOP => ErrorKind::Loop,
        Errno::XDEV => ErrorKind::CrossDevice,
        Errno::NODATA => ErrorKind::NoAttribute,
        Errno::RANGE => ErrorKind::Range,
        Errno::TOOBIG => ErrorKind::TooBig,
        Errno::FBIG => ErrorKind::FileTooBig,
        Errno::OPNOTSUPP | Errno::NOSYS | Errno::NOTTY => ErrorKind::Unsupported,
        Errno::INVAL => ErrorKind::Invalid,
        Errno::NXIO => ErrorKind::NoSuchAddress,
        Errno::NODEV => ErrorKind::NoDevice,
        Errno::BUSY => ErrorKind::Busy,
        Errno::TXTBSY => ErrorKind::TextBusy,
        Errno::STALE => ErrorKind::Stale,
        Errno::NFILE | Errno::MFILE => ErrorKind::TooManyFiles,
        Errno::NOMEM => ErrorKind::NoMemory,
        Errno::INTR => ErrorKind::Interrupted,
        Errno::AGAIN => ErrorKind::WouldBlock,
        Errno::TIMEDOUT => ErrorKind::TimedOut,
        _ => ErrorKind::Io,
    }
}

/// For `map_err`: the failure of a system call on behalf of `op`.
pub(crate) fn failed(op: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::new(kind(errno), op)
}

/// [`failed`] with the operands.
pub(crate) fn failed_with(op: &'static str, what: &str) -> impl Fn(Errno) -> Error {
    move |errno| Error::with(kind(errno), op, what.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_numbers_keep_their_meaning_and_unknown_ones_are_io() {
        for (errno, expected) in [
            (Errno::NOENT, ErrorKind::NotFound),
            (Errno::NOSPC, ErrorKind::NoSpace),
            (Errno::NOTSUP, ErrorKind::Unsupported),
            (Errno::XDEV, ErrorKind::CrossDevice),
            (Errno::MFILE, ErrorKind::TooManyFiles),
            (Errno::IO, ErrorKind::Io),
            (Errno::REMOTEIO, ErrorKind::Io),
        ] {
            assert_eq!(kind(errno), expected, "{errno:?}");
        }
    }
}
