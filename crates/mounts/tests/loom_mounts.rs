//! The protocol between walks, references and unmounts, under loom; mutants switch off each part of
//! it once.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-mounts --release --test loom_mounts`
//!
//! | claim | test | mutants |
//! |---|---|---|
//! | a walk that took a reference on a mount is not inside when that ends; it ends once | [`a_walk_beside_a_lazy_unmount`] | `mounts-legitimize-no-barrier`, `mounts-busy-no-barrier`, `mounts-finish-at-two` |
//! | one thread ends it, when the last put and the unmount meet | [`a_put_beside_a_lazy_unmount`] | `mounts-fast-put-no-section`, `mounts-skip-wait`, `mounts-percpu-legitimize` |
//! | a reference that changes its shard is counted | [`a_reference_that_changes_its_shard`] | `mounts-gets-first`, `mounts-no-barrier-between-passes`, `mounts-one-counter` |
//! | a walk from a place that is given up finds it alive, or not at all | [`a_walk_from_a_place_that_is_put`] | `mounts-slow-put-no-barrier`, `mounts-no-doomed-test` |
//! | a synchronous unmount ends it itself, before it returns | [`a_walk_beside_a_synchronous_unmount`], [`a_put_beside_a_synchronous_unmount`] | `mounts-finish-at-two`, `mounts-skip-wait`, `mounts-no-wake-up` |
//! | so does the kernel's unmount, which does not wait for walks that have a reference | [`the_kernels_synchronous_unmount`] | `mounts-no-sync-umount-test`, `mounts-no-grace-period` |
//! | no pin appears beside a synchronous unmount that found none | [`a_pin_beside_a_synchronous_unmount`] | `mounts-pin-after-close` |
//! | a path that leads somewhere before and after a change is found | [`a_walk_past_mounts_that_go`] | `mounts-no-recheck-after-miss` |
//! | `..` leads to the mount below | [`a_walk_up_from_a_mount_that_goes`] | `mounts-no-recheck-after-up` |
#![cfg(loom)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use sync::atomic::{AtomicBool, AtomicUsize, Ordering, fence};
use sync::mutant::{assert_caught, is_on};
use sync::{RwLock, RwLockReadGuard, thread};
use watertight_mounts::Inode;
use watertight_mounts::protocol::{Legitimized, MountLock, Put, Readers, Refs};
use watertight_mounts::step::{Changed, MountLookup, RcuCursor, cross_down, cross_up};

/// Read sections and grace periods, of the simplest kind: loom knows readers and a writer.
#[derive(Default)]
struct Sections(RwLock<()>);

impl Readers for Sections {
    type Section<'a> = RwLockReadGuard<'a, ()>;

    fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.0.read()
    }
}

impl Sections {
    fn grace_period(&self) {
        drop(self.0.write());
    }
}

/// One mount, which walks find as long as it is hashed.
struct World {
    /// Walks that are taking a reference on it.
    legitimizing: AtomicUsize,
    lock: MountLock,
    refs: Refs<u32>,
    sections: Sections,
    is_hashed: AtomicBool,
    /// Read by users, written by the clean-up.
    superblock: UnsafeCell<u32>,
    ends: AtomicUsize,
}

