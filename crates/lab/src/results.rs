//! `lab report`: makes the tables of docs/RESULTS.md and the plots beside them from the JSON in
//! docs/results.
//!
//! People write the page except for its blocks ([`blocks`]), each of which names a file of results
//! and a selection of it. The command fills all of them, and redraws every plot; a file without a
//! block gets a section at the page's end. With `--check` nothing is written, and differences are
//! named: a figure in the page that is in no file is an error, and so is a file that the page does
//! not show, or whose plot it does not. Figures that others have published are in `published.json`
//! ([`published`]) and stand beside ours; results of hosts are in `host.json`, of which
//! [`crate::host`] makes the blocks of docs/KERNELS.md; [`crate::objects::cost`] makes those of
//! docs/design/objects-cost.md. Single figures in prose ([`inline`]) are
//! filled on this page and all others of the documentation.

mod blocks;
mod inline;
mod published;

use crate::experiments;
use crate::host::{Hosts, page as host_page};
use crate::objects::cost::page as cost_page;
use crate::report::{Baseline, Document};
use anyhow::Context as _;
use blocks::{Block, Part};
use clap::Parser;
use published::Published;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The name of the command.
pub(crate) const COMMAND: &str = "report";

/// Makes the tables of RESULTS.md, the plots, and the figures in the prose of all pages and of
/// README.md, from the JSON in results/.
#[derive(Debug, Parser)]
#[command(name = "lab report")]
struct Arguments {
    /// Write nothing; fail if a page or a plot is not what the JSON gives
    #[arg(long)]
    check: bool,
    /// Where RESULTS.md and results/ are, and other pages; README.md is beside it
    #[arg(long, value_name = "DIR", default_value = "docs")]
    docs: PathBuf,
}

/// Runs the command line of this process, whose first argument is [`COMMAND`].
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse_from(std::env::args_os().skip(1));
    let made = Results::read(&arguments.docs).and_then(|results| {
        let differ = results.differences()?;
        if !arguments.check {
            for (file, text) in &differ {
                std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))?;
            }
        }
        Ok(differ)
    });
    match made {
        Err(error) => {
            eprintln!("lab: report: {error:#}");
            ExitCode::FAILURE
        }
        Ok(differ) if arguments.check && !differ.is_empty() => {
            for (file, text) in &differ {
                let there = std::fs::read_to_string(file).unwrap_or_default();
                eprintln!("lab: report: {}{}", file.display(), first_difference(&there, text));
            }
            eprintln!("lab: report: `cargo run -p lab -- report` makes them from the JSON again");
            ExitCode::FAILURE
        }
        Ok(differ) => {
            for (file, _) in differ {
                eprintln!("lab: report: wrote {}", file.display());
            }
            ExitCode::SUCCESS
        }
    }
}

/// The first line in which two texts differ, for a person.
fn first_difference(there: &str, wanted: &str) -> String {
    let mut lines = there.lines().zip(wanted.lines()).enumerate();
    match lines.find(|(_, (there, wanted))| there != wanted) {
        Some((number, (there, wanted))) => {
            let short = |line: &str| line.chars().take(160).collect::<String>();
            format!(
                ":{}: differs from the JSON\n  there: {}\n  JSON:  {}",
                number + 1,
                short(there),
                short(wanted)
            )
        }
        None => ": is longer or shorter than what the JSON gives".to_owned(),
    }
}

/// Everything in the directory.
#[derive(Debug)]
struct Results {
    docs: PathBuf,
    page: String,
    /// The other pages, which have figures in their prose only.
    others: Vec<(PathBuf, String)>,
    /// By the file's name without `.json`.
    documents: BTreeMap<String, Document>,
    published: Vec<Published>,
    /// Of docs/KERNELS.md.
    hosts: Option<Hosts>,
}

impl Results {
    fn read(docs: &Path) -> anyhow::Result<Self> {
        let read = |file: &Path| {
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
        };
        let page = read(&docs.join("RESULTS.md"))?;
        let others = other_pages(docs)?.into_iter().map(|file| Ok((file.clone(), read(&file)?)));
        let others = others.collect::<anyhow::Result<_>>()?;
        let directory = docs.join("results");
        let (mut documents, mut published, mut hosts) = (BTreeMap::new(), Vec::new(), None);
        let entries = directory.read_dir().with_context(|| format!("cannot read {}", directory.display()))?;
        for entry in entries {
            let file = entry?.path();
            let Some(name) = file.file_name().and_then(|name| name.to_str()?.strip_suffix(".json")) else {
                continue;
            };
            let text = read(&file)?;
            let within = || format!("in {}", file.display());
            if name == published::NAME {
                published = published::read(&text).with_context(within)?;
            } else if name == host_page::NAME {
                hosts = Some(Hosts::from_json(&text).with_context(within)?);
            } else {
                documents.insert(name.to_owned(), Document::from_json(&text).with_context(within)?);
            }
        }
        Ok(Self { docs: docs.to_owned(), page, others, documents, published, hosts })
    }

