use std::io::IoSlice;

use bytes::Bytes;
use object_store::memory::InMemory;
use store::{AllocateMode, Creator, FileType, Name, NewNode, ObjectId};

use super::*;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::node::Pin;
use crate::readers::Mark;

const ROOT: ObjectId = ObjectId::ROOT;

pub(crate) fn bucket(objects: &Arc<InMemory>) -> Bucket {
    Bucket::new(Arc::clone(objects) as _, "v".into())
}

pub(crate) async fn open(objects: &Arc<InMemory>, nonce: u8) -> Arc<Mounted> {
    let last = newest_manifest(&bucket(objects)).await.unwrap();
    Mounted::open(bucket(objects), last, MountOptions::plain(4, [nonce; 16])).await.unwrap()
}

pub(crate) fn collector(mounted: &Mounted, passes: u32) -> Collector {
    mounted.collector(Timing { passes, ..Timing::default() }).unwrap()
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_ref()).unwrap()
}

pub(crate) async fn make(tree: &Arc<Tree>, file: &str) -> Pin {
    let creator = Creator { uid: 0, gid: 0, umask: 0 };
    let what = NewNode::Special { kind: FileType::Regular, rdev: 0 };
    let made = tree.make(ROOT, name(file), what, 0o644, creator).await.unwrap();
    let pin = tree.pin_used(made.id.0, "test").unwrap();
    tree.forget(made.id.0, 1);
    pin
}

pub(crate) async fn write(tree: &Arc<Tree>, pin: &Pin, byte: u8, len: usize) {
    tree.write_at(pin, &[IoSlice::new(&vec![byte; len])], 0).await.unwrap();
    tree.sync_file(pin).await.unwrap();
}

pub(crate) async fn read(tree: &Arc<Tree>, pin: &Pin, len: usize) -> Vec<u8> {
    let mut data = vec![0; len];
    assert_eq!(tree.read_at(pin, &mut data, 0).await.unwrap(), len);
    data
}

/// Each object has as many live bytes as extents refer to. Repacking may go on beside this: rows that
/// changed between two scans are scanned again.
pub(crate) async fn assert_counted(tree: &Tree) -> Result<()> {
    let extents = async || tree.engine.scan(rows::all_keys(b'E'), usize::MAX).await;
    loop {
        let before = extents().await?;
        let counts = tree.engine.scan(rows::all_keys(b'G'), usize::MAX).await?;
        if extents().await? == before {
            return assert_counts(&before, &counts);
        }
    }
}

fn assert_counts(extents: &[(Bytes, Bytes)], counts: &[(Bytes, Bytes)]) -> Result<()> {
    let mut live = BTreeMap::new();
    for (_, row) in extents {
        let extent: rows::ExtentRow = rows::from_bytes(row, "an extent")?;
        if let Some((stored, _)) = extent.data {
            *live.entry(stored.object).or_insert(0) += i64::try_from(extent.len).unwrap();
        }
    }
    for (key, count) in counts.iter().filter(|(key, _)| key != rows::COUNTED) {
        let object = rows::live_object(key)?;
        let usage = Usage::from_bytes(count)?;
        assert!(usage.written > 0, "what was written to {object:?} is not counted");
        assert_eq!(usage.live, live.remove(&object).unwrap_or(0), "the live bytes of {object:?}");
    }
    assert!(live.is_empty(), "not counted: {live:?}");
    Ok(())
}

pub(crate) const LARGE: usize = 300_000;