impl World {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            legitimizing: AtomicUsize::new(0),
            lock: MountLock::default(),
            refs: Refs::new(2),
            sections: Sections::default(),
            is_hashed: AtomicBool::new(true),
            superblock: UnsafeCell::new(1),
            ends: AtomicUsize::new(0),
        })
    }

    fn use_it(&self) {
        self.superblock.with(|superblock| {
            // SAFETY: the model checks that no thread writes.
            assert_eq!(unsafe { *superblock }, 1, "used after its end");
        });
    }

    fn clean_up(&self) {
        // ORDERING: Relaxed, a count.
        assert_eq!(self.ends.fetch_add(1, Ordering::Relaxed), 0, "it ended twice");
        self.superblock.with_mut(|superblock| {
            // SAFETY: the model checks that no thread reads.
            unsafe { *superblock = 0 };
        });
    }

    fn put(&self, shard: usize) {
        if self.refs.put(&self.sections, &self.lock, shard) == Put::Last {
            self.clean_up();
        }
    }

    /// Walks to the mount; with a reference if it got one.
    fn walk(&self, shard: usize) -> bool {
        let seq = self.lock.read_seqbegin();
        let section = self.sections.read();
        // ORDERING: Acquire, as the tables are read.
        if !self.is_hashed.load(Ordering::Acquire) {
            return false;
        }
        // Only for this mutant: a counter that is written would order accesses that must be tried
        // without.
        let is_counted = is_on("mounts-percpu-legitimize");
        if is_counted {
            // ORDERING: SeqCst here and below: the strategy must not fail because of its orderings.
            self.legitimizing.fetch_add(1, Ordering::SeqCst);
        }
        let found = self.refs.legitimize(&self.lock, seq, shard);
        if is_counted {
            self.legitimizing.fetch_sub(1, Ordering::SeqCst);
        }
        drop(section);
        if found == Legitimized::MustPut {
            self.put(shard);
        }
        found == Legitimized::Held
    }

    fn unhash(&self) {
        // ORDERING: Release, as the tables are written.
        self.is_hashed.store(false, Ordering::Release);
    }

    /// An unmount's wait.
    fn wait_for_readers(&self) {
        if is_on("mounts-percpu-legitimize") {
            while self.legitimizing.load(Ordering::SeqCst) > 0 {
                thread::yield_now();
            }
        } else {
            self.sections.grace_period();
        }
    }

    fn umount(&self, is_sync: bool) {
        let locked = self.lock.lock();
        if is_sync && !self.refs.close_pins(&locked) {
            return;
        }
        self.unhash();
        let found = self.refs.mark_umounted(&locked, is_sync, true);
        drop(locked);
        let put = self.refs.complete(&self.lock, found, is_sync, || self.wait_for_readers());
        if put == Put::Last {
            self.clean_up();
        }
    }

    fn ends(&self) -> usize {
        // ORDERING: Relaxed, a count.
        self.ends.load(Ordering::Relaxed)
    }
}

fn in_thread(world: &Arc<World>, work: impl FnOnce(&World) + 'static) -> thread::JoinHandle<()> {
    let world = Arc::clone(world);
    thread::spawn(move || work(&world))
}

fn use_and_put(world: &World) {
    if world.walk(1) {
        world.use_it();
        world.put(1);
    }
}

/// All interleavings with at most three forced switches.
fn check(model: impl Fn() + Sync + Send + 'static) {
    check_bound(3, model);
}

fn check_bound(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(model);
}

/// A walk that has the mount keeps it, and a mount ends once, whether the walk or a lazy unmount is
/// faster.
#[test]
fn a_walk_beside_a_lazy_unmount() {
    check(|| {
        let world = World::new();
        let walker = in_thread(&world, use_and_put);
        world.umount(false);
        walker.join().expect("the walker ends");
        assert_eq!(world.ends(), 1, "nobody ended it");
    });
}

/// A mount ends once, whether its last put or a lazy unmount is faster.
#[test]
fn a_put_beside_a_lazy_unmount() {
    check(|| {
        let world = World::new();
        world.refs.get(1);
        let user = in_thread(&world, |world| {
            world.use_it();
            world.put(1);
        });
        world.umount(false);
        user.join().expect("the user ends");
        assert_eq!(world.ends(), 1, "nobody ended it");
    });
}

/// Three threads: the walk, the put and the unmount decide together which is the last.
fn three(is_sync: bool) {
    check_bound(2, move || {
        let world = World::new();
        world.refs.get(0);
        let walker = in_thread(&world, use_and_put);
        let user = in_thread(&world, |world| {
            world.use_it();
            world.put(0);
        });
        world.umount(is_sync);
        if is_sync {
            assert_eq!(world.ends(), 1, "it has not ended on return");
        }
        walker.join().expect("the walker ends");
        user.join().expect("the user ends");
        assert_eq!(world.ends(), 1, "nobody ended it");
    });
}

#[test]
fn a_walk_and_a_put_beside_a_lazy_unmount() {
    three(false);
}

#[test]
fn a_walk_and_a_put_beside_a_synchronous_unmount() {
    three(true);
}

/// References are summed rightly, though one changes its shard meanwhile.
#[test]
fn a_reference_that_changes_its_shard() {
    check(|| {
        let world = World::new();
        world.refs.get(0);
        let user = in_thread(&world, |world| {
            world.refs.get(1);
            world.put(0);
            world.use_it();
            world.put(1);
        });
        world.umount(false);
        user.join().expect("the user ends");
        assert_eq!(world.ends(), 1, "nobody ended it");
    });
}

