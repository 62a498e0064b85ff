//! Dirty limits: how much unwritten data a cgroup may have, and which writers are slowed down
//! before that.
//!
//! Two domains; the stricter wins:
//! * *The cache.* Where several cgroups write to a device, each may hold up to [`SHARE`] times what
//!   is still free. So one that fills the cache stops while there is room for another. Up to a
//!   quarter of the cache, every request passes.
//! * *The cgroup's own limit*, `dirty_max`, and those of the cgroups above it, which count the
//!   cgroups below them as well.
//!
//! | of `dirty_max` | the cgroup's data is | its writers |
//! |---|---|---|
//! | up to 1/2, and less than a request under it | written when it is old enough | run free |
//! | up to 3/4 | written at once (*background*) | run free |
//! | up to all of it | the same | pause, once their data is there to be written, for as long as the device takes for what they write; half as long at 3/4, ever longer towards the limit, at most [`PAUSE_MAX`] and a part of what the device takes for all that is there |
//! | more | the same | wait until it is less |
//!
//! A cgroup that holds nothing is let in with one request, however large: a limit is exceeded by
//! that at most. The room of an admitted writer is counted at once, so that no two are admitted
//! into the same room.
//!
//! The bytes that count are those that a wb counts: dirty ones and those under writeback. A
//! writer's pages count for the inode's owner, as all its data. Each limit keeps the sum of the wbs
//! under it, and each wb remembers which part of it is in these sums. A thread that changes a wb's
//! bytes updates them, and a thread that changes limits does so for all wbs. So a write reads
//! its own limits only, however many cgroups there are.
//!
//! Lock order: `DirtyLimits::by_path` and `Wb::charged` are leaves; the second is held while the
//! first is taken.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use sync::Mutex;
use sync::atomic::{AtomicU64, Ordering};
use sync::mutant::is_on;

use crate::dirty::budget::Budget;
use throttle::CgroupPath;

/// A cgroup may hold this many times what is free of the cache.
const SHARE: u64 = 16;
/// `MAX_PAUSE`: the longest pause of a writer that is slowed down.
pub(crate) const PAUSE_MAX: Duration = Duration::from_millis(200);
/// A pause takes at most this part of the time that the device takes for all that is there, as in
/// the kernel: no cgroup with little room falls idle while its writer pauses.
const PAUSE_PART: u32 = 8;
const PAGE: u64 = 4096;
/// The most that a writer asks for at once: 1 MiB, and a page more where it begins within one.
const REQUEST_MAX: u64 = (1 << 20) + PAGE;

/// Whether a writer may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Balance {
    /// At once.
    Freerun,
    /// After this pause.
    Pause(Duration),
    /// Not before some data of its cgroup was written.
    Blocked,
}

/// The limits of one device's cgroups, in bytes.
#[derive(Debug, Default)]
pub(crate) struct DirtyLimits {
    by_path: Mutex<ByPath>,
    /// Counts changes; 0: there never was a limit.
    generation: AtomicU64,
}

#[derive(Debug, Default)]
struct ByPath {
    limits: BTreeMap<CgroupPath, (u64, Arc<AtomicU64>)>,
    /// The limit of each cgroup without one of its own, except the root.
    of_others: Option<u64>,
    /// The sums of these cgroups, as long as there is a wb.
    others: BTreeMap<CgroupPath, Weak<AtomicU64>>,
}

/// The limits that one cgroup is under.
#[derive(Debug, Default)]
pub(crate) struct Domains {
    pub(crate) limits: Vec<Domain>,
    generation: u64,
}

/// One limit, and the sum that counts for it.
#[derive(Debug, Clone)]
pub(crate) struct Domain {
    pub(crate) bytes_max: u64,
    held: Arc<AtomicU64>,
}

/// How many of a wb's bytes are counted, and for which limits.
#[derive(Debug, Default)]
pub(crate) struct Charged {
    domains: Arc<Domains>,
    bytes: u64,
}

