//! WB-R2: the protocol between switchers and an unmount, under loom.
//!
//! The superblock is a [`Memory`] that is written when the drain is over: loom reports a switcher
//! that reads it meanwhile or later, and a drain that never ends.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-writeback --release --test loom_drain`
#![cfg(loom)]

use std::sync::Arc;

use sync::atomic::{AtomicBool, Ordering};
use sync::mutant::{assert_caught, is_on};
use sync::thread;
use watertight_writeback::{Domain, Drain, DrainWaker, Memory, OwnSwitches, Pending, SbPin};

/// A reference on an inode: touches the superblock when it is taken and when it is put.
struct InodeRef(Arc<Memory>);

impl InodeRef {
    fn get(memory: Arc<Memory>) -> Self {
        memory.touch();
        Self(memory)
    }
}

impl Drop for InodeRef {
    fn drop(&mut self) {
        self.0.touch();
    }
}

/// One switch: pin, take the inode, put it, unpin.
fn switch(drain: &Drain, shard: usize) {
    let Some(pin) = drain.pin_at(shard) else { return };
    let inode = InodeRef::get(pin.memory());
    if is_on("drain-unpin-before-put") {
        drop(pin);
        drop(inode);
    } else {
        drop(inode);
        drop(pin);
    }
}

fn switcher(drain: &Arc<Drain>, shard: usize, times: usize) -> thread::JoinHandle<()> {
    let drain = Arc::clone(drain);
    thread::spawn(move || (0..times).for_each(|_| switch(&drain, shard)))
}

/// WB-R2: when a drain has returned, no thread that switches inodes touches the superblock any
/// more; and it does return.
#[test]
fn nobody_touches_what_the_drain_gave_free() {
    loom::model(|| {
        let drain = Arc::new(Drain::with_shards(1));
        let switcher = switcher(&drain, 0, 2);
        drain.drain();
        assert!(drain.pin_at(0).is_none(), "a pin after the drain");
        switcher.join().expect("the switcher ends");
        assert_eq!(drain.in_flight(), 0, "a pin is left");
    });
}

#[test]
fn shards_are_as_good_as_one_counter() {
    let mut model = loom::model::Builder::new();
    // Three threads: every interleaving would take minutes.
    model.preemption_bound = Some(3);
    model.check(|| {
        let drain = Arc::new(Drain::with_shards(2));
        let other = switcher(&drain, 1, 1);
        let switcher = switcher(&drain, 0, 1);
        drain.drain();
        switcher.join().expect("the switcher ends");
        other.join().expect("the other ends");
        assert_eq!(drain.in_flight(), 0);
    });
}

/// A switch that waits to be made. Dropped in this order: the reference, then the pin.
struct Queued {
    _inode: InodeRef,
    _pin: SbPin,
}

/// A superblock whose switches only its drain makes.
#[derive(Default)]
struct Superblock {
    drain: Drain,
    domain: Domain,
    pending: Pending<Queued>,
}

impl Superblock {
    fn switch(&self) {
        let Some(pin) = self.drain.pin_at(0) else { return };
        let queued = Queued { _inode: InodeRef::get(pin.memory()), _pin: pin };
        let pushed = self.pending.push(queued, &self.domain, &self.drain, false);
        pushed.waker.into_iter().for_each(DrainWaker::wake);
    }
}

impl OwnSwitches for Superblock {
    fn are_waiting(&self) -> bool {
        !self.pending.is_empty()
    }

    fn make(&self) {
        drop(self.pending.take_all());
    }
}

/// WB-R2: a drain makes its superblock's switches itself, is woken by those that are queued while
/// it sleeps, and touches nothing afterwards.
#[test]
fn a_drain_makes_what_no_worker_makes() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let superblock = Arc::new(Superblock::default());
        let switcher = {
            let superblock = Arc::clone(&superblock);
            thread::spawn(move || (0..2).for_each(|_| superblock.switch()))
        };
        superblock.drain.drain_with(&*superblock);
        switcher.join().expect("the switcher ends");
        assert_eq!(superblock.drain.in_flight(), 0, "a pin is left");
        assert!(superblock.pending.is_empty(), "a switch outlived its superblock");
    });
}

