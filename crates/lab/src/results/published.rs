//! Figures that others have published about the same question, beside ours. They are of another
//! machine and of another program, mostly of the kernel itself: only the ratio of the variants of
//! one source compares.

use crate::report::{Document, Row, figure};
use anyhow::{Context as _, ensure};
use serde::Deserialize;
use std::fmt::Write as _;

/// The name of the file, without `.json`.
pub(super) const NAME: &str = "published";

/// One line of the file. `scenario`, `variant` and `metric` are the lab's names for the published
/// measurement.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Published {
    experiment: String,
    scenario: String,
    variant: String,
    metric: String,
    unit: String,
    /// The machine, and the differences from our measurement.
    of: String,
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
    mean: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    rows: Vec<Published>,
}

/// Reads the file.
pub(super) fn read(text: &str) -> anyhow::Result<Vec<Published>> {
    Ok(serde_json::from_str::<File>(text)?.rows)
}

impl Published {
    /// The figures that were published, of this and of our row.
    fn figures(&self, ours: Option<&Row>) -> (String, String) {
        let of = |row: &Row| [row.p50, row.p95, row.p99, row.max, row.mean];
        let published = [self.p50, self.p95, self.p99, self.max, self.mean];
        let names = ["", "", "", "", "mean "];
        let ours = ours.filter(|row| row.n > 0).map(of);
        let (mut theirs, mut here) = (Vec::new(), Vec::new());
        for at in 0..published.len() {
            let Some(value) = published[at] else { continue };
            theirs.push(format!("{}{}", names[at], figure(value)));
            here.push(ours.and_then(|ours| ours[at]).map_or("–".to_owned(), figure));
        }
        (theirs.join(" / "), here.join(" / "))
    }
}

/// A table of the figures published about this experiment, beside its own; empty if there are none.
pub(super) fn beside(document: &Document, all: &[Published]) -> anyhow::Result<String> {
    let rows: Vec<&Published> = all.iter().filter(|row| row.experiment == document.experiment).collect();
    // Files of part of an experiment show their own rows; a whole one, also the rows that it lacks.
    let ours = |row: &Published| {
        let is = |ours: &&Row| {
            ours.scenario == row.scenario && ours.variant == row.variant && ours.metric.name == row.metric
        };
        document.rows.iter().find(is)
    };
    if !rows.iter().any(|row| ours(row).is_some()) {
        return Ok(String::new());
    }
    let mut text =
        "\n**Published figures** beside those above (p50 / p95 / p99 / max, as far as they are known)\n\n\
                    | | | | published | here | published of |\n|---|---|---|---:|---:|---|\n"
            .to_owned();
    for row in rows {
        let Published { scenario, variant, metric, unit, of, .. } = row;
        let ours = ours(row);
        if let Some(ours) = ours {
            ensure!(
                ours.unit == *unit,
                "{scenario} {variant} {metric} is published in {unit}, not in {}",
                ours.unit
            );
        }
        let (theirs, here) = row.figures(ours);
        ensure!(!theirs.is_empty(), "{scenario} {variant} {metric} is published without a figure");
        writeln!(text, "| {scenario} | {variant} | {metric}, {unit} | {theirs} | {here} | {of} |")
            .context("a string")?;
    }
    Ok(text)
}
