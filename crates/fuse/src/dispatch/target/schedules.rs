//! Requests beside changes of the tree, under many schedules, with mutants that the same tests
//! catch.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use std::ffi::OsStr;
use std::path::Path;

use store::{At as When, HookStore, MemStore, NewNode};
use sync::atomic::{AtomicUsize, Ordering};
use sync::{model, mutant, thread};
use volume::{Caller, Cancel, Ctx, OpenFlags, Options, Volume};

use super::*;
use crate::device::Dev;
use crate::tree::{Detach, Open};

const LOOKUP: Op<'static> = Op::ReadLink;

/// A tree whose root volume has a directory `x`, and a kernel that takes any notification.
struct World {
    tree: Arc<MountTree>,
    x: NodeId,
    _kernel: std::os::fd::OwnedFd,
}

/// A volume that counts its ends, and whose store is not asked anything afterwards.
struct Other {
    volume: Arc<Volume>,
    ends: Arc<AtomicUsize>,
}

fn quiet() -> Options {
    Options { flushers: 1, ..Options::default() }
}

impl World {
    fn new() -> Self {
        let root = Volume::new(MemStore::new(1 << 20), quiet()).unwrap();
        let cancel = Cancel::default();
        let ctx = Ctx { caller: Caller::default(), cancel: &cancel, before_wait: &|| {} };
        let x = root.make(&ctx, NodeId::ROOT, OsStr::new("x"), NewNode::Directory, 0o755).unwrap().id;
        let (kernel, device) = rustix::pipe::pipe().unwrap();
        Self { tree: Arc::new(MountTree::new(root, Arc::new(Dev::new(device)))), x, _kernel: kernel }
    }

    fn attach(&self, other: &Other) -> u64 {
        let ends = Arc::clone(&other.ends);
        // ORDERING: SeqCst, the model's own.
        let on_end = Box::new(move |_: &volume::DrainReport| {
            ends.fetch_add(1, Ordering::SeqCst);
        });
        self.tree.attach((self.tree.first(), Path::new("x")), &other.volume, false, on_end).unwrap();
        let on = self.crossed().expect("attached just now");
        wire::join(on.tag, NodeId::ROOT).unwrap()
    }

    /// The mount that a look-up of `x` crosses into.
    fn crossed(&self) -> Option<Arc<MountNode>> {
        self.tree.crossed(None, self.x)
    }

    fn end(self) {
        self.tree.end();
        self.tree.root().volume.shutdown();
    }
}

impl Other {
    fn new() -> Self {
        let ends = Arc::new(AtomicUsize::new(0));
        let store = HookStore::new(MemStore::new(1 << 20));
        let ended = Arc::clone(&ends);
        store.hook(move |at, op| {
            // ORDERING: SeqCst, the model's own.
            let is_over = at == When::Before && ended.load(Ordering::SeqCst) > 0;
            assert!(!is_over, "{op} was asked of a store that is free");
            Ok(())
        });
        Self { volume: Volume::new(store, quiet()).unwrap(), ends }
    }

    fn ends(&self) -> usize {
        // ORDERING: SeqCst, the model's own.
        self.ends.load(Ordering::SeqCst)
    }
}

/// A request with an old number: of its own volume, or ESTALE.
fn request(tree: &MountTree, cache: &mut SnapshotCache, node: u64, own: &Arc<Volume>) -> bool {
    let Ok((at, _section)) = Target::find(tree, cache, node, &LOOKUP) else { return false };
    assert!(Arc::ptr_eq(&at.served.volume, own), "another volume's files");
    let _whatever = at.served.volume.lookup(at.node, OsStr::new("name"));
    true
}

