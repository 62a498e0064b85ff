//! The volumes of this user.

use super::check::Check;
use crate::control::api::{State, Status};
use crate::registry::survey::Survey;
use crate::term::units;

/// Volumes with something wrong that are named.
const NAMED_MAX: usize = 16;
const NAME: &str = "volumes";

pub(super) fn checks() -> Vec<Check> {
    let Survey { volumes, ended, silent } = Survey::now();
    let mounted = volumes.iter().filter_map(of_status);
    let died = ended.iter().filter(|record| record.ended.is_none()).map(|record| {
        let at = &record.mountpoint;
        Check::bad(
            NAME,
            format!("{at}: its process died: what was not synced may be lost"),
            format!("watertight umount {at}, watertight wait --forget {at}, then mount it again"),
        )
    });
    let silent = silent.iter().map(|(record, why)| {
        let at = &record.mountpoint;
        Check::warn(
            NAME,
            format!("{at}: its process cannot be asked: {why}"),
            format!("watertight status {at}"),
        )
    });
    let checks: Vec<_> = mounted.chain(died).chain(silent).take(NAMED_MAX).collect();
    if !checks.is_empty() {
        return checks;
    }
    let serving = volumes.iter().filter(|status| status.state == State::Active).count() as u64;
    let found = match serving {
        0 => "none is mounted by this user".to_owned(),
        n => format!(
            "{} by this user, and nothing is wrong with them",
            units::count(n, "is mounted", "are mounted")
        ),
    };
    vec![Check::good(NAME, found)]
}

/// What is wrong with a volume whose process answers.
fn of_status(status: &Status) -> Option<Check> {
    if status.state == State::Active && status.failing_files == 0 {
        return None;
    }
    let at = &status.mountpoint;
    if status.stalled.is_some() {
        return Some(Check::bad(
            NAME,
            format!("{at}: its store does not answer"),
            format!("watertight why {at}; watertight umount --force {at} gives up what is not written"),
        ));
    }
    (status.failing_files > 0).then(|| {
        Check::bad(
            NAME,
            format!("{at}: {} cannot be written", units::count(status.failing_files, "file", "files")),
            format!("watertight status {at} says why"),
        )
    })
}
