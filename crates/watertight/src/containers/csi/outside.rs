//! `csi-outside`: runs a command in a cgroup at the top of each tree, and so outside of the container
//! of the driver that starts it: on hosts without systemd, whose scopes do that elsewhere.
//!
//! A container that has the host's process ids ends with a kill of all that is in its cgroups; what
//! left them goes on. The cgroup is one for all volumes of the host, and stays.

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::host::mountinfo::MountTable;
use crate::host::pods::Pods;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// Below the root of each tree.
const NAME: &str = "watertight";
/// Where hosts have their trees mounted.
const TREES: &str = "/sys/fs/cgroup";
/// What a cgroup of version 1 needs before it takes a process.
const SETTINGS: [&str; 2] = ["cpuset.cpus", "cpuset.mems"];

/// Runs the verb: does not return but by an error.
///
/// # Errors
/// A tree has no such cgroup; the command cannot be run.
pub fn run(command: &[std::ffi::OsString]) -> Result<()> {
    for tree in trees() {
        enter(&tree).map_err(|error| {
            Problem::failure(format!(
                "cannot leave the driver's cgroup for {}: {error}",
                tree.join(NAME).shown()
            ))
        })?;
    }
    let Some((program, arguments)) = command.split_first() else {
        return Err(Problem::usage("give a command"));
    };
    let error = Command::new(program).args(arguments).exec();
    Err(Problem::failure(format!("cannot run {}: {error}", Path::new(program).shown())))
}

/// Whether this process is one of a pod: its end is that of the processes in its cgroups.
pub(super) fn is_in_pod() -> bool {
    Pods::default().of_process(std::process::id()).is_some()
}

fn trees() -> Vec<PathBuf> {
    let is_tree = |fstype: &str| fstype == "cgroup" || fstype == "cgroup2";
    let table = MountTable::read();
    let all = table.iter().filter(|mount| is_tree(&mount.fstype) && mount.mountpoint.starts_with(TREES));
    all.map(|mount| mount.mountpoint.clone()).collect()
}

fn enter(tree: &Path) -> std::io::Result<()> {
    let own = tree.join(NAME);
    match fs::create_dir(&own) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    for setting in SETTINGS {
        let (from, to) = (tree.join(setting), own.join(setting));
        // Only one tree has them.
        let Ok(now) = fs::read_to_string(&to) else { continue };
        if now.trim().is_empty() {
            fs::write(&to, fs::read(&from)?)?;
        }
    }
    let mut members = fs::OpenOptions::new().write(true).open(own.join("cgroup.procs"))?;
    members.write_all(b"0")
}
