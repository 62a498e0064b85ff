//! Checks whether a directory will do as a mountpoint.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxFlags};
use rustix::io::Errno;

/// Why a directory will not do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountpointError {
    /// It is not there.
    #[error("mountpoint {} does not exist", .0.display())]
    Missing(PathBuf),
    /// It is not a directory.
    #[error("mountpoint {} is not a directory", .0.display())]
    NotDirectory(PathBuf),
    /// A symbolic link leads elsewhere.
    #[error("mountpoint {} leads to {}, by a symbolic link", .0.display(), .1.display())]
    Link(PathBuf, PathBuf),
    /// The mount would hide its entries.
    #[error("mountpoint {} is not empty", .0.display())]
    NotEmpty(PathBuf),
    /// Something is mounted there.
    #[error("something is mounted on {} already", .0.display())]
    AlreadyMounted(PathBuf),
    /// The mount there has lost its server.
    #[error("{} is a mount whose server is gone; unmount it first (umount -l {})", .0.display(), .0.display())]
    Dead(PathBuf),
    /// It cannot be examined.
    #[error("cannot look at mountpoint {}: {source}", .path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Checks a mountpoint, and says its absolute path without symbolic links.
///
/// # Errors
/// The reason why it will not do.
pub fn check_mountpoint(path: &Path) -> Result<PathBuf, MountpointError> {
    let failed = |errno: Errno| match errno {
        Errno::NOENT => MountpointError::Missing(path.to_owned()),
        Errno::NOTDIR => MountpointError::NotDirectory(path.to_owned()),
        errno if means_dead(errno) => MountpointError::Dead(path.to_owned()),
        errno => MountpointError::Unreadable { path: path.to_owned(), source: errno.into() },
    };
    // The mount that may be there is not asked: its server may hang.
    let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).map_err(failed)?;
    if is_mount_root(&found) {
        let path = path.to_owned();
        return Err(if is_dead(&path) {
            MountpointError::Dead(path)
        } else {
            MountpointError::AlreadyMounted(path)
        });
    }
    if rustix::fs::FileType::from_raw_mode(found.stx_mode.into()) != rustix::fs::FileType::Directory {
        return Err(MountpointError::NotDirectory(path.to_owned()));
    }
    let unreadable = |source| MountpointError::Unreadable { path: path.to_owned(), source };
    if std::fs::read_dir(path).map_err(unreadable)?.next().is_some() {
        return Err(MountpointError::NotEmpty(path.to_owned()));
    }
    path.canonicalize().map_err(unreadable)
}

/// As [`check_mountpoint`], of a path that is its real one already.
///
/// # Errors
/// As there; a symbolic link is on its way.
pub(super) fn check_real_mountpoint(path: &Path) -> Result<(), MountpointError> {
    let real = check_mountpoint(path)?;
    if real == path { Ok(()) } else { Err(MountpointError::Link(path.to_owned(), real)) }
}

fn is_mount_root(found: &rustix::fs::Statx) -> bool {
    let known = rustix::fs::StatxAttributes::from_bits_retain(found.stx_attributes_mask.bits());
    known.contains(rustix::fs::StatxAttributes::MOUNT_ROOT)
        && found.stx_attributes.contains(rustix::fs::StatxAttributes::MOUNT_ROOT)
}

/// Whether the server of the mount there is gone: only a request shows that. A server that hangs is
/// not waited for; the thread that asked it is left behind then.
fn is_dead(path: &Path) -> bool {
    const PATIENCE: Duration = Duration::from_millis(500);
    let (send, answer) = channel();
    let path = path.to_owned();
    let asking = std::thread::Builder::new().stack_size(64 << 10).spawn(move || {
        // Failure: the caller does not wait any more.
        let _late = send.send(rustix::fs::statfs(&path).err());
    });
    asking.is_ok() && answer.recv_timeout(PATIENCE).is_ok_and(|errno| errno.is_some_and(means_dead))
}

/// Whether a call on a mount that has ended with this error says that its server is gone.
#[must_use]
pub const fn means_dead(errno: Errno) -> bool {
    // Refused: the server went before it had answered INIT (7.3 and newer). Aborted or cancelled: the
    // question came while the kernel was taking the dead server's side apart, which it does to io_uring
    // after the process has been reaped.
    matches!(errno, Errno::NOTCONN | Errno::CONNREFUSED | Errno::CONNABORTED | Errno::CANCELED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let empty = dir.path().join("empty");
        std::fs::create_dir(&empty).unwrap();
        assert_eq!(check_mountpoint(&empty).unwrap(), empty.canonicalize().unwrap());

        let missing = dir.path().join("missing");
        assert!(matches!(check_mountpoint(&missing), Err(MountpointError::Missing(path)) if path == missing));

        let file = dir.path().join("file");
        std::fs::write(&file, "x").unwrap();
        assert!(matches!(check_mountpoint(&file), Err(MountpointError::NotDirectory(_))));
        assert!(matches!(check_mountpoint(&file.join("x")), Err(MountpointError::NotDirectory(_))));

        let error = check_mountpoint(dir.path()).unwrap_err();
        assert!(matches!(error, MountpointError::NotEmpty(_)));
        assert!(error.to_string().contains(&dir.path().display().to_string()), "{error}");

        assert!(matches!(check_mountpoint(Path::new("/proc")), Err(MountpointError::AlreadyMounted(_))));
    }

    #[test]
    fn a_symbolic_link_leads_to_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        std::fs::create_dir(&real).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("link")).unwrap();
        let found = check_mountpoint(&dir.path().join("link")).unwrap();
        let real = real.canonicalize().unwrap();
        assert_eq!(found, real);
        assert!(check_real_mountpoint(&real).is_ok());
        let link = real.with_file_name("link");
        assert!(matches!(check_real_mountpoint(&link), Err(MountpointError::Link(_, to)) if to == real));
    }
}
