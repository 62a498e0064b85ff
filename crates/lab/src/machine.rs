//! The machine and the source of a measurement.

use serde::{Deserialize, Serialize};
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine, as the JSON names it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Machine {
    /// The processor's name, from the kernel.
    pub(crate) cpu: String,
    /// Processors this process may use.
    pub(crate) cores: usize,
    /// Release of the running kernel.
    pub(crate) kernel: String,
}

impl Machine {
    /// The machine this runs on; unknown properties are `unknown`.
    pub(crate) fn this() -> Self {
        let cpu_info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            cpu: cpu_name(&cpu_info).unwrap_or_else(|| "unknown".to_owned()),
            cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        }
    }
}

fn cpu_name(cpu_info: &str) -> Option<String> {
    let line = cpu_info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// The commit of the working tree that holds `inside`, with `-dirty` where tracked files differ
/// from it; `unknown` outside of a working tree.
pub(crate) fn commit(inside: &Path) -> String {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(inside).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "--short=12", "HEAD"]) else {
        return "unknown".to_owned();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head}-dirty"),
    }
}

/// `time` in UTC as RFC 3339, whole seconds.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar.
fn civil(days: u64) -> (u64, u64, u64) {
    let is_leap =
        |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let (mut left, mut year) = (days, 1970);
    loop {
        let of_year = if is_leap(year) { 366 } else { 365 };
        if left < of_year {
            break;
        }
        left -= of_year;
        year += 1;
    }
    let february = if is_leap(year) { 29 } else { 28 };
    for (month, of_month) in (1..).zip([31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]) {
        if left < of_month {
            return (year, month, left + 1);
        }
        left -= of_month;
    }
    (year, 12, 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_those_of_the_calendar() {
        let at = |seconds| rfc3339(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_709_251_199), "2024-02-29T23:59:59Z");
        assert_eq!(at(1_767_225_599), "2025-12-31T23:59:59Z");
        assert_eq!(at(4_107_542_400), "2100-03-01T00:00:00Z");
    }

    #[test]
    fn the_processor_is_named() {
        let info = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nflags\t: a b\n";
        assert_eq!(cpu_name(info).as_deref(), Some("Some CPU @ 2.00GHz"));
        assert_eq!(cpu_name("Hardware : board\n"), None);
    }

    #[test]
    fn outside_of_a_working_tree_the_commit_is_unknown() {
        assert_eq!(commit(Path::new("/proc")), "unknown");
    }
}
