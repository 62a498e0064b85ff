//! Podman counts the uses of a volume itself: it asks for the first mount and the last unmount alone,
//! always by one id, and believes a volume mounted until an unmount was answered without an error.
//! What it believes mounted it never asks to mount again: it gives its containers the directory as it
//! finds it, until `podman volume rm` or a reboot.
//!
//! So for its id an error is given only where the use stays: the volume is still mounted with data that
//! is not on its store. Where the caller had no answer in time, it is mounted again. What was lost by a
//! mount process that was killed, or that a process of the host keeps the mount for a while, is no error
//! to Podman: the log and the volume's status say it.
//!
//! `podman restart` and restart policies start a container without an unmount and a mount. So while
//! Podman believes a volume mounted, a task waits for the end of its mount process, and mounts it again.

use std::sync::Arc;
use std::time::Duration;

use super::uses::{PODMAN_ID, is_podman};
use super::volume::{Kept, LONG, RETRY, RETRY_MAX, Volume};
use crate::containers::mounts::Mounted;

/// How long a wait for the end of a process is, before the next.
const A_DAY: Duration = Duration::from_secs(24 * 3600);

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

/// Mounts a volume that Podman believes mounted, after the call that is under way.
fn mount_again_later(volume: &Arc<Volume>) {
    let volume = Arc::clone(volume);
    volume.runtime().clone().spawn(async move {
        let mounted = Arc::clone(&volume);
        let result =
            volume.turns.call("mounting it again", LONG, move || mounted.mount_again(PODMAN_ID)).await;
        match result.unwrap_or_else(|late| Err(late.to_string())) {
            Ok(()) => keep_mounted(&volume),
            Err(error) => {
                let volume = volume.name.as_str();
                tracing::error!(volume, error, "Podman believes a volume mounted, which it is not");
            }
        }
    });
}

/// Keeps a volume mounted for as long as Podman believes it to be, unless a task does so already.
pub(super) fn keep_mounted(volume: &Arc<Volume>) {
    if !volume.begin_keeping() {
        return;
    }
    let volume = Arc::clone(volume);
    volume.runtime().clone().spawn(async move {
        let mut pause = RETRY;
        loop {
            wait_for_end(&volume).await;
            let kept = Arc::clone(&volume);
            let kept =
                volume.turns.call("mounting it again", LONG, move || kept.mount_if_used(PODMAN_ID)).await;
            pause = match kept {
                Ok(Kept::Unused) => return,
                Ok(Kept::Mounted) => RETRY,
                Ok(Kept::Unmounted) | Err(_) => (pause * 2).min(RETRY_MAX),
            };
            // A mount process that dies at once is not started in a hurry.
            tokio::time::sleep(pause).await;
        }
    });
}

/// Returns when no process serves the volume, at once where none does.
async fn wait_for_end(volume: &Volume) {
    let path = volume.path();
    let look = tokio::task::spawn_blocking(move || Mounted::at(&path));
    let Ok(Ok(Mounted::Running(_, served))) = look.await else { return };
    let Some(client) = &served.found.client else { return };
    // It cannot be waited for where there are too many descriptors.
    while !client.ends_within(A_DAY).await {
        tokio::time::sleep(RETRY_MAX).await;
    }
}
