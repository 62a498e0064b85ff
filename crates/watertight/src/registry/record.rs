//! The record of a mount, written by its process.
//!
//! A record of another user is only that user's claim. Its content becomes neither a path that is
//! opened, changed or removed nor a process that is signalled: the path of a mount is the kernel's
//! (`mountinfo`, with the mount's owner), a process is the one behind the socket.

use std::path::{Component, Path};

use serde::{Deserialize, Serialize};

use crate::control::api::{Ended, now_ms};
use crate::control::volume_id::VolumeId;
use crate::host::checks;
use crate::host::keeper_id::KeeperId;
use crate::host::mountinfo::Device;
use crate::term::shown::Name;

/// A path, with three bytes for each one that is not UTF-8.
const MOUNTPOINT_BYTES_MAX: usize = 3 * 4096;
/// A store with all its faults.
const SOURCE_BYTES_MAX: usize = 64 << 10;

/// A mount, as its process wrote it down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The volume's id.
    pub id: VolumeId,
    /// The process that serves or served it.
    pub pid: u32,
    /// The store.
    pub source: Name,
    /// Where it is or was mounted.
    pub mountpoint: Name,
    /// The volume of the mountpoint that it is attached to, if it has no mount of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_to: Option<VolumeId>,
    /// The mount's device number.
    pub device: Device,
    /// Milliseconds since the epoch.
    pub started_ms: u64,
    /// The process that starts another one if this one dies, and when that began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keeper: Option<KeeperId>,
    /// The journal on this host that may have what the store has not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub journal: Option<RecordedJournal>,
    /// Nothing is written by it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
    /// How it ended; none while it runs, and for ever if its process was killed.
    pub ended: Option<Ended>,
}

/// A journal on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordedJournal {
    /// Its directory.
    pub dir: Name,
    /// It has what was accepted, not only what was fsynced.
    pub accepts: bool,
}

/// Why a file is no record.
#[derive(Debug, thiserror::Error)]
pub enum NotARecord {
    /// It does not have the form of a record, or an id in it is invalid.
    #[error("it cannot be read: {0}")]
    Json(#[from] serde_json::Error),
    /// It is of another volume than its name.
    #[error("it describes volume {0}, unlike its name")]
    OtherVolume(VolumeId),
    /// A volume cannot be attached to itself.
    #[error("its volume is attached to itself")]
    AttachedToItself,
    /// A field that cannot be.
    #[error("its {0} is invalid")]
    Impossible(&'static str),
}

impl Record {
    /// A record for a mount that begins now.
    #[must_use]
    pub fn new(id: VolumeId, source: String, mountpoint: &Path, device: Device) -> Self {
        let mountpoint = Name::of(mountpoint);
        let (pid, started_ms) = (std::process::id(), now_ms());
        Self {
            id,
            pid,
            source: source.into(),
            mountpoint,
            attached_to: None,
            device,
            started_ms,
            keeper: None,
            journal: None,
            read_only: false,
            ended: None,
        }
    }

    /// What is left of it where its process was killed, in words.
    #[must_use]
    pub fn left_by_death(&self) -> String {
        let source = &self.source;
        match &self.journal {
            _ if self.read_only => "nothing was written by it".to_owned(),
            Some(RecordedJournal { dir, accepts }) => {
                let (what, rest) =
                    if *accepts { ("accepted", "") } else { ("fsynced", "; later writes may be lost") };
                format!(
                    "what was {what} and is not on {source} yet is in the journal {dir} of this host: mount or attach \
                     {source} here again, with -o journal={dir}{rest}"
                )
            }
            None if checks::identity_of(source.as_str()).is_none() => {
                "it was in the memory of its process, and nothing is left of it".to_owned()
            }
            None => format!("what was fsynced is on {source}, later writes may be lost"),
        }
    }

    /// The record of volume `id` from the content of its file.
    ///
    /// # Errors
    /// Why it is none.
    pub fn parse(text: &[u8], id: &VolumeId) -> Result<Self, NotARecord> {
        let record: Self = serde_json::from_slice(text)?;
        if record.id != *id {
            return Err(NotARecord::OtherVolume(record.id));
        }
        if record.attached_to.as_ref() == Some(id) {
            return Err(NotARecord::AttachedToItself);
        }
        if record.pid == 0 || i32::try_from(record.pid).is_err() {
            return Err(NotARecord::Impossible("pid"));
        }
        if !is_path(record.mountpoint.as_str()) {
            return Err(NotARecord::Impossible("mountpoint"));
        }
        if record.journal.as_ref().is_some_and(|journal| !is_path(journal.dir.as_str())) {
            return Err(NotARecord::Impossible("journal"));
        }
        if record.source.as_str().len() > SOURCE_BYTES_MAX || record.source.as_str().contains('\0') {
            return Err(NotARecord::Impossible("source"));
        }
        Ok(record)
    }
}

/// Whether it can be the path of a mount: absolute, of bounded length, without `..` and NUL.
fn is_path(text: &str) -> bool {
    let mut parts = Path::new(text).components();
    text.len() <= MOUNTPOINT_BYTES_MAX
        && !text.contains('\0')
        && parts.next() == Some(Component::RootDir)
        && parts.all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn id(text: &str) -> VolumeId {
        text.parse().unwrap()
    }

    fn record() -> Record {
        Record::new(id("a1"), "dir:/srv".to_owned(), Path::new("/mnt/x"), Device { major: 0, minor: 99 })
    }

    fn parse(change: impl FnOnce(&mut serde_json::Value)) -> Result<Record, NotARecord> {
        let mut value = serde_json::to_value(record()).unwrap();
        change(&mut value);
        Record::parse(&serde_json::to_vec(&value).unwrap(), &id("a1"))
    }

    #[test]
    fn a_record_says_nothing_that_could_lead_elsewhere() {
        assert!(parse(|_| ()).is_ok());
        for (field, wrong) in [
            ("id", "/tmp/rootonly/delete_me".into()),
            ("id", "b2".into()),
            ("id", "..".into()),
            ("attached_to", "../x".into()),
            ("attached_to", "a1".into()),
            ("pid", 0.into()),
            ("pid", u32::MAX.into()),
            ("mountpoint", "".into()),
            ("mountpoint", "relative".into()),
            ("mountpoint", "/mnt/../etc".into()),
            ("mountpoint", "/mnt\0".into()),
            ("mountpoint", format!("/{}", "x".repeat(MOUNTPOINT_BYTES_MAX)).into()),
            ("source", "dir:\0".into()),
            ("source", "x".repeat(SOURCE_BYTES_MAX + 1).into()),
        ] {
            let wrong: serde_json::Value = wrong;
            assert!(parse(|record| record[field] = wrong.clone()).is_err(), "{field}: {wrong}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_record_of_this_volume_or_none(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(Record::parse(&text, &id("a1")).is_err());
        }

        #[test]
        fn what_is_parsed_is_what_was_written(
            mountpoint in "(/[^/\\x00]{1,20}){1,5}|/", source in "[^\\x00]{0,60}", pid in 1..=i32::MAX, started_ms: u64
        ) {
            let pid = pid.unsigned_abs();
            let (mountpoint, source) = (mountpoint.into(), source.into());
            let record = Record { mountpoint, source, pid, started_ms, ..record() };
            let text = serde_json::to_vec(&record).unwrap();
            match Record::parse(&text, &record.id) {
                Ok(parsed) => prop_assert_eq!(parsed, record),
                Err(_) => prop_assert!(record.mountpoint.as_str().split('/').any(|part| part == "..")),
            }
        }
    }
}
