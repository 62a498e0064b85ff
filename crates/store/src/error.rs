//! The crate's error: what kind, in which operation.

use std::borrow::Cow;
use std::fmt;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// The result of a store operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The kind of failure, by which the caller decides what to do.
///
/// The names follow errno(3), which has one number for each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ErrorKind {
    /// No such object (ENOENT).
    #[error("no such file or directory")]
    NotFound,
    /// The name is taken (EEXIST).
    #[error("file exists")]
    Exists,
    /// A directory was needed (ENOTDIR).
    #[error("not a directory")]
    NotDirectory,
    /// A directory is not allowed here (EISDIR).
    #[error("is a directory")]
    IsDirectory,
    /// The directory has entries (ENOTEMPTY).
    #[error("directory not empty")]
    NotEmpty,
    /// The medium is full (ENOSPC).
    #[error("no space left on the store")]
    NoSpace,
    /// A quota is used up (EDQUOT).
    #[error("disk quota exceeded")]
    Quota,
    /// The medium is read-only (EROFS).
    #[error("read-only store")]
    ReadOnly,
    /// The operation is not permitted (EPERM).
    #[error("operation not permitted")]
    NotPermitted,
    /// Access was denied (EACCES).
    #[error("permission denied")]
    AccessDenied,
    /// A name is too long (ENAMETOOLONG).
    #[error("file name too long")]
    NameTooLong,
    /// Too many hard links (EMLINK).
    #[error("too many links")]
    TooManyLinks,
    /// Too many symbolic links, or one where none may be (ELOOP).
    #[error("too many levels of symbolic links")]
    Loop,
    /// The objects are on different stores or file systems (EXDEV).
    #[error("crosses into another file system")]
    CrossDevice,
    /// No such attribute (ENODATA).
    #[error("no such attribute")]
    NoAttribute,
    /// The answer does not fit the caller's buffer (ERANGE).
    #[error("result too large for the buffer")]
    Range,
    /// The argument is too large (E2BIG).
    #[error("argument too large")]
    TooBig,
    /// The file would be too large (EFBIG).
    #[error("file too large")]
    FileTooBig,
    /// The store cannot do this (EOPNOTSUPP).
    #[error("not supported by the store")]
    Unsupported,
    /// An argument makes no sense (EINVAL).
    #[error("invalid argument")]
    Invalid,
    /// No data or hole from here on, or no such device (ENXIO).
    #[error("no such device or address")]
    NoSuchAddress,
    /// No such device (ENODEV).
    #[error("no such device")]
    NoDevice,
    /// In use (EBUSY).
    #[error("device or resource busy")]
    Busy,
    /// A running program (ETXTBSY).
    #[error("text file busy")]
    TextBusy,
    /// The object is gone (ESTALE).
    #[error("stale file handle")]
    Stale,
    /// Out of file descriptors (ENFILE, EMFILE).
    #[error("too many open files")]
    TooManyFiles,
    /// Out of memory (ENOMEM).
    #[error("out of memory")]
    NoMemory,
    /// Interrupted (EINTR).
    #[error("interrupted")]
    Interrupted,
    /// Would have to wait (EAGAIN).
    #[error("would have to wait")]
    WouldBlock,
    /// The medium did not answer in time (ETIMEDOUT).
    #[error("the store did not answer in time")]
    TimedOut,
    /// The medium failed (EIO, and every error without a kind of its own).
    #[error("input/output error")]
    Io,
}

macro_rules! numbers {
    ($($kind:ident $errno:ident $name:literal,)*) => {
        impl ErrorKind {
            /// The names that rules for faults give them, as errno(3) has them.
            pub(crate) const NAMES: &[(&str, Self)] = &[$(($name, Self::$kind),)*];

            /// The number that it is named after.
            #[must_use]
            pub const fn errno(self) -> Errno {
                match self { $(Self::$kind => Errno::$errno,)* }
            }

            /// The kind of `errno`; [`Io`](Self::Io) if it has no kind of its own.
            pub(crate) const fn of(errno: Errno) -> Self {
                match errno {
                    $(Errno::$errno => Self::$kind,)*
                    Errno::NOSYS | Errno::NOTTY => Self::Unsupported,
                    Errno::MFILE => Self::TooManyFiles,
                    _ => Self::Io,
                }
            }
        }
    };
}

numbers! {
    NotFound NOENT "ENOENT",
    Exists EXIST "EEXIST",
    NotDirectory NOTDIR "ENOTDIR",
    IsDirectory ISDIR "EISDIR",
    NotEmpty NOTEMPTY "ENOTEMPTY",
    NoSpace NOSPC "ENOSPC",
    Quota DQUOT "EDQUOT",
    ReadOnly ROFS "EROFS",
    NotPermitted PERM "EPERM",
    AccessDenied ACCESS "EACCES",
    NameTooLong NAMETOOLONG "ENAMETOOLONG",
    TooManyLinks MLINK "EMLINK",
    Loop LOOP "ELOOP",
    CrossDevice XDEV "EXDEV",
    NoAttribute NODATA "ENODATA",
    Range RANGE "ERANGE",
    TooBig TOOBIG "E2BIG",
    FileTooBig FBIG "EFBIG",
    Unsupported OPNOTSUPP "EOPNOTSUPP",
    Invalid INVAL "EINVAL",
    NoSuchAddress NXIO "ENXIO",
    NoDevice NODEV "ENODEV",
    Busy BUSY "EBUSY",
    TextBusy TXTBSY "ETXTBSY",
    Stale STALE "ESTALE",
    TooManyFiles NFILE "EMFILE",
    NoMemory NOMEM "ENOMEM",
    Interrupted INTR "EINTR",
    WouldBlock AGAIN "EAGAIN",
    TimedOut TIMEDOUT "ETIMEDOUT",
    Io IO "EIO",
}

/// A failed store operation.
///
/// Cheap to make: a look-up that finds nothing is an everyday event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    kind: ErrorKind,
    op: &'static str,
    detail: Option<Cow<'static, str>>,
}

impl Error {
    /// An error of `kind` in the operation `op`.
    #[must_use]
    pub const fn new(kind: ErrorKind, op: &'static str) -> Self {
        Self { kind, op, detail: None }
    }

    /// An error with the operands, for a person to read.
    #[must_use]
    pub fn with(kind: ErrorKind, op: &'static str, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, op, detail: Some(detail.into()) }
    }

    /// The kind of failure.
    #[must_use]
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The operation that failed.
    #[must_use]
    pub const fn op(&self) -> &'static str {
        self.op
    }

    /// The operands, for a person to read.
    #[must_use]
    pub fn detail(&self) -> Option<&str> {
        self.detail.as_deref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.detail {
            Some(detail) => write!(f, "{}: {detail}: {}", self.op, self.kind),
            None => write!(f, "{}: {}", self.op, self.kind),
        }
    }
}

impl std::error::Error for Error {}