/// WB-R2: a drain that finds its switches taken by a worker waits until they are made.
#[test]
fn a_drain_and_a_worker_share_what_waits() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let superblock = Arc::new(Superblock::default());
        let pin = superblock.drain.pin_at(0).expect("mounted");
        let queued = Queued { _inode: InodeRef::get(pin.memory()), _pin: pin };
        let pushed = superblock.pending.push(queued, &superblock.domain, &superblock.drain, false);
        let after = pushed.run.expect("the first one");
        let worker = {
            let superblock = Arc::clone(&superblock);
            thread::spawn(move || drop(superblock.pending.take(after)))
        };
        superblock.drain.drain_with(&*superblock);
        worker.join().expect("the worker ends");
        assert_eq!(superblock.drain.in_flight(), 0, "a pin is left");
    });
}

/// WB-R7 and WB-R8, P2 of `pending`: a switch waits for a grace period that begins after its flag
/// was set.
///
/// Two switches of one superblock, and a worker that waits for the first one's grace period while
/// the second is pushed. A section that has seen the second one's flag unset is over before that
/// one is made.
#[test]
fn a_switch_is_made_after_a_grace_period_that_follows_its_flag() {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(|| {
        let (domain, drain) = (Domain::default(), Drain::with_shards(1));
        let pending = Arc::new(Pending::<bool>::default());
        let flags = Arc::new([AtomicBool::new(false), AtomicBool::new(false)]);
        let [flag, made] = [0, 1];
        let first = pending.push(false, &domain, &drain, false).run.expect("the first one");
        // ORDERING: Relaxed throughout: only the grace period orders them.
        let make = {
            let (domain, pending, flags) = (domain.clone(), Arc::clone(&pending), Arc::clone(&flags));
            move |after| {
                domain.cond_synchronize(after);
                if pending.take(after).contains(&true) {
                    flags[made].store(true, Ordering::Relaxed);
                }
            }
        };
        let worker = thread::spawn({
            let make = make.clone();
            move || make(first)
        });
        let reader = {
            let (domain, flags) = (domain.clone(), Arc::clone(&flags));
            thread::spawn(move || {
                let _section = domain.read();
                if !flags[flag].load(Ordering::Relaxed) {
                    thread::yield_now();
                    assert!(!flags[made].load(Ordering::Relaxed), "made beside a section that saw no flag");
                }
            })
        };
        flags[flag].store(true, Ordering::Relaxed);
        if let Some(after) = pending.push(true, &domain, &drain, false).run {
            make(after);
        }
        worker.join().expect("the worker ends");
        reader.join().expect("no assertion failed");
    });
}

#[test]
fn each_mutant_is_caught() {
    let test = "a_switch_is_made_after_a_grace_period_that_follows_its_flag";
    assert_caught(test, &["pending-joins-any"], "made beside a section that saw no flag");

    let test = "nobody_touches_what_the_drain_gave_free";
    let used_late = [
        "drain-pin-after-test",
        "drain-no-pin-fence",
        "drain-no-drain-fence",
        "drain-unpin-before-put",
        "drain-unpin-relaxed",
        "drain-look-relaxed",
        "drain-used-unset",
    ];
    assert_caught(test, &used_late, "Causality violation");
    assert_caught(test, &["drain-failed-pin-kept"], "a pin is left");
    assert_caught(test, &["drain-wake-unordered", "drain-no-wake"], "deadlock");
    assert_caught(test, &["drain-await-unset", "drain-sleep-unchecked"], "deadlock");
    assert_caught(test, &["drain-waker-touches"], "Causality violation");
    let test = "a_drain_makes_what_no_worker_makes";
    let never_woken = ["drain-ring-lost", "drain-makes-once", "pending-look-before-push"];
    assert_caught(test, &never_woken, "deadlock");
    assert_caught(test, &["pending-bell-late", "drain-ring-touches"], "Causality violation");
    let test = "a_drain_and_a_worker_share_what_waits";
    assert_caught(test, &["drain-made-unchecked"], "Causality violation");
}
