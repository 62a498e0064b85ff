//! `recover=on`: another server follows if this one dies.
//!
//! The process that was called becomes the keeper ([`keep`]): it starts the server, which mounts and
//! serves, as its child, and holds what the server gives it ([`serve`]). If the server dies, the keeper
//! starts this program again, which goes on with the mount ([`resume`]). The crate `recovery` has the
//! journal and the keeper's loop.

pub(crate) mod keep;
pub(crate) mod resume;
pub(crate) mod serve;
