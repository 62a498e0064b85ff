//! More files are known than there may be: which of them the front end is to forget.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::collections::HashSet;
use std::ffi::OsStr;

use common::{Client, lazy};
use store::{MemStore, ObjectId};
use watertight_volume::{NodeId, Options};

const MAX: usize = 1000;

/// A volume with so many files, each looked up once, some of them open or not written.
fn with_files(files: usize, busy: usize) -> (Client, Vec<NodeId>) {
    let client = Client::new(MemStore::new(1 << 30), Options { nodes_max: MAX, ..lazy() });
    let make = |file: usize| {
        let (id, handle) = client.create(&format!("file-{file}"));
        if file.is_multiple_of(2) && file < busy {
            client.write(handle, 0, b"not written").expect("room");
        }
        if file.is_multiple_of(2) || file >= busy {
            client.volume.release(handle);
        }
        id
    };
    let ids = (0..files).map(make).collect();
    (client, ids)
}

#[test]
fn those_are_named_that_came_first_and_that_nobody_uses() {
    let (busy, files) = (100, 4000);
    let (client, ids) = with_files(files, busy);
    assert!(client.volume.has_surplus());
    let named = client.volume.name_surplus();
    assert_eq!(named[..], ids[busy..busy + named.len()]);
    assert!(client.volume.name_surplus().is_empty(), "again only after so many more came");
    // Who forgets what is named has no surplus for long.
    named.iter().for_each(|id| client.volume.forget(*id, 1));
    let mut all: HashSet<NodeId> = named.into_iter().collect();
    for file in files..files + 6000 {
        let (id, handle) = client.create(&format!("file-{file}"));
        client.volume.release(handle);
        assert_ne!(id, ObjectId::ROOT);
        for id in client.volume.name_surplus() {
            assert!(all.insert(id), "{id:?} was forgotten, and is named");
            client.volume.forget(id, 1);
        }
    }
    let known = client.volume.status().nodes;
    assert!(known < MAX as u64 + 1024, "{known}");
    assert!(ids[..busy].iter().all(|id| !all.contains(id)));
}

#[test]
fn what_is_not_forgotten_is_named_again_after_those_that_were_there() {
    let (client, ids) = with_files(3000, 0);
    let mut named = Vec::new();
    for file in 0..3 * 512 {
        // No file that is known more often stays named first.
        client.volume.lookup(ObjectId::ROOT, OsStr::new("file-0")).expect("it is there");
        let (_, handle) = client.create(&format!("more-{file}"));
        client.volume.release(handle);
        named.extend(client.volume.name_surplus());
    }
    assert!(named.len() > ids.len(), "{}", named.len());
    assert_eq!(named[..ids.len()], ids, "each once");
}
