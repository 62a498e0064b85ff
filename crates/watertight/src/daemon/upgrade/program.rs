//! The file of the new program, opened.
//!
//! The path is the caller's, who is root or the mount's owner; the mount process executes the file
//! as its own user. So nobody but root and that user may have written the file, or chosen which
//! file the path leads to:
//!
//! | the process is of | the file, and each directory above it, belongs to | and is written by |
//! |---|---|---|
//! | root | root | its owner alone |
//! | another user | root or that user | its owner alone |
//!
//! A group counts as others, and so does an access list, which shows as rights of the group. A
//! sticky directory such as `/tmp` may be above, but not right above the file: in it others may not
//! rename a directory of root's, but may make a link to a file of root's.
//!
//! The path is followed one name after the other from the root directory, without symbolic links,
//! and by descriptors: what is looked at is what is executed, whatever is renamed meanwhile. Nothing
//! on it is of a FUSE file system, whose server says itself who owns its files, and may be this
//! process: execve(2) would wait for requests that it holds back.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, StatxFlags, openat, statx};

use crate::host::open_dir::fstype;
use crate::term::shown::Show as _;

const STICKY: u32 = 0o1000;
const BY_OTHERS: u32 = 0o022;

/// What is known of a file or directory on the path.
#[derive(Debug, Clone, Copy)]
struct Meta {
    owner: u32,
    mode: u32,
}

/// Opens the program at this path.
///
/// # Errors
/// When it is no file that could be one, or others may have had a hand in it.
pub(crate) fn open(path: &Path) -> Result<File, String> {
    open_as(path, rustix::process::geteuid().as_raw()).map_err(|why| format!("the new program {why}"))
}

/// As [`open`], for a process of this user.
fn open_as(path: &Path, user: u32) -> Result<File, String> {
    let shown = path.shown();
    let mut names = names(path).ok_or_else(|| {
        format!("{shown} must be given by an absolute path without links, `.` and `..`: see realpath(1)")
    })?;
    let last = names.pop().ok_or_else(|| format!("{shown} is not a file"))?;
    let mut here = PathBuf::from("/");
    let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut dir =
        openat(CWD, &here, directory, Mode::empty()).map_err(|error| format!("{shown}: {error}"))?;
    let mut is_shared = check_directory(&dir, user).map_err(|why| inside(path, &here, &why))?;
    for name in names {
        here.push(name);
        dir = openat(&dir, name, directory, Mode::empty())
            .map_err(|error| format!("{shown} cannot be opened: {}: {error}", here.shown()))?;
        is_shared = check_directory(&dir, user).map_err(|why| inside(path, &here, &why))?;
    }
    if is_shared {
        return Err(inside(path, &here, "in which other users can make files"));
    }
    // A device or a FIFO is not opened.
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&dir, last, flags, Mode::empty())
        .map_err(|error| format!("{shown} cannot be opened: {error}"))?;
    let (meta, kind) = look(&file).map_err(|why| format!("{shown} {why}"))?;
    if kind != FileType::RegularFile {
        return Err(format!("{shown} is not a file"));
    }
    check_owner(meta, user).map_err(|why| format!("{shown} {why}"))?;
    if meta.mode & BY_OTHERS != 0 {
        return Err(format!("{shown} can be written by other users: `chmod go-w` takes that away"));
    }
    OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
        .open(format!("/proc/self/fd/{}", file.as_raw_fd()))
        .map_err(|error| format!("{shown} cannot be opened: {error}"))
}

/// The names of an absolute path, in order; none if it is another one.
fn names(path: &Path) -> Option<Vec<&OsStr>> {
    let mut components = path.components();
    let is_absolute = components.next() == Some(Component::RootDir);
    let name = |component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    };
    is_absolute.then(|| components.map(name).collect())?
}

fn inside(path: &Path, dir: &Path, why: &str) -> String {
    format!("{} lies in {}, {why}", path.shown(), dir.shown())
}

/// Says whether others can make files in the directory, where they cannot rename what is there.
fn check_directory(dir: &OwnedFd, user: u32) -> Result<bool, String> {
    let (meta, _) = look(dir).map_err(|why| format!("which {why}"))?;
    check_owner(meta, user).map_err(|why| format!("which {why}"))?;
    let is_shared = meta.mode & BY_OTHERS != 0;
    if is_shared && meta.mode & STICKY == 0 {
        return Err("which can be written by other users: `chmod go-w` takes that away".to_owned());
    }
    Ok(is_shared)
}

