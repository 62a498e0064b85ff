//! `doctor`: whether volumes work on this host, what they lack, and what repairs it.

mod host;
mod store;
mod volumes;

use serde::Serialize;

use crate::cli::DoctorArgs;
use crate::control::progress;
use crate::term::console::{Colour, console};
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::term::units;

/// What comes of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Verdict {
    Good,
    Warn,
    Bad,
}

/// One check, as a program reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    /// What was found, and what it means for volumes.
    found: String,
    /// The command, or the change, that repairs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    repair: Option<String>,
}

impl Check {
    fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Good, found: found.into(), repair: None }
    }

    fn warn(name: &'static str, found: impl Into<String>, repair: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), repair: Some(repair.into()) }
    }

    fn bad(name: &'static str, found: impl Into<String>, repair: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Bad, found: found.into(), repair: Some(repair.into()) }
    }

    fn print(&self) {
        let (colour, word) = match self.verdict {
            Verdict::Good => (Colour::Green, "good"),
            Verdict::Warn => (Colour::Yellow, "warn"),
            Verdict::Bad => (Colour::Red, "bad "),
        };
        console().print(&format!("{}  {}: {}", console().paint(colour, word), self.name, self.found));
        if let Some(repair) = &self.repair {
            console().print(&console().paint(Colour::Dim, &format!("      {repair}")));
        }
    }
}

/// Runs the verb.
///
/// # Errors
/// Exit 1 where something is bad.
pub fn run(args: &DoctorArgs) -> Result<()> {
    let mut checks = host::checks();
    checks.extend(volumes::checks());
    if let Some(source) = &args.source {
        let whom = format!("the store {}", source.shown());
        checks.extend(progress::waiting_for("looking at the host", &whom, || Ok(store::checks(source)))?);
    }
    if args.json {
        console().print_value(&checks)?;
    } else {
        checks.iter().for_each(Check::print);
    }
    let bad = checks.iter().filter(|check| check.verdict == Verdict::Bad).count() as u64;
    if bad == 0 {
        return Ok(());
    }
    Err(Problem::failure(units::count(bad, "check is bad", "checks are bad")))
}
