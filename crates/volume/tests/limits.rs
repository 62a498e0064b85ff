//! Limits on a volume. Its callers are all in the root cgroup; how cgroups affect each other is
//! tested on real mounts.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use common::asleep::Waiter;
use common::{Client, eager, lazy};
use eventpoll::Read;
use store::MemStore;
use watertight_volume::events::{Edge, Limit, What};
use watertight_volume::{CgroupPath, Error, NodeId, WriteFlags};

fn client(options: watertight_volume::Options, limits: &str) -> Client {
    let client = Client::new(MemStore::new(1 << 30), options);
    limit(&client, limits);
    client
}

fn limit(client: &Client, limits: &str) {
    client.volume.limit(&CgroupPath::root(), &limits.parse().expect("a limit"));
}

#[test]
fn an_fsync_waits_for_its_own_cgroups_limit() {
    let client = client(lazy(), "wbps=1M");
    let (_, file) = client.create("a");
    let begun = Instant::now();
    client.write(file, 0, &[7; 512 << 10]).expect("room");
    client.fsync(file).expect("durable");
    assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
    assert_eq!(client.volume.status().dirty_bytes, 0);
}

#[test]
fn so_does_a_synchronous_write_and_a_read() {
    let client = client(lazy(), "wbps=1M rbps=1M");
    let (_, file) = client.create("a");
    let begun = Instant::now();
    client.volume.write(&client.ctx(), file, 0, &[7; 256 << 10], WriteFlags::DSYNC).expect("durable");
    assert!(begun.elapsed() >= Duration::from_millis(220));
    let begun = Instant::now();
    assert_eq!(client.read(file, 0, 256 << 10), [7; 256 << 10]);
    assert!(begun.elapsed() >= Duration::from_millis(220));
}

