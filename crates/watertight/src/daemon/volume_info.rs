//! What does not change while a volume is mounted.

use std::path::Path;
use std::time::Duration;

use crate::control::volume_id::VolumeId;
use crate::host::mountinfo::{self, Device, Mount, MountTable};
use crate::object_volumes::ObjectOptions;
use crate::registry::RecordedJournal;
use crate::term::shown::Name;

/// The journal that may have what the bucket has not.
pub(super) fn recorded_journal(options: &ObjectOptions) -> Option<RecordedJournal> {
    let is_target = options.fsync_to_host || options.accept_to_host;
    let dir = options.journal.as_ref().filter(|_| is_target)?;
    Some(RecordedJournal { dir: Name::of(dir), accepts: options.accept_to_host })
}

/// The part that does not change while a volume is mounted.
#[derive(Debug, Clone)]
pub struct VolumeInfo {
    /// The volume's id.
    pub id: VolumeId,
    /// The store.
    pub source: String,
    /// The kernel's mount.
    pub mount: Mount,
    /// Its number that is never used again, where the kernel has such.
    pub unique_id: Option<u64>,
    /// Why the mount is plain `fuse`, if it is.
    pub type_reason: Option<String>,
    /// `write-through` or `kernel-writeback`.
    pub mode: &'static str,
    /// Whether it was mounted read-only.
    pub read_only: bool,
    /// Milliseconds since the epoch.
    pub started_ms: u64,
    /// How long an unmount goes on without any progress.
    pub drain_timeout: Duration,
}

impl VolumeInfo {
    /// The mount's device number.
    #[must_use]
    pub const fn device(&self) -> Device {
        Device::of(&self.mount)
    }

    /// Which of `suid` and `dev` at least one of the file system's mounts allows now.
    #[must_use]
    pub fn privileges(&self) -> Vec<Name> {
        let table = MountTable::read();
        mountinfo::privileges(table.of_device(self.device()).filter(|mount| mountinfo::is_ours(mount)))
    }

    /// The mount to ask the kernel about: the own one, or another of the file system's where that
    /// was unmounted, a whole one if there is one.
    #[must_use]
    pub fn mount_now(&self) -> Option<Mount> {
        if self.mount.is_present() {
            return Some(self.mount.clone());
        }
        let table = MountTable::read();
        let all = || table.of_device(self.device()).filter(|mount| mountinfo::is_ours(mount));
        all().find(|mount| mount.root == Path::new("/")).or_else(|| all().next()).cloned()
    }
}
