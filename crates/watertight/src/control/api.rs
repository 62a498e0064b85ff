//! The messages of the control socket, and of the records of mounts that ended. Keys never change
//! their meaning; new ones may be added.

mod attach;
mod clone;
mod ended;
mod recovery;
mod snapshots;
mod state;
mod stats;
mod store_requests;
mod under_way;
mod upgrade;
mod warm;

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::control::volume_id::VolumeId;
use crate::host::holders::Holders;
use crate::host::mountinfo::Device;
use crate::term::shown::{Name, Words};
use crate::term::units;

pub use attach::{AttachReply, AttachRequest, DetachReply, DetachRequest, MoveReply, MoveRequest};
pub use clone::{CloneReply, CloneRequest, CloneStatus, LeaveReply, LeaveRequest, Propagation};
pub use ended::{Ended, FILES_NAMED_MAX, FileError, Unwritten};
pub use recovery::{RecoveryState, RecoveryStatus};
pub use snapshots::{Snapshot, SnapshotsReply, SnapshotsRequest};
pub use state::{State, UmountKind};
pub use stats::{LimitWait, Operation, OperationLatency, Stats};
pub use store_requests::{
    DiskCache, Following, Journal, Latency, StoreRequestKind, StoreRequests, Unanswered,
};
pub use under_way::{LimitAhead, REQUESTS_NAMED_MAX, RequestPart, RequestUnderWay, UnderWay};
pub use upgrade::{UpgradeReply, UpgradeRequest, Upgrades};
pub use warm::{WarmFailure, WarmPiece, WarmReply, WarmRequest};

pub use crate::host::process::Process;

/// How many cgroups a [`Status`] names.
pub const CGROUPS_NAMED_MAX: usize = 1000;

/// A mounted volume at one moment. Sizes are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The volume's id, unique on the host.
    pub id: VolumeId,
    /// The process that serves it.
    pub pid: u32,
    /// The user it belongs to.
    pub uid: u32,
    /// The store, as it was given: `dir:/srv/data`.
    pub source: Name,
    /// Where it is (or was) mounted.
    pub mountpoint: Name,
    /// The volume of the mountpoint that it is attached to, if it has no mount of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attached_to: Option<VolumeId>,
    /// Further mountpoints that show clones of its namespace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clones: Vec<CloneStatus>,
    /// The mount's device number.
    pub device: Device,
    /// Where it is in its life.
    pub state: State,
    /// `fuseblk` or `fuse`.
    pub mount_type: Name,
    /// Why it is plain `fuse`, for which a raw umount2(2) does not wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mount_type_reason: Option<Words>,
    /// Whether sync(2) and syncfs(2) were seen to reach the mount process, so that they wait;
    /// tested with one at the beginning of the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syncfs: Option<bool>,
    /// Whether that call named its caller: only then `sync_isolation` applies to such calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syncfs_callers: Option<bool>,
    /// How requests come from the kernel: `io_uring` or `dev-fuse`.
    pub transport: Name,
    /// Why not over io_uring.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport_reason: Option<Words>,
    /// `write-through` or `kernel-writeback`.
    pub mode: Name,
    /// Whether nothing can be changed.
    pub read_only: bool,
    /// `suid` where set-id bits and capabilities of its programs count, `dev` where its devices can
    /// be opened; of the whole mountpoint.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub privileges: Vec<Name>,
    /// Milliseconds since the epoch.
    pub started_ms: u64,
    /// Written by programs and not on the store: the sum of the next two.
    pub dirty_bytes: u64,
    /// Of these, the bytes that wait to be written (`Dirty` of `/proc/meminfo`).
    pub to_write_bytes: u64,
    /// Of these, the bytes that are on their way to the store (`Writeback` of `/proc/meminfo`).
    pub writeback_bytes: u64,
    /// Lost if the process died now: dirty, or of object storage and only in its memory.
    #[serde(default)]
    pub lost_if_killed_bytes: u64,
    /// Files with data that is not on the store.
    pub dirty_files: u64,
    /// Held in the cache, clean or dirty.
    pub cached_bytes: u64,
    /// The cache's bound.
    pub cache_bytes_max: u64,
    /// Written to the store since the start.
    pub written_bytes: u64,
    /// Known files and directories.
    pub nodes: u64,
    /// Open files.
    pub open_files: u64,
    /// The threads that opened them, each once; none where not all are known to this process, or
    /// more than 1024 are open.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub openers: Vec<u32>,
    /// Attempts to write a file back that failed, since the start.
    #[serde(default)]
    pub writeback_errors: u64,
    /// Reads that the store has failed, since the start.
    #[serde(default)]
    pub read_errors: u64,
    /// Writes that had to wait for room in the cache, since the start.
    #[serde(default)]
    pub writer_waits: u64,
    /// Files whose write-back failed and whose data waits in the cache.
    #[serde(default)]
    pub failing_files: u64,
    /// Their waiting bytes.
    #[serde(default)]
    pub failing_bytes: u64,
    /// These files by name, the first thousand.
    pub errors: Vec<FileError>,
    /// The tree of cgroups of the host that tells tenants apart: `v2`, a version 1 controller, or
    /// `off`.
    #[serde(default)]
    pub cgroup_tree: Name,
    /// Inodes that are changing their owners.
    #[serde(default)]
    pub switches_in_flight: u64,
    /// Inodes that have changed their owners since the start.
    #[serde(default)]
    pub switched_inodes: u64,
    /// How often an unmount waited for inodes that were changing their owners: its own, and those
    /// of volumes attached inside that have ended.
    #[serde(default)]
    pub drains: u64,
    /// How long that took, in microseconds.
    #[serde(default)]
    pub drain_us: u64,
    /// The cgroups that have, or had, anything here; at most a thousand, those with most inodes.
    #[serde(default)]
    pub cgroups: Vec<Cgroup>,
    /// Limits of cgroups on the store; at most a thousand.
    #[serde(default)]
    pub limits: Vec<CgroupLimits>,
    /// The call that the store does not answer; none while it answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<Stalled>,
    /// How often it did not answer in time, since the start.
    #[serde(default)]
    pub stalls: u64,
    /// The kernel's requests.
    #[serde(default)]
    pub requests: Requests,
    /// The volume's operations, by class; left out of answers with many volumes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub operations: BTreeMap<String, Operation>,
    /// The store's own requests, where it is on object storage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub store_requests: Option<StoreRequests>,
    /// The process's use of the host.
    #[serde(default)]
    pub process: Process,
    /// The programs that have served it.
    #[serde(default)]
    pub upgrades: Upgrades,
    /// Whether another server follows if its process dies.
    #[serde(default)]
    pub recovery: RecoveryStatus,
}

