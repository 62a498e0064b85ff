//! Samples and their figures.
//!
//! [`Samples`] keeps every value and is exact: for runs, of which there are few. [`Histogram`] is
//! for operations, of which there are millions: its percentiles are at most 0.8 % above the true
//! value, its count, sum and maximum are exact. Percentiles are by nearest rank everywhere: the
//! smallest value that at least the given share of the values does not exceed.

use std::time::Duration;

/// Bits of a value below its leading one that a [`Histogram`] keeps.
const KEPT_BITS: u32 = 7;
/// Buckets of one power of two.
const PER_OCTAVE: usize = 1 << KEPT_BITS;
/// Buckets of a histogram: values below `PER_OCTAVE` have one each.
const BUCKETS: usize = PER_OCTAVE * (64 - KEPT_BITS as usize + 1);

/// The figures of a row's samples.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Summary {
    /// Number of samples.
    pub(crate) n: u64,
    /// The median.
    pub(crate) p50: f64,
    /// The 95th percentile.
    pub(crate) p95: f64,
    /// The 99th percentile.
    pub(crate) p99: f64,
    /// The largest sample.
    pub(crate) max: f64,
    /// The arithmetic mean.
    pub(crate) mean: f64,
    /// The sum.
    pub(crate) total: f64,
}

/// The rank (from 1) of the value that is the percentile `share` of `n` values.
fn rank(share: f64, n: u64) -> u64 {
    // Ranks are far below 2^53: the conversion loses nothing, and the product is at least 0.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "0 <= share * n <= n")]
    let rank = (share * n as f64).ceil() as u64;
    rank.clamp(1, n.max(1))
}

/// Every value, in the order of arrival.
#[derive(Clone, Debug, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    /// Adds a value.
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The summary, or nothing if there are no samples.
    pub(crate) fn summary(&self) -> Option<Summary> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let max = *sorted.last()?;
        let n = sorted.len() as u64;
        let at = |share: f64| usize::try_from(rank(share, n) - 1).map_or(max, |i| sorted[i]);
        let total: f64 = sorted.iter().sum();
        Some(Summary { n, p50: at(0.50), p95: at(0.95), p99: at(0.99), max, mean: total / n as f64, total })
    }
}

/// Durations of many operations, in nanoseconds, in log-linear buckets.
#[derive(Clone)]
pub(crate) struct Histogram {
    buckets: Vec<u32>,
    n: u64,
    total_ns: u64,
    max_ns: u64,
}

impl std::fmt::Debug for Histogram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Histogram").field("n", &self.n).field("max_ns", &self.max_ns).finish_non_exhaustive()
    }
}

impl Default for Histogram {
    fn default() -> Self {
        Self { buckets: vec![0; BUCKETS], n: 0, total_ns: 0, max_ns: 0 }
    }
}

/// The bucket of a value.
fn bucket(value: u64) -> usize {
    let octave = (u64::BITS - value.leading_zeros()).saturating_sub(KEPT_BITS + 1);
    let index = (u64::from(octave) << KEPT_BITS) + (value >> octave);
    usize::try_from(index).map_or(BUCKETS - 1, |i| i.min(BUCKETS - 1))
}

/// The largest value that falls into a bucket.
fn bucket_top(index: usize) -> u64 {
    let index = index as u64;
    let octave = (index >> KEPT_BITS).saturating_sub(1);
    let base = index - (octave << KEPT_BITS);
    (((u128::from(base) + 1) << octave) - 1).try_into().unwrap_or(u64::MAX)
}

