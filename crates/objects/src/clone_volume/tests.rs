use std::sync::Arc;

use object_store::memory::InMemory;
use store::{Name, ObjectId};

use super::*;
use crate::engine::with_parents;
use crate::garbage::tests::{LARGE, assert_counted, collector, make as make_file, write};
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::quotas::QuotaLimits;

pub(super) fn bucket(objects: &Arc<InMemory>, root: &str) -> Bucket {
    Bucket::new(Arc::clone(objects) as _, root.into())
}

/// Opens a volume as the program does, but for its lease.
pub(super) async fn open(bucket: &Bucket, nonce: u8) -> Arc<Mounted> {
    let format = format::read(bucket).await.unwrap();
    let bucket = with_parents(bucket, &format.parents).await.unwrap();
    let last = newest_manifest(&bucket).await.unwrap();
    Mounted::open(bucket, last, MountOptions::plain(4, [nonce; 16])).await.unwrap()
}

/// What `file` holds: a byte, again and again.
async fn shown(mounted: &Mounted) -> u8 {
    let tree = mounted.tree();
    let entry = tree.lookup(ObjectId::ROOT, Name::new("file".as_ref()).unwrap()).await.unwrap();
    let (pin, mut data) = (tree.pin_used(entry.id.0, "test").unwrap(), vec![0; LARGE]);
    assert_eq!(tree.read_at(&pin, &mut data, 0).await.unwrap(), LARGE);
    assert_eq!(data, vec![data[0]; LARGE]);
    data[0]
}

#[tokio::test]
async fn a_clone_takes_few_requests_whatever_the_volume_holds() {
    let mut counts = Vec::new();
    for files in [1, 100] {
        let objects = Arc::default();
        let parent = bucket(&objects, "parent");
        format::create(&parent, format::Options::default()).await.unwrap();
        let mounted = open(&parent, 1).await;
        for file in 0..files {
            write(mounted.tree(), &make_file(mounted.tree(), &file.to_string()).await, 1, LARGE).await;
        }
        mounted.create_snapshot("base").await.unwrap();
        mounted.close().await;
        let (from, to) = (bucket(&objects, "parent"), bucket(&objects, "clone"));
        make(&from, "base", &to).await.unwrap();
        let sent = |bucket: &Bucket| {
            let stats: store::RequestStats = bucket.stats().into();
            stats.kinds.iter().map(|kind| kind.sent).sum::<u64>()
        };
        counts.push(sent(&from) + sent(&to));
    }
    let what = "format, two for the newest manifest, pin, format, names, pins, manifest twice, lease";
    assert_eq!(counts, [10, 10], "{what}");
}

/// Quotas are what a snapshot shows: the clone has them, and counts for itself from there on.
#[tokio::test]
async fn a_clone_has_the_quotas_of_its_snapshot() {
    let objects = Arc::default();
    let parent = bucket(&objects, "parent");
    format::create(&parent, format::Options::default()).await.unwrap();
    let mounted = open(&parent, 1).await;
    let limits = |bytes| QuotaLimits { bytes: Some(bytes), inodes: None };
    mounted.tree().set_quota(ObjectId::ROOT.0, limits(2 * LARGE as u64)).await.unwrap();
    write(mounted.tree(), &make_file(mounted.tree(), "file").await, 1, LARGE).await;
    mounted.create_snapshot("base").await.unwrap();
    mounted.tree().set_quota(ObjectId::ROOT.0, limits(1)).await.unwrap();
    mounted.close().await;
    let clone = bucket(&objects, "clone");
    make(&bucket(&objects, "parent"), "base", &clone).await.unwrap();
    let mounted = open(&clone, 2).await;
    let tree = mounted.tree();
    let quota = tree.quota(ObjectId::ROOT.0).await.unwrap();
    assert_eq!((quota.bytes, quota.used_bytes), (Some(2 * LARGE as u64), LARGE as u64));
    let more = make_file(tree, "more").await;
    write(tree, &more, 2, LARGE).await;
    assert_eq!(tree.promise_size(&more, LARGE as u64 + 1).await.unwrap_err().kind(), ErrorKind::NoSpace);
    mounted.close().await;
    let mounted = open(&bucket(&objects, "parent"), 3).await;
    let quota = mounted.tree().quota(ObjectId::ROOT.0).await.unwrap();
    assert_eq!((quota.bytes, quota.used_bytes), (Some(1), LARGE as u64), "the parent's are its own");
    mounted.close().await;
}

