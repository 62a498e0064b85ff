//! A small loop device that a mount of type `fuseblk` can stand on.
//!
//! Its memory is a file without a name, or one that the daemon serves (module `sync_device`); the
//! kernel takes the device apart when its last user, the mounted file system, is gone.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{MemfdFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{self, Opcode, Setter};
use zerocopy::{FromZeros, Immutable, IntoBytes};

/// Of all loop devices.
const LOOP_MAJOR: u32 = 7;

/// Length of the device.
pub(super) const BYTES: u64 = 1 << 20;
/// How often another process may take the device away between asking for one and using it.
const ATTEMPTS: usize = 64;

const LOOP_CTL_GET_FREE: Opcode = 0x4C82;
const LOOP_CONFIGURE: Opcode = 0x4C0A;
const LOOP_GET_STATUS64: Opcode = 0x4C05;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64` of `linux/loop.h`.
#[derive(FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    sizelimit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config` of `linux/loop.h`.
#[derive(FromZeros, IntoBytes, Immutable)]
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<LoopInfo>() == 232 && size_of::<LoopConfig>() == 304);

/// `LOOP_CTL_GET_FREE`: the number of a device that is not in use.
struct GetFree;

// SAFETY: the request takes no argument and returns a number.
unsafe impl ioctl::Ioctl for GetFree {
    type Output = libc::c_int;
    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        LOOP_CTL_GET_FREE
    }

    fn as_ptr(&mut self) -> *mut libc::c_void {
        std::ptr::null_mut()
    }

    // SAFETY: whatever is given: the number is the call's own result, and the pointer, a null one,
    // is not used.
    unsafe fn output_from_ptr(
        out: ioctl::IoctlOutput,
        _: *mut libc::c_void,
    ) -> rustix::io::Result<Self::Output> {
        Ok(out)
    }
}

/// The number of the file system without a device that the file of a loop device is in, by which FUSE
/// knows a connection; none for other files. The device is what a mount says of itself: its number,
/// and a path, which the mount's user may have made up.
pub(super) fn backing_device((major, minor): (u32, u32), path: &Path) -> Option<u64> {
    if major != LOOP_MAJOR {
        return None;
    }
    let open = rustix::fs::open(
        path,
        OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK,
        Mode::empty(),
    )
    .ok()?;
    if rustix::fs::fstat(&open).ok()?.st_rdev != rustix::fs::makedev(major, minor) {
        return None;
    }
    // SAFETY: LOOP_GET_STATUS64 fills a `struct loop_info64`, which `LoopInfo` is field by field.
    let info =
        unsafe { ioctl::ioctl(open.as_fd(), ioctl::Getter::<LOOP_GET_STATUS64, LoopInfo>::new()) }.ok()?;
    (rustix::fs::major(info.device) == 0).then(|| rustix::fs::minor(info.device).into())
}

/// A loop device in use; it stays as long as this or a file system on it does.
#[derive(Debug)]
pub(super) struct LoopDevice {
    _open: File,
    path: PathBuf,
}

impl LoopDevice {
    /// Makes one whose file is called `label`: tools show it for the device. The error says, for a
    /// person, why there is none.
    pub(super) fn new(label: &str) -> Result<Self, String> {
        let backing = rustix::fs::memfd_create(memfd_name(label), MemfdFlags::CLOEXEC)
            .and_then(|fd| rustix::fs::ftruncate(&fd, BYTES).map(|()| fd))
            .map_err(|error| format!("no memory file: {}", io::Error::from(error)))?;
        Self::over(backing.as_fd())
    }

    /// Makes one over this file.
    pub(super) fn over(backing: BorrowedFd<'_>) -> Result<Self, String> {
        let control = OpenOptions::new()
            .read(true)
            .write(true)
            .open("/dev/loop-control")
            .map_err(|error| format!("/dev/loop-control: {error}"))?;
        for _ in 0..ATTEMPTS {
            // SAFETY: see `GetFree`.
            let number = unsafe { ioctl::ioctl(control.as_fd(), GetFree) }
                .map_err(|error| format!("no free loop device: {}", io::Error::from(error)))?;
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = OpenOptions::new()
                .read(true)
                .write(true)
                .open(&path)
                .map_err(|error| format!("{}: {error}", path.display()))?;
            match configure(&device, backing.as_raw_fd()) {
                Ok(()) => {
                    // A kernel that lets no process write below a mount (BLK_DEV_WRITE_MOUNTED=n)
                    // mounts only where none can. The device stays as long as a process has it
                    // open.
                    let open = File::open(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                    return Ok(Self { _open: open, path });
                }
                // Another process was faster.
                Err(Errno::BUSY) => {}
                Err(error) => {
                    return Err(format!("{}: LOOP_CONFIGURE: {}", path.display(), io::Error::from(error)));
                }
            }
        }
        Err(format!("{ATTEMPTS} free loop devices were taken by others"))
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// A name that memfd_create(2) takes.
fn memfd_name(label: &str) -> String {
    /// The longest one, in bytes.
    const LONGEST: usize = 249;
    let mut name = label.replace('\0', " ");
    let mut len = name.len().min(LONGEST);
    while !name.is_char_boundary(len) {
        len -= 1;
    }
    name.truncate(len);
    name
}

fn configure(device: &File, backing: i32) -> Result<(), Errno> {
    let mut config = LoopConfig::new_zeroed();
    config.fd = u32::try_from(backing).map_err(|_| Errno::BADF)?;
    config.info.flags = LO_FLAGS_AUTOCLEAR;
    let name = b"watertight";
    config.info.file_name[..name.len()].copy_from_slice(name);
    // SAFETY: LOOP_CONFIGURE reads a `struct loop_config`, which `LoopConfig` is field by field.
    unsafe { ioctl::ioctl(device.as_fd(), Setter::<LOOP_CONFIGURE, LoopConfig>::new(config)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_label_becomes_a_name() {
        assert_eq!(memfd_name("dir:/srv/data"), "dir:/srv/data");
        assert_eq!(memfd_name("a\0b"), "a b");
        let long = memfd_name(&"\u{e9}".repeat(200));
        assert_eq!(long.len(), 248);
        assert!(rustix::fs::memfd_create(long, MemfdFlags::CLOEXEC).is_ok());
    }
}
