//! What happens to a volume, for whoever wants to hear of it.
//!
//! Whoever has something to say never waits: events go to an [`eventpoll::Journal`]. Those that begin and end
//! (a store that stalls, a full cache) are edges of a state, which is under a lock of its own so that they come in
//! the order in which they happened; only who has to wait for room anyway, and who looks at the volume's figures, takes it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use eventpoll::Journal;
use store::ErrorKind;
use sync::Mutex;

/// Events that are kept for readers who come later or are slow.
const EVENTS_KEPT: usize = 1024;

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// When.
    pub at: SystemTime,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// The volume's life went on.
    Life {
        /// Where it is now.
        state: Life,
        /// Where it was mounted or attached.
        path: Option<PathBuf>,
        /// Why it failed, in words.
        error: Option<String>,
    },
    /// A limit of a cgroup begins or ceases to hold its writers up.
    Limit {
        /// The cgroup, as a path below the root of the hierarchy.
        cgroup: PathBuf,
        /// Which limit.
        limit: Limit,
        /// Which of the two.
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

/// Where a volume's life is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Life {
    /// It was mounted.
    Mounted,
    /// It was attached to a mount that serves several volumes.
    Attached,
    /// No path leads to it any more.
    Detached,
    /// It writes what is left.
    Draining,
    /// Everything is on the store and the store is free.
    Released,
    /// It ended with data that was not written.
    Failed,
}

/// A limit that writers of a cgroup meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Limit {
    /// What it may write in a second, `io.max`.
    IoMax,
    /// What it may have dirty.
    DirtyMax,
}

/// Which end of something that lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
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
}

/// Writers that wait for room.
#[derive(Debug, Default)]
struct Full {
    is_full: bool,
    waiting: u64,
    /// Whether somebody began or ceased to wait since the last look.
    has_waited: bool,
}

impl Default for Events {
    fn default() -> Self {
        Self { journal: Journal::new(EVENTS_KEPT), full: Mutex::new(Full::default()) }
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

    /// The volume's end, [`Life::Released`] unless there is an error to tell of. Only the first one counts.
    pub fn end(&self, error: Option<String>) {
        let state = if error.is_none() { Life::Released } else { Life::Failed };
        self.journal.end(Event { at: SystemTime::now(), what: What::Life { state, path: None, error } });
    }

    /// A limit of `cgroup` begins or ceases to hold its writers up. The caller says each edge once, in order.
    pub fn limit(&self, cgroup: PathBuf, limit: Limit, edge: Edge) {
        self.push(What::Limit { cgroup, limit, edge });
    }

    pub(crate) fn error(&self, node: u64, path: Option<PathBuf>, error: ErrorKind) {
        self.push(What::Error { node, path, error });
    }

    /// Somebody waits for room in the cache, until the guard is dropped.
    pub(crate) fn waits_for_room(&self) -> Waits<'_> {
        let mut full = self.full.lock();
        full.waiting += 1;
        full.has_waited = true;
        if !std::mem::replace(&mut full.is_full, true) {
            self.push(What::CacheFull(Edge::Begins));
        }
        Waits(self)
    }

    /// Looks whether what lasted has ended: nobody has waited for room since the last look.
    pub(crate) fn look_at_cache(&self) {
        let mut full = self.full.lock();
        let has_waited = std::mem::take(&mut full.has_waited);
        if full.is_full && full.waiting == 0 && !has_waited {
            full.is_full = false;
            self.push(What::CacheFull(Edge::Ends));
        }
    }

    /// The store does not answer, or answers again. The caller says each edge once, in order.
    pub(crate) fn stall(&self, edge: Edge) {
        self.push(What::Stall(edge));
    }

    fn push(&self, what: What) {
        self.journal.push(Event { at: SystemTime::now(), what });
    }
}

/// Somebody waits for room.
#[derive(Debug)]
pub(crate) struct Waits<'e>(&'e Events);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        let mut full = self.0.full.lock();
        full.waiting -= 1;
        full.has_waited = true;
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
        events.look_at_cache();
        drop(other);
        events.look_at_cache();
        drop(events.waits_for_room());
        events.look_at_cache();
        assert_eq!(whats(&events), [What::CacheFull(Edge::Begins)]);
        events.look_at_cache();
        events.look_at_cache();
        drop(events.waits_for_room());
        let (begins, ends) = (What::CacheFull(Edge::Begins), What::CacheFull(Edge::Ends));
        assert_eq!(whats(&events), [begins.clone(), ends, begins]);
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
