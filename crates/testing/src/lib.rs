//! For tests only: how a test says that it did not run here, or not all of it.
//!
//! A test that lacks root, `/dev/fuse`, an external program or a property of the file system calls
//! [`skipped`] and returns. The line is written to the stream itself: what the test runner captures
//! of a test that passes is never seen. `.ci/run` looks for these lines.
#![forbid(unsafe_code)]

pub mod cgroup;

use std::fmt::Display;
use std::io::Write as _;
use std::time::Duration;

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

/// Whether this kernel passes sync(2) and syncfs(2) of a `fuseblk` on to its server: since 6.18, by
/// what its documentation says.
pub fn kernel_sends_syncfs() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release_is_at_least(&release, (6, 18))
}

fn release_is_at_least(release: &str, wanted: (u32, u32)) -> bool {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= wanted
}

/// A time limit that is far longer than anything takes, on a machine that is slower than others:
/// `WATERTIGHT_TEST_SLOWNESS` times as long. `tests/kernels` measures that factor in its emulator.
pub fn patience(limit: Duration) -> Duration {
    scaled(limit, std::env::var("WATERTIGHT_TEST_SLOWNESS").ok().as_deref())
}

fn scaled(limit: Duration, slowness: Option<&str>) -> Duration {
    let factor = slowness.and_then(|text| text.parse().ok()).unwrap_or(1);
    limit.saturating_mul(u32::max(factor, 1))
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
    // One call, so that lines of tests that run side by side do not mix. A failure to print has
    // nowhere to go.
    let _ = std::io::stderr().lock().write_all(line.as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_their_numbers() {
        let since = |release| release_is_at_least(release, (6, 18));
        assert!(since("6.18.44-fc") && since("7.2.13+deb14-rt-amd64") && since("10.0"));
        assert!(!since("6.1.0-50-cloud-amd64") && !since("6.12.117+deb13") && !since("") && !since("5.99"));
    }

    #[test]
    fn limits_are_longer_where_the_machine_is_slower() {
        let second = Duration::from_secs(1);
        assert_eq!(scaled(second, Some("7")), second * 7);
        for as_it_is in [None, Some("0"), Some("1"), Some("x")] {
            assert_eq!(scaled(second, as_it_is), second);
        }
    }

    #[test]
    fn a_skip_is_one_line_of_its_own() {
        assert_eq!(line(Some("a::test"), "no\nroot "), "\nSKIPPED: a::test: no root\n");
        assert_eq!(line(None, "no root"), "\nSKIPPED: no root\n");
    }
}
