use std::io::IoSlice;

use object_store::memory::InMemory;
use object_store::throttle::{ThrottleConfig, ThrottledStore};
use store::{Creator, FileType, Name, NewNode, ObjectId};

use super::*;
use crate::blocks::Blocks;
use crate::bucket::Bucket;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;

const MIB: u64 = 1 << 20;
const FILE: u64 = 64 * MIB;
const LATENCY: Duration = Duration::from_millis(50);

/// What is read ahead after a read, if there is memory for all of it.
fn ahead(streams: &Streams, offset: u64, len: u64) -> Option<Range<u64>> {
    let blocks = Arc::new(Blocks::default());
    streams.on_read(offset, len, 1000 * MIB, |bytes| blocks.reserve(bytes)).ahead.map(|(range, _)| range)
}

#[tokio::test]
async fn a_window_grows_while_a_file_is_read_in_sequence() {
    let streams = Streams::default();
    let windows: Vec<_> = (0..100).filter_map(|at| ahead(&streams, at * MIB, MIB)).collect();
    assert_eq!(windows[..4], [MIB..8 * MIB, 8 * MIB..16 * MIB, 16 * MIB..24 * MIB, 24 * MIB..32 * MIB]);
    assert!(windows.windows(2).all(|two| two[0].end == two[1].start), "each byte once");
    assert!(windows.iter().all(|window| window.end - window.start <= WINDOW_MAX));
    assert!(windows[1..].iter().all(|window| window.end - window.start == SEGMENT));
    assert!(windows.last().unwrap().end >= 100 * MIB + WINDOW_MAX - SEGMENT);
}

#[tokio::test(start_paused = true)]
async fn a_window_is_in_proportion_to_what_was_read() {
    for len in [4096, 64 << 10, MIB] {
        let (streams, mut end) = (Streams::default(), 0);
        for at in 0..6 {
            let range = ahead(&streams, at * len, len);
            end = range.map_or(end, |range| range.end);
            let most = (FROM_START * (at + 1) * len).max(WINDOW_MIN);
            assert!(end - (at + 1) * len <= most, "{end} after {at} of {len}");
        }
        assert!(len < MIB || end >= WINDOW_MAX, "the largest after six large reads");
    }
    // Who reads slowly, or does not begin with the file, has a window that doubles.
    for (first, pause) in [(0, BEGINNING), (100 * MIB, Duration::ZERO)] {
        let streams = Streams::default();
        for at in 0..6 {
            ahead(&streams, first + at * MIB, MIB);
            tokio::time::sleep(pause).await;
        }
        let window = streams.0.lock()[0].window;
        assert!((2 * MIB..=16 * MIB).contains(&window), "{window} from {first}");
    }
}

#[tokio::test]
async fn who_reads_the_same_again_is_not_in_sequence() {
    let (streams, blocks) = (Streams::default(), Arc::new(Blocks::default()));
    let read = |offset| streams.on_read(offset, MIB, 1000 * MIB, |bytes| blocks.reserve(bytes));
    assert!((0..100).all(|_| !read(0).is_in_sequence));
    assert!((1..100).any(|at| read(at * MIB).is_in_sequence));
}

#[tokio::test]
async fn reads_anywhere_are_not_followed_and_several_readers_are() {
    let streams = Streams::default();
    for at in 1..200 {
        assert_eq!(ahead(&streams, (at * 7919 % 1000) * MIB + MIB / 2, 4096), None, "{at}");
    }
    let streams = Streams::default();
    let mut followed = [0; 5];
    for step in 0..50 {
        for (reader, followed) in followed.iter_mut().enumerate() {
            let at = (1 + 200 * reader as u64) * MIB + step * 128 * 1024;
            *followed += u32::from(ahead(&streams, at, 128 * 1024).is_some());
        }
    }
    assert!(followed.iter().all(|followed| *followed > 2), "{followed:?}");
}

#[tokio::test]
async fn a_sequence_that_comes_out_of_order_is_one() {
    let streams = Streams::default();
    assert!(ahead(&streams, 0, MIB).is_some());
    for pair in 1..30 {
        ahead(&streams, (2 * pair + 1) * MIB, MIB);
        ahead(&streams, 2 * pair * MIB, MIB);
    }
    assert_eq!(streams.0.lock().len(), 1);
    assert_eq!(streams.0.lock()[0].window, WINDOW_MAX);
}

#[tokio::test(start_paused = true)]
async fn without_memory_nothing_is_read_ahead_and_after_a_pause_it_begins_again() {
    let blocks = Arc::new(Blocks::default());
    let all = blocks.reserve(u64::MAX);
    let streams = Streams::default();
    for at in 0..10 {
        assert!(streams.on_read(at * MIB, MIB, 1000 * MIB, |bytes| blocks.reserve(bytes)).ahead.is_none());
    }
    drop(all);
    let (range, _) = streams.on_read(10 * MIB, MIB, 1000 * MIB, |bytes| blocks.reserve(bytes)).ahead.unwrap();
    assert_eq!(range.start, 11 * MIB);
    tokio::time::sleep(PAUSE_MAX).await;
    let (range, _) = streams.on_read(11 * MIB, MIB, 1000 * MIB, |bytes| blocks.reserve(bytes)).ahead.unwrap();
    assert_eq!(range.start, 12 * MIB, "what was read ahead is gone");
    assert!(streams.on_read(999 * MIB, 9 * MIB, 1000 * MIB, |bytes| blocks.reserve(bytes)).ahead.is_none());
}

