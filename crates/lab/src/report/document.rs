//! A whole result: the rows and where they come from.

use super::{Baseline, Choice, Row, json, read, svg, table};
use crate::machine::Machine;
use serde::Serialize;

/// A result, as written to the JSON file.
#[derive(Debug, Serialize)]
pub(crate) struct Document {
    /// Name of the experiment.
    pub(crate) experiment: String,
    /// The command that made it, without the names of its files.
    pub(crate) command: String,
    /// Commit of the source that was measured; `-dirty` where it had uncommitted changes.
    pub(crate) commit: String,
    /// When the experiment began, UTC, RFC 3339.
    pub(crate) when: String,
    /// The machine.
    pub(crate) machine: Machine,
    /// Whether it was a quick run: too short for stable tails.
    pub(crate) quick: bool,
    /// The results.
    pub(crate) rows: Vec<Row>,
    /// Remarks on all rows: sizes, durability, warm caches.
    pub(crate) notes: Vec<String>,
}

impl Document {
    /// The Markdown form.
    pub(crate) fn markdown(&self, baseline: &Baseline) -> String {
        table::render(self, baseline)
    }

    /// The text beside the plot in a page of results: where it comes from, without a heading.
    pub(crate) fn origin(&self) -> String {
        table::origin(self)
    }

    /// The chosen tables.
    pub(crate) fn tables(&self, baseline: &Baseline, choice: &Choice) -> String {
        table::tables(self, baseline, choice)
    }

    /// Remarks on all rows, and on some, as a list.
    pub(crate) fn remarks(&self) -> String {
        table::remarks(self)
    }

    /// Reads the JSON form again.
    ///
    /// # Errors
    /// If it is not one.
    pub(crate) fn from_json(text: &str) -> anyhow::Result<Self> {
        read::document(text)
    }

    /// The JSON form.
    pub(crate) fn json(&self) -> serde_json::Result<String> {
        json::render(self)
    }

    /// The plot of the chosen rows.
    pub(crate) fn svg(&self, default_variant: &str, choice: &Choice) -> String {
        svg::render(self, default_variant, choice)
    }
}

#[cfg(test)]
pub(super) mod example {
    use super::super::{Metric, Recorder, Shown};
    use super::*;
    use crate::stats::Histogram;
    use std::time::Duration;

    /// A document with every kind of row.
    pub(crate) fn document() -> Document {
        let rate = Metric::rate("ops_per_s", "1/s");
        let tail = Metric::new("p99_us", "us").shown(Shown::P99);
        let seconds = Metric::new("seconds", "s");
        let mut recorder = Recorder::default();
        for (variant, value) in [("default", 20_000.0), ("null", 10_000.0)] {
            recorder.rate("stat-1", variant, rate, value);
            let mut took = Histogram::default();
            took.add(Duration::from_micros(50));
            recorder.operations_us("stat-1", variant, tail, &took);
            recorder.value("untar", variant, seconds, 1.5);
        }
        recorder.absent("stat-1", "rclone", rate, "not installed: no `rclone` <on> the PATH & \"elsewhere\"");
        recorder.note("stat-1", "null", "no store");
        Document {
            experiment: "volumes".to_owned(),
            command: "lab -- volumes --quick".to_owned(),
            commit: "0123456".to_owned(),
            when: "2026-01-02T03:04:05Z".to_owned(),
            machine: Machine { cpu: "A & B <CPU>".to_owned(), cores: 2, kernel: "6.18.0".to_owned() },
            quick: true,
            rows: recorder.into_rows(),
            notes: vec!["sizes: 1 MiB".to_owned()],
        }
    }
}
