//! What a volume keeps in mind for the server that follows if its own dies: see
//! [`recovery`](crate::recovery).

use std::sync::OnceLock;

use recovery::{HoldId, Slot};
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64};

/// What of an inode is left to a server that follows.
#[derive(Debug)]
pub(crate) struct Noted {
    /// Where the kernel's look-ups are noted, once that is done; set under the inode's state.
    pub(crate) slot: OnceLock<Slot>,
    /// Locked while the keeper is given the opening.
    pub(crate) held: Mutex<Held>,
}

impl Default for Noted {
    fn default() -> Self {
        Self { slot: OnceLock::new(), held: Mutex::new(Held::No) }
    }
}

/// Whether the keeper has an opening of a file, since that lost its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Held {
    No,
    Yes(HoldId),
    /// It has not taken it; counted in [`NotHeld`].
    Refused,
}

/// What a server before this one has changed may not be durable.
#[derive(Debug)]
pub(crate) struct Inherited {
    pub(crate) is_left: AtomicBool,
    /// Locked while it is made durable; the store is called under it.
    pub(crate) settling: Mutex<()>,
}

impl Default for Inherited {
    fn default() -> Self {
        Self { is_left: AtomicBool::new(false), settling: Mutex::new(()) }
    }
}

/// Files that have lost a name while they were open and that the keeper does not hold: it holds so many
/// at most, whoever they are of. If the server dies, these are gone, and all others are there.
#[derive(Debug)]
pub(crate) struct NotHeld {
    pub(crate) now: AtomicU64,
    pub(crate) is_said: AtomicBool,
}

impl Default for NotHeld {
    fn default() -> Self {
        Self { now: AtomicU64::new(0), is_said: AtomicBool::new(false) }
    }
}
