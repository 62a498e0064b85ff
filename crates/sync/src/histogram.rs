//! Histograms of durations, for statistics.
//!
//! Buckets are log-linear, in microseconds: one for each of the first four, then four for each
//! power of two up to 2^27 us (134 s), and one for all that took longer. So a bucket is at most a
//! quarter as wide as the durations in it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::StatCounter;

/// Buckets of each power of two, as a power of two.
const SPLIT: u32 = 2;
/// The buckets below the first power of two that is split; one microsecond each.
const LINEAR: usize = 1 << SPLIT;
/// Durations of 2 to the power of this many microseconds and more share the last bucket.
const POWER_MAX: u32 = 27;

/// The number of buckets.
const BUCKETS: usize = LINEAR * (POWER_MAX as usize - SPLIT as usize + 1) + 1;
const LAST: usize = BUCKETS - 1;

/// Counts durations by their length. Threads add to it at the same time.
#[derive(Debug)]
pub struct Histogram {
    buckets: [StatCounter; BUCKETS],
    sum_ns: StatCounter,
    max_ns: AtomicU64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            buckets: std::array::from_fn(|_| StatCounter::default()),
            sum_ns: StatCounter::default(),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&self, duration: Duration) {
        let ns = nanos(duration);
        self.buckets[bucket_of(ns)].add(1);
        self.sum_ns.add(ns);
        // ORDERING: Relaxed, statistics only; a lower maximum that is read here costs one more
        // exchange.
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.fetch_max(ns, Ordering::Relaxed);
        }
    }

    /// Adds its present counts to `to`.
    pub fn add_to(&self, to: &mut Durations) {
        for (count, bucket) in to.buckets.iter_mut().zip(&self.buckets) {
            *count = count.saturating_add(bucket.get());
        }
        to.sum = to.sum.saturating_add(Duration::from_nanos(self.sum_ns.get()));
        // ORDERING: Relaxed, statistics only.
        to.max = to.max.max(Duration::from_nanos(self.max_ns.load(Ordering::Relaxed)));
    }
}

/// The counts of a histogram at one moment, of several together, or between two moments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durations {
    buckets: [u64; BUCKETS],
    /// Their sum.
    pub sum: Duration,
    /// The longest.
    pub max: Duration,
}

impl Default for Durations {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum: Duration::ZERO, max: Duration::ZERO }
    }
}

impl Durations {
    /// Counts with this sum and this maximum, whose [buckets](Self::add_bucket) are still to come.
    #[must_use]
    pub fn of(sum: Duration, max: Duration) -> Self {
        Self { sum, max, ..Self::default() }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// The buckets that are not empty: how many durations took no longer than the bound, and longer
    /// than the bound of the bucket before. The last bucket has no bound.
    pub fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> + '_ {
        let filled = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        filled.map(|(bucket, count)| ((bucket < LAST).then(|| micros(bounds(bucket).1)), *count))
    }

    /// Adds the count of a bucket, as [`buckets`](Self::buckets) returns it.
    pub fn add_bucket(&mut self, bound: Option<Duration>, count: u64) {
        let bucket = bound.map_or(LAST, |bound| bucket_of(nanos(bound)));
        self.buckets[bucket] = self.buckets[bucket].saturating_add(count);
    }

    /// Adds those of `other`.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(&other.buckets) {
            *count = count.saturating_add(*more);
        }
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }

    /// How many took no longer than 2^`power` microseconds.
    #[must_use]
    pub fn within_power(&self, power: u32) -> u64 {
        let within = |bucket: usize| bucket < LAST && bounds(bucket).1 <= 1 << power.min(POWER_MAX);
        let counts = self.buckets.iter().enumerate().filter(|(bucket, _)| within(*bucket));
        counts.fold(0, |sum, (_, count)| sum.saturating_add(*count))
    }

    /// What was counted since `earlier`. The longest is known only as far as its bucket, unless it
    /// is the longest of all.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = Self::default();
        for (bucket, count) in since.buckets.iter_mut().enumerate() {
            *count = self.buckets[bucket].saturating_sub(earlier.buckets[bucket]);
        }
        since.sum = self.sum.saturating_sub(earlier.sum);
        let top = since.buckets.iter().rposition(|count| *count > 0);
        since.max = match top {
            None => Duration::ZERO,
            Some(_) if self.max > earlier.max => self.max,
            Some(LAST) => self.max,
            Some(bucket) => micros(bounds(bucket).1).min(self.max),
        };
        since
    }

    /// A duration that this part of them (0 to 1) do not exceed, read off a line through the bucket
    /// that has it. Zero where there is none.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a figure for a person"
    )]
    pub fn quantile(&self, part: f64) -> Duration {
        let count = self.count();
        let rank = ((count as f64 * part.clamp(0.0, 1.0)).ceil() as u64).clamp(1, count.max(1));
        let mut before = 0_u64;
        for (bucket, in_bucket) in self.buckets.iter().enumerate().filter(|(_, count)| **count > 0) {
            let up_to = before.saturating_add(*in_bucket);
            if rank > up_to {
                before = up_to;
                continue;
            }
            if bucket == LAST {
                return self.max;
            }
            let (low, high) = bounds(bucket);
            let share = (rank - before) as f64 / *in_bucket as f64;
            return (micros(low) + micros(high - low).mul_f64(share)).min(self.max);
        }
        Duration::ZERO
    }
}

