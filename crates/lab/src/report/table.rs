//! The Markdown form: for every metric a table of scenarios by variants, with ratios to the default.

use super::{Document, Metric, Row};
use std::fmt::Write as _;

/// Renders everything a reader of a terminal or of a Markdown page needs.
pub(super) fn render(document: &Document, default_variant: &str) -> String {
    let mut text = String::new();
    let machine = &document.machine;
    let quick = if document.quick { ", quick run: tails are not stable" } else { "" };
    let _ = writeln!(
        text,
        "## {}\n\nCommit {}, {}, {} cores of {}, Linux {}{quick}.\n",
        document.experiment, document.commit, document.when, machine.cores, machine.cpu, machine.kernel
    );
    for note in &document.notes {
        let _ = writeln!(text, "- {note}");
    }
    for metric in distinct(document.rows.iter().map(|row| row.metric)) {
        for &shown in metric.shown.tables() {
            let metric = Metric { shown, ..metric };
            let rows = document.rows.iter().filter(|row| row.metric.name == metric.name).cloned();
            let rows: Vec<Row> = rows.map(|row| Row { metric, ..row }).collect();
            text.push('\n');
            one_table(&mut text, metric, &rows.iter().collect::<Vec<_>>(), default_variant);
        }
    }
    notes(&mut text, &document.rows);
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

fn one_table(text: &mut String, metric: Metric, rows: &[&Row], default_variant: &str) {
    let better = if metric.larger_is_better { "more" } else { "less" };
    let shown = metric.shown.label();
    let _ = writeln!(
        text,
        "**{}** ({shown}, {}; {better} is better; in brackets: times the figure of `{default_variant}`)\n",
        metric.name, metric.unit
    );
    let variants = distinct(rows.iter().map(|row| row.variant.as_str()));
    let _ = writeln!(text, "| | {} |", variants.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(variants.len()));
    for scenario in distinct(rows.iter().map(|row| row.scenario.as_str())) {
        let find = |variant: &str| rows.iter().find(|r| r.scenario == scenario && r.variant == variant);
        let base = find(default_variant).and_then(|row| row.shown());
        let cells =
            variants.iter().map(|&variant| find(variant).map_or(String::new(), |row| cell(row, base)));
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

/// The part of a reason that fits into a cell: up to the first colon, as the reasons are worded.
fn short(note: &str) -> String {
    note.split(':').next().unwrap_or_default().replace('|', "/")
}

/// A figure with three significant digits or more, thousands apart.
pub(super) fn figure(value: f64) -> String {
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
fn notes(text: &mut String, rows: &[Row]) {
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
        let text = example::document().markdown("default");
        assert!(text.contains("| | default | null | rclone |"), "{text}");
        assert!(text.contains("| stat-1 | 20 000 (1.00) | 10 000 (0.50) | not installed |"), "{text}");
        assert!(text.contains("| untar | 1.50 (1.00) | 1.50 (1.00) |"), "{text}");
        assert!(text.contains("- `rclone`: not installed: no `rclone`"), "{text}");
        assert!(text.contains("- `null`, stat-1: no store"), "{text}");
        assert!(text.contains("Commit 0123456") && text.contains("2 cores of A & B <CPU>"), "{text}");
    }

    #[test]
    fn without_the_default_there_are_no_ratios() {
        let mut document = example::document();
        document.rows.retain(|row| row.variant != "default");
        let text = document.markdown("default");
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
        let text = example::document().markdown("default");
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
