//! The arguments of `why`.

use std::ffi::OsString;

use clap::Args;

use super::Users;

/// `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    /// A path in a volume, or the number of a process; a file whose name is a number is `./NAME`.
    #[arg(value_name = "PATH|PID")]
    pub target: OsString,
    /// For programs: `sentence`, and the `requests` that it is about.
    #[arg(long)]
    pub json: bool,
    /// Whose volumes are meant.
    #[command(flatten)]
    pub users: Users,
}

/// The end of its help.
pub(super) const HELP: &str = "Examples:\n  \
    watertight why /mnt/data/file\n  \
    watertight why $(pidof -s postgres)\n\n\
    Looks for a second, or until a request has waited for 100 ms: the sentence is about the request that has waited longest, the \
    lines below it are about all. Where none waits, they are about what was answered in that second. Time that a request \
    spends in the kernel before the mount process reads it is not seen.";
