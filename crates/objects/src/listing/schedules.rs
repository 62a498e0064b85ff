//! Openings that list a directory while its names change, held to a model.
//!
//! `RUSTC_WORKSPACE_WRAPPER=$PWD/tests/with-shuttle cargo test -p watertight-objects --lib listing`

use std::collections::{BTreeMap, BTreeSet};

use object_store::memory::InMemory;
use proptest::prelude::*;
use store::{Creator, Dir, DirEntry, FileType, Name, NewNode, ObjectId, RenameFlags, Store};

use super::*;
use crate::rows::Kind;

const ROOT: ObjectId = ObjectId::ROOT;
const OPENINGS: usize = 3;
const READERS: usize = 3;
/// So many that a directory with all of them is listed in parts.
const NAMES: usize = 3 * NAMES_MAX;

#[derive(Debug, Clone)]
enum Step {
    Make(usize),
    Remove(usize),
    Rename(usize, usize),
    Exchange(usize, usize),
    /// Many names at once, from this one on.
    MakeMany(usize, usize),
    RemoveMany(usize, usize),
    /// Another opening in the place of this one.
    Open(usize),
    Begin(usize, usize),
    /// A reader lists so many names with an opening.
    List(usize, usize, usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (name, many) = (0..NAMES, 1..NAMES_MAX);
    let (opening, reader) = (0..OPENINGS, 0..READERS);
    let step = prop_oneof![
        2 => name.clone().prop_map(Step::Make),
        2 => name.clone().prop_map(Step::Remove),
        1 => (name.clone(), name.clone()).prop_map(|(from, to)| Step::Rename(from, to)),
        1 => (name.clone(), name.clone()).prop_map(|(one, other)| Step::Exchange(one, other)),
        1 => (name.clone(), many.clone()).prop_map(|(from, count)| Step::MakeMany(from, count)),
        1 => (name, many.clone()).prop_map(|(from, count)| Step::RemoveMany(from, count)),
        1 => opening.clone().prop_map(Step::Open),
        2 => (reader.clone(), opening.clone()).prop_map(|(reader, opening)| Step::Begin(reader, opening)),
        6 => (reader, opening, many).prop_map(|(reader, with, count)| Step::List(reader, with, count)),
    ];
    prop::collection::vec(step, 1..120)
}

/// A program that lists the directory: what the kernel knows of it.
#[derive(Debug, Default)]
struct Reader {
    place: u64,
    /// Its own opening, where its places are that one's alone.
    own: Option<Arc<dyn Dir>>,
    /// Names that were there from its beginning on.
    stayed: BTreeSet<String>,
    seen: BTreeSet<String>,
}

struct Model {
    store: Arc<dyn Store>,
    names: BTreeMap<String, u64>,
    openings: Vec<Arc<dyn Dir>>,
    readers: Vec<Reader>,
}

fn name(number: usize) -> String {
    format!("name-{:04}", number % NAMES)
}

fn as_name(name: &str) -> Name<'_> {
    Name::new(name.as_ref()).unwrap()
}

impl Model {
    fn new() -> Self {
        let store = crate::open_unheld(Arc::new(InMemory::new()), "volume").unwrap();
        let openings = (0..OPENINGS).map(|_| store.open_dir(ROOT).unwrap()).collect();
        let mut readers = Vec::new();
        readers.resize_with(READERS, Reader::default);
        Self { store, names: BTreeMap::new(), openings, readers }
    }

    fn make(&mut self, name: &str) {
        if !self.names.contains_key(name) {
            let creator = Creator { uid: 0, gid: 0, umask: 0 };
            let what = NewNode::Special { kind: FileType::Regular, rdev: 0 };
            let made = self.store.make(ROOT, as_name(name), what, 0o644, creator).unwrap();
            self.store.forget(made.id, 1);
            self.names.insert(name.to_owned(), made.id.0);
        }
    }

    fn remove(&mut self, name: &str) {
        if self.names.remove(name).is_some() {
            self.store.unlink(ROOT, as_name(name)).unwrap();
            self.is_gone(name);
        }
    }

