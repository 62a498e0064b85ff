//! How many calls that take long may be under way: so many of each kind, and so many of each cgroup.
//!
//! A call that waits (for the store, for its caller's limits, for the volume's end) gives its place among the connections back and takes one here. A
//! kind takes none from another: syncs that are throttled keep nobody from unmounting. A cgroup takes none from another: its syncs, which may wait
//! for its limits, take turns among themselves.
//!
//! | kind | callers | of one cgroup | threads | for one cgroup |
//! |---|---|---|---|---|
//! | `Wait` | 256 | 128 | none | |
//! | `Sync`, by the caller's policy | 256 | 64 | 64 | 2 |
//! | `SyncAll`, `Umount`, `Force`, `Tree` | 64 | 32 | 16 | 8 |
//!
//! A caller too many is refused and told so; a caller without a thread waits for one, and holds nothing but its connection.
//!
//! Lock order: `by_cgroup` is a leaf. A cgroup's turn is taken before its kind's: who waits for its own cgroup holds no thread of others.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use sync::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// What a call waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The volume's end.
    Wait,
    /// The store, and the limits that the caller is under.
    Sync,
    /// The store.
    SyncAll,
    /// The store, and the kernel.
    Umount,
    /// The end of a volume that is given up.
    Force,
    /// A volume to be attached, detached or moved.
    Tree,
}

/// How many there may be.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    callers: usize,
    callers_of_cgroup: usize,
    threads: usize,
    threads_of_cgroup: usize,
}

const BOUNDS: [Bounds; 6] = {
    const SHORT: Bounds = Bounds { callers: 64, callers_of_cgroup: 32, threads: 16, threads_of_cgroup: 8 };
    [
        Bounds { callers: 256, callers_of_cgroup: 128, threads: 0, threads_of_cgroup: 0 },
        Bounds { callers: 256, callers_of_cgroup: 64, threads: 64, threads_of_cgroup: 2 },
        SHORT,
        SHORT,
        SHORT,
        SHORT,
    ]
};

/// Threads for calls of all kinds.
pub(super) const THREADS_MAX: usize = {
    let (mut sum, mut kind) = (0, 0);
    while kind < BOUNDS.len() {
        sum += BOUNDS[kind].threads;
        kind += 1;
    }
    sum
};

/// All places of a server.
#[derive(Debug)]
pub(super) struct Places(Vec<Arc<OfKind>>);

#[derive(Debug)]
struct OfKind {
    bounds: Bounds,
    all: Seats,
    by_cgroup: Mutex<HashMap<String, Weak<Seats>>>,
}

#[derive(Debug)]
struct Seats {
    callers: Arc<Semaphore>,
    threads: Arc<Semaphore>,
}

/// A caller's place.
#[derive(Debug)]
pub(super) struct Place {
    of_kind: Arc<OfKind>,
    of_cgroup: Arc<Seats>,
    _caller: [OwnedSemaphorePermit; 2],
}

/// A caller with a thread to itself.
#[derive(Debug)]
pub(super) struct Turn {
    _place: Place,
    _thread: [Option<OwnedSemaphorePermit>; 2],
}

impl Default for Places {
    fn default() -> Self {
        let of_kind = |bounds: Bounds| OfKind {
            bounds,
            all: Seats::new(bounds.callers, bounds.threads),
            by_cgroup: Mutex::default(),
        };
        Self(BOUNDS.into_iter().map(|bounds| Arc::new(of_kind(bounds))).collect())
    }
}

impl Seats {
    fn new(callers: usize, threads: usize) -> Self {
        Self { callers: Arc::new(Semaphore::new(callers)), threads: Arc::new(Semaphore::new(threads)) }
    }
}

