//! File data: the cache, and its way to the store and back.

pub(crate) mod cache;
pub(crate) mod page;
mod read;
mod reserve;
pub(crate) mod throttled;
pub(crate) mod write;
mod writeback;