    fn rename(&mut self, from: &str, to: &str, flags: RenameFlags) {
        let (Some(moved), target) = (self.names.get(from).copied(), self.names.get(to).copied()) else {
            return;
        };
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if from == to || (exchanges && target.is_none()) {
            return;
        }
        self.store.rename(ROOT, as_name(from), ROOT, as_name(to), flags).unwrap();
        self.names.insert(to.to_owned(), moved);
        if let Some(target) = target.filter(|_| exchanges) {
            self.names.insert(from.to_owned(), target);
        } else {
            self.names.remove(from);
            self.is_gone(from);
        }
    }

    fn is_gone(&mut self, name: &str) {
        for reader in &mut self.readers {
            reader.stayed.remove(name);
        }
    }

    fn begin(&mut self, reader: usize, opening: usize) {
        let dir = Arc::clone(&self.openings[opening]);
        let mut dots = Vec::new();
        dir.list(0, &mut |entry| {
            let is_dot = dots.len() < 2;
            if is_dot {
                dots.push(entry);
            }
            is_dot
        })
        .unwrap();
        let place = dots[1].next;
        let is_shared = HashPlace::of_offset(place).is_some();
        assert!(is_shared || !dir.shares_places(), "its places are its own, and it says otherwise");
        let stayed = self.names.keys().cloned().collect();
        let own = (!is_shared).then_some(dir);
        if own.is_some() {
            // No other program has it.
            self.openings[opening] = self.store.open_dir(ROOT).unwrap();
        }
        self.readers[reader] = Reader { place, own, stayed, seen: BTreeSet::new() };
    }

    fn list(&mut self, reader: usize, opening: usize, count: usize) {
        let reader = &mut self.readers[reader];
        if reader.place == 0 {
            return;
        }
        let dir = reader.own.clone().unwrap_or_else(|| Arc::clone(&self.openings[opening]));
        let mut listed: Vec<DirEntry> = Vec::new();
        let mut is_refused = false;
        dir.list(reader.place, &mut |entry| {
            is_refused = listed.len() == count;
            if !is_refused {
                listed.push(entry);
            }
            !is_refused
        })
        .unwrap();
        for entry in listed {
            let name = entry.name.into_string().unwrap();
            if reader.own.is_none() {
                // What is in memory is what is there now.
                assert_eq!(self.names.get(&name), Some(&entry.ino), "{name} is listed and is not there");
            }
            reader.place = entry.next;
            assert!(reader.seen.insert(name.clone()), "{name} is listed twice");
        }
        if !is_refused {
            let missing: Vec<&String> = reader.stayed.difference(&reader.seen).collect();
            assert!(missing.is_empty(), "names are not listed: {missing:?}");
            *reader = Reader::default();
        }
    }

    fn make_step(&mut self, step: &Step) {
        match *step {
            Step::Make(number) => self.make(&name(number)),
            Step::Remove(number) => self.remove(&name(number)),
            Step::Rename(from, to) => self.rename(&name(from), &name(to), RenameFlags::empty()),
            Step::Exchange(one, other) => self.rename(&name(one), &name(other), RenameFlags::EXCHANGE),
            Step::MakeMany(from, count) => (from..from + count).for_each(|number| self.make(&name(number))),
            Step::RemoveMany(from, count) => {
                (from..from + count).for_each(|number| self.remove(&name(number)))
            }
            Step::Open(opening) => self.openings[opening] = self.store.open_dir(ROOT).unwrap(),
            Step::Begin(reader, opening) => self.begin(reader, opening),
            Step::List(reader, with, count) => self.list(reader, with, count),
        }
    }
}

/// A name that stays is listed once, whichever openings list it and whatever others change.
#[test]
fn each_name_that_stays_is_listed_once() {
    let config = ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(steps in steps())| {
        let mut model = Model::new();
        for step in &steps {
            model.make_step(step);
        }
        // All come to their ends.
        for reader in 0..READERS {
            model.list(reader, reader % OPENINGS, usize::MAX);
        }
        model.store.close();
    });
}

