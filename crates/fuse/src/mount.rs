//! Mounting and unmounting.
//!
//! Purpose: [`Mount::new`] puts a connection at a directory. As root it does so itself: as type
//! `fuseblk` on a small loop device where one can be had, since umount(2) and sync(2) then wait for
//! the daemon (the kernel sends DESTROY and SYNCFS for that type only), else as plain `fuse`.
//! Without root `fusermount3` does it, as plain `fuse`. [`MountKind`] says which it is and why.

mod abort;
mod enable_uring;
mod error;
mod fusermount;
#[allow(unsafe_code, reason = "two ioctl(2)s that rustix has not")]
mod loopdev;
mod mountinfo;
mod options;
mod point;
pub(crate) mod show;
mod sync_device;

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use handover::Incoming;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::protocol::init::MAX_WRITE;
pub(crate) use abort::control;
use error::open_device;

pub(crate) use enable_uring::BeforeMount;
pub use enable_uring::Uring;
pub use error::{MountError, check_device};
pub use mountinfo::MountInfo;
pub use options::{MountHandover, MountKind, MountOptions, SUBTYPE, Syncs, Wanted};
use point::check_real_mountpoint;
pub use point::{MountpointError, check_mountpoint, means_dead};
pub use show::{show, shown_clone};
pub(crate) use sync_device::SyncDevice;

/// Block size of the loop device's file system, in bytes.
const BLKSIZE: u32 = 4096;

/// Bytes that the kernel reads ahead.
pub(crate) const READAHEAD_BYTES: u32 = 1 << 20;

/// Length of the device below a mount of type `fuseblk`.
pub(crate) const DEVICE_BYTES: u64 = loopdev::BYTES;

/// A connection at a directory. Dropped before a session has ended it, it is taken away (lazily).
#[derive(Debug)]
pub struct Mount {
    fd: Option<OwnedFd>,
    mountpoint: PathBuf,
    kind: MountKind,
    info: Option<MountInfo>,
    by_fusermount: bool,
    is_gone: bool,
    uring: Option<BeforeMount>,
    served: Option<SyncDevice>,
}

impl Mount {
    /// Mounts. No request is answered there until a session serves the connection.
    ///
    /// # Errors
    /// The reason that prevents the mount.
    pub fn new(options: &MountOptions) -> Result<Self, MountError> {
        let mountpoint = if options.no_links {
            check_real_mountpoint(&options.mountpoint)?;
            options.mountpoint.clone()
        } else {
            check_mountpoint(&options.mountpoint)?
        };
        let uring = BeforeMount::new(options.uring);
        if !rustix::process::geteuid().is_root() {
            if options.wanted == Wanted::FuseBlk {
                let option = "type=fuseblk".to_owned();
                return Err(MountError::Option { option, reason: "it needs root" });
            }
            let fd = fusermount::mount(&mountpoint, options)?;
            let kind = MountKind::Fuse { reason: "mounted without root, by fusermount3".to_owned() };
            return Ok(Self::mounted(fd, mountpoint, kind, uring, true));
        }
        let fd = open_device()?;
        let (kind, served) = match options.wanted {
            Wanted::Fuse => (plain(&fd, &mountpoint, options, "`type=fuse` asks for that".to_owned())?, None),
            Wanted::FuseBlk => block(&fd, &mountpoint, options)?,
            Wanted::Auto => match block(&fd, &mountpoint, options) {
                Ok(mounted) => mounted,
                Err(error) => (plain(&fd, &mountpoint, options, error.to_string())?, None),
            },
        };
        let mut mounted = Self::mounted(fd, mountpoint, kind, uring, false);
        mounted.served = served;
        Ok(mounted)
    }

    fn mounted(
        fd: OwnedFd,
        mountpoint: PathBuf,
        kind: MountKind,
        uring: BeforeMount,
        by_fusermount: bool,
    ) -> Self {
        let info = mountinfo::topmost(&mountpoint);
        let (fd, uring) = (Some(fd), Some(uring));
        Self { fd, mountpoint, kind, info, by_fusermount, is_gone: false, uring, served: None }
    }

    /// The mount that the program before has handed over, with the kernel's description of it.
    ///
    /// # Errors
    /// When the connection was not handed over.
    pub fn take_over(
        state: &MountHandover,
        device: RawFd,
        info: MountInfo,
        incoming: &Incoming,
    ) -> io::Result<Self> {
        let (fd, mountpoint) = (Some(incoming.take(device)?), state.mountpoint.clone());
        let (kind, by_fusermount) = (state.kind(), state.by_fusermount);
        let info = Some(info);
        Ok(Self { fd, mountpoint, kind, info, by_fusermount, is_gone: false, uring: None, served: None })
    }