async fn open(bucket: &Bucket, nonce: u8) -> Arc<Mounted> {
    let last = newest_manifest(bucket).await.unwrap();
    Mounted::open(bucket.clone(), last, MountOptions::plain(4, [nonce; 16])).await.unwrap()
}

fn byte(at: u64) -> u8 {
    u8::try_from(at / 4096 % 251).unwrap()
}

/// A volume with a file of 64 MiB, whose first segment has `first` bytes, mounted anew from a bucket with
/// 50 ms to each answer.
async fn mounted_with(first: u64) -> (Arc<Mounted>, Bucket, Pin) {
    let objects = Arc::new(InMemory::new());
    let name = Name::new("file".as_ref()).unwrap();
    let mounted = open(&Bucket::new(Arc::clone(&objects) as _, "v".into()), 1).await;
    let tree = mounted.tree();
    let creator = Creator { uid: 0, gid: 0, umask: 0 };
    let what = NewNode::Special { kind: FileType::Regular, rdev: 0 };
    let id = tree.make(ObjectId::ROOT, name, what, 0o644, creator).await.unwrap().id;
    let pin = tree.pin_used(id.0, "test").unwrap();
    for at in (0..FILE).step_by(1 << 20) {
        let data: Vec<u8> = (at..at + MIB).map(byte).collect();
        tree.write_at(&pin, &[IoSlice::new(&data)], at).await.unwrap();
        if at + MIB == first {
            tree.settled(&pin).await.unwrap();
        }
    }
    mounted.close().await;
    let config = ThrottleConfig { wait_get_per_call: LATENCY, ..ThrottleConfig::default() };
    let bucket = Bucket::new(Arc::new(ThrottledStore::new(objects, config)), "v".into());
    let mounted = open(&bucket, 2).await;
    let id = mounted.tree().lookup(ObjectId::ROOT, name).await.unwrap().id;
    let pin = mounted.tree().pin_used(id.0, "test").unwrap();
    (mounted, bucket, pin)
}

async fn mounted() -> (Arc<Mounted>, Bucket, Pin) {
    mounted_with(SEGMENT).await
}

#[tokio::test(start_paused = true)]
async fn a_file_read_in_sequence_comes_once_and_waits_for_few_answers() {
    comes_once_and_waits_for_few_answers(SEGMENT).await;
}

#[tokio::test(start_paused = true)]
async fn segments_that_begin_anywhere_in_their_file_come_whole() {
    for first in [MIB, 3 * MIB, 5 * MIB] {
        comes_once_and_waits_for_few_answers(first).await;
    }
}

/// A file whose first segment has `first` bytes.
async fn comes_once_and_waits_for_few_answers(first: u64) {
    let (mounted, bucket, pin) = mounted_with(first).await;
    let (tree, streams, mut data) = (mounted.tree(), Streams::default(), vec![0; 1 << 20]);
    // Finds the file's extents.
    tree.read_stream(&pin, &streams, &mut data, 0).await.unwrap();
    let (begun, before) = (Instant::now(), bucket.stats());
    for at in (MIB..FILE).step_by(1 << 20) {
        assert_eq!(tree.read_stream(&pin, &streams, &mut data, at).await.unwrap(), data.len());
        assert!(data.iter().zip(at..).all(|(found, at)| *found == byte(at)));
    }
    let after = bucket.stats();
    assert!(begun.elapsed() < 6 * LATENCY, "{:?}", begun.elapsed());
    let down = after.bytes_down - before.bytes_down;
    assert!(down < FILE + FILE / 20, "{down} bytes came");
    let gets = after.get.requests - before.get.requests;
    // One for each segment of 8 MiB but the first, which comes in parts.
    assert!(gets <= 12, "{gets} requests");
    mounted.close().await;
}

#[tokio::test(start_paused = true)]
async fn random_reads_fetch_what_they_need() {
    let (mounted, bucket, pin) = mounted().await;
    let (tree, streams, mut data) = (mounted.tree(), Streams::default(), vec![0; 4096]);
    tree.read_stream(&pin, &streams, &mut data, 0).await.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = bucket.stats();
    for step in 1..=50 {
        let at = step * 13 % 64 * MIB + 500_000;
        tree.read_stream(&pin, &streams, &mut data, at).await.unwrap();
        assert_eq!(data[0], byte(at));
    }
    let after = bucket.stats();
    let (gets, down) = (after.get.requests - before.get.requests, after.bytes_down - before.bytes_down);
    assert!(gets <= 50, "{gets} requests");
    assert!(down <= 50 * 2 * BLOCK, "{down} bytes came");
    mounted.close().await;
}
