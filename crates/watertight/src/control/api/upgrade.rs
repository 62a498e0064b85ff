//! Another program in the place of the one that serves a mount.

use serde::{Deserialize, Serialize};

use crate::term::shown::{Name, Words};

/// The body of `POST /v1/upgrade`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeRequest {
    /// The new program's absolute path.
    pub program: String,
    /// How long the preparation may take while requests are served, in milliseconds.
    pub timeout_ms: u64,
    /// How long requests may wait before the old program is left, in milliseconds.
    pub max_pause_ms: u64,
}

/// The body of a success of `POST /v1/upgrade`, which is never sent: the process answers only with a
/// refusal; else execve(2) closes the connection, and the new program's status says how it went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpgradeReply {}

/// The programs that have served a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Upgrades {
    /// The version of the one that serves now.
    pub version: Name,
    /// How often another one took the mount over, since it was mounted.
    pub count: u64,
    /// How often one was started and could not, so that the one before took it back.
    pub failed: u64,
    /// Why it could not the last time, if it could not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<Words>,
    /// How long requests waited for the last one, in microseconds.
    pub pause_us: u64,
}
