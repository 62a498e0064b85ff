//! The events that a mount process's threads send to its supervisor.

use volume::DrainReport;

use super::upgrade::upgrader::PreparedUpgrade;
use crate::host::unmount::Outcome;
use crate::term::problem::Result;

/// Something that the supervisor has to know.
#[derive(Debug)]
pub enum SupervisorEvent {
    /// A signal came.
    Signal(&'static str),
    /// The kernel has asked for the end, and the volume has ended; or the kernel has ended the
    /// connection. The mount is gone.
    SessionEnded,
    /// Another program is to take the place of this one.
    Upgrade(PreparedUpgrade),
    /// The unmounting that the supervisor asked for is over.
    Unmounted(Result<Outcome>),
    /// No path leads to the volume any more.
    Detached,
    /// The volume is drained.
    Drained(DrainReport),
    /// Unwritten data is not to be written any more; the reason.
    GiveUp(String),
}
