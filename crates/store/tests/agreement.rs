//! A directory store and a memory store agree: the same calls give the same answers and the same
//! tree.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod suite;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::IoSlice;
use std::sync::Arc;

use proptest::prelude::*;
use suite::{ROOT, content, is_root, n};
use watertight_store::{
    Access, AllocateMode, Attr, Creator, DirOptions, DirStore, ErrorKind, File, FileType, MemStore, NewNode,
    ObjectId, RenameFlags, Result, SetAttr, SetXattr, Store, TimeSet, Timestamp,
};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
/// Objects that a test keeps references on.
const SLOTS: usize = 6;

#[derive(Debug, Clone)]
enum Op {
    /// Finds a name in the directory of a slot and keeps the object in another slot.
    Lookup {
        dir: usize,
        name: usize,
        to: usize,
    },
    Create {
        dir: usize,
        name: usize,
        perm: u32,
        to: usize,
        creator: usize,
    },
    Make {
        dir: usize,
        name: usize,
        what: u8,
        perm: u32,
        to: usize,
        creator: usize,
    },
    Tmpfile {
        dir: usize,
        to: usize,
    },
    Link {
        of: usize,
        dir: usize,
        name: usize,
    },
    Unlink {
        dir: usize,
        name: usize,
    },
    Rmdir {
        dir: usize,
        name: usize,
    },
    Rename {
        dir: usize,
        name: usize,
        new_dir: usize,
        new_name: usize,
        flags: u32,
    },
    Forget {
        of: usize,
    },
    Write {
        of: usize,
        at: u64,
        len: usize,
        byte: u8,
    },
    Truncate {
        of: usize,
        size: u64,
    },
    Punch {
        of: usize,
        at: u64,
        len: u64,
        mode: u32,
    },
    Copy {
        from: usize,
        at: u64,
        to: usize,
        to_at: u64,
        len: u64,
    },
    Chmod {
        of: usize,
        perm: u32,
    },
    Chown {
        of: usize,
        creator: usize,
    },
    Times {
        of: usize,
        secs: i64,
    },
    SetXattr {
        of: usize,
        name: usize,
        len: usize,
        how: u8,
    },
    RemoveXattr {
        of: usize,
        name: usize,
    },
    Sync {
        of: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let slot = || 0..SLOTS;
    let name = || 0..NAMES.len();
    let perm = || prop_oneof![Just(0o644u32), Just(0o755), Just(0o4755), Just(0o2775), Just(0o1777), Just(0)];
    // Around the blocks of both.
    let at = || prop_oneof![0..5000u64, 65_000..66_000u64, 130_000..132_000u64];
    prop_oneof![
        4 => (slot(), name(), slot()).prop_map(|(dir, name, to)| Op::Lookup { dir, name, to }),
        6 => (slot(), name(), perm(), slot(), 0..3usize)
            .prop_map(|(dir, name, perm, to, creator)| Op::Create { dir, name, perm, to, creator }),
        6 => (slot(), name(), 0..4u8, perm(), slot(), 0..3usize)
            .prop_map(|(dir, name, what, perm, to, creator)| Op::Make { dir, name, what, perm, to, creator }),
        1 => (slot(), slot()).prop_map(|(dir, to)| Op::Tmpfile { dir, to }),
        3 => (slot(), slot(), name()).prop_map(|(of, dir, name)| Op::Link { of, dir, name }),
        3 => (slot(), name()).prop_map(|(dir, name)| Op::Unlink { dir, name }),
        3 => (slot(), name()).prop_map(|(dir, name)| Op::Rmdir { dir, name }),
        8 => (slot(), name(), slot(), name(), prop_oneof![3 => Just(0u32), 1 => Just(1), 1 => Just(2), 1 => Just(3)])
            .prop_map(|(dir, name, new_dir, new_name, flags)| Op::Rename { dir, name, new_dir, new_name, flags }),
        2 => slot().prop_map(|of| Op::Forget { of }),
        5 => (slot(), at(), 0..70_000usize, 1..255u8).prop_map(|(of, at, len, byte)| Op::Write { of, at, len, byte }),
        3 => (slot(), at()).prop_map(|(of, size)| Op::Truncate { of, size }),
        2 => (slot(), at(), 0..70_000u64, prop_oneof![Just(0u32), Just(1), Just(3), Just(0x10), Just(0x11)])
            .prop_map(|(of, at, len, mode)| Op::Punch { of, at, len, mode }),
        2 => (slot(), at(), slot(), at(), 0..150_000u64)
            .prop_map(|(from, at, to, to_at, len)| Op::Copy { from, at, to, to_at, len }),
        2 => (slot(), perm()).prop_map(|(of, perm)| Op::Chmod { of, perm }),
        1 => (slot(), 0..3usize).prop_map(|(of, creator)| Op::Chown { of, creator }),
        1 => (slot(), -1000..1000i64).prop_map(|(of, secs)| Op::Times { of, secs }),
        2 => (slot(), 0..3usize, 0..100usize, 0..3u8).prop_map(|(of, name, len, how)| Op::SetXattr { of, name, len, how }),
        1 => (slot(), 0..3usize).prop_map(|(of, name)| Op::RemoveXattr { of, name }),
        1 => slot().prop_map(|of| Op::Sync { of }),
    ]
}

/// The attributes of an object in which both stores must agree.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    kind: FileType,
    perm: u32,
    nlink: u32,
    uid: u32,
    gid: u32,
    rdev: u32,
    /// Of a directory, each store has its own.
    size: u64,
}