impl Places {
    /// A place for a caller of this cgroup.
    ///
    /// # Errors
    /// Who has them all.
    pub(super) fn enter(&self, kind: Kind, cgroup: String) -> Result<Place, String> {
        let of_kind = Arc::clone(&self.0[kind as usize]);
        let of_cgroup = of_kind.of_cgroup(cgroup);
        let bounds = of_kind.bounds;
        let own = Arc::clone(&of_cgroup.callers).try_acquire_owned().map_err(|_| {
            format!("{} such calls of this cgroup are under way already", bounds.callers_of_cgroup)
        })?;
        let all = Arc::clone(&of_kind.all.callers)
            .try_acquire_owned()
            .map_err(|_| format!("{} such calls are under way already", bounds.callers))?;
        Ok(Place { of_kind, of_cgroup, _caller: [own, all] })
    }
}

impl OfKind {
    fn of_cgroup(&self, cgroup: String) -> Arc<Seats> {
        let mut by_cgroup = self.by_cgroup.lock();
        if let Some(known) = by_cgroup.get(&cgroup).and_then(Weak::upgrade) {
            return known;
        }
        // So there are never more than there are callers.
        by_cgroup.retain(|_, seats| seats.strong_count() > 0);
        let seats = Arc::new(Seats::new(self.bounds.callers_of_cgroup, self.bounds.threads_of_cgroup));
        by_cgroup.insert(cgroup, Arc::downgrade(&seats));
        seats
    }
}

impl Place {
    /// Waits for a thread.
    pub(super) async fn turn(self) -> Turn {
        let own = Arc::clone(&self.of_cgroup.threads).acquire_owned().await;
        let all = Arc::clone(&self.of_kind.all.threads).acquire_owned().await;
        // An error would be a closed semaphore: these are never closed.
        Turn { _place: self, _thread: [own.ok(), all.ok()] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs<F: Future>(future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    /// Whether a turn comes without anybody leaving.
    fn at_once(place: Place) -> Option<Turn> {
        runs(async { futures_ready(place.turn()).await })
    }

    /// Polls once.
    async fn futures_ready<F: Future>(future: F) -> Option<F::Output> {
        let mut future = std::pin::pin!(future);
        std::future::poll_fn(|context| {
            std::task::Poll::Ready(match future.as_mut().poll(context) {
                std::task::Poll::Ready(value) => Some(value),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }

    #[test]
    fn a_cgroup_takes_no_place_and_no_thread_from_another() {
        let places = Places::default();
        let bounds = BOUNDS[Kind::Sync as usize];
        let mut turns = Vec::new();
        for n in 0..bounds.callers_of_cgroup {
            let place = places.enter(Kind::Sync, "slow".to_owned()).unwrap();
            if n < bounds.threads_of_cgroup {
                turns.push(at_once(place).expect("a thread"));
            } else {
                // Waits, and keeps its place as long as it does.
                let mut waiting = Box::pin(place.turn());
                assert!(runs(futures_ready(waiting.as_mut())).is_none());
                std::mem::drop(waiting);
            }
        }
        let kept: Vec<Place> = (bounds.threads_of_cgroup..bounds.callers_of_cgroup)
            .map(|_| places.enter(Kind::Sync, "slow".to_owned()).unwrap())
            .collect();
        let refused = places.enter(Kind::Sync, "slow".to_owned()).unwrap_err();
        assert!(refused.contains("of this cgroup"), "{refused}");
        assert!(at_once(places.enter(Kind::Sync, "other".to_owned()).unwrap()).is_some());
        assert!(at_once(places.enter(Kind::Umount, "slow".to_owned()).unwrap()).is_some());
        // Whoever leaves lets the next one go on.
        turns.pop();
        assert!(at_once(kept.into_iter().next().unwrap()).is_some());
    }

    #[test]
    fn all_cgroups_together_are_bounded_and_forgotten() {
        let places = Places::default();
        let bounds = BOUNDS[Kind::Wait as usize];
        let enter = |n: usize| places.enter(Kind::Wait, n.to_string());
        let held: Vec<Place> = (0..bounds.callers).map(|n| enter(n).unwrap()).collect();
        assert!(enter(bounds.callers).unwrap_err().starts_with("256 such calls"));
        drop(held);
        assert!(enter(0).is_ok());
        assert_eq!(places.0[Kind::Wait as usize].by_cgroup.lock().len(), 1);
    }
}
