//! The state of a volume, and the ways to unmount it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a volume is in its life.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// A path leads to it.
    #[default]
    Active,
    /// No path leads to it, open files keep it.
    Detached,
    /// It writes the rest, then ends.
    Draining,
    /// Everything is on the store and the store is free.
    Released,
    /// Its store does not answer.
    Stalled,
    /// It ended with data that was not written.
    Failed,
}

impl State {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Active, Self::Detached, Self::Draining, Self::Released, Self::Stalled, Self::Failed];
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Active => "active",
            Self::Detached => "detached",
            Self::Draining => "draining",
            Self::Released => "released",
            Self::Stalled => "stalled",
            Self::Failed => "failed",
        })
    }
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UmountKind {
    /// Refuse if held; else write everything, then answer.
    Plain,
    /// Take the path away; if held, answer at once, and write everything.
    Lazy,
    /// Give up unwritten data, at once.
    Force,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_have_the_names_of_the_documents() {
        assert_eq!(serde_json::to_string(&State::Detached).unwrap(), "\"detached\"");
        assert_eq!(State::Detached.to_string(), "detached");
    }
}
