//! `csi-unmount`: an unmount in a process of its own, which has the lock of the path as its standard
//! input and writes into that file what was lost. An end of the driver ends neither the unmount nor
//! the lock.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;

use super::failure::bounded;
use super::held::Note;
use crate::containers::mounts::{self, Mounted};
use crate::control::api::State;
use crate::registry::target;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// How often a volume is waited for that another process unmounts meanwhile.
const ATTEMPTS: usize = 3;
/// Files with lost data that are named.
const NAMED_MAX: usize = 10;

/// Runs the verb.
///
/// # Errors
/// Why the volume is still mounted; or what was lost.
pub fn run(path: &Path) -> Result<()> {
    let lock = std::io::stdin().as_fd().try_clone_to_owned().map(File::from);
    let lock = lock.map_err(|error| Problem::failure(format!("standard input: {error}")))?;
    match unmounted(path) {
        Ok(()) => Ok(()),
        Err(Not::Lost(words)) => {
            let words = bounded(&words);
            let mut note = Note::read(&lock, path);
            note.lost = Some(words.clone());
            note.write(&lock).map_err(|error| Problem::failure(format!("{words}; and the lock: {error}")))?;
            Err(Problem::failure(words))
        }
        Err(Not::Held(words)) => Err(Problem::failure(words)),
    }
}

/// Why an unmount did not end well.
#[derive(Debug)]
enum Not {
    /// The volume is still there.
    Held(String),
    /// It is gone, and not all of its data is on its store.
    Lost(String),
}

fn unmounted(path: &Path) -> std::result::Result<(), Not> {
    let mut last = String::new();
    for _ in 0..ATTEMPTS {
        match mounts::unmount(path, true) {
            Ok(()) => return Ok(()),
            Err(why) => last = why,
        }
        match Mounted::at(path) {
            // Another process was faster: how the volume ended is in its record.
            Ok(Mounted::No) if matches!(end_of(path), End::Well) => return Ok(()),
            Ok(Mounted::No) => return Err(Not::Lost(last)),
            Ok(Mounted::Leaving(_)) => {}
            _ => break,
        }
    }
    Err(Not::Held(last))
}

/// How the volume ended that was mounted at a path last.
#[derive(Debug)]
pub(super) enum End {
    /// Everything is on its store.
    Well,
    /// Not everything is.
    Lost(String),
    /// Its process cannot be asked, and may have data.
    Silent(String),
    /// The registry has no record of it (any more).
    Unknown,
}

pub(super) fn end_of(path: &Path) -> End {
    let here = target::volumes().into_iter().filter(|volume| {
        !volume.dir.is_foreign() && !volume.is_attached() && volume.record().mountpoint.as_path() == path
    });
    let Some(last) = here.max_by_key(|volume| volume.record().started_ms) else { return End::Unknown };
    match &last.record().ended {
        Some(ended) if ended.state == State::Released => End::Well,
        Some(ended) => {
            let headline = format!("{}: not all of its data was written", path.shown());
            End::Lost(ended.lost(headline, NAMED_MAX).join("; "))
        }
        None if last.is_running() || last.found.silent.is_some() => End::Silent(last.died().to_string()),
        None => End::Lost(last.died().to_string()),
    }
}