/// Room under a cgroup's limits that a writer was given; counted until dropped. By then the bytes
/// that it has dirtied are counted as dirty.
#[derive(Debug)]
pub struct DirtyReservation {
    domains: Arc<Domains>,
    /// Where writers wait that want such room.
    budget: Arc<Budget>,
    /// The number of limits at which it is counted, the first ones.
    count: usize,
    bytes: u64,
}

impl Drop for DirtyReservation {
    fn drop(&mut self) {
        for domain in &self.domains.limits[..self.count] {
            // ORDERING: Relaxed, a figure for thresholds; a writer that waits for it is notified as
            // of room in the cache, which is given back after this.
            domain.held.fetch_sub(self.bytes, Ordering::Relaxed);
        }
        // A writer that asked meanwhile found the room taken, and no other sum may fall any more.
        if self.count > 0 && !is_on("dirty-reserved-silent") {
            self.budget.wake_fitting();
        }
    }
}

impl Domain {
    /// The bytes that count for it.
    pub(crate) fn held(&self) -> u64 {
        // ORDERING: Relaxed, see `DirtyReservation`.
        self.held.load(Ordering::Relaxed)
    }
}

impl Charged {
    /// Counts the bytes that a wb holds now; returns the limits that it is under.
    pub(crate) fn update(
        &mut self,
        limits: &DirtyLimits,
        path: impl Fn() -> CgroupPath,
        bytes: u64,
    ) -> Arc<Domains> {
        let found = limits.domains(&self.domains, path);
        let before = std::mem::replace(&mut self.bytes, bytes);
        // ORDERING: Relaxed both, see `DirtyReservation`. Exactly the bytes that were added are
        // taken away, so that no sum ever falls below zero.
        if let Some(found) = found {
            self.domains
                .limits
                .iter()
                .for_each(|domain| _ = domain.held.fetch_sub(before, Ordering::Relaxed));
            found.limits.iter().for_each(|domain| _ = domain.held.fetch_add(bytes, Ordering::Relaxed));
            self.domains = found;
        } else if before != bytes {
            let more = bytes.wrapping_sub(before);
            self.domains.limits.iter().for_each(|domain| _ = domain.held.fetch_add(more, Ordering::Relaxed));
        }
        Arc::clone(&self.domains)
    }
}

impl Domains {
    /// Whether there is room for so many bytes more at this moment, beside the pages promised to
    /// others.
    pub(crate) fn has_room(&self, bytes: u64, promised: u64) -> bool {
        let held = |domain: &Domain| domain.held().saturating_add(promised);
        self.limits.iter().all(|domain| balance(domain.bytes_max, held(domain), bytes, 1) != Balance::Blocked)
    }

    /// Reserves room for so many bytes more, if the limits allow; `pages_a_second` is the rate at
    /// which the device writes for the cgroup. Writers without room wait at `budget`. The caller
    /// holds no lock.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        bytes: u64,
        pages_a_second: u64,
        budget: &Arc<Budget>,
    ) -> (Balance, Option<DirtyReservation>) {
        let mut reserved =
            DirtyReservation { domains: Arc::clone(self), budget: Arc::clone(budget), count: 0, bytes };
        let mut result = Balance::Freerun;
        for domain in &self.limits {
            let mut said = Balance::Blocked;
            let more = |held: u64| {
                said = balance(domain.bytes_max, held, bytes, pages_a_second);
                (said != Balance::Blocked).then(|| held + bytes)
            };
            // ORDERING: Relaxed, the exchange alone keeps the bound.
            let taken = domain.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
            if taken.is_err() {
                return (Balance::Blocked, None);
            }
            reserved.count += 1;
            result = result.and(said);
        }
        (result, Some(reserved))
    }
}

