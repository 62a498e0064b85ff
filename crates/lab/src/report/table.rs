//! The Markdown form: for every metric a table of scenarios by variants, with ratios to the
//! default.

use super::{Document, Metric, Row};
use std::fmt::Write as _;

/// Which rows a reader wants to see, and of each which figures; nothing named means all.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    /// Metrics.
    pub(crate) metrics: Vec<String>,
    /// Scenarios; a name that ends in `*` stands for all that begin so.
    pub(crate) scenarios: Vec<String>,
    /// Variants.
    pub(crate) variants: Vec<String>,
    /// The figures of a cell; if none is named, the one that stands for the row and its ratio to
    /// the default.
    pub(crate) figures: Vec<Figure>,
}

impl Choice {
    fn has(names: &[String], name: &str) -> bool {
        let is = |wanted: &String| match wanted.strip_suffix('*') {
            Some(begin) => name.starts_with(begin),
            None => wanted == name,
        };
        names.is_empty() || names.iter().any(is)
    }

    /// Whether it has this row.
    pub(super) fn wants(&self, row: &Row) -> bool {
        Self::has(&self.metrics, row.metric.name)
            && Self::has(&self.scenarios, &row.scenario)
            && Self::has(&self.variants, &row.variant)
    }
}

/// The baseline of the ratios in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Baseline {
    /// This variant in the same scenario.
    Variant(String),
    /// The same variant in another scenario.
    Scenarios {
        /// The name that a reader knows these scenarios by.
        names: Vec<String>,
        /// A scenario, and the one that it is compared with; scenarios that are missing here are
        /// compared with themselves.
        of: Vec<(String, String)>,
    },
}

impl Baseline {
    /// As it stands in a text.
    fn name(&self) -> String {
        match self {
            Self::Variant(name) => format!("`{name}`"),
            Self::Scenarios { names, .. } => format!("`{}`", names.join("` or `")),
        }
    }

    /// The scenario and the variant that are compared with these.
    fn of<'a>(&'a self, scenario: &'a str, variant: &'a str) -> (&'a str, &'a str) {
        match self {
            Self::Variant(name) => (scenario, name),
            Self::Scenarios { of, .. } => {
                let pair = of.iter().find(|(compared, _)| compared == scenario);
                (pair.map_or(scenario, |(_, with)| with), variant)
            }
        }
    }
}

/// One figure of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Figure {
    /// The number of samples.
    N,
    /// The median.
    P50,
    /// The 95th percentile.
    P95,
    /// The 99th percentile.
    P99,
    /// The largest.
    Max,
    /// The mean.
    Mean,
}

impl Figure {
    /// All, in the order of a row.
    pub(crate) const ALL: [Self; 6] = [Self::N, Self::P50, Self::P95, Self::P99, Self::Max, Self::Mean];

    /// Its name in the JSON.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::N => "n",
            Self::P50 => "p50",
            Self::P95 => "p95",
            Self::P99 => "p99",
            Self::Max => "max",
            Self::Mean => "mean",
        }
    }

    /// Its value in a row.
    pub(crate) fn value(self, row: &Row) -> Option<f64> {
        match self {
            #[allow(clippy::cast_precision_loss, reason = "nobody takes 2^52 samples")]
            Self::N => Some(row.n as f64),
            Self::P50 => row.p50,
            Self::P95 => row.p95,
            Self::P99 => row.p99,
            Self::Max => row.max,
            Self::Mean => row.mean,
        }
    }

    /// Its value as text for people.
    pub(crate) fn of(self, row: &Row) -> String {
        if self == Self::N {
            row.n.to_string()
        } else {
            self.value(row).map_or_else(|| "–".to_owned(), figure)
        }
    }
}

/// Renders everything a reader of a terminal or of a Markdown page needs.
pub(super) fn render(document: &Document, baseline: &Baseline) -> String {
    let mut text = format!("## {}\n\n{}\n\n", document.experiment, origin(document));
    let notes = document.notes.iter().fold(String::new(), |text, note| text + "- " + note + "\n");
    text.push_str(&notes);
    text.push_str(&tables(document, baseline, &Choice::default()));
    row_notes(&mut text, &document.rows);
    text
}

/// The source, the date, and the machine.
pub(super) fn origin(document: &Document) -> String {
    let machine = &document.machine;
    let quick = if document.quick { ", quick run: tails are not stable" } else { "" };
    format!(
        "Commit {}, {}, {} cores of {}, Linux {}{quick}.",
        document.commit, document.when, machine.cores, machine.cpu, machine.kernel
    )
}

/// Remarks on all rows, and on some.
pub(super) fn remarks(document: &Document) -> String {
    let mut text = document.notes.iter().fold(String::new(), |text, note| text + "- " + note + "\n");
    let mut of_rows = String::new();
    row_notes(&mut of_rows, &document.rows);
    text.push_str(of_rows.trim_start());
    text
}

