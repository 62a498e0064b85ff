//! Whether another server follows if a mount process dies.

use serde::{Deserialize, Serialize};

/// Whether another server follows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RecoveryState {
    /// It was not asked for: the mount ends with its process.
    #[default]
    Off,
    /// The keeper starts another one.
    On,
    /// The keeper is gone: the mount ends with its process.
    NoKeeper,
    /// The kernel knows more files than can be noted: the mount ends with its process.
    Incomplete,
}

/// The option `recover`, and its state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecoveryStatus {
    /// Whether another server follows.
    pub state: RecoveryState,
    /// How many have died so far.
    pub deaths: u64,
    /// Files that have lost a name while they were open, and that the next server would not have: the
    /// keeper holds no more.
    pub not_held: u64,
}