#[cfg(shuttle)]
#[test]
fn a_listing_that_is_not_true_is_caught() {
    let test = "listing::schedules::each_name_that_stays_is_listed_once";
    sync::mutant::assert_caught(test, &["listing-misses-changes"], "is listed");
}

fn part(room: &Arc<ListingRoom>, names: &[(u64, &str)]) -> Part {
    let mut part = Part::new(Arc::clone(room));
    for (hash, name) in names {
        part.insert_at(HashPlace(*hash), name.as_ref(), EntryRow { ino: 7, kind: Kind::Regular });
    }
    part.read = Read::All;
    part
}

/// Lists up to `count` names; returns them, and the place behind them.
fn take(part: &Part, place: HashPlace, twin: &mut Twin, count: usize) -> (Vec<String>, HashPlace) {
    let (mut names, mut behind) = (Vec::new(), place);
    part.give(place, twin, &mut |name, _, next| {
        let has_room = names.len() < count;
        if has_room {
            names.push(name.to_str().unwrap().to_owned());
            behind = next;
        }
        has_room
    });
    (names, behind)
}

#[test]
fn of_names_with_one_hash_none_is_left_out() {
    let room = Arc::default();
    let part = part(&room, &[(2, "a"), (4, "b"), (4, "c"), (4, "d"), (6, "e")]);
    for step in 1..=5 {
        let (mut twin, mut place, mut seen) = (None, HashPlace::START, Vec::new());
        for _ in 0..6 {
            let (names, behind) = take(&part, place, &mut twin, step);
            seen.extend(names);
            place = behind;
        }
        assert_eq!(seen, ["a", "b", "c", "d", "e"], "in steps of {step}");
    }
    // Another opening lists them again, and not those behind or before them.
    let (_, place) = take(&part, HashPlace::START, &mut None, 2);
    assert_eq!(take(&part, place, &mut None, 5).0, ["b", "c", "d", "e"]);
    let (_, place) = take(&part, HashPlace::START, &mut None, 4);
    assert_eq!(take(&part, place, &mut None, 5).0, ["e"]);
}

#[test]
fn parts_are_bounded_each_and_together() {
    let room: Arc<ListingRoom> = Arc::default();
    let names: Vec<(u64, String)> = (0..2 * NAMES_MAX as u64).map(|n| (2 * n, format!("{n}"))).collect();
    let names: Vec<(u64, &str)> = names.iter().rev().map(|(hash, name)| (*hash, name.as_str())).collect();
    let mut parts: Vec<Part> = (0..4).map(|_| part(&room, &names)).collect();
    for part in &parts {
        assert_eq!((part.names.len(), part.to), (NAMES_MAX, HashPlace(2 * NAMES_MAX as u64)));
    }
    // The others have all the room.
    let few = part(&room, &names);
    assert_eq!(few.names.len(), FEW_NAMES);
    assert_eq!(few.give(HashPlace::START, &mut None, &mut |_, _, _| true), Given::Until(few.to));
    parts.clear();
    drop(few);
    assert_eq!(part(&room, &names).names.len(), NAMES_MAX);
    assert_eq!(room.0.load(Ordering::Relaxed), 0, "what is gone has no room");
}

#[test]
fn a_place_is_told_from_one_that_counts_names() {
    for place in [HashPlace::START, HashPlace(1), HashPlace::END] {
        assert_eq!(HashPlace::of_offset(place.offset()), Some(place));
        assert!(i64::try_from(place.offset()).is_ok(), "the kernel takes it for one");
    }
    for counted in [0, 1, 2, 1 << 61, u64::MAX, 1 << 63, 3 << 62] {
        assert_eq!(HashPlace::of_offset(counted), None);
    }
    // The kernel keeps places from one program to the next.
    assert_eq!(HashPlace::of_name("name".as_ref()), HashPlace(0x2a3f_e130_4b52_33e8));
    assert!((0..1000).all(|n| HashPlace::of_name(format!("{n}").as_ref()).behind() <= HashPlace::END));
}
