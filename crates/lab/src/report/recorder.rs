//! Collects samples while an experiment runs.

use super::{Metric, Row};
use crate::stats::{Histogram, Samples, Summary};

/// The samples of a row.
#[derive(Debug)]
enum Measured {
    /// One rate for each run: the row has mean and median.
    Rates(Samples),
    /// One value for each run: everything is given.
    Values(Samples),
    /// Many operations, and how many nanoseconds the unit has.
    Operations(Box<Histogram>, f64),
    /// Nothing, and why.
    Absent,
    /// Nothing so far.
    Nothing,
}

#[derive(Debug)]
struct Entry {
    scenario: String,
    variant: String,
    metric: Metric,
    measured: Measured,
    note: String,
}

/// Samples by scenario, variant and metric, in the order in which each was first mentioned.
#[derive(Debug, Default)]
pub(crate) struct Recorder {
    entries: Vec<Entry>,
    broken: Vec<String>,
}

impl Recorder {
    fn entry(
        &mut self,
        scenario: &str,
        variant: &str,
        metric: Metric,
        empty: fn() -> Measured,
    ) -> &mut Entry {
        let known = self
            .entries
            .iter()
            .position(|e| e.scenario == scenario && e.variant == variant && e.metric == metric);
        let index = known.unwrap_or_else(|| {
            self.entries.push(Entry {
                scenario: scenario.to_owned(),
                variant: variant.to_owned(),
                metric,
                measured: empty(),
                note: String::new(),
            });
            self.entries.len() - 1
        });
        let entry = &mut self.entries[index];
        if matches!(entry.measured, Measured::Nothing) {
            entry.measured = empty();
        }
        entry
    }

    /// Puts the row here in the order, in whatever order they are measured; without samples it is
    /// left out.
    pub(crate) fn expect(&mut self, scenario: &str, variant: &str, metric: Metric) {
        self.entry(scenario, variant, metric, || Measured::Nothing);
    }

    /// Adds the rate of one run.
    pub(crate) fn rate(&mut self, scenario: &str, variant: &str, metric: Metric, rate: f64) {
        let entry = self.entry(scenario, variant, metric, || Measured::Rates(Samples::default()));
        if let Measured::Rates(samples) = &mut entry.measured {
            samples.push(rate);
        }
    }

    /// Adds the value of one run.
    pub(crate) fn value(&mut self, scenario: &str, variant: &str, metric: Metric, value: f64) {
        let entry = self.entry(scenario, variant, metric, || Measured::Values(Samples::default()));
        if let Measured::Values(samples) = &mut entry.measured {
            samples.push(value);
        }
    }

    /// Adds the operations of one run to those of the runs before; the metric's unit is
    /// microseconds.
    pub(crate) fn operations_us(&mut self, scenario: &str, variant: &str, metric: Metric, took: &Histogram) {
        let entry = self.entry(scenario, variant, metric, || Measured::Operations(Box::default(), 1_000.0));
        if let Measured::Operations(histogram, _) = &mut entry.measured {
            histogram.merge(took);
        }
    }

    /// Like [`operations_us`](Self::operations_us), where the metric's unit is milliseconds.
    pub(crate) fn operations_ms(&mut self, scenario: &str, variant: &str, metric: Metric, took: &Histogram) {
        let entry =
            self.entry(scenario, variant, metric, || Measured::Operations(Box::default(), 1_000_000.0));
        if let Measured::Operations(histogram, _) = &mut entry.measured {
            histogram.merge(took);
        }
    }

    /// Records why there is no figure: a short reason that fits into a cell, and details for a
    /// reader. Replaces earlier samples: a variant that fails in one of its runs has no figure.
    pub(crate) fn absent(&mut self, scenario: &str, variant: &str, metric: Metric, why: &str) {
        let entry = self.entry(scenario, variant, metric, || Measured::Absent);
        entry.measured = Measured::Absent;
        why.clone_into(&mut entry.note);
    }

    /// Something was met that must not be: the results are published, and the lab fails.
    pub(crate) fn breaks(&mut self, what: String) {
        self.broken.push(what);
    }

    /// What was met that must not be.
    pub(crate) fn broken(&self) -> &[String] {
        &self.broken
    }

    /// Adds a note to a row that is already known; adding a note twice changes nothing.
    pub(crate) fn note(&mut self, scenario: &str, variant: &str, note: &str) {
        for entry in self.entries.iter_mut().filter(|e| e.scenario == scenario && e.variant == variant) {
            if entry.note.contains(note) {
                continue;
            }
            if !entry.note.is_empty() {
                entry.note.push_str("; ");
            }
            entry.note.push_str(note);
        }
    }

