//! The volumes of this user.

use super::Check;
use crate::control::api::State;
use crate::registry::target;
use crate::term::units;

/// Volumes with something wrong that are named.
const NAMED_MAX: usize = 16;

pub(super) fn checks() -> Vec<Check> {
    let name = "volumes";
    let volumes = target::volumes();
    let mut checks = Vec::new();
    let mut serving = 0;
    for volume in &volumes {
        let at = &volume.record().mountpoint;
        let check = match volume.status() {
            Ok(Some(status)) if status.state == State::Active && status.failing_files == 0 => {
                serving += 1;
                continue;
            }
            Ok(Some(status)) if status.stalled.is_some() => Check::bad(
                name,
                format!("{at}: its store does not answer"),
                format!("watertight why {at}; watertight umount --force {at} gives up what is not written"),
            ),
            Ok(Some(status)) if status.failing_files > 0 => Check::bad(
                name,
                format!("{at}: {} cannot be written", units::count(status.failing_files, "file", "files")),
                format!("watertight status {at} says why"),
            ),
            Ok(Some(_)) => continue,
            Ok(None) if volume.record().ended.is_some() => continue,
            Ok(None) => Check::bad(
                name,
                format!("{at}: its process died: what was not synced may be lost"),
                format!("watertight umount {at}, watertight wait --forget {at}, then mount it again"),
            ),
            Err(error) => Check::warn(
                name,
                format!("{at}: its process cannot be asked: {error}"),
                format!("watertight status {at}"),
            ),
        };
        checks.push(check);
        if checks.len() == NAMED_MAX {
            break;
        }
    }
    if checks.is_empty() {
        let found = match serving {
            0 => "none is mounted by this user".to_owned(),
            n => format!(
                "{} by this user, and nothing is wrong with them",
                units::count(n, "is mounted", "are mounted")
            ),
        };
        checks.push(Check::good(name, found));
    }
    checks
}
