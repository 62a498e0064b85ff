//! What threads do with a device.

mod balance;
pub(crate) mod flusher;
mod lists;
mod moves;
pub(crate) mod offline;
pub(crate) mod sync;
