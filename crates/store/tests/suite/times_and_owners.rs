//! Attributes: modes, owners, times.

use watertight_store::{SetAttr, Store, TimeSet, Timestamp};

use super::{ROOT, Scenario, create, is_root, mkdir, n, steady, symlink, write};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("modes", modes),
    ("owners", owners),
    ("change_of_owner_drops_set_id", change_of_owner_drops_set_id),
    ("explicit_times", explicit_times),
    ("now", now),
    ("all_at_once", all_at_once),
    ("what_moves_which_time", what_moves_which_time),
    ("setting_nothing", setting_nothing),
];

const EARLY: Timestamp = Timestamp { secs: 1_000_000_000, nanos: 123_456_789 };
const EARLIER: Timestamp = Timestamp { secs: -5, nanos: 999_999_999 };

fn modes(store: &dyn Store) {
    let file = create(store, ROOT, "f").entry;
    let dir = mkdir(store, ROOT, "d");
    for perm in [0, 0o444, 0o777, 0o4755, 0o2755, 0o1777] {
        let set = SetAttr { perm: Some(perm), ..Default::default() };
        if perm & 0o1000 != 0 {
            assert_eq!(store.set_attr(dir.id, &set).unwrap().perm, perm);
        } else {
            assert_eq!(store.set_attr(file.id, &set).unwrap().perm, perm);
        }
    }
    assert_eq!(store.attr(dir.id).unwrap().perm, 0o1777);
}

fn owners(store: &dyn Store) {
    if !is_root() {
        testing::skipped("changing owners needs root");
        return;
    }
    let file = create(store, ROOT, "f").entry;
    let link = symlink(store, ROOT, "l", "f");
    for id in [file.id, link.id] {
        let attr = store.set_attr(id, &SetAttr { uid: Some(5), ..Default::default() }).unwrap();
        assert_eq!((attr.uid, attr.gid), (5, 0));
        let attr = store.set_attr(id, &SetAttr { gid: Some(6), ..Default::default() }).unwrap();
        assert_eq!((attr.uid, attr.gid), (5, 6));
    }
    let both = SetAttr { uid: Some(0), gid: Some(0), ..Default::default() };
    assert_eq!(store.set_attr(link.id, &both).unwrap().uid, 0);
    assert_eq!(store.attr(file.id).unwrap().uid, 5, "a link's owner is its own");
}

fn change_of_owner_drops_set_id(store: &dyn Store) {
    if !is_root() {
        testing::skipped("changing owners needs root");
        return;
    }
    let file = create(store, ROOT, "f").entry;
    let perm = SetAttr { perm: Some(0o6755), ..Default::default() };
    assert_eq!(store.set_attr(file.id, &perm).unwrap().perm, 0o6755);
    let owner = SetAttr { uid: Some(5), ..Default::default() };
    assert_eq!(store.set_attr(file.id, &owner).unwrap().perm, 0o755);
    let both = SetAttr { uid: Some(6), perm: Some(0o4755), ..Default::default() };
    assert_eq!(store.set_attr(file.id, &both).unwrap().perm, 0o4755, "what is asked for comes after");
}

fn explicit_times(store: &dyn Store) {
    let file = create(store, ROOT, "f").entry;
    let link = symlink(store, ROOT, "l", "f");
    let dir = mkdir(store, ROOT, "d");
    for id in [file.id, link.id, dir.id] {
        let set = SetAttr {
            atime: Some(TimeSet::At(EARLY)),
            mtime: Some(TimeSet::At(EARLIER)),
            ..Default::default()
        };
        let attr = store.set_attr(id, &set).unwrap();
        assert_eq!((attr.atime, attr.mtime), (EARLY, EARLIER));
        let set = SetAttr { mtime: Some(TimeSet::At(EARLY)), ..Default::default() };
        let attr = store.set_attr(id, &set).unwrap();
        assert_eq!((attr.atime, attr.mtime), (EARLY, EARLY));
        assert!(attr.ctime > EARLY, "the store's clock");
    }
    assert!(store.attr(file.id).unwrap().mtime == EARLY);
}

