//! Things that can be ready.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use crate::Events;
use crate::barrier::{after_rmw, full};
use crate::queue::WaitQueue;

/// The readiness of a source.
pub trait Poll: Send + Sync + 'static {
    /// The events that it is ready for at this moment.
    ///
    /// Called by threads that wait, with the eventpoll's lock held: it must not block for long, and
    /// must not call into an eventpoll. It may take locks under which sources are signalled, and
    /// under which sources and eventpolls are dropped; not locks under which a thread waits for the
    /// eventpoll, or adds to it, modifies or deletes.
    fn poll(&self) -> Events;

    /// Whether it makes sense to wait for it.
    fn is_pollable(&self) -> bool {
        true
    }
}

/// Something that can be ready, and the entries of its watchers.
///
/// ```
/// use std::collections::VecDeque;
/// use std::sync::Mutex;
/// use watertight_eventpoll::{EventPoll, Events, Interest, Poll, Source};
///
/// #[derive(Default)]
/// struct Inbox(Mutex<VecDeque<String>>);
///
/// impl Poll for Inbox {
///     fn poll(&self) -> Events {
///         if self.0.lock().unwrap().is_empty() { Events::empty() } else { Events::IN }
///     }
/// }
///
/// # fn main() -> Result<(), watertight_eventpoll::Error> {
/// let inbox = Source::new(Inbox::default());
/// let poll = EventPoll::new();
/// poll.add(&inbox, Interest::edge(Events::IN), 1)?;
/// inbox.0.lock().unwrap().push_back("hello".to_owned()); // first the change,
/// inbox.signal(Events::IN); // then the signal
/// assert_eq!(poll.wait(&mut Vec::new(), 1, None)?, 1);
/// # Ok(())
/// # }
/// ```
///
/// When it is dropped, it disappears from all eventpolls, even under a lock that [`Poll::poll`]
/// takes: it waits for no thread that polls it. Its value is dropped when no thread can see it any
/// more, which may be a little later and on another thread.
pub struct Source<T: Poll>(Arc<Shared<T>>);

/// A source of any type, as its watchers see it.
pub trait Watched: Send + Sync {
    #[doc(hidden)]
    fn queue(&self) -> Queue<'_>;

    #[doc(hidden)]
    fn poll_source(&self) -> Events;

    #[doc(hidden)]
    fn is_watchable(&self) -> bool;

    /// Whether it is an eventpoll.
    #[doc(hidden)]
    fn is_eventpoll(&self) -> bool {
        false
    }

    /// The sources that it watches itself, if it is an eventpoll. From the call on, a thread that
    /// adds a source to it counts chains.
    #[doc(hidden)]
    fn begin_nesting(&self) -> Vec<Arc<dyn Watched>> {
        Vec::new()
    }
}

/// A wait queue, opaque to other crates.
#[doc(hidden)]
#[derive(Debug)]
pub struct Queue<'s>(pub(crate) &'s WaitQueue);

/// Alone in its cache lines: different sources are signalled by different threads.
#[derive(Debug)]
#[repr(align(128))]
struct Shared<T> {
    queue: WaitQueue,
    value: T,
}

impl<T: Poll> Watched for Shared<T> {
    fn queue(&self) -> Queue<'_> {
        Queue(&self.queue)
    }

    fn poll_source(&self) -> Events {
        self.value.poll()
    }

    fn is_watchable(&self) -> bool {
        self.value.is_pollable()
    }
}

/// Anything that an eventpoll can watch: a [`Source`], types made of one, and another
/// [`EventPoll`](crate::EventPoll).
pub trait AsSource {
    #[doc(hidden)]
    fn watched(&self) -> Arc<dyn Watched>;
}

impl<T: Poll> Source<T> {
    /// A source that is polled through `value`.
    #[must_use]
    pub fn new(value: T) -> Self {
        Self(Arc::new(Shared { queue: WaitQueue::new(), value }))
    }

    /// Signals that the source may have become ready for `events`. From any thread, and as often as
    /// one likes; waits for no thread (the crate's page describes a thread's first signal). The
    /// caller has made the change to the source before.
    #[inline]
    pub fn signal(&self, events: Events) {
        full();
        self.0.queue.wake_up(events);
    }

    /// Like [`signal`](Self::signal), where the last change of the source is a read-modify-write of
    /// an atomic.
    #[inline]
    pub(crate) fn signal_after_rmw(&self, events: Events) {
        after_rmw();
        self.0.queue.wake_up(events);
    }
}

impl<T: Poll> Deref for Source<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Poll> AsSource for Source<T> {
    fn watched(&self) -> Arc<dyn Watched> {
        Arc::clone(&self.0) as Arc<dyn Watched>
    }
}

impl<T: Poll> Drop for Source<T> {
    fn drop(&mut self) {
        self.0.queue.close();
    }
}

impl<T: Poll + fmt::Debug> fmt::Debug for Source<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.0.value).finish()
    }
}