fn seen(attr: Attr) -> Seen {
    let Attr { kind, perm, nlink, uid, gid, rdev, size, .. } = attr;
    let size = if kind == FileType::Directory { 0 } else { size };
    Seen { kind, perm, nlink, uid, gid, rdev, size }
}

/// One store and the objects that the test holds.
struct Side {
    store: Arc<dyn Store>,
    slots: Vec<Option<ObjectId>>,
    has_xattrs: bool,
}

/// The outcome of a step; `None` where nothing was done.
type Outcome = Option<Result<Seen, ErrorKind>>;

fn creator(which: usize) -> Creator {
    let me = suite::me();
    match which {
        1 if is_root() => Creator { uid: 1000, gid: 1001, umask: 0o022 },
        2 if is_root() => Creator { uid: 65534, gid: 65534, umask: 0o077 },
        _ => Creator { umask: 0o002, ..me },
    }
}

impl Side {
    fn new(store: Arc<dyn Store>) -> Self {
        let mut slots = vec![None; SLOTS];
        slots[0] = Some(ROOT);
        let probe = store.set_xattr(ROOT, OsStr::new("user.probe"), b"", SetXattr::Any);
        let has_xattrs = probe.is_ok();
        if has_xattrs {
            store.remove_xattr(ROOT, OsStr::new("user.probe")).unwrap();
        }
        Self { store, slots, has_xattrs }
    }

    fn id(&self, slot: usize) -> Option<ObjectId> {
        self.slots[slot]
    }

    /// Puts an object that came with a reference into a slot; the root stays in the first.
    fn keep(&mut self, slot: usize, id: ObjectId) {
        if slot == 0 {
            self.store.forget(id, 1);
        } else if let Some(old) = self.slots[slot].replace(id) {
            self.store.forget(old, 1);
        }
    }

    fn look(&self, result: Result<()>, id: ObjectId) -> Result<Seen> {
        result.and_then(|()| self.store.attr(id)).map(seen)
    }

    fn file(&self, slot: usize) -> Option<(ObjectId, Result<Arc<dyn File>>)> {
        let id = self.id(slot)?;
        Some((id, self.store.open(id, Access::ReadWrite)))
    }

    fn step(&mut self, op: &Op) -> Outcome {
        self.try_step(op).map(|result| {
            result.map_err(|e| match (op, e.kind()) {
                // ext4's answer for a directory that was removed.
                (Op::Tmpfile { .. }, ErrorKind::NotPermitted) => ErrorKind::NotFound,
                (_, kind) => kind,
            })
        })
    }

    fn try_step(&mut self, op: &Op) -> Option<Result<Seen>> {
        match *op {
            Op::Lookup { .. }
            | Op::Create { .. }
            | Op::Make { .. }
            | Op::Tmpfile { .. }
            | Op::Link { .. } => self.enter(op),
            Op::Unlink { .. } | Op::Rmdir { .. } | Op::Rename { .. } => self.rename_or_remove(op),
            Op::Forget { of } => {
                if of != 0
                    && let Some(id) = self.slots[of].take()
                {
                    self.store.forget(id, 1);
                }
                None
            }
            Op::Write { .. } | Op::Truncate { .. } | Op::Punch { .. } | Op::Copy { .. } | Op::Sync { .. } => {
                self.data(op)
            }
            _ => self.attributes(op),
        }
    }

