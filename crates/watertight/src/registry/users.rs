//! The users whose runtime directories are read: this user's, and with `--all-users`, for root,
//! those of all.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::host::mountinfo::{self, MountTable};
use crate::host::open_dir::{Base, OpenDir};

/// Names another runtime directory.
pub const DIR_VARIABLE: &str = "WATERTIGHT_RUNTIME_DIR";
/// Where each user has a directory of the user's own, which root has made.
const USERS: &str = "/run/user";
/// The directory for users without one there.
const TMP: &str = "/tmp";
/// The prefix of its name in [`TMP`]; the user's number follows.
const PREFIX: &str = "watertight-";

/// The paths of this user's directories, of which not all need to exist. New volumes are registered
/// in the first.
pub(super) fn own_paths(uid: u32) -> Vec<PathBuf> {
    if let Some(dir) = std::env::var_os(DIR_VARIABLE) {
        let dir = PathBuf::from(dir);
        if dir.is_absolute() {
            return vec![dir];
        }
        // Found also after this process has left its working directory, which may be gone then.
        return vec![fs::canonicalize(&dir).or_else(|_| std::path::absolute(&dir)).unwrap_or(dir)];
    }
    if uid == 0 {
        return vec!["/run/watertight".into()];
    }
    paths_of(uid, std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

/// The paths of a user other than root; `set` is the value of `$XDG_RUNTIME_DIR`.
fn paths_of(uid: u32, set: Option<PathBuf>) -> Vec<PathBuf> {
    // After su(1) the variable may be another user's.
    let is_own =
        |dir: &PathBuf| fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir() && meta.uid() == uid);
    let set = set.filter(|dir| dir.is_absolute() && is_own(dir)).map(|dir| dir.join("watertight"));
    // A session's volumes are looked for outside of it, too: by cron, after su(1).
    let session = Path::new(USERS).join(uid.to_string()).join("watertight");
    let tmp = Path::new(TMP).join(format!("{PREFIX}{uid}"));
    let mut paths: Vec<PathBuf> = set.clone().into_iter().chain([tmp]).collect();
    if set.as_ref() != Some(&session) {
        paths.push(session);
    }
    paths
}

/// Other users' directories that can be used; in each place of each user there is one at most.
pub(super) fn foreign_dirs(own_uid: u32) -> Vec<(PathBuf, u32, OpenDir)> {
    let users = users_of(Path::new(USERS), |name| name.to_str().and_then(number));
    let mounting: BTreeSet<u32> = MountTable::read()
        .iter()
        .filter(|mount| mountinfo::is_ours(mount))
        .filter_map(|mount| mount.owner)
        .collect();
    // Not by the names in /tmp alone: any user can make more of them than are read.
    let mut in_tmp = users_of(Path::new(TMP), in_tmp);
    in_tmp.extend(users.iter().chain(&mounting));
    let in_users =
        users.iter().map(|&uid| (Path::new(USERS).join(uid.to_string()), "watertight".to_owned(), uid));
    let in_tmp = in_tmp.iter().map(|&uid| (PathBuf::from(TMP), format!("{PREFIX}{uid}"), uid));
    let all = in_users.chain(in_tmp).filter(|&(_, _, uid)| uid != own_uid);
    all.filter_map(|(parent, name, uid)| {
        let path = parent.join(&name);
        let open = OpenDir::foreign(&parent, name.as_ref(), uid);
        let open = open.inspect_err(|reason| tracing::warn!(reason, "ignoring a runtime directory"));
        open.ok().flatten().map(|open| (path, uid, open))
    })
    .collect()
}

/// Calls `see` with a path to each directory in which other users' directories can appear.
pub(super) fn for_each_base(mut see: impl FnMut(&Path)) {
    let base = |path: &Path| Base::open(path).ok().flatten();
    for path in [USERS, TMP] {
        if let Some(base) = base(Path::new(path)) {
            see(&base.by_descriptor());
        }
    }
    for uid in users_of(Path::new(USERS), |name| name.to_str().and_then(number)) {
        if let Some(base) = base(&Path::new(USERS).join(uid.to_string())) {
            see(&base.by_descriptor());
        }
    }
}

fn users_of(parent: &Path, user: impl Fn(&OsStr) -> Option<u32>) -> BTreeSet<u32> {
    let base = Base::open(parent).ok().flatten();
    base.map(|base| base.names()).into_iter().flatten().filter_map(|name| user(&name)).collect()
}

fn in_tmp(name: &OsStr) -> Option<u32> {
    number(name.to_str()?.strip_prefix(PREFIX)?)
}

/// A user's number as it is written, in one way only.
fn number(text: &str) -> Option<u32> {
    text.parse().ok().filter(|uid: &u32| uid.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_of_the_session_comes_first_if_it_is_the_users_own() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let in_tmp = |uid: u32| Path::new(TMP).join(format!("{PREFIX}{uid}"));
        let first = |uid, set: &Path| paths_of(uid, Some(set.to_owned())).swap_remove(0);
        assert_eq!(first(uid, dir.path()), dir.path().join("watertight"));
        assert_eq!(paths_of(uid, None)[0], in_tmp(uid));
        // Another user's, a link to one's own, none, and one that depends on where the process is.
        assert_eq!(first(uid + 1, dir.path()), in_tmp(uid + 1));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert_eq!(first(uid, &link), in_tmp(uid));
        assert_eq!(first(uid, &dir.path().join("none")), in_tmp(uid));
        assert_eq!(first(uid, Path::new(".")), in_tmp(uid));
    }

    #[test]
    fn users_are_written_in_one_way_only() {
        for (name, uid) in [("watertight-0", Some(0)), ("watertight-1000", Some(1000))] {
            assert_eq!(in_tmp(name.as_ref()), uid);
        }
        for name in [
            "watertight-",
            "watertight-01",
            "watertight-+1",
            "watertight--1",
            "watertight-4294967296",
            "1000",
        ] {
            assert_eq!(in_tmp(name.as_ref()), None, "{name}");
        }
    }
}
