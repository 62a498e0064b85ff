//! Read-copy-update for user space.
//!
//! Readers read shared data without locks and without writing a cache line that another thread
//! reads. Writers replace what readers see, and wait for a *grace period* before they free what was
//! there: until every reader that could have seen it has left its read section.
//!
//! ```
//! use watertight_rcu::{Domain, RcuCell};
//!
//! let domain = Domain::new();
//! let limits = RcuCell::new(&domain, vec![1, 2, 3]);
//! {
//!     let guard = domain.read();
//!     assert_eq!(limits.load(&guard).len(), 3);
//! }
//! let old = limits.replace(vec![4]);
//! assert_eq!(old.wait(), [1, 2, 3]); // no reader sees it any more
//! ```
//!
//! | type | is |
//! |---|---|
//! | [`Domain`] | readers, and the threads that wait for them; independent of every other domain |
//! | [`Guard`] | a read section |
//! | [`RcuCell`] | a value that is replaced while others read it |
//! | [`Retired`] | a replaced value, until no reader sees it |
//! | [`Cookie`] | a grace period to come, for pollers |
//!
//! ```text
//!  domain   cell                        the interface; pointers that live as long as a guard
//!    |  \      |
//!    |   callbacks::worker  polls::worker    callers and the worker; grace periods for pollers
//!    |      |        |         |
//!  local ---+     workers -----+         which reader of a domain is this thread's; its threads
//!    |               |
//!  handle            |                   a domain's counted references
//!    |               |
//!  inner ------------+                   what a domain is made of:
//!    |
//!  callbacks   polls   ticks   stats
//!    |           |       |
//!  callback_list |       |     ticket, pool      lists of callbacks; parked threads
//!    |           |       |
//!  work         gp ------+               one callback; readers and grace periods
//!                |
//!             barrier, seq               asymmetric fences; numbers of grace periods
//! ```
//!
//! Read `gp` first, the protocol between readers and grace periods.
//!
//! # Threads
//! A thread needs no registration by hand, and costs each domain that it uses a reader until it
//! ends. A domain has at most two threads: one while callbacks run or wait for a grace period, one
//! while grace periods are requested by pollers. They are started when they are needed. A thread
//! without work serves another domain or ends after 250 ms; at most eight are parked. Where the
//! host gives no thread, an error is logged once. Callbacks are then invoked by threads that wait
//! for them or for room, and the next call tries again; a poller must request again
//! ([`Domain::start_poll`]) or wait ([`Domain::cond_synchronize`]).
//!
//! # Ordering guarantees
//! Let U be the actions of a thread before it asked for a grace period: before a call of
//! `synchronize*`, of [`Domain::get_state`] or `start_poll*`, or of [`Domain::call`] and its like.
//! When that grace period is over (the call has returned; [`Domain::poll_state`] has answered
//! `true`, or `cond_synchronize*` has returned; the callback runs), then for each section of the
//! domain, on any processor, one of these holds:
//!
//! - the section had ended, and all that its thread did in it *happens before* what follows the
//!   grace period;
//! - the section began later, and U *happens before* all that is done in it.
//!
//! So each grace period is a full memory barrier between U and what follows it, as the kernel's
//! are. A section by itself is no barrier: its loads are ordered by their own orderings
//! ([`RcuCell`] acquires and releases). A callback's actions *happen before* the return of a
//! [`Domain::barrier`] that was called after the callback was queued.
//!
//! # Locks
//! A section takes none, except a thread's first one in a domain (and each one of a thread that is
//! ending): that registers the thread under a lock that is held to read the list of readers, and
//! never while a thread waits for anything. When a section ends that a grace period sleeps for, its
//! thread wakes the grace period with a system call and no lock.
//!
//! # fork(2)
//! A child that was forked has one thread only: sections that others had open never end there, and
//! the domains' threads are missing. Such a child uses no domain, neither its parent's nor one of
//! its own; after `execve(2)` all is as in any program.
//!
//! # Processors
//! Readers have no fences on x86, AArch64, 64-bit RISC-V and s390x under Linux with `membarrier(2)`
//! (4.14 and later), and full ones elsewhere.

#![deny(unsafe_code)]

mod barrier;
#[allow(unsafe_code, reason = "one thread fills, another empties")]
#[doc(hidden)]
pub mod callback_list;
#[doc(hidden)]
pub mod callbacks;
#[allow(unsafe_code, reason = "pointers whose life a guard proves")]
mod cell;
#[allow(unsafe_code, reason = "a thread's own slot")]
mod domain;
#[doc(hidden)]
pub mod gp;
#[allow(unsafe_code, reason = "a counted reference that points to its value")]
mod handle;
mod inner;
#[allow(unsafe_code, reason = "a thread's own pointer to its slot, without counting")]
mod local;
mod polls;
#[cfg(not(loom))]
#[doc(hidden)]
pub mod pool;
mod seq;
mod stats;
mod ticket;
#[doc(hidden)]
pub mod ticks;
#[allow(unsafe_code, reason = "closures without a box")]
#[doc(hidden)]
pub mod work;
mod workers;

/// Registers the process for `membarrier(2)`, which is done by its first domain otherwise. To be called
/// while the process has one thread: of one with several the kernel waits for a grace period of its
/// own, 7 ms on an idle host.
pub fn register_process() {
    let _known_from_now_on = barrier::is_asymmetric();
}

pub use callbacks::WorkQueue;
pub use cell::{RcuCell, Retired};
pub use domain::{Domain, DomainOptions, Guard, read};
pub use seq::Cookie;
pub use stats::Stats;