/// A request beside a detach is of its own volume, and over before the store is free; an old node
/// number belongs to no other volume.
#[test]
fn a_request_beside_a_detach_is_of_its_own_volume_and_over_before_the_store_is_free() {
    model::check(|| {
        let (world, other, next) = (World::new(), Other::new(), Other::new());
        let node = world.attach(&other);
        let (tree, volume) = (Arc::clone(&world.tree), Arc::clone(&other.volume));
        let asking = thread::spawn(move || {
            let mut cache = SnapshotCache::default();
            for _ in 0..2 {
                request(&tree, &mut cache, node, &volume);
            }
        });
        world.tree.detach((world.tree.first(), Path::new("x")), Detach::Sync, |_| {}).unwrap();
        assert_eq!(other.ends(), 1, "detached, and not ended");
        let other_node = world.attach(&next);
        assert!(
            !request(&world.tree, &mut SnapshotCache::default(), node, &other.volume),
            "there is no such volume"
        );
        assert!(request(&world.tree, &mut SnapshotCache::default(), other_node, &next.volume));
        asking.join().unwrap();
        world.end();
        assert_eq!((other.ends(), next.ends()), (1, 1));
    });
}

/// What was attached is found by the next request, also on top of what was attached before.
#[test]
fn a_request_after_an_attach_finds_it() {
    model::check(|| {
        let (world, first, second) = (World::new(), Other::new(), Other::new());
        let mut cache = SnapshotCache::default();
        let node = world.attach(&first);
        assert!(request(&world.tree, &mut cache, node, &first.volume));
        // On top of the first.
        let above = world.attach(&second);
        let crossed = world.crossed().unwrap();
        assert!(Arc::ptr_eq(&crossed.served.volume, &second.volume), "not the uppermost");
        assert!(request(&world.tree, &mut cache, above, &second.volume), "attached, and not found");
        // One after the other: the checker runs only threads that it made itself.
        for _ in 0..2 {
            world.tree.detach((world.tree.first(), Path::new("x")), Detach::Sync, |_| {}).unwrap();
        }
        assert_eq!((first.ends(), second.ends()), (1, 1));
        world.end();
    });
}

/// What is open beside a lazy detach is served, and its release ends the volume, once; no name is
/// found in what is gone.
#[test]
fn what_is_open_beside_a_lazy_detach_is_served_and_ends_the_volume_once() {
    model::check(|| {
        let (world, other) = (World::new(), Other::new());
        let node = world.attach(&other);
        let (tree, volume) = (Arc::clone(&world.tree), Arc::clone(&other.volume));
        let using = thread::spawn(move || {
            let cancel = Cancel::default();
            let ctx = Ctx { caller: Caller::default(), cancel: &cancel, before_wait: &|| {} };
            let mut cache = SnapshotCache::default();
            let mut kept = None;
            if let Ok((at, _section)) = Target::find(&tree, &mut cache, node, &LOOKUP)
                && let Ok(hold) = at.mount_node.unwrap().superblock.get_active()
            {
                let made = volume.create(&ctx, NodeId::ROOT, OsStr::new("f"), 0o644, OpenFlags::WRITE);
                let (_, handle) = made.unwrap();
                at.served.opened(Open::File, handle, Some(hold));
                volume.release(handle);
                kept = at.served.released(Open::File, handle);
            }
            drop(kept);
        });
        world.tree.detach((world.tree.first(), Path::new("x")), Detach::Lazy, |_| {}).unwrap();
        let found = Target::find(&world.tree, &mut SnapshotCache::default(), node, &LOOKUP).err();
        assert_eq!(found, Some(Errno::STALE), "a name was found in what is gone");
        assert!(world.crossed().is_none());
        using.join().unwrap();
        assert_eq!(other.ends(), 1, "nothing is open, and it has not ended");
        world.end();
    });
}

#[test]
fn mistakes_are_caught() {
    let test = |name: &str| format!("dispatch::target::schedules::{name}");
    let beside = test("a_request_beside_a_detach_is_of_its_own_volume_and_over_before_the_store_is_free");
    mutant::assert_caught(&beside, &["tree-end-beside-requests"], "was asked of a store that is free");
    mutant::assert_caught(&beside, &["tree-tag-used-again"], "another volume's files");
    let after = test("a_request_after_an_attach_finds_it");
    mutant::assert_caught(&after, &["tree-seen-unchecked"], "attached, and not found");
    let open = test("what_is_open_beside_a_lazy_detach_is_served_and_ends_the_volume_once");
    mutant::assert_caught(&open, &["tree-left-unmarked"], "a name was found in what is gone");
}
