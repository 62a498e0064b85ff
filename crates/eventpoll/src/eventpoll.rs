//! The interface of an eventpoll.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::atomic::Ordering;
use sync::mutant::is_on;

use crate::barrier::after_rmw;
use crate::inner::Inner;
use crate::ready::{ReadyBitmap, ReadyList};
use crate::source::Watched;
use crate::watches::Watches;
use crate::{AsSource, Error, Event, Interest, Result, nest};

/// Watches sources, and reports to waiting threads which are ready.
///
/// Any number of threads may wait, signal, add, modify and delete at the same time. An eventpoll is
/// itself a source: ready for [`Events::IN`](crate::Events::IN) while one of its sources is. When
/// it is dropped, it lets go of its sources.
pub struct EventPoll<R: ReadyList = ReadyBitmap> {
    inner: Arc<Inner<R>>,
}

/// How an eventpoll behaves.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Limits how many sources it watches, alone or together with others.
    pub watches: Arc<Watches>,
}

impl Default for EventPoll {
    fn default() -> Self {
        Self::new()
    }
}

impl EventPoll {
    /// An eventpoll that watches nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::with_options(Options::default())
    }

    /// An eventpoll that behaves as `options` say.
    #[must_use]
    pub fn with_options(options: Options) -> Self {
        Self::with_ready_list(options)
    }
}

impl<R: ReadyList> EventPoll<R> {
    /// An eventpoll with another ready list; for experiments.
    #[doc(hidden)]
    #[must_use]
    pub fn with_ready_list(options: Options) -> Self {
        Self { inner: Arc::new(Inner::new(options.watches)) }
    }

    /// Watches a source. If it is ready, that is reported even without a signal.
    ///
    /// # Errors
    /// [`Error::Exists`], [`Error::Itself`], [`Error::NotPollable`], [`Error::WatchLimit`],
    /// [`Error::TooManyPaths`], [`Error::Closed`]; [`Error::Exclusive`] for combinations that
    /// [`Interest::exclusive`] excludes; for eventpolls also [`Error::Loop`], [`Error::TooDeep`]
    /// and, with exclusive interest, [`Error::Exclusive`].
    pub fn add(&self, source: &impl AsSource, interest: Interest, token: u64) -> Result<()> {
        let source = source.watched();
        if !source.is_watchable() {
            return Err(Error::NotPollable);
        }
        if !interest.is_permitted() {
            return Err(Error::Exclusive);
        }
        if !source.is_eventpoll() {
            self.inner.add(&source, interest, token)?.finish();
            return Ok(());
        }
        let outer = self.inner.shared.poll_wait.id();
        if outer == source.queue().0.id() {
            return Err(Error::Itself);
        }
        if interest.is_exclusive {
            return Err(Error::Exclusive);
        }
        nest::link(outer, &*source, || self.inner.add_counted(&source, interest, token))?.finish();
        Ok(())
    }

    /// Changes what is reported of a source, and arms it. If it is ready, that is reported even
    /// without a signal.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Exclusive`], [`Error::Closed`].
    pub fn modify(&self, source: &impl AsSource, interest: Interest, token: u64) -> Result<()> {
        self.inner.modify(source.watched().queue().0.id(), interest, token)
    }

    /// Stops watching a source. Waits that begin later do not report it.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::Closed`].
    pub fn delete(&self, source: &impl AsSource) -> Result<()> {
        let source = source.watched();
        if !source.is_eventpoll() {
            self.inner.delete(&*source)?.finish();
            return Ok(());
        }
        let (outer, inner) = (self.inner.shared.poll_wait.id(), source.queue().0.id());
        nest::cut(outer, inner, || self.inner.delete(&*source))?.finish();
        Ok(())
    }

