//! The volume's protocols under many schedules, each with mutants that the same test catches.
//!
//! The real volume on a store in memory; shuttle decides which thread runs at every lock, atomic
//! and wait. Its atomics are all sequentially consistent: loom has to find what a weaker ordering
//! allows, for the one protocol that has such (`loom_budget` of the write-back crate).
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-volume --test schedules`
//!
//! | claim | test | mutants |
//! |---|---|---|
//! | dirty data is listed, so that a sync finds it | [`a_sync_finds_what_is_dirty`] | `volume-unlist-unchecked`, `volume-settle-unchecked` |
//! | also data that another writer has just begun to dirty | [`a_sync_finds_what_two_wrote`] | `volume-list-late` |
//! | a write that starts beside the last write-back builds on the data of that | [`writes_beside_write_back_lose_nothing`] | `volume-overlay-unchecked`, `volume-base-unchecked` |
//! | no call sees an old size while the last write-back ends | [`no_attr_shows_an_old_size`], [`no_lookup_shows_an_old_size`], [`no_link_shows_an_old_size`] | `volume-attr-unchecked`, `volume-lookup-unchecked`, `volume-know-unchecked` |
//! | data that is written back and not durable is never taken for durable | [`what_the_flusher_writes_is_not_taken_for_durable`] | `undurable-asked-first` |
//! | the first dirty inode wakes a flusher | [`a_flusher_hears_of_dirty_data`] | `bdi-list-silent` |
//! | a writer that waits for room goes on when there is some | [`a_waiting_writer_gets_room`] | `volume-reserve-once` |
//! | it ends when the volume is given up | [`a_waiting_writer_hears_of_force`] | `volume-force-late`, `event-set-late` |
//! | it ends when its data cannot be written, whichever thread tried | [`a_waiting_writer_hears_of_failure`], [`a_waiting_writer_hears_of_a_failed_fsync`] | `volume-io-silent` |
//! | data that is written while a volume is given up is reported as not durable | [`what_is_written_meanwhile_is_not_told_as_durable`] | `volume-report-late` |
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

mod common;

use std::ffi::OsStr;
use std::sync::Arc;

use common::{Client, eager, lazy};
use store::{Access, ErrorKind, MemStore, Name, ObjectId, Store};
use store::{At, HookStore};
use sync::atomic::{AtomicUsize, Ordering};
use sync::{Condvar, Mutex, model, mutant, thread};
use watertight_volume::{CgroupPath, Ctx, Error, HandleId, NodeId, Options, WriteFlags};

const ROOT: ObjectId = ObjectId::ROOT;

/// Opens once, for all threads.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    fn open(&self) {
        *self.is_open.lock() = true;
        self.changed.notify_all();
    }

    fn pass(&self) {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            self.changed.wait(&mut is_open);
        }
    }
}

fn start(options: Options) -> (Arc<Client>, Arc<HookStore>) {
    let store = HookStore::new(MemStore::new(64 << 20));
    let options = Options { flushers: 1, ..options };
    (Arc::new(Client::new(Arc::clone(&store) as _, options)), store)
}

/// The store's own content of the file `name`.
fn stored(store: &dyn Store, len: usize) -> Vec<u8> {
    let entry = store.lookup(ROOT, Name::new(OsStr::new("file")).unwrap()).unwrap();
    let mut buf = vec![0; len];
    let got = store.open(entry.id, Access::Read).unwrap().read_at(&mut buf, 0).unwrap();
    store.forget(entry.id, 1);
    buf.truncate(got);
    buf
}

fn in_thread(client: &Arc<Client>, work: impl FnOnce(&Client) + Send + 'static) -> thread::JoinHandle<()> {
    let client = Arc::clone(client);
    thread::spawn(move || work(&client))
}

fn end(client: &Client) {
    assert!(client.volume.shutdown().is_complete(), "not everything was written");
}

/// What is dirty is listed, beside a flusher and another writer, so that a sync finds it.
#[test]
fn a_sync_finds_what_is_dirty() {
    model::check(dirty_beside_the_flusher);
}

fn dirty_beside_the_flusher() {
    let (client, store) = start(eager());
    let (_, handle) = client.create("file");
    client.write(handle, 0, &[1; 10]).unwrap();
    let other = in_thread(&client, move |client| {
        client.write(handle, 10, &[2; 10]).unwrap();
    });
    client.write(handle, 20, &[3; 10]).unwrap();
    client.volume.sync_all().unwrap();
    let data = stored(&*store, 100);
    assert!(data.get(20..30) == Some(&[3; 10]), "not on the store after a sync: {data:?}");
    other.join().unwrap();
    client.volume.sync_all().unwrap();
    let expected = [[1; 10], [2; 10], [3; 10]].concat();
    assert!(stored(&*store, 100) == expected, "not on the store after a sync, at the end");
    end(&client);
}

/// A sync also finds data that another thread has just begun to dirty.
#[test]
fn a_sync_finds_what_two_wrote() {
    model::check(|| {
        let (client, store) = start(lazy());
        let (_, handle) = client.create("file");
        let other = in_thread(&client, move |client| {
            client.write(handle, 0, &[1; 10]).unwrap();
        });
        client.write(handle, 10, &[2; 10]).unwrap();
        client.volume.sync_all().unwrap();
        let data = stored(&*store, 100);
        assert!(data.get(10..20) == Some(&[2; 10]), "not on the store after a sync: {data:?}");
        other.join().unwrap();
        end(&client);
    });
}

#[test]
fn a_sync_that_may_miss_dirty_data_is_caught() {
    let mutants = ["volume-unlist-unchecked", "volume-settle-unchecked"];
    mutant::assert_caught("a_sync_finds_what_is_dirty", &mutants, "not on the store after a sync");
    let mutants = ["volume-list-late"];
    mutant::assert_caught("a_sync_finds_what_two_wrote", &mutants, "not on the store after a sync");
}

/// Data that is written back and not durable is not taken for durable by a thread that asks beside
/// it what a cgroup has.
#[test]
fn what_the_flusher_writes_is_not_taken_for_durable() {
    model::check(|| {
        let (client, _) = start(eager());
        let (_, handle) = client.create("file");
        client.volume.sync_all().unwrap();
        assert!(!client.volume.has_unsynced_of(&CgroupPath::root()), "all of it is durable");
        client.write(handle, 0, &[1; 10]).unwrap();
        for _ in 0..4 {
            assert!(client.volume.has_unsynced_of(&CgroupPath::root()), "taken for durable");
            thread::yield_now();
        }
        client.volume.sync_all().unwrap();
        end(&client);
    });
}

#[test]
fn data_that_is_taken_for_durable_is_caught() {
    let test = "what_the_flusher_writes_is_not_taken_for_durable";
    mutant::assert_caught(test, &["undurable-asked-first"], "taken for durable");
}

/// A write beside the end of write-back builds on what that wrote.
#[test]
fn writes_beside_write_back_lose_nothing() {
    model::check(|| {
        let (client, _) = start(lazy());
        let (_, handle) = client.create("file");
        client.write(handle, 0, &[7; 50]).unwrap();
        client.fsync(handle).unwrap();
        let other = in_thread(&client, move |client| {
            client.write(handle, 10, &[1; 10]).unwrap();
        });
        client.write(handle, 60, &[2; 10]).unwrap();
        client.fsync(handle).unwrap();
        other.join().unwrap();
        let expected = [&[7; 10][..], &[1; 10], &[7; 30], &[0; 10], &[2; 10]].concat();
        let found = client.read(handle, 0, 100);
        assert!(found == expected, "data was lost: {found:?}");
        end(&client);
    });
}

#[test]
fn writes_that_lose_data_are_caught() {
    let mutants = ["volume-overlay-unchecked", "volume-base-unchecked"];
    mutant::assert_caught("writes_beside_write_back_lose_nothing", &mutants, "data was lost");
}

fn size_by_attr(client: &Client, id: NodeId) -> u64 {
    client.volume.attr(id).unwrap().size
}

fn size_by_lookup(client: &Client, _: NodeId) -> u64 {
    client.volume.lookup(ROOT, OsStr::new("file")).unwrap().attr.size
}

fn size_by_link(client: &Client, id: NodeId) -> u64 {
    client.volume.link(&client.ctx(), id, ROOT, OsStr::new("other")).unwrap().attr.size
}

/// Writes a file, and reads its size beside the write-back.
fn look(size: fn(&Client, NodeId) -> u64, is_known: bool) {
    let (client, _) = start(eager());
    let (id, handle) = client.create("file");
    client.write(handle, 0, &[1; 100]).unwrap();
    client.volume.release(handle);
    if !is_known {
        client.volume.forget(id, 1);
    }
    assert!(size(&client, id) == 100, "an old size");
    end(&client);
}

/// `attr` never shows an old size while the last write-back ends.
#[test]
fn no_attr_shows_an_old_size() {
    model::check(|| look(size_by_attr, true));
}

/// `lookup` never shows an old size while the last write-back ends.
#[test]
fn no_lookup_shows_an_old_size() {
    model::check(|| look(size_by_lookup, false));
}

/// `link` never shows an old size while the last write-back ends.
#[test]
fn no_link_shows_an_old_size() {
    model::check(|| look(size_by_link, true));
}

#[test]
fn a_look_that_may_show_an_old_size_is_caught() {
    mutant::assert_caught("no_attr_shows_an_old_size", &["volume-attr-unchecked"], "an old size");
    mutant::assert_caught("no_lookup_shows_an_old_size", &["volume-lookup-unchecked"], "an old size");
    mutant::assert_caught("no_link_shows_an_old_size", &["volume-know-unchecked"], "an old size");
}

/// The first dirty inode wakes a flusher.
#[test]
fn a_flusher_hears_of_dirty_data() {
    model::check(|| {
        let (client, store) = start(eager());
        let written = Arc::new(Gate::default());
        let tell = Arc::clone(&written);
        store.hook(move |at, op| {
            if (at, op) == (At::After, "write") {
                tell.open();
            }
            Ok(())
        });
        let (_, handle) = client.create("file");
        client.write(handle, 0, &[1; 10]).unwrap();
        // No other thread does anything.
        written.pass();
        end(&client);
    });
}

#[test]
fn a_flusher_that_may_sleep_on_is_caught() {
    mutant::assert_caught("a_flusher_hears_of_dirty_data", &["bdi-list-silent"], "deadlock");
}

/// What becomes dirty while a flusher leaves for want of work is written: another one takes its
/// place.
#[test]
fn what_becomes_dirty_while_the_flusher_leaves_is_written() {
    model::check(|| {
        let (client, store) = start(eager());
        let written = [Arc::new(Gate::default()), Arc::new(Gate::default())];
        let tell = written.clone();
        let count = Mutex::new(0);
        store.hook(move |at, op| {
            if (at, op) == (At::After, "write") {
                let mut count = count.lock();
                tell[*count].open();
                *count = 1;
            }
            Ok(())
        });
        let (_, handle) = client.create("file");
        for gate in &written {
            // The flusher, which has nothing to do after the first one, goes.
            client.write(handle, 0, &[1; 10]).unwrap();
            gate.pass();
        }
        end(&client);
    });
}

#[test]
fn a_flusher_that_leaves_without_another_look_is_caught() {
    mutant::assert_caught(
        "what_becomes_dirty_while_the_flusher_leaves_is_written",
        &["bdi-leave-unchecked"],
        "deadlock",
    );
}

const MIB: usize = 1 << 20;

/// A volume whose flusher is held up in the store, and whose cache has no room for another MiB of
/// its file.
struct Full {
    client: Arc<Client>,
    handle: HandleId,
    /// Lets the flusher go on.
    leave: Arc<Gate>,
}

fn full(outcome: fn() -> store::Result<()>) -> Full {
    let (client, store) = start(lazy());
    let (entered, leave) = (Arc::new(Gate::default()), Arc::new(Gate::default()));
    let (enter, leaves) = (Arc::clone(&entered), Arc::clone(&leave));
    store.hook(move |at, op| {
        if (at, op) == (At::Before, "write") {
            enter.open();
            leaves.pass();
            return outcome();
        }
        Ok(())
    });
    let (_, handle) = client.create("file");
    for number in 0..3 {
        client.write(handle, number * MIB as u64, &[1; MIB]).unwrap();
    }
    entered.pass();
    Full { client, handle, leave }
}

/// A write that has found no room and is about to wait, beside `event`; how it ended.
fn write_beside(full: &Full, event: impl FnOnce()) -> watertight_volume::Result<usize> {
    let (client, handle) = (Arc::clone(&full.client), full.handle);
    let finds_none = Arc::new(Gate::default());
    let found_none = Arc::clone(&finds_none);
    let writer = thread::spawn(move || {
        let ctx = Ctx { before_wait: &|| finds_none.open(), ..client.ctx() };
        client.volume.write(&ctx, handle, 3 * MIB as u64, &[2; MIB], WriteFlags::empty())
    });
    found_none.pass();
    event();
    writer.join().unwrap()
}

/// A writer that waits for room goes on when there is some.
#[test]
fn a_waiting_writer_gets_room() {
    model::check(|| {
        let full = full(|| Ok(()));
        assert_eq!(write_beside(&full, || full.leave.open()), Ok(MIB));
        end(&full.client);
    });
}

/// A writer that waits for room ends when the volume is given up.
#[test]
fn a_waiting_writer_hears_of_force() {
    model::check(|| {
        let full = full(|| Ok(()));
        assert_eq!(write_beside(&full, || full.client.volume.abort()), Err(Error::Released));
        full.leave.open();
        full.client.volume.shutdown();
    });
}

/// A writer that waits for room gets the error when its data cannot be written.
#[test]
fn a_waiting_writer_hears_of_failure() {
    model::check(|| {
        let full = full(|| Err(store::Error::new(ErrorKind::Io, "write")));
        let outcome = write_beside(&full, || full.leave.open());
        assert!(outcome.is_err(), "there was no room: {outcome:?}");
        full.client.volume.abort();
        full.client.volume.shutdown();
    });
}

/// A writer that waits for room gets the error when its data cannot be written, also where an fsync
/// tried: the only flusher hangs in another file.
#[test]
fn a_waiting_writer_hears_of_a_failed_fsync() {
    model::check(|| {
        let (client, store) = start(lazy());
        let gates: [Arc<Gate>; 4] = Default::default();
        let [flushing, flush, syncing, sync] = gates.clone();
        let calls = AtomicUsize::new(0);
        store.hook(move |at, op| {
            if (at, op) != (At::Before, "write") {
                return Ok(());
            }
            let (entered, leave) = match calls.fetch_add(1, Ordering::SeqCst) {
                0 => (&flushing, &flush),
                _ => (&syncing, &sync),
            };
            entered.open();
            leave.pass();
            Err(store::Error::new(ErrorKind::Io, "write"))
        });
        let [flushing, flush, syncing, sync] = gates;
        let (_, other) = client.create("other");
        client.write(other, 0, &[1; 10]).unwrap();
        let (_, handle) = client.create("file");
        for number in 0..3 {
            client.write(handle, number * MIB as u64, &[1; MIB]).unwrap();
        }
        flushing.pass();
        let syncer = in_thread(&client, move |client| {
            client.fsync(handle).expect_err("the store's error");
        });
        syncing.pass();
        let full = Full { client, handle, leave: sync };
        let outcome = write_beside(&full, || full.leave.open());
        assert!(outcome.is_err(), "there was no room: {outcome:?}");
        syncer.join().unwrap();
        flush.open();
        full.client.volume.abort();
        full.client.volume.shutdown();
    });
}

#[test]
fn a_writer_that_may_wait_for_ever_is_caught() {
    mutant::assert_caught("a_waiting_writer_gets_room", &["volume-reserve-once"], "deadlock");
    let both = ["volume-force-late", "event-set-late"];
    mutant::assert_caught("a_waiting_writer_hears_of_force", &both, "deadlock");
    mutant::assert_caught("a_waiting_writer_hears_of_failure", &["volume-io-silent"], "deadlock");
    mutant::assert_caught("a_waiting_writer_hears_of_a_failed_fsync", &["volume-io-silent"], "deadlock");
}

/// Data that is written while a volume is aborted is reported as not durable.
#[test]
fn what_is_written_meanwhile_is_not_told_as_durable() {
    model::check(|| {
        let (client, _store) = start(lazy());
        let (_, handle) = client.create("file");
        client.volume.sync_all().unwrap();
        client.write(handle, 0, &[1; 10]).unwrap();
        let other = in_thread(&client, |client| client.volume.write_back());
        let report = client.volume.abort_report();
        assert!(!report.is_complete(), "told as durable");
        other.join().unwrap();
        end(&client);
    });
}

#[test]
fn a_report_that_misses_what_is_written_meanwhile_is_caught() {
    let test = "what_is_written_meanwhile_is_not_told_as_durable";
    mutant::assert_caught(test, &["volume-report-late"], "told as durable");
}
