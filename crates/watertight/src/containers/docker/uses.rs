//! What the plugin keeps of a volume: its options, and how often each id has it mounted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::options::VolumeOptions;
use crate::containers::names::VolumeName;
use crate::containers::records::Record;

/// Bytes of an id: an engine's are 64 hexadecimal digits.
const ID_BYTES_MAX: usize = 256;
/// How many ids may have a volume mounted.
const IDS_MAX: usize = 4096;
/// How often one id may.
const USES_MAX: u32 = 1 << 20;
const VERSION: u32 = 1;

/// The id of all mounts of Podman's: the SHA-256 of `placeholder` and a newline, in every version.
pub(super) const PODMAN_ID: &str = "2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2";

/// Whether a call by this id is Podman's.
pub(super) fn is_podman(id: &str) -> bool {
    id == PODMAN_ID
}

/// A volume's record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct VolumeRecord {
    version: u32,
    name: VolumeName,
    /// As they were given.
    pub(super) options: BTreeMap<String, String>,
    pub(super) created_ms: u64,
    /// The boot in which the uses were counted.
    boot_id: String,
    uses: BTreeMap<String, u32>,
    /// When each id mounted last, in milliseconds since the epoch.
    #[serde(default)]
    mounted_ms: BTreeMap<String, u64>,
}

impl VolumeRecord {
    pub(super) fn new(
        name: &VolumeName,
        options: BTreeMap<String, String>,
        created_ms: u64,
        boot_id: &str,
    ) -> Self {
        let boot_id = boot_id.to_owned();
        let (uses, mounted_ms) = Default::default();
        Self { version: VERSION, name: name.clone(), options, created_ms, boot_id, uses, mounted_ms }
    }

    /// Forgets uses of another boot.
    pub(super) fn in_boot(&mut self, boot_id: &str) {
        if self.boot_id != boot_id {
            boot_id.clone_into(&mut self.boot_id);
            self.remove_all();
        }
    }

    pub(super) fn is_used(&self) -> bool {
        !self.uses.is_empty()
    }

    pub(super) fn is_used_by(&self, id: &str) -> bool {
        self.uses.contains_key(id)
    }

    /// Whether Podman believes the volume mounted.
    pub(super) fn is_used_by_podman(&self) -> bool {
        self.is_used_by(PODMAN_ID)
    }

    /// How many uses there are.
    pub(super) fn uses(&self) -> u64 {
        self.uses.values().map(|&uses| u64::from(uses)).sum()
    }

    /// Whether no use was counted in the last `ms` milliseconds.
    pub(super) fn is_older(&self, ms: u64, now_ms: u64) -> bool {
        self.uses.keys().all(|id| now_ms.saturating_sub(self.mounted_ms.get(id).copied().unwrap_or(0)) > ms)
    }

    /// Counts one use more.
    ///
    /// # Errors
    /// There are too many, or this is no id.
    pub(super) fn add(&mut self, id: &str, now_ms: u64) -> Result<(), String> {
        check_id(id)?;
        if !self.is_used_by(id) && self.uses.len() >= IDS_MAX {
            return Err(format!("{IDS_MAX} ids have it mounted already"));
        }
        let uses = self.uses.entry(id.to_owned()).or_default();
        if *uses >= USES_MAX {
            return Err(format!("{id} has it mounted {USES_MAX} times already"));
        }
        *uses += 1;
        self.mounted_ms.insert(id.to_owned(), now_ms);
        Ok(())
    }

    /// Counts one use less; returns whether there was one.
    pub(super) fn remove_one(&mut self, id: &str) -> bool {
        let Some(uses) = self.uses.get_mut(id) else { return false };
        *uses -= 1;
        if *uses == 0 {
            self.remove_all_of(id);
        }
        true
    }

    /// The uses of this id are void.
    pub(super) fn remove_all_of(&mut self, id: &str) {
        self.uses.remove(id);
        self.mounted_ms.remove(id);
    }

    /// All uses are void.
    pub(super) fn remove_all(&mut self) {
        self.uses.clear();
        self.mounted_ms.clear();
    }
}

