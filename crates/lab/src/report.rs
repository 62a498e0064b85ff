//! The results of an experiment: rows, and their three forms (table, JSON, plot).
//!
//! An experiment fills a [`Recorder`] with samples or with the reason why there are none; the
//! recorder turns them into [`Row`]s in the order in which each was first mentioned. All later
//! output comes from the rows alone.

mod curves;
mod document;
mod json;
mod read;
mod recorder;
mod svg;
mod table;

pub(crate) use document::Document;
pub(crate) use recorder::Recorder;
pub(crate) use table::{Baseline, Choice, Figure, figure};

use serde::{Deserialize, Serialize};

/// A measured quantity, and how to read it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Metric {
    /// The name in the JSON; other programs read it.
    pub(crate) name: &'static str,
    /// The unit of every figure of the row.
    pub(crate) unit: &'static str,
    /// The figure that the table and the plot show.
    pub(crate) shown: Shown,
    /// Whether a larger figure is the better one.
    pub(crate) larger_is_better: bool,
}

/// Which figure of a row stands for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Shown {
    /// The median.
    P50,
    /// The 99th percentile.
    P99,
    /// The median, and the 99th percentile in a table of its own.
    Both,
}

impl Metric {
    /// A quantity of which less is better, shown by its median.
    pub(crate) const fn new(name: &'static str, unit: &'static str) -> Self {
        Self { name, unit, shown: Shown::P50, larger_is_better: false }
    }

    /// A quantity of which more is better, shown by its median.
    pub(crate) const fn rate(name: &'static str, unit: &'static str) -> Self {
        Self { larger_is_better: true, ..Self::new(name, unit) }
    }

    /// It is shown by this figure.
    pub(crate) const fn shown(self, shown: Shown) -> Self {
        Self { shown, ..self }
    }

    /// The figure that is shown and its unit, for people.
    pub(crate) fn label(self) -> String {
        let Self { unit, shown, .. } = self;
        let shown = shown.label();
        if unit.is_empty() { shown.to_owned() } else { format!("{shown}, {unit}") }
    }

    /// The title of its axis.
    pub(crate) fn axis(self) -> String {
        let better = if self.larger_is_better { "more" } else { "less" };
        format!("{}; {better} is better", self.label())
    }
}

impl Shown {
    /// How the table names the figure.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::P50 | Self::Both => "median",
            Self::P99 => "p99",
        }
    }

    /// The figures that have a table.
    pub(crate) fn tables(self) -> &'static [Self] {
        match self {
            Self::P50 => &[Self::P50],
            Self::P99 => &[Self::P99],
            Self::Both => &[Self::P50, Self::P99],
        }
    }
}

/// One line of the result: one metric of one variant in one scenario. Serialised as the lab's JSON
/// has it; a figure that does not apply is `null` (a rate has `mean` and `p50` only; a row that
/// could not run has none, `n` = 0 and the reason in `note`).
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Row {
    /// The scenario.
    pub(crate) scenario: String,
    /// The variant.
    pub(crate) variant: String,
    /// The measured quantity.
    #[serde(serialize_with = "metric_name")]
    pub(crate) metric: Metric,
    /// The unit of the figures below.
    pub(crate) unit: String,
    /// Number of samples.
    pub(crate) n: u64,
    /// The median.
    pub(crate) p50: Option<f64>,
    /// The 95th percentile.
    pub(crate) p95: Option<f64>,
    /// The 99th percentile.
    pub(crate) p99: Option<f64>,
    /// The largest sample.
    pub(crate) max: Option<f64>,
    /// The mean.
    pub(crate) mean: Option<f64>,
    /// The sum of the samples.
    pub(crate) total: Option<f64>,
    /// Notes for a reader about this row.
    pub(crate) note: String,
}

/// Serialises a metric as its name alone.
fn metric_name<S: serde::Serializer>(metric: &Metric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(metric.name)
}

impl Row {
    /// The figure that stands for the row.
    pub(crate) fn shown(&self) -> Option<f64> {
        match self.metric.shown {
            Shown::P50 | Shown::Both => self.p50,
            Shown::P99 => self.p99,
        }
    }
}
