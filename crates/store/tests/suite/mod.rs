//! The behaviour of every store, as functions over a fresh, empty store.

#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod data;
mod listing;
mod names;
mod open_unlinked;
mod times_and_owners;
mod xattrs;

use std::ffi::OsStr;
use std::io::IoSlice;
use std::sync::Arc;

use watertight_store::{
    Access, Attr, Created, Creator, Entry, Error, ErrorKind, File, Name, NewNode, ObjectId, Store,
};

/// One scenario: its name and its function.
pub(crate) type Scenario = (&'static str, fn(&dyn Store));

/// All of them.
pub(crate) fn scenarios() -> impl Iterator<Item = Scenario> {
    [
        names::SCENARIOS,
        data::SCENARIOS,
        listing::SCENARIOS,
        open_unlinked::SCENARIOS,
        times_and_owners::SCENARIOS,
        xattrs::SCENARIOS,
    ]
    .into_iter()
    .flatten()
    .copied()
}

pub(crate) const ROOT: ObjectId = ObjectId::ROOT;

/// A checked name.
pub(crate) fn n(name: &str) -> Name<'_> {
    Name::new(OsStr::new(name)).unwrap()
}

/// This process's user, without a umask.
pub(crate) fn me() -> Creator {
    Creator { uid: rustix::process::getuid().as_raw(), gid: rustix::process::getgid().as_raw(), umask: 0 }
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(crate) fn kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    result.unwrap_err().kind()
}

pub(crate) fn mkdir(store: &dyn Store, parent: ObjectId, name: &str) -> Entry {
    store.make(parent, n(name), NewNode::Directory, 0o755, me()).unwrap()
}

pub(crate) fn create(store: &dyn Store, parent: ObjectId, name: &str) -> Created {
    store.create(parent, n(name), 0o644, me()).unwrap()
}

pub(crate) fn symlink(store: &dyn Store, parent: ObjectId, name: &str, target: &str) -> Entry {
    store.make(parent, n(name), NewNode::Symlink(OsStr::new(target)), 0o777, me()).unwrap()
}

/// Makes a file with this content and gives its entry.
pub(crate) fn file_with(store: &dyn Store, parent: ObjectId, name: &str, content: &[u8]) -> Entry {
    let created = create(store, parent, name);
    write(&*created.file, content, 0);
    created.entry
}

pub(crate) fn write(file: &dyn File, content: &[u8], offset: u64) {
    file.write_at(&[IoSlice::new(content)], offset).unwrap();
}

/// All bytes of `id`, by its size.
pub(crate) fn content(store: &dyn Store, id: ObjectId) -> Vec<u8> {
    let size = store.attr(id).unwrap().size;
    let mut buf = vec![0xAA; usize::try_from(size).unwrap() + 1];
    let len = store.open(id, Access::Read).unwrap().read_at(&mut buf, 0).unwrap();
    assert_eq!(len as u64, size, "read to the end is as long as the size says");
    buf.truncate(len);
    buf
}

pub(crate) fn lookup(store: &dyn Store, parent: ObjectId, name: &str) -> Entry {
    store.lookup(parent, n(name)).unwrap()
}

pub(crate) fn exists(store: &dyn Store, parent: ObjectId, name: &str) -> bool {
    match store.lookup(parent, n(name)) {
        Ok(entry) => {
            store.forget(entry.id, 1);
            true
        }
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::NotFound);
            false
        }
    }
}

/// Names in a directory, sorted, without `.` and `..`.
pub(crate) fn list(store: &dyn Store, id: ObjectId) -> Vec<String> {
    let mut names = Vec::new();
    let dir = store.open_dir(id).unwrap();
    dir.list(0, &mut |e| {
        names.push(e.name.into_string().unwrap());
        true
    })
    .unwrap();
    names.retain(|name| name != "." && name != "..");
    names.sort();
    names
}

/// Attributes without those that a mere read may change.
pub(crate) fn steady(attr: Attr) -> Attr {
    Attr { atime: Default::default(), ..attr }
}

/// Runs each scenario on a store that `make` makes, and prints the name of one that failed.
pub(crate) fn run(make: impl Fn() -> Arc<dyn Store>) {
    for (name, scenario) in scenarios() {
        let store = make();
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| scenario(&*store)));
        store.close();
        if let Err(panic) = result {
            eprintln!("scenario {name} failed on {}", store.describe());
            std::panic::resume_unwind(panic);
        }
    }
}
