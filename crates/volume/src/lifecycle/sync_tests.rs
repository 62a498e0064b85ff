//! Changes that an isolated sync may not take for durable. Cgroups here are only names; real ones
//! are in the program's tests.

use cgroups::CgroupId;
use store::{FaultOp, FaultStore, MemStore};
use writeback::Inode as _;

use super::*;
use crate::{HandleId, NodeId, OpenFlags, Options, WriteFlags};

const A: CgroupId = CgroupId(1);
const B: CgroupId = CgroupId(2);
const CHILD: CgroupId = CgroupId(3);

struct Rig {
    volume: Arc<Volume>,
    store: Arc<FaultStore>,
}

fn at(path: &str) -> CgroupPath {
    path.parse().expect("a path")
}

impl Rig {
    /// Cgroups `/a`, with `/a/child`, and `/b`, all isolated.
    fn new() -> Self {
        let store = FaultStore::new(MemStore::new(1 << 30), "").expect("no rules");
        let options = Options { flushers: 0, sync_policy: SyncPolicy::Isolated, ..Options::default() };
        let volume = Volume::new(Arc::clone(&store) as _, options).expect("a volume");
        let cgroups = volume.core.options.tenants.switcher.cgroups();
        for (owner, parent, name) in [(A, CgroupId::ROOT, "a"), (B, CgroupId::ROOT, "b"), (CHILD, A, "child")]
        {
            cgroups.add_named(owner, parent, std::ffi::OsStr::new(name));
        }
        Self { volume, store }
    }

    fn with<R>(&self, call: impl FnOnce(&Ctx<'_>) -> R) -> R {
        call(&Ctx { caller: Caller::default(), cancel: &Cancel::default(), before_wait: &|| {} })
    }

    /// A file for `owner`.
    fn file(&self, owner: CgroupId) -> (Arc<Inode>, HandleId) {
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let name = std::ffi::OsStr::new("file");
        let made = self.with(|ctx| self.volume.create(ctx, NodeId::ROOT, name, 0o644, flags));
        let (entry, handle) = made.expect("a new file");
        let inode = self.volume.inode(entry.id).expect("it is known");
        self.volume.core.bdi.attach(&inode, owner);
        // The name is durable.
        self.volume.sync_all().expect("durable");
        (inode, handle)
    }

    fn write(&self, handle: HandleId, len: usize) {
        let written = self.with(|ctx| self.volume.write(ctx, handle, 0, &vec![7; len], WriteFlags::empty()));
        assert_eq!(written, Ok(len));
    }

    /// Does a flusher's work.
    fn flush(&self, inode: &Arc<Inode>) {
        assert_eq!(inode.write_back(), writeback::Outcome::Clean);
        assert!(self.volume.core.bdi.del_dirty(inode), "it was listed");
    }

    /// Whether a sync by a caller at `path` asks the store.
    fn asks_store(&self, path: &str) -> bool {
        let before = self.store.calls(FaultOp::StoreSync);
        self.volume.sync_as(&at(path), None).expect("durable");
        self.store.calls(FaultOp::StoreSync) > before
    }
}

#[test]
fn what_was_written_for_a_child_that_is_removed_since_is_not_taken_for_durable() {
    for path in ["/a", "/b"] {
        let rig = Rig::new();
        let (inode, file) = rig.file(CHILD);
        rig.write(file, 4096);
        rig.flush(&inode);
        assert!(!rig.asks_store("/b"), "nothing of it");
        rig.volume.core.options.tenants.switcher.remove_cgroup(CHILD);
        assert!(rig.asks_store(path), "it may be anybody's");
        assert!(!rig.asks_store(path), "and is durable then");
    }
}

#[test]
fn what_a_cgroup_has_is_told_from_what_others_have() {
    let rig = Rig::new();
    let has = |path| rig.volume.has_unsynced_of(&at(path));
    let (inode, file) = rig.file(CHILD);
    assert!(!has("/"));
    rig.write(file, 4096);
    assert_eq!(["/a/child", "/a", "/", "/b"].map(has), [true, true, true, false], "dirty");
    rig.flush(&inode);
    assert_eq!(["/a/child", "/a", "/", "/b"].map(has), [true, true, true, false], "written");
    rig.volume.sync_all().expect("durable");
    assert!(!has("/"));
}

/// Has the flusher write the file as often as it takes for `B`, which writes most of it, to become
/// its owner.
fn switch_to_b(rig: &Rig, inode: &Arc<Inode>, file: HandleId) {
    let bdi = &rig.volume.core.bdi;
    for round in 0.. {
        assert!(round < 16, "sixteen rounds of another's: it should have changed its owner");
        rig.write(file, 4096);
        // The first outvotes the tenant that the write counts for; the second makes the round long.
        bdi.note_write(inode, B, 4096);
        bdi.note_write(inode, B, 1 << 30);
        // Without the file's times, which a flusher would set now, and which count as well.
        let (_, pages) = inode.writeout(&inode.unthrottled_write(), None, false).expect("written");
        assert_eq!(pages, 1);
        rig.volume.core.options.tenants.switcher.flush();
        if bdi.owner_of(inode) == Some(B) {
            return;
        }
    }
}

#[test]
fn what_was_written_of_a_file_that_changes_its_owner_is_durable_for_neither() {
    for path in ["/a", "/b"] {
        let rig = Rig::new();
        let (inode, file) = rig.file(A);
        switch_to_b(&rig, &inode, file);
        let (owner, unsynced) = (if path == "/a" { A } else { B }, &rig.volume.core.unsynced);
        assert!(unsynced.is_any(|whose| whose == owner), "{path}");
        assert!(rig.volume.has_unsynced_of(&at(path)), "{path}");
        rig.flush(&inode);
        assert!(rig.asks_store(path), "{path}");
    }
}