impl Histogram {
    /// Adds one operation's duration.
    pub(crate) fn add(&mut self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        self.buckets[bucket(ns)] += 1;
        self.n += 1;
        self.total_ns = self.total_ns.saturating_add(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// Adds everything of `other`.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.buckets.iter_mut().zip(&other.buckets) {
            *mine += theirs;
        }
        self.n += other.n;
        self.total_ns = self.total_ns.saturating_add(other.total_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Number of operations.
    pub(crate) fn count(&self) -> u64 {
        self.n
    }

    fn percentile_ns(&self, share: f64) -> u64 {
        let rank = rank(share, self.n);
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            seen += u64::from(count);
            if seen >= rank {
                return bucket_top(index).min(self.max_ns);
            }
        }
        self.max_ns
    }

    /// The summary in units of `unit_ns` nanoseconds, or nothing if there are no operations.
    pub(crate) fn summary(&self, unit_ns: f64) -> Option<Summary> {
        if self.n == 0 {
            return None;
        }
        let scaled = |ns: u64| ns as f64 / unit_ns;
        Some(Summary {
            n: self.n,
            p50: scaled(self.percentile_ns(0.50)),
            p95: scaled(self.percentile_ns(0.95)),
            p99: scaled(self.percentile_ns(0.99)),
            max: scaled(self.max_ns),
            mean: scaled(self.total_ns) / self.n as f64,
            total: scaled(self.total_ns),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn samples(values: &[f64]) -> Samples {
        let mut samples = Samples::default();
        values.iter().for_each(|&v| samples.push(v));
        samples
    }

    #[test]
    fn percentiles_are_nearest_rank() {
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        let s = samples(&hundred).summary().unwrap();
        assert_eq!((s.n, s.p50, s.p95, s.p99, s.max), (100, 50.0, 95.0, 99.0, 100.0));
        assert_eq!((s.mean, s.total), (50.5, 5050.0));
        let s = samples(&[3.0, 1.0, 2.0]).summary().unwrap();
        assert_eq!((s.p50, s.p95, s.p99, s.max), (2.0, 3.0, 3.0, 3.0));
        let s = samples(&[7.0]).summary().unwrap();
        assert_eq!((s.n, s.p50, s.p99, s.mean), (1, 7.0, 7.0, 7.0));
    }

    #[test]
    fn nothing_measured_is_no_summary() {
        assert_eq!(Samples::default().summary(), None);
        assert_eq!(Histogram::default().summary(1.0), None);
    }

    #[test]
    fn small_values_are_exact_in_a_histogram() {
        let mut h = Histogram::default();
        (1..=100).for_each(|ns| h.add(Duration::from_nanos(ns)));
        let s = h.summary(1.0).unwrap();
        assert_eq!((s.n, s.p50, s.p95, s.p99, s.max), (100, 50.0, 95.0, 99.0, 100.0));
        assert_eq!((s.mean, s.total), (50.5, 5050.0));
    }

    #[test]
    fn extremes_have_a_bucket() {
        let mut h = Histogram::default();
        h.add(Duration::ZERO);
        h.add(Duration::MAX);
        let s = h.summary(1.0).unwrap();
        assert_eq!((s.n, s.p50), (2, 0.0));
        assert_eq!(s.max, u64::MAX as f64);
    }

    proptest! {
        #[test]
        fn a_bucket_holds_its_values_and_is_narrow(value in any::<u64>()) {
            let index = bucket(value);
            let top = bucket_top(index);
            prop_assert!(top >= value);
            prop_assert!((top - value) as f64 <= value as f64 / PER_OCTAVE as f64);
            prop_assert!(index == 0 || bucket_top(index - 1) < value);
        }

        #[test]
        fn merged_halves_are_the_whole(values in prop::collection::vec(0u64..1_000_000_000, 1..200), cut in any::<prop::sample::Index>()) {
            let cut = cut.index(values.len());
            let fill = |values: &[u64]| {
                let mut h = Histogram::default();
                values.iter().for_each(|&ns| h.add(Duration::from_nanos(ns)));
                h
            };
            let mut merged = fill(&values[..cut]);
            merged.merge(&fill(&values[cut..]));
            prop_assert_eq!(merged.summary(1.0), fill(&values).summary(1.0));
        }

        #[test]
        fn a_histogram_agrees_with_the_exact_values(values in prop::collection::vec(1u64..10_000_000_000, 1..300)) {
            let mut h = Histogram::default();
            let mut exact = Samples::default();
            for &ns in &values {
                h.add(Duration::from_nanos(ns));
                exact.push(ns as f64);
            }
            let (h, exact) = (h.summary(1.0).unwrap(), exact.summary().unwrap());
            for (close, is) in [(h.p50, exact.p50), (h.p95, exact.p95), (h.p99, exact.p99)] {
                prop_assert!(close >= is && close <= is * 1.008, "{} for {}", close, is);
            }
            prop_assert_eq!(h.max, exact.max);
        }
    }
}
