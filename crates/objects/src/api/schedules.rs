//! When an unmount gives the lease back, and the mutant that a test catches.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib
//! schedules`

use std::io::IoSlice;

use store::{Name, ObjectId};

use super::*;
use crate::format::Options;
use crate::garbage::tests::{make as make_file, read};
use crate::scripted::{Fault, Scripted};

/// The lease is released beside the last request. A host that takes the volume before that has ended
/// finds everything in the log, and what comes late takes nothing from it.
#[tokio::test(start_paused = true)]
async fn a_lease_is_released_when_the_log_has_everything() {
    let store = Arc::new(Scripted::new(1).with(Fault::LateCommits, 100));
    let bucket = || Bucket::new(Arc::clone(&store) as _, "volume".into());
    let open = async || open_held(&bucket(), None, &OpenOptions::default()).await.unwrap();
    make(&bucket(), Options::default(), None).await.unwrap();
    let mounted = open().await;
    let file = make_file(mounted.tree(), "file").await;
    mounted.tree().write_at(&file, &[IoSlice::new(&[7; 1000])], 0).await.unwrap();
    drop(file);
    let in_log = async || bucket().list("log", None).await.unwrap().len();
    let before = in_log().await;
    let closing = tokio::spawn(async move { mounted.close().await });
    while Lease::read(&bucket()).await.unwrap().is_none_or(|lease| lease.holder.is_some()) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(in_log().await, before + 1, "the log has everything before the lease is free");
    assert!(!closing.is_finished(), "the release waits for the manifest");
    for _ in 0..2 {
        let mounted = open().await;
        let entry = mounted.tree().lookup(ObjectId::ROOT, Name::new("file".as_ref()).unwrap()).await;
        let entry = entry.expect("the next holder finds it");
        assert_eq!(read(mounted.tree(), &mounted.tree().pin(entry.id.0), 1000).await, [7; 1000]);
        mounted.close().await;
    }
    closing.await.unwrap();
}

#[cfg(shuttle)]
#[test]
fn a_lease_that_is_released_before_its_rows_are_durable_is_caught() {
    use sync::mutant::assert_caught;
    let test = "api::schedules::a_lease_is_released_when_the_log_has_everything";
    assert_caught(
        test,
        &["lease-released-before-the-log"],
        "the log has everything before the lease is free",
    );
}