    fn enter(&mut self, op: &Op) -> Option<Result<Seen>> {
        let store = Arc::clone(&self.store);
        let (result, to) = match *op {
            Op::Lookup { dir, name, to } => (store.lookup(self.id(dir)?, n(NAMES[name])), to),
            Op::Create { dir, name, perm, to, creator: by } => {
                (store.create(self.id(dir)?, n(NAMES[name]), perm, creator(by)).map(|c| c.entry), to)
            }
            Op::Make { dir, name, what, perm, to, creator: by } => {
                let what = match what {
                    0 => NewNode::Symlink(OsStr::new("target")),
                    1 => NewNode::Special { kind: FileType::Fifo, rdev: 0 },
                    _ => NewNode::Directory,
                };
                // The effect of mkdir(2) on set-id bits differs between file systems.
                (store.make(self.id(dir)?, n(NAMES[name]), what, perm & 0o777, creator(by)), to)
            }
            Op::Tmpfile { dir, to } => (store.tmpfile(self.id(dir)?, 0o600, creator(0)).map(|c| c.entry), to),
            Op::Link { of, dir, name } => {
                let result = store.link(self.id(of)?, self.id(dir)?, n(NAMES[name]));
                return Some(result.map(|entry| {
                    store.forget(entry.id, 1);
                    seen(entry.attr)
                }));
            }
            _ => return None,
        };
        Some(result.map(|entry| {
            self.keep(to, entry.id);
            seen(entry.attr)
        }))
    }

    fn rename_or_remove(&mut self, op: &Op) -> Option<Result<Seen>> {
        let store = &self.store;
        let result = match *op {
            Op::Unlink { dir, name } => store.unlink(self.id(dir)?, n(NAMES[name])),
            Op::Rmdir { dir, name } => store.rmdir(self.id(dir)?, n(NAMES[name])),
            Op::Rename { dir, name, new_dir, new_name, flags } => {
                let flags = RenameFlags::from_bits_truncate(flags);
                store.rename(self.id(dir)?, n(NAMES[name]), self.id(new_dir)?, n(NAMES[new_name]), flags)
            }
            _ => return None,
        };
        Some(self.look(result, ROOT))
    }

    fn data(&mut self, op: &Op) -> Option<Result<Seen>> {
        let (id, result) = match *op {
            Op::Write { of, at, len, byte } => {
                let (id, file) = self.file(of)?;
                let data = vec![byte; len];
                let (a, b) = data.split_at(len / 3);
                (id, file.and_then(|f| f.write_at(&[IoSlice::new(a), IoSlice::new(b)], at)))
            }
            Op::Truncate { of, size } => {
                let id = self.id(of)?;
                let set = SetAttr { size: Some(size), ..Default::default() };
                (id, self.store.set_attr(id, &set).map(drop))
            }
            Op::Punch { of, at, len, mode } => {
                let (id, file) = self.file(of)?;
                (id, file.and_then(|f| f.allocate(AllocateMode::from_bits_truncate(mode), at, len)))
            }
            Op::Copy { from, at, to, to_at, len } => {
                let (from, to) = (self.id(from)?, self.id(to)?);
                (to, self.copy(from, at, to, to_at, len))
            }
            Op::Sync { of } => {
                let (id, file) = self.file(of)?;
                (id, file.and_then(|f| f.sync(false)).and_then(|()| self.store.sync()))
            }
            _ => return None,
        };
        Some(self.look(result, id))
    }

    /// All of it, however much one call copies.
    fn copy(&self, from: ObjectId, at: u64, to: ObjectId, to_at: u64, len: u64) -> Result<()> {
        let mut done = 0;
        while done < len {
            match self.store.copy_range(from, at + done, to, to_at + done, len - done)? {
                0 => break,
                n => done += n,
            }
        }
        Ok(())
    }

