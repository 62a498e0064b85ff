//! Handles that programs keep (`name_to_handle_at`, `open_by_handle_at`), as an NFS server does.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Mounted, Setup, skipped, umount};
use rustix::io::Errno;
use store::Store;
use volume::Volume;
use watertight_fuse::Detach;

/// `struct file_handle` with room for any.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handle {
    len: u32,
    kind: i32,
    bytes: [u8; 128],
}

impl Handle {
    fn of(path: &Path) -> Self {
        let mut handle = Self { len: 128, kind: 0, bytes: [0; 128] };
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        let mut mount = 0_i32;
        // SAFETY: `handle` has the layout of `struct file_handle` with the 128 bytes that `len`
        // announces; all pointers are valid through the call.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                libc::AT_FDCWD,
                path.as_ptr(),
                &raw mut handle,
                &raw mut mount,
                0,
            )
        };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        handle
    }

    /// Opens it in the file system that `mount` is in.
    fn open(mut self, mount: &File, flags: i32) -> Result<File, Errno> {
        // SAFETY: as in `of`; the descriptor that comes back belongs to nothing else.
        unsafe {
            let fd = libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                &raw mut self,
                flags | libc::O_CLOEXEC,
            );
            match i32::try_from(fd) {
                Ok(fd) if fd >= 0 => Ok(File::from_raw_fd(fd)),
                _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap()),
            }
        }
    }

    fn read(self, mount: &File) -> Result<String, Errno> {
        let mut text = String::new();
        self.open(mount, libc::O_RDONLY)?.read_to_string(&mut text).unwrap();
        Ok(text)
    }

    fn names(self, mount: &File) -> Result<Vec<String>, Errno> {
        let dir = self.open(mount, libc::O_RDONLY | libc::O_DIRECTORY)?;
        let listed = fs::read_dir(format!("/proc/self/fd/{}", dir.as_raw_fd())).unwrap();
        Ok(listed.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect())
    }
}

fn drop_caches() {
    fs::write("/proc/sys/vm/drop_caches", "2").unwrap();
}

fn can_open_by_handle() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skipped("only root may open by handle");
    }
    is_root
}

fn memory() -> Setup {
    Setup { wrap: Box::new(|_| store::open("mem:").unwrap()), ..Setup::default() }
}

/// A volume over the store of another that has ended.
fn again(mounted: &mut Mounted) -> Mounted {
    umount(&mounted.path());
    mounted.ended();
    let spec = format!("dir:{}", mounted.store_path().display());
    let wrap = Box::new(move |_: Arc<dyn Store>| store::open(&spec).unwrap());
    Setup { wrap, ..Setup::default() }.mount().unwrap()
}

/// Files and directories at three depths, and their handles.
fn planted(mnt: &Path) -> (Vec<(String, Handle)>, Handle) {
    fs::create_dir_all(mnt.join("a/b/c")).unwrap();
    let files = ["one", "a/two", "a/b/c/three"].map(|name| {
        fs::write(mnt.join(name), name).unwrap();
        (name.to_owned(), Handle::of(&mnt.join(name)))
    });
    (files.to_vec(), Handle::of(&mnt.join("a/b")))
}

#[test]
fn handles_survive_renames_and_dropped_caches() {
    if !can_open_by_handle() {
        return;
    }
    for setup in [Setup::default(), memory()] {
        let Some(mounted) = setup.mount() else { return };
        let mnt = mounted.path();
        let (files, dir) = planted(&mnt);
        let root = File::open(&mnt).unwrap();
        for step in ["as it was", "renamed", "caches dropped"] {
            match step {
                "renamed" => {
                    fs::rename(mnt.join("a/b"), mnt.join("elsewhere")).unwrap();
                    fs::rename(mnt.join("one"), mnt.join("elsewhere/uno")).unwrap();
                }
                "caches dropped" => drop_caches(),
                _ => {}
            }
            for (text, handle) in &files {
                assert_eq!(handle.read(&root).as_ref(), Ok(text), "{step}");
            }
            assert!(dir.names(&root).unwrap().contains(&"c".to_owned()), "{step}");
        }
        // Written by handle, read by name.
        let mut file = files[2].1.open(&root, libc::O_WRONLY | libc::O_APPEND).unwrap();
        file.write_all(b" and more").unwrap();
        drop(file);
        assert_eq!(common::text(&mnt.join("elsewhere/c/three")), "a/b/c/three and more");
        drop(root);
        mounted.unmount();
    }
}