#[tokio::test]
async fn what_is_replaced_and_deleted_leaves_the_bucket_and_what_is_in_use_stays() {
    let objects = Arc::default();
    for life in 1..=6_u8 {
        let mounted = open(&objects, life).await;
        let (tree, mut collector) = (mounted.tree(), collector(&mounted, 2));
        let kept = match tree.lookup(ROOT, name("kept")).await {
            Ok(entry) => {
                let pin = tree.pin_used(entry.id.0, "test").unwrap();
                tree.forget(entry.id.0, 1);
                pin
            }
            Err(_) => make(tree, "kept").await,
        };
        let (small, large) = (make(tree, "small").await, make(tree, "large").await);
        for round in 0..8 {
            write(tree, &kept, life, LARGE).await;
            write(tree, &small, round, 5000).await;
            write(tree, &large, round, LARGE).await;
            let punch = AllocateMode::PUNCH_HOLE | AllocateMode::KEEP_SIZE;
            tree.allocate(&large, punch, 1000, 4096).await.unwrap();
            // From one file to another, by reference.
            tree.copy_range((&kept, 100), (&small, 100), 200_000).await.unwrap();
            assert_counted(tree).await.unwrap();
        }
        drop((small, large));
        tree.remove(ROOT, name("small"), false).await.unwrap();
        tree.remove(ROOT, name("large"), false).await.unwrap();
        let segments = async || bucket(&objects).list("seg", None).await.unwrap().len();
        let before = segments().await;
        assert_eq!(collector.pass().await.unwrap(), 0, "it was found once only");
        for _ in 0..5 {
            // Files without a name go by and by.
            tree.sync_all().await.unwrap();
            collector.pass().await.unwrap();
        }
        assert!(before > 8 && segments().await <= 1, "{before} segments before");
        assert_eq!(read(tree, &kept, LARGE).await, vec![life; LARGE]);
        assert_counted(tree).await.unwrap();
        mounted.close().await;
    }
    // The log's objects went with the tables that have their rows; each life has left its fence.
    let mounted = open(&objects, 7).await;
    let collected = collector(&mounted, 1).collect(false).await.unwrap();
    assert!(collected.readers.is_empty() && collected.objects > 0, "{collected:?}");
    let log = bucket(&objects).list("log", None).await.unwrap();
    assert!((7..20).contains(&log.len()), "{log:?}");
    let meta = bucket(&objects).list("meta/compacted", None).await.unwrap();
    assert!(meta.len() < 12, "{meta:?}");
    mounted.close().await;
    let mounted = open(&objects, 8).await;
    let again = collector(&mounted, 1).collect(true).await.unwrap();
    assert!(again.objects <= 4, "{again:?}");
    let kept = mounted.tree().lookup(ROOT, name("kept")).await.unwrap();
    let pin = mounted.tree().pin_used(kept.id.0, "test").unwrap();
    assert_eq!(read(mounted.tree(), &pin, LARGE).await, vec![6; LARGE]);
    mounted.close().await;
}

#[tokio::test]
async fn a_reader_elsewhere_keeps_everything() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let (tree, mut collector) = (mounted.tree(), collector(&mounted, 1));
    let pin = make(tree, "file").await;
    write(tree, &pin, 1, LARGE).await;
    let mark = Mark::set(bucket(&objects)).await.unwrap();
    let last = newest_manifest(&bucket(&objects)).await.unwrap().unwrap();
    let options = MountOptions::plain(4, [2; 16]);
    let reader = Mounted::open_read_only(bucket(&objects), last, options).await.unwrap();
    reader.keep(Some(mark));
    write(tree, &pin, 2, LARGE).await;
    assert_eq!(collector.pass().await.unwrap(), 0, "it is read elsewhere");
    assert_eq!(collector.collect(false).await.unwrap().readers.len(), 1);
    let entry = reader.tree().lookup(ROOT, name("file")).await.unwrap();
    let seen = reader.tree().pin_used(entry.id.0, "test").unwrap();
    assert_eq!(read(reader.tree(), &seen, LARGE).await, vec![1; LARGE]);
    reader.close().await;
    assert!(collector.pass().await.unwrap() > 0, "nobody reads it any more");
    mounted.close().await;
}

/// What lost holders have left in the midst of something is found by a collection that looks for
/// it.
#[tokio::test]
async fn segments_that_no_row_names_are_found() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let data = vec![(0, vec![vec![1; LARGE].into()])];
    mounted.tree().segments.put_bulk(5, data.clone(), std::future::pending()).await.unwrap();
    mounted.abort();
    let mounted = open(&objects, 2).await;
    // Of this holder's own it may be that the row comes.
    mounted.tree().segments.put_bulk(5, data, std::future::pending()).await.unwrap();
    let mut collector = collector(&mounted, 1);
    let tried = collector.collect(true).await.unwrap();
    assert!(tried.bytes > 0 && bucket(&objects).list("seg", None).await.unwrap().len() == 2);
    collector.collect(false).await.unwrap();
    assert_eq!(bucket(&objects).list("seg", None).await.unwrap().len(), 1);
    mounted.close().await;
}

