//! poll(2) for one source.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::atomic::{AtomicBool, Ordering};

use crate::barrier::after_rmw;
use crate::queue::WaitEntry;
use crate::waiters::Waiters;
use crate::{AsSource, Error, Events, Result};

/// A thread that waits for a source.
#[derive(Debug)]
struct Waiting {
    events: Events,
    was_told: AtomicBool,
    is_closed: AtomicBool,
    waiters: Waiters,
}

/// Waits until `source` is ready for any of `events`, and returns those; none when `timeout` has
/// passed. Takes nothing: a ready eventpoll keeps its events.
///
/// ```
/// use std::time::Duration;
/// use watertight_eventpoll::{EventCounter, Events, wait_for};
///
/// # fn main() -> Result<(), watertight_eventpoll::Error> {
/// let source = EventCounter::new();
/// assert_eq!(wait_for(&source, Events::IN, Some(Duration::from_millis(1)))?, Events::empty());
/// std::thread::scope(|scope| {
///     scope.spawn(|| source.add(3));
///     assert_eq!(wait_for(&source, Events::IN, None), Ok(Events::IN));
/// });
/// assert_eq!(source.get(), 3); // nothing was taken
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// [`Error::Closed`], [`Error::NotPollable`].
pub fn wait_for(source: &impl AsSource, events: Events, timeout: Option<Duration>) -> Result<Events> {
    let source = source.watched();
    if !source.is_watchable() {
        return Err(Error::NotPollable);
    }
    let events = events | Events::ERR | Events::HUP;
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let now = source.poll_source() & events;
    if !now.is_empty() || timeout == Some(Duration::ZERO) {
        return Ok(now);
    }
    let waiting = Arc::new(Waiting {
        events,
        was_told: AtomicBool::new(false),
        is_closed: AtomicBool::new(false),
        waiters: Waiters::default(),
    });
    drop(source.queue().0.attach(Arc::clone(&waiting) as _, false)?);
    let result = loop {
        // ORDERING: Acquire, the store is before the wake-up.
        if waiting.is_closed.load(Ordering::Acquire) {
            break Err(Error::Closed);
        }
        let now = source.poll_source() & events;
        if !now.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            break Ok(now);
        }
        let sleeper = waiting.waiters.prepare_to_wait();
        // ORDERING: AcqRel, `waiters` P1.
        if !waiting.was_told.swap(false, Ordering::AcqRel) {
            sleeper.sleep(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())));
        }
    };
    drop(source.queue().0.detach(&(waiting as Arc<dyn WaitEntry>)));
    result
}

impl Waiting {
    fn tell(&self) -> bool {
        // ORDERING: AcqRel, `waiters` P1.
        self.was_told.swap(true, Ordering::AcqRel);
        after_rmw();
        self.waiters.wake_one()
    }
}

impl WaitEntry for Waiting {
    fn callback(&self, events: Events) -> bool {
        events.intersects(self.events) && self.tell()
    }

    fn source_closed(&self, _source: u64) {
        // ORDERING: Release, seen after the wake-up.
        self.is_closed.store(true, Ordering::Release);
        self.tell();
    }
}
