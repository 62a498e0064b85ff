//! `upgrade` of volumes on object storage: the lease stays this process's.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;

use super::read_only::Reader;
use super::{LARGE, World, key_file, pattern};
use crate::rig::{Out, Rig, eventually, run};
use crate::upgrade::load::Load;
use crate::upgrade::{Pauses, counts, failing_program, is_open_still, next_program, upgrade, upgrade_by};

/// How often a volume is upgraded under load.
const UPGRADES: usize = 5;

#[test]
fn programs_notice_a_pause_and_nothing_else() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("uring=off,dirty_after=1h");
    let holder = world.info()["holder"].clone();
    let load = Load::start(&world.rig.mnt);
    let mut pauses = Pauses::default();
    for n in 1..=Pauses::wanted(UPGRADES) {
        load.step();
        upgrade(&world.rig, &["--max-pause", "60s"]).ok().says("requests waited");
        assert_eq!(counts(&world.rig), (n, 0), "{}", daemon.stderr());
        pauses.note(&world.rig.volume());
        load.check();
    }
    println!("{}", pauses.summary("upgrades under load of a volume in a bucket"));
    load.finish();
    let now = world.info()["holder"].clone();
    assert_eq!((&now["pid"], &now["mountpoint"]), (&holder["pid"], &holder["mountpoint"]));
    world.mount_elsewhere(&world.url, "").ends(1, &format!("process {}", daemon.pid));
    world.umount(&daemon);
    let daemon = world.mount("uring=off");
    load.is_in(&world.rig.mnt);
    world.umount(&daemon);
}

#[test]
fn what_was_open_is_open_still_and_what_has_no_name_is_gone_afterwards() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("uring=off,dirty_after=1h");
    is_open_still(&world.rig);
    // A file without a name gets its first one.
    let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    let made = rustix::fs::open(&world.rig.mnt, flags, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR);
    let mut made = File::from(made.unwrap());
    made.write_all(b"made").unwrap();
    upgrade(&world.rig, &[]).ok();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&made));
    let (cwd, follow) = (rustix::fs::CWD, rustix::fs::AtFlags::SYMLINK_FOLLOW);
    rustix::fs::linkat(cwd, path, cwd, world.path("made"), follow).unwrap();
    drop(made);
    assert_eq!(fs::read(world.path("made")).unwrap(), b"made");
    let used = || rustix::fs::statvfs(&world.rig.mnt).unwrap();
    eventually("files without names are gone", || used().f_files - used().f_ffree <= 5);
    world.umount(&daemon);
    let daemon = world.mount("uring=off");
    assert_eq!(fs::read(world.path("log")).unwrap(), b"one\nmore\nmore\nmore\n");
    assert!(!world.path("gone").exists());
    world.umount(&daemon);
}

/// `rm -r` removes what it has listed, and goes on where it was.
#[test]
fn a_directory_that_is_read_goes_on_where_it_was() {
    const NAMES: usize = 3000;
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("uring=off");
    fs::create_dir(world.path("dir")).unwrap();
    for n in 0..NAMES {
        File::create(world.path(&format!("dir/a-name-that-is-long-enough-for-several-readings-{n}")))
            .unwrap();
    }
    let mut seen = 0;
    let mut listing = fs::read_dir(world.path("dir")).unwrap();
    for entry in listing.by_ref() {
        fs::remove_file(entry.unwrap().path()).unwrap();
        seen += 1;
        if seen % 700 == 1 {
            upgrade(&world.rig, &[]).ok();
        }
    }
    drop(listing);
    assert_eq!(seen, NAMES);
    fs::remove_dir(world.path("dir")).unwrap();
    world.umount(&daemon);
}

#[test]
fn a_volume_with_a_journal_and_a_disk_cache_is_upgraded_and_a_snapshot_is_refused() {
    let Some(mut world) = World::new() else { return };
    let [journal, cache] = ["journal", "cache"].map(|name| world.rig.root.join(name));
    fs::create_dir(&journal).unwrap();
    let options = format!("uring=off,dirty_after=1h,fsync_to=host,journal={}", journal.display());
    let daemon = world.mount(&format!("{options},disk_cache={}", cache.display()));
    fs::write(world.path("file"), pattern(LARGE)).unwrap();
    let mnt = world.rig.mnt.to_str().unwrap().to_owned();
    world.rig.run(&["snapshot", "create", &mnt, "first"]).ok();
    let mut file = File::create(world.path("synced")).unwrap();
    for round in 0..3_u8 {
        file.write_all(&[round]).unwrap();
        file.sync_all().unwrap();
        fs::write(world.path("dirty"), [round]).unwrap();
        upgrade(&world.rig, &[]).ok();
        assert_eq!(fs::read(world.path("dirty")).unwrap(), [round]);
    }
    assert_eq!(fs::read(world.path("file")).unwrap(), pattern(LARGE));
    let reader = Reader::with(&mut world, "reader", "uring=off,snapshot=first");
    let (at, runtime) = (world.rig.root.join("reader"), world.rig.root.join("run-reader"));
    upgrade_at(&world, &at, &runtime).ends(1, "it only reads a volume on object storage");
    assert_eq!(reader.read("file").unwrap(), pattern(LARGE));
    reader.umount(&world);
    // What is synced to this host alone is there after a kill as well.
    file.write_all(&[3]).unwrap();
    file.sync_all().unwrap();
    daemon.kill();
    world.rig.verb("umount", &[]);
    let daemon = world.mount(&options);
    assert_eq!(fs::read(world.path("synced")).unwrap(), [0, 1, 2, 3]);
    fs::remove_dir_all(&cache).unwrap();
    world.umount(&daemon);
}

