//! How a volume ended, for the verbs that wait for that.

use std::fmt::Display;
use std::time::Duration;

use crate::control::api::{Ended, State};
use crate::control::client::{CallError, Client};
use crate::registry::target::RegisteredVolume;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};

/// How many lost files are listed.
pub const LOST_NAMED_MAX: usize = 20;

/// Waits until a volume ended, also past the end of its process.
///
/// # Errors
/// When its process cannot be asked, or died.
pub fn wait_ended(volume: &RegisteredVolume, client: &Client, call: Duration) -> Result<Ended> {
    loop {
        match client.wait(call) {
            Ok(reply) => {
                if let Some(ended) = reply.ended {
                    return Ok(ended);
                }
            }
            Err(CallError::Gone) => {
                let id = &volume.record().id;
                return volume
                    .dir
                    .read_record(id)
                    .and_then(|record| record.ended)
                    .ok_or_else(|| volume.died());
            }
            Err(error) => return Err(Problem::failure(error.to_string())),
        }
    }
}

/// Prints how a volume ended.
///
/// # Errors
/// [`State::Failed`]: the lost data.
pub fn report(source: impl Display, mountpoint: impl Display, ended: &Ended) -> Result<()> {
    report_as("unmounted", source, mountpoint, ended)
}

/// Like [`report`]; `done` is the verb's participle.
///
/// # Errors
/// As [`report`].
pub fn report_as(done: &str, source: impl Display, mountpoint: impl Display, ended: &Ended) -> Result<()> {
    if ended.state == State::Released {
        console().print(&format!("{mountpoint}: {done}; everything is on {source}{}", ended.switching()));
        return Ok(());
    }
    let lost = ended.lost(format!("{mountpoint}: {done}, but not everything is on {source}"), LOST_NAMED_MAX);
    Err(Problem::failure(lost.join("\n")))
}
