//! The blocks of docs/design/objects-cost.md, made of the results.
//!
//! ```text
//! <!-- lab cost: operations -->
//! <!-- end of report -->
//! ```
//!
//! `prices`: the parameters. `operations`: requests, predicted and measured, and what they cost.
//! `examples`: whole volumes. `growth`: requests by the number of files. `idle`: attached volumes
//! that nobody uses.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use anyhow::{Context as _, bail};

use super::model::{self, Operation, PRICES};
use super::{DELETES, EXPERIMENT, GETS, LISTS, PUTS};
use crate::page_blocks;
use crate::report::{Document, Metric, Row, figure};

/// The results of growth and of idle volumes, where they have a run of their own, and else.
const GROWTH_AND_IDLE: [&str; 2] = ["objects-growth", "objects"];
/// Those of the largest volume, which is a campaign.
const LARGEST: &str = "objects-10m";

/// Until a run is published.
const NONE_YET: &str = "No published run has these rows yet.\n";

/// By the file's name without `.json`.
type Documents = BTreeMap<String, Document>;

/// The page with its blocks made of `documents`; a page without such blocks is as it was.
pub(crate) fn fill(page: &str, documents: &Documents) -> anyhow::Result<String> {
    page_blocks::fill(page, "cost", |name| block(name, documents))
}

fn block(name: &str, documents: &Documents) -> anyhow::Result<String> {
    match name {
        "prices" => Ok(prices()),
        "operations" => documents.get(EXPERIMENT.name).map_or_else(|| Ok(NONE_YET.to_owned()), operations),
        "examples" => Ok(examples()),
        "growth" => Ok(match first(documents) {
            Some(document) => growth(document, documents.get(LARGEST).unwrap_or(document)),
            None => NONE_YET.to_owned(),
        }),
        "idle" => Ok(first(documents).map_or_else(|| NONE_YET.to_owned(), idle)),
        _ => bail!("there is no block `{name}`; there are: prices, operations, examples, growth, idle"),
    }
}

/// The first of [`GROWTH_AND_IDLE`] that is there.
fn first(documents: &Documents) -> Option<&Document> {
    GROWTH_AND_IDLE.into_iter().find_map(|name| documents.get(name))
}

fn prices() -> String {
    let mut text = "| what | $ |\n|---|---:|\n".to_owned();
    for (what, price) in [
        ("1,000 PUT", PRICES.put * 1e3),
        ("1,000 LIST", PRICES.list * 1e3),
        ("1,000 GET, also one that is answered with `304` or `404`", PRICES.get * 1e3),
        ("1,000 DELETE", PRICES.delete * 1e3),
        ("1 GB (10⁹ bytes) for a month", PRICES.gigabyte_month),
    ] {
        // Without what a product of two floating-point numbers has behind its last digit.
        let _ = writeln!(text, "| {what} | {} |", (price * 1e9).round() / 1e9);
    }
    text
}

fn operations(document: &Document) -> anyhow::Result<String> {
    let mut text =
        "| operation | PUT | GET | LIST | DELETE | $ for 1,000 |\n|---|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for operation in Operation::ALL {
        let mut cells = String::new();
        let mut measured = [0.0; 4];
        for ([sent, predicted], measured) in [PUTS, GETS, LISTS, DELETES].iter().zip(&mut measured) {
            let value = |metric: &Metric| {
                let row = row(document, operation.name(), metric.name);
                row.and_then(|row| row.p50)
                    .with_context(|| format!("no {} of {}", metric.name, operation.name()))
            };
            *measured = value(sent)?;
            let _ = write!(cells, " {} / {} |", figure(value(predicted)?), figure(*measured));
        }
        let dollars = model::Cost::of(measured).dollars() * 1e3;
        let _ =
            writeln!(text, "| `{}`: {} |{cells} {} |", operation.name(), operation.words(), money(dollars));
    }
    let _ = writeln!(text, "\n{} `{}`", document.origin(), document.command);
    Ok(text)
}

fn row<'a>(document: &'a Document, scenario: &str, metric: &str) -> Option<&'a Row> {
    document.rows.iter().find(|row| row.scenario == scenario && row.metric.name == metric)
}

fn examples() -> String {
    let mut text =
        "| what | PUT | GET | LIST | requests, $ | storage, $ a month |\n|---|---:|---:|---:|---:|---:|\n"
            .to_owned();
    for example in model::examples() {
        let cost = example.cost;
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} |",
            example.words,
            count(cost.puts),
            count(cost.gets),
            count(cost.lists),
            money(cost.dollars()),
            money(example.bytes / 1e9 * PRICES.gigabyte_month)
        );
    }
    text
}

