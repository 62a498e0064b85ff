//! A store that is to be mounted.

use std::path::Path;
use std::time::{Duration, Instant};

use super::check::Check;
use crate::host::{checks as sources, spawn_for_result};
use crate::object_volumes;
use crate::term::shown::Show as _;
use crate::term::units;

/// A store that takes longer to answer is ill.
const PATIENCE: Duration = Duration::from_secs(20);
/// One that takes so long makes every sync wait.
const SLOW: Duration = Duration::from_secs(1);

pub(super) fn checks(source: &str) -> Vec<Check> {
    let name = "store";
    let owned = source.to_owned();
    let shown = source.shown().to_string();
    let silent = || {
        let found = format!("{shown} does not answer within {}", units::duration(PATIENCE));
        Check::bad(name, found, "see that it can be reached from this host")
    };
    let Ok(answer) = spawn_for_result("doctor", move || look(name, &owned)) else { return vec![silent()] };
    answer.recv_timeout(PATIENCE).unwrap_or_else(|_| vec![silent()])
}

fn look(name: &'static str, source: &str) -> Vec<Check> {
    let begun = Instant::now();
    let found = match sources::source(source) {
        Ok(found) => found,
        Err(problem) => {
            return vec![Check::bad(
                name,
                problem.to_string(),
                "watertight help mount says what a source is",
            )];
        }
    };
    let mut checks = Vec::new();
    if found.url.is_some() {
        match object_volumes::look(&found.spec) {
            Ok(words) => checks.push(Check::good(name, words)),
            Err(problem) => {
                let repair = format!(
                    "watertight info {} says the same; docs/OPERATIONS.md has what its error means",
                    source.shown()
                );
                checks.push(Check::bad(name, problem.to_string(), repair));
            }
        }
    } else if let Some(directory) = &found.directory {
        checks.push(space(directory));
    } else {
        checks.push(Check::warn(
            name,
            format!("{} is in memory, and ends with its process", source.shown()),
            "give a directory, or a URL",
        ));
    }
    let took = begun.elapsed();
    if took >= SLOW {
        let found =
            format!("it took {} to answer: every fsync and unmount waits for it", units::duration(took));
        checks.push(Check::warn(
            name,
            found,
            "mount with -o fsync_to=host,journal=DIR where fsyncs may wait for a local disk instead",
        ));
    }
    checks
}

fn space(directory: &Path) -> Check {
    let (name, shown) = ("store", directory.shown());
    match rustix::fs::statvfs(directory) {
        Err(error) => Check::bad(name, format!("{shown}: {error}"), "see that it can be read"),
        Ok(stat) if stat.f_bavail == 0 || stat.f_files > 0 && stat.f_favail == 0 => Check::bad(
            name,
            format!("{shown} has no room: nothing can be written"),
            format!("remove what is not needed: du -xh {shown}"),
        ),
        Ok(stat) => {
            let free = units::bytes(stat.f_bavail.saturating_mul(stat.f_frsize));
            Check::good(name, format!("{shown} has {free} free"))
        }
    }
}
