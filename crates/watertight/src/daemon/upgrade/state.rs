//! The state that one program leaves to the next, and its format.
//!
//! One JSON object in a sealed memory file. `version` says which format it is. A program writes the
//! newest that it knows, and reads that and those before. Keys may be added within a version if
//! their absence has a meaning; a key that is taken away or changes its meaning makes a new version.
//! Which programs can follow is found out before anything is touched: see [`super::check`].

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

use fuse::{MountHandover, SessionHandover};
use serde::{Deserialize, Serialize};
use volume::VolumeHandover;

use crate::control::api::Ended;
use crate::control::volume_id::VolumeId;
use crate::daemon::attachments::handover::{AttachedState, CloneState};
use crate::host::mountinfo::Mount;

/// The format that this program writes. It stands for all that one program leaves to the next: a change
/// of the journal, or of what a keeper and its server say to each other, is another format, too.
pub(crate) const VERSION: u32 = 6;
/// The formats that it reads.
pub(crate) const READS: std::ops::RangeInclusive<u32> = 1..=VERSION;

/// The state of a mount process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct State {
    pub(crate) version: u32,
    /// All descriptors that it names, but its own.
    pub(crate) kept: Vec<RawFd>,
    /// The program that wrote it.
    pub(crate) program: RawFd,
    /// A memory file for the reason why the next program could not take over.
    pub(crate) reason: RawFd,
    /// The control socket, which listens.
    pub(crate) listener: RawFd,
    /// The arguments of the process, as bytes.
    pub(crate) arguments: Vec<Vec<u8>>,
    /// The umount helper process, which ends with this program.
    pub(crate) agent: Option<u32>,
    pub(crate) id: VolumeId,
    pub(crate) source: String,
    pub(crate) mount: Mount,
    pub(crate) unique_id: Option<u64>,
    pub(crate) read_only: bool,
    pub(crate) started_ms: u64,
    pub(crate) mounted: MountHandover,
    pub(crate) session: SessionHandover,
    pub(crate) volume: VolumeHandover,
    /// The volumes that are attached. Not in version 3, nor before: nothing was.
    #[serde(default)]
    pub(crate) attached: Vec<AttachedState>,
    /// Where clones of the mountpoint are shown. Not in version 5, nor before: there were none.
    #[serde(default)]
    pub(crate) clones: Vec<CloneState>,
    /// Attached volumes that ended with data that was not written: where, and how.
    #[serde(default)]
    pub(crate) failed_attached: Vec<(String, Ended)>,
    /// When requests began to wait, by CLOCK_MONOTONIC, in nanoseconds.
    pub(crate) paused_ns: u64,
    pub(crate) upgrades: u64,
    pub(crate) failed: u64,
}

#[derive(Deserialize)]
struct OnlyVersion {
    version: u32,
}

impl State {
    /// The state in these bytes.
    ///
    /// # Errors
    /// When it is of another format, or none.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let none =
            |error: serde_json::Error| format!("the state of the program before cannot be read: {error}");
        let read = serde_json::from_slice::<Self>(bytes);
        if let Ok(state) = read
            && READS.contains(&state.version)
        {
            return Ok(state);
        }
        let OnlyVersion { version } = serde_json::from_slice(bytes).map_err(none)?;
        if !READS.contains(&version) {
            return Err(format!(
                "the state of the program before has version {version}; this program reads {} to {}",
                READS.start(),
                READS.end()
            ));
        }
        serde_json::from_slice(bytes).map_err(none)
    }

    /// The arguments of the process.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        self.arguments.iter().map(|bytes| OsString::from_vec(bytes.clone())).collect()
    }
}

/// Arguments as a state has them.
pub(crate) fn bytes_of(arguments: &[OsString]) -> Vec<Vec<u8>> {
    arguments.iter().map(|argument| argument.as_bytes().to_vec()).collect()
}

/// CLOCK_MONOTONIC, which goes on when the program is replaced.
pub(crate) fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let part = |number: i64| u64::try_from(number).unwrap_or(0);
    part(now.tv_sec).saturating_mul(1_000_000_000).saturating_add(part(now.tv_nsec))
}

#[cfg(test)]
mod tests {
    use store::{DirState, NumberedState, ObjectId, OpenDirState, StoreState};

    use super::*;

    #[test]
    fn a_store_and_an_open_directory_are_read_as_what_they_were() {
        let numbered =
            NumberedState { references: vec![(ObjectId(7), 2)], tmpfiles: vec![ObjectId(9)], holder: None };
        for state in [StoreState::Dir(DirState::of_lock(3)), StoreState::Numbered(numbered)] {
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<StoreState>(&text).unwrap(), state, "{text}");
        }
        for state in [
            OpenDirState::Fd(3),
            OpenDirState::Listed("3".to_owned()),
            OpenDirState::Listed(String::new()),
            OpenDirState::ListedBytes(vec![3]),
            OpenDirState::ListedBytes(Vec::new()),
        ] {
            let text = serde_json::to_string(&state).unwrap();
            assert_eq!(serde_json::from_str::<OpenDirState>(&text).unwrap(), state, "{text}");
        }
    }

    #[test]
    fn a_state_of_another_version_is_named_and_not_read() {
        let error = State::parse(br#"{"version":99,"what":"ever"}"#).unwrap_err();
        assert!(error.contains("version 99") && error.contains("reads 1 to 6"), "{error}");
        for bad in [&b""[..], b"{}", b"[1]", br#"{"version":1}"#, br#"{"version":-1}"#, b"\xff"] {
            let error = State::parse(bad).unwrap_err();
            assert!(error.contains("cannot be read"), "{error}");
        }
    }
}
