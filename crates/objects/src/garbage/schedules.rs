//! What a collection leaves, and the mutants that take more.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib
//! schedules`

use std::io::IoSlice;
use std::sync::Arc;
use std::time::Duration;

use super::tests::{
    LARGE, assert_little_garbage, at_rest, bucket, collector, make, open, random, read, write,
};
use crate::repacking::Relocation;

/// What is under way keeps what it may use.
#[tokio::test]
async fn what_is_under_way_keeps_what_it_may_use() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let (tree, mut collector) = (mounted.tree(), collector(&mounted, 1));
    let pin = make(tree, "file").await;
    write(tree, &pin, 1, LARGE).await;
    let under_way = tree.work.begin();
    let found = tree.extents(pin.ino, (0, 1), 1).await.unwrap();
    write(tree, &pin, 2, LARGE).await;
    collector.pass().await.unwrap();
    let (stored, _) = found[0].row.data.as_ref().unwrap();
    let mut data = [0; 10];
    let what_was_found = tree.segments.read(stored, 250_000..250_010, &mut data).await;
    assert!(what_was_found.is_ok(), "what is under way finds its data gone: {what_was_found:?}");
    drop(under_way);
    assert!(collector.pass().await.unwrap() > 0, "and then it goes");
    assert_eq!(bucket(&objects).list("seg", None).await.unwrap().len(), 1);
    mounted.close().await;
}

/// A holder that was taken over long ago, and does not know, finds the fence.
#[tokio::test]
async fn an_earlier_holder_acknowledges_nothing_after_a_collection() {
    let objects = Arc::default();
    let earlier = open(&objects, 1).await;
    let pin = make(earlier.tree(), "file").await;
    write(earlier.tree(), &pin, 1, LARGE).await;
    // Its engine looks for a newer manifest once, and then not for minutes.
    tokio::time::sleep(Duration::from_millis(50)).await;
    // What this one does is in tables when it ends, its fence before that.
    let mounted = open(&objects, 2).await;
    make(mounted.tree(), "other").await;
    mounted.close().await;
    let mounted = open(&objects, 3).await;
    collector(&mounted, 1).collect(false).await.unwrap();
    assert!(bucket(&objects).list("log", None).await.unwrap().len() < 5, "it was collected");
    make(earlier.tree(), "more").await;
    let synced = earlier.tree().sync_all().await;
    assert!(synced.is_err(), "a holder that was taken over acknowledges after a collection");
    mounted.close().await;
}

/// Repacking replaces nothing that was changed since it was read.
#[tokio::test]
async fn what_is_changed_while_it_is_repacked_stays_changed() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let tree = mounted.tree();
    let pin = make(tree, "file").await;
    write(tree, &pin, 1, LARGE).await;
    let extents = tree.extents(pin.ino, (0, 1), 1).await.unwrap();
    let object = extents[0].row.data.as_ref().unwrap().0.object;
    let found = tree.live_extents(object).await.unwrap();
    assert_eq!(found.len(), 1);
    write(tree, &pin, 2, 10).await;
    let mut relocation = Relocation::default();
    tree.add_live(&mut relocation, found).await.unwrap();
    tree.relocate(relocation).await.unwrap();
    let mut data = [0; 20];
    tree.read_at(&pin, &mut data, 0).await.unwrap();
    assert_eq!(data[..10], [2; 10], "repacking brings back what was replaced");
    assert_eq!(data[10..], [1; 10]);
    // What it wrote in vain is garbage, and is found.
    let mut collector = collector(&mounted, 1);
    tree.sync_all().await.unwrap();
    assert_eq!(collector.pass().await.unwrap(), 1);
    mounted.close().await;
}

/// Copies by reference refer to objects in places for which these were not written.
#[tokio::test]
async fn at_rest_what_copies_refer_to_is_moved_and_stays_shared() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let tree = mounted.tree();
    let (pin, copy) = (make(tree, "file").await, make(tree, "copy").await);
    let other = make(tree, "other").await;
    let (len, mut expected) = (4 << 20, [Vec::new(), Vec::new()]);
    for round in 0..8_u64 {
        let data = random(round, len);
        tree.write_at(&pin, &[IoSlice::new(&data)], 0).await.unwrap();
        tree.sync_file(&pin).await.unwrap();
        for (expected, (pin_to, shift)) in expected.iter_mut().zip([(&copy, 0), (&other, 100_001)]) {
            // Parts that overlap.
            let from = 70_000 * round + shift;
            let copied = tree.copy_range((&pin, from), (pin_to, round * 500_000), 500_000).await;
            assert_eq!(copied.unwrap(), 500_000);
            expected.extend_from_slice(&data[usize::try_from(from).unwrap()..][..500_000]);
        }
    }
    assert_little_garbage(at_rest(&mounted, &objects).await);
    let [copied, other_copied] = expected;
    for (expected, pin) in [(copied, &copy), (other_copied, &other), (random(7, len), &pin)] {
        let data = read(tree, pin, expected.len()).await;
        assert!(data == expected, "a file shows something else after repacking");
    }
    mounted.close().await;
}

#[cfg(shuttle)]
#[test]
fn a_collection_that_takes_too_much_is_caught() {
    use sync::mutant::assert_caught;
    let test = "garbage::schedules::what_is_under_way_keeps_what_it_may_use";
    assert_caught(test, &["garbage-in-use"], "what is under way finds its data gone");
    let test = "garbage::schedules::an_earlier_holder_acknowledges_nothing_after_a_collection";
    let acknowledges = "a holder that was taken over acknowledges after a collection";
    assert_caught(test, &["garbage-fence-collected"], acknowledges);
    let test = "garbage::schedules::what_is_changed_while_it_is_repacked_stays_changed";
    let brings_back = "repacking brings back what was replaced";
    assert_caught(test, &["repacking-of-what-changed"], brings_back);
    let test = "garbage::schedules::at_rest_what_copies_refer_to_is_moved_and_stays_shared";
    let shows_else = "a file shows something else after repacking";
    assert_caught(test, &["repacking-of-another-part"], shows_else);
    assert_caught(test, &["repacking-leaves-copies"], "bytes are in the bucket");
}
