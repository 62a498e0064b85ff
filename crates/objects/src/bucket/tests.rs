//! Requests to stores in memory that are ill.

use std::sync::Arc;
use std::time::Duration;

use object_store::PutPayload;
use object_store::path::Path;
use store::ErrorKind;
use tokio::time::Instant;

use super::{Bucket, Condition, Patience};
use crate::open::open_bucket;
use crate::scripted::{Fault, Scripted};

fn bytes() -> PutPayload {
    PutPayload::from_static(b"bytes")
}

fn ill(seed: u64) -> (Arc<Scripted>, Bucket) {
    let store = Arc::new(Scripted::new(seed));
    let bucket = Bucket::new(Arc::clone(&store) as _, Path::from("v")).seeded(seed);
    (store, bucket)
}

#[tokio::test]
async fn objects_are_listed_in_order_and_deleted() {
    let parent = tempfile::tempdir().unwrap();
    for url in ["memory://bucket-lists/v".to_owned(), format!("file://{}/v", parent.path().display())] {
        let bucket = open_bucket(&url.parse().unwrap()).unwrap();
        for name in ["log/2", "log/1", "log/10", "logs/1", "x"] {
            assert!(matches!(bucket.create(name, bytes()).await.unwrap(), Condition::Met(_)));
        }
        assert_eq!(bucket.list("log", None).await.unwrap(), ["1", "10", "2"]);
        assert_eq!(bucket.list("log", Some("10")).await.unwrap(), ["2"]);
        assert_eq!(bucket.list("", None).await.unwrap(), ["log/1", "log/10", "log/2", "logs/1", "x"]);
        assert!(bucket.list("none", None).await.unwrap().is_empty());
        assert_eq!(bucket.some_names("log", 2).await.unwrap().len(), 2);
        bucket.delete_many(&["log/1", "log/2", "log/3", "x"]).await.unwrap();
        bucket.delete("log/3").await.unwrap();
        assert_eq!(bucket.list("", None).await.unwrap(), ["log/10", "logs/1"]);
    }
}

#[tokio::test]
async fn ranges_end_with_the_object() {
    let parent = tempfile::tempdir().unwrap();
    for url in ["memory://bucket-ranges/v".to_owned(), format!("file://{}/v", parent.path().display())] {
        let bucket = open_bucket(&url.parse().unwrap()).unwrap();
        let _ = bucket.create("a", bytes()).await.unwrap();
        assert_eq!(bucket.get_range("a", 1..5).await.unwrap(), "ytes");
        assert_eq!(bucket.get_range("a", 5..5).await.unwrap(), "");
        for range in [1..6, 5..6, 100..200] {
            let error = bucket.get_range("a", range.clone()).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Io, "{url} {range:?}");
            assert!(error.detail().unwrap().contains("corrupted"), "{error}");
        }
        assert_eq!(bucket.get_range("b", 0..1).await.unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(bucket.get_range("a", 0..1 << 40).await.unwrap_err().kind(), ErrorKind::Invalid);
        assert_eq!(bucket.get_at_most("a", 4).await.unwrap_err().kind(), ErrorKind::Io);
    }
}

#[tokio::test(start_paused = true)]
async fn patience_is_over_when_it_is_over() {
    for (fault, kind) in [
        (Fault::Server, ErrorKind::Io),
        (Fault::SlowDown, ErrorKind::Io),
        (Fault::LostAnswer, ErrorKind::TimedOut),
        (Fault::Hangs, ErrorKind::TimedOut),
    ] {
        let (store, bucket) = ill(1);
        store.set(&[(fault, 100)]);
        let begun = Instant::now();
        let patient = bucket.with_patience(Patience::For(Duration::from_secs(20)));
        assert_eq!(patient.get("a").await.unwrap_err().kind(), kind, "{fault:?}");
        let took = begun.elapsed();
        assert!(took > Duration::from_secs(10) && took <= Duration::from_secs(20), "{fault:?} {took:?}");
        assert!(store.requests.get() < 20, "{fault:?}: {}", store.requests.get());
    }
}

