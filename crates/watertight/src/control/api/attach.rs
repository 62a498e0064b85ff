//! Volumes and directories that are attached inside a mountpoint.

use serde::{Deserialize, Serialize};

use crate::control::volume_id::VolumeId;

use super::ended::Ended;
use super::state::UmountKind;
use crate::host::holders::Holders;
use crate::term::shown::Name;

/// The body of `POST /v1/attach`: one of `source`, `volume` and `from`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachRequest {
    /// The directory to attach to, from the mountpoint on.
    pub path: String,
    /// The store. If a volume of the mount process has it already, it means this volume, as
    /// `volume` does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
    /// A volume that is attached, or was detached and goes on as long as it is held, by its id: it
    /// gets one more place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// A directory to be shown in a second place, from the mountpoint on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// The volume's options, as for `mount -o`.
    #[serde(default)]
    pub options: Vec<String>,
    /// The mountpoint that the path begins at, if there are several: the first, if it is none of
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<String>,
}

/// The answer to `POST /v1/attach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct AttachReply {
    /// The volume's id; none if a directory is shown in a second place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<VolumeId>,
    /// Where it is.
    pub mountpoint: Name,
}

/// The body of `POST /v1/detach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachRequest {
    /// Where it is attached, from the mountpoint on.
    pub path: String,
    /// How.
    pub how: UmountKind,
    /// The id of the intended volume: any other volume at that place stays attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volume: Option<VolumeId>,
    /// The mountpoint that the path begins at, if there are several: the first, if it is none of
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<String>,
}

/// The answer to `POST /v1/detach`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DetachReply {
    /// The volume's id; none for a directory in a second place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<VolumeId>,
    /// Its store.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Name>,
    /// How it ended; none while it goes on: held, or in another place.
    pub ended: Option<Ended>,
    /// Whether it is held: for `plain` it is still attached, for `lazy` it is detached.
    pub is_held: bool,
    /// The holders.
    pub holders: Holders,
}

/// The body of `POST /v1/move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveRequest {
    /// Where it is attached, from the mountpoint on.
    pub from: String,
    /// Where it is to be.
    pub to: String,
    /// The mountpoint that the path begins at, if there are several: the first, if it is none of
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mountpoint: Option<String>,
}

/// The answer to `POST /v1/move`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MoveReply {
    /// Where it is now.
    pub mountpoint: Name,
}
