//! Objects without a name, and files that only their openings can reach.

use watertight_store::{Access, ErrorKind, SetAttr, Store};

use super::{ROOT, Scenario, content, create, file_with, is_root, kind, list, lookup, me, n, write};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("unlinked_and_referenced", unlinked_and_referenced),
    ("tmpfile_and_link", tmpfile_and_link),
    ("created_without_permission", created_without_permission),
    ("file_outlives_references", file_outlives_references),
];

fn unlinked_and_referenced(store: &dyn Store) {
    let id = file_with(store, ROOT, "f", b"still here").id;
    store.unlink(ROOT, n("f")).unwrap();
    assert_eq!(store.attr(id).unwrap().nlink, 0);
    assert_eq!(content(store, id), b"still here");
    let file = store.open(id, Access::ReadWrite).unwrap();
    write(&*file, b"S", 0);
    drop(file);
    assert_eq!(content(store, id), b"Still here");
    let set = SetAttr { size: Some(5), perm: Some(0o600), ..Default::default() };
    let attr = store.set_attr(id, &set).unwrap();
    assert_eq!((attr.size, attr.perm), (5, 0o600));
    let other = create(store, ROOT, "f").entry;
    assert_ne!(other.id, id);
    assert_eq!(content(store, other.id), b"");
    assert_eq!(kind(store.link(id, ROOT, n("back"))), ErrorKind::NotFound, "no way back");
    store.forget(id, 1);
    assert_eq!(kind(store.attr(id)), ErrorKind::Stale);
}

fn tmpfile_and_link(store: &dyn Store) {
    let made = match store.tmpfile(ROOT, 0o640, me()) {
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            testing::skipped(format_args!("no tmpfile on {}", store.describe()));
            return;
        }
        other => other.unwrap(),
    };
    assert_eq!((made.entry.attr.nlink, made.entry.attr.perm), (0, 0o640));
    write(&*made.file, b"hidden", 0);
    assert!(list(store, ROOT).is_empty());
    store.sync().unwrap();
    drop(made.file);
    let linked = store.link(made.entry.id, ROOT, n("shown")).unwrap();
    assert_eq!((linked.id, linked.attr.nlink), (made.entry.id, 1));
    assert_eq!(content(store, lookup(store, ROOT, "shown").id), b"hidden");
    store.sync().unwrap();
    store.link(linked.id, ROOT, n("second")).unwrap();
    assert_eq!(list(store, ROOT), ["second", "shown"]);
}

fn created_without_permission(store: &dyn Store) {
    let made = store.create(ROOT, n("f"), 0o000, me()).unwrap();
    write(&*made.file, b"kept", 0);
    let mut buf = [0; 4];
    assert_eq!(made.file.read_at(&mut buf, 0).unwrap(), 4, "readable whatever the mode");
    let again = store.open(made.entry.id, Access::ReadWrite).unwrap();
    write(&*again, b"K", 0);
    drop(made.file);
    assert_eq!(again.read_at(&mut buf, 0).unwrap(), 4);
    assert_eq!(&buf, b"Kept");
    let size = SetAttr { size: Some(2), ..Default::default() };
    assert_eq!(store.set_attr(made.entry.id, &size).unwrap().size, 2);
    drop(again);
    store.sync().unwrap();
    if is_root() {
        assert_eq!(content(store, made.entry.id), b"Ke");
    }
}

fn file_outlives_references(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    write(&*made.file, b"one", 0);
    store.forget(made.entry.id, 1);
    write(&*made.file, b"two", 3);
    let found = lookup(store, ROOT, "f");
    assert_eq!(content(store, found.id), b"onetwo");
    store.unlink(ROOT, n("f")).unwrap();
    store.forget(found.id, 1);
    write(&*made.file, b"three", 6);
    let mut buf = [0; 11];
    assert_eq!(made.file.read_at(&mut buf, 0).unwrap(), 11);
    made.file.sync(false).unwrap();
    store.sync().unwrap();
    assert_eq!(&buf, b"onetwothree");
}
