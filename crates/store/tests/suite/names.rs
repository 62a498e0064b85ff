//! Names: look-up, creation, links, removal, renaming.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use watertight_store::{Creator, ErrorKind, FileType, Name, NewNode, RenameFlags, Store};

use super::{
    ROOT, Scenario, content, create, exists, file_with, is_root, kind, list, lookup, me, mkdir, n, symlink,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("create_and_look_up", create_and_look_up),
    ("names_taken_and_missing", names_taken_and_missing),
    ("odd_names", odd_names),
    ("kinds_of_nodes", kinds_of_nodes),
    ("umask_and_owner", umask_and_owner),
    ("set_group_id_directories", set_group_id_directories),
    ("hard_links", hard_links),
    ("removal", removal),
    ("rename_plain", rename_plain),
    ("rename_replaces", rename_replaces),
    ("rename_flags", rename_flags),
    ("rename_directories", rename_directories),
    ("link_counts_of_directories", link_counts_of_directories),
    ("references", references),
];

fn create_and_look_up(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    assert_eq!(made.entry.attr.kind, FileType::Regular);
    assert_eq!((made.entry.attr.perm, made.entry.attr.nlink, made.entry.attr.size), (0o644, 1, 0));
    let found = lookup(store, ROOT, "f");
    assert_eq!(found.id, made.entry.id, "one object, one id while it is referenced");
    assert_eq!(found.attr.ino, made.entry.attr.ino);
    let dir = mkdir(store, ROOT, "d");
    assert_eq!(dir.attr.kind, FileType::Directory);
    let inner = create(store, dir.id, "f");
    assert_ne!(inner.entry.id, made.entry.id);
    assert_eq!(list(store, ROOT), ["d", "f"]);
    assert_eq!(list(store, dir.id), ["f"]);
    assert_eq!(store.attr(ROOT).unwrap().kind, FileType::Directory);
}

fn names_taken_and_missing(store: &dyn Store) {
    create(store, ROOT, "f");
    let dir = mkdir(store, ROOT, "d");
    let file = lookup(store, ROOT, "f");
    assert_eq!(kind(store.lookup(ROOT, n("no"))), ErrorKind::NotFound);
    assert_eq!(kind(store.lookup(file.id, n("no"))), ErrorKind::NotDirectory);
    assert_eq!(kind(store.create(ROOT, n("f"), 0o600, me())), ErrorKind::Exists);
    assert_eq!(kind(store.create(ROOT, n("d"), 0o600, me())), ErrorKind::Exists);
    assert_eq!(kind(store.create(file.id, n("x"), 0o600, me())), ErrorKind::NotDirectory);
    assert_eq!(kind(store.make(ROOT, n("d"), NewNode::Directory, 0o700, me())), ErrorKind::Exists);
    assert_eq!(
        kind(store.make(ROOT, n("f"), NewNode::Symlink(OsStr::new("t")), 0o777, me())),
        ErrorKind::Exists
    );
    assert_eq!(kind(store.make(file.id, n("x"), NewNode::Directory, 0o700, me())), ErrorKind::NotDirectory);
    assert_eq!(kind(store.unlink(ROOT, n("no"))), ErrorKind::NotFound);
    assert_eq!(kind(store.rmdir(ROOT, n("no"))), ErrorKind::NotFound);
    assert_eq!(kind(store.open_dir(file.id)), ErrorKind::NotDirectory);
    assert_eq!(kind(store.open(dir.id, watertight_store::Access::Read)), ErrorKind::IsDirectory);
    assert_eq!(kind(store.read_link(file.id)), ErrorKind::Invalid);
}

fn odd_names(store: &dyn Store) {
    for bytes in [&b"a b"[..], b"\n", b"...", b"\xff\xfe\x80", b"-rf", &[b'n'; 255]] {
        let name = Name::new(OsStr::from_bytes(bytes)).unwrap();
        let made = store.create(ROOT, name, 0o600, me()).unwrap();
        assert_eq!(store.lookup(ROOT, name).unwrap().id, made.entry.id);
        let mut seen = false;
        let dir = store.open_dir(ROOT).unwrap();
        dir.list(0, &mut |e| {
            seen |= e.name.as_bytes() == bytes;
            true
        })
        .unwrap();
        assert!(seen, "{bytes:?} is listed");
        store.unlink(ROOT, name).unwrap();
    }
    assert!(list(store, ROOT).is_empty());
}

