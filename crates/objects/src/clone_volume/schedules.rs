//! What a clone claims, and the mutants that a test catches.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib
//! schedules`

use std::sync::Arc;

use object_store::PutPayload;
use store::ErrorKind;

use super::tests::{bucket, open};
use super::{Pin, finish, forbid_clones, make};
use crate::format;
use crate::lease::Lease;

/// A snapshot that a clone needs is not deleted, also before the clone is mounted.
#[tokio::test]
async fn a_snapshot_that_a_clone_needs_is_not_deleted() {
    let objects = Arc::default();
    let (parent, clone) = (bucket(&objects, "parent"), bucket(&objects, "clone"));
    format::create(&parent, format::Options::default()).await.unwrap();
    let mounted = open(&parent, 1).await;
    mounted.create_snapshot("base").await.unwrap();
    make(&parent, "base", &clone).await.unwrap();
    let deleted = mounted.delete_snapshot("base").await.map_err(|error| error.kind());
    assert_eq!(deleted, Err(ErrorKind::Busy), "a snapshot is deleted that a clone needs");
    // A clone that is gone needs nothing.
    clone.delete("format").await.unwrap();
    mounted.delete_snapshot("base").await.unwrap();
    mounted.close().await;
}

/// What is left of a clone whose making was interrupted is one if its snapshot stays, and else none.
#[tokio::test]
async fn a_clone_whose_making_was_interrupted_is_none_without_its_snapshot() {
    for (what, is_there) in [("", true), ("pin", false), ("mark", false)] {
        let objects = Arc::default();
        let (parent, clone) = (bucket(&objects, "parent"), bucket(&objects, "clone"));
        format::create(&parent, format::Options::default()).await.unwrap();
        let mounted = open(&parent, 1).await;
        let snapshot = mounted.create_snapshot("base").await.unwrap();
        let (format, _) = make(&parent, "base", &clone).await.unwrap();
        let manifest = format!("meta/manifest/{:020}.manifest", snapshot.number);
        // Its maker was killed before the manifest, or before the lease.
        let left: &[&str] = if what == "mark" { &["lease"] } else { &["lease", &manifest] };
        clone.delete_many(left).await.unwrap();
        let names = format!("clone/{}", super::name_of(snapshot.number, &format.uuid.to_string()));
        let mark = format!("clone/{}", super::name_of(snapshot.number, "deleted"));
        match what {
            "pin" => bucket(&objects, "parent").delete(&names).await.unwrap(),
            "mark" => drop(bucket(&objects, "parent").create(&mark, PutPayload::new()).await.unwrap()),
            _ => {}
        }
        let finished = finish(&clone, &format).await.map_err(|error| error.kind());
        let expected = if is_there { Ok(()) } else { Err(ErrorKind::NotFound) };
        assert_eq!(finished, expected, "a clone is there whose snapshot may be deleted: no {what}");
        assert_eq!(Lease::is_there(&clone).await.unwrap(), is_there);
        mounted.close().await;
    }
}

/// A process that looked for clones, was stopped and taken over, does not delete the snapshot when it
/// goes on: a clone may have been made since.
#[tokio::test]
async fn a_deletion_that_was_taken_over_deletes_nothing() {
    let objects = Arc::default();
    let (parent, clone) = (bucket(&objects, "parent"), bucket(&objects, "clone"));
    format::create(&parent, format::Options::default()).await.unwrap();
    let stopped = open(&parent, 1).await;
    let snapshot = stopped.create_snapshot("base").await.unwrap();
    let engine = stopped.writing_engine().unwrap();
    let (newest, _) = engine.newest_snapshots().await.unwrap();
    forbid_clones(&bucket(&objects, "parent"), &snapshot).await.unwrap();
    // Here it is stopped. A deletion that finds a clone, if only for a while, allows others.
    let mounted = open(&bucket(&objects, "parent"), 2).await;
    let uuid = format::Uuid::from_bytes([9; 16]);
    let pin = Pin { prefix: "clone".to_owned(), uuid };
    let name = format!("clone/{}", super::name_of(snapshot.number, &uuid.to_string()));
    let json = PutPayload::from(serde_json::to_vec(&pin).unwrap());
    let _made = bucket(&objects, "parent").create(&name, json).await.unwrap();
    format::create(&clone, format::Options { uuid, ..format::Options::default() }).await.unwrap();
    assert_eq!(mounted.delete_snapshot("base").await.unwrap_err().kind(), ErrorKind::Busy);
    clone.delete(format::NAME).await.unwrap();
    make(&bucket(&objects, "parent"), "base", &clone).await.unwrap();
    let deleted = engine.delete_snapshot(&snapshot, newest).await;
    let there = mounted.snapshots().await.unwrap();
    assert!(there.len() == 1, "a process that was taken over deletes a snapshot that a clone needs");
    assert!(deleted.is_err(), "it says that it did");
    mounted.close().await;
}

#[cfg(shuttle)]
#[test]
fn a_deletion_that_does_not_look_for_clones_is_caught() {
    use sync::mutant::assert_caught;
    let test = "clone_volume::schedules::a_snapshot_that_a_clone_needs_is_not_deleted";
    assert_caught(test, &["snapshot-of-a-clone-deleted"], "a snapshot is deleted that a clone needs");
    let test = "clone_volume::schedules::a_clone_whose_making_was_interrupted_is_none_without_its_snapshot";
    let is_there = "a clone is there whose snapshot may be deleted";
    assert_caught(test, &["clone-without-its-pin", "clone-of-a-snapshot-that-is-deleted"], is_there);
    let test = "clone_volume::schedules::a_deletion_that_was_taken_over_deletes_nothing";
    let deletes = "a process that was taken over deletes a snapshot that a clone needs";
    assert_caught(test, &["snapshot-deleted-after-a-takeover"], deletes);
}