/// A mount that only a place keeps ends once, whether a walk from that place or its put is faster.
#[test]
fn a_walk_from_a_place_that_is_put() {
    check(|| {
        let world = World::new();
        // Kept by one thread, and unmounted: only its keeper's place finds it, and that is given
        // up.
        world.refs.get(0);
        world.umount(false);
        // ORDERING: Release, as the tables are written.
        world.is_hashed.store(true, Ordering::Release);
        let walker = in_thread(&world, use_and_put);
        world.unhash();
        world.put(0);
        walker.join().expect("the walker ends");
        assert_eq!(world.ends(), 1, "nobody ended it");
    });
}

/// A synchronous unmount has ended the mount on return, though a walk reads it.
#[test]
fn a_walk_beside_a_synchronous_unmount() {
    check(|| {
        let world = World::new();
        let walker = in_thread(&world, use_and_put);
        world.umount(true);
        assert_eq!(world.ends(), 1, "it has not ended on return");
        walker.join().expect("the walker ends");
    });
}

/// A synchronous unmount has ended the mount on return, though another one uses it and puts it.
#[test]
fn a_put_beside_a_synchronous_unmount() {
    check(|| {
        let world = World::new();
        world.refs.get(1);
        let user = in_thread(&world, |world| {
            world.use_it();
            world.put(1);
        });
        world.umount(true);
        assert_eq!(world.ends(), 1, "it has not ended on return");
        user.join().expect("the user ends");
    });
}

/// The kernel's own way: an unmount that found no user is the one that ends the mount.
#[test]
fn the_kernels_synchronous_unmount() {
    check(|| {
        let world = World::new();
        let walker = in_thread(&world, use_and_put);
        let locked = world.lock.lock();
        // ORDERING: P1, the barrier before the busy check.
        fence(Ordering::SeqCst);
        if world.refs.sum() == 1 {
            world.unhash();
            let _found = world.refs.mark_umounted(&locked, true, false);
            drop(locked);
            if !is_on("mounts-no-grace-period") {
                world.sections.grace_period();
            }
            let put = world.refs.put_slow(&world.lock, 0);
            assert_eq!(put, Put::Last, "the unmount did not end it");
            world.clean_up();
        } else {
            drop(locked);
        }
        walker.join().expect("the walker ends");
    });
}

/// No pin appears beside a synchronous unmount that found none.
#[test]
fn a_pin_beside_a_synchronous_unmount() {
    check(|| {
        let world = World::new();
        let walker = in_thread(&world, |world| {
            if !world.walk(1) {
                return;
            }
            if let Some(key) = world.refs.pin(1, 7) {
                assert_eq!(world.refs.flags(), 0, "pinned beside a synchronous unmount");
                world.refs.unpin(key);
            }
            world.put(1);
        });
        world.umount(true);
        walker.join().expect("the walker ends");
    });
}

/// Mount 1 is on `a` of the root (mount 0), mount 2 on `b` of mount 1. All three have the file that
/// the walk looks for, except the place `b` of mount 1, which is covered.
struct Three {
    lock: MountLock,
    is_on: [AtomicBool; 3],
}

const A: Inode = Inode(10);
const B: Inode = Inode(20);

impl MountLookup for Three {
    type Mount = usize;

    fn child(&self, mount: usize, at: Inode) -> Option<usize> {
        let child = match (mount, at) {
            (0, A) => 1,
            (1, B) => 2,
            _ => return None,
        };
        // ORDERING: Acquire, as the tables are read.
        self.is_on[child].load(Ordering::Acquire).then_some(child)
    }

    fn parent(&self, mount: usize) -> Option<(usize, Inode)> {
        let on = [None, Some((0, A)), Some((1, B))][mount]?;
        // ORDERING: Acquire, as the parent is read.
        self.is_on[mount].load(Ordering::Acquire).then_some(on)
    }

    fn root(&self, _: usize) -> Inode {
        Inode::ROOT
    }
}

impl Three {
    fn new() -> Arc<Self> {
        let is_on = || AtomicBool::new(true);
        Arc::new(Self { lock: MountLock::default(), is_on: [is_on(), is_on(), is_on()] })
    }

    /// Both mounts go, as one change.
    fn detach(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let this = Arc::clone(self);
        thread::spawn(move || {
            let _locked = this.lock.lock();
            // ORDERING: Release, as the tables are written.
            this.is_on[2].store(false, Ordering::Release);
            this.is_on[1].store(false, Ordering::Release);
        })
    }

