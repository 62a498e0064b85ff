//! The syncs that a directory store makes, and those that it does not: by its own counts.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod suite;

use std::ffi::OsStr;
use std::sync::Arc;

use suite::{ROOT, create, file_with, lookup, me, mkdir, n, symlink, write};
use watertight_store::{Access, DirOptions, DirStore, RenameFlags, SetAttr, SetXattr, Store};

struct Fixture {
    store: Arc<DirStore>,
    _dir: tempfile::TempDir,
}

fn fixture() -> Fixture {
    with(DirOptions::default())
}

fn with(options: DirOptions) -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    Fixture { store: DirStore::open_with(dir.path(), options).unwrap(), _dir: dir }
}

impl Fixture {
    /// Files and directories synced by `work`, and objects that are not durable after it.
    fn syncs(&self, work: impl FnOnce()) -> (u64, u64, usize) {
        let before = self.store.counters();
        work();
        let after = self.store.counters();
        (after.data_syncs - before.data_syncs, after.dir_syncs - before.dir_syncs, after.unsynced)
    }
}

#[test]
fn a_new_file_brings_its_directory_along_once() {
    let fix = fixture();
    let store = &*fix.store;
    let made = create(store, ROOT, "f");
    write(&*made.file, b"x", 0);
    assert_eq!(fix.syncs(|| made.file.sync(true).unwrap()), (1, 1, 0));
    write(&*made.file, b"y", 0);
    assert_eq!(fix.syncs(|| made.file.sync(true).unwrap()), (1, 0, 0), "the name is durable already");
    let second = create(store, ROOT, "g");
    assert_eq!(fix.syncs(|| second.file.sync(false).unwrap()), (1, 1, 0));
    assert_eq!(fix.syncs(|| made.file.sync(false).unwrap()), (1, 0, 0), "another's name is not its business");
}

#[test]
fn a_new_path_is_durable_up_to_the_root() {
    let fix = fixture();
    let store = &*fix.store;
    let a = mkdir(store, ROOT, "a");
    let b = mkdir(store, a.id, "b");
    let made = create(store, b.id, "f");
    assert_eq!(fix.syncs(|| made.file.sync(false).unwrap()), (1, 3, 0));
    let other = create(store, b.id, "g");
    assert_eq!(fix.syncs(|| other.file.sync(false).unwrap()), (1, 1, 0));
}

#[test]
fn links_and_renames_are_new_names() {
    let fix = fixture();
    let store = &*fix.store;
    let made = create(store, ROOT, "f");
    let dir = mkdir(store, ROOT, "d");
    store.sync().unwrap();
    store.rename(ROOT, n("f"), dir.id, n("f"), RenameFlags::empty()).unwrap();
    assert_eq!(fix.syncs(|| made.file.sync(false).unwrap()), (1, 1, 1), "the new directory, not the old one");
    store.sync().unwrap();
    store.link(made.entry.id, ROOT, n("l")).unwrap();
    assert_eq!(fix.syncs(|| made.file.sync(false).unwrap()), (1, 1, 0));
    store.rename(ROOT, n("d"), ROOT, n("e"), RenameFlags::empty()).unwrap();
    assert_eq!(fix.syncs(|| store.sync_dir(dir.id).unwrap()), (0, 2, 0), "a directory's own name");
    assert_eq!(fix.syncs(|| made.file.sync(false).unwrap()), (1, 0, 0));
    let other = create(store, dir.id, "o");
    store.sync().unwrap();
    store.rename(dir.id, n("o"), dir.id, n("f"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fix.syncs(|| other.file.sync(false).unwrap()), (1, 1, 0));
    assert_eq!(fix.syncs(|| made.file.sync(false).unwrap()), (1, 0, 0), "the same directory was just synced");
}

#[test]
fn what_was_found_again_is_still_not_durable() {
    let fix = fixture();
    let store = &*fix.store;
    let file = file_with(store, ROOT, "f", b"x");
    store.forget(file.id, 1);
    assert_eq!(store.counters().unsynced, 2, "the file and its directory");
    let again = lookup(store, ROOT, "f");
    let open = store.open(again.id, Access::Read).unwrap();
    assert_eq!(fix.syncs(|| open.sync(true).unwrap()), (1, 1, 0));
    // Forgotten without having been written: known anew, its name is as new as before.
    let dir = mkdir(store, ROOT, "d");
    let empty = create(store, dir.id, "e").entry;
    store.forget(empty.id, 1);
    let again = lookup(store, dir.id, "e");
    let open = store.open(again.id, Access::Read).unwrap();
    assert_eq!(fix.syncs(|| open.sync(true).unwrap()).1, 2, "its directory, and that one's");
}

#[test]
fn sync_covers_what_changed_and_nothing_else() {
    let fix = fixture();
    let store = &*fix.store;
    let files: Vec<_> = (0..20).map(|i| file_with(store, ROOT, &format!("f{i}"), b"x")).collect();
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (20, 1, 0));
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (0, 0, 0));
    let set = SetAttr { perm: Some(0o600), ..Default::default() };
    store.set_attr(files[0].id, &set).unwrap();
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (1, 0, 0), "attributes");
    if store.set_xattr(files[1].id, OsStr::new("user.a"), b"x", SetXattr::Any).is_ok() {
        assert_eq!(fix.syncs(|| store.sync().unwrap()), (1, 0, 0), "extended attributes");
        store.remove_xattr(files[1].id, OsStr::new("user.a")).unwrap();
        assert_eq!(fix.syncs(|| store.sync().unwrap()), (1, 0, 0));
    }
    store.set_attr(files[2].id, &SetAttr { size: Some(100), ..Default::default() }).unwrap();
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (1, 0, 0), "the size");
    store.unlink(ROOT, n("f3")).unwrap();
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (0, 1, 0), "the directory only");
    symlink(store, ROOT, "l", "f0");
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (0, 1, 0));
    store.attr(files[4].id).unwrap();
    store.open(files[4].id, Access::ReadWrite).unwrap();
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (0, 0, 0), "looking changes nothing");
}