/// One cgroup's part of a volume.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cgroup {
    /// Its path in the tree.
    pub path: Name,
    /// Whether it was removed: its dirty data stays with it until that has been written.
    pub removed: bool,
    /// Inodes that it owns.
    pub owned_inodes: u64,
    /// As `to_write_bytes`, and so not as a volume's key of this name.
    pub dirty_bytes: u64,
    /// Its bytes that wait to be written.
    pub to_write_bytes: u64,
    /// Its bytes that are on their way to the store.
    pub writeback_bytes: u64,
    /// Inodes that are becoming its own.
    pub switches_in_flight: u64,
    /// Inodes that have become its own, others' before.
    pub switched_inodes: u64,
}

/// A call of a store that has been under way for too long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stalled {
    /// Which: `write_at`, `sync`, `lookup`.
    pub call: Name,
    /// For how many milliseconds.
    pub for_ms: u64,
}

impl fmt::Display for Stalled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since = units::duration(Duration::from_millis(self.for_ms));
        write!(f, "the store has not answered `{}` for {since}", self.call)
    }
}

/// Requests of the kernel since the start, and those that are under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// How many came of each kind, by the kernel's name for it (`lookup`, `write`); only kinds that
    /// came.
    pub by_kind: BTreeMap<String, u64>,
    /// Answered with an error, look-ups of names that do not exist left out.
    pub errors: u64,
    /// Ended by a defect of the program; answered with EIO.
    pub panics: u64,
    /// Messages that are no known request.
    pub unknown: u64,
    /// Being handled now.
    pub under_way: u64,
}

/// A volume of a file that is not mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    /// The path where it is to be mounted or attached.
    pub mountpoint: Name,
    /// Its store.
    pub source: Name,
    /// Why it is not there.
    pub why: Words,
}

impl Status {
    /// The data that is not on the store yet: `12.0 MiB of 3 files`.
    #[must_use]
    pub fn unwritten(&self) -> String {
        let files = units::count(self.dirty_files, "file", "files");
        format!("{} of {files}", units::bytes(self.dirty_bytes))
    }

    /// Checks that data gets to the store.
    ///
    /// # Errors
    /// The reason why it does not, in words.
    pub fn health(&self) -> Result<(), String> {
        match self.state {
            State::Stalled => {
                let why = self.stalled.as_ref().map_or_else(String::new, ToString::to_string);
                Err(format!("stalled: {why}; {} to be written", self.unwritten()))
            }
            State::Failed => Err("failed: it ended with data that was not written".to_owned()),
            _ if self.failing_files > 0 => {
                let files = units::count(self.failing_files, "file", "files");
                Err(format!("{} of {files} could not be written", units::bytes(self.failing_bytes)))
            }
            _ => Ok(()),
        }
    }
}

/// `POST /v1/sync` is done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// The volume.
    pub id: VolumeId,
    /// Attached volumes whose stores do not answer: their dirty data is not durable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<Name>,
}

/// The settings of one cgroup on the volume's store. A limit that is missing is `max`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupLimits {
    /// Its path in the tree of cgroups.
    pub cgroup: Name,
    /// Bytes read in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rbps: Option<u64>,
    /// Bytes written in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wbps: Option<u64>,
    /// Reads of the store in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub riops: Option<u64>,
    /// Writes to the store in a second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wiops: Option<u64>,
    /// Bytes that it may have that are not on the store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dirty_bytes_max: Option<u64>,
    /// Whether its syncs cover only data of its own and of cgroups below it.
    pub sync_isolation: bool,
    /// Bytes written ahead of its limits, because another caller waited for them.
    pub owed_bytes: u64,
}

/// The answer to `GET /v1/limits` and to `POST /v1/limit`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// By cgroup.
    pub limits: Vec<CgroupLimits>,
}

/// The body of `POST /v1/limit`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitRequest {
    /// The cgroup's path in the tree.
    pub cgroup: String,
    /// The changes: `wbps=1M riops=max sync_isolation=1`.
    pub limits: String,
}

/// The body of `POST /v1/umount`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UmountRequest {
    /// How.
    pub how: UmountKind,
}

/// The answer to `POST /v1/umount`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UmountReply {
    /// How the volume ended; none while it still goes on (held).
    pub ended: Option<Ended>,
    /// The holders: for `plain` it is still mounted, for `lazy` it is detached.
    pub holders: Holders,
}

/// The answer to `GET /v1/wait`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitReply {
    /// How the volume ended; none at the timeout.
    pub ended: Option<Ended>,
    /// The status of the rest.
    pub status: Status,
}

/// The body of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorReply {
    /// In plain words.
    pub error: String,
}

/// The present time as the API has it: milliseconds since the epoch.
#[must_use]
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, millis)
}

/// A duration as the API has it: whole milliseconds.
#[must_use]
pub fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
