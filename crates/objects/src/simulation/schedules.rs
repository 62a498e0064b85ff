//! What the simulation claims, and the mutants that it catches.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib
//! schedules`

mod journaled;

use std::io::IoSlice;

use super::faults::World;
use super::host::{CREATOR, FILE, ROOT, name};
use super::tables::{alone, open};
use super::{Simulation, With, run};

/// Seeds of a test run, `few` of them. With a mutant, as many as it takes until one fails.
fn seeds(few: u64) -> std::ops::Range<u64> {
    let given = std::env::var("WATERTIGHT_SCHEDULES").ok().filter(|_| cfg!(shuttle));
    0..given.and_then(|n| n.parse().ok()).unwrap_or(few)
}

/// Hosts crash, stop, are cut off, and take the volume over from each other: each finds a prefix of
/// what was done that holds everything acknowledged, none acknowledges after it was taken over, and
/// none fails that was not.
#[test]
fn what_was_acknowledged_is_found_by_the_next_holder() {
    run(seeds(200), With::default());
}

/// A snapshot that was acknowledged is there for all later holders until it is deleted, and shows
/// what was there when it was made, while holders crash, are taken over, and collect garbage.
#[test]
fn a_snapshot_shows_what_was_there_when_it_was_made() {
    run(seeds(50), With { snapshots: true, ..With::default() });
}

/// The same on a host with a journal, which acknowledges fsyncs: its processes are killed and it
/// loses power, and the next process on it finds everything acknowledged.
#[test]
fn what_a_journal_acknowledged_is_found_on_its_host() {
    run(seeds(200), With { journal: true, ..With::default() });
}

/// The same where the journal accepts each change: after a kill all are found that were made, after a
/// loss of power those that were acknowledged.
#[test]
fn what_a_journal_accepted_is_found_after_a_kill() {
    run(seeds(200), With { journal: true, accepts: true, ..With::default() });
}

/// Holders also make clones of snapshots, and other hosts hold each of these. A clone begins as its
/// snapshot, which no host can delete before it, and what only a clone needed goes with it.
#[test]
fn a_clone_shows_its_snapshot_and_what_was_changed_in_it() {
    run(seeds(20), With { snapshots: true, clones: true, ..With::default() });
}

/// One host has a disk with a cache, and parts of files are written again, so that objects are
/// repacked: kills leave the cache as it was, a loss of power damages it, and each holder finds what
/// was acknowledged all the same.
#[test]
fn what_was_acknowledged_is_found_beside_a_cache_and_repacking() {
    run(seeds(50), With { cache: true, rewrites: true, ..With::default() });
}

/// All of it together, as the campaign with `ALL=1`.
#[test]
fn what_was_acknowledged_is_found_beside_all_of_it() {
    run(seeds(10), With::ALL);
}

/// The disk cache is read, or the tests with one show nothing.
#[test]
fn blocks_are_found_in_the_simulated_disk_cache() {
    let with = With { cache: true, rewrites: true, ..With::default() };
    let hits = |seed| {
        let simulation = Simulation::new(seed, with);
        let cache = simulation.volume.cache.clone().expect("it has one");
        let kills = simulation.run_all();
        (cache.hits(), kills.hosts, kills.processes)
    };
    let (hits, hosts, processes) =
        (0..20).map(hits).fold((0, 0, 0), |a, b| (a.0 + b.0, a.1 + b.1, a.2 + b.2));
    assert!(hits > 0 && hosts > 0 && processes > 0, "{hits} blocks, {hosts} hosts, {processes} processes");
}

/// The two together: a snapshot shows nothing that the journal alone has.
#[test]
fn a_snapshot_beside_a_journal_shows_what_was_there_when_it_was_made() {
    run(seeds(50), With { snapshots: true, journal: true, ..With::default() });
}

/// A reader that follows shows states that there were, each whole, none older than the one before,
/// and in the end the last, also from holder to holder.
#[test]
fn a_follower_shows_states_in_their_order() {
    run(seeds(50), With { follower: true, ..With::default() });
}

/// The same beside snapshots, for which garbage stays or goes, and beside a journal: what it alone
/// has, a follower does not show.
#[test]
fn a_follower_beside_snapshots_and_a_journal_shows_states_in_their_order() {
    run(seeds(20), With { snapshots: true, journal: true, follower: true, ..With::default() });
}

/// Seeds that once failed. In 1549 an fsync beside a truncation found that the truncation had
/// dropped what was written before, and had not cut the file yet: what was older came back. In
/// those from 11,486 on a holder that was taken over removed objects of the log that the next one
/// was about to read.
#[test]
fn seeds_that_failed_once_pass() {
    for seed in [124, 1549, 52_429, 54_742, 55_390, 11_486, 207_470, 208_433] {
        run(seed..seed + 1, With::default());
    }
}

/// An fsync uploads nothing of another file.
#[test]
fn an_fsync_uploads_its_own_data() {
    let world = World::new(1);
    world.heal();
    alone(async {
        let mounted = open(&world, 1).await;
        let tree = mounted.tree();
        let mut files = Vec::new();
        for (file, size) in [("small", 5000), ("large", 1_000_000)] {
            let made = tree.make(ROOT, name(file), FILE, 0o644, CREATOR).await.unwrap();
            let pin = tree.pin_used(made.id.0, "test").unwrap();
            tree.write_at(&pin, &[IoSlice::new(&vec![7; size])], 0).await.unwrap();
            files.push(pin);
        }
        tree.sync_file(&files[0]).await.unwrap();
        assert_eq!(tree.pending.bytes(), 1_000_000, "an fsync uploads another file's data");
        assert!(world.bytes() < 100_000, "an fsync uploads another file's data");
        tree.sync_file(&files[1]).await.unwrap();
        assert!(world.bytes() > 1_000_000, "an fsync uploads its own data");
    });
}

