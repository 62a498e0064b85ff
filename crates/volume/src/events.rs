//! Events of a volume, for readers that listen.
//!
//! A thread that reports an event never waits: events go to an [`eventpoll::Journal`]. Conditions
//! that begin and end (a store that stalls, a full cache) are reported as the edges of a state. The
//! state has a lock of its own, so that the edges come in the order in which they happened. Only a
//! thread that has to wait for room anyway, and one that reads the volume's figures, take it.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use eventpoll::Journal;
use serde::{Deserialize, Serialize};
use store::ErrorKind;
use sync::Mutex;
use sync::accounting::{self, Part, Spending, spend_on, spend_on_since};

pub use crate::limit_waits::Limit;
use crate::limit_waits::LimitWaits;

/// Events that are kept for readers that come later or are slow.
const EVENTS_KEPT: usize = 1024;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When it happened.
    pub at: SystemTime,
    /// What happened.
    pub what: What,
}

/// The kinds of events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The volume's life went on.
    Life {
        /// Its new state.
        state: Life,
        /// The path where it was mounted or attached.
        path: Option<PathBuf>,
        /// Why it failed, in words.
        error: Option<String>,
    },
    /// A limit of a cgroup begins or ceases to hold its writers up.
    Limit {
        /// The cgroup, as a path below the root of the hierarchy.
        cgroup: PathBuf,
        /// The limit.
        limit: Limit,
        /// Whether it begins or ceases to.
        edge: Edge,
    },
    /// The store does not answer, or answers again.
    Stall(Edge),
    /// Writers wait for room in the cache, or no more.
    CacheFull(Edge),
    /// Data could not be written. It stays in the cache, and is tried again.
    Error {
        /// The node.
        node: u64,
        /// The file's path in the volume, if the store can say.
        path: Option<PathBuf>,
        /// Why.
        error: ErrorKind,
    },
}

/// The states of a volume's life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Life {
    /// It was mounted.
    Mounted,
    /// It was attached to a mount that serves several volumes.
    Attached,
    /// No path leads to it any more.
    Detached,
    /// It writes its remaining data.
    Draining,
    /// Everything is on the store and the store is free.
    Released,
    /// It ended with data that was not written.
    Failed,
}

/// The beginning or the end of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Edge {
    /// It begins.
    Begins,
    /// It ends.
    Ends,
}

/// The events of one volume.
#[derive(Debug)]
pub struct Events {
    journal: Arc<Journal<Event>>,
    full: Mutex<Full>,
    limits: Mutex<Limits>,
    limit_waits: LimitWaits,
}

/// Limits that hold a caller up, or did so at the last check.
type Limits = BTreeMap<(PathBuf, Limit), Full>;

/// The waiters for one thing: room, or a limit.
#[derive(Debug, Default)]
struct Full {
    is_full: bool,
    waiting: u64,
    /// Whether a thread began or ceased to wait since the last check.
    has_waited: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self {
            journal: Journal::new(EVENTS_KEPT),
            full: Mutex::new(Full::default()),
            limits: Mutex::new(Limits::new()),
            limit_waits: LimitWaits::default(),
        }
    }
}

impl Events {
    /// The events themselves. They end with [`Life::Released`] or [`Life::Failed`].
    #[must_use]
    pub const fn journal(&self) -> &Arc<Journal<Event>> {
        &self.journal
    }

    /// The volume was mounted or attached at `path`, or detached.
    pub fn life(&self, state: Life, path: Option<PathBuf>) {
        self.push(What::Life { state, path, error: None });
    }

    /// The volume's end, [`Life::Released`] unless there is an error to report. Only the first one
    /// counts.
    pub fn end(&self, error: Option<String>) {
        let state = if error.is_none() { Life::Released } else { Life::Failed };
        self.journal.end(Event { at: SystemTime::now(), what: What::Life { state, path: None, error } });
    }

