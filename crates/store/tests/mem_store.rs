//! Promises of a memory store only: its bound, sharing, and that all memory is given back.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod suite;

use std::ffi::OsStr;
use std::io::IoSlice;
use std::path::PathBuf;

use suite::{ROOT, content, create, file_with, kind, lookup, me, mkdir, n, symlink, write};
use watertight_store::{
    AllocateMode, Creator, ErrorKind, FileType, MemStore, RenameFlags, Seek, SetAttr, SetXattr, Store,
};

const MIB: usize = 1 << 20;

#[test]
fn a_full_store_says_so_and_keeps_what_it_has() {
    let store = MemStore::new(4 << 20);
    let made = create(&*store, ROOT, "f");
    let data = vec![7; 3 * MIB];
    write(&*made.file, &data, 0);
    let more = made.file.write_at(&[IoSlice::new(&data)], data.len() as u64);
    assert_eq!(more.unwrap_err().kind(), ErrorKind::NoSpace);
    assert!(store.used() <= 4 << 20);
    let size = usize::try_from(store.attr(made.entry.id).unwrap().size).unwrap();
    assert!(size >= data.len(), "what was there before stays");
    assert!(
        content(&*store, made.entry.id).iter().all(|&b| b == 7),
        "and what was written is what was given"
    );
    write(&*made.file, &data, 0);
    assert_eq!(kind(made.file.allocate(AllocateMode::KEEP_SIZE, 0, 1 << 40)), ErrorKind::NoSpace);
    let free = store.statfs().unwrap().bfree;
    assert!(free * 4096 < MIB as u64);
    while store.create(ROOT, n(&format!("x{}", store.objects())), 0o600, me()).is_ok() {}
    assert_eq!(kind(store.create(ROOT, n("y"), 0o600, me())), ErrorKind::NoSpace);
    store.unlink(ROOT, n("f")).unwrap();
    drop(made.file);
    store.forget(made.entry.id, 1);
    create(&*store, ROOT, "y");
}

#[test]
fn all_space_comes_back() {
    let store = MemStore::new(64 << 20);
    let empty = (store.used(), store.objects());
    let dir = mkdir(&*store, ROOT, "d");
    let made = create(&*store, dir.id, "f");
    write(&*made.file, &vec![1; 3 * MIB + 5], 100_000);
    made.file.allocate(AllocateMode::empty(), 10 << 20, 100_000).unwrap();
    store.set_attr(made.entry.id, &SetAttr { size: Some(1_000_001), ..Default::default() }).unwrap();
    made.file.allocate(AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE, 200_000, 300_000).unwrap();
    let copy = create(&*store, ROOT, "copy");
    store.copy_range(made.entry.id, 0, copy.entry.id, 0, MIB as u64).unwrap();
    store.copy_range(made.entry.id, 7, copy.entry.id, 90_000, MIB as u64).unwrap();
    store.set_xattr(dir.id, OsStr::new("user.a"), &[1; 3000], SetXattr::Any).unwrap();
    store.set_xattr(dir.id, OsStr::new("user.a"), &[1; 30], SetXattr::Any).unwrap();
    store.set_xattr(dir.id, OsStr::new("user.b"), &[1; 30], SetXattr::Any).unwrap();
    store.remove_xattr(dir.id, OsStr::new("user.b")).unwrap();
    let link = symlink(&*store, ROOT, "l", "far/away");
    let hidden = store.tmpfile(ROOT, 0o600, me()).unwrap();
    write(&*hidden.file, b"hidden", 1 << 20);
    assert!(store.used() > empty.0 + MIB as u64);
    store.rename(ROOT, n("copy"), dir.id, n("f"), RenameFlags::empty()).unwrap();
    store.unlink(dir.id, n("f")).unwrap();
    store.unlink(ROOT, n("l")).unwrap();
    store.rmdir(ROOT, n("d")).unwrap();
    for id in [dir.id, made.entry.id, copy.entry.id, link.id, hidden.entry.id] {
        store.forget(id, 1);
    }
    assert!(store.used() > empty.0, "files are still open");
    drop((made.file, copy.file, hidden.file));
    assert_eq!((store.used(), store.objects()), empty);
}

#[test]
fn closing_gives_everything_back() {
    let store = MemStore::new(64 << 20);
    let empty = store.used();
    for i in 0..50 {
        let dir = mkdir(&*store, ROOT, &format!("d{i}"));
        file_with(&*store, dir.id, "f", &[1; 5000]);
    }
    store.close();
    assert_eq!((store.used(), store.objects()), (empty, 1));
}

