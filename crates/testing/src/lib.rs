//! For tests only: how a test says that it did not run here, or not all of it.
//!
//! A test that lacks root, `/dev/fuse`, an external program or a property of the file system calls
//! [`skipped`] and returns. The line is written to the stream itself: what the test runner captures of a test
//! that passes is never seen. `.ci/run` looks for these lines.
#![forbid(unsafe_code)]

pub mod cgroup;

use std::fmt::Display;
use std::io::Write as _;

/// How such a line begins.
pub const MARK: &str = "SKIPPED: ";

/// Says that the test on this thread did not run, or not all of it, and why.
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    // The runner names each test's thread after the test, unless it runs them on its own.
    let test = thread.name().filter(|name| *name != "main");
    say(&line(test, &why.to_string()));
}

/// Says that `test` did not run, or not all of it, and why; where the thread's name does not tell.
pub fn skipped_test(test: &str, why: impl Display) {
    say(&line(Some(test), &why.to_string()));
}

/// One line of its own, also where the runner is in the middle of one.
fn line(test: Option<&str>, why: &str) -> String {
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    match test {
        Some(test) => format!("\n{MARK}{test}: {why}\n"),
        None => format!("\n{MARK}{why}\n"),
    }
}

fn say(line: &str) {
    // One call, so that lines of tests that run side by side do not mix. Nobody to tell if it fails.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_skip_is_one_line_of_its_own() {
        assert_eq!(line(Some("a::test"), "no\nroot "), "\nSKIPPED: a::test: no root\n");
        assert_eq!(line(None, "no root"), "\nSKIPPED: no root\n");
    }
}