#[test]
fn handles_survive_a_remount_and_lead_nowhere_else() {
    if !can_open_by_handle() {
        return;
    }
    let Some(mut first) = Setup::default().mount() else { return };
    let (files, dir) = planted(&first.path());
    fs::write(first.path().join("gone"), "gone").unwrap();
    let gone = Handle::of(&first.path().join("gone"));
    fs::remove_file(first.path().join("gone")).unwrap();
    // Beside the store, in the same file system of the host.
    let outside = first.dir.path().join("outside");
    fs::write(&outside, "outside").unwrap();
    let second = again(&mut first);
    let root = File::open(second.path()).unwrap();
    // New files that may get the number of the one that is gone.
    for n in 0..8 {
        fs::write(second.path().join(format!("new{n}")), "new").unwrap();
    }
    for (text, handle) in &files {
        assert_eq!(handle.read(&root).as_ref(), Ok(text));
    }
    assert!(dir.names(&root).unwrap().contains(&"c".to_owned()));
    assert_eq!(gone.read(&root), Err(Errno::STALE));
    // Made up: the number of a file of the host's that is in no directory of the store, with any
    // generation.
    let number = std::os::unix::fs::MetadataExt::ino(&fs::metadata(&outside).unwrap());
    let mut made_up = files[0].1;
    made_up.bytes[..4].copy_from_slice(&u32::try_from(number >> 32).unwrap().to_ne_bytes());
    made_up.bytes[4..8].copy_from_slice(&u32::try_from(number & 0xffff_ffff).unwrap().to_ne_bytes());
    assert_eq!(made_up.read(&root), Err(Errno::STALE));
    // The right number with another generation.
    let mut older = files[0].1;
    older.bytes[8] ^= 1;
    assert_eq!(older.read(&root), Err(Errno::STALE));
    drop(root);
    second.unmount();
    // Another store has none of them; one in memory neither.
    for setup in [Setup::default(), memory()] {
        let other = setup.mount().unwrap();
        planted(&other.path());
        let root = File::open(other.path()).unwrap();
        for (_, handle) in &files {
            assert_eq!(handle.read(&root), Err(Errno::STALE));
        }
        drop(root);
        other.unmount();
    }
}

#[test]
fn a_handle_of_an_attached_volume_leads_there_or_nowhere() {
    if !can_open_by_handle() {
        return;
    }
    let Some(mounted) = Setup::default().mount() else { return };
    let mnt = mounted.path();
    fs::create_dir(mnt.join("x")).unwrap();
    let volume = |dir: &Path| {
        let store = store::open(&format!("dir:{}", dir.display())).unwrap();
        Volume::new(store, volume::Options::default()).unwrap()
    };
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let attach = |dir: &Path| {
        mounted
            .tree
            .attach(Path::new("x"), &volume(dir), false, Box::new(|_: &volume::DrainReport| {}))
            .unwrap();
    };
    // The kernel does not wait for RELEASE at close(2): for a moment the file that was read is open
    // still.
    let detach = || {
        common::eventually("nothing of it is open", || {
            mounted.tree.detach(Path::new("x"), Detach::Sync).is_ok()
        });
    };
    let root = File::open(&mnt).unwrap();
    attach(dirs[0].path());
    let path: PathBuf = mnt.join("x/file");
    fs::write(&path, "first").unwrap();
    let handle = Handle::of(&path);
    drop_caches();
    assert_eq!(handle.read(&root).as_deref(), Ok("first"));
    detach();
    drop_caches();
    assert_eq!(handle.read(&root), Err(Errno::STALE));
    attach(dirs[1].path());
    fs::write(&path, "second").unwrap();
    assert_eq!(handle.read(&root), Err(Errno::STALE));
    detach();
    drop(root);
    mounted.unmount();
}