impl DirtyLimits {
    /// Sets how much a cgroup and those below it may have in all; `None`: no limit of its own.
    pub(crate) fn set(&self, path: &CgroupPath, bytes_max: Option<u64>) {
        let mut by_path = self.by_path.lock();
        match bytes_max {
            Some(bytes) => by_path.limits.entry(path.clone()).or_default().0 = bytes,
            None => _ = by_path.limits.remove(path),
        }
        self.changed();
    }

    /// Sets a limit for each cgroup for which none is set, the root left out.
    pub(crate) fn set_of_others(&self, bytes_max: Option<u64>) {
        self.by_path.lock().of_others = bytes_max;
        self.changed();
    }

    /// The paths of cgroups have changed. Where there never was a limit, there is none to find.
    pub(crate) fn paths_changed(&self) {
        if self.is_used() {
            self.changed();
        }
    }

    fn changed(&self) {
        // ORDERING: Release, pairs with `domains`; the lock orders the change itself.
        self.generation.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn all(&self) -> Vec<(CgroupPath, u64)> {
        self.by_path.lock().limits.iter().map(|(path, (bytes, _))| (path.clone(), *bytes)).collect()
    }

    /// The limits of the cgroup at `path`; `None` if `known` is current. A thread that sees a
    /// change late uses the old limits a moment longer.
    fn domains(&self, known: &Arc<Domains>, path: impl Fn() -> CgroupPath) -> Option<Arc<Domains>> {
        // ORDERING: Acquire, see `changed`.
        let generation = self.generation.load(Ordering::Acquire);
        if known.generation == generation {
            return None;
        }
        let path = path();
        let mut by_path = self.by_path.lock();
        let over = by_path.limits.iter().filter(|(top, _)| path.is_within(top));
        let mut limits: Vec<Domain> = over
            .map(|(_, (bytes_max, held))| Domain { bytes_max: *bytes_max, held: Arc::clone(held) })
            .collect();
        let has_own = by_path.limits.contains_key(&path) || path == CgroupPath::root();
        if let Some(bytes_max) = by_path.of_others.filter(|_| !has_own) {
            let known = by_path.others.get(&path).and_then(Weak::upgrade);
            let held = known.unwrap_or_else(|| {
                let made = Arc::default();
                by_path.others.retain(|_, held| held.strong_count() > 0);
                by_path.others.insert(path, Arc::downgrade(&made));
                made
            });
            limits.push(Domain { bytes_max, held });
        }
        Some(Arc::new(Domains { limits, generation }))
    }

    /// Whether there is, or was, any limit.
    pub(crate) fn is_used(&self) -> bool {
        // ORDERING: Relaxed, see `domains`.
        self.generation.load(Ordering::Relaxed) > 0
    }
}

/// The verdict of a limit on `bytes` more on top of `held`; `pages_a_second` is the rate at which
/// the device writes for the cgroup.
pub(crate) fn balance(bytes_max: u64, held: u64, bytes: u64, pages_a_second: u64) -> Balance {
    if held == 0 {
        return Balance::Freerun;
    }
    let after = held.saturating_add(bytes);
    let freerun = bytes_max / 4 * 3;
    if after > bytes_max {
        return Balance::Blocked;
    }
    if after <= freerun {
        return Balance::Freerun;
    }
    // 2 where the free run ends, 0 at the limit, in 1024ths: how much of the device's rate the
    // writers get.
    let ratio = ((bytes_max - after) * 2048 / (bytes_max - freerun).max(1)).max(1);
    let takes = |bytes: u64| bytes.div_ceil(PAGE).saturating_mul(1_000_000) / pages_a_second.max(1);
    let pause = Duration::from_micros(takes(bytes).saturating_mul(1024) / ratio);
    let lasts = Duration::from_micros(takes(after));
    Balance::Pause(pause.min(lasts / PAUSE_PART).min(PAUSE_MAX))
}

/// Whether the data of a cgroup that holds so much is to be written at once: more than half, or so
/// much that the next request might have to wait for it. A writer that waits finds data that is
/// being written, however small its limit.
pub(crate) fn is_over_background(bytes_max: u64, held: u64) -> bool {
    held > (bytes_max / 2).min(bytes_max.saturating_sub(REQUEST_MAX))
}

/// Whether a cgroup that holds `held` pages may have so many more of a cache.
pub(crate) fn has_share(limit: u64, used: u64, held: u64, pages: u64) -> bool {
    let after = used + pages;
    held == 0 || after <= limit / 4 || held + pages <= SHARE * limit.saturating_sub(after)
}

impl Balance {
    /// The stricter of two.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Blocked, _) | (_, Self::Blocked) => Self::Blocked,
            (Self::Pause(a), Self::Pause(b)) => Self::Pause(a.max(b)),
            (Self::Pause(pause), Self::Freerun) | (Self::Freerun, Self::Pause(pause)) => Self::Pause(pause),
            (Self::Freerun, Self::Freerun) => Self::Freerun,
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        text.parse().expect("a path")
    }

