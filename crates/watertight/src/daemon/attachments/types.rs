//! The types that all modules of `attachments` share. This module uses none of the others.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use fuse::{SessionView, TreeHandle};
use sync::Mutex;
use tokio::sync::watch;
use volume::{Tenants, Volume};

use crate::cli::opts::MountOptions;
use crate::control::api::{Ended, Propagation};
use crate::control::server::{ListenerGuard, Server};
use crate::control::volume_id::VolumeId;
use crate::daemon::change_gate::ChangeGate;
use crate::daemon::volume_info::VolumeInfo;
use crate::host::utab;
use crate::registry::{Registration, RuntimeDir};

/// How long the kernel may take to report a close.
pub(super) const CLOSING: Duration = Duration::from_secs(2);

/// The volumes that are attached to one mountpoint.
#[derive(Debug)]
pub struct Attachments {
    pub(in crate::daemon) tree: TreeHandle,
    pub(super) clones: Clones,
    pub(in crate::daemon) session: SessionView,
    pub(super) root: VolumeInfo,
    pub(super) runtime_dir: RuntimeDir,
    /// Those of all volumes of this process.
    pub(super) tenants: Arc<Tenants>,
    pub(super) server: OnceLock<Server>,
    pub(super) list: Mutex<AttachedIndex>,
    /// Those that ended with data that was not written.
    pub(super) failed: Mutex<Vec<(String, Ended)>>,
    /// Calls that change something, beside an upgrade.
    pub(super) changes: Arc<ChangeGate>,
    /// How often ended volumes waited for inodes that were changing their owners, and how long.
    pub(in crate::daemon) drains: Mutex<(u64, Duration)>,
}

/// A mountpoint, and the namespace that it shows.
#[derive(Debug, Clone)]
pub(crate) struct Mountpoint {
    pub(super) tree: TreeHandle,
    pub(super) path: PathBuf,
}

impl Mountpoint {
    /// A path inside it as the host sees it.
    pub(super) fn join(&self, path: &Path) -> PathBuf {
        self.path.join(path)
    }
}

/// An attached volume.
#[derive(Debug)]
pub struct Attached {
    pub(super) all: Weak<Attachments>,
    pub(super) id: VolumeId,
    pub(super) source: String,
    /// Where it was seen last.
    pub(super) path: Mutex<PathBuf>,
    /// Where it was attached last; the number in it stays.
    pub(super) place: Mutex<Option<fuse::Attached>>,
    /// The options that it was attached with, and as they were given.
    pub(super) options: MountOptions,
    pub(super) given_options: Vec<String>,
    pub(super) volume: Arc<Volume>,
    pub(super) read_only: bool,
    pub(super) started_ms: u64,
    pub(super) ended: watch::Sender<Option<Ended>>,
    pub(super) registration: Mutex<Option<Registration>>,
    pub(super) listener: Mutex<Option<ListenerGuard>>,
}

/// All clones of a mount process.
#[derive(Debug, Default)]
pub(super) struct Clones(pub(super) Mutex<CloneList>);

#[derive(Debug, Default)]
pub(super) struct CloneList {
    pub(super) shown: Vec<Arc<CloneMount>>,
    /// Whether a thread watches the mount table.
    pub(super) is_watched: bool,
}

/// A clone and where it is.
#[derive(Debug)]
pub(super) struct CloneMount {
    pub(super) mountpoint: Mountpoint,
    pub(super) propagation: Propagation,
    pub(super) _utab: Option<utab::Entry>,
}

/// A path with NUL, which no path has, for its slashes. So the order of the bytes is that of the
/// paths' parts, and the paths below a directory come next to it. Comparing two paths part by part
/// is far slower.
pub(super) type Key = Vec<u8>;

/// The attached volumes of a mount process.
#[derive(Debug, Default)]
pub(super) struct AttachedIndex {
    pub(super) by_id: BTreeMap<VolumeId, Arc<Attached>>,
    /// As the tree numbers them.
    pub(super) by_number: HashMap<u64, Arc<Attached>>,
    /// The newest last: it may be on top of others.
    pub(super) by_path: BTreeMap<Key, Vec<Arc<Attached>>>,
}
