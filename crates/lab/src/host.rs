//! `lab host`: the guarantees that the running kernel and this host give Watertight, tested in
//! action.
//!
//! A question is a [`facts::Fact`]; a bare FUSE server ([`server`]) puts most of them to the
//! kernel. With `--program` the program itself is started where a host lacks something
//! ([`attempts`]), and its output is kept. `tests/kernels/run facts` does this on each kernel and
//! collects docs/results/host.json, of which `lab report` makes docs/KERNELS.md ([`page`]).

mod attempts;
mod facts;
pub(crate) mod page;
mod server;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use attempts::Attempt;
use clap::Parser;
use facts::Measured;
use serde::{Deserialize, Serialize};

use crate::machine::{self, Machine};

/// The name of the command.
pub(crate) const COMMAND: &str = "host";

/// Measures what the running kernel and this host offer to Watertight. As root; mounts in temporary
/// directories, calls sync(2) and drops the kernel's caches.
#[derive(Debug, Parser)]
#[command(name = "lab host")]
struct Arguments {
    /// Write the results as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also start this `watertight` where things are missing, and record what it prints
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The host's name in tables [default: the kernel's release]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// The feature that this host was made to lack, for the tables
    #[arg(long, value_name = "WHAT")]
    lacking: Option<String>,
    /// Measure nothing: merge these files into the file of --json, which may have other hosts
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "json")]
    collect: Vec<PathBuf>,
}

/// One host as it was found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Host {
    /// Its name in tables.
    name: String,
    /// The feature that it was made to lack.
    lacking: Option<String>,
    /// When, UTC, RFC 3339.
    when: String,
    /// Commit of the source that was measured.
    commit: String,
    /// The machine.
    machine: Machine,
    /// The results.
    facts: Vec<Measured>,
    /// The program's behaviour where something is missing.
    attempts: Vec<Attempt>,
}

/// All that were found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Hosts {
    /// In the order of their kernels.
    hosts: Vec<Host>,
}

impl Hosts {
    /// Reads the JSON form.
    ///
    /// # Errors
    /// If it is not one.
    pub(crate) fn from_json(text: &str) -> anyhow::Result<Self> {
        Ok(serde_json::from_str(text)?)
    }

    /// Adds a host, in place of its earlier results.
    fn put(&mut self, host: Host) {
        self.hosts.retain(|other| (&other.name, &other.lacking) != (&host.name, &host.lacking));
        self.hosts.push(host);
        self.hosts
            .sort_by_key(|host| (numbers(&host.machine.kernel), host.name.clone(), host.lacking.clone()));
    }
}

/// The numbers that a release begins with.
fn numbers(release: &str) -> Vec<u32> {
    let version = release.split(|c: char| !c.is_ascii_digit() && c != '.').next().unwrap_or_default();
    version.split('.').map_while(|number| number.parse().ok()).collect()
}

/// Runs the command line of this process, whose first argument is [`COMMAND`].
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse_from(std::env::args_os().skip(1));
    crate::child::exit(COMMAND, run(&arguments))
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if !arguments.collect.is_empty() {
        return collect(&arguments.collect, arguments.json.as_deref().context("--json is needed")?);
    }
    let host = measured(arguments)?;
    let hosts = Hosts { hosts: vec![host] };
    if let Some(file) = &arguments.json {
        write(file, &hosts)?;
    }
    let text = page::terminal(&hosts)?;
    use std::io::Write as _;
    std::io::stdout().lock().write_all(text.as_bytes())?;
    Ok(())
}

fn measured(arguments: &Arguments) -> anyhow::Result<Host> {
    let when = machine::rfc3339(SystemTime::now());
    let machine = Machine::this();
    let facts = facts::ALL.iter().map(facts::Fact::measured).collect();
    let attempts = arguments.program.as_deref().map(std::path::absolute).transpose()?;
    let attempts = attempts.map_or_else(Vec::new, |program| attempts::all(&program));
    Ok(Host {
        name: arguments.name.clone().unwrap_or_else(|| machine.kernel.clone()),
        lacking: arguments.lacking.clone(),
        when,
        // In an emulator there is no working tree; the caller that starts it sets the commit.
        commit: std::env::var("LAB_COMMIT").unwrap_or_else(|_| machine::commit(Path::new("."))),
        machine,
        facts,
        attempts,
    })
}

fn collect(from: &[PathBuf], into: &Path) -> anyhow::Result<()> {
    let read = |file: &Path| -> anyhow::Result<Hosts> {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        Hosts::from_json(&text).with_context(|| format!("in {}", file.display()))
    };
    let mut all = if into.exists() { read(into)? } else { Hosts::default() };
    for file in from {
        read(file)?.hosts.into_iter().for_each(|host| all.put(host));
    }
    write(into, &all)
}

fn write(file: &Path, hosts: &Hosts) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(hosts)? + "\n";
    std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}
