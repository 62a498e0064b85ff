//! `lab mutants --run`: the tests that catch mutants, each mutant in a process of its own.
//!
//! Cargo builds the test programs, once for each checker ([`build`]). Then each test that asserts
//! something runs once for each mutant, with the others passed over, so that one that survives hides
//! no other. Only a line that says so counts as caught ([`verdict`]). The tests that catch run once
//! without a mutant, too: what fails anyway proves nothing.

mod build;
mod verdict;

use super::proofs::{Catch, Mutant, Proofs};
use crate::source::Target;
use crate::source::checker::Checker;
use build::Programs;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use verdict::Verdict;

/// The variable that puts a mutant into effect: none is, in what is started here.
const MUTANT: &str = "WATERTIGHT_MUTANT";
/// The variable that says which mutants a test goes through.
const CHOSEN: &str = "WATERTIGHT_MUTANTS_CHOSEN";

/// A run of one test of a test program.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Job {
    target: Target,
    checker: Checker,
    /// The test that runs.
    test: String,
    /// The mutant that it is run for; none for a test that catches some, as it is.
    mutant: Option<String>,
}

/// What a run says something about, in words; and what it says.
type Said = (String, Verdict);

/// Runs what catches these mutants; whether all were caught.
///
/// # Errors
/// If cargo cannot be run.
pub(super) fn campaign(root: &Path, proofs: &Proofs, chosen: &[&Mutant]) -> anyhow::Result<bool> {
    let jobs: Vec<(Job, Vec<String>)> = jobs(chosen).into_iter().collect();
    let all = proofs.mutants.iter().flat_map(|mutant| &mutant.catches);
    let all = all.map(|catch| (&*catch.target, catch.checker));
    let programs = Programs::build(root, jobs.iter().map(|(job, _)| (&job.target, job.checker)), all)?;
    let next = AtomicUsize::new(0);
    let all = Mutex::new((0, Vec::<Said>::new()));
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                // ORDERING: Relaxed, only the number counts.
                while let Some((job, tests)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let said = job.run(root, &programs, tests);
                    let (done, all) = &mut *all.lock().unwrap_or_else(PoisonError::into_inner);
                    *done += 1;
                    for (what, verdict) in said {
                        eprintln!("[{done}/{}] {what}: {verdict}", jobs.len());
                        all.push((what, verdict));
                    }
                }
            });
        }
    });
    let (_, all) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok(report(chosen.len(), &all))
}

/// Says how it went; whether all is as it should be.
fn report(mutants: usize, all: &[Said]) -> bool {
    let bad: Vec<&Said> = all.iter().filter(|(_, verdict)| !verdict.is_good()).collect();
    if !bad.is_empty() {
        eprintln!("\nlab: mutants: not as it should be:");
    }
    for (what, verdict) in &bad {
        eprintln!("  {what}: {verdict}");
    }
    let count = |is: fn(&Verdict) -> bool| all.iter().filter(|(_, verdict)| is(verdict)).count();
    eprintln!(
        "\nlab: mutants: {mutants} mutants: caught {} times, survived {}, not run {}; {} tests pass without",
        count(|verdict| *verdict == Verdict::Caught),
        count(|verdict| matches!(verdict, Verdict::Survived(_))),
        count(|verdict| matches!(verdict, Verdict::NotRun(_))),
        count(|verdict| *verdict == Verdict::Passed),
    );
    bad.is_empty() && mutants > 0
}

/// What is to be run, with the tests that should catch the mutant.
fn jobs(chosen: &[&Mutant]) -> BTreeMap<Job, Vec<String>> {
    let mut jobs = BTreeMap::<Job, Vec<String>>::new();
    for mutant in chosen {
        for catch in &mutant.catches {
            let job = |test: &str, mutant| Job::of(catch, test, mutant);
            jobs.entry(job(&catch.test, None)).or_default();
            let tests = jobs.entry(job(&catch.by, Some(mutant.name.clone()))).or_default();
            if !tests.contains(&catch.test) {
                tests.push(catch.test.clone());
            }
        }
    }
    jobs
}

impl Job {
    fn of(catch: &Catch, test: &str, mutant: Option<String>) -> Self {
        let Catch { target, checker, .. } = catch;
        Self { target: (**target).clone(), checker: *checker, test: test.to_owned(), mutant }
    }

    /// Runs it: what is said of its mutant and each of `tests`, or of its test.
    fn run(&self, root: &Path, programs: &Programs, tests: &[String]) -> Vec<Said> {
        let Self { target, checker, test, mutant } = self;
        let output =
            programs.get(target, *checker).map_or(Err("it could not be built".to_owned()), |program| {
                let mut command = Command::new(program);
                command.args(["--exact", test, "--nocapture"]).current_dir(root.join(&target.directory));
                command.env_remove(MUTANT).env_remove(CHOSEN).envs(mutant.iter().map(|name| (CHOSEN, name)));
                command.stdin(Stdio::null()).output().map_err(|error| format!("it cannot be run: {error}"))
            });
        let said = output.as_ref().map(|output| {
            String::from_utf8_lossy(&[&output.stdout[..], b"\n", &output.stderr[..]].concat()).into_owned()
        });
        let is_success = output.as_ref().is_ok_and(|output| output.status.success());
        let verdict = |of: &dyn Fn(&str) -> Verdict| match &said {
            Ok(said) => of(said),
            Err(why) => Verdict::NotRun((*why).clone()),
        };
        let option = target.option();
        let at = |test: &str| format!("{test} ({}, {option}, {checker})", target.package);
        let Some(mutant) = mutant else {
            return vec![(at(test), verdict(&|said| verdict::of_test(said, is_success)))];
        };
        let of = |caught_by: &String| {
            let verdict = verdict(&|said| verdict::of_mutant(said, mutant, caught_by));
            (format!("{mutant} by {}", at(caught_by)), verdict)
        };
        tests.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests;