/// The chosen tables, each after an empty line.
pub(super) fn tables(document: &Document, baseline: &Baseline, choice: &Choice) -> String {
    let mut text = String::new();
    let chosen: Vec<&Row> = document.rows.iter().filter(|row| choice.wants(row)).collect();
    for metric in distinct(chosen.iter().map(|row| row.metric)) {
        let rows: Vec<&Row> = chosen.iter().copied().filter(|row| row.metric == metric).collect();
        if !choice.figures.is_empty() {
            text.push('\n');
            table_of_figures(&mut text, metric, &rows, &choice.figures);
            continue;
        }
        for &shown in metric.shown.tables() {
            let metric = Metric { shown, ..metric };
            let rows: Vec<Row> = rows.iter().map(|&row| Row { metric, ..row.clone() }).collect();
            text.push('\n');
            one_table(&mut text, metric, &rows.iter().collect::<Vec<_>>(), baseline);
        }
    }
    text
}

/// The values in the order in which each comes first.
pub(super) fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn one_table(text: &mut String, metric: Metric, rows: &[&Row], baseline: &Baseline) {
    let (name, axis, of) = (metric.name, metric.axis(), baseline.name());
    let _ = writeln!(text, "**{name}** ({axis}; in brackets: times the figure of {of})\n");
    body(text, rows, |row, base| cell(row, base.and_then(Row::shown)), Some(baseline));
}

/// One table with several figures in each cell.
fn table_of_figures(text: &mut String, metric: Metric, rows: &[&Row], figures: &[Figure]) {
    let better = if metric.larger_is_better { "more" } else { "less" };
    let names: Vec<&str> = figures.iter().map(|figure| figure.name()).collect();
    let _ =
        writeln!(text, "**{}** ({}, {}; {better} is better)\n", metric.name, names.join(" / "), metric.unit);
    let cell = |row: &Row, _: Option<&Row>| match row.n {
        0 => short(&row.note),
        _ => figures.iter().map(|figure| figure.of(row)).collect::<Vec<_>>().join(" / "),
    };
    body(text, rows, cell, None);
}

/// The lines of a table: scenarios by variants.
fn body(
    text: &mut String,
    rows: &[&Row],
    cell: impl Fn(&Row, Option<&Row>) -> String,
    baseline: Option<&Baseline>,
) {
    let variants = distinct(rows.iter().map(|row| row.variant.as_str()));
    let _ = writeln!(text, "| | {} |", variants.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(variants.len()));
    for scenario in distinct(rows.iter().map(|row| row.scenario.as_str())) {
        let find = |(scenario, variant): (&str, &str)| {
            rows.iter().copied().find(|r| r.scenario == scenario && r.variant == variant)
        };
        let one = |&variant: &&str| {
            let base = baseline.and_then(|baseline| find(baseline.of(scenario, variant)));
            find((scenario, variant)).map_or(String::new(), |row| cell(row, base))
        };
        let cells = variants.iter().map(one);
        let _ = writeln!(text, "| {scenario} | {} |", cells.collect::<Vec<_>>().join(" | "));
    }
}

fn cell(row: &Row, base: Option<f64>) -> String {
    let Some(value) = row.shown() else {
        return short(&row.note);
    };
    match base {
        Some(base) if base > 0.0 => format!("{} ({:.2})", figure(value), value / base),
        _ => figure(value),
    }
}

/// The part of a reason that fits into a cell: up to the first colon, as the reasons are worded. A
/// part that would make a column wide is a dash; the reason stands among the remarks.
fn short(note: &str) -> String {
    const CELL_MAX: usize = 24;
    let begin = note.split(':').next().unwrap_or_default().replace('|', "/");
    if begin.chars().count() > CELL_MAX { "–".to_owned() } else { begin }
}

/// A figure with three significant digits or more, thousands apart.
pub(crate) fn figure(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 100.0 || v == 0.0 => 0,
        v if v >= 10.0 => 1,
        v if v >= 1.0 => 2,
        v if v >= 0.01 => 3,
        _ => 6,
    };
    let plain = format!("{value:.decimals$}");
    let (whole, fraction) = plain.split_once('.').map_or((plain.as_str(), ""), |(w, f)| (w, f));
    let mut grouped = String::new();
    for (index, digit) in whole.chars().enumerate() {
        let left = whole.len() - index;
        if index > 0 && left.is_multiple_of(3) && digit.is_ascii_digit() && !grouped.ends_with('-') {
            grouped.push(' ');
        }
        grouped.push(digit);
    }
    if fraction.is_empty() { grouped } else { format!("{grouped}.{fraction}") }
}

