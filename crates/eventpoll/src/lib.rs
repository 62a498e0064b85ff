//! epoll for things inside a process.
//!
//! A [`Source`] is something that can be ready. An [`EventPoll`] watches many of them, and
//! [`EventPoll::wait`] reports which are. Both may be dropped at any time, with callers
//! inside.
//!
//! ```
//! use watertight_eventpoll::{Event, EventPoll, Events, Flag, Interest};
//! use std::time::Duration;
//!
//! # fn main() -> Result<(), watertight_eventpoll::Error> {
//! let poll = EventPoll::new();
//! let has_work = Flag::new();
//! poll.add(&has_work, Interest::level(Events::IN), 7)?;
//!
//! let mut ready = Vec::new();
//! assert_eq!(poll.wait(&mut ready, 8, Some(Duration::ZERO))?, 0);
//! has_work.set(); // from any thread
//! assert_eq!(poll.wait(&mut ready, 8, None)?, 1);
//! assert_eq!(ready, [Event { token: 7, events: Events::IN }]);
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//! * **A producer never waits**: neither for another producer nor for a consumer. It takes no lock
//!   that either of them holds, and makes a system call only if a consumer sleeps that was not
//!   woken. There are two exceptions, both in the reclamation of memory (`rcu`): the first signal
//!   of a thread's life registers the thread, under a lock that is held for as long as a list is
//!   changed; and a signal during which a grace period began to sleep wakes it by a system call. A
//!   real-time thread that signals once before it begins has the first behind it.
//! * **A signal that has returned is seen** by every wait that begins later, wherever other threads
//!   were stopped. So a consumer of high priority never waits for a producer of low priority.
//! * A source that is ready is queued once, however often it is signalled and by however many
//!   threads.
//! * Sources that became ready between two waits come after those that were left over before, and
//!   before those that are ready again. Within such a batch the order is not that of the signals.
//! * A source is asked for its readiness when it is reported, not when it was signalled.
//!
//! Threads that wait for the same eventpoll, and threads that add, modify and delete, take turns by
//! a lock of their own.
//!
//! | type | is |
//! |---|---|
//! | [`Source`], [`Flag`], [`EventCounter`] | what can be ready: of a kind of one's own, or ready-made |
//! | [`EventPoll`] | an interest set, and threads that wait for it; a source itself |
//! | [`Interest`] | which events, and how they are reported |
//! | [`wait_for`] | poll(2) for one source |
//! | [`Journal`] | a log of entries, for readers at a pace of their own; a writer waits for none of them |
//! | [`EventStream`], [`PollFd`] | an eventpoll for async code, and for another poll loop |
//!
//! ```text
//!  stream  pollfd, eventfd      async code, and other poll loops
//!     |      |
//!     notify                    kinds   journal     ready-made sources; the newest entries of a log
//!       |                          |      |
//!  eventpoll   pollone             |      |         the interface: many sources, or one
//!       |         |                |      |
//!  inner  watches |                |      |         items and scans; a limit of watched sources
//!    |  \         |                |      |
//!    |   nest     |                |      |         chains of eventpolls
//!    |     \      |                |      |
//!    |      source ----------------+------+         what can be ready
//!    |         |
//!  deferred  queue            a lock that a dropped source does not wait for; wait queues
//!              |
//!  reclaim  ready  waiters    how entries stay alive; the ready bitmap; consumers that sleep
//!              |      |
//!             barrier         memory barriers
//! ```
//!
//! Read `ready` first, the protocol between producers and consumers.

#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod barrier;
mod deferred;
mod error;
mod eventfd;
mod eventpoll;
mod events;
mod inner;
mod journal;
mod kinds;
mod nest;
mod notify;
mod pollfd;
mod pollone;
mod queue;
#[doc(hidden)]
pub mod ready;
mod reclaim;
mod source;
mod stream;
mod waiters;
mod watches;

pub use error::{Error, Result};
pub use eventpoll::{EventPoll, Options};
pub use events::{Event, Events, Interest};
pub use journal::{Journal, Read, Reader};
pub use kinds::{EventCounter, Flag};
pub use pollfd::PollFd;
pub use pollone::wait_for;
pub use source::{AsSource, Poll, Source};
pub use stream::EventStream;
pub use watches::Watches;
