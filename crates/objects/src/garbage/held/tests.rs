use std::sync::Arc;

use store::{ErrorKind, Name, ObjectId};

use crate::find_snapshot::find;
use crate::garbage::tests::{LARGE, assert_counted, bucket, collector, make, open, write};
use crate::mount::{MountOptions, Mounted};
use crate::readers::Mark;

/// What the file `file` holds in a snapshot: a byte, again and again.
async fn shown(objects: &Arc<object_store::memory::InMemory>, snapshot: &str) -> u8 {
    let snapshot = find(&bucket(objects), snapshot).await.unwrap();
    let options = MountOptions::plain(4, [0; 16]);
    let mounted = Mounted::open_snapshot(bucket(objects), &snapshot, options).await.unwrap();
    let tree = mounted.tree();
    let entry = tree.lookup(ObjectId::ROOT, Name::new("file".as_ref()).unwrap()).await.unwrap();
    let (pin, mut data) = (tree.pin_used(entry.id.0, "test").unwrap(), vec![0; LARGE]);
    assert_eq!(tree.read_at(&pin, &mut data, 0).await.unwrap(), LARGE);
    assert_eq!(data, vec![data[0]; LARGE]);
    mounted.close().await;
    data[0]
}

async fn segments(objects: &Arc<object_store::memory::InMemory>) -> usize {
    bucket(objects).list("seg", None).await.unwrap().len()
}

#[tokio::test]
async fn a_snapshot_needs_what_was_there_and_alive_and_nothing_else() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let (tree, mut collector) = (mounted.tree(), collector(&mounted, 1));
    let pin = make(tree, "file").await;
    for (byte, name) in [(1, "one"), (2, "two"), (3, "three")] {
        write(tree, &pin, byte, LARGE).await;
        for _ in 0..2 {
            collector.pass().await.unwrap();
        }
        mounted.create_snapshot(name).await.unwrap();
        // Of no snapshot: there when none was made, and found dead before the next.
        write(tree, &pin, 100 + byte, LARGE).await;
        for _ in 0..3 {
            collector.pass().await.unwrap();
        }
    }
    write(tree, &pin, 4, LARGE).await;
    for _ in 0..3 {
        collector.pass().await.unwrap();
    }
    assert_eq!(segments(&objects).await, 4, "those of three snapshots, and what is there now");
    for (byte, name) in [(1, "one"), (2, "two"), (3, "three")] {
        assert_eq!(shown(&objects, name).await, byte);
    }
    // One in the midst: neither the one before nor the one behind it needs what it alone showed.
    mounted.delete_snapshot("two").await.unwrap();
    tree.sync_all().await.unwrap();
    for _ in 0..3 {
        collector.pass().await.unwrap();
    }
    assert_eq!(segments(&objects).await, 3);
    assert_counted(tree).await.unwrap();
    drop(collector);
    mounted.close().await;

    // The next holder knows it, too; also a collection that looks for everything.
    let mounted = open(&objects, 2).await;
    let collector = || super::super::tests::collector(&mounted, 1);
    let tried = collector().collect(true).await.unwrap();
    assert_eq!((segments(&objects).await, shown(&objects, "one").await), (3, 1), "{tried:?}");
    collector().collect(false).await.unwrap();
    assert_eq!((segments(&objects).await, shown(&objects, "three").await), (3, 3));
    for name in ["one", "three"] {
        assert_eq!(shown(&objects, name).await, if name == "one" { 1 } else { 3 });
        mounted.delete_snapshot(name).await.unwrap();
    }
    collector().collect(false).await.unwrap();
    assert_eq!(segments(&objects).await, 1);
    let rows = mounted.tree().engine.scan(crate::rows::all_keys(b'H'), 9).await.unwrap();
    assert!(rows.is_empty(), "rows of objects that are gone: {rows:?}");
    mounted.close().await;
}

#[tokio::test]
async fn one_who_reads_a_snapshot_holds_up_nothing_until_it_is_deleted() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let (tree, mut collector) = (mounted.tree(), collector(&mounted, 1));
    let pin = make(tree, "file").await;
    write(tree, &pin, 1, LARGE).await;
    let snapshot = mounted.create_snapshot("one").await.unwrap();
    let mark = Mark::set_of_snapshot(bucket(&objects), snapshot.number).await.unwrap();
    for byte in [2, 3] {
        write(tree, &pin, byte, LARGE).await;
    }
    for _ in 0..3 {
        collector.pass().await.unwrap();
    }
    assert_eq!(segments(&objects).await, 2, "that of the snapshot, and what is there now");
    mounted.delete_snapshot("one").await.unwrap();
    tree.sync_all().await.unwrap();
    for _ in 0..2 {
        collector.pass().await.unwrap();
    }
    assert_eq!(segments(&objects).await, 2, "it is still read");
    mark.remove().await;
    for _ in 0..2 {
        collector.pass().await.unwrap();
    }
    assert_eq!(segments(&objects).await, 1);
    mounted.close().await;
}

#[tokio::test]
async fn names_that_are_taken_or_cannot_be_are_refused() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    mounted.create_snapshot("a b").await.unwrap();
    let refused = async |name: &str| mounted.create_snapshot(name).await.unwrap_err().kind();
    assert_eq!(refused("a b").await, ErrorKind::Exists);
    for name in ["", "a/b", "a,b", "a\nb", " a", &"a".repeat(101)] {
        assert_eq!(refused(name).await, ErrorKind::Invalid, "{name}");
    }
    assert_eq!(mounted.delete_snapshot("a").await.unwrap_err().kind(), ErrorKind::NotFound);
    let snapshots = mounted.snapshots().await.unwrap();
    assert_eq!((snapshots.len(), snapshots[0].name.as_str()), (1, "a b"));
    // Who was taken over makes none, and deletes none.
    let next = open(&objects, 2).await;
    assert!(mounted.create_snapshot("b").await.is_err());
    assert!(mounted.delete_snapshot("a b").await.is_err());
    assert_eq!(next.snapshots().await.unwrap(), snapshots);
    next.close().await;
}

/// As many requests for a large volume as for a small one.
#[tokio::test]
async fn a_snapshot_takes_few_requests_whatever_the_volume_holds() {
    let mut counts = Vec::new();
    for files in [1, 200] {
        let objects = Arc::default();
        let mounted = open(&objects, 1).await;
        for file in 0..files {
            let pin = make(mounted.tree(), &file.to_string()).await;
            write(mounted.tree(), &pin, 1, LARGE).await;
        }
        let requests = || mounted.requests().kinds.iter().map(|kind| kind.sent).sum::<u64>();
        let before = requests();
        mounted.create_snapshot("one").await.unwrap();
        counts.push(requests() - before);
        mounted.close().await;
    }
    println!("requests of a snapshot: {counts:?}");
    assert!(counts.iter().all(|count| *count <= 16), "{counts:?}");
}
