//! The mount process: it serves one mountpoint, with what is attached inside.
//!
//! ```text
//! mount            `mount`: checks, opens, mounts, registers, serves
//!   background     in the background
//!   upgrade        another program takes the place of this one
//!   recovery       another process goes on with the mount of one that has died
//!   supervisor     the main thread: signals, the state, the end
//!     mounted_volume   the volume, as its control socket has it
//!       attachments    the volumes inside the mountpoint, and its clones
//!         store        the store of a volume, and the volume over it
//!   stalls         log messages about stores that do not answer
//!   figures, volume_info, connection, event   what these tell each other
//! ```

pub mod attachments;
pub mod background;
mod change_gate;
pub mod connection;
pub mod event;
pub mod figures;
pub mod mount;
pub mod mounted_volume;
pub(crate) mod recovery;
mod snapshots;
pub mod stalls;
pub mod store;
pub mod supervisor;
pub mod upgrade;
pub mod volume_info;