fn check_owner(meta: Meta, user: u32) -> Result<(), String> {
    match meta.owner {
        owner if owner == 0 || owner == user => Ok(()),
        owner if user == 0 => Err(format!("belongs to user {owner}: it must be root's")),
        owner => Err(format!("belongs to user {owner}: it must be root's or user {user}'s")),
    }
}

/// Looks at what a descriptor leads to, without asking a server.
fn look(fd: &OwnedFd) -> Result<(Meta, FileType), String> {
    match fstype(fd) {
        Some(fstype) if fstype.starts_with("fuse") => {
            return Err(format!("is on a file system of type {}: copy it to another one", fstype.shown()));
        }
        Some(_) => {}
        None => return Err("is on a mount that is not in /proc/self/mountinfo".to_owned()),
    }
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let meta = statx(fd, "", how, StatxFlags::TYPE | StatxFlags::MODE | StatxFlags::UID)
        .map_err(|error| format!("cannot be looked at: {error}"))?;
    let mode = u32::from(meta.stx_mode);
    Ok((Meta { owner: meta.stx_uid, mode }, FileType::from_raw_mode(mode)))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    struct Tree(tempfile::TempDir);

    impl Tree {
        /// A directory of this user's, in one that all may write to, with a file `program`.
        fn new() -> Self {
            let tree = Self(tempfile::Builder::new().permissions(mode(0o755)).tempdir().unwrap());
            fs::write(tree.at("program"), "").unwrap();
            tree.set("program", 0o755);
            tree
        }

        fn at(&self, name: &str) -> PathBuf {
            fs::canonicalize(self.0.path()).unwrap().join(name)
        }

        fn set(&self, name: &str, bits: u32) {
            fs::set_permissions(self.at(name), mode(bits)).unwrap();
        }
    }

    fn mode(bits: u32) -> fs::Permissions {
        fs::Permissions::from_mode(bits)
    }

    #[track_caller]
    fn refused(path: &Path, why: &str) {
        let error = open(path).unwrap_err();
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn a_program_that_others_can_write_is_not_opened() {
        let tree = Tree::new();
        let program = tree.at("program");
        assert_eq!(open(&program).unwrap().metadata().unwrap().len(), 0);
        for bits in [0o775, 0o757, 0o777] {
            tree.set("program", bits);
            refused(&program, "can be written by other users");
        }
        tree.set("program", 0o755);
        for (bits, why) in [
            (0o775, "which can be written by other users"),
            (0o777, "which can be written by other users"),
            (0o1777, "in which other users can make files"),
        ] {
            tree.set("", bits);
            refused(&program, why);
        }
        // What is in a sticky directory is its owner's, if it is a directory.
        fs::create_dir(tree.at("dir")).unwrap();
        tree.set("dir", 0o755);
        fs::rename(&program, tree.at("dir/program")).unwrap();
        open(&tree.at("dir/program")).unwrap();
    }

    #[test]
    fn a_path_that_leads_elsewhere_is_not_followed() {
        let tree = Tree::new();
        symlink("program", tree.at("link")).unwrap();
        symlink(".", tree.at("here")).unwrap();
        rustix::fs::mknodat(CWD, tree.at("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        refused(&tree.at("link"), "is not a file");
        refused(&tree.at("here/program"), "cannot be opened");
        // No writer of it is waited for.
        refused(&tree.at("fifo"), "is not a file");
        fs::create_dir(tree.at("dir")).unwrap();
        refused(&tree.at("dir"), "is not a file");
        refused(&tree.at("none"), "cannot be opened");
        refused(&tree.at("x/../program"), "without links");
        refused(Path::new("program"), "must be given by an absolute path");
        refused(Path::new("/"), "is not a file");
    }

    #[test]
    fn a_program_is_roots_or_the_process_users() {
        let tree = Tree::new();
        let (program, other) = (tree.at("program"), 12345);
        if chown(&program, Some(other), None).is_err() {
            // Not root: no one else has anything to do with this user's files.
            let error = open_as(&program, other).unwrap_err();
            assert!(error.contains("it must be root's or user 12345's"), "{error}");
            return;
        }
        refused(&program, "belongs to user 12345: it must be root's");
        open_as(&program, other).unwrap();
        open_as(&program, other + 1).unwrap_err();
        chown(&program, Some(0), None).unwrap();
        open_as(&program, other).unwrap();
        chown(tree.at(""), Some(other), None).unwrap();
        refused(&program, "which belongs to user 12345");
        open_as(&program, other).unwrap();
        open_as(&program, other + 1).unwrap_err();
    }
}