/// The notes, each once, with the variants and scenarios it is about.
fn row_notes(text: &mut String, rows: &[Row]) {
    let with_note = || rows.iter().filter(|row| !row.note.is_empty());
    for (index, (variant, note)) in
        distinct(with_note().map(|row| (row.variant.as_str(), row.note.as_str()))).into_iter().enumerate()
    {
        if index == 0 {
            text.push('\n');
        }
        let has_note = |row: &&Row| row.variant == variant && row.note == note;
        let about = distinct(rows.iter().filter(has_note).map(|row| row.scenario.as_str()));
        let of_variant = distinct(rows.iter().filter(|r| r.variant == variant).map(|r| r.scenario.as_str()));
        let place = place(&about, &of_variant);
        let _ = writeln!(text, "- `{variant}`{place}: {note}");
    }
}

/// Which scenarios a note is about, in few words; the JSON has it row by row.
fn place(about: &[&str], all: &[&str]) -> String {
    const LISTED_MAX: usize = 4;
    let others: Vec<&str> = all.iter().copied().filter(|scenario| !about.contains(scenario)).collect();
    match (about, others.as_slice()) {
        (_, []) => String::new(),
        (_, few) if few.len() < about.len() && few.len() <= LISTED_MAX => {
            format!(", all but {}", few.join(", "))
        }
        (few, _) if few.len() <= LISTED_MAX => format!(", {}", few.join(", ")),
        ([first, rest @ ..], _) => format!(", {first} and {} more", rest.len()),
        ([], _) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::document::example;
    use super::*;

    #[test]
    fn figures_are_readable() {
        for (value, text) in [
            (0.0, "0"),
            (0.000_123_4, "0.000123"),
            (0.1234, "0.123"),
            (1.234, "1.23"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1_234.0, "1 234"),
            (1_234_567.8, "1 234 568"),
            (-123_456.0, "-123 456"),
        ] {
            assert_eq!(figure(value), text);
        }
    }

    #[test]
    fn ratios_are_to_the_default_and_absences_are_named() {
        let text = example::document().markdown(&Baseline::Variant("default".to_owned()));
        assert!(text.contains("| | default | null | rclone |"), "{text}");
        assert!(text.contains("| stat-1 | 20 000 (1.00) | 10 000 (0.50) | not installed |"), "{text}");
        assert!(text.contains("| untar | 1.50 (1.00) | 1.50 (1.00) |"), "{text}");
        assert!(text.contains("- `rclone`: not installed: no `rclone`"), "{text}");
        assert!(text.contains("- `null`, stat-1: no store"), "{text}");
        assert!(text.contains("Commit 0123456") && text.contains("2 cores of A & B <CPU>"), "{text}");
    }

    #[test]
    fn ratios_may_be_to_a_scenario_of_the_same_variant() {
        let mut document = example::document();
        let mut beside = document.rows[0].clone();
        beside.scenario = "beside".to_owned();
        beside.p50 = Some(5_000.0);
        document.rows.push(beside);
        let text = document.markdown(&Baseline::Scenarios {
            names: vec!["stat-N".to_owned(), "null-N".to_owned()],
            of: vec![("beside".to_owned(), "stat-1".to_owned())],
        });
        assert!(text.contains("times the figure of `stat-N` or `null-N`"), "{text}");
        assert!(text.contains("| stat-1 | 20 000 (1.00) | 10 000 (1.00) | not installed |"), "{text}");
        assert!(text.contains("| beside | 5 000 (0.25) |"), "{text}");
    }

    #[test]
    fn a_reason_that_is_long_is_a_dash() {
        assert_eq!(short("not installed: no `rclone` on the PATH"), "not installed");
        assert_eq!(short("this library has no call for that at all: none"), "–");
    }

    #[test]
    fn without_the_default_there_are_no_ratios() {
        let mut document = example::document();
        document.rows.retain(|row| row.variant != "default");
        let text = document.markdown(&Baseline::Variant("default".to_owned()));
        assert!(text.contains("| stat-1 | 10 000 | not installed |"), "{text}");
    }

    #[test]
    fn the_place_of_a_note_is_short() {
        let all = ["a", "b", "c", "d", "e", "f"];
        assert_eq!(place(&all, &all), "");
        assert_eq!(place(&["a", "f"], &all), ", a, f");
        assert_eq!(place(&["a", "b", "c", "d", "e"], &all), ", all but f");
        assert_eq!(
            place(&["a", "b", "c", "d", "e"], &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]),
            ", a and 4 more"
        );
    }

    #[test]
    fn every_line_of_a_table_has_as_many_cells_as_its_head() {
        let text = example::document().markdown(&Baseline::Variant("default".to_owned()));
        let mut cells = None;
        for line in text.lines() {
            if line.starts_with('|') {
                let count = line.matches('|').count();
                assert_eq!(*cells.get_or_insert(count), count, "{line}");
            } else {
                cells = None;
            }
        }
    }
}
