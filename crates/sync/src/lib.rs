//! Locks, atomics, threads and time for the rest of the project: one facade over `std`, loom and
//! shuttle.
//!
//! The build chooses: plain builds get the real thing, `--cfg loom` and `--cfg shuttle` the model
//! checkers' replacements with the same signatures. Locks do not poison: a panic in one request is
//! that request's failure, not its neighbours'.
//!
//! | module | holds |
//! |---|---|
//! | `lock`, `atomic`, `cell`, `thread`, `futex` | what the build chooses: read `lock` first |
//! | `clock` | time, which a test can set |
//! | `cache_padded`, `id_hasher`, `shards`, `counter` | layout and hashing of what many threads share |
//! | `histogram`, `accounting`, `activity` | how long things take, and what a request is at |
//! | `mutant`, `model` | a protocol with a part removed; a test under many schedules |
//!
//! The modules do not depend on each other, except on `lock`, `atomic` and `counter`;
//! `accounting` and `activity` belong together.

#![forbid(unsafe_code)]

pub mod accounting;
mod activity;
mod cache_padded;
pub mod cell;
mod clock;
mod counter;
mod futex;
mod histogram;
mod id_hasher;
mod lock;
#[cfg(shuttle)]
pub mod model;
pub mod mutant;
pub mod shards;
pub mod thread;

pub use activity::{Activity, ActivityView, LimitAhead};
pub use cache_padded::CachePadded;
pub use clock::{Clock, ManualClock, RealClock};
pub use counter::StatCounter;
pub use futex::Futex;
pub use histogram::{Durations, Histogram};
pub use id_hasher::{IdHasher, IdMap, IdSet};
pub use lock::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[cfg(loom)]
#[doc(hidden)]
pub use loom as __loom;
#[cfg(shuttle)]
pub use shuttle::thread_local;
#[cfg(not(any(loom, shuttle)))]
pub use std::thread_local;

/// Thread-locals of the model's threads. Loom's own macro knows no constants.
#[cfg(loom)]
#[macro_export]
macro_rules! thread_local {
    ($($(#[$attribute:meta])* $vis:vis static $name:ident: $type:ty = const { $value:expr };)*) => {
        $crate::__loom::thread_local! {
            $($(#[$attribute])* $vis static $name: $type = $value;)*
        }
    };
}

/// Atomics of the chosen build.
pub mod atomic {
    #[cfg(loom)]
    pub use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(shuttle)]
    pub use shuttle::sync::atomic::{
        AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    #[cfg(not(any(loom, shuttle)))]
    pub use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
}
