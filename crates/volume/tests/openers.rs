//! The threads that opened the files and directories that are open.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{Client, lazy};
use store::{MemStore, ObjectId};
use watertight_volume::{Caller, Ctx, HandleId, NodeId, OpenFlags};

/// Opens a file as `pid`.
fn open(client: &Client, id: NodeId, pid: u32) -> HandleId {
    let ctx = as_pid(client, pid);
    client.volume.open(&ctx, id, OpenFlags::READ).expect("an open file")
}

fn as_pid(client: &Client, pid: u32) -> Ctx<'_> {
    let ctx = client.ctx();
    Ctx { caller: Caller { pid, ..ctx.caller }, ..ctx }
}

#[test]
fn each_opener_is_told_once_for_as_long_as_it_has_something_open() {
    let client = Client::new(MemStore::new(1 << 20), lazy());
    let openers = || client.volume.openers();
    assert_eq!(openers(), Some(vec![]));
    let (id, file) = client.create("a");
    client.volume.release(file);
    assert_eq!(openers(), Some(vec![]));
    let files = [open(&client, id, 30), open(&client, id, 20), open(&client, id, 20)];
    let dir = client.volume.open_dir(&as_pid(&client, 10), ObjectId::ROOT).expect("an open directory");
    assert_eq!(openers(), Some(vec![10, 20, 30]));
    assert_eq!(client.volume.status().openers, [10, 20, 30]);
    client.volume.release(files[0]);
    client.volume.release(files[1]);
    assert_eq!(openers(), Some(vec![10, 20]));
    client.volume.release_dir(dir);
    assert_eq!(openers(), Some(vec![20]));
    // A process that this one cannot see.
    let unseen = open(&client, id, 0);
    assert_eq!(openers(), None);
    assert!(client.volume.status().openers.is_empty());
    client.volume.release(unseen);
    assert_eq!(openers(), Some(vec![20]));
}

#[test]
fn where_very_much_is_open_nobody_counts() {
    let client = Client::new(MemStore::new(1 << 20), lazy());
    let (id, file) = client.create("a");
    client.volume.release(file);
    for _ in 0..1024 {
        open(&client, id, 5);
    }
    assert_eq!(client.volume.openers(), Some(vec![5]));
    open(&client, id, 5);
    assert_eq!(client.volume.openers(), None);
}