impl Record for VolumeRecord {
    fn check(&self, name: &VolumeName) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("version {} is not known, only {VERSION}", self.version));
        }
        if self.name != *name {
            return Err(format!("it is of the volume {}", self.name));
        }
        if self.uses.len().max(self.mounted_ms.len()) > IDS_MAX {
            return Err(format!("more than {IDS_MAX} ids"));
        }
        for (id, uses) in &self.uses {
            check_id(id)?;
            if !(1..=USES_MAX).contains(uses) {
                return Err(format!("{id} with {uses} uses"));
            }
        }
        VolumeOptions::parse(&self.options).map(drop)
    }
}

/// Checks an id.
///
/// # Errors
/// What is wrong with it.
pub(super) fn check_id(id: &str) -> Result<(), String> {
    if id.is_empty() || id.len() > ID_BYTES_MAX || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(format!(
            "an id of a mount has 1 to {ID_BYTES_MAX} visible ASCII characters, which {:?} has not",
            id.chars().take(80).collect::<String>()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> (VolumeName, VolumeRecord) {
        let name = VolumeName::try_from("data".to_owned()).unwrap();
        let options = BTreeMap::from([("source".to_owned(), "/srv/data".to_owned())]);
        let record = VolumeRecord::new(&name, options, 1, "boot-1");
        (name, record)
    }

    #[test]
    fn uses_are_counted_for_each_id_and_void_after_a_reboot() {
        let (name, mut record) = record();
        // As `docker cp` into a container that runs.
        for id in ["a", "b", "a"] {
            record.add(id, 7).unwrap();
        }
        assert_eq!(record.uses(), 3);
        assert!(record.remove_one("a") && record.is_used_by("a"));
        assert!(record.remove_one("a") && !record.is_used_by("a") && !record.remove_one("a"));
        assert!(record.is_used());
        let mut read: VolumeRecord = serde_json::from_str(&serde_json::to_string(&record).unwrap()).unwrap();
        assert_eq!((read.check(&name), &read), (Ok(()), &record));
        read.in_boot("boot-1");
        assert!(read.is_used_by("b"));
        read.in_boot("boot-2");
        assert!(!read.is_used());
        assert!(record.remove_one("b") && !record.is_used());
    }

    #[test]
    fn uses_are_old_when_each_is() {
        let (_, mut record) = record();
        assert!(record.is_older(10, 0), "there is none");
        record.add("a", 100).unwrap();
        record.add("b", 150).unwrap();
        assert!(!record.is_older(10, 110) && !record.is_older(10, 155) && record.is_older(10, 161));
        record.add("a", 160).unwrap();
        assert!(!record.is_older(10, 161));
        // Of a record without times, as earlier builds wrote it.
        record.mounted_ms.clear();
        assert!(record.is_older(10, 161));
    }

    #[test]
    fn a_record_is_read_strictly() {
        let (name, mut record) = record();
        record.add("a", 7).unwrap();
        let text = serde_json::to_string(&record).unwrap();
        let check = |text: &str| {
            let record: VolumeRecord = serde_json::from_str(text).map_err(|error| error.to_string())?;
            record.check(&name)
        };
        assert_eq!(check(&text), Ok(()));
        for (from, to, word) in [
            ("\"version\":1", "\"version\":2", "version 2"),
            ("\"data\"", "\"other\"", "of the volume other"),
            ("\"data\"", "\"../data\"", "not a volume's name"),
            ("\"a\":1", "\"a\":0", "0 uses"),
            ("\"a\":1", "\"a b\":1", "visible ASCII"),
            ("\"version\":1", "\"version\":1,\"more\":1", "unknown field"),
            ("/srv/data", "srv/data", "absolute path"),
        ] {
            let wrong = check(&text.replace(from, to)).unwrap_err();
            assert!(wrong.contains(word), "{wrong}");
        }
        for id in ["", " ", "a\n", "ä", &"x".repeat(257)] {
            assert!(record.add(id, 7).is_err(), "{id:?}");
        }
    }
}
