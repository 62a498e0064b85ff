//! Listings of volumes on object storage, whose places are an opening's own.

use std::collections::BTreeSet;
use std::fs::{self, DirEntry, File};

use super::World;

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
