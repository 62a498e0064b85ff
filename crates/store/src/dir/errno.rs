//! Errors of system calls as this crate's.

use rustix::io::Errno;

use crate::{Error, ErrorKind};

/// For `map_err`: the failure of a system call on behalf of `op`.
pub(crate) fn failed(op: &'static str) -> impl Fn(Errno) -> Error {
    move |errno| Error::new(ErrorKind::of(errno), op)
}

/// [`failed`] with the operands.
pub(crate) fn failed_with(op: &'static str, what: &str) -> impl Fn(Errno) -> Error {
    move |errno| Error::with(ErrorKind::of(errno), op, what.to_owned())
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
            assert_eq!(ErrorKind::of(errno), expected, "{errno:?}");
        }
    }
}