#[tokio::test(start_paused = true)]
async fn a_mounted_volume_outlives_an_outage_without_a_storm() {
    let (store, bucket) = ill(2);
    let bucket = bucket.with_patience(Patience::UntilStopped);
    store.set(&[(Fault::Server, 100)]);
    let writers: Vec<_> = (0..200)
        .map(|writer| {
            let bucket = bucket.clone();
            tokio::spawn(async move { bucket.create(&format!("w/{writer}"), bytes()).await.unwrap() })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let stats = bucket.stats();
    assert_eq!(stats.under_way, 200);
    assert!(stats.oldest_ms.unwrap() >= 599_000);
    let failing = stats.failing.unwrap();
    assert!(failing.for_ms >= 599_000 && failing.problem.contains("status 500"), "{failing:?}");
    // Each waits 2.5 to 5 s, beside the few quick retries that the budget allows.
    let most = 200 * 600 / 2;
    assert!(store.requests.get() < most, "{}", store.requests.get());
    store.set(&[]);
    let back = Instant::now();
    for writer in writers {
        assert!(matches!(writer.await.unwrap(), Condition::Met(_)));
    }
    assert!(back.elapsed() <= Duration::from_secs(5), "{:?}", back.elapsed());
    assert_eq!(bucket.stats().failing, None);
}

#[tokio::test(start_paused = true)]
async fn bulk_requests_that_hang_do_not_hold_up_small_ones() {
    let (store, bucket) = ill(3);
    let bucket = bucket.with_patience(Patience::UntilStopped);
    store.set(&[(Fault::Hangs, 100)]);
    let bulk: Vec<_> = (0..100)
        .map(|n| {
            let bucket = bucket.bulk();
            tokio::spawn(async move { bucket.get(&n.to_string()).await })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(store.requests.get(), 32, "as many as there are permits");
    store.set(&[]);
    let begun = Instant::now();
    assert!(matches!(bucket.create("lease", bytes()).await.unwrap(), Condition::Met(_)));
    assert_eq!(begun.elapsed(), Duration::ZERO);
    // After their time limit they are tried again, and the others get their turn.
    for bulk in bulk {
        assert_eq!(bulk.await.unwrap().unwrap(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn stop_ends_what_waits_for_a_permit_for_a_retry_and_for_an_answer() {
    for fault in [Fault::Hangs, Fault::Server] {
        let (store, bucket) = ill(4);
        let bucket = bucket.with_patience(Patience::UntilStopped);
        store.set(&[(fault, 100)]);
        let requests: Vec<_> = (0..100)
            .map(|n| {
                let bucket = bucket.clone();
                tokio::spawn(async move { bucket.create(&n.to_string(), bytes()).await })
            })
            .collect();
        tokio::time::sleep(Duration::from_secs(10)).await;
        let stopped = Instant::now();
        bucket.stop();
        for request in requests {
            assert_eq!(request.await.unwrap().unwrap_err().detail(), Some("the volume was given up"));
        }
        assert_eq!(stopped.elapsed(), Duration::ZERO);
        assert_eq!(bucket.stats().under_way, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn the_engine_s_requests_are_counted_bounded_and_stopped() {
    use object_store::{ObjectStore as _, ObjectStoreExt as _};
    let (store, bucket) = ill(5);
    let (raw, root) = bucket.raw();
    let path = root.join("x");
    raw.put(&path, bytes()).await.unwrap();
    assert_eq!(raw.get(&path).await.unwrap().bytes().await.unwrap(), "bytes");
    let stats = bucket.stats();
    assert_eq!((stats.put.requests, stats.get.requests, stats.bytes_up, stats.bytes_down), (1, 1, 5, 5));
    store.set(&[(Fault::Hangs, 100)]);
    let begun = Instant::now();
    assert!(raw.get_opts(&path, object_store::GetOptions::default()).await.is_err());
    assert!(begun.elapsed() < Duration::from_secs(100), "{:?}", begun.elapsed());
    let hanging = tokio::spawn({
        let raw = Arc::clone(&raw);
        async move { raw.get(&path).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    bucket.stop();
    let error = hanging.await.unwrap().unwrap_err();
    assert!(!slatedb_common::retry::should_retry(&error), "{error}");
}

#[test]
fn a_bucket_shows_neither_settings_nor_secrets() {
    let bucket = super::server::bucket_at("http://127.0.0.1:1");
    let shown = format!("{bucket:?}");
    assert!(shown.contains("s3://b/v") && !shown.contains("secret"), "{shown}");
}
