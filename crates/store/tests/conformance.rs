//! The conformance suite, on every store.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod suite;

use std::sync::Arc;

use watertight_store::{DirStore, FaultStore, MemStore, Store};

#[test]
fn dir_store() {
    let top = tempfile::tempdir().unwrap();
    let next = std::cell::Cell::new(0);
    suite::run(|| {
        next.set(next.get() + 1);
        let path = top.path().join(next.get().to_string());
        std::fs::create_dir(&path).unwrap();
        DirStore::open(&path).unwrap() as Arc<dyn Store>
    });
}

#[test]
fn mem_store() {
    suite::run(|| MemStore::new(1 << 30) as Arc<dyn Store>);
}

#[test]
fn fault_store_without_rules() {
    suite::run(|| FaultStore::new(MemStore::new(1 << 30), "").unwrap() as Arc<dyn Store>);
}

/// A directory store without any rights: it must not need root.
#[test]
fn dir_store_of_an_ordinary_user() {
    if !suite::is_root() {
        testing::skipped("the other tests run as an ordinary user already");
        return;
    }
    let output = std::process::Command::new("setpriv")
        .args(["--reuid=54321", "--regid=54321", "--clear-groups", "--bounding-set=-all", "--"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "dir_store", "--nocapture"])
        .current_dir("/")
        .env("TMPDIR", "/tmp")
        .output();
    let output = match output {
        Ok(output) => output,
        Err(e) => {
            testing::skipped(format_args!("no setpriv(1): {e}"));
            return;
        }
    };
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let complained = String::from_utf8_lossy(&output.stderr).into_owned();
    if !said.contains("running 1 test") {
        testing::skipped(format_args!("cannot run this program as somebody else: {complained}"));
        return;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}{complained}");
}
