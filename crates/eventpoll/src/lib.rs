//! epoll for things inside a process.
//!
//! A [`Source`] is something that can be ready. An [`EventPoll`] watches many of them, and whoever
//! calls [`EventPoll::wait`] is told which are. Both may be dropped at any time, with callers
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
//! * **Whoever signals never waits**: not for another who signals, not for who waits. It takes no
//!   lock that either of them holds, and makes a system call only if somebody sleeps and nobody has
//!   woken it. Two moments are apart, both of the reclamation of memory (`rcu`), with locks that
//!   are held for as long as a list is changed: the first signal of a thread's life puts the thread
//!   on a list, and a signal during which somebody fell asleep to wait for its end tells that one.
//!   A real-time thread signals once before it begins, and the first is behind it.
//! * **A signal that has returned is seen** by every wait that begins later, whatever other threads
//!   were stopped in the middle of, at whatever point. So a consumer of high priority never waits
//!   for a producer of low priority.
//! * A source that is ready is queued once, however often it is signalled and by however many
//!   threads.
//! * What became ready between two waits comes after what was left over before, and before what is
//!   ready again. Within such a batch the order is not that of the signals.
//! * A source is asked for its readiness when it is reported, not when it was signalled.
//!
//! Those who wait for the same eventpoll, and those who add, modify and delete, take turns by a
//! lock of their own.
//!
//! | type | is |
//! |---|---|
//! | [`Source`], [`Flag`], [`Counter`] | what can be ready: of a kind of one's own, or ready-made |
//! | [`EventPoll`] | an interest set and who waits for it; a source itself |
//! | [`Interest`] | which events, and how they are reported |
//! | [`wait_for`] | poll(2) for one source |
//! | [`Journal`] | what happened, for readers at a pace of their own; who writes waits for none of them |
//! | [`EventStream`], [`PollFd`] | an eventpoll for async code, and for somebody else's poll loop |
//!
//! | module | holds |
//! |---|---|
//! | `ready` | which items may be ready: the protocol between those who signal and those who wait |
//! | `waiters` | who sleeps, and who wakes them |
//! | `barrier` | memory barriers |
//! | `queue` | who listens to a source; `protect` keeps them alive |
//! | `core` | items and scans |
//! | `errands` | a lock that nobody who is dropped waits for |
//! | `nest` | chains of eventpolls |
//! | `journal` | the newest entries of what happened |
//! | `told` | who is told from outside of a wait: async code (`stream`) and descriptors (`pollfd`, `eventfd`) |
//! | `source`, `kinds`, `eventpoll`, `pollone`, `stream`, `pollfd` | the interface |

#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod barrier;
mod core;
mod errands;
mod error;
mod eventfd;
mod eventpoll;
mod events;
mod journal;
mod kinds;
mod nest;
mod pollfd;
mod pollone;
mod protect;
mod queue;
#[doc(hidden)]
pub mod ready;
mod source;
mod stream;
mod told;
mod waiters;

pub use error::{Error, Result};
pub use eventpoll::{EventPoll, Options, Watches};
pub use events::{Event, Events, Interest};
pub use journal::{Journal, Read, Reader};
pub use kinds::{Counter, Flag};
pub use pollfd::PollFd;
pub use pollone::wait_for;
pub use source::{AsSource, Poll, Source};
pub use stream::EventStream;
