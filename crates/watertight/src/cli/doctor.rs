//! The arguments of `doctor`.

use clap::Args;

/// `doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// A store to look at as well: a directory, or the URL of a volume on object storage.
    pub source: Option<String>,
    /// For programs: a list of `name`, `verdict`, `found` and `repair`.
    #[arg(long)]
    pub json: bool,
}

/// The end of its help.
pub(super) const HELP: &str = "Examples:\n  \
    watertight doctor\n  \
    watertight doctor /srv/data\n  \
    watertight doctor --json s3://bucket/prefix | jq '.[] | select(.verdict == \"bad\")'\n\n\
    Changes nothing. `good`: as it should be; `warn`: mounts work, and lack something, which it names; `bad`: \
    mounts, or those of this store, do not work. Below a warning is what repairs it. Ends with 1 where anything is bad.";