#[test]
fn data_alone_leaves_the_attributes_to_sync() {
    let fix = fixture();
    let store = &*fix.store;
    let made = create(store, ROOT, "f");
    made.file.sync(false).unwrap();
    write(&*made.file, b"x", 0);
    store.set_attr(made.entry.id, &SetAttr { perm: Some(0o600), ..Default::default() }).unwrap();
    assert_eq!(fix.syncs(|| made.file.sync(true).unwrap()), (1, 0, 1));
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (1, 0, 0));
    store.set_attr(made.entry.id, &SetAttr { perm: Some(0o644), ..Default::default() }).unwrap();
    assert_eq!(fix.syncs(|| made.file.sync(false).unwrap()), (1, 0, 0));
}

#[test]
fn what_has_no_name_needs_no_sync_and_no_space() {
    let fix = fixture();
    let store = &*fix.store;
    let made = create(store, ROOT, "f");
    write(&*made.file, b"x", 0);
    store.sync().unwrap();
    write(&*made.file, b"y", 0);
    store.unlink(ROOT, n("f")).unwrap();
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (0, 1, 0));
    write(&*made.file, b"z", 0);
    store.forget(made.entry.id, 1);
    assert_eq!(store.counters().objects, 1, "still open");
    drop(made.file);
    let counters = store.counters();
    assert_eq!((counters.objects, counters.unsynced), (0, 0), "gone at the last close");
    let Ok(hidden) = store.tmpfile(ROOT, 0o600, me()) else {
        testing::skipped("no tmpfile");
        return;
    };
    write(&*hidden.file, b"x", 0);
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (0, 0, 0));
    store.link(hidden.entry.id, ROOT, n("shown")).unwrap();
    assert_eq!(fix.syncs(|| store.sync().unwrap()), (1, 1, 0), "now it has a name, its data counts");
}

#[test]
fn the_number_that_waits_is_bounded() {
    let fix = with(DirOptions { unsynced_max: Some(64), ..Default::default() });
    let store = &*fix.store;
    for i in 0..1000 {
        let made = file_with(store, ROOT, &format!("f{i}"), b"x");
        store.forget(made.id, 1);
        assert!(store.counters().unsynced <= 65, "{:?}", store.counters());
    }
    let counters = store.counters();
    assert!(counters.relieved >= 900, "{counters:?}");
    assert!(counters.objects <= 65, "what is durable is let go");
    store.sync().unwrap();
    assert_eq!(store.counters().unsynced, 0);
}