fn kinds_of_nodes(store: &dyn Store) {
    let link = symlink(store, ROOT, "l", "some/where");
    assert_eq!(link.attr.kind, FileType::Symlink);
    assert_eq!(link.attr.size, 10);
    assert_eq!(store.read_link(link.id).unwrap(), "some/where");
    for (name, kind, rdev) in [
        ("fifo", FileType::Fifo, 0),
        ("sock", FileType::Socket, 0),
        ("file", FileType::Regular, 0),
        ("chr", FileType::CharDevice, (1 << 8) | 3),
        ("blk", FileType::BlockDevice, (7 << 8) | 0x12 | (0x300 << 12)),
    ] {
        if matches!(kind, FileType::CharDevice | FileType::BlockDevice) && !is_root() {
            testing::skipped(format_args!("{name}: making devices needs root"));
            continue;
        }
        let made = store.make(ROOT, n(name), NewNode::Special { kind, rdev }, 0o640, me()).unwrap();
        assert_eq!((made.attr.kind, made.attr.perm, made.attr.rdev), (kind, 0o640, rdev), "{name}");
        assert_eq!(lookup(store, ROOT, name).attr.rdev, rdev);
    }
    let bad = NewNode::Special { kind: FileType::Directory, rdev: 0 };
    assert_eq!(kind(store.make(ROOT, n("bad"), bad, 0o640, me())), ErrorKind::Invalid);
}

fn umask_and_owner(store: &dyn Store) {
    let creator = Creator { umask: 0o027, ..me() };
    let file = store.create(ROOT, n("f"), 0o666, creator).unwrap().entry;
    let dir = store.make(ROOT, n("d"), NewNode::Directory, 0o777, creator).unwrap();
    let fifo =
        store.make(ROOT, n("p"), NewNode::Special { kind: FileType::Fifo, rdev: 0 }, 0o666, creator).unwrap();
    assert_eq!((file.attr.perm, dir.attr.perm, fifo.attr.perm), (0o640, 0o750, 0o640));
    let open = store.create(ROOT, n("g"), 0o666, me()).unwrap().entry;
    assert_eq!(open.attr.perm, 0o666, "one call's umask is not the next one's");
    if !is_root() {
        testing::skipped("owners other than this user need root");
        return;
    }
    for (uid, gid) in [(1000, 1001), (65534, 65533), (0, 0), (7, 0)] {
        let creator = Creator { uid, gid, umask: 0 };
        let name = format!("o{uid}");
        let made = store.create(ROOT, n(&name), 0o600, creator).unwrap().entry;
        assert_eq!((made.attr.uid, made.attr.gid), (uid, gid));
        let name = format!("d{uid}");
        let made = store.make(ROOT, n(&name), NewNode::Directory, 0o700, creator).unwrap();
        assert_eq!((made.attr.uid, made.attr.gid), (uid, gid));
        let name = format!("l{uid}");
        let made = store.make(ROOT, n(&name), NewNode::Symlink(OsStr::new("x")), 0o777, creator).unwrap();
        assert_eq!((made.attr.uid, made.attr.gid), (uid, gid));
        let made = store.tmpfile(ROOT, 0o600, creator).unwrap().entry;
        assert_eq!((made.attr.uid, made.attr.gid), (uid, gid));
    }
}

fn set_group_id_directories(store: &dyn Store) {
    if !is_root() {
        testing::skipped("foreign groups need root");
        return;
    }
    let dir = store.make(ROOT, n("d"), NewNode::Directory, 0o777, Creator { gid: 500, ..me() }).unwrap();
    let set = watertight_store::SetAttr { perm: Some(0o2777), ..Default::default() };
    assert_eq!(store.set_attr(dir.id, &set).unwrap().perm, 0o2777);
    let other = Creator { uid: 1000, gid: 1000, umask: 0o022 };
    let file = store.create(dir.id, n("f"), 0o666, other).unwrap().entry;
    assert_eq!((file.attr.uid, file.attr.gid, file.attr.perm), (1000, 500, 0o644));
    let sub = store.make(dir.id, n("s"), NewNode::Directory, 0o777, other).unwrap();
    assert_eq!((sub.attr.gid, sub.attr.perm), (500, 0o2755), "directories hand the bit on");
    let link = store.make(dir.id, n("l"), NewNode::Symlink(OsStr::new("x")), 0o777, other).unwrap();
    assert_eq!(link.attr.gid, 500);
}

