//! The command line:
//! `lab EXPERIMENT [--quick] [--json FILE] [--svg FILE] [--runs N] [--variant A,B]`.
//! [`crate::results`] uses the files: `lab report`.
//!
//! Exit codes: 0 done; 1 the experiment failed, or has met what must not be (results are printed and
//! written then); 2 the command line is wrong; 130 stopped by a signal (results up to then are printed
//! and written).

use crate::experiment::{Experiment, Settings, Stop};
use crate::experiments;
use crate::machine::{self, Machine};
use crate::progress::Progress;
use crate::report::{Choice, Document, Recorder};
use anyhow::Context as _;
use clap::Parser;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::SystemTime;

/// Runs one experiment: every variant and peer in one process, interleaved.
#[derive(Debug, Parser)]
#[command(name = "lab", after_help = experiments_help())]
struct Arguments {
    /// The experiment
    experiment: String,
    /// End within a minute: for a first impression, the tails are not stable
    #[arg(long)]
    quick: bool,
    /// Write the rows as JSON to FILE
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write a plot to FILE
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Rounds of all variants, instead of the experiment's own number
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    runs: Option<u16>,
    /// How long an experiment runs that has a duration (objects-stress)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    minutes: Option<u16>,
    /// The seed of an experiment that has one (objects-stress)
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Only these variants
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    variant: Vec<String>,
    /// Only these scenarios
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    scenario: Vec<String>,
    /// Put the files that are served below DIR [default: /dev/shm where that is a tmpfs]
    #[arg(long, value_name = "DIR")]
    source: Option<PathBuf>,
    /// The program under test [default: built by cargo, or beside this executable]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
}

fn experiments_help() -> String {
    let mut help = "Experiments:\n".to_owned();
    for experiment in experiments::ALL {
        help.push_str(&format!(
            "  {}  {}\n    variants: {}\n    scenarios: {}\n",
            experiment.name,
            experiment.question,
            experiment.variants.join(", "),
            experiment.scenarios.join(", ")
        ));
    }
    help.push_str(
        "Not experiments:\n  host    measures what the kernel and this host offer to Watertight (lab host --help)\n  \
         report  makes docs/RESULTS.md, docs/KERNELS.md and the plots from docs/results (lab report --help)\n",
    );
    help.push_str(
        "  kernels  boots kernels, and measures their own mechanisms beside Watertight's (lab kernels --help)\n  \
         modules  finds circles among the modules of each crate (lab modules --help)\n  \
         mutants  lists and runs the mutants that check the claims about concurrency (lab mutants --help)\n",
    );
    help
}

/// Runs the command line of this process.
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let (experiment, settings) = match choose(&arguments) {
        Ok(chosen) => chosen,
        Err(message) => {
            eprintln!("lab: {message}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments, experiment, settings) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {}: {error:#}", experiment.name);
            ExitCode::FAILURE
        }
    }
}

/// Finds the variants that the names mean, or fails with the valid names.
fn choose(arguments: &Arguments) -> Result<(&'static Experiment, Settings), String> {
    let name = arguments.experiment.as_str();
    let experiment = experiments::named(name).ok_or_else(|| {
        let known = experiments::ALL.map(|experiment| experiment.name);
        format!("no experiment is named `{name}`; there are: {}", known.join(", "))
    })?;
    let mut scenarios = subset(&arguments.scenario, experiment.scenarios, "scenario", name)?;
    if arguments.scenario.is_empty() {
        scenarios.retain(|scenario| !experiment.campaigns.contains(scenario));
    }
    let settings = Settings {
        quick: arguments.quick,
        runs: arguments.runs.map(usize::from),
        minutes: arguments.minutes,
        seed: arguments.seed,
        variants: subset(&arguments.variant, experiment.variants, "variant", name)?,
        scenarios,
        source: arguments.source.clone(),
        program: arguments.program.clone(),
        stop: Stop::default(),
    };
    Ok((experiment, settings))
}

/// The named ones of `known`, in the order of `known`; all of them if none is named.
fn subset(
    named: &[String],
    known: &[&'static str],
    what: &str,
    experiment: &str,
) -> Result<Vec<&'static str>, String> {
    if let Some(wrong) = named.iter().find(|name| !known.contains(&name.as_str())) {
        return Err(format!("`{experiment}` has no {what} `{wrong}`; there are: {}", known.join(", ")));
    }
    let is_chosen = |name: &&'static str| named.is_empty() || named.iter().any(|n| n == name);
    Ok(known.iter().copied().filter(is_chosen).collect())
}