fn upgrade_at(world: &World, at: &Path, runtime: &Path) -> Out {
    let mut command = world.rig.command(&["upgrade", "--program"]);
    command.arg(next_program(&world.rig)).arg(at).env("WATERTIGHT_RUNTIME_DIR", runtime);
    run(command)
}

/// The program before takes the volume back; nobody else could have it meanwhile.
#[test]
fn a_program_that_fails_while_it_takes_over_gives_the_volume_back() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("uring=off,dirty_after=1h");
    // It does not find the volume.
    let failing = failing_program(&world.rig, b"a Watertight volume", b"a Watertight v0lume");
    let mut file = File::create(world.path("file")).unwrap();
    for n in 1..=2 {
        file.write_all(b".").unwrap();
        upgrade_by(&world.rig, &failing).ends(1, "the old one goes on");
        assert_eq!(counts(&world.rig), (0, n), "{}", daemon.stderr());
        world.mount_elsewhere(&world.url, "").ends(1, &format!("process {}", daemon.pid));
    }
    upgrade(&world.rig, &[]).ok();
    file.write_all(b"!").unwrap();
    drop(file);
    world.umount(&daemon);
    let daemon = world.mount("uring=off");
    assert_eq!(fs::read(world.path("file")).unwrap(), b"..!");
    world.umount(&daemon);
}

/// The same where the volume was opened, and one that is attached to it cannot be: nothing was closed.
#[test]
fn a_program_that_opens_only_a_part_gives_all_of_it_back() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("uring=off,dirty_after=1h");
    let other = world.rig.root.join("other");
    fs::create_dir(&other).unwrap();
    fs::create_dir(world.path("x")).unwrap();
    let at = world.path("x");
    world.rig.run(&["attach", other.to_str().unwrap(), at.to_str().unwrap()]).ok();
    // A directory's store does not find its descriptors.
    let failing = failing_program(&world.rig, b"/proc/self/fd\0", b"/proc/no/such\0");
    let mut files = [world.path("file"), at.join("file")].map(|path| File::create(path).unwrap());
    let counts = || {
        let status = world.rig.status();
        let volumes = status["volumes"].as_array().unwrap().clone();
        let root = volumes.into_iter().find(|volume| volume["attached_to"].is_null()).unwrap();
        (root["upgrades"]["count"].as_u64().unwrap(), root["upgrades"]["failed"].as_u64().unwrap())
    };
    for n in 1..=3 {
        files.iter_mut().for_each(|file| file.write_all(b".").unwrap());
        upgrade_by(&world.rig, &failing).ends(1, "the old one goes on");
        assert_eq!(counts(), (0, n), "{}", daemon.stderr());
    }
    upgrade(&world.rig, &[]).ok();
    files.iter_mut().for_each(|file| file.write_all(b"!").unwrap());
    drop(files);
    world.umount(&daemon);
    assert_eq!(fs::read(other.join("file")).unwrap(), b"...!");
    let daemon = world.mount("uring=off");
    assert_eq!(fs::read(world.path("file")).unwrap(), b"...!");
    world.umount(&daemon);
}

/// Refused before anything is touched: neither program could open the volume any more.
#[test]
fn a_key_that_is_not_there_any_more_has_it_refused() {
    let Some(rig) = Rig::mounting() else { return };
    let key = key_file(&rig, "key", "a1");
    let mut world = World::of(rig, &["--encrypt-key-file", &key]);
    let daemon = world.mount(&format!("uring=off,dirty_after=1h,encrypt-key-file={key}"));
    fs::write(world.path("file"), "secret").unwrap();
    fs::rename(&key, format!("{key}-moved")).unwrap();
    upgrade(&world.rig, &[]).ends(1, "another program could not open").ends(1, "key");
    let other = key_file(&world.rig, "key", "b2");
    upgrade(&world.rig, &[]).ends(1, "the key file does not fit this volume");
    fs::remove_file(other).unwrap();
    fs::rename(format!("{key}-moved"), &key).unwrap();
    assert_eq!(counts(&world.rig), (0, 0));
    upgrade(&world.rig, &[]).ok();
    assert_eq!(fs::read(world.path("file")).unwrap(), b"secret");
    world.umount(&daemon);
}
