//! `stats`: how long a volume's operations take, and what for.
//!
//! The mount process counts from its start; differences are made here.

mod table;

use std::io::{self, Write as _};
use std::thread;
use std::time::Duration;

use crate::cli::{StatsArgs, StatsBy};
use crate::control::api::Stats;
use crate::control::client::Client;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::in_json;
use crate::verbs::sync::find;

/// Questions that follow each other faster only keep the mount process from its work.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a volume that is not ours, or an interval that is none; 1 when the mount process
/// cannot be reached, or no more.
pub fn run(args: &StatsArgs) -> Result<()> {
    if args.interval.is_some_and(|interval| interval < INTERVAL_MIN) {
        return Err(Problem::usage("--interval takes 10ms or more"));
    }
    let (volume, _) = find(&args.volume)?;
    let client = volume.client()?;
    let at = &volume.record().mountpoint;
    let ask = |client: &Client| client.stats().map_err(|error| Problem::failure(format!("{at}: {error}")));
    let mut before = ask(client)?;
    let Some(interval) = args.interval else {
        print(args, &before)?;
        return Ok(());
    };
    let mut left = args.count;
    while left != Some(0) {
        // From answer to question, so that no interval is shorter.
        thread::sleep(interval);
        let now = ask(client)?;
        if !print(args, &now.since(&before))? {
            return Ok(());
        }
        before = now;
        left = left.map(|left| left - 1);
    }
    Ok(())
}

/// Prints one interval, or all; returns whether anything reads it.
fn print(args: &StatsArgs, stats: &Stats) -> Result<bool> {
    let text = match (args.json, args.by) {
        (true, by) => in_json(&table::json(stats, by).to_string()).into_owned(),
        (false, StatsBy::Op) => table::by_operation(stats),
        (false, StatsBy::Cgroup) => table::by_cgroup(stats),
    };
    let text = if args.json { text.into() } else { console().harmless(&text) };
    let mut out = io::stdout().lock();
    match out.write_all(format!("{text}\n").as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Problem::failure(format!("cannot write to standard output: {error}"))),
    }
}
