//! Reads a result back from its JSON, so that a page can be made of it long after the run.

use super::{Document, Metric, Row, Shown};
use crate::machine::Machine;
use anyhow::Context as _;
use serde::Deserialize;

/// The keys of the file; keys that files of an older lab lack have defaults.
#[derive(Deserialize)]
struct Read {
    experiment: String,
    #[serde(default)]
    command: String,
    commit: String,
    when: String,
    machine: Machine,
    quick: bool,
    rows: Vec<ReadRow>,
    #[serde(default)]
    notes: Vec<String>,
    #[serde(default)]
    metrics: Vec<ReadMetric>,
}

#[derive(Deserialize)]
struct ReadMetric {
    name: String,
    unit: String,
    shown: Shown,
    larger_is_better: bool,
}

#[derive(Deserialize)]
struct ReadRow {
    scenario: String,
    variant: String,
    metric: String,
    unit: String,
    n: u64,
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
    total: Option<f64>,
    note: String,
}

/// The document that `text` is the JSON of.
pub(super) fn document(text: &str) -> anyhow::Result<Document> {
    let read: Read = serde_json::from_str(text).context("not a result of the lab")?;
    let mut metrics: Vec<Metric> = read.metrics.into_iter().map(ReadMetric::known).collect();
    let mut rows = Vec::with_capacity(read.rows.len());
    for row in read.rows {
        let known = metrics.iter().copied().find(|metric| metric.name == row.metric);
        let metric = known.unwrap_or_else(|| {
            let guessed = row.guessed_metric();
            metrics.push(guessed);
            guessed
        });
        rows.push(row.with(metric));
    }
    Ok(Document {
        experiment: read.experiment,
        command: read.command,
        commit: read.commit,
        when: read.when,
        machine: read.machine,
        quick: read.quick,
        rows,
        notes: read.notes,
    })
}

impl ReadMetric {
    fn known(self) -> Metric {
        let Self { name, unit, shown, larger_is_better } = self;
        // Names are static in experiments. Those of a file are few, and read once by a process that
        // ends soon.
        Metric { name: name.leak(), unit: unit.leak(), shown, larger_is_better }
    }
}

impl ReadRow {
    /// The metric of a file of an older lab, which lacks it: a rate is better if it is larger, and
    /// a name with p99 means it.
    fn guessed_metric(&self) -> Metric {
        let shown = if self.metric.contains("p99") { Shown::P99 } else { Shown::P50 };
        let larger_is_better = self.unit.starts_with("1/") || self.unit.ends_with("/s") || self.unit == "%";
        ReadMetric { name: self.metric.clone(), unit: self.unit.clone(), shown, larger_is_better }.known()
    }

    fn with(self, metric: Metric) -> Row {
        let Self { scenario, variant, metric: _, unit, n, p50, p95, p99, max, mean, total, note } = self;
        Row { scenario, variant, metric, unit, n, p50, p95, p99, max, mean, total, note }
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::example;
    use super::super::{Baseline, Choice};
    use super::*;

    #[test]
    fn what_was_written_reads_back() {
        let written = example::document();
        let read = document(&written.json().unwrap()).unwrap();
        assert_eq!(read.rows, written.rows);
        let baseline = Baseline::Variant("default".to_owned());
        assert_eq!(read.markdown(&baseline), written.markdown(&baseline));
        assert_eq!(read.svg("default", &Choice::default()), written.svg("default", &Choice::default()));
        assert_eq!(read.command, written.command);
    }

    #[test]
    fn a_file_of_an_older_lab_is_read() {
        let written = example::document();
        let mut json: serde_json::Value = serde_json::from_str(&written.json().unwrap()).unwrap();
        json.as_object_mut().unwrap().retain(|key, _| key != "metrics" && key != "command");
        let read = document(&json.to_string()).unwrap();
        assert_eq!(read.rows, written.rows);
        assert_eq!(read.command, "");
    }

    #[test]
    fn other_json_is_refused() {
        assert!(document("{\"experiment\": \"volumes\"}").is_err());
        assert!(document("[]").is_err());
    }
}
