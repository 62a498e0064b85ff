//! What a test program said of a mutant.

use std::fmt;

/// What became of a mutant at a test, or of a test without one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The test objected, as it should.
    Caught,
    /// The test passed as it is.
    Passed,
    /// The test passed with the mutant, or failed for another reason: what it said.
    Survived(String),
    /// Nobody looked: why.
    NotRun(String),
}

impl Verdict {
    /// Whether it is what it should be.
    pub(super) fn is_good(&self) -> bool {
        matches!(self, Self::Caught | Self::Passed)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught => f.write_str("caught"),
            Self::Passed => f.write_str("passes without a mutant"),
            Self::Survived(said) => write!(f, "SURVIVED: {said}"),
            Self::NotRun(why) => write!(f, "NOT RUN: {why}"),
        }
    }
}

/// What a test that asserts something said of a mutant and a test that should catch it.
pub(super) fn of_mutant(said: &str, mutant: &str, test: &str) -> Verdict {
    let caught = format!("CAUGHT: {mutant} by {test}");
    let survived = [format!("{mutant} survived {test}:"), format!("{mutant} made {test} fail, but not by")];
    // What libtest prints of a test may stand before it in the same line.
    if said.lines().any(|line| line.ends_with(&caught)) {
        return Verdict::Caught;
    }
    let line = said.lines().find(|line| survived.iter().any(|survived| line.starts_with(survived)));
    match line {
        Some(line) => Verdict::Survived(line.to_owned()),
        None => Verdict::NotRun(why(said)),
    }
}

/// What a test without a mutant said.
pub(super) fn of_test(said: &str, is_success: bool) -> Verdict {
    let is_skipped = said.lines().any(|line| line.starts_with(SKIPPED));
    let has_run = said.lines().any(|line| line.starts_with("test result: ok. 1 passed"));
    if is_skipped || (is_success && !has_run) {
        Verdict::NotRun(why(said))
    } else if is_success {
        Verdict::Passed
    } else {
        Verdict::Survived(format!("it fails without a mutant: {}", why(said)))
    }
}

/// How a test says that it did not run.
const SKIPPED: &str = "SKIPPED:";

/// Why nothing was said: that it was skipped, or how it ended.
fn why(said: &str) -> String {
    let skipped = said.lines().find(|line| line.starts_with(SKIPPED));
    let panic = || said.lines().skip_while(|line| !line.contains("panicked at")).nth(1);
    let last = || said.lines().rev().find(|line| !line.trim().is_empty());
    skipped.or_else(panic).or_else(last).unwrap_or("it said nothing").to_owned()
}