/// A file without a name may be looked up by its number, and given back, while it is removed.
#[tokio::test]
async fn a_file_is_removed_once() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let tree = mounted.tree();
    let (gone, kept) = (make(tree, "gone").await, make(tree, "kept").await);
    // Both in one object of the log.
    for pin in [&gone, &kept] {
        tree.write_at(pin, &[IoSlice::new(&[1; 5000])], 0).await.unwrap();
    }
    tree.sync_all().await.unwrap();
    tree.remove(ROOT, name("gone"), false).await.unwrap();
    tokio::join!(Arc::clone(tree).reap(gone.ino), Arc::clone(tree).reap(gone.ino));
    Arc::clone(tree).reap(gone.ino).await;
    assert_counted(tree).await.unwrap();
    let totals = *tree.totals.lock();
    assert_eq!((totals.inodes, totals.bytes), (2, 5000));
    mounted.close().await;
}

/// Random overwrites leave a little alive in each segment: it is moved, and they go.
#[tokio::test]
async fn what_is_mostly_dead_is_repacked() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let tree = mounted.tree();
    let mut collector = mounted.collector(Timing { passes: 1, left_alone: 0, ..Timing::default() }).unwrap();
    let (pin, small, gone) = (make(tree, "file").await, make(tree, "small").await, make(tree, "gone").await);
    let mut expected = vec![0; 8 * LARGE];
    for round in 0..8_usize {
        // Each leaves a part of the one before alive.
        let from = round * 10_000;
        let data = vec![1 + u8::try_from(round).unwrap(); expected.len() - from];
        tree.write_at(&pin, &[IoSlice::new(&data)], from as u64).await.unwrap();
        expected[from..].copy_from_slice(&data);
        tree.write_at(&small, &[IoSlice::new(&[7; 100])], (1000 * round) as u64).await.unwrap();
        write(tree, &gone, 1, 5000).await;
        tree.sync_all().await.unwrap();
    }
    drop(gone);
    tree.remove(ROOT, name("gone"), false).await.unwrap();
    let bytes = async || {
        let mut bytes = 0;
        for dir in ["seg", "log"] {
            bytes +=
                bucket(&objects).list_sizes(dir, None).await.unwrap().iter().map(|(_, n)| n).sum::<u64>();
        }
        bytes
    };
    let before = bytes().await;
    assert!(before > 7 * expected.len() as u64, "{before}");
    let attr = tree.attr(ObjectId(pin.ino)).await.unwrap();
    for _ in 0..4 {
        collector.pass().await.unwrap();
        assert_counted(tree).await.unwrap();
        tree.sync_all().await.unwrap();
        collector.engine.write_tables().await.unwrap();
    }
    let after = bytes().await;
    assert!(after < expected.len() as u64 * 13 / 10, "{before} before, {after} after");
    assert_eq!(read(tree, &pin, expected.len()).await, expected);
    assert_eq!(tree.attr(ObjectId(pin.ino)).await.unwrap(), attr, "a user does not see it");
    // What was moved is one extent where it was several.
    let extents = tree.engine.scan(rows::keys_of(b'E', pin.ino), usize::MAX).await.unwrap().len();
    assert!(extents <= 3, "{extents}");
    // Tables that were merged go, too; then there is nothing more to do.
    let mut passes = 0;
    while collector.pass().await.unwrap() > 0 {
        passes += 1;
        assert!(passes < 10, "each pass makes work for the next");
    }
    let sent = mounted.requests().sent_bytes;
    assert_eq!(collector.pass().await.unwrap(), 0);
    assert_eq!(mounted.requests().sent_bytes, sent);
    mounted.close().await;

    let mounted = open(&objects, 2).await;
    let entry = mounted.tree().lookup(ROOT, name("file")).await.unwrap();
    let pin = mounted.tree().pin_used(entry.id.0, "test").unwrap();
    assert_eq!(read(mounted.tree(), &pin, expected.len()).await, expected);
    mounted.close().await;
}

