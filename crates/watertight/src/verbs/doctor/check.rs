//! One check, and what comes of it.

use serde::Serialize;

use crate::term::console::{Colour, console};

/// What comes of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Verdict {
    Good,
    Warn,
    Bad,
}

/// One check, as a program reads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) verdict: Verdict,
    /// What was found, and what it means for volumes.
    pub(super) found: String,
    /// The command, or the change, that repairs it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) repair: Option<String>,
}

impl Check {
    pub(super) fn good(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Good, found: found.into(), repair: None }
    }

    pub(super) fn warn(name: &'static str, found: impl Into<String>, repair: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Warn, found: found.into(), repair: Some(repair.into()) }
    }

    pub(super) fn bad(name: &'static str, found: impl Into<String>, repair: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Bad, found: found.into(), repair: Some(repair.into()) }
    }

    pub(super) fn print(&self) {
        let (colour, word) = match self.verdict {
            Verdict::Good => (Colour::Green, "good"),
            Verdict::Warn => (Colour::Yellow, "warn"),
            Verdict::Bad => (Colour::Red, "bad "),
        };
        console().print(&format!("{}  {}: {}", console().paint(colour, word), self.name, self.found));
        if let Some(repair) = &self.repair {
            console().print(&console().paint(Colour::Dim, &format!("      {repair}")));
        }
    }
}
