//! `demo`: not written yet.

use crate::cli::DemoArgs;
use crate::problem::{Problem, Result};

/// Runs the verb.
///
/// # Errors
/// Always, in this build.
pub fn run(_args: &DemoArgs) -> Result<()> {
    Err(Problem::failure("the demo is not in this build"))
}