    fn attributes(&mut self, op: &Op) -> Option<Result<Seen>> {
        let store = &self.store;
        let set = match *op {
            Op::Chmod { of, perm } => (of, SetAttr { perm: Some(perm), ..Default::default() }),
            Op::Chown { of, creator: to } if is_root() => {
                let Creator { uid, gid, .. } = creator(to);
                (of, SetAttr { uid: Some(uid), gid: Some(gid), ..Default::default() })
            }
            Op::Times { of, secs } => {
                let time = Timestamp { secs, nanos: 5 };
                let id = self.id(of)?;
                let set = SetAttr { mtime: Some(TimeSet::At(time)), ..Default::default() };
                return Some(store.set_attr(id, &set).map(|attr| {
                    assert_eq!(attr.mtime, time);
                    seen(attr)
                }));
            }
            Op::SetXattr { of, name, len, how } if self.has_xattrs => {
                let how = [SetXattr::Any, SetXattr::Create, SetXattr::Replace][usize::from(how)];
                let id = self.id(of)?;
                let name = format!("user.{}", NAMES[name]);
                return Some(self.look(store.set_xattr(id, OsStr::new(&name), &vec![7; len], how), id));
            }
            Op::RemoveXattr { of, name } if self.has_xattrs => {
                let id = self.id(of)?;
                let name = format!("user.{}", NAMES[name]);
                return Some(self.look(store.remove_xattr(id, OsStr::new(&name)), id));
            }
            _ => return None,
        };
        Some(store.set_attr(self.id(set.0)?, &set.1).map(seen))
    }

    /// Everything below a directory, by path, with content and attributes.
    fn tree(&self) -> BTreeMap<String, (Seen, Vec<u8>, Vec<String>)> {
        let mut tree = BTreeMap::from([("/".to_owned(), self.object(ROOT))]);
        let mut todo = vec![(ROOT, String::new())];
        while let Some((dir, path)) = todo.pop() {
            for name in suite::list(&*self.store, dir) {
                let entry = self.store.lookup(dir, n(&name)).unwrap();
                let path = format!("{path}/{name}");
                tree.insert(path.clone(), self.object(entry.id));
                if entry.attr.kind == FileType::Directory {
                    todo.push((entry.id, path));
                } else {
                    self.store.forget(entry.id, 1);
                }
            }
            if dir != ROOT {
                self.store.forget(dir, 1);
            }
        }
        tree
    }

    fn object(&self, id: ObjectId) -> (Seen, Vec<u8>, Vec<String>) {
        let attr = self.store.attr(id).unwrap();
        let data = match attr.kind {
            FileType::Regular => content(&*self.store, id),
            FileType::Symlink => self.store.read_link(id).unwrap().into_encoded_bytes(),
            _ => Vec::new(),
        };
        let raw = if self.has_xattrs { self.store.list_xattr(id).unwrap() } else { Vec::new() };
        let mut xattrs: Vec<_> = raw
            .split(|&b| b == 0)
            .filter(|name| name.starts_with(b"user."))
            .map(|name| {
                let name = String::from_utf8(name.to_vec()).unwrap();
                let len = self.store.get_xattr(id, OsStr::new(&name)).unwrap().len();
                format!("{name}={len}")
            })
            .collect();
        xattrs.sort();
        (seen(attr), data, xattrs)
    }
}

fn run(ops: &[Op]) {
    let top = tempfile::tempdir().unwrap();
    // Few descriptors, so that evicting them takes part.
    let options = DirOptions { open_max: Some(1), unsynced_max: Some(8), ..Default::default() };
    let dir = DirStore::open_with(top.path(), options).unwrap();
    let mut dir = Side::new(dir);
    let mut mem = Side::new(MemStore::new(256 << 20));
    mem.has_xattrs = dir.has_xattrs;
    let root = seen(dir.store.attr(ROOT).unwrap());
    let same =
        SetAttr { perm: Some(root.perm), uid: Some(root.uid), gid: Some(root.gid), ..Default::default() };
    mem.store.set_attr(ROOT, &same).unwrap();
    for (i, op) in ops.iter().enumerate() {
        let (a, b) = (dir.step(op), mem.step(op));
        assert_eq!(a, b, "directory and memory, step {i}: {op:?}");
    }
    let (a, b) = (dir.tree(), mem.tree());
    assert_eq!(a.keys().collect::<Vec<_>>(), b.keys().collect::<Vec<_>>());
    for (path, object) in &a {
        assert!(*object == b[path], "{path}: {:?} and {:?}", object.0, b[path].0);
    }
    for slot in 1..SLOTS {
        if let (Some(x), Some(y)) = (dir.id(slot), mem.id(slot)) {
            assert!(dir.object(x) == mem.object(y), "the object in slot {slot}");
        }
    }
    dir.store.sync().unwrap();
    dir.store.close();
    mem.store.close();
}

/// Enough that replacing an empty directory comes up; more with `PROPTEST_CASES`.
fn config() -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(600);
    ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn directory_and_memory_agree(ops in prop::collection::vec(op(), 1..120)) {
        run(&ops);
    }
}
