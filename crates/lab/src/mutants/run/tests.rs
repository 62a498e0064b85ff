//! What is made of what test programs say.

use super::super::proofs::Catch;
use super::verdict::{of_mutant, of_test};
use super::*;
use crate::source::{Part, Target};
use std::path::PathBuf;
use std::rc::Rc;

const CAUGHT: &str = "\nrunning 1 test\nCAUGHT: one by holds\ntest each ... ok\n\
                      test result: ok. 1 passed; 0 failed\n";

#[test]
fn only_a_line_that_says_so_is_caught() {
    assert_eq!(of_mutant(CAUGHT, "one", "holds"), Verdict::Caught);
    // Another mutant, or another test: neither was looked for.
    for (mutant, test) in [("on", "holds"), ("one", "hold"), ("one-more", "holds"), ("one", "holds_too")] {
        assert!(matches!(of_mutant(CAUGHT, mutant, test), Verdict::NotRun(_)), "{mutant} {test}");
    }
    let passes = "running 1 test\ntest each ... ok\n\ntest result: ok. 1 passed; 0 failed\n";
    assert!(matches!(of_mutant(passes, "one", "holds"), Verdict::NotRun(_)));
}

#[test]
fn one_that_survives_is_named_and_what_comes_after_it_did_not_run() {
    let said = "CAUGHT: one by first\n\nthread 'each' panicked at a.rs:1:\none survived holds: running 1 test\n\
                test result: FAILED. 0 passed; 1 failed\n";
    let survived = Verdict::Survived("one survived holds: running 1 test".to_owned());
    assert_eq!(of_mutant(said, "one", "first"), Verdict::Caught);
    assert_eq!(of_mutant(said, "one", "holds"), survived);
    let later = of_mutant(said, "one", "later");
    assert_eq!(later, Verdict::NotRun("one survived holds: running 1 test".to_owned()));
    let other = "thread 'each' panicked at a.rs:1:\none made holds fail, but not by any of [\"x\"]: y\n";
    assert!(matches!(of_mutant(other, "one", "holds"), Verdict::Survived(_)));
}

#[test]
fn a_skipped_test_did_not_run_and_says_why() {
    let said =
        "running 1 test\nSKIPPED: no checker here\ntest each ... ok\ntest result: ok. 1 passed; 0 failed\n";
    let not_run = Verdict::NotRun("SKIPPED: no checker here".to_owned());
    assert_eq!(of_mutant(said, "one", "holds"), not_run);
    assert_eq!(of_test(said, true), not_run);
    assert_eq!(not_run.to_string(), "NOT RUN: SKIPPED: no checker here");
}

#[test]
fn a_test_must_pass_without_a_mutant() {
    let passes = "running 1 test\n.\ntest result: ok. 1 passed; 0 failed\n";
    assert_eq!(of_test(passes, true), Verdict::Passed);
    assert!(matches!(of_test(passes, false), Verdict::Survived(_)));
    let none = "running 0 tests\n\ntest result: ok. 0 passed; 0 failed\n";
    assert!(matches!(of_test(none, true), Verdict::NotRun(_)));
}

#[test]
fn one_bad_verdict_fails_the_campaign() {
    let said = |verdict| ("one by holds".to_owned(), verdict);
    assert!(report(1, &[said(Verdict::Caught), said(Verdict::Passed)]));
    assert!(!report(1, &[said(Verdict::Caught), said(Verdict::NotRun(String::new()))]));
    assert!(!report(1, &[said(Verdict::Survived(String::new())), said(Verdict::Passed)]));
    assert!(!report(0, &[]));
}

#[test]
fn each_test_runs_once_alone_and_once_for_each_mutant() {
    let target = Rc::new(Target {
        package: "a".to_owned(),
        directory: PathBuf::new(),
        part: Part::Test("loom_a".to_owned()),
    });
    let catch = |test: &str| Catch {
        target: Rc::clone(&target),
        checker: Checker::Loom,
        test: test.to_owned(),
        claim: String::new(),
        file: PathBuf::new(),
        line: 1,
        by: "each".to_owned(),
        number: 0,
    };
    let mutant = |name: &str, tests: &[&str]| Mutant {
        name: name.to_owned(),
        places: Vec::new(),
        catches: tests.iter().map(|test| catch(test)).collect(),
    };
    let (one, two) = (mutant("one", &["holds", "holds_too", "holds"]), mutant("two", &["holds"]));
    let jobs = jobs(&[&one, &two]);
    let jobs: Vec<(&str, Option<&str>, usize)> =
        jobs.iter().map(|(job, tests)| (job.test.as_str(), job.mutant.as_deref(), tests.len())).collect();
    let wanted =
        [("each", Some("one"), 2), ("each", Some("two"), 1), ("holds", None, 0), ("holds_too", None, 0)];
    assert_eq!(jobs, wanted);
}
