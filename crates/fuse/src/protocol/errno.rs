//! Errors to errno(3) numbers: a store's kinds have theirs, this module chooses for the volume's.

use rustix::io::Errno;
use volume::Error;

/// The number a caller sees for this error.
#[must_use]
pub fn of(error: &Error) -> Errno {
    match error {
        Error::Store(error) => error.kind().errno(),
        Error::Writeback(kind) => kind.errno(),
        Error::NoNode(_) => Errno::STALE,
        Error::NoHandle(_) => Errno::BADF,
        Error::Interrupted => Errno::INTR,
        Error::FileTooBig => Errno::FBIG,
        Error::Invalid(_) => Errno::INVAL,
        Error::Released => Errno::IO,
        // The enum may grow; a variant that has no number yet is an input/output error.
        _ => Errno::IO,
    }
}
