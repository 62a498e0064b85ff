//! What a mount process needs to hand its mount over, and an upgrade on its way.

use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use fuse::{MountHandover, SessionHandover, SessionView};
use sync::Mutex;
use volume::{Volume, VolumeHandover};

use super::state::{State, VERSION, bytes_of};
use crate::control::api::Upgrades;
use crate::daemon::attachments::Attachments;
use crate::daemon::change_gate::ChangeGate;
use crate::daemon::volume_info::VolumeInfo;

/// The argument that passes the state's descriptor to a program.
pub(crate) const ARGUMENT: &str = "--taken-over=";

/// The mount that is handed over.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Handed<'a> {
    pub(crate) info: &'a VolumeInfo,
    pub(crate) volume: &'a Arc<Volume>,
    pub(crate) attachments: &'a Arc<Attachments>,
    pub(crate) session: &'a SessionView,
    pub(crate) upgrader: &'a Upgrader,
}

impl Handed<'_> {
    /// Its own volume, and those that are attached.
    pub(super) fn volumes(self) -> Vec<Arc<Volume>> {
        let attached = self.attachments.volumes();
        std::iter::once(Arc::clone(self.volume)).chain(attached).collect()
    }

    /// Bytes that are not on the store, of all volumes.
    pub(super) fn dirty_bytes(self) -> u64 {
        self.volumes().iter().map(|volume| volume.status().dirty_bytes).sum()
    }

    /// The state for a program that follows one which is no more; one that is handed the mount gets
    /// more besides.
    pub(crate) fn state(self, listener: RawFd, session: SessionHandover, volume: VolumeHandover) -> State {
        let (upgrader, info) = (self.upgrader, self.info);
        State {
            version: VERSION,
            kept: Vec::new(),
            program: -1,
            reason: -1,
            listener,
            arguments: bytes_of(&upgrader.arguments),
            agent: None,
            id: info.id.clone(),
            source: info.source.clone(),
            mount: info.mount.clone(),
            unique_id: info.unique_id,
            read_only: info.read_only,
            started_ms: info.started_ms,
            mounted: upgrader.mounted.clone(),
            session,
            volume,
            attached: Vec::new(),
            clones: Vec::new(),
            failed_attached: Vec::new(),
            paused_ns: 0,
            upgrades: upgrader.past.count,
            failed: upgrader.past.failed,
        }
    }
}

/// What a mount process needs to hand its mount over, and did so far.
#[derive(Debug)]
pub struct Upgrader {
    pub(crate) listener: OwnedFd,
    pub(crate) mounted: MountHandover,
    /// The process's arguments, without those of a program that has taken over.
    pub(crate) arguments: Vec<OsString>,
    pub(crate) past: Upgrades,
    /// Held by the caller whose upgrade goes on.
    pub(super) running: Mutex<()>,
    pub(crate) changes: Arc<ChangeGate>,
}

/// An upgrade that is ready for the supervisor.
#[derive(Debug)]
pub struct PreparedUpgrade {
    pub(super) program: File,
    pub(super) max_pause: Duration,
    /// Gets the reason when it is refused.
    pub(super) refused: Sender<String>,
}

impl PreparedUpgrade {
    /// It does not come to it.
    pub(crate) fn refuse(self, why: String) {
        let _caller_has_left = self.refused.send(why);
    }
}

/// This process's arguments.
pub(crate) fn arguments() -> Vec<OsString> {
    let is_ours = |argument: &OsString| {
        [ARGUMENT, recovery::keeper::ARGUMENT]
            .iter()
            .any(|ours| argument.as_bytes().starts_with(ours.as_bytes()))
    };
    std::env::args_os().filter(|argument| !is_ours(argument)).collect()
}

impl Upgrader {
    /// For a mount with this control socket.
    ///
    /// # Errors
    /// When the process has no descriptor left.
    pub fn new(listener: &UnixListener, mounted: MountHandover, past: Upgrades) -> std::io::Result<Self> {
        let listener = listener.as_fd().try_clone_to_owned()?;
        let (arguments, version) = (arguments(), env!("CARGO_PKG_VERSION").into());
        let past = Upgrades { version, ..past };
        let (running, changes) = (Mutex::new(()), Arc::default());
        Ok(Self { listener, mounted, arguments, past, running, changes })
    }

    /// The programs so far.
    #[must_use]
    pub fn past(&self) -> Upgrades {
        self.past.clone()
    }
}

/// The arguments that pass the state to a program.
pub(crate) fn with_state(arguments: &[OsString], state: i32) -> Vec<OsString> {
    let mut arguments = arguments.to_vec();
    let at = arguments.len().min(1);
    arguments.insert(at, format!("{ARGUMENT}{state}").into());
    arguments
}
