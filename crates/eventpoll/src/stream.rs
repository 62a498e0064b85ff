//! Waiting for an eventpoll from async code.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_core::Stream;

use crate::notify::{Listening, Notify};
use crate::reclaim::{RcuCell, domain};
use crate::{Event, EventPoll, Result};

/// Events that one scan takes.
const BATCH: usize = 64;

/// The events of an eventpoll as a stream, for any runtime. Ends when the eventpoll is closed.
///
/// A source of level kind that stays ready comes again and again: take its contents before asking
/// for the next event.
///
/// ```
/// use std::future::poll_fn;
/// use std::pin::Pin;
/// use std::sync::Arc;
///
/// use futures_core::Stream;
/// use watertight_eventpoll::{EventCounter, EventPoll, EventStream, Events, Interest};
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
/// let (poll, source) = (Arc::new(EventPoll::new()), Arc::new(EventCounter::new()));
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
    listening: Listening<RcuCell<Option<Waker>>>,
    waker: Option<Waker>,
    /// Events not yet returned, the next one last.
    events: Vec<Event>,
}

impl Notify for RcuCell<Option<Waker>> {
    fn tell(&self) {
        self.with(|waker| {
            if let Some(waker) = waker {
                waker.wake_by_ref();
            }
        });
    }
}

impl EventStream {
    /// The events of `poll`.
    ///
    /// # Errors
    /// [`Error::Closed`](crate::Error::Closed).
    pub fn new(poll: Arc<EventPoll>) -> Result<Self> {
        let listening = Listening::new(poll, RcuCell::new(domain(), None))?;
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
            drop(this.listening.told.notify.replace(this.waker.clone()));
        }
        this.listening.told.rearm();
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