#[test]
fn copies_share_until_one_is_written() {
    let store = MemStore::new(64 << 20);
    let data: Vec<u8> = (0..MIB).map(|i| i.to_le_bytes()[1]).collect();
    let a = file_with(&*store, ROOT, "a", &data).id;
    let b = create(&*store, ROOT, "b");
    assert_eq!(store.copy_range(a, 0, b.entry.id, 0, u64::MAX >> 2).unwrap(), MIB as u64);
    write(&*b.file, b"changed", 70_000);
    assert!(content(&*store, a) == data, "the original is as it was");
    let mut expected = data.clone();
    expected[70_000..70_007].copy_from_slice(b"changed");
    assert!(content(&*store, b.entry.id) == expected);
    assert_eq!(kind(store.copy_range(a, 0, a, 10, 100)), ErrorKind::Invalid, "onto itself");
    assert_eq!(store.copy_range(a, 0, a, 500_000, 1000).unwrap(), 1000);
}

#[test]
fn a_far_hole_costs_nothing() {
    let store = MemStore::new(1 << 20);
    let made = create(&*store, ROOT, "f");
    let far = i64::MAX.unsigned_abs() - 10;
    write(&*made.file, b"end", far);
    assert_eq!(store.attr(made.entry.id).unwrap().size, far + 3);
    let data = made.file.seek(Seek::Data, 0).unwrap();
    assert!(data <= far && data > far - 65_536);
    assert_eq!(made.file.seek(Seek::Hole, 0).unwrap(), 0);
    made.file.allocate(AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE, 0, far + 3).unwrap();
    assert_eq!(kind(made.file.seek(Seek::Data, 0)), ErrorKind::NoSuchAddress);
}

#[test]
fn a_whiteout_is_left_where_it_is_asked_for() {
    let store = MemStore::new(1 << 20);
    create(&*store, ROOT, "a");
    store.rename(ROOT, n("a"), ROOT, n("b"), RenameFlags::WHITEOUT).unwrap();
    let left = lookup(&*store, ROOT, "a").attr;
    assert_eq!((left.kind, left.rdev), (FileType::CharDevice, 0));
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(kind(store.rename(ROOT, n("a"), ROOT, n("b"), both)), ErrorKind::Invalid);
}

#[test]
fn owners_need_no_rights_here() {
    let store = MemStore::new(1 << 20);
    let creator = Creator { uid: 1000, gid: 1001, umask: 0o027 };
    let attr = store.create(ROOT, n("f"), 0o666, creator).unwrap().entry.attr;
    assert_eq!((attr.uid, attr.gid, attr.perm), (1000, 1001, 0o640));
}

#[test]
fn paths_are_for_people() {
    let store = MemStore::new(1 << 20);
    let dir = mkdir(&*store, ROOT, "d");
    let inner = mkdir(&*store, dir.id, "e");
    let file = create(&*store, inner.id, "f").entry;
    assert_eq!(store.path_of(file.id), Some(PathBuf::from("d/e/f")));
    assert_eq!(store.path_of(inner.id), Some(PathBuf::from("d/e")));
    assert_eq!(store.path_of(ROOT), Some(PathBuf::new()));
    store.unlink(inner.id, n("f")).unwrap();
    assert_eq!(store.path_of(file.id), None);
}

#[test]
fn many_threads_in_many_files_and_in_one() {
    let store = MemStore::new(256 << 20);
    let shared = create(&*store, ROOT, "shared");
    std::thread::scope(|scope| {
        for t in 0..4u8 {
            let (store, shared) = (&store, &shared);
            scope.spawn(move || {
                let own = create(&**store, ROOT, &format!("own{t}"));
                for i in 0..100u64 {
                    write(&*own.file, &[t; 10_000], i * 10_000);
                    write(&*shared.file, &[t + 1; 10_000], (i * 4 + u64::from(t)) * 10_000);
                    let found = lookup(&**store, ROOT, &format!("own{t}"));
                    assert_eq!(found.attr.size, (i + 1) * 10_000);
                    store.forget(found.id, 1);
                }
                assert!(content(&**store, own.entry.id).iter().all(|&b| b == t));
            });
        }
    });
    let bytes = content(&*store, shared.entry.id);
    for (i, piece) in bytes.chunks(10_000).enumerate() {
        assert!(piece.iter().all(|&b| usize::from(b) == i % 4 + 1), "piece {i} is whole");
    }
}