    /// Waits until something is ready, and replaces the contents of `events` by up to `max` events.
    /// Returns how many; 0 when `timeout` has passed. Without a timeout it waits as long as it
    /// takes; with one of zero it does not wait, and never returns 0 while something is ready.
    ///
    /// Each source that becomes ready wakes one of the waiting threads; a thread that leaves an
    /// event behind wakes another.
    ///
    /// # Errors
    /// [`Error::NoRoom`] if `max` is 0; [`Error::Closed`]; [`Error::Interrupted`].
    pub fn wait(&self, events: &mut Vec<Event>, max: usize, timeout: Option<Duration>) -> Result<usize> {
        events.clear();
        if max == 0 {
            return Err(Error::NoRoom);
        }
        if timeout == Some(Duration::ZERO) {
            return self.harvest_at_once(events, max);
        }
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // ORDERING: Acquire: an interrupt that was over before does not count.
        let interrupts = self.inner.interrupts.load(Ordering::Acquire);
        loop {
            if !self.inner.shared.ready.is_empty() && self.inner.harvest(events, max)? > 0 {
                return Ok(events.len());
            }
            // ORDERING: Acquire here and below, pairs with the release before all are woken.
            if self.inner.interrupts.load(Ordering::Acquire) != interrupts {
                return Err(Error::Interrupted);
            }
            if self.inner.is_closed.load(Ordering::Acquire) {
                return Err(Error::Closed);
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                // Once more: a thread that was woken at the last moment must not return
                // empty-handed.
                return self.inner.harvest(events, max);
            }
            self.sleep(deadline, interrupts);
        }
    }

    /// Items that were queued, that a scan holds and that a scan left show in one word (`ready`,
    /// invariant 2).
    fn harvest_at_once(&self, events: &mut Vec<Event>, max: usize) -> Result<usize> {
        if R::IS_EXACT && self.inner.shared.ready.is_empty() {
            // ORDERING: Acquire, as in `wait`.
            return if self.inner.is_closed.load(Ordering::Acquire) { Err(Error::Closed) } else { Ok(0) };
        }
        self.inner.harvest(events, max)
    }

    fn sleep(&self, deadline: Option<Instant>, interrupts: u32) {
        let sleeper = self.inner.shared.waiters.prepare_to_wait();
        let must_stay = is_on("eventpoll-sleep-unchecked")
            // ORDERING: Acquire, as in `wait`; after the number that `wake_all` changes (`waiters`
            // P2).
            || (self.inner.shared.ready.is_empty()
                && self.inner.interrupts.load(Ordering::Acquire) == interrupts
                && !self.inner.is_closed.load(Ordering::Acquire));
        if must_stay {
            sleeper.sleep(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())));
        }
    }

    /// Ends all waits that have begun, with [`Error::Interrupted`] where nothing is ready.
    pub fn interrupt(&self) {
        // ORDERING: AcqRel, before the number that sleepers read changes.
        self.inner.interrupts.fetch_add(1, Ordering::AcqRel);
        after_rmw();
        self.inner.shared.waiters.wake_all();
    }

    /// Lets go of all sources and ends all waits. These and all later calls fail with
    /// [`Error::Closed`].
    pub fn close(&self) {
        self.inner.close();
    }

    /// The consumers that sleep in a wait and were not woken; for tests.
    #[cfg(any(loom, shuttle))]
    #[doc(hidden)]
    #[must_use]
    pub fn asleep(&self) -> usize {
        self.inner.shared.waiters.asleep()
    }

    /// The number of sources that are watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len()
    }

    /// Whether no source is watched.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl<R: ReadyList> AsSource for EventPoll<R> {
    fn watched(&self) -> Arc<dyn Watched> {
        Arc::clone(&self.inner) as Arc<dyn Watched>
    }
}

impl<R: ReadyList> Drop for EventPoll<R> {
    fn drop(&mut self) {
        self.close();
    }
}

impl<R: ReadyList> fmt::Debug for EventPoll<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventPoll").field("ready", &self.inner.shared.ready).finish_non_exhaustive()
    }
}
