//! What a repair must not lose, and the mutants that lose it.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib
//! schedules`

use bytes::Bytes;

use super::tests::rows::damage;
use super::tests::{World, crashed, ino_at};
use crate::garbage::tests::LARGE;
use crate::object_names::log_name;
use crate::rows::orphan_key;

/// A mark to be removed that is wrong is taken away before anything acts on it.
#[tokio::test]
async fn a_file_with_a_wrong_mark_is_not_removed() {
    let world = World::new().await;
    let mounted = world.open().await;
    let large = ino_at(mounted.tree(), "large").await;
    damage(&mounted, |batch| batch.put(orphan_key(large), Bytes::new())).await;
    mounted.tree().engine.close().await.unwrap();
    assert!(world.repair().await.whole);
    let files = world.files().await;
    assert_eq!(files.get("/large"), Some(&Some(vec![2; LARGE])), "a repair removes a file that has a name");
}

/// What is replaced in the log is kept.
#[tokio::test]
async fn a_damaged_object_of_the_log_is_kept() {
    let (world, numbers) = crashed().await;
    let name = log_name(numbers[1]);
    world.flip(&name, 70).await;
    let bytes = world.get(&name).await;
    let cut = bytes.slice(..bytes.len() - 1);
    world.put(&name, cut.clone()).await;
    assert!(world.repair().await.whole);
    let kept = world.everything().await.remove(&format!("v/damaged/{name}"));
    assert_eq!(kept, Some(cut), "a repair replaces an object that it has not kept");
}

#[cfg(shuttle)]
#[test]
fn a_repair_that_loses_something_is_caught() {
    use sync::mutant::assert_caught;
    let test = "fsck::schedules::a_file_with_a_wrong_mark_is_not_removed";
    assert_caught(test, &["fsck-removes-before-the-check"], "a repair removes a file that has a name");
    let test = "fsck::schedules::a_damaged_object_of_the_log_is_kept";
    let replaces = "a repair replaces an object that it has not kept";
    assert_caught(test, &["fsck-log-not-kept"], replaces);
}
