//! `lab modules`: which module of a crate uses which, and the circles among them.
//!
//! A circle of modules can only be understood, moved or tested whole. This command reads the
//! sources ([`source`], [`paths`]), finds the circles of every crate of the workspace ([`graph`]) and prints
//! them. With `--check` it fails on a circle that `.ci/circles` does not know: a line of that file
//! is a circle, its files in any order; a circle that has become smaller is known.
//!
//! Exit codes: 0 done; 1 a new circle, or a file that cannot be read; 2 the command line is wrong.

mod graph;
mod paths;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;

use graph::Graph;
use paths::Source;

use crate::source::{self, Module, Part, Target};

/// The name of the command.
pub(crate) const COMMAND: &str = "modules";

/// The circles that are known, from the workspace's directory.
const KNOWN: &str = ".ci/circles";

/// Prints the circles among the modules of each crate, and which files make them.
#[derive(Debug, Parser)]
#[command(name = "lab modules")]
struct Arguments {
    /// Fail if there is a circle that .ci/circles does not know
    #[arg(long)]
    check: bool,
    /// Print a JSON object: for each crate its files, and which it uses
    #[arg(long, conflicts_with = "check")]
    json: bool,
    /// The workspace's directory
    #[arg(default_value = ".")]
    root: PathBuf,
}

/// Runs the command line of this process, whose first argument is [`COMMAND`].
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse_from(std::env::args_os().skip(1));
    match run(&arguments) {
        Ok(is_good) if is_good => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("lab: modules: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> anyhow::Result<bool> {
    let crates = graphs(&arguments.root)?;
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let all: serde_json::Map<_, _> =
            crates.iter().map(|(name, graph)| (name.clone(), serde_json::json!(graph.uses))).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&all)?)?;
        return Ok(true);
    }
    let known = if arguments.check { known(&arguments.root.join(KNOWN))? } else { Vec::new() };
    let mut is_good = true;
    for (name, graph) in &crates {
        let circles = graph.circles();
        if !arguments.check {
            let arrows: usize = graph.uses.values().map(BTreeSet::len).sum();
            writeln!(out, "{name}: {} files, {arrows} uses, {} circles", graph.uses.len(), circles.len())?;
            for circle in &circles {
                writeln!(out, "{}", shown(graph, circle))?;
            }
            continue;
        }
        for circle in circles.iter().filter(|circle| !is_known(&known, circle)) {
            is_good = false;
            eprintln!("lab: modules: a new circle in {name}:\n{}", shown(graph, circle));
        }
    }
    if !is_good {
        eprintln!(
            "lab: modules: move what these share to a module below them; if that is impossible, add the circle to {KNOWN}"
        );
    }
    Ok(is_good)
}

/// The graph of each crate, by the crate's directory, with files from the workspace's directory.
fn graphs(root: &Path) -> anyhow::Result<Vec<(String, Graph)>> {
    let mut crates: BTreeMap<PathBuf, BTreeMap<Part, Vec<Module>>> = BTreeMap::new();
    for module in source::all(root)? {
        let Target { directory, part, .. } = &*module.target;
        if *part != Part::Library && *part != Part::Program {
            continue;
        }
        crates.entry(directory.clone()).or_default().entry(part.clone()).or_default().push(module);
    }
    // A program that has a library uses it as another crate, and is left out.
    let graph = |(directory, mut parts): (PathBuf, BTreeMap<Part, Vec<Module>>)| {
        let (_, modules) = parts.pop_first()?;
        let name = directory.file_name()?.to_string_lossy().into_owned();
        Some((name, Graph::of(&Source::of(&modules))))
    };
    Ok(crates.into_iter().filter_map(graph).collect())
}

fn known(file: &Path) -> anyhow::Result<Vec<BTreeSet<PathBuf>>> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.map(|line| line.split_whitespace().map(PathBuf::from).collect()).collect())
}

fn is_known(known: &[BTreeSet<PathBuf>], circle: &BTreeSet<&PathBuf>) -> bool {
    known.iter().any(|one| circle.iter().all(|file| one.contains(*file)))
}

/// A line for each file: which others of the circle it uses.
fn shown(graph: &Graph, circle: &BTreeSet<&PathBuf>) -> String {
    let uses = |file: &PathBuf| {
        let others = graph.uses[file].iter().filter(|other| circle.contains(other));
        others.map(|other| other.display().to_string()).collect::<Vec<_>>().join(" ")
    };
    circle
        .iter()
        .map(|file| format!("    {} uses {}", file.display(), uses(file)))
        .collect::<Vec<_>>()
        .join("\n")
}
