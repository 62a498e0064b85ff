//! Podman counts the uses of a volume itself: it asks for the first mount and the last unmount alone,
//! always by one id, and believes a volume mounted until an unmount was answered without an error.
//! What it believes mounted it never asks to mount again: it gives its containers the directory as it
//! finds it, until `podman volume rm` or a reboot.
//!
//! So for its id an error is given only where the use stays: the volume is still mounted with data that
//! is not on its store. Where the caller had no answer in time, it is mounted again. What was lost by a
//! mount process that was killed, or that a process of the host keeps the mount for a while, is no error
//! to Podman: the log and the volume's status say it.

use std::sync::Arc;

use super::uses::VolumeRecord;
use super::volume::{LONG, Volume};

/// The id of all its mounts: the SHA-256 of `placeholder` and a newline, in every version.
const ID: &str = "2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2";

/// Whether a call by this id is Podman's.
pub(super) fn is_podman(id: &str) -> bool {
    id == ID
}

/// Whether Podman believes this volume mounted.
pub(super) fn is_used_by_podman(record: &VolumeRecord) -> bool {
    record.is_used_by(ID)
}

/// An unmount that Podman waits for. Where it leaves, or gets the answer that it is late, the volume is
/// mounted again.
pub(super) struct Unmounting {
    volume: Arc<Volume>,
    is_answered: bool,
}

impl Unmounting {
    pub(super) fn new(volume: &Arc<Volume>, id: &str) -> Option<Self> {
        is_podman(id).then(|| Self { volume: Arc::clone(volume), is_answered: false })
    }

    /// Its caller gets how it ended.
    pub(super) fn mark_answered(mut self) {
        self.is_answered = true;
    }
}

impl Drop for Unmounting {
    fn drop(&mut self) {
        if !self.is_answered {
            mount_again_later(&self.volume);
        }
    }
}

/// Has a volume mounted that Podman believes mounted.
pub(super) fn mount_again_later(volume: &Arc<Volume>) {
    let volume = Arc::clone(volume);
    volume.runtime().clone().spawn(async move {
        let mounted = Arc::clone(&volume);
        // After the call that is under way.
        let result = volume.turns.call("mounting it again", LONG, move || mounted.mount_again(ID)).await;
        let result = result.unwrap_or_else(|late| Err(late.to_string()));
        if let Err(error) = result {
            tracing::error!(
                volume = volume.name.as_str(),
                error,
                "Podman believes it mounted, which it is not"
            );
        }
    });
}
