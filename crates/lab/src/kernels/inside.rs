//! The guest's side: one kernel that was booted for this measures itself, and the product beside
//! it.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use anyhow::Context as _;
use clap::Parser;

use super::{EXPERIMENT, Part, unmount};
use crate::experiment::{Settings, Stop};
use crate::machine::{self, Machine};
use crate::progress::Progress;
use crate::report::{Document, Recorder};
use crate::{child, drain, eventpoll, sync};

/// The first argument of such a process.
pub(crate) const COMMAND: &str = "kernels-inside";
/// Samples of each row, where not much time goes by in each.
const RUNS: u16 = 40;

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
    #[arg(long, default_value_t = RUNS)]
    runs: u16,
    #[arg(long)]
    program: PathBuf,
    #[arg(long)]
    json: PathBuf,
}

/// The process.
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse_from(std::env::args_os().skip(1));
    child::exit(COMMAND, run(&arguments))
}

fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let settings = Settings {
        runs: Some(usize::from(arguments.runs)),
        program: Some(arguments.program.clone()),
        stop: Stop::at_signals().context("cannot install signal handlers")?,
        ..Settings::default()
    };
    let (progress, when) = (Progress::new(), machine::rfc3339(SystemTime::now()));
    let (mut recorder, mut notes, mut failed) = (Recorder::default(), Vec::new(), None);
    for part in Part::chosen(&arguments.only)? {
        let part_of = match part {
            Part::Drain => drain::kernel::run,
            Part::Unmount => unmount::run,
            Part::Sync => sync::kernel::run,
            Part::Epoll => eventpoll::run_beside_kernel,
        };
        match part_of(&settings, &progress, &mut recorder) {
            Ok(some) => notes.extend(some),
            // The other parts are still worth their time.
            Err(error) => {
                progress.say(&format!("{}: {error:#}", part.name()));
                failed = Some(error.context(part.name()));
            }
        }
    }
    let document = Document {
        experiment: EXPERIMENT.to_owned(),
        command: String::new(),
        commit: String::new(),
        when,
        machine: Machine::this(),
        quick: false,
        rows: recorder.into_rows(),
        notes,
    };
    std::fs::write(&arguments.json, document.json()?).context("the report")?;
    failed.map_or(Ok(()), Err)
}
