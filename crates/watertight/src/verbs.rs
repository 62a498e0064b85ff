//! The verbs that ask mount processes, or start them, and end.
//!
//! | module | verb |
//! |---|---|
//! | `umount`, `one_of_several`, `ended` | `umount`; of one of several mounts; how a volume ended |
//! | `format`, `info`, `change_key`, `gc`, `fsck`, `snapshot`, `clone_volume`, `quota` | those of their names: volumes on object storage, mounted or not |
//! | `attach`, `clone` | `attach`, `detach`, `move`; `clone` |
//! | `upgrade` | `upgrade`, and the arguments of a program that takes a mount over |
//! | `sync`, `status`, `events`, `wait`, `limit`, `stats`, `top`, `warm`, `why`, `doctor`, `demo`, `bench`, `man_pages` | those of their names |
//! | `mount_helpers` | `install-helpers`, and the helpers that mount(8) and umount(8) call |

pub mod attach;
pub mod bench;
#[cfg(feature = "objects")]
pub mod change_key;
pub mod clone;
#[cfg(feature = "objects")]
pub mod clone_volume;
pub mod demo;
pub mod doctor;
pub mod ended;
pub mod events;
#[cfg(feature = "objects")]
pub mod format;
#[cfg(feature = "objects")]
pub mod fsck;
#[cfg(feature = "objects")]
pub mod gc;
#[cfg(feature = "objects")]
pub mod info;
pub mod limit;
pub mod man_pages;
pub mod mount_helpers;
pub mod one_of_several;
#[cfg(feature = "objects")]
pub mod quota;
#[cfg(feature = "objects")]
pub mod snapshot;
pub mod stats;
pub mod status;
pub mod sync;
pub mod top;
pub mod umount;
pub mod upgrade;
pub mod wait;
pub mod warm;
pub mod why;
