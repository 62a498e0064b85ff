//! The crate's error.

/// The result of an operation on an eventpoll.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why an eventpoll refused or gave up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The eventpoll or the source was closed: EBADF.
    #[error("closed")]
    Closed,
    /// The source is watched already: EEXIST.
    #[error("the source is watched already")]
    Exists,
    /// The source is not watched: ENOENT.
    #[error("the source is not watched")]
    NotFound,
    /// An eventpoll cannot watch itself: EINVAL.
    #[error("an eventpoll cannot watch itself")]
    Itself,
    /// An exclusive interest cannot be modified, nothing can be made exclusive later, an eventpoll
    /// cannot be watched exclusively, and neither one-shot interest nor other events than IN, OUT,
    /// ERR and HUP go with it: EINVAL.
    #[error("not possible with exclusive interest")]
    Exclusive,
    /// A wait for no events at all: EINVAL.
    #[error("room for no event")]
    NoRoom,
    /// Eventpolls would watch each other in a circle: ELOOP.
    #[error("eventpolls would watch each other in a circle")]
    Loop,
    /// More than `max` eventpolls would watch one another in a chain: ELOOP.
    #[error("a chain of more than {max} eventpolls")]
    TooDeep {
        /// The longest chain that is allowed.
        max: usize,
    },
    /// One signal of a source would call more than `max` eventpolls by chains of this length:
    /// EINVAL.
    #[error("a signal would go to more than {max} eventpolls by chains of {length}")]
    TooManyPaths {
        /// Eventpolls in the chain, the one that watches the source included.
        length: usize,
        /// The most such chains that are allowed.
        max: usize,
    },
    /// The limit of watched sources is reached: ENOSPC.
    #[error("{max} sources are watched, which is the limit")]
    WatchLimit {
        /// The limit.
        max: usize,
    },
    /// The source does not support being watched: EPERM.
    #[error("the source does not support being watched")]
    NotPollable,
    /// The wait was interrupted, and nothing was ready: EINTR.
    #[error("interrupted while waiting")]
    Interrupted,
}
