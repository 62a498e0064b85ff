//! The blocks of a page: from a line that names the content to a line that ends it. The text
//! between is made anew each time; all else is the writer's.
//!
//! ```text
//! <!-- lab report: drain show=tables metrics=umount scenarios=neighbours-* figures=p50,p99 -->
//! <!-- end of report -->
//! ```
//!
//! `show` selects parts of the file: `origin` (source, date, machine, command), `plot`, `tables`,
//! `published` (others' figures beside these), `notes`; without it, all in this order. `metrics`,
//! `scenarios` and `variants` choose rows. With `figures` the cells have these instead of the one
//! that the experiment shows and its ratio to the default. `plotted` names the metrics and `panels`
//! the scenarios that the plot has; without them it has all of the file.

use crate::page_blocks::BEGIN_END;
pub(super) use crate::page_blocks::END;
use crate::report::{Choice, Figure};
use anyhow::{Context as _, bail, ensure};

const BEGIN: &str = "<!-- lab report: ";

/// The parts of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// Source, date, machine and command.
    Origin,
    /// The plot.
    Plot,
    /// The tables.
    Tables,
    /// Figures of others beside these.
    Published,
    /// The experiment's remarks on its rows.
    Notes,
}

const PARTS: [(&str, Part); 5] = [
    ("origin", Part::Origin),
    ("plot", Part::Plot),
    ("tables", Part::Tables),
    ("published", Part::Published),
    ("notes", Part::Notes),
];

/// A description of a block.
#[derive(Clone, Debug)]
pub(super) struct Block {
    /// The file, without `.json`.
    pub(super) name: String,
    /// The parts of it.
    pub(super) parts: Vec<Part>,
    /// The rows of the tables.
    pub(super) choice: Choice,
    /// Which rows the plot has.
    pub(super) plotted: Choice,
}

impl Block {
    /// The block of a file that is shown as a whole.
    pub(super) fn whole(name: &str) -> Self {
        let parts = PARTS.iter().map(|(_, part)| *part).collect();
        Self { name: name.to_owned(), parts, choice: Choice::default(), plotted: Choice::default() }
    }

    /// The line that begins a block of a file that is shown as a whole.
    pub(super) fn head(&self) -> String {
        format!("{BEGIN}{}{BEGIN_END}", self.name)
    }

    fn parse(line: &str) -> anyhow::Result<Option<Self>> {
        let Some(text) = line.strip_prefix(BEGIN) else { return Ok(None) };
        let text = text.strip_suffix(BEGIN_END).context("the line does not end with ` -->`")?;
        let mut words = text.split_whitespace();
        let mut block = Self::whole(words.next().context("no name of a file")?);
        for word in words {
            let (key, value) = word.split_once('=').with_context(|| format!("`{word}` is not KEY=A,B"))?;
            let names = || value.split(',').map(str::to_owned).collect::<Vec<_>>();
            match key {
                "show" => block.parts = each(value, "part", &PARTS)?,
                "metrics" => block.choice.metrics = names(),
                "scenarios" => block.choice.scenarios = names(),
                "variants" => block.choice.variants = names(),
                "plotted" => block.plotted.metrics = names(),
                "panels" => block.plotted.scenarios = names(),
                "figures" => {
                    let known = Figure::ALL.map(|figure| (figure.name(), figure));
                    block.choice.figures = each(value, "figure", &known)?;
                }
                _ => bail!("`{key}` is none of show, metrics, scenarios, variants, figures, plotted, panels"),
            }
        }
        Ok(Some(block))
    }
}

/// Looks up each of the names in `value`.
fn each<T: Copy>(value: &str, what: &str, known: &[(&str, T)]) -> anyhow::Result<Vec<T>> {
    let look_up = |name: &str| {
        let found = known.iter().find(|(known, _)| *known == name).map(|(_, value)| *value);
        let names = || known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        found.with_context(|| format!("there is no {what} `{name}`; there are: {}", names()))
    };
    value.split(',').map(look_up).collect()
}

/// The page with each block's content made by `render`.
pub(super) fn fill(page: &str, render: impl Fn(&Block) -> anyhow::Result<String>) -> anyhow::Result<String> {
    let mut filled = String::with_capacity(page.len());
    let mut inside = None;
    for (number, line) in (1..).zip(page.lines()) {
        let at = || format!("RESULTS.md:{number}");
        if let Some(block) = Block::parse(line).with_context(at)? {
            ensure!(inside.is_none(), "{}: a block begins inside of another one", at());
            filled.push_str(line);
            filled.push('\n');
            filled.push_str(&render(&block).with_context(at)?);
            inside = Some(number);
        } else if line == END {
            ensure!(inside.take().is_some(), "{}: no block begins before this end", at());
        } else if inside.is_some() {
            continue;
        }
        if inside.is_none() {
            filled.push_str(line);
            filled.push('\n');
        }
    }
    match inside {
        Some(number) => bail!("RESULTS.md:{number}: the block has no end: `{END}`"),
        None => Ok(filled),
    }
}

/// The blocks of the page.
pub(super) fn all(page: &str) -> Vec<Block> {
    page.lines().filter_map(|line| Block::parse(line).ok()?).collect()
}