    #[test]
    fn pauses_grow_towards_the_limit() {
        // 1000 pages a second; 10 pages take 10 ms.
        let at = |held: u64| balance(1000 * PAGE, held * PAGE, 10 * PAGE, 1000);
        assert_eq!((at(0), at(740)), (Balance::Freerun, Balance::Freerun));
        let pause = |held| match at(held) {
            Balance::Pause(pause) => pause.as_millis(),
            other => panic!("{held}: {other:?}"),
        };
        // Twice the device's rate at 3/4, the rate itself in the middle, a quarter of it near the
        // end; an eighth of what all of it takes.
        assert_eq!([pause(741), pause(865), pause(960), pause(985)], [5, 10, 41, 124]);
        assert_eq!(balance(10_000 * PAGE, 9_980 * PAGE, 20 * PAGE, 1000), Balance::Pause(PAUSE_MAX));
        assert_eq!(at(991), Balance::Blocked);
        assert_eq!(balance(PAGE, 0, 1 << 20, 1), Balance::Freerun, "who holds nothing is let in once");
        assert_eq!(balance(u64::MAX, 1, u64::MAX, 0), balance(u64::MAX, 1, u64::MAX, 0));
    }

    /// The part of 20 s, by a clock that is set, in which a device has something to write for a
    /// cgroup with one writer. The device writes so many pages a second, and its rate is estimated
    /// as `thought`.
    fn busy_part(bytes_max: u64, pages_a_second: u64, thought: u64) -> f64 {
        let (step, end) = (Duration::from_micros(100), Duration::from_secs(20));
        let (mut now, mut held, mut goes_on, mut idle) = (Duration::ZERO, 0, Duration::ZERO, Duration::ZERO);
        let mut written = 0;
        while now < end {
            let request = 1 << 20;
            while now >= goes_on && balance(bytes_max, held, request, thought) != Balance::Blocked {
                if let Balance::Pause(pause) = balance(bytes_max, held, request, thought) {
                    goes_on = now + pause;
                }
                held += request;
            }
            now += step;
            // The bytes that it could have written by now, without the time in which it had no
            // data.
            let micros = u64::try_from((now - idle).as_micros()).expect("seconds");
            let could = micros * pages_a_second / 1_000_000 * PAGE;
            let does = held.min(could - written);
            if held == 0 {
                idle += step;
            }
            (written, held) = (written + does, held - does);
        }
        1.0 - idle.as_secs_f64() / end.as_secs_f64()
    }

    #[test]
    fn no_pause_leaves_the_device_without_data() {
        for mib_a_second in [1, 4, 16, 64, 256] {
            let rate = mib_a_second << 8;
            for bytes_max in [1 << 20, 3 << 19, 2 << 20, 4 << 20, 16 << 20] {
                // With the right rate; and with the rate of an unlimited device, because the
                // estimate does not know the cgroup's limit.
                for thought in [rate, 25 * rate] {
                    let part = busy_part(bytes_max, rate, thought);
                    assert!(part > 0.98, "{mib_a_second} MiB/s, room {bytes_max}, {thought}: {part}");
                }
            }
        }
    }

