//! The requests of a volume that is open: of one that nobody uses, and of one that is written to in
//! sequence.

use std::io::IoSlice;

use object_store::ObjectStore as _;
use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};

use super::*;
use crate::garbage::tests::{LARGE, make, open, write};
use crate::segments::EXTENT_BYTES_MAX;

/// Requests by the names of their kinds: GET, PUT, LIST, DELETE.
fn sent(mounted: &Mounted) -> [u64; 4] {
    let kinds = mounted.requests().kinds;
    ["get", "put", "list", "delete"]
        .map(|name| kinds.iter().filter(|kind| kind.name == name).map(|kind| kind.sent).sum())
}

fn since(mounted: &Mounted, before: [u64; 4]) -> [u64; 4] {
    let now = sent(mounted);
    std::array::from_fn(|kind| now[kind] - before[kind])
}

/// Its lease is asked for beside this: `lease::tests::holders`.
#[tokio::test(start_paused = true)]
async fn an_idle_volume_sends_no_put_and_hardly_a_get() {
    let (hour, objects) = (Duration::from_secs(3600), Arc::default());
    for life in 1..=2 {
        let mounted = open(&objects, life).await;
        if life == 1 {
            write(mounted.tree(), &make(mounted.tree(), "file").await, 1, LARGE).await;
        }
        // What is garbage by then is found in three passes, and removed.
        tokio::time::sleep(hour).await;
        let before = sent(&mounted);
        tokio::time::sleep(hour).await;
        let [gets, puts, lists, deletes] = since(&mounted, before);
        assert_eq!((puts, lists, deletes), (0, 0, 0), "life {life}");
        // One for each look for a newer manifest, of which one more may fall into the hour.
        assert!(gets <= 2, "life {life}: {gets} GETs an hour");
        mounted.close().await;
    }
}

/// Data comes faster than the bucket takes it: it waits in few rounds, each of a whole extent.
#[tokio::test(start_paused = true)]
async fn bulk_data_goes_in_whole_extents_though_the_bucket_is_slow() {
    const WRITE: usize = 1 << 20;
    let slow = ThrottleConfig { wait_put_per_call: Duration::from_millis(500), ..ThrottleConfig::default() };
    let objects = Arc::new(InMemory::new());
    let store = ThrottledStore::new(Arc::clone(&objects), slow);
    let bucket = Bucket::new(Arc::new(store), "volume".into());
    let mounted = Mounted::open(bucket, None, MountOptions::plain(4, [1; 16])).await.unwrap();
    let (tree, extents) = (mounted.tree(), 32);
    let pin = make(tree, "file").await;
    let before = sent(&mounted);
    let data = vec![1; WRITE];
    for number in 0..extents * EXTENT_BYTES_MAX / WRITE {
        tree.write_at(&pin, &[IoSlice::new(&data)], (number * WRITE) as u64).await.unwrap();
    }
    tree.sync_file(&pin).await.unwrap();
    let [_, puts, ..] = since(&mounted, before);
    // Beside the segments, objects of the log with their rows: of the sync, and each 5 s.
    assert!((extents as u64..=extents as u64 + 8).contains(&puts), "{puts} PUTs for {extents} extents");
    let listed = objects.list_with_delimiter(Some(&"volume/seg".into())).await.unwrap();
    assert_eq!(listed.common_prefixes.len(), extents, "each in a directory of its own");
    mounted.close().await;
}

/// A file that nobody writes to any more, as far as it is known, is taken to the bucket at once if it
/// gets a segment of its own; a small one waits for company, and one without a name for its end.
#[tokio::test(start_paused = true)]
async fn a_large_file_goes_when_it_is_closed() {
    let objects = Arc::default();
    let mounted = open(&objects, 1).await;
    let tree = mounted.tree();
    let write_and_close = async |name: &str, len: usize, is_removed: bool| {
        let pin = make(tree, name).await;
        tree.write_at(&pin, &[IoSlice::new(&vec![1; len])], 0).await.unwrap();
        if is_removed {
            pin.lock().await.unwrap().row.nlink = 0;
        }
        tree.on_close(&pin);
        let is_taken = pin.lock().await.unwrap().pieces.bytes() == 0;
        pin.lock().await.unwrap().row.nlink = 1;
        is_taken
    };
    assert!(write_and_close("large", LARGE, false).await);
    assert!(!write_and_close("small", 1000, false).await);
    assert!(!write_and_close("removed", LARGE, true).await);
    mounted.close().await;
}

/// Many files, each of less than a segment: those that wait share one, and they do also where the bucket
/// is quicker than they come. A file that is synced meanwhile goes by itself.
#[tokio::test(start_paused = true)]
async fn large_files_that_wait_share_segments() {
    for wait in [Duration::from_millis(500), Duration::ZERO] {
        segments_are_shared(wait).await;
    }
}

async fn segments_are_shared(wait_put_per_call: Duration) {
    let slow = ThrottleConfig { wait_put_per_call, ..ThrottleConfig::default() };
    let store = ThrottledStore::new(InMemory::new(), slow);
    let bucket = Bucket::new(Arc::new(store), "volume".into());
    let mounted = Mounted::open(bucket, None, MountOptions::plain(4, [1; 16])).await.unwrap();
    let tree = mounted.tree();
    let (before, files, len) = (sent(&mounted), 33_u8, EXTENT_BYTES_MAX / 4);
    let mut pins = Vec::new();
    for number in 0..files {
        let pin = make(tree, &format!("{number}")).await;
        tree.write_at(&pin, &[IoSlice::new(&vec![number; len])], 0).await.unwrap();
        tree.on_close(&pin);
        pins.push(pin);
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
    tree.sync_file(pins.last().unwrap()).await.unwrap();
    tree.sync_all().await.unwrap();
    let [_, puts, ..] = since(&mounted, before);
    let (segments, alone) = (u64::from(files) / 4, 3);
    let log = 4;
    assert!((segments..=segments + alone + log).contains(&puts), "{puts} PUTs for {segments} segments");
    for (number, pin) in (0..).zip(&pins) {
        let mut read = vec![0; len];
        assert_eq!(tree.read_at(pin, &mut read, 0).await.unwrap(), len);
        assert!(read.iter().all(|byte| *byte == number), "file {number}");
    }
    mounted.close().await;
}
