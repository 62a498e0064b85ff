use std::time::Duration;

use object_store::throttle::{ThrottleConfig, ThrottledStore};
use object_store::{ObjectStore as _, ObjectStoreExt as _, memory::InMemory};

use super::*;
use crate::scripted::{Fault, Scripted};

const OBJECT: Object = Object::Segment(1, 0);

fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| u8::try_from(at / 1000 % 251).unwrap()).collect()
}

fn place(range: &Range<u64>) -> Range<usize> {
    range.start.try_into().unwrap()..range.end.try_into().unwrap()
}

/// A bucket with an object, each of whose answers takes 50 ms.
async fn slow(len: usize) -> Reader {
    let config = ThrottleConfig { wait_get_per_call: Duration::from_millis(50), ..ThrottleConfig::default() };
    let store = ThrottledStore::new(InMemory::new(), config);
    let path = format!("v/{}", object_name(OBJECT)).into();
    store.put(&path, content(len).into()).await.unwrap();
    Reader::new(Bucket::new(Arc::new(store), "v".into()).bulk(), None)
}

async fn read(reader: &Reader, range: Range<u64>) -> Vec<u8> {
    let loaded = reader.load(std::iter::once((OBJECT, range.clone()))).await.unwrap();
    loaded.get(OBJECT, &range).concat()
}

#[tokio::test(start_paused = true)]
async fn who_wants_the_same_shares_one_request() {
    let reader = slow(900_000).await;
    let (all, content) =
        (join_all((0..20_u64).map(|at| read(&reader, at * 100..at * 100 + 500_000))).await, content(900_000));
    for (at, read) in all.iter().enumerate() {
        assert!(*read == content[at * 100..at * 100 + 500_000]);
    }
    assert_eq!(reader.bucket.stats().get.requests, 1);
}

#[tokio::test(start_paused = true)]
async fn neighbours_come_with_one_request_and_others_together() {
    let (reader, content) = (slow(10_000_000).await, content(10_000_000));
    let begun = tokio::time::Instant::now();
    let small = (0..50_u64).map(|file| (OBJECT, file * 20_000..file * 20_000 + 9_000));
    let far = std::iter::once((OBJECT, 9_000_000..9_000_100));
    let loaded = reader.load(small.clone().chain(far)).await.unwrap();
    assert_eq!(reader.bucket.stats().get.requests, 2);
    assert_eq!(begun.elapsed(), Duration::from_millis(50), "both were under way at a time");
    for (object, range) in small {
        assert!(loaded.get(object, &range).concat() == content[place(&range)]);
    }
}

#[tokio::test(start_paused = true)]
async fn what_lies_behind_the_end_is_not_there() {
    let reader = slow(300_000).await;
    assert_eq!(read(&reader, 299_990..300_010).await.len(), 10);
    assert_eq!(read(&reader, 0..300_010).await.len(), 300_000);
    for behind in [299_990..900_000, 2_000_000..2_000_010] {
        let read = reader.load(std::iter::once((OBJECT, behind))).await;
        assert!(read.unwrap_err().to_string().contains("too short"));
    }
}

#[tokio::test(start_paused = true)]
async fn read_ahead_leaves_permits_to_those_who_wait() {
    let scripted = Arc::new(Scripted::new(1));
    let path = format!("v/{}", object_name(OBJECT)).into();
    scripted.put_opts(&path, content(64 << 20).into(), Default::default()).await.unwrap();
    let reader = Arc::new(Reader::new(Bucket::new(Arc::clone(&scripted) as _, "v".into()).bulk(), None));
    scripted.set(&[(Fault::Hangs, 100)]);
    for number in 0..100 {
        let (reader, reserved) = (Arc::clone(&reader), reader.reserve(BLOCK));
        tokio::spawn(async move { reader.fetch_ahead(OBJECT, number..number + 1, reserved).await });
    }
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(reader.bucket.stats().under_way, AHEAD as u64);
    scripted.set(&[]);
    let begun = tokio::time::Instant::now();
    let far = 50 * BLOCK..51 * BLOCK;
    assert!(read(&reader, far.clone()).await == content(64 << 20)[place(&far)]);
    assert_eq!(begun.elapsed(), Duration::ZERO, "nobody waits for what is not begun");
    // A reader who waits for one that hangs tries itself in the end.
    assert_eq!(read(&reader, 0..10).await, content(10));
}

#[tokio::test(start_paused = true)]
async fn a_block_is_there_as_soon_as_it_has_come() {
    let scripted = Arc::new(Scripted::new(1).with(Fault::Trickles, 100));
    let path = format!("v/{}", object_name(OBJECT)).into();
    scripted.put_opts(&path, content(5 << 20).into(), Default::default()).await.unwrap();
    let reader = Arc::new(Reader::new(Bucket::new(Arc::clone(&scripted) as _, "v".into()).bulk(), None));
    let (ahead, reserved) = (Arc::clone(&reader), reader.reserve(16 * BLOCK));
    let begun = tokio::time::Instant::now();
    let ahead = tokio::spawn(async move { ahead.fetch_ahead(OBJECT, 0..16, reserved).await });
    tokio::task::yield_now().await;
    // Each block takes 40 ms.
    for (number, blocks) in [(0, 1), (1, 2), (4, 5), (9, 10)] {
        let range = number * BLOCK..number * BLOCK + 100;
        assert!(read(&reader, range.clone()).await == content(5 << 20)[place(&range)]);
        assert_eq!(begun.elapsed(), Duration::from_millis(40 * blocks), "block {number}");
    }
    assert_eq!(reader.bucket.stats().get.requests, 1);
    ahead.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_block_of_a_request_that_fails_fetches_it() {
    let scripted = Arc::new(Scripted::new(1).with(Fault::Trickles, 100));
    let path = format!("v/{}", object_name(OBJECT)).into();
    scripted.put_opts(&path, content(5 << 20).into(), Default::default()).await.unwrap();
    let reader = Arc::new(Reader::new(Bucket::new(Arc::clone(&scripted) as _, "v".into()).bulk(), None));
    let (ahead, reserved) = (Arc::clone(&reader), reader.reserve(16 * BLOCK));
    let ahead = tokio::spawn(async move { ahead.fetch_ahead(OBJECT, 0..16, reserved).await });
    tokio::time::sleep(Duration::from_millis(90)).await;
    let waiting = {
        let reader = Arc::clone(&reader);
        tokio::spawn(async move { read(&reader, BLOCK..4 * BLOCK).await })
    };
    tokio::task::yield_now().await;
    ahead.abort();
    assert!(waiting.await.unwrap() == content(5 << 20)[place(&(BLOCK..4 * BLOCK))]);
    let stats = reader.bucket.stats();
    assert_eq!((stats.get.requests, stats.bytes_down), (2, 4 * BLOCK), "two had come, and bring two more");
}

#[tokio::test(start_paused = true)]
async fn a_segment_that_is_read_ahead_comes_whole() {
    let len = 33 * BLOCK + 100;
    let reader = slow(usize::try_from(len).unwrap()).await;
    reader.fetch_ahead(OBJECT, 0..33, reader.reserve(33 * BLOCK)).await;
    let stats = reader.bucket.stats();
    assert_eq!((stats.get.requests, stats.bytes_down), (1, len), "it was not asked for a range");
    assert!(read(&reader, 0..33 * BLOCK).await == content(33 * BLOCK_LEN));
    assert_eq!(reader.bucket.stats().get.requests, 1);
    assert!(
        !is_whole(OBJECT, &(1..34)) && !is_whole(OBJECT, &(0..16)) && !is_whole(Object::Log(1), &(0..33))
    );
}