    /// The files that differ from the JSON's, with their correct content.
    fn differences(&self) -> anyhow::Result<Vec<(PathBuf, String)>> {
        let page = inline::fill(&self.page()?, &self.documents).context("in RESULTS.md")?;
        let blocks = blocks::all(&page);
        let mut wanted = vec![(self.docs.join("RESULTS.md"), page)];
        for (file, text) in &self.others {
            let within = || format!("in {}", file.display());
            let text = host_page::fill(text, self.hosts.as_ref()).with_context(within)?;
            let text = cost_page::fill(&text, &self.documents).with_context(within)?;
            wanted.push((file.clone(), inline::fill(&text, &self.documents).with_context(within)?));
        }
        for (name, document) in &self.documents {
            let shows = |block: &&Block| block.name == *name && block.parts.contains(&Part::Plot);
            let block = blocks.iter().find(shows);
            let block = block.with_context(|| format!("RESULTS.md shows no plot of results/{name}.json"))?;
            let plot = document.svg(&default_variant(document), &block.plotted);
            wanted.push((self.docs.join("results").join(format!("{name}.svg")), plot));
        }
        wanted.retain(|(file, text)| std::fs::read_to_string(file).ok().as_ref() != Some(text));
        Ok(wanted)
    }

    /// The page with its blocks filled, and with one for each file that had none.
    fn page(&self) -> anyhow::Result<String> {
        let mut page = blocks::fill(&self.page, |block| self.render(block))?;
        for (name, document) in &self.documents {
            if !blocks::all(&page).iter().any(|block| block.name == *name) {
                let question = experiments::named(&document.experiment);
                let question = question.map_or_else(String::new, |e| format!(": {}", e.question));
                let block = Block::whole(name);
                let _ = write!(
                    page,
                    "\n## `{name}`{question}\n\n{}\n{}{}\n",
                    block.head(),
                    self.render(&block)?,
                    blocks::END
                );
            }
        }
        Ok(page)
    }

    /// The content of a block.
    fn render(&self, block: &Block) -> anyhow::Result<String> {
        let name = &block.name;
        let document =
            self.documents.get(name).with_context(|| format!("there is no results/{name}.json"))?;
        let baseline = baseline(document);
        let mut text = String::new();
        for part in &block.parts {
            match part {
                Part::Origin => {
                    let _ = writeln!(text, "\n{} [All rows](results/{name}.json).", document.origin());
                    if !document.command.is_empty() {
                        let _ = writeln!(text, "\n    {} --json docs/results/{name}.json", document.command);
                    }
                }
                Part::Plot => {
                    let _ = writeln!(text, "\n![Plot of {name}](results/{name}.svg)");
                }
                Part::Tables => {
                    let tables = document.tables(&baseline, &block.choice);
                    anyhow::ensure!(!tables.is_empty(), "results/{name}.json has no row that is chosen");
                    text.push_str(&tables);
                }
                Part::Published => {
                    text.push_str(&published::beside(document, &self.published)?);
                }
                Part::Notes => {
                    let remarks = document.remarks();
                    let _ = write!(
                        text,
                        "\n<details><summary>What each scenario and variant is</summary>\n\n{remarks}\n</details>\n"
                    );
                }
            }
        }
        text.push('\n');
        Ok(text)
    }
}

/// README.md, and the pages in `docs` and `docs/design` besides RESULTS.md, as far as they exist.
fn other_pages(docs: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut pages = vec![docs.join("../README.md")];
    for directory in [docs.to_owned(), docs.join("design")] {
        let Ok(entries) = directory.read_dir() else { continue };
        for entry in entries {
            let file = entry?.path();
            let is_other =
                file.extension().is_some_and(|extension| extension == "md") && !file.ends_with("RESULTS.md");
            pages.extend(is_other.then_some(file));
        }
    }
    pages.retain(|page| page.exists());
    pages.sort();
    Ok(pages)
}

/// The variant that a plot shows before the others.
fn default_variant(document: &Document) -> String {
    let first = || document.rows.first().map(|row| row.variant.clone());
    let known =
        experiments::named(&document.experiment).map(|experiment| experiment.default_variant().to_owned());
    known.or_else(first).unwrap_or_else(|| "default".to_owned())
}

/// The baseline of the ratios in its tables.
fn baseline(document: &Document) -> Baseline {
    experiments::named(&document.experiment)
        .map_or_else(|| Baseline::Variant(default_variant(document)), |experiment| experiment.baseline())
}

#[cfg(test)]
mod tests;
