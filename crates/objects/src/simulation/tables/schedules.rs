//! Openings that are killed while there are many tables.

use std::sync::Arc;
use std::time::Duration;

use slatedb_common::clock::SystemClock as _;
use store::SetXattr;

use super::{alone, open, unmerged};
use crate::engine::TABLES_MAX;
use crate::garbage::tests::assert_counted;
use crate::simulation::faults::World;
use crate::simulation::host::{CREATOR, FILE, ROOT, name};

/// A host that opens a volume has done so by then.
const LONG: Duration = Duration::from_secs(300);
/// A kill comes so much later than the one before: less than a request takes.
const STEP: Duration = Duration::from_millis(50);

/// A volume that is opened again and again, each time for less than a merge takes, and killed then: what
/// is written each time is a table.
#[test]
fn a_volume_whose_openings_are_all_killed_can_be_opened_again() {
    let world = World::new(1);
    world.heal();
    for life in 0..200_u8 {
        alone(async {
            let opened = tokio::time::timeout(LONG, open(&world, life)).await;
            let mounted = opened.expect("an opening waits for ever");
            let tree = mounted.tree();
            let made = tree.make(ROOT, name(&life.to_string()), FILE, 0o644, CREATOR).await.expect("made");
            tree.forget(made.id.0, 1);
            let written = tokio::time::timeout(LONG, mounted.engine().write_tables()).await;
            written.expect("a table waits for ever").expect("written");
            let files = tree.engine.scan(crate::rows::keys_of(b'D', 1), 1000).await.expect("listed").len();
            assert_eq!(files, usize::from(life) + 1);
            let tables = unmerged(&world).await;
            assert!(tables <= TABLES_MAX / 2, "{tables} tables after {life} openings");
        });
    }
}

/// A host whose clock is an hour behind that of the last holder writes tables, and merges them.
#[test]
fn a_host_whose_clock_is_behind_writes_tables() {
    let world = World::new(1);
    world.heal();
    for life in 0..40_u8 {
        alone(async {
            let mounted = open(&world, life).await;
            let (tree, engine) = (mounted.tree(), mounted.engine());
            let made = tree.make(ROOT, name(&life.to_string()), FILE, 0o644, CREATOR).await.expect("made");
            tree.forget(made.id.0, 1);
            if life == 0 {
                engine.clock.raise(engine.clock.now().timestamp_millis() + 3_600_000);
            }
            let written = tokio::time::timeout(LONG, engine.write_tables()).await;
            written.expect("a table waits for ever").expect("a table is written");
            mounted.close().await;
            assert!(unmerged(&world).await <= TABLES_MAX / 2, "tables are not merged");
        });
    }
}

/// An opening that merges tables is killed at each of its steps: the next one finds all there was, and
/// goes on.
#[test]
fn an_opening_that_merges_is_killed_at_every_step() {
    const FILES: usize = 5;
    let many = World::new(1);
    many.heal();
    alone(async {
        let mounted = open(&many, 1).await;
        let tree = mounted.tree();
        for table in 0..TABLES_MAX - 10 {
            if table % 10 == 0 && table / 10 < FILES {
                let file = (table / 10).to_string();
                let made = tree.make(ROOT, name(&file), FILE, 0o644, CREATOR).await.expect("made");
                tree.forget(made.id.0, 1);
            }
            tree.set_xattr(ROOT, "user.n".as_ref(), b"1", SetXattr::Any).await.expect("set");
            mounted.engine().write_tables().await.expect("written");
        }
        assert_eq!(unmerged(&many).await, TABLES_MAX - 10);
    });
    let whole = async |world: &Arc<World>, nonce| {
        let mounted = open(world, nonce).await;
        let files = mounted.tree().engine.scan(crate::rows::keys_of(b'D', 1), 1000).await.expect("listed");
        assert_eq!(files.len(), FILES);
        assert_counted(mounted.tree()).await.expect("read");
        let tables = unmerged(world).await;
        assert!(tables < TABLES_MAX / 2, "{tables} tables after an opening");
    };
    let killed = (0_u32..).take_while(|&step| {
        let (killed_after, world) = (step * STEP, many.copied(step.into()));
        world.heal();
        let is_killed = alone(async { tokio::time::timeout(killed_after, whole(&world, 2)).await.is_err() });
        alone(async {
            let opened = tokio::time::timeout(LONG, whole(&world, 3)).await;
            opened.unwrap_or_else(|_| panic!("killed after {killed_after:?}, it does not open again"));
        });
        is_killed
    });
    let steps = killed.count();
    assert!(steps > 20, "it was killed at {steps} steps only");
}

#[cfg(shuttle)]
#[test]
fn openings_that_make_no_room_are_caught() {
    use sync::mutant::{assert_caught, assert_caught_by_any};
    let test = "simulation::tables::schedules::a_volume_whose_openings_are_all_killed_can_be_opened_again";
    assert_caught(test, &["opening-merges-nothing"], "tables after");
    let test = "simulation::tables::schedules::an_opening_that_merges_is_killed_at_every_step";
    let objections = ["it does not open again", "tables after an opening"];
    assert_caught_by_any(test, &["interrupted-merge-waited-for"], &objections);
    let test = "simulation::tables::schedules::a_host_whose_clock_is_behind_writes_tables";
    let objections = ["a table waits for ever", "a table is written"];
    assert_caught_by_any(test, &["tables-older-than-the-last"], &objections);
}
