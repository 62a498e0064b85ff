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

    /// Runs a test of the calling test program once for each mutant, in a process of its own (a
    /// model that fails may take its process down), and asserts that the test fails with
    /// `objection` in what it prints.
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
        for mutant in mutants {
            let run = Command::new(&program)
                .args(["--exact", test])
                .env(VARIABLE, mutant)
                .env("WATERTIGHT_SCHEDULES", SCHEDULES)
                .output()
                .expect("the test runs again");
            let text = String::from_utf8_lossy(&[run.stdout, run.stderr].concat()).into_owned();
            assert!(!text.contains("running 0 tests"), "there is no test {test}");
            assert!(!run.status.success(), "{mutant} survived: {text}");
            let is_meant = objections.iter().any(|objection| text.contains(objection));
            assert!(is_meant, "{mutant} made {test} fail, but not by any of {objections:?}: {text}");
        }
    }
}
