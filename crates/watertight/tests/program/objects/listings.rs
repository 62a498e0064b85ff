//! Listings of volumes on object storage: whatever of them the kernel remembers, and whichever opening it
//! asks for the rest.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};
use std::io::{Seek as _, SeekFrom};
use std::mem::MaybeUninit;

use rustix::fs::RawDir;

use super::World;
use crate::rig::{Rig, eventually};
use crate::upgrade::upgrade;

const NAMES: usize = 2000;

fn name_of(entry: std::io::Result<DirEntry>) -> String {
    entry.unwrap().file_name().into_string().unwrap()
}

/// What the kernel remembers of a directory it drops when that changes, and at will: a program that is in
/// the middle of it sees each name that stays once, whatever others make and remove meanwhile.
#[test]
fn each_name_that_stays_is_listed_once_whatever_the_kernel_remembers() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("");
    let dir = world.path("dir");
    fs::create_dir(&dir).unwrap();
    // A name is so long that a listing takes many answers.
    let name = |n: usize| format!("{n:05}-{}", "x".repeat(60));
    (0..NAMES).for_each(|n| drop(File::create(dir.join(name(n))).unwrap()));
    for round in 0..4 {
        // All of it is listed once, so that the kernel may remember it.
        assert_eq!(fs::read_dir(&dir).unwrap().count(), NAMES - round);
        let mut listing = fs::read_dir(&dir).unwrap();
        let mut seen: Vec<String> = listing.by_ref().take(NAMES / 2).map(name_of).collect();
        // It changes, before and behind that place, and another program begins to list it.
        fs::remove_file(dir.join(name(round))).unwrap();
        fs::write(dir.join("zzz"), "").unwrap();
        fs::remove_file(dir.join("zzz")).unwrap();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), NAMES - round - 1);
        seen.extend(listing.map(name_of));
        let different: BTreeSet<&String> = seen.iter().collect();
        assert_eq!(different.len(), seen.len(), "round {round}: a name is there twice");
        let missing: Vec<usize> = (round + 1..NAMES).filter(|n| !different.contains(&name(*n))).collect();
        assert!(missing.is_empty(), "round {round}: {} are missing, from {}", missing.len(), missing[0]);
    }
    world.umount(&daemon);
}

/// How many answers to readings of directories the mount process has given.
fn readings(world: &World) -> u64 {
    let out = world.rig.verb("stats", &["--json"]).ok();
    let stats: serde_json::Value = serde_json::from_str(&out.stdout).unwrap();
    stats["operations"]["readdir"]["count"].as_u64().unwrap_or(0)
}

#[test]
fn the_kernel_remembers_a_listing_until_the_directory_changes() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("");
    let dir = world.path("dir");
    fs::create_dir(&dir).unwrap();
    (0..NAMES).for_each(|n| drop(File::create(dir.join(n.to_string())).unwrap()));
    let list = || fs::read_dir(&dir).unwrap().count();
    for round in 0..3 {
        let before = readings(&world);
        assert_eq!(list(), NAMES + round);
        // A request is counted after its answer.
        let mut asked = 0;
        eventually("it is read", || {
            let now = readings(&world);
            now > before && std::mem::replace(&mut asked, now) == now
        });
        for _ in 0..5 {
            assert_eq!(list(), NAMES + round);
        }
        assert_eq!(readings(&world), asked, "round {round}: it is read again");
        File::create(dir.join(format!("new-{round}"))).unwrap();
    }
    world.umount(&daemon);
}

/// Random numbers, the same each time.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

/// A program that lists a directory, and asks any opening of it.
#[derive(Default)]
struct Reader {
    place: u64,
    /// Names that were there from its beginning on.
    stayed: BTreeSet<String>,
    seen: BTreeSet<String>,
}

/// Names that are read with one call, each with the place behind it.
fn read_at(opening: &mut File, place: u64, buffer: &mut [MaybeUninit<u8>]) -> Vec<(String, u64)> {
    opening.seek(SeekFrom::Start(place)).unwrap();
    let mut listing = RawDir::new(opening, buffer);
    let mut names = Vec::new();
    while let Some(entry) = listing.next() {
        let entry = entry.unwrap();
        names.push((entry.file_name().to_str().unwrap().to_owned(), entry.next_entry_cookie()));
        if listing.is_buffer_empty() {
            break;
        }
    }
    names
}

impl Reader {
    /// Reads once, and takes some of it.
    fn read(&mut self, opening: &mut File, random: &mut Random) {
        let mut buffer = [MaybeUninit::uninit(); 8192];
        let size = 1024 << random.below(4);
        let mut names = read_at(opening, self.place, &mut buffer[..size]);
        if names.is_empty() {
            let missing: Vec<&String> = self.stayed.difference(&self.seen).collect();
            assert!(missing.is_empty(), "{} names are not listed, from {}", missing.len(), missing[0]);
            *self = Self::default();
            return;
        }
        names.truncate(1 + random.below(names.len()));
        for (name, next) in names {
            self.place = next;
            assert!(self.seen.insert(name.clone()), "{name} is listed twice");
        }
    }
}

/// Openings of a directory take turns in the listings of several programs, while its names change, and
/// other programs serve the mount.
#[test]
fn a_place_means_the_same_in_every_opening_and_to_every_server() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("uring=off");
    openings_take_turns(&world.rig);
    world.umount(&daemon);
}

fn openings_take_turns(rig: &Rig) {
    const NAMES: usize = 1500;
    const ROUNDS: usize = 1200;
    let dir = rig.mnt.join("dir");
    fs::create_dir(&dir).unwrap();
    let name = |n: usize| format!("{n:05}-{}", "x".repeat(40));
    let mut names: BTreeSet<String> = (0..NAMES).step_by(2).map(name).collect();
    names.iter().for_each(|name| drop(File::create(dir.join(name)).unwrap()));
    let open = || File::open(&dir).unwrap();
    let mut openings: Vec<File> = (0..4).map(|_| open()).collect();
    let mut readers: Vec<Reader> = (0..4).map(|_| Reader::default()).collect();
    let mut random = Random(0x5eed_5eed_5eed_5eed);
    for round in 1..=ROUNDS {
        let some = name(random.below(NAMES));
        match random.below(12) {
            0 if names.insert(some.clone()) => drop(File::create(dir.join(&some)).unwrap()),
            1 if names.remove(&some) => {
                fs::remove_file(dir.join(&some)).unwrap();
                for reader in &mut readers {
                    reader.stayed.remove(&some);
                }
            }
            2 if names.remove(&some) => {
                let to = name(random.below(NAMES));
                fs::rename(dir.join(&some), dir.join(&to)).unwrap();
                names.insert(to);
                for reader in readers.iter_mut().filter(|_| !names.contains(&some)) {
                    reader.stayed.remove(&some);
                }
            }
            // The kernel may remember it from here on.
            3 => {
                let listed: BTreeSet<String> = fs::read_dir(&dir).unwrap().map(name_of).collect();
                assert!(listed == names, "round {round}: a new opening lists what is there");
            }
            4 => openings[random.below(4)] = open(),
            _ => {
                let reader = &mut readers[random.below(4)];
                if reader.place == 0 {
                    *reader = Reader { stayed: names.clone(), ..Reader::default() };
                }
                reader.read(&mut openings[random.below(4)], &mut random);
            }
        }
        if round % 300 == 0 {
            upgrade(rig, &[]).ok();
        }
    }
}