fn run(arguments: &Arguments, experiment: &Experiment, settings: Settings) -> anyhow::Result<ExitCode> {
    let stop = Stop::at_signals().context("cannot install signal handlers")?;
    let settings = Settings { stop: stop.clone(), ..settings };
    // Before anything runs: an output that cannot be written is known now, not after ten minutes.
    for file in [&arguments.json, &arguments.svg].into_iter().flatten() {
        std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(file)
            .with_context(|| format!("cannot write {}", file.display()))?;
    }
    let when = machine::rfc3339(SystemTime::now());
    let mut recorder = Recorder::default();
    let progress = Progress::new();
    let mut notes = (experiment.run)(&settings, &progress, &mut recorder)?;
    drop(progress);
    if stop.is_set() {
        notes.push("Stopped by a signal: the later rounds are missing.".to_owned());
    }
    let broken = recorder.broken().to_vec();
    let document = Document {
        experiment: experiment.name.to_owned(),
        command: command(std::env::args().skip(1)),
        commit: machine::commit(&source_tree()),
        when,
        machine: Machine::this(),
        quick: settings.quick,
        rows: recorder.into_rows(),
        notes,
    };
    publish(arguments, &document, experiment)?;
    for what in &broken {
        eprintln!("lab: {}: BROKEN: {what}", experiment.name);
    }
    if !broken.is_empty() {
        return Ok(ExitCode::FAILURE);
    }
    Ok(if stop.is_set() { ExitCode::from(130) } else { ExitCode::SUCCESS })
}

/// The command that repeats this run. Where its files went, and where the program was, is another
/// machine's affair.
pub(crate) fn command(arguments: impl Iterator<Item = String>) -> String {
    let profile = if cfg!(debug_assertions) { "" } else { " --release" };
    let features = if cfg!(feature = "foyer") { " --features foyer" } else { "" };
    let mut text = format!("cargo run{profile}{features} -p lab --");
    let mut is_left_out = false;
    for argument in arguments {
        let (option, value) =
            argument.split_once('=').map_or((argument.as_str(), None), |(o, v)| (o, Some(v)));
        if is_left_out || matches!(option, "--json" | "--svg" | "--program") {
            is_left_out = !is_left_out && value.is_none();
            continue;
        }
        let argument = if text.ends_with(" --source") { "DIR" } else { &argument };
        text.push(' ');
        text.push_str(argument);
    }
    text
}

/// A directory inside of the working tree that this executable was built from.
pub(crate) fn source_tree() -> PathBuf {
    if let Some(package) = std::env::var_os("CARGO_MANIFEST_DIR") {
        return package.into();
    }
    let executable = std::env::current_exe().ok();
    executable.as_deref().and_then(Path::parent).map_or_else(|| PathBuf::from("."), Path::to_path_buf)
}

fn publish(arguments: &Arguments, document: &Document, experiment: &Experiment) -> anyhow::Result<()> {
    let write = |file: &Path, text: &str| {
        std::fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    if let Some(file) = &arguments.json {
        write(file, &document.json()?)?;
    }
    if let Some(file) = &arguments.svg {
        write(file, &document.svg(experiment.default_variant(), &Choice::default()))?;
    }
    let mut out = std::io::stdout().lock();
    out.write_all(document.markdown(&experiment.baseline()).as_bytes())?;
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Arguments {
        Arguments::parse_from(std::iter::once("lab").chain(line.split_whitespace()))
    }

    #[test]
    fn the_command_line_is_sound() {
        use clap::CommandFactory as _;
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_command_of_a_run_has_no_files_in_it() {
        let of = |line: &str| command(line.split_whitespace().map(str::to_owned));
        let text = of("drain --json a.json --runs 7 --svg=b.svg --program /x --variant base --quick");
        assert!(text.ends_with(" -p lab -- drain --runs 7 --variant base --quick"), "{text}");
        assert!(of("volumes --source /mnt/x --runs 2").ends_with(" -- volumes --source DIR --runs 2"));
        assert!(of("rcu").ends_with(" -- rcu") && of("rcu --json").ends_with(" -- rcu"));
    }

    #[test]
    fn names_are_checked_and_the_known_ones_listed() {
        let refused = |line: &str| choose(&parse(line)).map(|_| ()).unwrap_err();
        let message = refused("volume");
        assert!(message.contains("`volume`") && message.contains("volumes"), "{message}");
        let message = refused("volumes --variant null,nul");
        assert!(message.contains("variant `nul`") && message.contains("passthrough_ll"), "{message}");
        let message = refused("volumes --scenario stat-3");
        assert!(message.contains("scenario `stat-3`") && message.contains("stat-2"), "{message}");
    }

    #[test]
    fn a_duration_and_a_seed_are_settings() {
        let (_, settings) = choose(&parse("objects-stress --minutes 3 --seed 7")).unwrap();
        assert_eq!((settings.minutes, settings.seed), (Some(3), Some(7)));
        let refused = Arguments::try_parse_from(["lab", "objects-stress", "--minutes", "0"]);
        assert!(refused.is_err());
    }

    #[test]
    fn chosen_variants_keep_the_order_of_the_experiment() {
        let (experiment, settings) = choose(&parse("volumes --variant tmpfs,default")).unwrap();
        assert_eq!(settings.variants, ["default", "tmpfs"]);
        assert_eq!(settings.scenarios, experiment.scenarios);
        assert!(!settings.quick);
        let (experiment, settings) = choose(&parse("objects")).unwrap();
        assert!(experiment.campaigns.iter().all(|campaign| !settings.scenarios.contains(campaign)));
        let (_, settings) = choose(&parse("objects --scenario files-10m")).unwrap();
        assert_eq!(settings.scenarios, ["files-10m"]);
    }
}