    #[test]
    fn limits_are_those_of_all_above_and_the_others_of_each() {
        let limits = DirtyLimits::default();
        let of = |text: &str| {
            let found = limits.domains(&Arc::default(), || path(text));
            found.map_or_else(Vec::new, |found| found.limits.iter().map(|domain| domain.bytes_max).collect())
        };
        assert!(!limits.is_used() && of("/a").is_empty());
        limits.set(&path("/a"), Some(5));
        limits.set_of_others(Some(7));
        assert_eq!(of("/a"), [5]);
        assert_eq!(of("/a/b"), [5, 7]);
        assert!(of("/").is_empty());
        limits.set(&path("/a"), None);
        assert_eq!(of("/a"), [7]);
        assert_eq!(limits.all(), []);
    }

    #[test]
    fn sums_follow_bytes_and_limits_and_no_two_have_the_same_room() {
        let (limits, budget) = (DirtyLimits::default(), Budget::new(0));
        limits.set(&path("/a"), Some(100));
        let (mut a, mut b) = (Charged::default(), Charged::default());
        let domains = a.update(&limits, || path("/a/x"), 30);
        b.update(&limits, || path("/a/y"), 20);
        assert_eq!(domains.limits[0].held(), 50);
        let (balance, first) = domains.reserve(50, 1 << 40, &budget);
        assert_eq!(
            (balance, domains.reserve(1, 1, &budget).0),
            (Balance::Pause(Duration::ZERO), Balance::Blocked)
        );
        drop(first);
        assert_eq!(domains.limits[0].held(), 50);
        b.update(&limits, || path("/a/y"), 5);
        assert_eq!(domains.limits[0].held(), 35);
        // Another limit: each wb makes its part of the sum anew.
        limits.set(&path("/a/x"), Some(40));
        let (inner, outer) = (a.update(&limits, || path("/a/x"), 30), b.update(&limits, || path("/a/y"), 5));
        let held = |domains: &Domains| domains.limits.iter().map(Domain::held).collect::<Vec<_>>();
        assert_eq!((held(&inner), held(&outer)), (vec![35, 30], vec![35]));
        // Bytes refused at the inner limit are not left counted at the outer one.
        assert_eq!((inner.reserve(11, 1, &budget).0, held(&inner)), (Balance::Blocked, vec![35, 30]));
    }

    #[test]
    fn one_cgroup_stops_before_the_cache_is_full() {
        assert!(has_share(1000, 900, 900, 40) && !has_share(1000, 940, 940, 10));
        assert!(has_share(1000, 940, 0, 60), "another finds room");
        assert!(has_share(1000, 100, 100, 150), "nobody is asked in the first quarter");
        assert!(!has_share(1000, 1000, 1, 1));
    }

    #[test]
    fn the_stricter_wins() {
        let slow = |ms| Balance::Pause(Duration::from_millis(ms));
        assert_eq!(slow(1).and(slow(2)), slow(2));
        assert_eq!(Balance::Freerun.and(slow(2)), slow(2));
        assert_eq!(slow(2).and(Balance::Blocked), Balance::Blocked);
    }

    #[test]
    fn who_waits_for_a_limit_waits_for_what_is_being_written() {
        let half = 8 << 20;
        assert!(is_over_background(2 * half, half + 1) && !is_over_background(2 * half, half));
        for bytes_max in [1, PAGE, 64 << 10, 1 << 20, 2 << 20, 3 << 20] {
            for held in [1, PAGE, bytes_max / 2, bytes_max] {
                let is_full = balance(bytes_max, held, REQUEST_MAX, 1) == Balance::Blocked;
                assert!(!is_full || is_over_background(bytes_max, held), "{held} of {bytes_max}");
            }
        }
    }
}
