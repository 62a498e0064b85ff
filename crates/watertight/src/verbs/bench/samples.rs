//! How long operations took.

use std::time::Duration;

use serde::Serialize;

/// The durations of one side's operations of one kind.
#[derive(Debug, Default)]
pub(super) struct Samples {
    /// In nanoseconds.
    took: Vec<u64>,
    /// The slices, with the sync at their ends.
    all: Duration,
}

/// Their summary.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) n: usize,
    pub(super) per_second: f64,
    p50_us: f64,
    p95_us: f64,
    pub(super) p99_us: f64,
    max_us: f64,
}

impl Samples {
    pub(super) fn add(&mut self, took: Duration) {
        self.took.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn end_slice(&mut self, took: Duration) {
        self.all += took;
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.took.is_empty()
    }

    /// With `bytes` in each operation: megabytes a second; with none, operations.
    #[expect(clippy::cast_precision_loss, reason = "figures for a person")]
    pub(super) fn figures(&self, bytes: usize) -> Figures {
        let mut sorted = self.took.clone();
        sorted.sort_unstable();
        let at = |per_mille: usize| {
            let index = (sorted.len() * per_mille).div_ceil(1000).saturating_sub(1);
            sorted.get(index).map_or(0.0, |&ns| ns as f64 / 1e3)
        };
        let each = if bytes > 0 { bytes as f64 / 1e6 } else { 1.0 };
        let seconds = self.all.as_secs_f64();
        Figures {
            n: sorted.len(),
            per_second: if seconds > 0.0 { sorted.len() as f64 * each / seconds } else { 0.0 },
            p50_us: at(500),
            p95_us: at(950),
            p99_us: at(990),
            max_us: at(1000),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_of_samples_that_were_taken() {
        let mut samples = Samples::default();
        for us in (1..=100).rev() {
            samples.add(Duration::from_micros(us));
        }
        samples.end_slice(Duration::from_secs(2));
        let figures = samples.figures(0);
        let all = [figures.p50_us, figures.p95_us, figures.p99_us, figures.max_us, figures.per_second];
        assert_eq!(all, [50.0, 95.0, 99.0, 100.0, 50.0]);
        assert_eq!((samples.figures(2_000_000).per_second, figures.n), (100.0, 100));
        assert_eq!(Samples::default().figures(0).per_second, 0.0);
    }
}
