//! What a clone claims, and the mutants that a test catches.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib
//! schedules`

use std::sync::Arc;

use store::ErrorKind;

use super::make;
use super::tests::{bucket, open};
use crate::format;

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

#[cfg(shuttle)]
#[test]
fn a_deletion_that_does_not_look_for_clones_is_caught() {
    use sync::mutant::assert_caught;
    let test = "clone_volume::schedules::a_snapshot_that_a_clone_needs_is_not_deleted";
    assert_caught(test, &["snapshot-of-a-clone-deleted"], "a snapshot is deleted that a clone needs");
}
