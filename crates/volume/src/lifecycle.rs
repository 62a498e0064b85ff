//! From a volume's figures and syncs to its end.

pub mod abort;
mod shutdown;
pub(crate) mod state;
pub(crate) mod status;
mod sync;
