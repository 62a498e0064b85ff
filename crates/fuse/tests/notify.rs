//! Notifications, after which the kernel forgets what it remembers.
#![allow(clippy::unwrap_used, reason = "test code")]

mod common;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::AsRawFd as _;

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
