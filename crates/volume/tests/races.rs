//! Races that were found by reading, made to happen.

#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::ffi::OsStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use common::{Client, eager, lazy};
use store::{
    AllocateMode, ErrorKind, MemStore, Name, ObjectId, SetAttr, SetXattr, Store, TimeSet, Timestamp,
};
use store::{At, HookStore};
use watertight_volume::Options;

const LONG: Duration = Duration::from_secs(120);
const ROOT: ObjectId = ObjectId::ROOT;

fn hooked(options: Options) -> (Arc<Client>, Arc<HookStore>) {
    let store = HookStore::new(MemStore::new(1 << 30));
    (Arc::new(Client::new(Arc::clone(&store) as _, options)), store)
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LONG, "{what} never came");
        thread::yield_now();
    }
}

/// The store's own content of the file `name` in its root.
fn stored(store: &dyn Store, name: &str, len: usize) -> Vec<u8> {
    let entry = store.lookup(ROOT, Name::new(OsStr::new(name)).unwrap()).unwrap();
    let mut buf = vec![0; len];
    let got = store.open(entry.id, store::Access::Read).unwrap().read_at(&mut buf, 0).unwrap();
    store.forget(entry.id, 1);
    buf.truncate(got);
    buf
}

#[test]
fn a_lookup_during_the_last_write_back_shows_the_written_size() {
    let (client, store) = hooked(eager());
    let may_write = Arc::new(AtomicBool::new(false));
    let volume = Arc::new(OnceLock::new());
    volume.set(Arc::downgrade(&client.volume)).unwrap();
    store.hook({
        let (may_write, volume) = (Arc::clone(&may_write), Arc::clone(&volume));
        move |at, op| {
            match (at, op) {
                // ORDERING: SeqCst throughout this file: flags that stop and release the threads of
                // a test.
                (At::Before, "write") => until("leave to write", || may_write.load(Ordering::SeqCst)),
                (At::After, "lookup") => {
                    // The store has returned the old size. Now the file is written and forgotten.
                    may_write.store(true, Ordering::SeqCst);
                    let volume = volume.get().and_then(std::sync::Weak::upgrade).expect("in use");
                    until("the end of write-back", || volume.status().nodes == 0);
                }
                _ => {}
            }
            Ok(())
        }
    });
    let (id, handle) = client.create("file");
    client.write(handle, 0, &[1; 100]).unwrap();
    client.volume.release(handle);
    client.volume.forget(id, 1);
    let entry = client.volume.lookup(ROOT, OsStr::new("file")).unwrap();
    assert_eq!(entry.attr.size, 100);
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn times_that_are_set_during_write_back_are_kept() {
    let (client, store) = hooked(lazy());
    let (id, handle) = client.create("file");
    client.write(handle, 0, b"data").unwrap();
    let (blocked, synced) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let calls = AtomicUsize::new(0);
    let go_on = Arc::new(AtomicBool::new(false));
    store.hook({
        let (blocked, synced) = (Arc::clone(&blocked), Arc::clone(&synced));
        move |at, op| {
            if op != "set_attr" {
                return Ok(());
            }
            if at == At::Before && calls.fetch_add(1, Ordering::SeqCst) == 0 {
                // The write-back is about to set the time of the write.
                blocked.store(true, Ordering::SeqCst);
                until("the user's time", || go_on.load(Ordering::SeqCst));
            } else if at == At::After && !go_on.swap(true, Ordering::SeqCst) {
                until("the end of the write-back", || synced.load(Ordering::SeqCst));
            }
            Ok(())
        }
    });
    let syncing = {
        let client = Arc::clone(&client);
        thread::spawn(move || {
            client.volume.sync_all().unwrap();
            synced.store(true, Ordering::SeqCst);
        })
    };
    until("the write-back", || blocked.load(Ordering::SeqCst));
    let wanted = Timestamp { secs: 1_000_000, nanos: 7 };
    let set = SetAttr { mtime: Some(TimeSet::At(wanted)), ..SetAttr::default() };
    let attr = client.volume.set_attr(&client.ctx(), id, &set, false).unwrap();
    syncing.join().unwrap();
    assert_eq!(attr.mtime, wanted);
    assert_eq!(client.volume.attr(id).unwrap().mtime, wanted);
    assert!(client.volume.shutdown().is_complete());
}

/// A clock that stops its next caller until the test lets it go on.
#[derive(Debug, Default)]
struct StoppingClock {
    real: sync::RealClock,
    armed: AtomicBool,
    stopped: AtomicBool,
    go_on: AtomicBool,
}

impl sync::Clock for StoppingClock {
    fn now(&self) -> Duration {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.stopped.store(true, Ordering::SeqCst);
            until("leave to go on", || self.go_on.load(Ordering::SeqCst));
        }
        self.real.now()
    }
}