#[cfg(shuttle)]
#[test]
fn a_volume_that_keeps_no_order_is_caught() {
    use sync::mutant::{assert_caught, assert_caught_by_any};
    const LOST: &str = "is no prefix with all that was acknowledged";
    const FAILS: &str = "nobody takes the volume over, and it";
    const FALSE: &str = "a holder that was taken over acknowledges what it changed since";
    const TORN: &str = "the content is one version, whole";
    const OWN: &str = "what the holder itself wrote is not there";
    const GONE: &str = "the object is missing";
    let test = "simulation::schedules::what_was_acknowledged_is_found_by_the_next_holder";
    // The log.
    assert_caught_by_any(test, &["log-acknowledged-out-of-order"], &[LOST, FAILS]);
    assert_caught_by_any(test, &["log-fence-not-written"], &[LOST, FALSE, FAILS]);
    assert_caught_by_any(test, &["log-fence-leaves-nothing-out"], &[LOST, FALSE, FAILS]);
    assert_caught_by_any(test, &["log-window-not-kept"], &[LOST, FALSE, FAILS]);
    assert_caught_by_any(test, &["log-nonce-not-compared"], &[LOST, FALSE, FAILS]);
    assert_caught(test, &["log-nonce-not-read-back"], FAILS);
    assert_caught_by_any(test, &["log-epoch-not-compared"], &[LOST, FAILS]);
    // Segments and rows.
    assert_caught_by_any(test, &["rows-before-bulk-data"], &[LOST, FAILS, TORN]);
    assert_caught_by_any(test, &["segments-epoch-not-raised"], &[LOST, FAILS, OWN]);
    assert_caught_by_any(test, &["inodes-epoch-not-raised"], &[LOST, FAILS, OWN]);
    assert_caught_by_any(test, &["rounds-end-in-any-order", "size-before-its-extents"], &[LOST, OWN, TORN]);
    assert_caught(test, &["fsync-without-its-data"], LOST);
    // Garbage.
    assert_caught_by_any(test, &["garbage-not-durable"], &[LOST, FAILS, OWN, GONE]);
    // Snapshots.
    const UNREADABLE: &str = "a snapshot cannot be read that nobody deletes";
    const OTHER: &str = "a snapshot shows something else";
    let test = "simulation::schedules::a_snapshot_shows_what_was_there_when_it_was_made";
    assert_caught(test, &["garbage-segment-of-a-snapshot"], UNREADABLE);
    assert_caught(test, &["garbage-table-of-a-snapshot"], UNREADABLE);
    assert_caught(test, &["snapshot-before-its-data"], OTHER);
    // Clones.
    let test = "simulation::schedules::a_clone_shows_its_snapshot_and_what_was_changed_in_it";
    const NO_CLONE: &str = "a clone does not open";
    const NEEDED: &str = "a snapshot is not there that nobody deletes";
    let by_any = &[NEEDED, UNREADABLE, NO_CLONE, GONE, FAILS, LOST];
    assert_caught_by_any(test, &["snapshot-of-a-clone-deleted", "parents-objects-removed"], by_any);
    // Repacking, and the disk cache.
    let test = "simulation::schedules::what_was_acknowledged_is_found_beside_a_cache_and_repacking";
    assert_caught_by_any(test, &["repacking-of-what-changed"], &[LOST, OWN, TORN]);
    assert_caught_by_any(test, &["disk-cache-unchecked"], &[FAILS, TORN]);
    // The journal.
    let test = "simulation::schedules::what_a_journal_acknowledged_is_found_on_its_host";
    assert_caught(test, &["journal-acknowledged-before-fdatasync"], LOST);
    assert_caught_by_any(
        test,
        &["journal-uploaded-after-the-fence"],
        &["nobody gave the journal up, and it is lost", FAILS],
    );
    assert_caught_by_any(test, &["journal-released-before-the-bucket-has-it"], &[LOST, FAILS, OWN, GONE]);
    let test = "simulation::schedules::what_a_journal_accepted_is_found_after_a_kill";
    assert_caught(test, &["journal-accepted-unwritten"], LOST);
    assert_caught(test, &["journal-written-taken-for-synced"], LOST);
    let test = "simulation::schedules::journaled::the_bucket_has_a_segment_before_a_sync_says_so";
    assert_caught(test, &["log-before-its-segments"], "a sync says that the bucket has a file");
    let test =
        "simulation::schedules::journaled::an_object_of_which_the_journal_has_a_part_is_the_last_one_sent";
    assert_caught(test, &["log-sent-behind-a-part"], "it shows no prefix of what was done");
    let test =
        "simulation::schedules::journaled::an_object_of_which_the_disk_has_a_part_is_the_last_one_sent";
    assert_caught(test, &["log-sent-behind-what-is-not-synced"], "it shows no prefix of what was done");
    // A reader that follows.
    let test = "simulation::schedules::a_follower_shows_states_in_their_order";
    const UNKNOWN: &str = "shows what the volume never was, or was before";
    const LAST: &str = "a follower shows the last state in the end";
    assert_caught_by_any(
        test,
        &["follow-half-an-object"],
        &[UNKNOWN, TORN, LAST, "ends where its size says"],
    );
    let test = "simulation::schedules::an_fsync_uploads_its_own_data";
    assert_caught(test, &["fsync-of-all-files"], "an fsync uploads another file's data");
}
