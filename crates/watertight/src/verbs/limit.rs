//! `limit`: limits of cgroups on a volume's store.

use std::ffi::OsStr;
use std::path::Path;

use cgroups::{Choice, Hierarchy};
use volume::{CgroupPath, LimitChange};

use crate::cli::LimitArgs;
use crate::control::api::{CgroupLimits, LimitRequest, Limits};
use crate::control::client::{CallError, Client};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{exact, in_one_line};
use crate::term::units;
use crate::verbs::sync::find;

/// Runs the verb.
///
/// # Errors
/// Exit 2 for an invalid cgroup or limit, or a volume that is not ours; 1 when the mount process
/// cannot be reached.
pub fn run(args: &LimitArgs) -> Result<()> {
    let (cgroup, volume, pairs) = match args.names.as_slice() {
        [volume] if args.show => (None, volume, &[][..]),
        [cgroup, volume] if args.show => (Some(cgroup), volume, &[][..]),
        [cgroup, volume, pairs @ ..] if !args.show && !pairs.is_empty() => (Some(cgroup), volume, pairs),
        _ => return Err(Problem::usage(USAGE)),
    };
    let cgroup = cgroup.map(|name| path_of(name)).transpose()?;
    let (volume, _) = find(volume)?;
    let client = volume.client()?;
    let limits = match &cgroup {
        Some(cgroup) if !args.show => {
            let limits: Vec<_> = pairs.iter().map(exact).collect();
            let limits = limits.join(" ");
            limits.parse::<LimitChange>().map_err(|error| Problem::usage(in_one_line(&error.to_string())))?;
            set(client, &LimitRequest { cgroup: cgroup.to_string(), limits })?
        }
        _ => client.limits().map_err(|error| Problem::failure(error.to_string()))?,
    };
    if args.show {
        show(args.json, &limits, cgroup.as_ref())?;
    }
    Ok(())
}

const USAGE: &str = "write `watertight limit CGROUP VOLUME wbps=1M …`, or `watertight limit --show [CGROUP] VOLUME`; VOLUME is a \
                     mountpoint, a store or a volume's id";

fn set(client: &Client, request: &LimitRequest) -> Result<Limits> {
    client.limit(request).map_err(|error| match error {
        CallError::Refused(reason) => Problem::usage(reason),
        error => Problem::failure(error.to_string()),
    })
}

/// A cgroup by its path in the tree, or by its directory.
fn path_of(name: &OsStr) -> Result<CgroupPath> {
    let tree = Hierarchy::find(&Choice::Auto).ok().flatten();
    let below =
        tree.and_then(|tree| Path::new(name).strip_prefix(tree.mountpoint()).ok().map(Path::to_owned));
    let path = below.map_or_else(|| Path::new(name).to_owned(), |below| Path::new("/").join(below));
    exact(path).parse().map_err(|error: volume::LimitError| Problem::usage(in_one_line(&error.to_string())))
}

fn show(json: bool, limits: &Limits, only: Option<&CgroupPath>) -> Result<()> {
    let is_wanted = |row: &&CgroupLimits| only.is_none_or(|only| row.cgroup == only.as_str());
    let rows: Vec<CgroupLimits> = limits.limits.iter().filter(is_wanted).cloned().collect();
    if json {
        return console().print_value(&Limits { limits: rows });
    }
    for row in &rows {
        console().print(&line(row));
    }
    Ok(())
}

/// A line in the format of `io.max`, and the debt.
fn line(row: &CgroupLimits) -> String {
    let number = |limit: Option<u64>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
    let isolation = u8::from(row.sync_isolation);
    let owed = if row.owed_bytes == 0 {
        String::new()
    } else {
        format!("  ({} written ahead of it)", units::bytes(row.owed_bytes))
    };
    format!(
        "{} rbps={} wbps={} riops={} wiops={} dirty_max={} sync_isolation={isolation}{owed}",
        row.cgroup,
        number(row.rbps),
        number(row.wbps),
        number(row.riops),
        number(row.wiops),
        number(row.dirty_bytes_max)
    )
}