fn now(store: &dyn Store) {
    let file = create(store, ROOT, "f").entry;
    let set =
        SetAttr { atime: Some(TimeSet::At(EARLY)), mtime: Some(TimeSet::At(EARLY)), ..Default::default() };
    store.set_attr(file.id, &set).unwrap();
    let set = SetAttr { mtime: Some(TimeSet::Now), ..Default::default() };
    let attr = store.set_attr(file.id, &set).unwrap();
    assert_eq!(attr.atime, EARLY);
    assert!(attr.mtime >= file.attr.mtime);
}

fn all_at_once(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    write(&*made.file, b"12345", 0);
    let set = SetAttr {
        perm: Some(0o4711),
        uid: is_root().then_some(9),
        gid: is_root().then_some(8),
        size: Some(3),
        atime: Some(TimeSet::At(EARLIER)),
        mtime: Some(TimeSet::At(EARLY)),
    };
    let attr = store.set_attr(made.entry.id, &set).unwrap();
    if is_root() {
        assert_eq!((attr.uid, attr.gid, attr.perm), (9, 8, 0o4711));
    }
    assert_eq!((attr.size, attr.atime, attr.mtime), (3, EARLIER, EARLY));
    assert_eq!(steady(store.attr(made.entry.id).unwrap()), steady(attr));
}

/// Sets all times of `id` far back, and returns which of them `work` moved.
fn moved(store: &dyn Store, id: watertight_store::ObjectId, work: impl FnOnce()) -> (bool, bool) {
    let back = SetAttr { mtime: Some(TimeSet::At(EARLY)), ..Default::default() };
    let before = store.set_attr(id, &back).unwrap();
    // The clock of the store may be as coarse as a timer tick: wait for it to move.
    let file = store.tmpfile(ROOT, 0o600, super::me());
    if let Ok(file) = file {
        loop {
            let touch = SetAttr { perm: Some(0o600), ..Default::default() };
            if store.set_attr(file.entry.id, &touch).unwrap().ctime > before.ctime {
                break;
            }
            std::thread::yield_now();
        }
        store.forget(file.entry.id, 1);
    }
    work();
    let after = store.attr(id).unwrap();
    (after.mtime != EARLY, after.ctime > before.ctime)
}

fn what_moves_which_time(store: &dyn Store) {
    let made = create(store, ROOT, "f");
    let id = made.entry.id;
    let dir = mkdir(store, ROOT, "d").id;
    let set = |set: SetAttr| move || _ = store.set_attr(id, &set).unwrap();
    assert_eq!(moved(store, id, || write(&*made.file, b"abc", 0)), (true, true), "writing");
    assert_eq!(
        moved(store, id, set(SetAttr { size: Some(1), ..Default::default() })),
        (true, true),
        "truncating"
    );
    assert_eq!(
        moved(store, id, set(SetAttr { perm: Some(0o600), ..Default::default() })),
        (false, true),
        "chmod"
    );
    assert_eq!(moved(store, id, || _ = store.link(id, dir, n("l")).unwrap()), (false, true), "linking");
    assert_eq!(moved(store, id, || store.unlink(dir, n("l")).unwrap()), (false, true), "unlinking");
    assert_eq!(moved(store, dir, || drop(create(store, dir, "x"))), (true, true), "creating in it");
    assert_eq!(moved(store, dir, || store.unlink(dir, n("x")).unwrap()), (true, true), "removing from it");
    assert_eq!(moved(store, dir, || _ = mkdir(store, dir, "s")), (true, true));
    let none = watertight_store::RenameFlags::empty();
    assert_eq!(moved(store, dir, || store.rename(dir, n("s"), ROOT, n("s"), none).unwrap()), (true, true));
    assert_eq!(moved(store, dir, || store.rename(ROOT, n("s"), dir, n("s"), none).unwrap()), (true, true));
    let mut buf = [0; 1];
    assert_eq!(moved(store, id, || _ = made.file.read_at(&mut buf, 0).unwrap()), (false, false), "reading");
}

fn setting_nothing(store: &dyn Store) {
    let file = create(store, ROOT, "f").entry;
    assert_eq!(steady(store.set_attr(file.id, &SetAttr::default()).unwrap()), steady(file.attr));
}
