//! Single figures in the prose of a page: each stands between a comment that names it and an empty
//! one.
//!
//! ```text
//! a section takes <!-- rcu read default read_pair p50 in ps -->672<!----> ps, 0.94 of that
//! ```
//!
//! File, scenario, variant, metric and figure (`n`, `p50`, `p95`, `p99`, `max`, `mean`) name it;
//! with `in` it is in another unit of time than the row. Two of these with ` / ` between them are
//! their ratio. Other comments are left alone: a comment that names no file of results is not of
//! this kind.

use crate::report::{Document, Figure, Row, figure};
use anyhow::{Context as _, bail};
use std::collections::BTreeMap;

const BEGIN: &str = "<!-- ";
const BEGIN_END: &str = " -->";
const END: &str = "<!---->";

/// The page, with its figures made anew.
pub(super) fn fill(page: &str, documents: &BTreeMap<String, Document>) -> anyhow::Result<String> {
    let lines = page.split_inclusive('\n').zip(1..);
    lines.map(|(line, number)| fill_line(line, documents).with_context(|| format!("line {number}"))).collect()
}

fn fill_line(line: &str, documents: &BTreeMap<String, Document>) -> anyhow::Result<String> {
    let mut filled = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once(BEGIN) {
        filled.push_str(before);
        filled.push_str(BEGIN);
        rest = after;
        let Some((words, after)) = after.split_once(BEGIN_END) else { continue };
        let is_ours = words.split(' ').next().is_some_and(|name| documents.contains_key(name));
        if !is_ours {
            continue;
        }
        let (_, after) = after.split_once(END).with_context(|| format!("`{words}` has no end: `{END}`"))?;
        filled.push_str(&format!("{words}{BEGIN_END}{}{END}", value(words, documents)?));
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// The figure that the words name, for people.
fn value(words: &str, documents: &BTreeMap<String, Document>) -> anyhow::Result<String> {
    let one = |words| one(words, documents);
    Ok(figure(match words.split_once(" / ") {
        Some((over, under)) => one(over)? / one(under)?,
        None => one(words)?,
    }))
}

fn one(words: &str, documents: &BTreeMap<String, Document>) -> anyhow::Result<f64> {
    let (at, unit) = words.split_once(" in ").map_or((words, None), |(at, unit)| (at, Some(unit)));
    let [name, scenario, variant, metric, wanted] = at.split(' ').collect::<Vec<_>>()[..] else {
        bail!("`{words}` is not FILE SCENARIO VARIANT METRIC FIGURE");
    };
    let document = documents.get(name).with_context(|| format!("there is no results/{name}.json"))?;
    let is = |row: &&Row| row.scenario == scenario && row.variant == variant && row.metric.name == metric;
    let row =
        document.rows.iter().find(is).with_context(|| format!("results/{name}.json has no row of `{at}`"))?;
    let wanted = Figure::ALL.into_iter().find(|figure| figure.name() == wanted);
    let value =
        wanted.and_then(|wanted| wanted.value(row)).with_context(|| format!("`{at}` has no such figure"))?;
    let Some(unit) = unit else { return Ok(value) };
    Ok(value * seconds(&row.unit)? / seconds(unit)?)
}

fn seconds(unit: &str) -> anyhow::Result<f64> {
    Ok(match unit {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        "ns" => 1e-9,
        "ps" => 1e-12,
        _ => bail!("`{unit}` is none of s, ms, us, ns, ps"),
    })
}
