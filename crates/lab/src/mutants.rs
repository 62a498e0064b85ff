//! `lab mutants`: which claim about concurrency is proved by what, read from the sources.
//!
//! A *mutant* is a step of a protocol that the product leaves out or puts later where
//! `sync::mutant::is_on` names it; a test under a model checker asserts with `assert_caught` that
//! another test, which passes otherwise, objects to it. This command reads both from the sources
//! ([`source`](crate::source), [`places`], [`asserts`], [`functions`]) and joins them ([`proofs`]): a mutant that
//! no test catches is an error, and so is an assertion about a mutant that no source has.
//! [`page`] makes docs/PROOFS.md of that, [`run`] runs the tests.
//!
//! Exit codes: 0 done; 1 something is missing, differs, survived or did not run; 2 the command line
//! is wrong.

mod arguments;
mod asserts;
mod functions;
mod inside;
mod list;
mod page;
mod places;
mod proofs;
mod run;
mod sample;
mod value;

use anyhow::Context as _;
use arguments::Arguments;
use clap::Parser as _;
use proofs::Proofs;
use std::io::Write as _;
use std::process::ExitCode;

/// The name of the command.
pub(crate) const COMMAND: &str = "mutants";

/// As many mutants as there have been: a reading that finds fewer does not see all.
const FLOOR: usize = 200;

/// Runs the command line of this process, whose first argument is [`COMMAND`].
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse_from(std::env::args_os().skip(1));
    let proofs = match Proofs::read(&arguments.root) {
        Ok(proofs) => proofs,
        Err(error) => return failed(&format!("{error:#}")),
    };
    for fault in &proofs.faults {
        eprintln!("lab: mutants: {fault}");
    }
    let done = if arguments.check {
        check(&arguments, &proofs)
    } else if arguments.write {
        write(&arguments, &proofs)
    } else if let Some(names) = &arguments.run {
        match sample::chosen(&proofs, names, arguments.sample, arguments.seed) {
            Ok(chosen) => run::campaign(&arguments.root, &proofs, &chosen),
            Err(message) => {
                eprintln!("lab: mutants: {message}");
                return ExitCode::from(2);
            }
        }
    } else {
        print(&arguments, &proofs).map(|()| true)
    };
    match done {
        Err(error) => failed(&format!("{error:#}")),
        Ok(is_good) if is_good && proofs.faults.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
    }
}

fn failed(why: &str) -> ExitCode {
    eprintln!("lab: mutants: {why}");
    ExitCode::FAILURE
}

fn print(arguments: &Arguments, proofs: &Proofs) -> anyhow::Result<()> {
    let text = if arguments.json { list::json(proofs)? } else { list::text(proofs) };
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()?;
    Ok(())
}

/// Whether the page is what the sources say, and has as many mutants as it must have.
fn check(arguments: &Arguments, proofs: &Proofs) -> anyhow::Result<bool> {
    let file = arguments.page();
    let there = std::fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
    let mut is_good = true;
    if let Some(difference) = page::difference(&there, &page::text(proofs)) {
        eprintln!("lab: mutants: {}{difference}", file.display());
        eprintln!("lab: mutants: `cargo run -p lab -- mutants --write` makes it from the sources again");
        is_good = false;
    }
    if proofs.mutants.len() < FLOOR {
        eprintln!("lab: mutants: {} were found, there have been {FLOOR}", proofs.mutants.len());
        is_good = false;
    }
    Ok(is_good)
}

/// Writes the page, unless the sources have faults.
fn write(arguments: &Arguments, proofs: &Proofs) -> anyhow::Result<bool> {
    if !proofs.faults.is_empty() {
        return Ok(false);
    }
    let (file, text) = (arguments.page(), page::text(proofs));
    if std::fs::read_to_string(&file).ok().as_ref() != Some(&text) {
        std::fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("lab: mutants: wrote {}", file.display());
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
