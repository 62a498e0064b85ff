//! Errors to errno(3) numbers: only this module chooses one for an error of the volume's.

use rustix::io::Errno;
use store::ErrorKind;
use volume::Error;

/// The number a caller sees for this error.
#[must_use]
pub fn of(error: &Error) -> Errno {
    match error {
        Error::Store(error) => of_store(error.kind()),
        Error::Writeback(kind) => of_store(*kind),
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

/// The number a caller sees for a store's error of this kind.
#[must_use]
pub fn of_store(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NotFound => Errno::NOENT,
        ErrorKind::Exists => Errno::EXIST,
        ErrorKind::NotDirectory => Errno::NOTDIR,
        ErrorKind::IsDirectory => Errno::ISDIR,
        ErrorKind::NotEmpty => Errno::NOTEMPTY,
        ErrorKind::NoSpace => Errno::NOSPC,
        ErrorKind::Quota => Errno::DQUOT,
        ErrorKind::ReadOnly => Errno::ROFS,
        ErrorKind::NotPermitted => Errno::PERM,
        ErrorKind::AccessDenied => Errno::ACCESS,
        ErrorKind::NameTooLong => Errno::NAMETOOLONG,
        ErrorKind::TooManyLinks => Errno::MLINK,
        ErrorKind::Loop => Errno::LOOP,
        ErrorKind::CrossDevice => Errno::XDEV,
        ErrorKind::NoAttribute => Errno::NODATA,
        ErrorKind::Range => Errno::RANGE,
        ErrorKind::TooBig => Errno::TOOBIG,
        ErrorKind::FileTooBig => Errno::FBIG,
        ErrorKind::Unsupported => Errno::OPNOTSUPP,
        ErrorKind::Invalid => Errno::INVAL,
        ErrorKind::NoSuchAddress => Errno::NXIO,
        ErrorKind::NoDevice => Errno::NODEV,
        ErrorKind::Busy => Errno::BUSY,
        ErrorKind::TextBusy => Errno::TXTBSY,
        ErrorKind::Stale => Errno::STALE,
        ErrorKind::TooManyFiles => Errno::NFILE,
        ErrorKind::NoMemory => Errno::NOMEM,
        ErrorKind::Interrupted => Errno::INTR,
        ErrorKind::WouldBlock => Errno::AGAIN,
        ErrorKind::TimedOut => Errno::TIMEDOUT,
        // Io itself, and kinds that the enum may grow by.
        _ => Errno::IO,
    }
}
