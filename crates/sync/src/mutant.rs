//! Protocols with one part removed on purpose, for the model checkers' tests only.
//!
//! A check that cannot fail is a defect: for each barrier there is a test that switches it off and
//! expects the checker to object. Builds without a checker have no mutants; the question is
//! answered at compile time.

/// Whether the mutant `name` is the one under test.
#[cfg(not(any(loom, shuttle)))]
#[must_use]
pub const fn is_on(_name: &str) -> bool {
    false
}

#[cfg(any(loom, shuttle))]
pub use checked::{assert_caught, assert_caught_by_any, is_on};

#[cfg(any(loom, shuttle))]
mod checked {
    use std::process::Command;
    use std::sync::OnceLock;

    const VARIABLE: &str = "WATERTIGHT_MUTANT";
    /// The mutants that a run is about, with commas between them: `lab mutants --run` sets it. The
    /// tests pass the others over.
    const CHOSEN: &str = "WATERTIGHT_MUTANTS_CHOSEN";
    /// Schedules in which a mutant is looked for; the first that shows it is the last.
    const SCHEDULES: &str = "50000";

    fn under_test() -> Option<&'static str> {
        static NAME: OnceLock<Option<String>> = OnceLock::new();
        NAME.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref()
    }

    /// Whether the mutant `name` is the one under test: the environment's `WATERTIGHT_MUTANT` names
    /// it.
    #[must_use]
    pub fn is_on(name: &str) -> bool {
        under_test() == Some(name)
    }

    fn is_chosen(name: &str) -> bool {
        std::env::var(CHOSEN).map_or(true, |chosen| chosen.split(',').any(|one| one == name))
    }

    /// Runs a test of the calling test program once for each mutant, in a process of its own (a
    /// model that fails may take its process down), and asserts that the test fails with
    /// `objection` in what it prints.
    ///
    /// For each mutant that is caught it prints a line, which `lab mutants --run` looks for: a
    /// mutant without that line was not looked for. `lab mutants` also reads the arguments from the
    /// source, so that they are written there as text, in arrays, loops or constants.
    ///
    /// # Panics
    /// When a mutant survives.
    pub fn assert_caught(test: &str, mutants: &[&str], objection: &str) {
        assert_caught_by_any(test, mutants, &[objection]);
    }

    /// Like [`assert_caught`], for a test with more than one claim that a mutant breaks: the
    /// schedule decides which it breaks first.
    ///
    /// # Panics
    /// When a mutant survives.
    pub fn assert_caught_by_any(test: &str, mutants: &[&str], objections: &[&str]) {
        if under_test().is_some() {
            return;
        }
        let program = std::env::current_exe().expect("this test's program");
        for mutant in mutants.iter().filter(|mutant| is_chosen(mutant)) {
            let run = Command::new(&program)
                .args(["--exact", test])
                .env(VARIABLE, mutant)
                .env("WATERTIGHT_SCHEDULES", SCHEDULES)
                .output()
                .expect("the test runs again");
            let text = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
            assert!(!text.contains("running 0 tests"), "there is no test {test}");
            assert!(!run.status.success(), "{mutant} survived {test}: {text}");
            let is_meant = objections.iter().any(|objection| text.contains(objection));
            assert!(is_meant, "{mutant} made {test} fail, but not by any of {objections:?}: {text}");
            // With the seed, where there is one.
            let said = text.lines().rfind(|line| objections.iter().any(|objection| line.contains(objection)));
            eprintln!("{}", said.unwrap_or_default());
            eprintln!("CAUGHT: {mutant} by {test}");
        }
    }
}
