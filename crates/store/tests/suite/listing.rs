//! Listings.

use std::collections::BTreeSet;

use watertight_store::{Dir, DirEntry, FileType, Store};

use super::{ROOT, Scenario, create, list, mkdir, n, symlink};

pub(crate) const SCENARIOS: &[Scenario] = &[
    ("dots_and_kinds", dots_and_kinds),
    ("stops_and_goes_on", stops_and_goes_on),
    ("seeks_to_any_entry", seeks_to_any_entry),
    ("removal_while_listing", removal_while_listing),
    ("creation_while_listing", creation_while_listing),
    ("removed_directory", removed_directory),
];

fn take(dir: &dyn Dir, offset: u64, max: usize) -> Vec<DirEntry> {
    let mut got = Vec::new();
    dir.list(offset, &mut |entry| {
        if got.len() == max {
            return false;
        }
        got.push(entry);
        true
    })
    .unwrap();
    got
}

fn dots_and_kinds(store: &dyn Store) {
    let dir = mkdir(store, ROOT, "d");
    create(store, dir.id, "f");
    symlink(store, dir.id, "l", "f");
    let entries = take(&*store.open_dir(dir.id).unwrap(), 0, usize::MAX);
    let find = |name: &str| entries.iter().find(|e| e.name == name).unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(entries.len(), 4);
    assert_eq!(find(".").ino, dir.attr.ino);
    assert_eq!(find("..").ino, store.attr(ROOT).unwrap().ino);
    for (name, kind) in [(".", FileType::Directory), ("f", FileType::Regular), ("l", FileType::Symlink)] {
        assert!(find(name).kind.is_none_or(|k| k == kind), "{name}");
    }
    let top = take(&*store.open_dir(ROOT).unwrap(), 0, usize::MAX);
    let own = store.attr(ROOT).unwrap().ino;
    assert!(top.iter().filter(|e| e.name == "." || e.name == "..").all(|e| e.ino == own));
}

/// Enough for several system calls.
const MANY: usize = 3000;

fn fill(store: &dyn Store) -> BTreeSet<String> {
    (0..MANY)
        .map(|i| {
            let name = format!("file-with-a-rather-long-name-{i}");
            let made = create(store, ROOT, &name);
            store.forget(made.entry.id, 1);
            name
        })
        .collect()
}

fn names_of(entries: impl IntoIterator<Item = DirEntry>) -> Vec<String> {
    entries.into_iter().map(|e| e.name.into_string().unwrap()).filter(|n| n != "." && n != "..").collect()
}

fn stops_and_goes_on(store: &dyn Store) {
    let all = fill(store);
    for step in [1, 7, 500, 100_000] {
        let dir = store.open_dir(ROOT).unwrap();
        let mut got = Vec::new();
        let mut offset = 0;
        loop {
            let part = take(&*dir, offset, step);
            let Some(last) = part.last() else { break };
            offset = last.next;
            got.extend(names_of(part));
        }
        assert_eq!(got.len(), MANY, "each once, in steps of {step}");
        assert_eq!(got.into_iter().collect::<BTreeSet<_>>(), all);
    }
}

fn seeks_to_any_entry(store: &dyn Store) {
    fill(store);
    let dir = store.open_dir(ROOT).unwrap();
    let entries = take(&*dir, 0, usize::MAX);
    for at in [0, 1, 2, 700, 1999, MANY] {
        let rest = take(&*dir, entries[at].next, usize::MAX);
        let expected: Vec<_> = entries[at + 1..].iter().map(|e| &e.name).collect();
        assert_eq!(rest.iter().map(|e| &e.name).collect::<Vec<_>>(), expected, "from {at}");
    }
    assert_eq!(take(&*dir, 0, 3).len(), 3);
    let again = take(&*dir, 0, usize::MAX);
    assert_eq!(again.len(), entries.len(), "from the start after a part");
}

fn removal_while_listing(store: &dyn Store) {
    let all = fill(store);
    let dir = store.open_dir(ROOT).unwrap();
    let mut seen = Vec::new();
    let mut offset = 0;
    loop {
        let part = take(&*dir, offset, 50);
        let Some(last) = part.last() else { break };
        offset = last.next;
        for name in names_of(part) {
            store.unlink(ROOT, n(&name)).unwrap();
            seen.push(name);
        }
    }
    assert_eq!(seen.len(), MANY, "rm -r sees each entry once");
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), all);
    assert!(list(store, ROOT).is_empty());
}

fn creation_while_listing(store: &dyn Store) {
    let all = fill(store);
    let dir = store.open_dir(ROOT).unwrap();
    let mut got = Vec::new();
    let mut offset = 0;
    let mut i = 0;
    loop {
        let part = take(&*dir, offset, 100);
        let Some(last) = part.last() else { break };
        offset = last.next;
        got.extend(names_of(part));
        if i < 20 {
            create(store, ROOT, &format!("new-{i}"));
            i += 1;
        }
    }
    let old: Vec<_> = got.into_iter().filter(|n| all.contains(n)).collect();
    assert_eq!(old.len(), MANY, "what was there is listed once");
    let shown = take(&*dir, 0, usize::MAX).len();
    assert_eq!(shown, MANY + 20 + 2, "from the start, new entries show");
}

fn removed_directory(store: &dyn Store) {
    let dir = mkdir(store, ROOT, "d");
    let open = store.open_dir(dir.id).unwrap();
    store.rmdir(ROOT, n("d")).unwrap();
    let mut names = Vec::new();
    // Linux file systems differ: some say ENOENT, some list nothing.
    let result = open.list(0, &mut |e| {
        names.push(e.name);
        true
    });
    if let Err(e) = result {
        assert_eq!(e.kind(), watertight_store::ErrorKind::NotFound);
    }
    assert!(names.iter().all(|n| n == "." || n == ".."));
}
