//! What the threads of both transports have in common: how they are counted, how they park.
//!
//! Which thread is needed when is each transport's own policy (modules `dev_fuse::pool`,
//! `uring::pool`).
//!
//! # Lock order
//! `Parker::state` is a leaf.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use sync::{Condvar, Mutex, MutexGuard};

/// How long a thread that is not needed is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);

/// Starts a thread in the span of the calling one.
pub(crate) fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let span = tracing::Span::current();
    let body = move || span.in_scope(body);
    Builder::new().name(name.to_owned()).stack_size(256 << 10).spawn(body)
}

/// The threads of a pool, by number.
#[derive(Debug, Default)]
pub(crate) struct ThreadSet {
    /// Threads that live, with their handles.
    live: HashMap<usize, JoinHandle<()>>,
    /// Threads that have nothing left to do, or next to nothing.
    ending: Vec<JoinHandle<()>>,
    next_number: usize,
}

impl ThreadSet {
    pub(crate) fn len(&self) -> usize {
        self.live.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// The number of the thread that is added next.
    pub(crate) fn next_number(&self) -> usize {
        self.next_number
    }

    /// Adds a thread; returns its number.
    pub(crate) fn add(&mut self, handle: JoinHandle<()>) -> usize {
        let number = self.next_number;
        self.next_number += 1;
        self.live.insert(number, handle);
        self.ending.retain(|handle| !handle.is_finished());
        number
    }

    /// A thread is about to end.
    pub(crate) fn remove(&mut self, number: usize) {
        self.ending.extend(self.live.remove(&number));
    }
}

/// Waits for the threads of a pool to end, until `until` at the latest, and logs `panicked` for
/// each that panicked. Says how many are left.
pub(crate) fn wait_ended<S>(
    mut state: MutexGuard<'_, S>,
    changed: &Condvar,
    threads: impl Fn(&mut S) -> &mut ThreadSet,
    until: Instant,
    panicked: &str,
) -> usize {
    while !threads(&mut state).live.is_empty() && !changed.wait_until(&mut state, until) {}
    let stuck = threads(&mut state).len();
    let ending = std::mem::take(&mut threads(&mut state).ending);
    drop(state);
    for handle in ending {
        if handle.join().is_err() {
            tracing::error!("{panicked}");
        }
    }
    stuck
}

/// Where one thread waits, without a request, until it is needed.
#[derive(Debug)]
pub(crate) struct Parker<T> {
    state: Mutex<Parked<T>>,
    wake: Condvar,
}

#[derive(Debug)]
struct Parked<T> {
    item: Option<T>,
    is_over: bool,
}

impl<T> Default for Parker<T> {
    fn default() -> Self {
        Self { state: Mutex::new(Parked { item: None, is_over: false }), wake: Condvar::default() }
    }
}

impl<T> Parker<T> {
    /// Wakes the thread, with what it is needed for.
    pub(crate) fn unpark(&self, item: T) {
        self.state.lock().item = Some(item);
        self.wake.notify_one();
    }

    /// Wakes the thread for good.
    pub(crate) fn end(&self) {
        self.state.lock().is_over = true;
        self.wake.notify_one();
    }

    /// Takes what was put here before the thread began.
    pub(crate) fn take(&self) -> Option<T> {
        self.state.lock().item.take()
    }

    /// Waits until the thread is needed. `None`: at the end, or when it was not needed for long and
    /// `unlist` has taken it out of the list of parked threads. If it is not in the list any more,
    /// another thread is about to wake it.
    pub(crate) fn park(&self, unlist: impl FnOnce() -> bool) -> Option<T> {
        if let Ok(item) = self.wait(Some(Instant::now() + IDLE_TIMEOUT)) {
            return item;
        }
        if unlist() {
            return None;
        }
        self.wait(None).unwrap_or(None)
    }

    /// Waits for an item or the end: `Err` when `until` came first.
    fn wait(&self, until: Option<Instant>) -> Result<Option<T>, ()> {
        let mut state = self.state.lock();
        loop {
            if let Some(item) = state.item.take() {
                return Ok(Some(item));
            }
            if state.is_over {
                return Ok(None);
            }
            match until {
                None => self.wake.wait(&mut state),
                Some(until) => {
                    if self.wake.wait_until(&mut state, until) && state.item.is_none() && !state.is_over {
                        return Err(());
                    }
                }
            }
        }
    }
}

/// Takes a thread out of the list of parked ones; says whether it was there.
pub(crate) fn unlist<T>(parked: &mut Vec<Arc<Parker<T>>>, parker: &Arc<Parker<T>>) -> bool {
    let before = parked.len();
    parked.retain(|other| !Arc::ptr_eq(other, parker));
    parked.len() < before
}
