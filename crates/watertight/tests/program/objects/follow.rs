//! Mounts that only read, and follow the holder.

use std::fs;
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use super::read_only::{Reader, world, write};
use super::{LARGE, pattern};
use crate::rig::eventually;

const FOLLOW: &str = "ro,follow=200ms";

#[test]
fn a_reader_sees_what_the_holder_commits() {
    let Some((mut world, _)) = world() else { return };
    let holder = world.mount("dirty_after=1h");
    write(&world.path("file"), b"first");
    write(&world.path("removed"), &pattern(LARGE));
    let reader = Reader::with(&mut world, "reader", FOLLOW);
    let at = |name: &str| reader.mnt.join(name);
    let open = fs::File::open(at("file")).unwrap();
    let removed = fs::File::open(at("removed")).unwrap();
    assert_eq!(fs::read(at("file")).unwrap(), b"first");

    // Data, through a file that is open there as well.
    write(&world.path("file"), b"second, and longer");
    let seen = || {
        let mut data = [0; 64];
        let len = open.read_at(&mut data, 0).unwrap();
        data[..len].to_vec()
    };
    eventually("the reader follows", || seen() == b"second, and longer");
    assert_eq!(fs::read(at("file")).unwrap(), b"second, and longer");

    // Names, and attributes.
    fs::create_dir(world.path("dir")).unwrap();
    write(&world.path("dir/new"), b"new");
    fs::set_permissions(world.path("file"), std::os::unix::fs::PermissionsExt::from_mode(0o640)).unwrap();
    fs::remove_file(world.path("removed")).unwrap();
    world.rig.verb("sync", &[]).ok();
    eventually("the reader follows", || fs::read(at("dir/new")).is_ok_and(|data| data == b"new"));
    eventually("the reader follows", || !at("removed").exists());
    let mode = || std::os::unix::fs::MetadataExt::mode(&fs::metadata(at("file")).unwrap());
    eventually("the reader follows", || mode() & 0o777 == 0o640);
    let names = || fs::read_dir(&reader.mnt).unwrap().count();
    assert_eq!(names(), 2);
    let mut data = Vec::new();
    (&removed).read_to_end(&mut data).unwrap();
    assert!(data == pattern(LARGE), "a file that is open there can be read");

    // From holder to holder.
    world.umount(&holder);
    assert_eq!(seen(), b"second, and longer");
    let holder = world.mount("");
    write(&world.path("file"), b"third");
    eventually("the reader follows", || seen() == b"third");
    let said = reader.status(&world);
    let following = &said["store_requests"]["following"];
    assert_eq!(following["every_ms"], 200, "{said}");
    assert!(following["age_ms"].is_u64(), "{said}");
    let error = fs::write(at("x"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    drop((open, removed));
    reader.umount(&world);
    world.umount(&holder);
}

/// A file that the holder replaces again and again by renames is always there, and whole.
#[test]
fn a_change_is_seen_whole() {
    let Some((mut world, _)) = world() else { return };
    let holder = world.mount("");
    write(&world.path("current"), &[b'0'; 5000]);
    // What it keeps on disk is of objects, not of files.
    let cached = format!("{FOLLOW},disk_cache={}", world.rig.root.join("cache").display());
    let reader = Reader::with(&mut world, "reader", &cached);
    let (begun, mut versions) = (Instant::now(), std::collections::BTreeSet::new());
    for round in 0..u8::MAX {
        write(&world.path("next"), &[b'1' + round % 9; 5000]);
        fs::rename(world.path("next"), world.path("current")).unwrap();
        fs::File::open(&world.rig.mnt).unwrap().sync_all().unwrap();
        let data = fs::read(reader.mnt.join("current"));
        // The kernel may have the name of one that was replaced: it asks again.
        let data = data.unwrap();
        assert_eq!(data.len(), 5000);
        assert!(data.iter().all(|byte| *byte == data[0]), "parts of two versions");
        versions.insert(data[0]);
        if begun.elapsed() > Duration::from_secs(3) && versions.len() > 2 {
            break;
        }
    }
    assert!(versions.len() > 2, "it was not followed: {versions:?}");
    reader.umount(&world);
    world.umount(&holder);
}

#[test]
fn follow_is_for_a_mount_that_reads() {
    let Some((world, _)) = world() else { return };
    let follow = |options: &str| world.mount_elsewhere(&world.url, options);
    follow("follow=1s").ends(2, "give ro as well");
    follow("ro,follow=0").ends(2, "from 200ms to 1h");
    follow("snapshot=a,follow=1s").ends(2, "a snapshot stays as it is");
    world.mount_elsewhere("memory://x", "ro,follow=1s").ends(2, "that others write");
}
