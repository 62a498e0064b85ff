//! Against a real server: `tests/servers run seaweedfs moto -- cargo test -p watertight-objects --lib
//! real -- --ignored`.

use std::time::Instant;

use object_store::PutPayload;
use store::ErrorKind;

use super::{Bucket, Condition};
use crate::open::open_bucket;
use crate::{format, probe};

/// Where the server's bucket is.
fn url() -> String {
    std::env::var("WATERTIGHT_TEST_URL").unwrap()
}

fn bucket(prefix: &str) -> Bucket {
    let nonce = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos();
    open_bucket(&format!("{}/{prefix}-{nonce}", url()).parse().unwrap()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_real_server_keeps_conditions_and_takes_a_format() {
    let bucket = bucket("format");
    let begun = Instant::now();
    let probed = probe::probe(&bucket).await.unwrap();
    println!("{probed:?} in {:?}", begun.elapsed());
    let made = format::create(&bucket, format::Options::default()).await.unwrap();
    assert_eq!(format::read(&bucket).await.unwrap(), made);
    assert_eq!(bucket.list("", None).await.unwrap(), ["format"]);
    let again = format::create(&bucket, format::Options::default()).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Exists);
    println!("{:#?}", bucket.stats());
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_real_server_reads_lists_and_deletes() {
    let bucket = bucket("objects");
    let large: Vec<u8> = (0..8_u32 << 20).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let _ = bucket.create("seg/large", PutPayload::from(large.clone())).await.unwrap();
    assert_eq!(bucket.get("seg/large").await.unwrap().unwrap().0, large);
    assert_eq!(
        bucket.get_range("seg/large", 1_000_000..1_000_010).await.unwrap(),
        large[1_000_000..1_000_010]
    );
    for range in [(8 << 20) - 1..(8 << 20) + 1, 8 << 20..9 << 20] {
        let error = bucket.get_range("seg/large", range).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io);
        assert!(error.detail().unwrap().contains("corrupted"), "{error}");
    }
    assert_eq!(bucket.get_range("none", 0..1).await.unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(bucket.get("none").await.unwrap(), None);
    let names: Vec<_> = (0..1100).map(|n| format!("{n:05}")).collect();
    let bulk = bucket.bulk();
    let made = futures_util::future::join_all(names.iter().map(|name| {
        let (bulk, name) = (bulk.clone(), format!("log/{name}"));
        async move { bulk.create(&name, PutPayload::from_static(b"x")).await.unwrap() }
    }));
    assert!(made.await.iter().all(|made| matches!(made, Condition::Met(_))));
    assert_eq!(bucket.list("log", None).await.unwrap(), names);
    assert_eq!(bucket.list("log", Some("01095")).await.unwrap(), names[1096..]);
    let logs: Vec<_> = names.iter().map(|name| format!("log/{name}")).collect();
    bucket.delete_many(&logs).await.unwrap();
    bucket.delete("none").await.unwrap();
    assert_eq!(bucket.list("", None).await.unwrap(), ["seg/large"]);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs a server"]
async fn a_real_server_s_refusals_are_in_plain_words() {
    let url = url();
    let Some(name) = url.strip_prefix("s3://") else { return };
    // SeaweedFS makes a bucket that is missing; of these servers it alone looks at each key.
    let is_seaweedfs = std::env::var("WATERTIGHT_TEST_SERVER").is_ok_and(|name| name.contains("seaweedfs"));
    let bucket = open_bucket(&"s3://no-such-bucket-here/v".parse().unwrap()).unwrap();
    let mut refusals =
        vec![format::read(&bucket).await.unwrap_err(), bucket.list("", None).await.unwrap_err()];
    if !is_seaweedfs {
        refusals.push(bucket.create("x", PutPayload::from_static(b"x")).await.unwrap_err());
    }
    for error in refusals {
        println!("{error}");
        assert_eq!(error.kind(), ErrorKind::NoDevice, "{error}");
    }
    let refused = |id: &'static str| {
        let environment = move |variable: &str| match variable {
            "AWS_ACCESS_KEY_ID" => Some(id.to_owned()),
            "AWS_SECRET_ACCESS_KEY" => Some("wrong-secret".to_owned()),
            "HOME" => None,
            _ => std::env::var(variable).ok(),
        };
        let (store, credentials) = crate::aws::open(name, &environment, crate::client::Clients::Own).unwrap();
        let about = crate::problem::About { url: "s3://b/v".to_owned(), credentials };
        Bucket::opened(std::sync::Arc::new(store), "v".into(), about)
    };
    for id in ["nobody", "watertight"] {
        let read = refused(id).get("x").await;
        println!("{read:?}");
        assert!(!is_seaweedfs || read.is_err_and(|error| error.kind() == ErrorKind::AccessDenied));
    }
}
