//! Protocols with one part removed on purpose, for the model checkers' tests only.
//!
//! A check that cannot fail is a defect: for each barrier there is a test that switches it off and expects
//! the checker to object. Builds without a checker have no mutants; the question is answered at compile time.

/// Whether the mutant `name` is the one under test.
#[cfg(not(any(loom, shuttle)))]
#[must_use]
pub const fn is_on(_name: &str) -> bool {
    false
}

/// Whether the mutant `name` is the one under test: the environment's `WATERTIGHT_MUTANT` names it.
#[cfg(any(loom, shuttle))]
#[must_use]
pub fn is_on(name: &str) -> bool {
    std::env::var("WATERTIGHT_MUTANT").is_ok_and(|on| on == name)
}
