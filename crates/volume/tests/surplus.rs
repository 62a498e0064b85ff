//! More files are known than there may be: which of them the front end is to forget.
#![cfg(not(any(loom, shuttle)))]

mod common;

use std::collections::{HashMap, HashSet};

use common::{Client, lazy};
use store::{MemStore, ObjectId};
use watertight_volume::{NodeId, Options};

const MAX: usize = 1000;
/// Files that are open, or not written.
const BUSY: usize = 100;
const FILES: usize = 16_000;

struct World {
    client: Client,
    made: Vec<NodeId>,
}

impl World {
    /// A volume with [`FILES`], each looked up once.
    fn new() -> Self {
        let client = Client::new(MemStore::new(1 << 30), Options { nodes_max: MAX, ..lazy() });
        let mut world = Self { client, made: Vec::new() };
        (0..FILES).for_each(|file| world.make(file < BUSY));
        world
    }

    fn make(&mut self, is_busy: bool) {
        let number = self.made.len();
        let (id, handle) = self.client.create(&format!("file-{number}"));
        if is_busy && number.is_multiple_of(2) {
            self.client.write(handle, 0, b"not written").expect("room");
        }
        if !is_busy || number.is_multiple_of(2) {
            self.client.volume.release(handle);
        }
        self.made.push(id);
    }

    /// What is named after each of so many more files.
    fn named_after(&mut self, more: usize) -> Vec<Vec<NodeId>> {
        let name = |_| {
            self.make(false);
            self.client.volume.name_surplus()
        };
        (0..more).map(name).filter(|named| !named.is_empty()).collect()
    }
}

#[test]
fn those_are_named_that_came_first_and_that_nobody_uses() {
    let mut world = World::new();
    assert!(world.client.volume.has_surplus());
    let early: HashSet<NodeId> = world.made[BUSY..FILES / 2].iter().copied().collect();
    let first: Vec<NodeId> = world.named_after(2048).concat();
    assert!(first.len() > FILES / 8 && first.iter().all(|id| early.contains(id)), "{}", first.len());
    let mut forgotten = HashSet::new();
    for id in first {
        assert!(forgotten.insert(id), "{id:?} is named twice");
        world.client.volume.forget(id, 1);
    }
    // Who forgets what is named has no surplus for long.
    for _ in 0..40_000 {
        for id in world.named_after(1).concat() {
            assert!(forgotten.insert(id) && id != ObjectId::ROOT, "{id:?} was forgotten, or is the root");
            world.client.volume.forget(id, 1);
        }
    }
    let known = world.client.volume.status().nodes;
    assert!(known < MAX as u64 + 2 * BUSY as u64 + 1024, "{known}");
    assert!(world.made[..BUSY].iter().all(|id| !forgotten.contains(id)), "they are used");
}

#[test]
fn what_is_not_forgotten_is_named_again_after_those_that_were_there() {
    let mut world = World::new();
    // Each call is about one part of the table.
    let mut named: HashMap<usize, Vec<NodeId>> = HashMap::new();
    for (call, ids) in world.named_after(20_000).into_iter().enumerate() {
        named.entry(call % 16).or_default().extend(ids);
    }
    for ids in named.values() {
        let mut seen = HashSet::new();
        let once = ids.iter().take_while(|id| seen.insert(**id)).count();
        assert!(once < ids.len() && once >= (FILES - BUSY) / 16 - 1, "{once} of {}", ids.len());
    }
}
