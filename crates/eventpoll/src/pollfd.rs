//! Waiting for an eventpoll with a file descriptor, in a foreign poll loop.

use std::fmt;
#[cfg(not(any(loom, shuttle)))]
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use crate::eventfd::EventFd;
use crate::notify::{Listening, Notify};
use crate::{Error, Event, EventPoll, Result};

/// An eventpoll as a file descriptor, which is readable while something is ready: for poll(2),
/// epoll(7) and loops that are built on them.
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
pub struct PollFd(Listening<EventFd>);

impl Notify for EventFd {
    fn tell(&self) {
        self.write();
    }
}

impl PollFd {
    /// A descriptor for `poll`.
    ///
    /// # Errors
    /// Where the host gives no descriptor; [`Error::Closed`] as an error of kind `NotConnected`.
    pub fn new(poll: Arc<EventPoll>) -> std::io::Result<Self> {
        let fd = EventFd::new()?;
        let closed = |error: Error| std::io::Error::new(std::io::ErrorKind::NotConnected, error);
        let this = Self(Listening::new(poll, fd).map_err(closed)?);
        // No producer has notified of sources that were ready before.
        this.0.told.tell();
        Ok(this)
    }

    /// Takes up to `max` events without waiting, as [`EventPoll::wait`]. The descriptor stays
    /// readable until this finds nothing.
    ///
    /// Several threads may take. A thread that is stopped in the middle of it may have made the
    /// descriptor unreadable for the others until it goes on; a thread that signals never does.
    ///
    /// # Errors
    /// As [`EventPoll::wait`].
    pub fn take(&self, events: &mut Vec<Event>, max: usize) -> Result<usize> {
        // In this order: notifications from before the check are taken back, and later work is
        // notified again.
        self.0.told.notify.read();
        self.0.told.rearm();
        let result = self.0.poll.wait(events, max, Some(Duration::ZERO));
        if result != Ok(0) {
            self.0.told.tell();
        }
        result
    }

    /// The descriptor's state as poll(2) reports it; for tests.
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.0.told.notify.is_readable()
    }
}

#[cfg(not(any(loom, shuttle)))]
impl AsFd for PollFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.told.notify.0.as_fd()
    }
}

#[cfg(not(any(loom, shuttle)))]
impl AsRawFd for PollFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.told.notify.0.as_raw_fd()
    }
}

impl fmt::Debug for PollFd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollFd").field("poll", &self.0.poll).finish_non_exhaustive()
    }
}