#[test]
fn flushers_write_what_the_limit_lets_them() {
    let client = client(eager(), "wbps=1M");
    let (_, file) = client.create("a");
    client.write(file, 0, &[7; 512 << 10]).expect("room");
    let begun = Instant::now();
    while client.volume.status().dirty_bytes > 0 {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody writes it");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(begun.elapsed() >= Duration::from_millis(450), "{:?}", begun.elapsed());
    assert_eq!(client.read(file, 0, 512 << 10), [7; 512 << 10]);
}

#[test]
fn an_unmount_waits_for_no_limit_and_leaves_a_debt() {
    let client = client(lazy(), "wbps=1");
    let (_, file) = client.create("a");
    client.write(file, 0, &[7; 512 << 10]).expect("room");
    // A byte a second: six days.
    let report = client.volume.shutdown();
    assert!(report.is_complete());
    let owed = client.volume.limits()[0].owed_bytes;
    assert!(owed > 400 << 10, "{owed}");
}

/// A caller that waits in fsync for a limit of a byte a second.
fn behind_a_limit() -> (Arc<Client>, Waiter<watertight_volume::Result<()>>) {
    let client = Arc::new(client(lazy(), "wbps=1"));
    let waits = waits_in_fsync(&client, "a");
    (client, waits)
}

/// Writes a new file, and waits in its fsync.
fn waits_in_fsync(client: &Arc<Client>, name: &str) -> Waiter<watertight_volume::Result<()>> {
    let (_, file) = client.create(name);
    client.write(file, 0, &[7; 64 << 10]).expect("room");
    let caller = Arc::clone(client);
    let waits = Waiter::start(move || caller.fsync(file));
    waits.is_asleep_once(|| true);
    waits
}

#[test]
fn limits_let_requests_through_in_a_hurry_and_hold_again_afterwards() {
    let (client, waits) = behind_a_limit();
    let hurry = client.volume.hurry();
    waits.join().expect("no panic").expect("durable");
    drop(hurry);
    let waits = waits_in_fsync(&client, "b");
    limit(&client, "wbps=max");
    waits.join().expect("no panic").expect("durable");
}

/// The edges of limits that were reported so far.
fn edges(client: &Client) -> Vec<(Limit, Edge)> {
    let mut reader = client.volume.events().journal().reader(0);
    let mut edges = Vec::new();
    while let Read::Entry { value, .. } = reader.read() {
        if let What::Limit { limit, edge, .. } = value.what {
            edges.push((limit, edge));
        }
    }
    edges
}

#[test]
fn limits_tell_when_they_begin_to_hold_somebody_up_and_when_they_end() {
    let client = client(lazy(), "rbps=1M wbps=1M");
    let (_, file) = client.create("a");
    client.write(file, 0, &[7; 256 << 10]).expect("room");
    assert_eq!(edges(&client), []);
    client.fsync(file).expect("durable");
    client.read(file, 0, 256 << 10);
    let begins = (Limit::IoMax, Edge::Begins);
    assert_eq!(edges(&client), [begins], "many waits, one edge");
    (0..5).for_each(|_| drop(client.volume.status()));
    assert_eq!(edges(&client), [begins, (Limit::IoMax, Edge::Ends)]);
    limit(&client, "rbps=max wbps=max dirty_max=256K");
    for number in 0..64 {
        client.write(file, number * (64 << 10), &[7; 64 << 10]).expect("room");
    }
    assert_eq!(edges(&client)[2..], [(Limit::DirtyMax, Edge::Begins)]);
    client.volume.shutdown();
}

#[test]
fn who_waits_for_a_limit_can_be_killed() {
    let (client, waits) = behind_a_limit();
    client.cancel.cancel();
    assert_eq!(waits.join().expect("no panic"), Err(Error::Interrupted));
    client.volume.shutdown();
}

#[test]
fn a_sync_that_waits_with_several_threads_can_be_killed() {
    let client = Arc::new(client(lazy(), "wbps=1"));
    for name in ["a", "b", "c"] {
        let (_, file) = client.create(name);
        client.write(file, 0, &[7; 64 << 10]).expect("room");
    }
    let waits = {
        let client = Arc::clone(&client);
        Waiter::start(move || client.volume.sync(&client.ctx()))
    };
    // A byte a second: it waits.
    waits.is_asleep_once(|| true);
    client.cancel.cancel();
    assert_eq!(waits.join().expect("no panic"), Err(Error::Interrupted));
    client.volume.shutdown();
}

#[test]
fn a_limit_that_is_lifted_lets_go_at_once() {
    let (client, waits) = behind_a_limit();
    limit(&client, "wbps=max");
    assert_eq!(waits.join().expect("no panic"), Ok(()));
    assert!(client.volume.limits().is_empty());
}

#[test]
fn what_is_owed_uses_up_the_writers_room() {
    let client = client(lazy(), "wbps=1M");
    let (_, file) = client.create("a");
    client.write(file, 0, &[7; 3 << 20]).expect("room");
    let begun = Instant::now();
    // At once, for a third party: three of the cache's four megabytes are owed, and less with each
    // moment from now on.
    client.volume.sync_all().expect("durable");
    client.write(file, 0, &[8; 1 << 20]).expect("after a while");
    assert!(begun.elapsed() >= Duration::from_millis(500), "{:?}", begun.elapsed());
    client.volume.shutdown();
}

#[test]
fn who_waits_for_a_small_dirty_limit_has_the_data_in_its_way_written_at_once() {
    // Less than half of the limit is there, and nothing is old; a request of the largest size has
    // no room beside it.
    for (dirty_max, len) in [("dirty_max=1M", 1 << 20), ("dirty_max=64K", 64 << 10)] {
        let client = Arc::new(client(lazy(), dirty_max));
        let ((_, first), (_, second)) = (client.create("first"), client.create("second"));
        client.write(first, 0, &[7; 4096]).expect("room");
        let waits = {
            let client = Arc::clone(&client);
            std::thread::spawn(move || client.write(second, 0, &vec![8; len]))
        };
        let begun = Instant::now();
        while !waits.is_finished() {
            assert!(begun.elapsed() < Duration::from_secs(60), "{dirty_max}: nobody writes the other file");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(waits.join().expect("no panic"), Ok(len));
        client.volume.shutdown();
    }
}

#[test]
fn a_writer_that_waits_for_what_is_owed_goes_on_when_the_limit_is_lifted() {
    let client = Arc::new(client(lazy(), "wbps=1"));
    let (_, file) = client.create("a");
    client.write(file, 0, &[7; 3 << 20]).expect("room");
    client.volume.sync_all().expect("durable");
    // A month.
    let waits = {
        let client = Arc::clone(&client);
        Waiter::start(move || client.write(file, 0, &[8; 1 << 20]))
    };
    // Counted before it is asleep.
    waits.is_asleep_once(|| client.volume.status().writer_waits > 0);
    limit(&client, "wbps=max");
    assert_eq!(waits.join().expect("no panic"), Ok(1 << 20));
    client.volume.shutdown();
}

#[test]
fn a_writer_pauses_when_its_data_is_there_to_be_written() {
    let client = client(lazy(), "wbps=1 dirty_max=256K");
    let (id, file) = client.create("a");
    client.write(file, 0, &[7; 128 << 10]).expect("room");
    let seen = sync::Mutex::new(Vec::new());
    let before_wait = || {
        let size = client.volume.attr(id).expect("attributes").size;
        seen.lock().push((size, client.volume.status().dirty_bytes));
    };
    let ctx = watertight_volume::Ctx { before_wait: &before_wait, ..client.ctx() };
    // Beyond three quarters, and not over the limit.
    client.volume.write(&ctx, file, 128 << 10, &[7; 96 << 10], WriteFlags::empty()).expect("room");
    let seen = std::mem::take(&mut *seen.lock());
    // A flusher has written what the limit allowed: a page.
    assert!(matches!(seen[..], [(size, dirty)] if size == 224 << 10 && dirty >= 220 << 10), "{seen:?}");
    limit(&client, "wbps=max");
    client.volume.shutdown();
}

#[test]
fn what_a_partial_write_reads_counts_as_read() {
    let client = client(lazy(), "riops=10");
    let (_, file) = client.create("a");
    client.write(file, 0, &[7; 16 * 4096]).expect("room");
    client.fsync(file).expect("durable");
    let begun = Instant::now();
    for page in 0..6 {
        client.write(file, page * 2 * 4096 + 1, b"x").expect("after a while");
    }
    assert!(begun.elapsed() >= Duration::from_millis(400), "{:?}", begun.elapsed());
    assert_eq!(client.read(file, 0, 3), [7, b'x', 7]);
    limit(&client, "riops=max");
    client.volume.shutdown();
}

#[test]
fn removing_names_is_owed_by_who_does_it() {
    let client = client(lazy(), "wbps=max");
    let names: Vec<String> = (0..20).map(|number| format!("file {number}")).collect();
    names.iter().for_each(|name| client.volume.release(client.create(name).1));
    limit(&client, "wiops=1");
    for name in &names {
        client.volume.unlink(&client.ctx(), NodeId::ROOT, name.as_ref()).expect("it is there");
    }
    // Twenty seconds' operations.
    assert!(client.volume.limits()[0].owed_bytes > 0);
}
