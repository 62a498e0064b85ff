//! Page accounting beside a switch, under loom: a thread that sees the flag cleared sees the new
//! owner, too.
//!
//! The product's engine, with a lock of readers and writers in place of `rcu`; schedules with few
//! preemptions.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-writeback --release --test loom_account`
#![cfg(loom)]

extern crate watertight_writeback as writeback;

mod common;

use std::sync::Arc;

use common::{A, B, Rig};
use sync::{mutant, thread};
use writeback::PerSuperblock;

fn model(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.max_branches = 10_000;
    model.check(test);
}

/// Bytes are charged to who owns the inode, while it moves and afterwards.
#[test]
fn bytes_go_to_who_owns_the_inode() {
    model(2, || {
        let rig = Rig::new(PerSuperblock);
        let file = rig.file(A);
        let accounts = {
            let (bdi, file) = (Arc::clone(&rig.bdi), Arc::clone(&file));
            thread::spawn(move || bdi.account(&file, 4096, 0))
        };
        assert!(rig.bdi.switch_to(&file, B));
        accounts.join().expect("no assertion failed");
        rig.switcher.flush();
        rig.check_sums(&[file]);
    });
}

/// WB-R7: each switch has a grace period of its own, also one that begins while a worker of its
/// target is at work, and its inode's pages change at this moment.
#[test]
fn wb_r7_a_switch_that_comes_late_has_its_own_grace_period() {
    model(3, || {
        let rig = Rig::new(PerSuperblock);
        let (first, second) = (rig.file(A), rig.file(A));
        {
            let (bdi, second) = (Arc::downgrade(&rig.bdi), Arc::clone(&second));
            // Called by the worker: it puts the last reference.
            first.at_end(move || {
                let bdi = bdi.upgrade().expect("the test has the device");
                bdi.switch_to(&second, B);
            });
        }
        rig.bdi.switch_to(&first, B);
        drop(first);
        rig.bdi.account(&second, 4096, 0);
        // The worker, and the one that it queued.
        rig.switcher.flush();
        rig.switcher.flush();
        rig.check_sums(&[second]);
    });
}

#[test]
fn each_mutant_is_caught() {
    let test = "bytes_go_to_who_owns_the_inode";
    mutant::assert_caught(test, &["switch-no-grace", "account-two-sections"], "the bytes of");
    mutant::assert_caught(test, &["switch-clear-relaxed", "account-look-relaxed"], "the bytes of");
    mutant::assert_caught(test, &["account-no-page-lock"], "the bytes of");
    let test = "wb_r7_a_switch_that_comes_late_has_its_own_grace_period";
    mutant::assert_caught(test, &["switch-worker-loops"], "the bytes of");
}