    /// What its process knows of it, for the next program.
    #[must_use]
    pub fn hand_over(&self) -> MountHandover {
        let (loop_device, reason) = match &self.kind {
            MountKind::FuseBlk { loop_device } => (Some(loop_device.clone()), None),
            MountKind::Fuse { reason } => (None, Some(reason.clone())),
        };
        let mountpoint = self.mountpoint.clone();
        MountHandover { mountpoint, loop_device, reason, by_fusermount: self.by_fusermount }
    }

    /// Where.
    #[must_use]
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Its kind.
    #[must_use]
    pub fn kind(&self) -> &MountKind {
        &self.kind
    }

    /// The kernel's description of it.
    #[must_use]
    pub fn info(&self) -> Option<&MountInfo> {
        self.info.as_ref()
    }

    /// Whether it is still there.
    #[must_use]
    pub fn is_mounted(&self) -> bool {
        !self.is_gone && self.info.as_ref().is_some_and(MountInfo::is_present)
    }

    /// Unmounts. Without `DETACH` it fails with [`MountError::Busy`] while a process uses it; for
    /// type `fuseblk` it returns after DESTROY was answered.
    ///
    /// # Errors
    /// umount(2)'s or fusermount3's.
    pub fn unmount(&self, flags: UnmountFlags) -> Result<(), MountError> {
        unmount(&self.mountpoint, flags, self.by_fusermount)
    }