/// Clones of clones write, collect, and end; what one needs of another stays.
#[tokio::test]
async fn a_family_shares_what_a_snapshot_shows_and_nothing_else() {
    let objects = Arc::default();
    // A handle ends with the volume that is opened by it.
    let root = |n: u8| bucket(&objects, ["a", "b", "c"][usize::from(n) - 1]);
    format::create(&root(1), format::Options::default()).await.unwrap();
    for n in 1..=3 {
        let mounted = open(&root(n), n).await;
        let tree = mounted.tree();
        let (before, mut collector) = (n - 1, collector(&mounted, 1));
        let pin = match tree.lookup(ObjectId::ROOT, Name::new("file".as_ref()).unwrap()).await {
            Ok(entry) => {
                assert_eq!(shown(&mounted).await, 10 * before, "it begins as its parent's snapshot");
                tree.pin_used(entry.id.0, "test").unwrap()
            }
            Err(_) => make_file(tree, "file").await,
        };
        // Small data is in the log.
        let small = make_file(tree, &format!("small-{n}")).await;
        write(tree, &small, n, 5000).await;
        write(tree, &pin, 10 * n, LARGE).await;
        mounted.create_snapshot("base").await.unwrap();
        assert_eq!(mounted.snapshots().await.unwrap().len(), 1, "its parent's are not its own");
        write(tree, &pin, 100 + n, LARGE).await;
        for _ in 0..3 {
            collector.pass().await.unwrap();
            tree.sync_all().await.unwrap();
        }
        assert_counted(tree).await.unwrap();
        drop(collector);
        mounted.close().await;
        if n < 3 {
            make(&root(n), "base", &root(n + 1)).await.unwrap();
        }
    }
    for n in 1..=3 {
        let mounted = open(&root(n), 10 + n).await;
        collector(&mounted, 1).collect(false).await.unwrap();
        assert_eq!(shown(&mounted).await, 100 + n);
        for small in 1..=n {
            let name = format!("small-{small}");
            let entry =
                mounted.tree().lookup(ObjectId::ROOT, Name::new(name.as_ref()).unwrap()).await.unwrap();
            let (pin, mut data) = (mounted.tree().pin_used(entry.id.0, "test").unwrap(), vec![0; 5000]);
            mounted.tree().read_at(&pin, &mut data, 0).await.unwrap();
            assert_eq!(data, vec![small; 5000], "{name} of {n}");
        }
        let deleted = mounted.delete_snapshot("base").await;
        assert_eq!(deleted.is_ok(), n == 3, "{deleted:?}");
        mounted.close().await;
    }
}

/// A clone whose pin was removed, for it was not there yet, never comes to be.
#[tokio::test]
async fn a_snapshot_that_is_deleted_has_no_clone() {
    let objects = Arc::default();
    let (parent, clone) = (bucket(&objects, "parent"), bucket(&objects, "clone"));
    format::create(&parent, format::Options::default()).await.unwrap();
    let mounted = open(&parent, 1).await;
    let snapshot = mounted.create_snapshot("base").await.unwrap();
    forbid_clones(&parent, &snapshot).await.unwrap();
    let error = make(&parent, "base", &clone).await.unwrap_err();
    assert!(error.detail().unwrap().contains("is being deleted"), "{error}");
    assert!(bucket(&objects, "clone").list("", None).await.unwrap().is_empty());
    mounted.delete_snapshot("base").await.unwrap();
    assert_eq!(make(&parent, "base", &clone).await.unwrap_err().kind(), ErrorKind::NotFound);
    mounted.close().await;
}
