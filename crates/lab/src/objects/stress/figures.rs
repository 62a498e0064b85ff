//! What is sampled of a volume over time, and when it counts as flat.
//!
//! The rule: the means of [`BLOCK`] are fitted by a straight line. A quantity is flat if the line's
//! growth over the second half of the load is no more than [`GROWTH_MAX`] of its mean, or within
//! twice its standard error; and if that growth with twice its standard error is no more than
//! [`UNSURE_MAX`]: figures that vary too much to tell are a failure, too.

use std::time::Duration;

use crate::report::Metric;

pub(super) const STORED: Metric = Metric::new("stored", "MiB");
pub(super) const NEEDED: Metric = Metric::new("needed", "MiB");
pub(super) const RATIO: Metric = Metric::new("stored_per_needed", "");

/// Samples of this time are one point of the line: neighbours are alike, and a point is to say
/// something that its neighbours do not.
const BLOCK: Duration = Duration::from_secs(300);
/// With fewer points the blocks are shorter.
const BLOCKS_MIN: u32 = 6;
const GROWTH_MAX: f64 = 0.05;
const UNSURE_MAX: f64 = 0.25;

/// A moment of a volume's process.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sample {
    pub(super) at: Duration,
    pub(super) memory_mib: f64,
    pub(super) descriptors: f64,
    pub(super) threads: f64,
    pub(super) tasks: f64,
}

/// The line through what was sampled: its mean, its growth, and twice the growth's standard error.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Trend {
    pub(super) mean: f64,
    pub(super) growth: f64,
    pub(super) error: f64,
}

/// The trend of a quantity between two times; none where there are too few samples.
pub(super) fn trend(samples: &[(Duration, f64)], (from, to): (Duration, Duration)) -> Option<Trend> {
    let length = to.checked_sub(from)?;
    let block = BLOCK.min(length / BLOCKS_MIN);
    if block.is_zero() {
        return None;
    }
    let mut points = Vec::new();
    let mut begins = from;
    while begins + block <= to {
        let within = samples.iter().filter(|(at, _)| *at >= begins && *at < begins + block);
        let values: Vec<f64> = within.map(|(_, value)| *value).collect();
        if !values.is_empty() {
            let middle = (begins + block / 2).as_secs_f64();
            points.push((middle, values.iter().sum::<f64>() / values.len() as f64));
        }
        begins += block;
    }
    line(&points, length.as_secs_f64())
}

fn line(points: &[(f64, f64)], length: f64) -> Option<Trend> {
    if points.len() < 3 {
        return None;
    }
    let n = points.len() as f64;
    let mean_x = points.iter().map(|(x, _)| x).sum::<f64>() / n;
    let mean = points.iter().map(|(_, y)| y).sum::<f64>() / n;
    let spread: f64 = points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum();
    let slope = points.iter().map(|(x, y)| (x - mean_x) * (y - mean)).sum::<f64>() / spread;
    let left: f64 = points.iter().map(|(x, y)| (y - mean - slope * (x - mean_x)).powi(2)).sum();
    let error = (left / (n - 2.0) / spread).sqrt();
    Some(Trend { mean, growth: slope * length, error: 2.0 * error * length })
}

impl Trend {
    /// Whether it is flat by the [rule](self); if not, why.
    ///
    /// # Errors
    /// Why it is not.
    pub(super) fn is_flat(self) -> Result<(), String> {
        let (growth, error) = (self.growth / self.mean, self.error / self.mean);
        let shown = format!("it grows by {:.1} % ± {:.1} %", growth * 100.0, error * 100.0);
        if growth > GROWTH_MAX && growth > error {
            return Err(shown);
        }
        if growth + error > UNSURE_MAX {
            return Err(format!("{shown}, which says too little"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    /// An hour of samples of a process that grows by `growth` in it, with noise of `noise`.
    fn samples(growth: f64, noise: f64) -> Vec<(Duration, f64)> {
        let mut random = Random::new(5);
        let at = |n: u32| {
            let noise = noise * ((random.next() % 2001) as f64 / 1000.0 - 1.0);
            (Duration::from_secs(10 * u64::from(n)), 100.0 * (1.0 + growth * f64::from(n) / 360.0 + noise))
        };
        (0..360).map(at).collect()
    }

    fn of(growth: f64, noise: f64) -> Result<(), String> {
        let hour = Duration::from_secs(3600);
        trend(&samples(growth, noise), (Duration::ZERO, hour)).unwrap().is_flat()
    }

    #[test]
    fn a_leak_is_seen_and_noise_is_none() {
        of(0.0, 0.0).unwrap();
        of(0.0, 0.3).unwrap();
        of(-0.5, 0.1).unwrap();
        of(0.03, 0.01).unwrap();
        assert!(of(0.1, 0.05).unwrap_err().contains("it grows by"));
        assert!(of(1.0, 0.3).is_err());
    }

    #[test]
    fn what_says_too_little_is_not_flat() {
        let line = line(&[(0.0, 1.0), (1.0, 3.0), (2.0, 0.5), (3.0, 2.0)], 4.0).unwrap();
        assert!(line.is_flat().unwrap_err().contains("says too little"), "{line:?}");
        assert_eq!(trend(&[], (Duration::ZERO, Duration::from_secs(60))), None);
    }

    #[test]
    fn a_line_has_its_growth() {
        let line = line(&[(0.0, 1.0), (1.0, 2.0), (2.0, 3.0)], 2.0).unwrap();
        assert!((line.growth - 2.0).abs() < 1e-9 && line.error.abs() < 1e-9, "{line:?}");
        assert!((line.mean - 2.0).abs() < 1e-9);
    }
}
