//! What a thread's request is at, for other threads to read: figures for a person, on which nothing
//! else rests.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::Mutex;

/// The low bits of `Activity::part`; the others are when it began, had it not been interrupted.
const PART_BITS: u32 = 2;

/// Times are nanoseconds since then.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// What a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// A limit of its cgroup.
    Limit,
    /// Room in the cache.
    Cache,
    /// A call of the store.
    Store,
}

/// The limit that a request waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitAhead {
    /// The cgroup, as a path below the root of the hierarchy.
    pub cgroup: String,
    /// The limit.
    pub limit: &'static str,
    /// When the limit lets it go on, where that is known.
    pub until: Option<Instant>,
    /// Bytes that have to pass the limit before, where they are known.
    pub bytes: Option<u64>,
}

/// The request that a thread serves.
#[derive(Debug, Default)]
pub struct Activity {
    begun: AtomicU64,
    part: AtomicU64,
    limit: Mutex<Option<LimitAhead>>,
}

/// What an activity was at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivityView {
    /// How long ago the request began.
    pub elapsed: Duration,
    /// What its thread spends time on now; none: work of its own, and locks.
    pub part: Option<Part>,
    /// How much it has spent on it, earlier times included.
    pub part_elapsed: Duration,
    /// The limit that it waits for.
    pub limit: Option<LimitAhead>,
}

fn nanos(time: Instant) -> u64 {
    u64::try_from(time.saturating_duration_since(*START).as_nanos()).unwrap_or(u64::MAX)
}

impl Activity {
    /// A request begins.
    pub fn begin(&self, begun: Instant) {
        // ORDERING: Relaxed, figures for a person; a reader may see those of two requests mixed.
        self.begun.store(nanos(begun), Ordering::Relaxed);
        self.set_part(None, begun, Duration::ZERO);
    }

    /// Its thread spends time on `part` from now on; so far it has spent this much on it, or, where
    /// there is none, on all parts.
    pub(crate) fn set_part(&self, part: Option<Part>, now: Instant, spent: Duration) {
        let spent = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
        let (number, since) = match part {
            Some(part) => (part as u64 + 1, nanos(now).saturating_sub(spent)),
            // ORDERING: Relaxed, as in `begin`.
            None => (0, self.begun.load(Ordering::Relaxed).saturating_add(spent)),
        };
        // ORDERING: Relaxed, as in `begin`.
        self.part.store((since << PART_BITS) | number, Ordering::Relaxed);
    }

    pub(crate) fn set_limit(&self, limit: Option<LimitAhead>) {
        *self.limit.lock() = limit;
    }

    pub(crate) fn update_limit(&self, until: Option<Instant>, bytes: Option<u64>) {
        if let Some(limit) = &mut *self.limit.lock() {
            (limit.until, limit.bytes) = (until, bytes);
        }
    }

    /// What it is now.
    #[must_use]
    pub fn view(&self) -> ActivityView {
        let now = nanos(Instant::now());
        // ORDERING: Relaxed, as in `begin`.
        let (begun, word) = (self.begun.load(Ordering::Relaxed), self.part.load(Ordering::Relaxed));
        let part = match word & ((1 << PART_BITS) - 1) {
            1 => Some(Part::Limit),
            2 => Some(Part::Cache),
            3 => Some(Part::Store),
            _ => None,
        };
        let limit = if part == Some(Part::Limit) { self.limit.lock().clone() } else { None };
        let since = |then: u64| Duration::from_nanos(now.saturating_sub(then));
        ActivityView { elapsed: since(begun), part, part_elapsed: since(word >> PART_BITS), limit }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::accounting;

    #[test]
    fn another_thread_sees_what_a_request_waits_for() {
        let activity = Arc::<Activity>::default();
        let begun = Instant::now();
        accounting::open(&activity, begun);
        let view = || std::thread::scope(|scope| scope.spawn(|| activity.view()).join().unwrap());
        assert_eq!((view().part, view().limit), (None, None));
        let spending = accounting::spend_on(Part::Limit);
        accounting::wait_for_limit("/a".to_owned(), "io.max");
        accounting::expect(Some(begun), Some(7));
        let waits = view();
        let limit =
            LimitAhead { cgroup: "/a".to_owned(), limit: "io.max", until: Some(begun), bytes: Some(7) };
        assert_eq!((waits.part, waits.limit), (Some(Part::Limit), Some(limit)));
        assert!(waits.part_elapsed <= waits.elapsed && waits.elapsed <= begun.elapsed());
        let store = accounting::spend_on(Part::Store);
        assert_eq!((view().part, view().limit), (Some(Part::Store), None), "a part within it");
        drop(store);
        assert_eq!(view().part, Some(Part::Limit));
        drop(spending);
        let between = view();
        let again = accounting::spend_on(Part::Limit);
        assert!(view().part_elapsed >= waits.part_elapsed, "earlier waits count");
        drop(again);
        assert!(between.part_elapsed + waits.part_elapsed <= begun.elapsed(), "{between:?}");
        assert_eq!(view().part, None);
        let _spent = accounting::close();
    }
}
