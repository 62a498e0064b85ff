//! Stores that lie in each other.

use std::path::Path;

use super::target;
use crate::control::api::State;
use crate::host::checks::directory_of;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// Checks that no running volume has its store above or below `source`, a real path: two caches
/// over the same files would not see each other's data. The store itself refuses the same
/// directory. Only volumes that this user may see are checked, and only by their paths.
///
/// # Errors
/// Exit 1, naming the other volume.
pub fn check_alone(source: &Path) -> Result<()> {
    for volume in target::nested(source).iter().filter(|volume| volume.is_running()) {
        let record = volume.record();
        let Some(other) = directory_of(record.source.as_str()) else { continue };
        let Some(how) = nested(source, &other) else { continue };
        // A volume whose store is free is only about to leave. One that does not answer still has
        // it.
        let is_over = match volume.status() {
            Ok(status) => status.is_none_or(|now| matches!(now.state, State::Released | State::Failed)),
            Err(_) => false,
        };
        if !is_over {
            return Err(Problem::failure(format!(
                "source {} {how} {}, the store of volume {}, which is mounted at {}: \
                 two volumes over the same files would not see each other's data",
                source.shown(),
                other.shown(),
                record.id,
                record.mountpoint,
            )));
        }
    }
    Ok(())
}

/// How one directory lies to another one, if it lies in it or around it.
fn nested(one: &Path, other: &Path) -> Option<&'static str> {
    if one == other {
        None
    } else if one.starts_with(other) {
        Some("lies inside")
    } else if other.starts_with(one) {
        Some("contains")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn directories_are_nested_by_whole_names() {
        let nested = |a: &str, b: &str| super::nested(Path::new(a), Path::new(b));
        assert_eq!(nested("/a/b", "/a"), Some("lies inside"));
        assert_eq!(nested("/a", "/a/b/c"), Some("contains"));
        assert_eq!(nested("/", "/a"), Some("contains"));
        assert_eq!(nested("/a", "/a"), None);
        assert_eq!(nested("/a/b", "/a/bc"), None);
    }
}
