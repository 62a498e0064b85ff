//! Error messages of the program, and the exit code that goes with each.
//!
//! A message names the mistake, its place, and the correct form; [`crate::main`] prints it once,
//! after `watertight: `.

use std::fmt;

/// The result of a verb.
pub type Result<T, E = Problem> = std::result::Result<T, E>;

/// Which exit code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    /// 1: the request makes sense and could not be done.
    Failure,
    /// 2: the request makes no sense: usage, or a path of the wrong kind.
    Usage,
}

impl Exit {
    /// The number that the process leaves with.
    #[must_use]
    pub const fn code(self) -> u8 {
        match self {
            Self::Failure => 1,
            Self::Usage => 2,
        }
    }
}

/// Why a verb stops, in words for a person.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Problem {
    exit: Exit,
    message: String,
}

impl Problem {
    /// A failure: exit code 1.
    pub fn failure(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failure, message: message.into() }
    }

    /// Usage or bad input: exit code 2.
    pub fn usage(message: impl Into<String>) -> Self {
        Self { exit: Exit::Usage, message: message.into() }
    }

    /// The exit code.
    #[must_use]
    pub const fn exit(&self) -> Exit {
        self.exit
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}
