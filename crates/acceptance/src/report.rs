//! Lines that are seen although the test passes.
//!
//! The test runner keeps what `println!` writes of a test that passes; what is written to the
//! stream itself is seen.

use std::io::Write as _;

/// Says that `test` did not run, and why.
pub fn skip(test: &str, reason: &str) {
    testing::skipped_test(test, reason);
}

/// Prints a figure that `test` measured.
pub fn note(test: &str, text: &str) {
    line(&format!("{test}: {text}"));
}

/// Whether the long versions are wanted (`ACCEPTANCE_LONG=1`).
#[must_use]
pub fn is_long() -> bool {
    std::env::var_os("ACCEPTANCE_LONG").is_some_and(|v| v != "0" && !v.is_empty())
}

fn line(text: &str) {
    // One call, so that lines of tests that run side by side do not mix. A failure to print has
    // nowhere to go.
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}
