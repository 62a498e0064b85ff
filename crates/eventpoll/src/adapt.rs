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
///
/// ```
/// use std::future::poll_fn;
/// use std::pin::Pin;
/// use std::sync::Arc;
///
/// use futures_core::Stream;
/// use watertight_eventpoll::{Counter, EventPoll, EventStream, Events, Interest};
/// # fn block_on<T>(future: impl Future<Output = T>) -> T {
/// #     struct Unpark(std::thread::Thread);
/// #     impl std::task::Wake for Unpark {
/// #         fn wake(self: Arc<Self>) {
/// #             self.0.unpark();
/// #         }
/// #     }
/// #     let waker = Arc::new(Unpark(std::thread::current())).into();
/// #     let mut future = std::pin::pin!(future);
/// #     loop {
/// #         let context = &mut std::task::Context::from_waker(&waker);
/// #         if let std::task::Poll::Ready(value) = future.as_mut().poll(context) {
/// #             return value;
/// #         }
/// #         std::thread::park();
/// #     }
/// # }
///
/// # fn main() -> Result<(), watertight_eventpoll::Error> {
/// let (poll, source) = (Arc::new(EventPoll::new()), Arc::new(Counter::new()));
/// poll.add(&*source, Interest::level(Events::IN), 7)?;
/// let mut stream = EventStream::new(Arc::clone(&poll))?;
///
/// let producer = {
///     let source = Arc::clone(&source);
///     std::thread::spawn(move || (0..1000).for_each(|_| source.add(1)))
/// };
/// let sum = block_on(async {
///     let mut sum = 0;
///     while sum < 1000 {
///         // With the `futures` crate: `stream.next().await`.
///         let event = poll_fn(|context| Pin::new(&mut stream).poll_next(context)).await;
///         assert_eq!(event.map(|event| event.token), Some(7));
///         sum += source.take();
///     }
///     sum
/// });
/// assert_eq!(sum, 1000);
///
/// poll.close();
/// assert_eq!(block_on(poll_fn(|context| Pin::new(&mut stream).poll_next(context))), None);
/// # producer.join().unwrap();
/// # Ok(())
/// # }
/// ```
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
///
/// A loop that waits for a socket, and from now on for an eventpoll as well:
/// ```
/// use std::io::{Read as _, Write as _};
/// use std::os::unix::net::UnixStream;
/// use std::sync::Arc;
///
/// use rustix::event::{PollFlags, poll};
/// use watertight_eventpoll::{EventPoll, Events, Flag, Interest, PollFd};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (events, has_work) = (Arc::new(EventPoll::new()), Arc::new(Flag::new()));
/// events.add(&*has_work, Interest::level(Events::IN), 7)?;
/// let fd = PollFd::new(Arc::clone(&events))?;
/// let (mut socket, mut peer) = UnixStream::pair()?;
///
/// let producer = {
///     let has_work = Arc::clone(&has_work);
///     std::thread::spawn(move || {
///         has_work.set();
///         peer.write_all(b"!")
///     })
/// };
/// let (mut is_done, mut is_greeted) = (false, false);
/// while !(is_done && is_greeted) {
///     let mut fds = [&socket as &dyn std::os::fd::AsFd, &fd]
///         .map(|fd| rustix::event::PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN));
///     poll(&mut fds, None)?;
///     let [is_socket, is_eventpoll] = fds.map(|fd| fd.revents().contains(PollFlags::IN));
///     if is_socket {
///         socket.read_exact(&mut [0])?;
///         is_greeted = true;
///     }
///     let mut ready = Vec::new();
///     if is_eventpoll && fd.take(&mut ready, 8)? > 0 {
///         assert_eq!(ready[0].token, 7);
///         is_done = has_work.take();
///     }
/// }
/// # producer.join().unwrap()?;
/// # Ok(())
/// # }
/// ```
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
