//! The object: made, missing, damaged.

use std::sync::Arc;

use store::ErrorKind;
use tokio::time::sleep;

use crate::lease::double::{Fault, FaultyStore, Machine, run};
use crate::lease::world::{SECOND, World, assert_words};
use crate::lease::{Created, Holder, Host, Lease, LeaseInfo, Nonce, Process, Request};

#[test]
fn a_lease_is_created_once() {
    run(async {
        for fault in [Fault::None, Fault::Before, Fault::After, Fault::Again(SECOND)] {
            let store = Arc::<FaultyStore>::default();
            store.fail_puts(&[fault]);
            assert_eq!(Lease::create_free(&store.bucket()).await.unwrap(), Created::New, "{fault:?}");
            assert_eq!(Lease::create_free(&store.bucket()).await.unwrap(), Created::Exists);
            assert_eq!(store.history().len(), 1);
        }
    });
}

#[test]
fn a_missing_or_damaged_lease_is_told_in_words() {
    run(async {
        let store = Arc::<FaultyStore>::default();
        let (bucket, process) = (store.bucket(), Machine::new("alpha").start());
        let request = Request::default();
        let take = || Lease::take(&bucket, &request, Arc::clone(&process) as Arc<dyn Host>);
        assert!(Lease::read(&bucket).await.unwrap().is_none());
        assert_words(
            &take().await.unwrap_err(),
            ErrorKind::Stale,
            &["the lease is missing", "watertight format"],
        );
        let good = serde_json::to_value(LeaseInfo::free(Nonce::new().unwrap())).unwrap();
        let with = |key: &str, value: serde_json::Value| {
            let mut object = good.clone();
            object[key] = value;
            object.to_string()
        };
        let holder = |pid: u32, host: &str| {
            let process = Process { pid, ..process.process() };
            let mut object = good.clone();
            object["state"] = "held".into();
            object["holder"] = serde_json::to_value(Holder {
                host: host.to_owned(),
                process,
                mountpoint: String::new(),
                since: u64::MAX,
            })
            .unwrap();
            object.to_string()
        };
        let bad = [
            (String::new(), ErrorKind::Io, "damaged"),
            ("\u{1b}[2J{".to_owned(), ErrorKind::Io, "damaged"),
            ("[".repeat(10_000), ErrorKind::Io, "damaged"),
            (" ".repeat(1 << 20), ErrorKind::Io, "larger than 16384 bytes"),
            (with("nonce", "12".into()), ErrorKind::Io, "32 hexadecimal digits"),
            (with("nonce", "+0000000000000000000000000000001".into()), ErrorKind::Io, "32 hexadecimal"),
            (with("epoch", (-1).into()), ErrorKind::Io, "damaged"),
            (with("state", "held".into()), ErrorKind::Io, "contradict"),
            (with("version", 0.into()), ErrorKind::Io, "version is 0"),
            (with("version", 2.into()), ErrorKind::Unsupported, "version 2"),
            (with("surprise\u{1b}[2J", 2.into()), ErrorKind::Io, "damaged"),
            (with("journal", "alpha".into()), ErrorKind::Io, "damaged"),
            (
                with(
                    "journal",
                    serde_json::json!({ "host": "x".repeat(256), "directory": "/j", "id": "0".repeat(32) }),
                ),
                ErrorKind::Io,
                "journal",
            ),
            (holder(0, "alpha"), ErrorKind::Io, "holder"),
            (holder(1 << 31, "alpha"), ErrorKind::Io, "holder"),
            (holder(1, &"x".repeat(300)), ErrorKind::Io, "holder"),
        ];
        let (raw, root) = bucket.raw();
        let path = root.join("lease");
        for (text, kind, words) in bad {
            object_store::ObjectStoreExt::put(&raw, &path, text.into_bytes().into()).await.unwrap();
            let error = take().await.unwrap_err();
            assert_words(&error, kind, &["lease", words]);
            assert!(!error.to_string().contains('\u{1b}'), "{error:?}");
            assert!(Lease::read(&bucket).await.is_err());
            assert_eq!(Lease::create_free(&bucket).await.map_err(|error| error.kind()), Err(kind));
        }
        // Whole, but at its end.
        let text = with("epoch", u64::MAX.into());
        object_store::ObjectStoreExt::put(&raw, &path, text.into_bytes().into()).await.unwrap();
        assert_words(&take().await.unwrap_err(), ErrorKind::Io, &["epochs are used up"]);
        // Names of a stranger's host do not write to the terminal; its clock may show anything.
        let text = holder(1, "\u{1b}[2Jhost");
        object_store::ObjectStoreExt::put(&raw, &path, text.into_bytes().into()).await.unwrap();
        process.kill();
        let error =
            Lease::take(&bucket, &Request::default(), Machine::new("beta").start()).await.unwrap_err();
        assert_words(&error, ErrorKind::Busy, &["\\u{1b}[2Jhost"]);
    });
}

#[test]
fn a_lease_that_vanishes_or_is_damaged_is_no_loss_and_no_validation() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let (raw, root) = world.store.bucket().raw();
        let path = root.join("lease");
        let validated = held.last_validated();
        sleep(SECOND).await;
        object_store::ObjectStoreExt::put(&raw, &path, "garbage".into()).await.unwrap();
        assert_words(&held.validate().await.unwrap_err(), ErrorKind::Io, &["damaged"]);
        object_store::ObjectStoreExt::delete(&raw, &path).await.unwrap();
        held.validate().await.unwrap_err();
        assert_eq!((held.last_validated(), &*held.watch().borrow()), (validated, &None));
        assert_words(&held.release().await.unwrap_err(), ErrorKind::Stale, &["missing"]);
    });
}

#[test]
fn a_mountpoint_of_any_length_fits() {
    run(async {
        let world = World::new().await;
        let process = world.alpha.start();
        let mountpoint = "/\u{1}".repeat(2000);
        let held =
            world.take(&Request { mountpoint: mountpoint.into(), ..process.request() }, &process).await;
        held.unwrap().validate().await.unwrap();
    });
}
