//! A file of a mount, mapped and changed: by another process.
//!
//! A mapping's end writes what is dirty while the kernel holds the address space's lock. A server
//! in the same address space could then neither fault in memory nor get new one, and both would
//! wait for ever.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::Command;

use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};

const FILE: &str = "WATERTIGHT_TEST_MAPPED_FILE";
const SYNC: &str = "WATERTIGHT_TEST_MAPPED_SYNC";
const STORED: &str = "WATERTIGHT_TEST_MAPPED_STORED";

/// Has the test `mapping_client` of this binary change the first byte of each of the first two
/// pages, with an msync if `with_sync`.
#[track_caller]
pub fn change(path: &Path, with_sync: bool) {
    let mut client = Command::new(std::env::current_exe().unwrap());
    client.args(["--exact", "mapping_client"]).env(FILE, path);
    if with_sync {
        client.env(SYNC, "1");
    }
    let out = client.output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

/// Has it change the same bytes, call sync(2), and look while the file is still mapped whether they
/// are in the file `stored`.
#[track_caller]
pub fn change_and_sync(path: &Path, stored: &Path) {
    let mut client = Command::new(std::env::current_exe().unwrap());
    client.args(["--exact", "mapping_client"]).env(FILE, path).env(STORED, stored);
    let out = client.output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

/// The client's work; nothing unless [`change`] started it.
pub fn client() {
    let Some(path) = std::env::var_os(FILE) else { return };
    let file = File::options().read(true).write(true).open(path).unwrap();
    // SAFETY: a new shared mapping of a file of this length, at an address of the kernel's choice.
    let start = unsafe {
        mmap(
            std::ptr::null_mut(),
            8192,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            file.as_fd(),
            0,
        )
    }
    .unwrap();
    let stored = std::env::var_os(STORED);
    let byte = if std::env::var_os(SYNC).is_some() { b's' } else { b'm' };
    // SAFETY: inside the mapping, to which there is no other reference and which ends here.
    unsafe {
        start.cast::<u8>().write(byte);
        start.cast::<u8>().add(4096).write(byte);
        if byte == b's' {
            msync(start, 8192, MsyncFlags::SYNC).unwrap();
        }
        if let Some(stored) = stored {
            // Again, too: nothing reports a change to the server before a sync does.
            for byte in [byte, b'n', b'o'] {
                start.cast::<u8>().write(byte);
                start.cast::<u8>().add(4096).write(byte);
                rustix::fs::sync();
                let content = std::fs::read(&stored).unwrap();
                assert_eq!((content[0], content[4096]), (byte, byte), "not on the store after sync(2)");
            }
        }
        munmap(start, 8192).unwrap();
    }
}
