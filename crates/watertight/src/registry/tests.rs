//! The registry in directories of the tests' own.

use std::os::unix::fs::{MetadataExt as _, symlink};

use super::*;
use crate::host::mountinfo::Device;

fn dir() -> (tempfile::TempDir, RuntimeDir) {
    let temporary = tempfile::Builder::new().permissions(Permissions::from_mode(0o700)).tempdir().unwrap();
    let (path, uid) = (temporary.path().to_owned(), rustix::process::geteuid().as_raw());
    let open = OpenDir::own(&path, uid).unwrap().unwrap();
    (temporary, RuntimeDir { path, uid, open })
}

fn id(text: &str) -> VolumeId {
    text.parse().unwrap()
}

fn record(text: &str) -> Record {
    let device = Device { major: 0, minor: 99 };
    Record::new(id(text), "mem:".to_owned(), Path::new("/mnt/x"), device)
}

fn ended(ended_ms: u64) -> Ended {
    Ended { ended_ms, ..crate::daemon::figures::ended_with(&volume::DrainReport::default()) }
}

#[test]
fn a_running_mount_is_found_and_its_end_is_remembered() {
    let (_keep, dir) = dir();
    let (mut registration, _listener) = dir.register(record("a1")).unwrap();
    let found = dir.find(&id("a1")).unwrap();
    assert_eq!(found.client.unwrap().pid(), std::process::id());
    assert_eq!(found.record.ended, None);
    let mode = fs::metadata(dir.path.join(socket(&id("a1")))).unwrap().mode();
    assert_eq!(mode & 0o777, 0o600);

    registration.finish(ended(7)).unwrap();
    drop(registration);
    let found = dir.find(&id("a1")).unwrap();
    assert!(found.client.is_none());
    assert_eq!(found.record.ended, Some(ended(7)));
    assert!(dir.find(&id("b2")).is_none());
}

#[test]
fn a_socket_where_nobody_listens_is_removed() {
    let (_keep, dir) = dir();
    let (registration, listener) = dir.register(record("a1")).unwrap();
    drop(listener);
    assert!(dir.path.join(socket(&id("a1"))).exists());
    assert!(dir.find(&id("a1")).unwrap().client.is_none());
    assert!(!dir.path.join(socket(&id("a1"))).exists());
    registration.withdraw();
    assert!(dir.volumes().is_empty());
}

#[test]
fn a_directory_that_others_could_have_made_is_not_believed() {
    let (_keep, dir) = dir();
    let open = |path: &Path, uid| OpenDir::own(path, uid).map(|open| open.is_some());
    assert_eq!(open(&dir.path, dir.uid), Ok(true));
    assert_eq!(open(&dir.path.join("missing"), dir.uid), Ok(false));
    assert!(open(&dir.path, dir.uid + 1).unwrap_err().contains("belongs to user"));
    let link = dir.path.join("link");
    symlink("/tmp", &link).unwrap();
    assert!(open(&link, dir.uid).unwrap_err().contains("not a directory"));
    fs::set_permissions(&dir.path, Permissions::from_mode(0o755)).unwrap();
    assert!(open(&dir.path, dir.uid).unwrap_err().contains("open to other users"));
}

#[test]
fn only_the_newest_ended_records_stay() {
    let (_keep, dir) = dir();
    for n in 0..70 {
        let (mut registration, _listener) = dir.register(record(&format!("{n:02}"))).unwrap();
        registration.finish(ended(n)).unwrap();
    }
    let (_running, _listener) = dir.register(record("run")).unwrap();
    let mut ids: Vec<VolumeId> = dir.volumes().into_iter().map(|found| found.record.id).collect();
    ids.sort();
    assert_eq!(ids.len(), 65);
    assert_eq!(ids[0].as_str(), "06");
}
