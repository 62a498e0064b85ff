//! What is left of a mount process when it dies, and who keeps it.
//!
//! ```text
//! keeper    the process that holds descriptors and starts the next server
//!   │
//! link      their messages: descriptors, and words for the service manager
//!   │
//! journal   what the kernel knows of the server: nodes, openings, requests in hand
//!   │
//! memory    where it is: a memory file that both hold
//! ```
//!
//! Read [`journal`] first: each of its records becomes valid, or ends, by one store, so that it is
//! whole at whichever instruction the server dies.

#![deny(unsafe_code)]

pub mod journal;
pub mod keeper;
pub mod link;
pub mod memory;
#[allow(unsafe_code, reason = "a shared mapping, and what a child does before it executes its program")]
mod sys;

pub use journal::{
    Journal, LastEnd, NodeKey, NodeRecord, OpenKind, OpenRecord, Phase, Place, RequestRecord, Slot,
};
pub use link::{Held, HoldId, Link};
pub use memory::Memory;

/// What a server needs so that another one can follow it.
#[derive(Debug)]
pub struct Recovery {
    /// What the kernel knows.
    pub journal: Journal,
    /// The way to the keeper.
    pub link: Link,
    /// What the keeper held when this server began.
    pub held: Vec<Held>,
}

impl Recovery {
    /// Whether another server could follow this one now.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.journal.is_complete() && self.link.is_kept()
    }
}