/// The bucket of a duration. One that is exactly as long as a bucket's bound is in that bucket.
fn bucket_of(ns: u64) -> usize {
    let us = match usize::try_from(ns.saturating_sub(1) / 1000) {
        Ok(us) if us < 1 << POWER_MAX => us,
        _ => return LAST,
    };
    if us < LINEAR {
        return us;
    }
    let above = us.ilog2() - SPLIT;
    (above as usize + 1) * LINEAR + ((us >> above) & (LINEAR - 1))
}

/// The bounds of a bucket in microseconds: its durations are longer than the first, and not longer
/// than the second.
fn bounds(bucket: usize) -> (u64, u64) {
    if bucket < LINEAR {
        return (bucket as u64, bucket as u64 + 1);
    }
    let (above, first) = (bucket / LINEAR - 1, (LINEAR + bucket % LINEAR) as u64);
    (first << above, (first + 1) << above)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

const fn micros(us: u64) -> Duration {
    Duration::from_micros(us)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(all: &[Duration]) -> Durations {
        let histogram = Histogram::default();
        all.iter().for_each(|duration| histogram.record(*duration));
        let mut durations = Durations::default();
        histogram.add_to(&mut durations);
        durations
    }

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        assert_eq!(bounds(0), (0, 1));
        for bucket in 1..LAST {
            assert_eq!(bounds(bucket).0, bounds(bucket - 1).1, "{bucket}");
            let (low, high) = bounds(bucket);
            assert!(low < LINEAR as u64 || (high - low) * 4 <= low, "{bucket}");
            assert_eq!(bucket_of(high * 1000), bucket, "{bucket}");
            assert_eq!(bucket_of(high * 1000 + 1), bucket + 1, "{bucket}");
        }
        assert_eq!(bounds(LAST - 1).1, 1 << POWER_MAX);
        assert_eq!((bucket_of(0), bucket_of(u64::MAX)), (0, LAST));
    }

    #[test]
    fn of_nothing_there_is_no_figure() {
        let none = Durations::default();
        assert_eq!((none.count(), none.quantile(0.5), none.max), (0, Duration::ZERO, Duration::ZERO));
        assert_eq!(none.buckets().count(), 0);
    }

    #[test]
    fn one_that_takes_longer_than_any_bucket_is_the_maximum() {
        let hour = Duration::from_secs(3600);
        let all = of(&[micros(5), hour]);
        assert_eq!((all.quantile(0.99), all.max, all.count()), (hour, hour, 2));
        assert_eq!(all.buckets().last(), Some((None, 1)));
        assert_eq!(all.within_power(POWER_MAX), 1);
    }

    #[test]
    fn the_maximum_of_an_interval_is_not_that_of_earlier_ones() {
        let (early, late) = (Duration::from_secs(5), Duration::from_millis(3));
        let before = of(&[early]);
        let between = of(&[early, late]).since(&before);
        assert_eq!((between.count(), between.sum), (1, late));
        assert!(between.max >= late && between.max <= late.mul_f64(1.25), "{between:?}");
        assert_eq!(of(&[late, early]).since(&of(&[late])).max, early);
    }

    proptest! {
        #[test]
        fn quantiles_are_as_near_as_a_bucket_is_wide(
            mut ns in proptest::collection::vec(0..200_000_000_000_u64, 1..300),
            small in proptest::collection::vec(0..50_000_u64, 0..300),
            // A fraction of this has no rounding.
            of_1024 in 0..=1024_u16,
        ) {
            ns.extend(small);
            let durations: Vec<Duration> = ns.iter().copied().map(Duration::from_nanos).collect();
            let all = of(&durations);
            ns.sort_unstable();
            let rank = (ns.len() * usize::from(of_1024)).div_ceil(1024).clamp(1, ns.len());
            let exact = ns[rank - 1];
            let bucket = bucket_of(exact);
            let found = nanos(all.quantile(f64::from(of_1024) / 1024.0));
            if bucket == LAST {
                prop_assert_eq!(found, *ns.last().unwrap());
            } else {
                let (low, high) = bounds(bucket);
                let low = (low * 1000).min(*ns.last().unwrap());
                prop_assert!((low..=high * 1000).contains(&found), "{} for {}", found, exact);
            }
            prop_assert_eq!(all.count(), ns.len() as u64);
            prop_assert_eq!(nanos(all.sum), ns.iter().sum::<u64>());
            prop_assert_eq!(nanos(all.max), *ns.last().unwrap());
            let within = ns.iter().filter(|ns| **ns <= 1_000 << 10).count() as u64;
            prop_assert_eq!(all.within_power(10), within);
        }

        #[test]
        fn buckets_that_are_passed_on_make_the_same_counts(
            ns in proptest::collection::vec(0..200_000_000_000_u64, 0..100),
        ) {
            let all = of(&ns.into_iter().map(Duration::from_nanos).collect::<Vec<_>>());
            let mut copy = Durations { sum: all.sum, max: all.max, ..Durations::default() };
            all.buckets().for_each(|(bound, count)| copy.add_bucket(bound, count));
            prop_assert_eq!(copy, all);
        }
    }
}
