//! Stores that fail, hang and recover.

mod common;

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Client, eager, lazy};
use store::{Access, ErrorKind, FaultOp, FaultStore, MemStore, Name, RenameFlags, Store};
use watertight_volume::abort::CALLS;
use watertight_volume::{Error, NodeId, Options, VolumeState};

const MIB: usize = 1 << 20;
const LONG: Duration = Duration::from_secs(120);

fn faulty(rules: &str, options: Options) -> (Arc<Client>, Arc<FaultStore>) {
    let faults = FaultStore::new(MemStore::new(1 << 30), rules).expect("rules");
    (Arc::new(Client::new(Arc::clone(&faults) as _, options)), faults)
}

/// The store's own content of the file of this name.
fn stored(store: &dyn Store, name: &str) -> Vec<u8> {
    let name = Name::new(name.as_ref()).expect("a name");
    let found = store.lookup(NodeId::ROOT, name).expect("an entry");
    let file = store.open(found.id, Access::Read).expect("a file");
    let mut bytes = vec![0; 100];
    let read = file.read_at(&mut bytes, 0).expect("a read");
    bytes.truncate(read);
    store.forget(found.id, 1);
    bytes
}

#[test]
fn each_opening_hears_of_an_error_once_and_the_data_stays() {
    let (client, faults) = faulty("write:fail=ENOSPC", lazy());
    let (id, a) = client.create("file");
    let b = client.open(id);
    client.write(a, 0, b"kept").unwrap();
    assert_eq!(client.fsync(a), Err(Error::Writeback(ErrorKind::NoSpace)));
    assert_eq!(client.volume.status().failing.len(), 1);
    faults.set_rules("").unwrap();
    assert_eq!(client.fsync(a), Ok(()), "told already, and written now");
    assert_eq!(client.fsync(b), Err(Error::Writeback(ErrorKind::NoSpace)), "told to the other opening, too");
    assert_eq!(client.fsync(b), Ok(()));
    assert_eq!(client.read(a, 0, 10), b"kept");
    assert!(client.volume.status().failing.is_empty());
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_close_reports_an_error_of_the_flushers() {
    let (client, faults) = faulty("write:fail=EIO", eager());
    let (_, handle) = client.create("file");
    client.write(handle, 0, b"data").unwrap();
    while client.volume.status().writeback_errors == 0 {
        thread::yield_now();
    }
    assert_eq!(client.volume.flush(&client.ctx(), handle), Err(Error::Writeback(ErrorKind::Io)));
    faults.set_rules("").unwrap();
    assert!(client.volume.shutdown().is_complete(), "the data was still there to be written");
}

#[test]
fn an_error_that_nobody_has_seen_is_told_to_the_next_opening() {
    let (client, faults) = faulty("write:fail=EIO", eager());
    let (id, handle) = client.create("file");
    client.write(handle, 0, b"data").unwrap();
    while client.volume.status().writeback_errors == 0 {
        thread::yield_now();
    }
    // Released without asking the store.
    client.volume.release(handle);
    faults.set_rules("").unwrap();
    let (next, another) = (client.open(id), client.open(id));
    assert_eq!(client.fsync(next), Err(Error::Writeback(ErrorKind::Io)));
    assert_eq!(client.fsync(next), Ok(()), "once");
    assert_eq!(client.fsync(another), Err(Error::Writeback(ErrorKind::Io)), "it was open, too");
    let late = client.open(id);
    assert_eq!(client.fsync(late), Ok(()), "it has been seen");
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_writer_without_room_gets_the_error_of_its_own_file() {
    let options = Options { drain_deadline: Duration::from_millis(200), ..lazy() };
    let (client, _faults) = faulty("write:fail=ENOSPC", options);
    let (_, handle) = client.create("file");
    let block = vec![1; MIB];
    let error = (0..).find_map(|n| client.write(handle, n * MIB as u64, &block).err());
    assert!(
        matches!(&error, Some(Error::Writeback(ErrorKind::NoSpace)) | Some(Error::Store(_))),
        "{error:?}"
    );
    let report = client.volume.shutdown();
    assert_eq!(client.volume.status().state, VolumeState::Failed);
    assert_eq!(report.unwritten.len(), 1);
    assert_eq!(report.unwritten[0].error, Some(ErrorKind::NoSpace));
    assert!(report.unwritten[0].bytes >= 3 * MIB as u64, "{report:?}");
}

#[test]
fn a_file_that_hangs_in_the_store_holds_up_no_other() {
    let (client, faults) = faulty("write:nth=1:hang", lazy());
    let (_, slow) = client.create("slow");
    let (_, other) = client.create("other");
    client.write(slow, 0, b"stuck").unwrap();
    let stuck = {
        let client = Arc::clone(&client);
        thread::spawn(move || client.fsync(slow))
    };
    assert!(faults.wait_hanging(1, LONG));
    client.write(other, 0, b"free").unwrap();
    assert_eq!(client.fsync(other), Ok(()));
    assert_eq!(client.write(slow, 10, b"also"), Ok(4), "not even the file itself, as long as there is room");
    assert_eq!(client.read(slow, 0, 20), b"stuck\0\0\0\0\0also");
    faults.release();
    assert_eq!(stuck.join().unwrap(), Ok(()));
    assert!(client.volume.shutdown().is_complete());
}

/// A call gets its time once, from its own beginning: not again from the moment at which the volume
/// is given up.
#[test]
fn a_call_that_hangs_already_gets_no_more_time_when_the_volume_is_given_up() {
    let (client, faults) = faulty("write:nth=1:hang", lazy());
    let (_, file) = client.create("file");
    client.write(file, 0, b"stuck").unwrap();
    let stuck = {
        let client = Arc::clone(&client);
        thread::spawn(move || client.fsync(file))
    };
    assert!(faults.wait_hanging(1, LONG));
    let begun = Instant::now();
    // Nothing reports that time has passed.
    thread::sleep(CALLS);
    client.volume.abort();
    assert!(client.volume.is_left_to_its_store(begun), "waited for although it had its time");
    faults.release();
    // It returns the result of the call that had begun before.
    let _either = stuck.join().unwrap();
    assert!(!client.volume.is_left_to_its_store(Instant::now()), "nothing is under way");
}

#[test]
fn a_light_writer_finds_room_beside_one_that_fills_the_cache() {
    let (client, faults) = faulty("write:hang", lazy());
    let (_, heavy) = client.create("heavy");
    let (_, light) = client.create("light");
    let filling = {
        let client = Arc::clone(&client);
        thread::spawn(move || {
            let block = vec![1; MIB];
            (0..8).map(|n| client.write(heavy, n * MIB as u64, &block).is_ok()).filter(|ok| *ok).count()
        })
    };
    // The writer itself hangs in the store, for it helps to write the data that it filled the cache
    // with.
    assert!(faults.wait_hanging(1, LONG));
    assert_eq!(client.write(light, 0, &[2; 4096]), Ok(4096));
    assert!(client.volume.status().cached_bytes <= 4 << 20);
    faults.release();
    assert_eq!(filling.join().unwrap(), 8);
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_waiting_writer_can_be_cancelled() {
    let (client, faults) = faulty("write:hang", eager());
    let (_, heavy) = client.create("heavy");
    let (_, more) = client.create("more");
    let block = vec![1; MIB];
    for n in 0..3 {
        client.write(heavy, n * MIB as u64, &block).unwrap();
    }
    assert!(faults.wait_hanging(1, LONG));
    let waiting = {
        let client = Arc::clone(&client);
        let block = block.clone();
        thread::spawn(move || (0..4).find_map(|n| client.write(more, n * MIB as u64, &block).err()))
    };
    while client.volume.status().writer_waits == 0 {
        thread::yield_now();
    }
    client.cancel.cancel();
    // It may be inside a store call of its own by now; that ends, and the wait is not taken up
    // again.
    faults.release();
    assert!(matches!(waiting.join().unwrap(), None | Some(Error::Interrupted)));
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn the_cache_stays_under_its_bound_while_a_slow_store_is_flooded() {
    let (client, _faults) = faulty("write:delay=1ms", eager());
    let done = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let watch = {
        let (client, done) = (Arc::clone(&client), Arc::clone(&done));
        thread::spawn(move || {
            let mut most = 0;
            // ORDERING: SeqCst here and in the store: a flag that ends the thread.
            while !done.load(std::sync::atomic::Ordering::SeqCst) {
                most = most.max(client.volume.status().cached_bytes);
            }
            most
        })
    };
    let writers: Vec<_> = (0..4)
        .map(|n| {
            let client = Arc::clone(&client);
            thread::spawn(move || {
                let (_, handle) = client.create(&format!("file{n}"));
                for block in 0..32 {
                    client.write(handle, block * MIB as u64, &vec![n; MIB]).expect("slowed, not refused");
                }
            })
        })
        .collect();
    for writer in writers {
        writer.join().unwrap();
    }
    done.store(true, std::sync::atomic::Ordering::SeqCst);
    let most = watch.join().unwrap();
    assert!(most > 0 && most <= 4 << 20, "{most} bytes were cached");
    assert!(client.volume.status().writer_waits > 0, "nobody had to wait: the test shows nothing");
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn sync_waits_for_a_write_back_that_is_under_way() {
    let (client, faults) = faulty("write:nth=1:hang", eager());
    let (_, handle) = client.create("file");
    client.write(handle, 0, b"data").unwrap();
    assert!(faults.wait_hanging(1, LONG), "a flusher has it");
    let syncing = {
        let client = Arc::clone(&client);
        thread::spawn(move || client.volume.sync(&client.ctx()))
    };
    // The sync can only end by the write's end; if it did not wait it would be over long before.
    thread::sleep(Duration::from_millis(50));
    assert!(!syncing.is_finished(), "sync returned while the data was not written");
    faults.release();
    assert_eq!(syncing.join().unwrap(), Ok(()));
    assert!(faults.calls(FaultOp::StoreSync) >= 1);
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_second_shutdown_gets_the_first_ones_report() {
    let (client, faults) = faulty("write:hang", lazy());
    let (_, handle) = client.create("file");
    client.write(handle, 0, b"data").unwrap();
    let ends: Vec<_> = (0..2)
        .map(|_| {
            let client = Arc::clone(&client);
            thread::spawn(move || client.volume.shutdown())
        })
        .collect();
    assert!(faults.wait_hanging(1, LONG));
    assert_eq!(client.volume.status().state, VolumeState::Draining);
    assert!(client.volume.report().is_none());
    faults.release();
    let reports: Vec<_> = ends.into_iter().map(|end| end.join().unwrap()).collect();
    assert_eq!(reports[0], reports[1]);
    assert!(reports[0].is_complete());
    assert_eq!(client.volume.status().state, VolumeState::Released);
}

#[test]
fn data_of_a_file_without_a_name_is_not_written_for_nobody() {
    let (client, faults) = faulty("", lazy());
    let (id, handle) = client.create("temporary");
    client.write(handle, 0, &[1; 4096]).unwrap();
    client.volume.unlink(&client.ctx(), store::ObjectId::ROOT, std::ffi::OsStr::new("temporary")).unwrap();
    assert_eq!(client.read(handle, 0, 4), [1; 4], "open files keep it");
    client.volume.release(handle);
    client.volume.forget(id, 1);
    assert_eq!(client.volume.status().cached_bytes, 0);
    assert_eq!(client.volume.status().nodes, 0, "its space on the store is free at once");
    assert!(client.volume.shutdown().is_complete());
    assert_eq!(faults.calls(FaultOp::Write), 0);
}

#[test]
fn a_write_that_the_store_could_never_take_fails_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = store::open(dir.path().to_str().unwrap()).unwrap();
    let largest = store.file_size_max();
    let client = Client::new(store, lazy());
    let (id, handle) = client.create("file");
    assert_eq!(client.write(handle, largest, b"x"), Err(Error::FileTooBig));
    assert_eq!(client.write(handle, u64::MAX - 1, b"xyz"), Err(Error::FileTooBig));
    assert_eq!(client.write(handle, largest - 1, b"x"), Ok(1));
    assert_eq!(client.volume.attr(id).unwrap().size, largest);
    assert!(client.volume.shutdown().is_complete(), "what was taken can be written");
}

#[test]
fn what_replaces_a_file_is_written_first() {
    let (client, faults) = faulty("", lazy());
    let (_, new) = client.create("new");
    let (_, old) = client.create("old");
    client.write(old, 0, b"old").expect("room");
    client.fsync(old).unwrap();
    client.write(new, 0, b"whole").unwrap();
    let (root, rename) = (NodeId::ROOT, RenameFlags::empty());
    client
        .volume
        .rename(&client.ctx(), root, "new".as_ref(), root, "free".as_ref(), rename)
        .expect("a rename");
    assert_eq!(stored(&*faults, "free"), b"", "nothing was replaced, so nothing had to be written");
    client
        .volume
        .rename(&client.ctx(), root, "free".as_ref(), root, "old".as_ref(), rename)
        .expect("a rename");
    assert_eq!(stored(&*faults, "old"), b"whole");
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_rename_of_what_cannot_be_written_succeeds() {
    let (client, faults) = faulty("write:fail=ENOSPC", lazy());
    let (_, new) = client.create("new");
    client.create("old");
    client.write(new, 0, b"kept").unwrap();
    let (root, rename) = (NodeId::ROOT, RenameFlags::empty());
    client
        .volume
        .rename(&client.ctx(), root, "new".as_ref(), root, "old".as_ref(), rename)
        .expect("a rename");
    assert_eq!(client.volume.flush(&client.ctx(), new), Err(Error::Writeback(ErrorKind::NoSpace)));
    faults.set_rules("").unwrap();
    assert_eq!(client.fsync(new), Ok(()));
    assert_eq!(stored(&*faults, "old"), b"kept");
    assert!(client.volume.shutdown().is_complete());
}

#[test]
fn a_volume_that_is_dropped_with_unwritten_data_leaves_nothing_behind() {
    let options = Options { drain_deadline: Duration::from_millis(200), ..lazy() };
    let (client, faults) = faulty("write:fail=EIO", options);
    let store = Arc::downgrade(&faults);
    drop(faults);
    let (_, handle) = client.create("lost");
    client.write(handle, 0, b"lost").expect("room");
    drop(client);
    assert_eq!(store.strong_count(), 0, "inodes and their device do not keep each other");
}

/// A flusher hangs in a write that then fails, by `rules`. Returns the volume, and the result of a
/// sync that began meanwhile.
fn sync_beside_a_write_that_fails(rules: &str, is_fsync: bool) -> (Arc<Client>, Result<(), Error>) {
    // The flusher does not come back to data that it leaves.
    let options = Options { retry_pause: LONG * 100, ..eager() };
    let (client, faults) = faulty(rules, options);
    let (_, handle) = client.create("file");
    client.write(handle, 0, b"data").expect("room");
    assert!(faults.wait_hanging(1, LONG), "the flusher writes it");
    let syncs = {
        let client = Arc::clone(&client);
        thread::spawn(move || if is_fsync { client.fsync(handle) } else { client.volume.sync(&client.ctx()) })
    };
    // A sync that begins later finds the failure behind it, and returns the same result.
    thread::sleep(Duration::from_millis(50));
    faults.release();
    let said = syncs.join().expect("no panic");
    faults.set_rules("").expect("rules");
    (client, said)
}

#[test]
fn a_sync_writes_what_a_flusher_failed_to_write_meanwhile() {
    let (client, said) = sync_beside_a_write_that_fails("write:nth=1:hang:fail=EIO", false);
    assert_eq!(said, Ok(()));
    assert_eq!(client.volume.status().dirty_bytes, 0, "it said that all was durable");
}

#[test]
fn syncs_hear_of_a_write_that_failed_under_them_and_fails_again() {
    for is_fsync in [false, true] {
        let (client, said) = sync_beside_a_write_that_fails("write:hang:fail=ENOSPC", is_fsync);
        assert_eq!(said, Err(Error::Writeback(ErrorKind::NoSpace)), "fsync: {is_fsync}");
        assert!(client.volume.status().dirty_bytes > 0);
    }
}