    /// The rows, in the order of first mention.
    pub(crate) fn into_rows(self) -> Vec<Row> {
        let known = self.entries.into_iter().filter(|entry| !matches!(entry.measured, Measured::Nothing));
        known.map(row).collect()
    }
}

fn row(entry: Entry) -> Row {
    let (summary, is_rate): (Option<Summary>, bool) = match &entry.measured {
        Measured::Rates(samples) => (samples.summary(), true),
        Measured::Values(samples) => (samples.summary(), false),
        Measured::Operations(histogram, unit_ns) => (histogram.summary(*unit_ns), false),
        Measured::Absent | Measured::Nothing => (None, false),
    };
    let spread = summary.filter(|_| !is_rate);
    Row {
        scenario: entry.scenario,
        variant: entry.variant,
        metric: entry.metric,
        unit: entry.metric.unit.to_owned(),
        n: summary.map_or(0, |s| s.n),
        p50: summary.map(|s| s.p50),
        mean: summary.map(|s| s.mean),
        p95: spread.map(|s| s.p95),
        p99: spread.map(|s| s.p99),
        max: spread.map(|s| s.max),
        total: spread.map(|s| s.total),
        note: entry.note,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Shown;
    use super::*;
    use std::time::Duration;

    const RATE: Metric = Metric::rate("ops_per_s", "1/s");
    const TAIL: Metric = Metric::new("p99_us", "us").shown(Shown::P99);

    #[test]
    fn a_rate_has_mean_and_median_only() {
        let mut recorder = Recorder::default();
        for rate in [10.0, 40.0, 10.0] {
            recorder.rate("s", "v", RATE, rate);
        }
        let rows = recorder.into_rows();
        assert_eq!(rows.len(), 1);
        let row = &rows[0];
        assert_eq!((row.n, row.p50, row.mean), (3, Some(10.0), Some(20.0)));
        assert_eq!((row.p95, row.p99, row.max, row.total), (None, None, None, None));
        assert_eq!(row.unit, "1/s");
    }

    #[test]
    fn operations_of_all_runs_are_one_row() {
        let mut recorder = Recorder::default();
        for _ in 0..2 {
            let mut histogram = Histogram::default();
            histogram.add(Duration::from_micros(8));
            recorder.operations_us("s", "v", TAIL, &histogram);
        }
        let row = &recorder.into_rows()[0];
        assert_eq!((row.n, row.p99, row.total), (2, Some(8.0), Some(16.0)));
    }

    #[test]
    fn a_failure_in_a_later_run_takes_the_figure_away() {
        let mut recorder = Recorder::default();
        recorder.rate("s", "v", RATE, 10.0);
        recorder.rate("s", "w", RATE, 10.0);
        recorder.absent("s", "v", RATE, "failed: no space left");
        recorder.rate("s", "v", RATE, 10.0);
        let rows = recorder.into_rows();
        assert_eq!((rows[0].n, rows[0].p50, rows[0].note.as_str()), (0, None, "failed: no space left"));
        assert_eq!((rows[1].n, rows[1].p50, rows[1].note.as_str()), (1, Some(10.0), ""));
    }

    #[test]
    fn what_is_expected_keeps_its_place_and_is_left_out_if_it_never_comes() {
        let mut recorder = Recorder::default();
        for variant in ["a", "b", "c"] {
            recorder.expect("s", variant, RATE);
        }
        recorder.rate("s", "c", RATE, 1.0);
        recorder.rate("s", "a", RATE, 2.0);
        let rows = recorder.into_rows();
        let variants: Vec<_> = rows.iter().map(|row| (row.variant.as_str(), row.p50)).collect();
        assert_eq!(variants, [("a", Some(2.0)), ("c", Some(1.0))]);
    }

    #[test]
    fn a_note_stands_once_on_every_row_of_the_variant() {
        let mut recorder = Recorder::default();
        recorder.rate("s", "v", RATE, 10.0);
        recorder.operations_us("s", "v", TAIL, &Histogram::default());
        recorder.note("s", "v", "warm");
        recorder.note("s", "v", "warm");
        recorder.note("s", "v", "in memory");
        let rows = recorder.into_rows();
        assert!(rows.iter().all(|row| row.note == "warm; in memory"), "{rows:?}");
    }
}
