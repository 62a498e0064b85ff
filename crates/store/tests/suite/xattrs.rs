//! Extended attributes.

use std::collections::BTreeSet;
use std::ffi::OsStr;

use watertight_store::{ErrorKind, ObjectId, SetXattr, Store};

use super::{ROOT, Scenario, create, is_root, kind, mkdir, symlink};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("set_get_list_remove", set_get_list_remove),
    ("set_modes", set_modes),
    ("large_values", large_values),
    ("of_links", of_links),
];

fn set(store: &dyn Store, id: ObjectId, name: &str, value: &[u8]) -> Result<(), watertight_store::Error> {
    store.set_xattr(id, OsStr::new(name), value, SetXattr::Any)
}

fn names(store: &dyn Store, id: ObjectId) -> BTreeSet<String> {
    let raw = store.list_xattr(id).unwrap();
    assert!(raw.is_empty() || raw.ends_with(&[0]), "each name ends with NUL");
    raw.split(|&b| b == 0)
        .filter(|n| n.starts_with(b"user.") || n.starts_with(b"trusted."))
        .map(|n| String::from_utf8(n.to_vec()).unwrap())
        .collect()
}

/// Says whether the medium has user attributes.
fn has_user_xattrs(store: &dyn Store, id: ObjectId) -> bool {
    match set(store, id, "user.probe", b"") {
        Ok(()) => {
            store.remove_xattr(id, OsStr::new("user.probe")).unwrap();
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Unsupported);
            testing::skipped(format_args!("no extended attributes on {}", store.describe()));
            false
        }
    }
}

fn set_get_list_remove(store: &dyn Store) {
    let file = create(store, ROOT, "f").entry.id;
    let dir = mkdir(store, ROOT, "d").id;
    if !has_user_xattrs(store, file) {
        return;
    }
    for id in [file, dir] {
        assert!(names(store, id).is_empty());
        assert_eq!(kind(store.get_xattr(id, OsStr::new("user.a"))), ErrorKind::NoAttribute);
        set(store, id, "user.a", b"one").unwrap();
        set(store, id, "user.b", b"").unwrap();
        set(store, id, "user.a", b"two\0with nul").unwrap();
        assert_eq!(store.get_xattr(id, OsStr::new("user.a")).unwrap(), b"two\0with nul");
        assert_eq!(store.get_xattr(id, OsStr::new("user.b")).unwrap(), b"");
        assert_eq!(names(store, id), BTreeSet::from(["user.a".to_owned(), "user.b".to_owned()]));
        store.remove_xattr(id, OsStr::new("user.a")).unwrap();
        assert_eq!(kind(store.remove_xattr(id, OsStr::new("user.a"))), ErrorKind::NoAttribute);
        assert_eq!(names(store, id), BTreeSet::from(["user.b".to_owned()]));
    }
}

fn set_modes(store: &dyn Store) {
    let id = create(store, ROOT, "f").entry.id;
    if !has_user_xattrs(store, id) {
        return;
    }
    let name = OsStr::new("user.a");
    assert_eq!(kind(store.set_xattr(id, name, b"x", SetXattr::Replace)), ErrorKind::NoAttribute);
    store.set_xattr(id, name, b"x", SetXattr::Create).unwrap();
    assert_eq!(kind(store.set_xattr(id, name, b"y", SetXattr::Create)), ErrorKind::Exists);
    store.set_xattr(id, name, b"y", SetXattr::Replace).unwrap();
    assert_eq!(store.get_xattr(id, name).unwrap(), b"y");
}

fn large_values(store: &dyn Store) {
    let id = create(store, ROOT, "f").entry.id;
    if !has_user_xattrs(store, id) {
        return;
    }
    let value: Vec<u8> = (0..2000u32).map(|i| i.to_le_bytes()[0]).collect();
    set(store, id, "user.big", &value).unwrap();
    assert_eq!(store.get_xattr(id, OsStr::new("user.big")).unwrap(), value);
    let too_big = vec![0; 65537];
    assert_eq!(kind(set(store, id, "user.huge", &too_big)), ErrorKind::TooBig);
    let long = format!("user.{}", "n".repeat(251));
    assert_eq!(kind(set(store, id, &long, b"")), ErrorKind::Range);
}

fn of_links(store: &dyn Store) {
    let file = create(store, ROOT, "f").entry.id;
    let link = symlink(store, ROOT, "l", "f").id;
    if !has_user_xattrs(store, file) {
        return;
    }
    assert_eq!(kind(set(store, link, "user.a", b"x")), ErrorKind::NotPermitted);
    if !is_root() {
        testing::skipped("trusted attributes need root");
        return;
    }
    set(store, link, "trusted.a", b"link").unwrap();
    set(store, file, "trusted.a", b"file").unwrap();
    assert_eq!(store.get_xattr(link, OsStr::new("trusted.a")).unwrap(), b"link");
    assert_eq!(store.get_xattr(file, OsStr::new("trusted.a")).unwrap(), b"file");
    assert_eq!(names(store, link), BTreeSet::from(["trusted.a".to_owned()]));
    store.remove_xattr(link, OsStr::new("trusted.a")).unwrap();
    assert!(names(store, link).is_empty());
}
