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

/// How often a volume is waited for that another process unmounts meanwhile.
const ATTEMPTS: usize = 3;

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
            Ok(Mounted::No) if ended_well(path) => return Ok(()),
            Ok(Mounted::No) => return Err(Not::Lost(last)),
            Ok(Mounted::Leaving(_)) => {}
            _ => break,
        }
    }
    Err(Not::Held(last))
}

/// Whether the volume that was mounted at a path last has everything on its store.
fn ended_well(path: &Path) -> bool {
    let here = target::volumes().into_iter().filter(|volume| {
        !volume.dir.is_foreign() && !volume.is_attached() && volume.record().mountpoint.as_path() == path
    });
    let last = here.max_by_key(|volume| volume.record().started_ms);
    last.is_some_and(|volume| {
        volume.record().ended.as_ref().is_some_and(|ended| ended.state == State::Released)
    })
}
