//! `doctor`: whether volumes work on this host, what they lack, and what repairs it.

mod check;
mod host;
mod store;
mod volumes;

use check::{Check, Verdict};

use crate::cli::DoctorArgs;
use crate::control::progress;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::term::units;

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