    /// The place that `a/b` leads to.
    fn down(&self, seq: u64) -> Result<RcuCursor<usize>, Changed> {
        let at = cross_down(self, &self.lock, seq, RcuCursor { mount: 0, inode: A })?;
        cross_down(self, &self.lock, seq, RcuCursor { mount: at.mount, inode: B })
    }
}

/// MN-R9: a walk beside a change finds what is there before or after it, and no wrong ENOENT.
#[test]
fn a_walk_past_mounts_that_go() {
    check(|| {
        let three = Three::new();
        let seq = three.lock.read_seqbegin();
        let other = three.detach();
        if let Ok(at) = three.down(seq) {
            assert_ne!((at.mount, at.inode), (1, B), "a wrong ENOENT");
        }
        other.join().expect("the other ends");
    });
}

/// MN-R9: `..` from a mount that goes leads to what is there before or after.
#[test]
fn a_walk_up_from_a_mount_that_goes() {
    check(|| {
        let three = Three::new();
        let seq = three.lock.read_seqbegin();
        let other = three.detach();
        let up = three.down(seq).and_then(|at| cross_up(&*three, &three.lock, seq, at));
        if let Ok(at) = up {
            assert_ne!(at, RcuCursor { mount: 2, inode: Inode::ROOT }, "`..` led nowhere");
        }
        other.join().expect("the other ends");
    });
}

/// Each part of the protocol, switched off, gives its violation.
#[test]
fn mn_r7_each_part_that_is_switched_off_is_missed() {
    let barriers = ["mounts-legitimize-no-barrier", "mounts-busy-no-barrier"];
    assert_caught("a_walk_beside_a_lazy_unmount", &barriers, "panicked");
    let slow = "a_walk_from_a_place_that_is_put";
    assert_caught(slow, &["mounts-slow-put-no-barrier"], "panicked");
    assert_caught(slow, &["mounts-no-doomed-test"], "it ended twice");
    assert_caught("a_put_beside_a_lazy_unmount", &["mounts-fast-put-no-section"], "nobody ended it");
    let classic = ["mounts-no-sync-umount-test", "mounts-no-grace-period"];
    assert_caught("the_kernels_synchronous_unmount", &classic, "the unmount did not end it");
    let passes = ["mounts-gets-first", "mounts-no-barrier-between-passes"];
    assert_caught("a_reference_that_changes_its_shard", &passes, "panicked");
}

/// Grace periods on demand: finished at a count of 2, not waited for at another count than 1, one
/// counter instead of two.
#[test]
fn mn_r8_mistakes_of_grace_periods_on_demand_are_caught() {
    for test in ["a_walk_beside_a_lazy_unmount", "a_walk_beside_a_synchronous_unmount"] {
        assert_caught(test, &["mounts-finish-at-two"], "panicked");
    }
    assert_caught("a_put_beside_a_lazy_unmount", &["mounts-skip-wait"], "nobody ended it");
    assert_caught("a_put_beside_a_synchronous_unmount", &["mounts-skip-wait"], "deadlock");
    assert_caught("a_reference_that_changes_its_shard", &["mounts-one-counter"], "panicked");
}

/// A walk that does not check again after a miss, or after `..`.
#[test]
fn mn_r9_mistakes_of_walks_are_caught() {
    assert_caught("a_walk_past_mounts_that_go", &["mounts-no-recheck-after-miss"], "a wrong ENOENT");
    assert_caught("a_walk_up_from_a_mount_that_goes", &["mounts-no-recheck-after-up"], "`..` led nowhere");
}

#[test]
fn mistakes_beyond_the_specification_are_caught() {
    assert_caught("a_put_beside_a_synchronous_unmount", &["mounts-no-wake-up"], "deadlock");
    let pin = ["mounts-pin-after-close"];
    assert_caught("a_pin_beside_a_synchronous_unmount", &pin, "pinned beside a synchronous unmount");
}

/// The rejected strategy that counts walkers that are taking a reference, and waits for these
/// instead of a grace period.
#[test]
fn percpu_legitimize_leaves_mounts_that_nobody_ends() {
    assert_caught("a_put_beside_a_lazy_unmount", &["mounts-percpu-legitimize"], "nobody ended it");
}