fn hard_links(store: &dyn Store) {
    let file = file_with(store, ROOT, "a", b"one");
    let dir = mkdir(store, ROOT, "d");
    let linked = store.link(file.id, dir.id, n("b")).unwrap();
    assert_eq!((linked.id, linked.attr.nlink), (file.id, 2));
    assert_eq!(lookup(store, dir.id, "b").id, file.id);
    assert_eq!(kind(store.link(file.id, ROOT, n("a"))), ErrorKind::Exists);
    assert_eq!(kind(store.link(dir.id, ROOT, n("x"))), ErrorKind::NotPermitted);
    store.unlink(ROOT, n("a")).unwrap();
    assert_eq!(store.attr(file.id).unwrap().nlink, 1);
    assert_eq!(content(store, file.id), b"one");
    let link = symlink(store, ROOT, "s", "nowhere");
    let again = store.link(link.id, ROOT, n("s2")).unwrap();
    assert_eq!((again.id, again.attr.kind, again.attr.nlink), (link.id, FileType::Symlink, 2));
}

fn removal(store: &dyn Store) {
    let dir = mkdir(store, ROOT, "d");
    create(store, dir.id, "f");
    symlink(store, ROOT, "l", "d");
    assert_eq!(kind(store.unlink(ROOT, n("d"))), ErrorKind::IsDirectory);
    assert_eq!(kind(store.rmdir(ROOT, n("d"))), ErrorKind::NotEmpty);
    assert_eq!(kind(store.rmdir(dir.id, n("f"))), ErrorKind::NotDirectory);
    assert_eq!(kind(store.rmdir(ROOT, n("l"))), ErrorKind::NotDirectory);
    store.unlink(dir.id, n("f")).unwrap();
    store.rmdir(ROOT, n("d")).unwrap();
    store.unlink(ROOT, n("l")).unwrap();
    assert!(list(store, ROOT).is_empty());
    assert_eq!(kind(store.create(dir.id, n("x"), 0o600, me())), ErrorKind::NotFound, "a removed directory");
    assert_eq!(kind(store.lookup(dir.id, n("f"))), ErrorKind::NotFound);
    assert_eq!(store.attr(dir.id).unwrap().nlink, 0);
}

fn rename_plain(store: &dyn Store) {
    let file = file_with(store, ROOT, "a", b"one");
    let dir = mkdir(store, ROOT, "d");
    let none = RenameFlags::empty();
    store.rename(ROOT, n("a"), ROOT, n("b"), none).unwrap();
    assert_eq!(list(store, ROOT), ["b", "d"]);
    store.rename(ROOT, n("b"), dir.id, n("c"), none).unwrap();
    assert_eq!(lookup(store, dir.id, "c").id, file.id);
    assert_eq!(list(store, ROOT), ["d"]);
    assert_eq!(kind(store.rename(ROOT, n("no"), ROOT, n("x"), none)), ErrorKind::NotFound);
    store.rename(dir.id, n("c"), dir.id, n("c"), none).unwrap();
    assert_eq!(content(store, file.id), b"one");
}

fn rename_replaces(store: &dyn Store) {
    let old = file_with(store, ROOT, "old", b"old");
    let new = file_with(store, ROOT, "new", b"new");
    store.rename(ROOT, n("new"), ROOT, n("old"), RenameFlags::empty()).unwrap();
    assert_eq!(lookup(store, ROOT, "old").id, new.id);
    assert_eq!(store.attr(old.id).unwrap().nlink, 0, "what was replaced lives on while it is referenced");
    assert_eq!(content(store, old.id), b"old");
    assert_eq!(list(store, ROOT), ["old"]);
    store.link(new.id, ROOT, n("same")).unwrap();
    store.rename(ROOT, n("same"), ROOT, n("old"), RenameFlags::empty()).unwrap();
    assert_eq!(list(store, ROOT), ["old", "same"], "two names of one object: nothing happens");
}