/// A merge of tables takes long, and may be under way whenever there are many: what is dead goes
/// meanwhile, and a collection of everything waits for the tables.
#[tokio::test]
async fn a_merge_of_tables_keeps_nothing_else() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let (tree, mut collector) = (mounted.tree(), collector(&mounted, 1));
    let table = "meta/compacted/nobody-names-it.sst";
    let left = async || {
        let tables = bucket(&objects).list("meta/compacted", None).await.unwrap();
        let is_left = tables.iter().any(|name| table.ends_with(name.as_str()));
        (bucket(&objects).list("seg", None).await.unwrap().len(), is_left)
    };
    let pin = make(tree, "file").await;
    for (byte, of_everything) in [(1, false), (2, true)] {
        let _new = bucket(&objects).create(table, vec![1].into()).await.unwrap();
        write(tree, &pin, byte, LARGE).await;
        write(tree, &pin, byte + 2, LARGE).await;
        let merging = collector.engine.merging().await;
        if of_everything {
            let merge = async {
                for _ in 0..1000 {
                    tokio::task::yield_now().await;
                }
                drop(merging);
            };
            tokio::join!(async { collector.collect(false).await.unwrap() }, merge);
        } else {
            collector.pass().await.unwrap();
            assert_eq!(left().await, (1, true), "a merge keeps segments that are dead");
            drop(merging);
            collector.pass().await.unwrap();
        }
        assert_eq!(left().await, (1, false));
    }
    mounted.close().await;
}

/// Bytes that passes leave in the bucket of a volume at rest, but for tables, and those that files
/// need.
pub(super) async fn at_rest(mounted: &Mounted, objects: &Arc<InMemory>) -> (u64, u64) {
    let mut collector = mounted.collector(Timing::default()).unwrap();
    // As many as garbage takes in all: the first two repack, the second by a search, and what was found
    // dead in the third goes in the fifth.
    for _ in 0..5 {
        collector.pass().await.unwrap();
        mounted.tree().sync_all().await.unwrap();
    }
    assert_counted(mounted.tree()).await.unwrap();
    let mut stored = 0;
    for dir in ["seg", "log"] {
        stored += bucket(objects).list_sizes(dir, None).await.unwrap().iter().map(|(_, n)| n).sum::<u64>();
    }
    let mut parts = BTreeMap::<_, Vec<_>>::new();
    for (_, row) in mounted.tree().engine.scan(rows::all_keys(b'E'), usize::MAX).await.unwrap() {
        let extent: rows::ExtentRow = rows::from_bytes(&row, "an extent").unwrap();
        let Some((stored, skip)) = extent.data else { continue };
        let skip = u64::from(skip);
        parts.entry((stored.object, stored.at)).or_default().push((skip, skip + extent.len));
    }
    // What several refer to is needed once.
    let needed = parts.into_values().map(|mut parts| {
        parts.sort_unstable();
        let mut end = 0;
        let more = |(from, to): (u64, u64)| {
            let more = to.saturating_sub(from.max(end));
            end = end.max(to);
            more
        };
        parts.into_iter().map(more).sum::<u64>()
    });
    (stored, needed.sum())
}

#[track_caller]
pub(super) fn assert_little_garbage((stored, needed): (u64, u64)) {
    assert!(stored * 10 <= needed * 13, "{stored} bytes are in the bucket, and {needed} are needed");
}

/// Bytes that cannot be compressed, others for each `seed`.
pub(super) fn random(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// A volume with less than 16 MiB of garbage has more garbage than data, and still is repacked.
#[tokio::test]
async fn at_rest_a_small_volume_has_little_garbage() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let tree = mounted.tree();
    let pin = make(tree, "file").await;
    for round in 0..8_u64 {
        tree.write_at(&pin, &[IoSlice::new(&random(round, 2 << 20))], round << 19).await.unwrap();
        tree.sync_file(&pin).await.unwrap();
    }
    assert_little_garbage(at_rest(&mounted, &objects).await);
    mounted.close().await;
}

/// Small data is in objects of the log, many of them; the last ones have no rows in tables.
#[tokio::test]
async fn at_rest_the_log_has_little_garbage() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let tree = mounted.tree();
    let (kept, changed) = (make(tree, "kept").await, make(tree, "changed").await);
    for round in 0..400_u64 {
        tree.write_at(&kept, &[IoSlice::new(&random(round, 12_000))], 12_000 * round).await.unwrap();
        tree.write_at(&changed, &[IoSlice::new(&random(!round, 20_000))], 0).await.unwrap();
        tree.sync_all().await.unwrap();
    }
    assert_little_garbage(at_rest(&mounted, &objects).await);
    mounted.close().await;
}
