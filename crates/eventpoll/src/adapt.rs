//! Waiting for an eventpoll in other ways: from async code, and with a file descriptor in somebody else's poll loop.
//!
//! Both listen to the eventpoll as an outer one would. `is_told` keeps them from being told again before they have looked.
//!
//! # Orderings
//! * P8 teller: queue, full barrier, exchange `is_told`. Looker: clear `is_told`, full barrier, look. Either the looker
//!   sees what was queued, or the teller finds the flag cleared, and tells.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;
use rustix::event::{EventfdFlags, eventfd};
use sync::atomic::{AtomicBool, Ordering};

use crate::barrier::full;
use crate::protect::Cell;
use crate::queue::Listener;
use crate::{AsSource, Error, Event, EventPoll, Events, Result};

/// Events that one look takes.
const BATCH: usize = 64;

/// Who is told that an eventpoll may be ready.
struct Told<T> {
    is_told: AtomicBool,
    teller: T,
}

trait Teller: Send + Sync {
    fn tell(&self);
}

impl<T: Teller> Told<T> {
    fn tell(&self) {
        // ORDERING: AcqRel, P8 with the caller's barrier.
        if !self.is_told.swap(true, Ordering::AcqRel) {
            self.teller.tell();
        }
    }

    /// What comes from here on is told.
    fn clear(&self) {
        // ORDERING: Relaxed, P8 with the barrier.
        self.is_told.store(false, Ordering::Relaxed);
        full();
    }
}

impl<T: Teller> Listener for Told<T> {
    fn fire(&self, _events: Events) -> bool {
        self.tell();
        true
    }

    fn source_closed(&self, _source: u64) {
        self.tell();
    }
}

/// An eventpoll's listener, until it is dropped.
struct Listening<T: Teller + 'static> {
    poll: Arc<EventPoll>,
    told: Arc<Told<T>>,
}

impl<T: Teller + 'static> Listening<T> {
    fn new(poll: Arc<EventPoll>, teller: T) -> Result<Self> {
        let told = Arc::new(Told { is_told: AtomicBool::new(false), teller });
        drop(poll.watched().queue().0.attach(Arc::clone(&told) as _, false)?);
        Ok(Self { poll, told })
    }
}

impl<T: Teller + 'static> Drop for Listening<T> {
    fn drop(&mut self) {
        let listener = Arc::clone(&self.told) as Arc<dyn Listener>;
        drop(self.poll.watched().queue().0.detach(&listener));
    }
}

/// The events of an eventpoll as a stream, for any runtime. Ends when the eventpoll is closed.
///
/// A source of level kind that stays ready comes again and again: take what it has before the next event is asked for.
pub struct EventStream {
    listening: Listening<Cell<Option<Waker>>>,
    waker: Option<Waker>,
    /// Not yet given, the next one last.
    events: Vec<Event>,
}

impl Teller for Cell<Option<Waker>> {
    fn tell(&self) {
        self.with(|waker| {
            if let Some(waker) = waker {
                waker.wake_by_ref();
            }
        });
    }
}

impl EventStream {
    /// Those of `poll`.
    ///
    /// # Errors
    /// [`Error::Closed`].
    pub fn new(poll: Arc<EventPoll>) -> Result<Self> {
        let listening = Listening::new(poll, Cell::new(None))?;
        Ok(Self { listening, waker: None, events: Vec::new() })
    }
}

impl Stream for EventStream {
    type Item = Event;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let this = &mut *self;
        if let Some(event) = this.events.pop() {
            return Poll::Ready(Some(event));
        }
        if !this.waker.as_ref().is_some_and(|known| known.will_wake(context.waker())) {
            this.waker = Some(context.waker().clone());
            drop(this.listening.told.teller.replace(this.waker.clone()));
        }
        this.listening.told.clear();
        match this.listening.poll.wait(&mut this.events, BATCH, Some(Duration::ZERO)) {
            Ok(0) => Poll::Pending,
            Ok(_) => {
                this.events.reverse();
                Poll::Ready(this.events.pop())
            }
            Err(_) => Poll::Ready(None),
        }
    }
}

impl fmt::Debug for EventStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream").field("poll", &self.listening.poll).finish_non_exhaustive()
    }
}

/// An eventpoll as a file descriptor, which is readable while something is ready: for poll(2), epoll(7) and those who
/// are built on them.
pub struct PollFd(Listening<OwnedFd>);

impl Teller for OwnedFd {
    fn tell(&self) {
        // It is read before it could overflow.
        let _ = rustix::io::write(self, &1_u64.to_ne_bytes());
    }
}

impl PollFd {
    /// One for `poll`.
    ///
    /// # Errors
    /// Where the host gives no descriptor; [`Error::Closed`] as an error of kind `NotConnected`.
    pub fn new(poll: Arc<EventPoll>) -> std::io::Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let closed = |error: Error| std::io::Error::new(std::io::ErrorKind::NotConnected, error);
        let this = Self(Listening::new(poll, fd).map_err(closed)?);
        // What was ready before nobody has told of.
        this.0.told.tell();
        Ok(this)
    }

    /// Takes up to `max` events without waiting, as [`EventPoll::wait`]. The descriptor stays readable until this
    /// finds nothing.
    ///
    /// # Errors
    /// As [`EventPoll::wait`].
    pub fn take(&self, events: &mut Vec<Event>, max: usize) -> Result<usize> {
        let mut number = [0; 8];
        // Nothing there: somebody else has read it.
        let _ = rustix::io::read(&self.0.told.teller, &mut number);
        self.0.told.clear();
        let result = self.0.poll.wait(events, max, Some(Duration::ZERO));
        if result != Ok(0) {
            self.0.told.tell();
        }
        result
    }
}

impl AsFd for PollFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.told.teller.as_fd()
    }
}

impl AsRawFd for PollFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.told.teller.as_raw_fd()
    }
}

impl fmt::Debug for PollFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollFd").field("poll", &self.0.poll).finish_non_exhaustive()
    }
}