fn rename_flags(store: &dyn Store) {
    let a = file_with(store, ROOT, "a", b"a");
    let dir = mkdir(store, ROOT, "d");
    let b = file_with(store, dir.id, "b", b"b");
    assert_eq!(kind(store.rename(ROOT, n("a"), dir.id, n("b"), RenameFlags::NOREPLACE)), ErrorKind::Exists);
    store.rename(ROOT, n("a"), dir.id, n("b"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(lookup(store, ROOT, "a").id, b.id);
    assert_eq!(lookup(store, dir.id, "b").id, a.id);
    let missing = store.rename(ROOT, n("a"), ROOT, n("no"), RenameFlags::EXCHANGE);
    assert_eq!(kind(missing), ErrorKind::NotFound);
    let both = RenameFlags::EXCHANGE | RenameFlags::NOREPLACE;
    assert_eq!(kind(store.rename(ROOT, n("a"), dir.id, n("b"), both)), ErrorKind::Invalid);
    let other = mkdir(store, ROOT, "e");
    store.rename(ROOT, n("a"), ROOT, n("e"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!(lookup(store, ROOT, "a").id, other.id, "a file and a directory can be exchanged");
    store.rename(ROOT, n("e"), ROOT, n("f"), RenameFlags::NOREPLACE).unwrap();
    assert_eq!(lookup(store, ROOT, "f").id, b.id);
}

fn rename_directories(store: &dyn Store) {
    let a = mkdir(store, ROOT, "a");
    let b = mkdir(store, ROOT, "b");
    let inner = mkdir(store, a.id, "inner");
    file_with(store, ROOT, "f", b"");
    let none = RenameFlags::empty();
    assert_eq!(kind(store.rename(ROOT, n("a"), inner.id, n("x"), none)), ErrorKind::Invalid, "into itself");
    assert_eq!(kind(store.rename(ROOT, n("a"), a.id, n("x"), none)), ErrorKind::Invalid);
    assert_eq!(kind(store.rename(ROOT, n("b"), ROOT, n("a"), none)), ErrorKind::NotEmpty);
    assert_eq!(kind(store.rename(ROOT, n("f"), ROOT, n("b"), none)), ErrorKind::IsDirectory);
    assert_eq!(kind(store.rename(ROOT, n("b"), ROOT, n("f"), none)), ErrorKind::NotDirectory);
    store.rename(ROOT, n("a"), ROOT, n("b"), none).unwrap();
    assert_eq!(lookup(store, ROOT, "b").id, a.id, "an empty directory may be replaced");
    assert!(!exists(store, ROOT, "a"));
    assert_eq!(store.attr(b.id).unwrap().nlink, 0);
    assert_eq!(lookup(store, a.id, "inner").id, inner.id);
}

fn link_counts_of_directories(store: &dyn Store) {
    let dir = mkdir(store, ROOT, "d");
    assert_eq!(dir.attr.nlink, 2);
    let sub = mkdir(store, dir.id, "s");
    create(store, dir.id, "f");
    assert_eq!(store.attr(dir.id).unwrap().nlink, 3);
    let other = mkdir(store, ROOT, "o");
    store.rename(dir.id, n("s"), other.id, n("s"), RenameFlags::empty()).unwrap();
    assert_eq!(store.attr(dir.id).unwrap().nlink, 2);
    assert_eq!(store.attr(other.id).unwrap().nlink, 3);
    store.rmdir(other.id, n("s")).unwrap();
    assert_eq!(store.attr(other.id).unwrap().nlink, 2);
    assert_eq!(store.attr(sub.id).unwrap().nlink, 0);
}

fn references(store: &dyn Store) {
    let file = create(store, ROOT, "f").entry;
    lookup(store, ROOT, "f");
    store.forget(file.id, 1);
    assert!(store.attr(file.id).is_ok(), "one reference is left");
    store.forget(file.id, 1);
    assert_eq!(kind(store.attr(file.id)), ErrorKind::Stale);
    let again = lookup(store, ROOT, "f");
    assert_eq!(again.attr.ino, file.attr.ino);
    store.unlink(ROOT, n("f")).unwrap();
    store.forget(again.id, 1);
    let new = create(store, ROOT, "f").entry;
    let named = |entry: &watertight_store::Entry| (entry.id, entry.generation);
    assert_ne!(named(&new), named(&again), "a number is used again with another generation only");
    // Found by its number, as long as it is there.
    store.forget(new.id, 1);
    let recalled = store.recall(new.id).unwrap();
    assert_eq!(named(&recalled), named(&new));
    assert_eq!(store.generation(new.id), new.generation);
    store.forget(new.id, 1);
    store.unlink(ROOT, n("f")).unwrap();
    assert_eq!(kind(store.recall(new.id).map(drop)), ErrorKind::Stale);
    let (dir, sub) = (mkdir(store, ROOT, "d"), mkdir(store, ROOT, "e"));
    store.rename(ROOT, n("e"), dir.id, n("e"), RenameFlags::empty()).unwrap();
    assert_eq!(named(&store.recall_parent(sub.id).unwrap()), named(&dir));
    assert_eq!(store.recall_parent(dir.id).unwrap().id, ROOT);
    assert_eq!(kind(store.recall_parent(ROOT).map(drop)), ErrorKind::Stale);
    assert!(store.attr(ROOT).is_ok());
    store.forget(ROOT, 1);
    assert!(store.attr(ROOT).is_ok(), "the root needs no reference");
}