/// Requests by the number of files. Those of the largest volume are measured, perhaps by another run, or
/// the line through the two largest of the others, prolonged.
fn growth(document: &Document, of_largest: &Document) -> String {
    let metrics = [
        "create_requests",
        "umount_requests",
        "mount_requests",
        "list_requests",
        "stat_requests",
        "takeover_requests",
    ];
    let sizes = super::super::growth::SIZES;
    let value_in = |of: &Document, scenario: &str, metric: &str| row(of, scenario, metric)?.p50;
    let value = |scenario: &str, metric: &str| value_in(document, scenario, metric);
    let is_there =
        sizes.iter().all(|(scenario, _)| metrics.iter().all(|metric| value(scenario, metric).is_some()));
    if !is_there {
        return NONE_YET.to_owned();
    }
    let mut text = "| requests |".to_owned();
    for (_, files) in sizes {
        let _ = write!(text, " {} files |", count(f64::from(files)));
    }
    let campaign = super::super::growth::CAMPAIGN;
    let largest = |metric: &str| value_in(of_largest, campaign.0, metric);
    let is_measured = metrics.iter().all(|metric| largest(metric).is_some());
    let how = if is_measured { "" } else { ", extrapolated" };
    let _ = write!(text, " {} files{how} |\n|---|", count(f64::from(campaign.1)));
    text.push_str(&"---:|".repeat(sizes.len() + 1));
    text.push('\n');
    for metric in metrics {
        let _ = write!(text, "| {} |", metric.trim_end_matches("_requests"));
        let values: Vec<_> = sizes
            .iter()
            .filter_map(|(scenario, files)| Some((f64::from(*files), value(scenario, metric)?)))
            .collect();
        for (_, value) in &values {
            let _ = write!(text, " {} |", figure(*value));
        }
        let last = match largest(metric).filter(|_| is_measured) {
            Some(measured) => figure(measured),
            None => prolonged(&values, campaign.1.into()).map_or_else(String::new, count),
        };
        let _ = writeln!(text, " {last} |");
    }
    text
}

/// What a line through the last two points says of so many files.
fn prolonged(points: &[(f64, f64)], files: f64) -> Option<f64> {
    let [.., (x0, y0), (x1, y1)] = points else { return None };
    Some((y1 + (y1 - y0) / (x1 - x0) * (files - x1)).max(*y1))
}

fn idle(document: &Document) -> String {
    let metrics = [
        ("memory_each", "KiB of each"),
        ("wakeups_per_s", "wake-ups a second, of the process"),
        ("gets_each_per_min", "GETs a minute, of each"),
        ("lists_each_per_hour", "LISTs an hour, of each"),
        ("puts_each_per_hour", "PUTs an hour, of each"),
    ];
    let sizes = super::super::idle::SIZES;
    if sizes.iter().all(|(scenario, _)| row(document, scenario, "puts_each_per_hour").is_none()) {
        return NONE_YET.to_owned();
    }
    let mut text = "| attached volumes |".to_owned();
    for (_, volumes) in sizes {
        let _ = write!(text, " {} |", count(volumes as f64));
    }
    let _ = writeln!(text, "\n|---|{}", "---:|".repeat(sizes.len()));
    for (metric, words) in metrics {
        let _ = write!(text, "| {words} |");
        for (scenario, _) in sizes {
            let value = row(document, scenario, metric).and_then(|row| row.p50);
            let _ = write!(text, " {} |", value.map_or_else(|| "—".to_owned(), figure));
        }
        text.push('\n');
    }
    text
}

/// A number of requests, with spaces between thousands.
fn count(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(' ');
        }
        text.push(digit);
    }
    text
}

/// An amount with two significant digits, or whole dollars.
fn money(dollars: f64) -> String {
    if dollars >= 10.0 {
        return count(dollars);
    }
    if dollars <= 0.0 {
        return "0".to_owned();
    }
    // The place of the second significant digit.
    let mut places = 1;
    while dollars * 10_f64.powi(places) < 10.0 && places < 12 {
        places += 1;
    }
    format!("{dollars:.*}", usize::try_from(places).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_filled_and_what_is_around_them_stays() {
        let page = "a\n<!-- lab cost: prices -->\nold\n<!-- end of report -->\nb\n";
        let filled = fill(page, &Documents::new()).unwrap();
        assert!(filled.starts_with("a\n<!-- lab cost: prices -->\n\n| what | $ |"), "{filled}");
        assert!(filled.ends_with("\n\n<!-- end of report -->\nb\n") && !filled.contains("old"), "{filled}");
        assert_eq!(fill(&filled, &Documents::new()).unwrap(), filled);
        assert_eq!(fill("no block\n", &Documents::new()).unwrap(), "no block\n");
        let refused = |page: &str| format!("{:#}", fill(page, &Documents::new()).unwrap_err());
        assert!(
            refused("<!-- lab cost: nothing -->\n<!-- end of report -->\n").contains("no block `nothing`")
        );
        assert!(refused("<!-- lab cost: prices -->\n").contains("has no end"));
        let unmeasured = fill("<!-- lab cost: operations -->\n<!-- end of report -->\n", &Documents::new());
        assert!(unmeasured.unwrap().contains(NONE_YET.trim_end()));
    }

    #[test]
    fn numbers_are_for_people() {
        assert_eq!((count(1_234_567.4), count(999.0)), ("1 234 567".to_owned(), "999".to_owned()));
        let amounts = [0.0, 0.004_24, 0.5, 2.345, 23.0, 2_073.6].map(money);
        assert_eq!(amounts, ["0", "0.0042", "0.50", "2.3", "23", "2 074"]);
    }

    #[test]
    fn growth_is_prolonged_and_never_shrinks() {
        let line = [(1e3, 5.0), (1e4, 10.0), (1e5, 100.0)];
        assert!((prolonged(&line, 1e7).unwrap() - 10_000.0).abs() < 1.0);
        assert_eq!(prolonged(&[(1e4, 12.0), (1e5, 10.0)], 1e7), Some(10.0));
        assert_eq!(prolonged(&[(1e4, 12.0)], 1e7), None);
    }
}