#[test]
fn many_sync_at_once() {
    let fix = fixture();
    let store = &*fix.store;
    std::thread::scope(|scope| {
        for t in 0..4 {
            scope.spawn(move || {
                for i in 0..50 {
                    let made = create(store, ROOT, &format!("{t}-{i}"));
                    write(&*made.file, b"x", 0);
                    if i % 2 == 0 { made.file.sync(true).unwrap() } else { store.sync().unwrap() }
                }
            });
        }
    });
    store.sync().unwrap();
    assert_eq!(store.counters().unsynced, 0);
}

#[test]
fn a_failed_sync_is_told_again_until_the_file_was_written_anew() {
    let Some(medium) = FailingMedium::new() else { return };
    let store = DirStore::open(medium.files()).unwrap();
    let made = create(&*store, ROOT, "f");
    let other = create(&*store, ROOT, "other");
    write(&*made.file, &vec![1; 64 << 10], 0);
    store.sync().unwrap();
    medium.set_broken(true);
    // On blocks of its own, so that the device is asked for new ones.
    write(&*made.file, &vec![2; 4 << 20], 64 << 10);
    assert!(store.sync().is_err());
    assert!(store.sync().is_err(), "not forgotten");
    assert!(made.file.sync(true).is_err());
    assert!(other.file.sync(true).is_ok(), "another file's loss is not its own");
    drop(made.file);
    store.forget(made.entry.id, 1);
    let found = lookup(&*store, ROOT, "f");
    let again = store.open(found.id, Access::ReadWrite).unwrap();
    assert!(again.sync(true).is_err(), "a later opening knows it, too");
    medium.set_broken(false);
    assert!(again.sync(true).is_err(), "the medium works again, but what was lost is lost");
    write(&*again, &vec![2; 4 << 20], 64 << 10);
    again.sync(true).unwrap();
    store.sync().unwrap();
    assert_eq!(store.counters().unsynced, 0);
    store.close();
}

/// ext4 on a loop device whose image lies on a small tmpfs: when that is full, new blocks fail.
struct FailingMedium {
    dir: tempfile::TempDir,
}

fn run(program: &str, args: &[&OsStr]) -> bool {
    std::process::Command::new(program).args(args).output().is_ok_and(|o| o.status.success())
}

impl FailingMedium {
    fn new() -> Option<Self> {
        if !suite::is_root() {
            testing::skipped("a failing medium needs root");
            return None;
        }
        let medium = Self { dir: tempfile::tempdir().unwrap() };
        let (small, files, image) = (medium.small(), medium.files(), medium.small().join("image"));
        std::fs::create_dir(&small).unwrap();
        std::fs::create_dir(&files).unwrap();
        let image_of = || std::fs::File::create(&image).and_then(|f| f.set_len(64 << 20)).is_ok();
        let has_all = run(
            "mount",
            &[
                "-t".as_ref(),
                "tmpfs".as_ref(),
                "-o".as_ref(),
                "size=16m".as_ref(),
                "none".as_ref(),
                small.as_ref(),
            ],
        ) && image_of()
            && run(
                "mke2fs",
                &[
                    "-q".as_ref(),
                    "-t".as_ref(),
                    "ext4".as_ref(),
                    "-O".as_ref(),
                    "^has_journal".as_ref(),
                    image.as_ref(),
                ],
            )
            && run(
                "mount",
                &["-o".as_ref(), "loop,errors=continue".as_ref(), image.as_ref(), files.as_ref()],
            );
        if !has_all {
            testing::skipped("no ext4 on a loop device here");
            return None;
        }
        Some(medium)
    }

    fn small(&self) -> std::path::PathBuf {
        self.dir.path().join("small")
    }

    fn files(&self) -> std::path::PathBuf {
        self.dir.path().join("files")
    }

    fn set_broken(&self, is_broken: bool) {
        let filler = self.small().join("filler");
        if is_broken {
            // Until it is full, which is the error here.
            let _ = std::fs::write(&filler, vec![0u8; 32 << 20]);
        } else {
            std::fs::remove_file(&filler).unwrap();
        }
    }
}

impl Drop for FailingMedium {
    fn drop(&mut self) {
        for dir in [self.files(), self.small()] {
            let _ = run("umount", &[dir.as_ref()]);
        }
    }
}
