//! stress-ng: one stressor in one directory, and what really happened.
//!
//! stress-ng exits with 0 also when a stressor found that it could do nothing. So what counts as
//! passed has done operations and said nothing of skipping; everything else is compared with the
//! host's file system.

use std::path::Path;
use std::time::Duration;

use crate::command::{Cmd, Output};
use crate::is_long;

/// How a stressor ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It did operations, and what it verified was right.
    Passed,
    /// It did nothing, or not all; what it said of that.
    Skipped(String),
    /// It failed; how, and what it said.
    Failed(String),
}

/// What a stressor did on two file systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It passed here.
    Passed,
    /// Neither here nor on the host's file system can it be done.
    SkippedOnBoth(String),
    /// It is skipped here only, for a known reason.
    Excepted(String),
    /// It fails on the host's file system too.
    FailsOnBoth(String),
    /// It passes there and not here; both in words.
    Worse(String),
}

/// Runs `stressor` in `dir` for a moment; longer once more when it got nothing done at all.
///
/// # Panics
/// When it does not end.
#[must_use]
pub fn run(stressor: &str, dir: &Path) -> Ended {
    let seconds = if is_long() { 10 } else { 1 };
    match once(stressor, dir, seconds) {
        // A busy machine may be slower than that.
        Ended::Skipped(why) if why.is_empty() => match once(stressor, dir, 10 * seconds) {
            Ended::Skipped(why) if why.is_empty() => Ended::Skipped("no operation was done".to_owned()),
            other => other,
        },
        other => other,
    }
}

fn once(stressor: &str, dir: &Path, seconds: u64) -> Ended {
    let output = Cmd::new("stress-ng")
        .args([&format!("--{stressor}"), "2", "--timeout", &seconds.to_string()])
        .args(["--verify", "--metrics-brief", "--temp-path"])
        .arg(dir)
        .dir(dir)
        .limit(Duration::from_secs(90))
        .run();
    ended(stressor, &output)
}

fn ended(stressor: &str, output: &Output) -> Ended {
    let said = format!("{}{}", output.out(), output.err());
    if !output.status.success() {
        return Ended::Failed(format!("{}\n{said}", output.status));
    }
    let skips: Vec<&str> = said.lines().filter(|line| is_skip(line)).collect();
    if !skips.is_empty() || operations(stressor, &said) == 0 {
        return Ended::Skipped(skips.join("; "));
    }
    Ended::Passed
}

/// Whether this line tells of something that was not done; not the count of such, if it is none.
fn is_skip(line: &str) -> bool {
    let line = line.to_lowercase();
    (line.contains("skipping") || line.contains("skipped")) && !line.contains("skipped: 0")
}

/// How many operations the table of figures shows: the first number behind the stressor's name.
fn operations(stressor: &str, said: &str) -> u64 {
    said.lines()
        .filter_map(|line| {
            let mut words = line.split_whitespace().skip_while(|word| *word != stressor).skip(1);
            let count = words.next()?.parse::<u64>().ok()?;
            // The row has six figures; other lines with the name and a figure have not.
            (words.filter(|word| word.parse::<f64>().is_ok()).count() >= 5).then_some(count)
        })
        .sum()
}

/// Judges what `stressor` did here; `there` is asked for the host's file system only when it
/// matters. `exceptions` are stressors that may be skipped here only, with the reason.
#[must_use]
pub fn judge(
    stressor: &str,
    here: Ended,
    there: impl FnOnce() -> Ended,
    exceptions: &[(&str, &str)],
) -> Verdict {
    match here {
        Ended::Passed => Verdict::Passed,
        Ended::Skipped(why) => match (there(), exceptions.iter().find(|(name, _)| *name == stressor)) {
            (Ended::Passed, Some((_, reason))) => Verdict::Excepted(format!("{reason} ({why})")),
            (Ended::Passed, None) => Verdict::Worse(format!("skipped here only: {why}")),
            (Ended::Skipped(_), _) => Verdict::SkippedOnBoth(why),
            (Ended::Failed(theirs), _) => Verdict::FailsOnBoth(format!("skipped: {why}; there: {theirs}")),
        },
        Ended::Failed(ours) => match there() {
            Ended::Failed(_) => Verdict::FailsOnBoth(ours),
            Ended::Passed | Ended::Skipped(_) => Verdict::Worse(ours),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::ExitStatus;

    use super::*;

    const TABLE: &str = "\
stress-ng: metrc: [4] stressor       bogo ops real time  usr time  sys time   bogo ops/s     bogo ops/s
stress-ng: metrc: [4]                           (secs)    (secs)    (secs)   (real time) (usr+sys time)
";

    fn said(text: &str, code: i32) -> Ended {
        let status = ExitStatus::from_raw(code << 8);
        let output = Output { status, stdout: Vec::new(), stderr: text.into(), took: Duration::from_secs(1) };
        ended("fiemap", &output)
    }

    #[test]
    fn what_did_nothing_has_not_passed() {
        let row =
            "stress-ng: metrc: [4] fiemap      13545      1.00      0.00      0.13     13496.42      0.21\n";
        let more = "stress-ng: metrc: [4] fiemap      3816.63 calls per sec (geometic mean of 2 instances)\n";
        let none = row.replace("13545", "0");
        let skip = "stress-ng: info:  [5] fiemap: not supported, skipping stressor\n";
        assert_eq!(said(&format!("{TABLE}{row}{more}"), 0), Ended::Passed);
        assert_eq!(said(&format!("{TABLE}{row}stress-ng: info: [4] skipped: 0\n"), 0), Ended::Passed);
        assert_eq!(said(TABLE, 0), Ended::Skipped(String::new()));
        assert_eq!(said(&format!("{TABLE}{none}{more}"), 0), Ended::Skipped(String::new()));
        assert_eq!(said(&format!("{TABLE}{skip}"), 0), Ended::Skipped(skip.trim_end().to_owned()));
        assert!(matches!(said(&format!("{TABLE}{row}{skip}"), 0), Ended::Skipped(_)), "skipped in part");
        assert!(matches!(said(&format!("{TABLE}{row}"), 2), Ended::Failed(_)));
    }

    #[test]
    fn skipped_here_only_is_worse_unless_it_is_excepted() {
        let skipped = || Ended::Skipped("cannot".to_owned());
        let failed = || Ended::Failed("wrong".to_owned());
        let of = |here, there, exceptions: &[(&str, &str)]| judge("fiemap", here, || there, exceptions);
        assert_eq!(of(Ended::Passed, failed(), &[]), Verdict::Passed);
        assert!(matches!(of(skipped(), Ended::Passed, &[("verity", "x")]), Verdict::Worse(_)));
        assert!(matches!(of(skipped(), Ended::Passed, &[("fiemap", "x")]), Verdict::Excepted(_)));
        assert!(matches!(of(skipped(), skipped(), &[]), Verdict::SkippedOnBoth(_)));
        assert!(matches!(of(failed(), Ended::Passed, &[("fiemap", "x")]), Verdict::Worse(_)));
        assert!(matches!(of(failed(), skipped(), &[]), Verdict::Worse(_)));
        assert!(matches!(of(failed(), failed(), &[]), Verdict::FailsOnBoth(_)));
    }
}
