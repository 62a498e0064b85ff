//! Whose volumes this process reads: its user's, or with `--all-users`, for root, those of all
//! users.

use std::sync::OnceLock;

use crate::term::problem::{Problem, Result};

/// Set once, when the program starts: `--all-users` was given.
static ALL_USERS: OnceLock<()> = OnceLock::new();

/// From here on, other users' directories are checked, too.
///
/// # Errors
/// Exit 2 for all users but root.
pub fn include_all_users() -> Result<()> {
    if !rustix::process::geteuid().is_root() {
        return Err(Problem::usage(
            "--all-users needs root: only a user and root may ask the user's processes",
        ));
    }
    ALL_USERS.get_or_init(|| ());
    Ok(())
}

/// Whether other users' directories are checked.
#[must_use]
pub fn includes_all_users() -> bool {
    ALL_USERS.get().is_some()
}
