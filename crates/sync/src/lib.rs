//! Locks, atomics, threads and time for the rest of the project: one facade over `std`, loom and
//! shuttle.
//!
//! The build chooses: plain builds get the real thing, `--cfg loom` and `--cfg shuttle` the model
//! checkers' replacements with the same signatures. Locks do not poison: a panic in one request is
//! that request's failure, not its neighbours'.

#![forbid(unsafe_code)]

mod clock;
mod counter;
mod lock;
#[cfg(shuttle)]
pub mod model;
pub mod mutant;
pub mod thread;

pub use clock::{Clock, ManualClock, RealClock};
pub use counter::Counter;
pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Atomics of the chosen build.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(shuttle)]
    pub use shuttle::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}
