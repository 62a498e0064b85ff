//! WB-R2: the protocol between switchers and an unmount, under loom.
//!
//! The superblock is a [`Memory`] that is written when the drain is over: loom objects if a switcher looks at it
//! meanwhile or later, and to a drain that never ends.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-writeback --release --test loom_drain`
#![cfg(loom)]

use std::sync::Arc;

use sync::mutant::{assert_caught, is_on};
use sync::thread;
use watertight_writeback::{Drain, Memory};

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

#[test]
fn each_mutant_is_caught() {
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
}
