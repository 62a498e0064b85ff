//! Notifications, after which the kernel forgets what it remembers.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use common::{Mounted, Setup};
use volume::NodeId;

/// The number of a node in the root directory.
fn node(mounted: &Mounted, name: &str) -> NodeId {
    let entry = mounted.volume.lookup(store::ObjectId::ROOT, OsStr::new(name)).unwrap();
    mounted.volume.forget(entry.id, 1);
    entry.id
}

#[test]
fn data_and_attributes_that_changed_elsewhere_are_read_anew() {
    let Some(mounted) = Setup::default().mount() else { return };
    let (path, stored) = (mounted.path().join("file"), mounted.store_path().join("file"));
    fs::write(&path, "old content").unwrap();
    mounted.volume.sync_all().unwrap();
    assert_eq!(common::text(&path), "old content");
    fs::write(&stored, "NEW CONTENT").unwrap();
    assert_eq!(common::text(&path), "old content", "the kernel does not look by itself");
    mounted.notifier.inode(node(&mounted, "file"), 0, 0).unwrap();
    mounted.notifier.wait();
    assert_eq!(common::text(&path), "NEW CONTENT");
    mounted.unmount();
}

#[test]
fn names_that_went_elsewhere_are_looked_up_anew() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("file");
    fs::write(&path, "x").unwrap();
    let open = File::open(&path).unwrap();
    fs::rename(mounted.store_path().join("file"), mounted.store_path().join("moved")).unwrap();
    assert!(path.exists());
    mounted.notifier.entry(store::ObjectId::ROOT, OsStr::new("file")).unwrap();
    mounted.notifier.wait();
    assert!(!path.exists());
    // The holder of the open file goes on.
    assert_eq!(open.metadata().unwrap().len(), 1);
    // The kernel had remembered, too, that there is no such name.
    assert!(!mounted.path().join("moved too").exists());
    fs::rename(mounted.store_path().join("moved"), mounted.store_path().join("moved too")).unwrap();
    assert!(!mounted.path().join("moved too").exists());
    mounted.notifier.entry(store::ObjectId::ROOT, OsStr::new("moved too")).unwrap();
    mounted.notifier.wait();
    assert!(mounted.path().join("moved too").exists());
    drop(open);
    mounted.unmount();
}

#[test]
fn a_removed_directory_is_removed_for_those_inside() {
    let Some(mounted) = Setup::default().mount() else { return };
    let path = mounted.path().join("dir");
    fs::create_dir(&path).unwrap();
    let inside = File::open(&path).unwrap();
    let child = node(&mounted, "dir");
    fs::remove_dir(mounted.store_path().join("dir")).unwrap();
    let where_it_is = || fs::read_link(format!("/proc/self/fd/{}", inside.as_raw_fd())).unwrap();
    assert_eq!(where_it_is(), path);
    mounted.notifier.delete(store::ObjectId::ROOT, child, OsStr::new("dir")).unwrap();
    mounted.notifier.wait();
    assert!(where_it_is().to_string_lossy().ends_with(" (deleted)"), "{:?}", where_it_is());
    assert!(!path.exists());
    drop(inside);
    mounted.unmount();
}

#[test]
fn after_the_end_nothing_is_taken() {
    let Some(mounted) = Setup::default().mount() else { return };
    let notifier = mounted.notifier.clone();
    mounted.unmount();
    let refused = notifier.inode(store::ObjectId::ROOT, 0, 0).unwrap_err();
    assert_eq!(refused, watertight_fuse::NotifyError::Ended);
    notifier.wait();
}

/// Whether this kernel forgets what it is asked to forget.
fn can_prune() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(18))
}

#[test]
fn the_kernel_forgets_what_nobody_uses_where_too_much_is_known() {
    const FILES: usize = 4000;
    const MAX: usize = 1000;
    if !can_prune() {
        return common::skipped("only Linux 6.18 and newer forget a file when they are asked to");
    }
    let dirty_after = Duration::from_millis(1);
    let volume = volume::Options { nodes_max: MAX, dirty_after, ..volume::Options::default() };
    let Some(mounted) = (Setup { volume, ..Setup::default() }).mount() else { return };
    let known = || mounted.volume.status().nodes;
    let name = |file: usize| mounted.path().join(format!("dir-{}", file % 10)).join(format!("file-{file}"));
    (0..10).for_each(|dir| fs::create_dir(mounted.path().join(format!("dir-{dir}"))).unwrap());
    let open = File::create(name(0)).unwrap();
    let mut files = 1;
    let mut make = |more: usize| {
        for file in files..files + more {
            fs::write(name(file), file.to_string()).unwrap();
        }
        files += more;
        files
    };
    make(FILES);
    mounted.volume.sync_all().unwrap();
    // Those that come have others forgotten: what was not written stayed, and the kernel gives back what it
    // forgets a moment later.
    let mut files = 0;
    common::eventually("the kernel forgets", || {
        files = make(100);
        known() < 3 * MAX as u64
    });
    assert!(files > FILES);
    for file in 1..files {
        assert_eq!(common::text(&name(file)), file.to_string());
    }
    mounted.notifier.wait();
    assert_eq!(open.metadata().unwrap().ino(), fs::metadata(name(0)).unwrap().ino(), "a file that is used");
    assert_eq!(
        (0..10).map(|dir| fs::read_dir(name(dir).parent().unwrap()).unwrap().count()).sum::<usize>(),
        files
    );
    drop(open);
    mounted.unmount();
}