    /// Cuts the connection: every request fails, the session's readers end. The mount stays.
    ///
    /// # Errors
    /// When neither the control file system nor umount(2) lets it be done.
    pub fn abort(&self) -> io::Result<()> {
        if let Some(info) = &self.info
            && info.abort().is_ok()
        {
            return Ok(());
        }
        // Cuts the connection first, and unmounts then, which only succeeds if no process uses it.
        match rustix::mount::unmount(&self.mountpoint, UnmountFlags::FORCE) {
            Ok(()) | Err(Errno::BUSY) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Hands the connection's descriptor out, once, to the session that serves it.
    ///
    /// # Errors
    /// The second time.
    pub fn take_fd(&mut self) -> io::Result<OwnedFd> {
        self.fd.take().ok_or_else(|| io::Error::other("this mount has a session already"))
    }

    /// Hands out what was done for io_uring; to be dropped when INIT was answered.
    pub(crate) fn take_uring(&mut self) -> Option<BeforeMount> {
        self.uring.take()
    }

    /// Hands out the thread that serves the device below the mount, where the daemon does.
    pub(crate) fn take_served(&mut self) -> Option<SyncDevice> {
        self.served.take()
    }

    /// The kernel has unmounted it.
    pub(crate) fn mark_unmounted(&mut self) {
        self.is_gone = true;
    }

    /// Sets the read-ahead, which can only be set from outside; failure costs speed only.
    pub(crate) fn tune(&self) {
        let Some(info) = &self.info else { return };
        let file = info.bdi_dir(matches!(self.kind, MountKind::FuseBlk { .. })).join("read_ahead_kb");
        if let Err(error) = std::fs::write(&file, (READAHEAD_BYTES / 1024).to_string()) {
            tracing::debug!(file = %file.display(), %error, "cannot set the read-ahead");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted()
            && let Err(error) = self.unmount(UnmountFlags::DETACH)
        {
            tracing::warn!(%error, "a mount is left behind");
        }
    }
}

/// Unmounts a directory, with or without `fusermount3`.
///
/// # Errors
/// umount(2)'s or fusermount3's.
pub fn unmount(mountpoint: &Path, flags: UnmountFlags, by_fusermount: bool) -> Result<(), MountError> {
    if by_fusermount && !rustix::process::geteuid().is_root() {
        return fusermount::unmount(mountpoint, flags.contains(UnmountFlags::DETACH));
    }
    rustix::mount::unmount(mountpoint, flags).map_err(|error| match error {
        Errno::BUSY => MountError::Busy { mountpoint: mountpoint.to_owned() },
        Errno::PERM => MountError::Permission { mountpoint: mountpoint.to_owned() },
        error => MountError::Unmount { mountpoint: mountpoint.to_owned(), source: error.into() },
    })
}

fn plain(
    fd: &OwnedFd,
    mountpoint: &Path,
    options: &MountOptions,
    reason: String,
) -> Result<MountKind, MountError> {
    let data = data_of(fd, options, None)?;
    mount("fuse", OsStr::new(&options.fsname), mountpoint, options, data)?;
    Ok(MountKind::Fuse { reason })
}

fn block(
    fd: &OwnedFd,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<(MountKind, Option<SyncDevice>), MountError> {
    let (served, device) = match serve_device(options) {
        Some((served, device)) => (Some(served), Ok(device)),
        None => (None, loopdev::LoopDevice::new(&options.fsname)),
    };
    let device = device.map_err(|reason| MountError::NoLoopDevice { reason })?;
    let data = data_of(fd, options, Some(BLKSIZE))?;
    mount("fuseblk", device.path().as_os_str(), mountpoint, options, data)?;
    Ok((MountKind::FuseBlk { loop_device: device.path().to_owned() }, served))
}

/// A device that reports syncs, where the kernel sends no SYNCFS. Without it the mount's first sync
/// is not seen, and the log says so then.
fn serve_device(options: &MountOptions) -> Option<(SyncDevice, loopdev::LoopDevice)> {
    if options.syncs == Syncs::Auto {
        if !is_without_syncfs() {
            return None;
        }
        // ORDERING: Acquire, pairs with `will_serve`, which the process's first thread calls.
        if !IS_IO_FLUSHER.load(Ordering::Acquire) {
            // The mount's first sync is not seen then; the log says so where it matters.
            tracing::debug!(
                "no device that reports syncs: this process may have to wait for its own pages (PR_SET_IO_FLUSHER needs CAP_SYS_RESOURCE)"
            );
            return None;
        }
    }
    let made = SyncDevice::new(&options.fsname, loopdev::BYTES, options.syncs == Syncs::ByPage)
        .map_err(|error| error.to_string())
        .and_then(|(served, file)| Ok((served, loopdev::LoopDevice::over(file.as_fd())?)));
    made.inspect_err(|error| tracing::debug!(error, "no device that reports syncs")).ok()
}

/// Whether the kernel is older than those that send SYNCFS. Its actual behaviour is seen later;
/// this only says what to prepare.
#[must_use]
pub fn is_without_syncfs() -> bool {
    const FIRST: (u32, u32) = (6, 18);
    let name = rustix::system::uname();
    let mut numbers = name.release().to_str().unwrap_or_default().split(['.', '-', '+']).map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) < FIRST,
        _ => false,
    }
}

/// Whether [`will_serve`] made this process an IO flusher. The kernel answers that question only to
/// a thread with CAP_SYS_RESOURCE, which a mount process has given up by the time it mounts.
static IS_IO_FLUSHER: AtomicBool = AtomicBool::new(false);

/// To be called by a process that will serve a mount as root, before it has other threads. On
/// kernels where a page of the mount's device reports syncs, this process writes that page for the
/// kernel, and so must never wait for memory that is free only once the page is written. Without
/// this call, no such page is used.
pub fn will_serve() {
    if !is_without_syncfs() || !rustix::process::geteuid().is_root() {
        return;
    }
    match rustix::process::configure_io_flusher_behavior(true) {
        // ORDERING: Release, for `serve_device`.
        Ok(()) => IS_IO_FLUSHER.store(true, Ordering::Release),
        Err(error) => {
            tracing::debug!(%error, "cannot mark this process as one that cleans memory (PR_SET_IO_FLUSHER)")
        }
    }
}

fn data_of(fd: &OwnedFd, options: &MountOptions, blksize: Option<u32>) -> Result<CString, MountError> {
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let mut data = format!(
        "fd={},rootmode=40000,user_id={uid},group_id={gid},default_permissions,max_read={MAX_WRITE}",
        fd.as_raw_fd()
    );
    if options.allow_other.unwrap_or(true) {
        data.push_str(",allow_other");
    }
    if let Some(blksize) = blksize {
        data.push_str(&format!(",blksize={blksize}"));
    }
    c_string(OsStr::new(&data))
}

fn mount(
    kind: &str,
    source: &OsStr,
    mountpoint: &Path,
    options: &MountOptions,
    data: CString,
) -> Result<(), MountError> {
    let fstype = format!("{kind}.{SUBTYPE}");
    let source = c_string(source)?;
    // From here on, nobody can put something else in the directory's place.
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = openat2(CWD, mountpoint, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    let mounted = dir.and_then(|dir| {
        let at = format!("/proc/self/fd/{}", dir.as_raw_fd());
        rustix::mount::mount(source, at, fstype.as_str(), options.flags, Some(data.as_c_str()))
    });
    mounted.map_err(|error| match error {
        Errno::PERM | Errno::ACCESS => MountError::Permission { mountpoint: mountpoint.to_owned() },
        Errno::NODEV => MountError::NoFileSystem { fstype: kind.to_owned() },
        error => MountError::Mount { fstype, mountpoint: mountpoint.to_owned(), source: error.into() },
    })
}

fn c_string(text: &OsStr) -> Result<CString, MountError> {
    CString::new(text.as_bytes()).map_err(|_| MountError::Option {
        option: OsString::from(text).to_string_lossy().into_owned(),
        reason: "it contains a NUL",
    })
}