    /// A thread waits for a limit of `cgroup`, until the guard is dropped. Many short waits are
    /// one: it ends when a check finds that no thread has waited since the last one.
    pub(crate) fn waits_for_limit(&self, cgroup: PathBuf, limit: Limit) -> WaitsForLimit<'_> {
        let mut limits = self.limits.lock();
        let of = (cgroup, limit);
        let full = limits.entry(of.clone()).or_default();
        if full.begin() {
            self.limit(of.0.clone(), limit, Edge::Begins);
        }
        drop(limits);
        let since = Instant::now();
        self.limit_waits.begin(&of.0, limit, since);
        let spending = spend_on_since(Part::Limit, since);
        accounting::wait_for_limit(of.0.to_string_lossy().into_owned(), limit.name());
        WaitsForLimit { events: self, of, since, _spending: spending }
    }

    /// A limit of `cgroup` begins or ceases to hold its writers up. The caller reports each edge
    /// once, in order.
    pub fn limit(&self, cgroup: PathBuf, limit: Limit, edge: Edge) {
        self.push(What::Limit { cgroup, limit, edge });
    }

    pub(crate) fn error(&self, node: u64, path: Option<PathBuf>, error: ErrorKind) {
        self.push(What::Error { node, path, error });
    }

    /// A thread waits for room in the cache, until the guard is dropped.
    pub(crate) fn waits_for_room(&self) -> Waits<'_> {
        let mut full = self.full.lock();
        if full.begin() {
            self.push(What::CacheFull(Edge::Begins));
        }
        drop(full);
        Waits { events: self, _spending: spend_on(Part::Cache) }
    }

    pub(crate) fn limit_waits(&self) -> &LimitWaits {
        &self.limit_waits
    }

    /// Reports the conditions that have ended: no thread has waited for room, or for a limit, since
    /// the last check.
    pub(crate) fn look_at_waits(&self) {
        // An edge is reported under the lock: the edges come in their order.
        let mut full = self.full.lock();
        if full.has_ended() {
            self.push(What::CacheFull(Edge::Ends));
        }
        drop(full);
        self.limits.lock().retain(|(cgroup, limit), full| {
            let has_ended = full.has_ended();
            if has_ended {
                self.limit(cgroup.clone(), *limit, Edge::Ends);
            }
            !has_ended
        });
    }

    /// The store does not answer, or answers again. The caller reports each edge once, in order.
    pub(crate) fn stall(&self, edge: Edge) {
        self.push(What::Stall(edge));
    }

    fn push(&self, what: What) {
        self.journal.push(Event { at: SystemTime::now(), what });
    }
}

impl Full {
    /// One more thread waits; says whether it is the first since the end.
    fn begin(&mut self) -> bool {
        self.waiting += 1;
        self.has_waited = true;
        !std::mem::replace(&mut self.is_full, true)
    }

    fn end(&mut self) {
        self.waiting -= 1;
        self.has_waited = true;
    }

    /// Whether the condition ends with this check.
    fn has_ended(&mut self) -> bool {
        let has_waited = std::mem::take(&mut self.has_waited);
        let has_ended = self.is_full && self.waiting == 0 && !has_waited;
        self.is_full &= !has_ended;
        has_ended
    }
}

/// A thread waits for a limit.
#[derive(Debug)]
pub(crate) struct WaitsForLimit<'e> {
    events: &'e Events,
    of: (PathBuf, Limit),
    since: Instant,
    _spending: Spending,
}

impl Drop for WaitsForLimit<'_> {
    fn drop(&mut self) {
        // It is there: no thread takes it out while another waits.
        if let Some(full) = self.events.limits.lock().get_mut(&self.of) {
            full.end();
        }
        self.events.limit_waits.end(&self.of, self.since, Instant::now());
    }
}

/// A thread waits for room.
#[derive(Debug)]
pub(crate) struct Waits<'e> {
    events: &'e Events,
    _spending: Spending,
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.events.full.lock().end();
    }
}

#[cfg(test)]
mod tests {
    use eventpoll::Read;

    use super::*;

    fn whats(events: &Events) -> Vec<What> {
        let mut reader = events.journal().reader(0);
        let next = || match reader.read() {
            Read::Entry { value, .. } => Some(value.what.clone()),
            _ => None,
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_cache_is_full_until_nobody_has_waited_for_a_while() {
        let events = Events::default();
        let (one, other) = (events.waits_for_room(), events.waits_for_room());
        drop(one);
        events.look_at_waits();
        drop(other);
        events.look_at_waits();
        drop(events.waits_for_room());
        events.look_at_waits();
        assert_eq!(whats(&events), [What::CacheFull(Edge::Begins)]);
        events.look_at_waits();
        events.look_at_waits();
        drop(events.waits_for_room());
        let (begins, ends) = (What::CacheFull(Edge::Begins), What::CacheFull(Edge::Ends));
        assert_eq!(whats(&events), [begins.clone(), ends, begins]);
    }

    #[test]
    fn a_limit_holds_up_until_nobody_has_waited_for_a_while() {
        let events = Events::default();
        for _ in 0..100 {
            drop(events.waits_for_limit("/a".into(), Limit::IoMax));
        }
        let other = events.waits_for_limit("/a".into(), Limit::DirtyMax);
        (0..5).for_each(|_| events.look_at_waits());
        drop(other);
        (0..5).for_each(|_| events.look_at_waits());
        let edge = |limit, edge| What::Limit { cgroup: "/a".into(), limit, edge };
        let begins = [Limit::IoMax, Limit::DirtyMax].map(|limit| edge(limit, Edge::Begins));
        let ends = [Limit::IoMax, Limit::DirtyMax].map(|limit| edge(limit, Edge::Ends));
        assert_eq!(whats(&events), [begins, ends].concat());
        assert!(events.limits.lock().is_empty(), "what has ended is forgotten");
    }

    #[test]
    fn the_first_end_is_the_last_event() {
        let events = Events::default();
        events.life(Life::Mounted, Some("/mnt".into()));
        events.end(Some("full".to_owned()));
        events.end(None);
        events.life(Life::Detached, None);
        let states: Vec<_> = whats(&events)
            .into_iter()
            .map(|what| match what {
                What::Life { state, .. } => state,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(states, [Life::Mounted, Life::Failed]);
    }
}
