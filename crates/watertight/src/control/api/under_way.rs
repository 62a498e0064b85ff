//! The requests under way.

use serde::{Deserialize, Serialize};
use volume::events::Limit;

use crate::control::volume_id::VolumeId;
use crate::term::shown::Name;

/// How many requests an [`UnderWay`] names.
pub const REQUESTS_NAMED_MAX: usize = 1000;

/// The answer to `GET /v1/requests`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnderWay {
    /// The volume.
    pub id: VolumeId,
    /// Its requests, the oldest first, and those of volumes that are attached to its mountpoint;
    /// the first thousand.
    pub requests: Vec<RequestUnderWay>,
}

/// A request that was read from the kernel and is not answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RequestUnderWay {
    /// The thread that made it; 0 where the kernel did of its own accord.
    pub caller: u32,
    /// Its kind, as in a status: `fsync`.
    pub op: String,
    /// Where its volume is mounted or attached.
    pub mountpoint: Name,
    /// How long ago it was read.
    pub for_us: u64,
    /// What it is at.
    pub part: RequestPart,
    /// How long it has been at that, earlier times included.
    pub part_us: u64,
    /// The limit that it waits for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<LimitAhead>,
}

/// What a request is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestPart {
    /// It waits for a thread.
    Queue,
    /// It waits for a limit of a cgroup.
    Limit,
    /// It waits for room in the cache.
    Cache,
    /// A call of the store.
    Store,
    /// Something else: the program's own work, its locks, other threads that work for it.
    Rest,
}

/// A limit that a request waits for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitAhead {
    /// The cgroup whose limit it is, or that of a cgroup above.
    pub cgroup: Name,
    /// The limit.
    pub limit: Limit,
    /// How long it still has to wait, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_us: Option<u64>,
    /// Bytes that have to be written before, where they are known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}