#[test]
fn a_sync_finds_what_a_second_writer_wrote_while_the_first_lists_the_file() {
    let clock = Arc::new(StoppingClock::default());
    let (client, store) = hooked(Options { clock: Arc::clone(&clock) as _, ..lazy() });
    let (_, handle) = client.create("file");
    clock.armed.store(true, Ordering::SeqCst);
    let first = {
        let client = Arc::clone(&client);
        thread::spawn(move || client.write(handle, 4096, b"first"))
    };
    until("the first writer", || clock.stopped.load(Ordering::SeqCst));
    let (tell, told) = mpsc::channel();
    let second = {
        let client = Arc::clone(&client);
        thread::spawn(move || {
            client.write(handle, 0, b"second").unwrap();
            let _ = tell.send(());
            client.volume.sync_all().unwrap();
        })
    };
    // Either the second writer is through, or it waits for the first one to have listed the file.
    if told.recv_timeout(Duration::from_millis(200)).is_ok() {
        second.join().unwrap();
        clock.go_on.store(true, Ordering::SeqCst);
    } else {
        clock.go_on.store(true, Ordering::SeqCst);
        second.join().unwrap();
    }
    let on_store = stored(&*store, "file", 6);
    first.join().unwrap().unwrap();
    assert_eq!(on_store, b"second", "sync returned, and the data is not on the store");
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_file_that_is_synced_between_writes_is_counted_once() {
    let (client, _store) = hooked(lazy());
    let (_, handle) = client.create("file");
    for _ in 0..5 {
        client.write(handle, 0, &[1; 4096]).unwrap();
        client.volume.sync_all().unwrap();
    }
    client.write(handle, 0, &[1; 4096]).unwrap();
    let status = client.volume.status();
    assert_eq!((status.dirty_files, status.dirty_bytes), (1, 4096));
    assert_eq!(client.volume.unwritten().len(), 1);
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_change_of_names_or_attributes_beside_unwritten_data_shows_in_the_ctime() {
    let (client, _store) = hooked(lazy());
    let (id, handle) = client.create("file");
    client.write(handle, 0, b"data").unwrap();
    let next_tick = |after: Timestamp| until("the next tick", || Timestamp::now() > after);
    let written = client.volume.attr(id).unwrap().ctime;
    next_tick(written);
    let linked = client.volume.link(&client.ctx(), id, ROOT, OsStr::new("second")).unwrap().attr.ctime;
    assert!(linked > written, "link: {linked:?} after {written:?}");
    next_tick(linked);
    client.volume.set_xattr(&client.ctx(), id, OsStr::new("user.a"), b"b", SetXattr::Any).unwrap();
    let tagged = client.volume.attr(id).unwrap().ctime;
    assert!(tagged > linked, "xattr: {tagged:?} after {linked:?}");
    next_tick(tagged);
    client.fsync(handle).unwrap();
    assert_eq!(client.volume.attr(id).unwrap().ctime, tagged, "our own write-back is no change");
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_panic_of_the_store_does_not_make_unwritten_data_look_written() {
    let (client, store) = hooked(lazy());
    let (_, handle) = client.create("file");
    client.write(handle, 0, b"data").unwrap();
    let panics = Mutex::new(1);
    store.hook(move |at, op| {
        let first = at == At::Before && op == "write" && std::mem::take(&mut *panics.lock().unwrap()) == 1;
        assert!(!first, "on purpose");
        Ok(())
    });
    assert!(catch_unwind(AssertUnwindSafe(|| client.fsync(handle))).is_err());
    client.fsync(handle).unwrap();
    assert_eq!(stored(&*store, "file", 10), b"data");
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_panic_of_the_store_during_the_last_write_back_is_a_failure_not_a_hang() {
    let (client, store) = hooked(lazy());
    let (_, handle) = client.create("file");
    client.write(handle, 0, b"data").unwrap();
    let panics = AtomicUsize::new(0);
    store.hook(move |at, op| {
        let counts = at == At::Before && op == "write";
        assert!(!counts || panics.fetch_add(1, Ordering::SeqCst) > 0, "on purpose");
        Ok(())
    });
    let report = client.volume.shutdown();
    assert!(report.is_complete(), "the second attempt works: {report:?}");
}

#[test]
fn an_allocation_that_failed_half_way_leaves_a_true_size() {
    let (client, store) = hooked(lazy());
    let (id, handle) = client.create("file");
    client.write(handle, 0, &[1; 100]).unwrap();
    store.hook(|at, op| match (at, op) {
        (At::After, "allocate") => Err(store::Error::new(ErrorKind::NoSpace, "allocate")),
        _ => Ok(()),
    });
    let error = client.volume.allocate(&client.ctx(), handle, AllocateMode::empty(), 0, 10_000);
    assert!(error.is_err());
    assert_eq!(client.volume.attr(id).unwrap().size, store.attr(id).unwrap().size);
    assert!(client.volume.shutdown().is_complete());
}
