//! `upgrade` of a mountpoint inside which other volumes are attached.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;
use serde_json::Value;

use super::load::Load;
use super::{Pauses, failing_program, mounted, upgrade, upgrade_by};
use crate::rig::{Daemon, Out, Rig, eventually, umount2};

const UPGRADES: usize = 5;

/// A mountpoint with a store that is attached at `x`.
struct World {
    rig: Rig,
    daemon: Daemon,
    other: PathBuf,
}

impl World {
    fn new(options: &str, of_attached: &str) -> Option<Self> {
        let (rig, daemon) = mounted(options)?;
        let other = rig.root.join("other");
        fs::create_dir(&other).unwrap();
        fs::create_dir(rig.mnt.join("x")).unwrap();
        let world = Self { rig, daemon, other };
        world.run(&["attach", "-o", of_attached, world.other.to_str().unwrap(), world.at("x")]).ok();
        Some(world)
    }

    fn path(&self, path: &str) -> PathBuf {
        self.rig.mnt.join(path)
    }

    fn at(&self, path: &str) -> &str {
        Box::leak(self.path(path).into_boxed_path()).to_str().unwrap()
    }

    fn run(&self, arguments: &[&str]) -> Out {
        self.rig.run(arguments)
    }

    /// The status of the volumes that `is` says yes to.
    fn volume(&self, is: impl Fn(&Value) -> bool) -> Value {
        let status = self.rig.status();
        status["volumes"].as_array().unwrap().iter().find(|volume| is(volume)).cloned().unwrap_or_default()
    }

    fn attached(&self, path: &str) -> Value {
        let at = self.path(path);
        self.volume(|volume| volume["mountpoint"] == at.to_str().unwrap())
    }

    fn root(&self) -> Value {
        self.volume(|volume| volume["attached_to"].is_null())
    }

    fn counts(&self) -> (u64, u64) {
        let root = self.root();
        let upgrades = &root["upgrades"];
        (upgrades["count"].as_u64().unwrap(), upgrades["failed"].as_u64().unwrap())
    }

    fn umount(self) -> Rig {
        self.rig.verb("umount", &[]).ok();
        assert_eq!(self.daemon.end(), Some(0), "{}", self.daemon.stderr());
        self.rig.is_quiet();
        self.rig
    }
}

#[test]
fn programs_on_it_notice_a_pause_and_nothing_else() {
    let Some(world) = World::new("dirty_after=1h,", "dirty_after=1h,limit=/a:wbps=1M") else { return };
    let before = world.attached("x");
    let load = Load::start(&world.path("x"));
    let mut pauses = Pauses::default();
    for n in 1..=Pauses::wanted(UPGRADES) {
        load.step();
        upgrade(&world.rig, &["--max-pause", "60s"]).ok().says("requests waited");
        assert_eq!(world.counts(), (n, 0), "{}", world.daemon.stderr());
        pauses.note(&world.root());
        load.check();
    }
    println!("{}", pauses.summary("upgrades under load on an attached volume"));
    load.finish();
    let after = world.attached("x");
    for key in ["id", "source", "started_ms", "attached_to", "state", "read_only"] {
        assert_eq!(after[key], before[key], "{key}");
    }
    world.run(&["limit", "--show", "--json", world.at("x")]).ok().says("1048576");
    // Its own socket answers.
    let id = after["id"].as_str().unwrap();
    world.run(&["sync", id]).ok();
    world.run(&["detach", world.at("x")]).ok().says("everything is on dir:");
    world.run(&["wait", id]).ok().says("free");
    load.is_in(&world.other);
    assert_eq!(fs::read_dir(world.path("x")).unwrap().count(), 0, "what is below is seen again");
    // Another one can be attached there, now and by the next program.
    for _ in 0..2 {
        world.run(&["attach", world.other.to_str().unwrap(), world.at("x")]).ok();
        load.is_in(&world.path("x"));
        world.run(&["detach", world.at("x")]).ok();
        upgrade(&world.rig, &[]).ok();
    }
    world.umount();
}

/// A volume inside another one, a directory in a second place, one volume in two places, and one on top
/// of another.
#[test]
fn where_things_are_they_stay() {
    let Some(world) = World::new("dirty_after=1h,", "dirty_after=1h") else { return };
    let make = |name: &str| {
        let store = world.rig.root.join(name);
        fs::create_dir(&store).unwrap();
        fs::write(store.join("name"), name).unwrap();
        store
    };
    let (deep, top) = (make("deep"), make("top"));
    for dir in ["x/inside", "x/inside/a", "shown", "again", "lone"] {
        fs::create_dir(world.path(dir)).unwrap();
    }
    fs::write(world.path("x/inside/a/file"), "a").unwrap();
    let attach = |what: &Path, at: &str| world.run(&["attach", what.to_str().unwrap(), world.at(at)]).ok();
    // A part of the attached volume in another place, and the volume itself once more.
    attach(&world.path("x/inside"), "shown");
    attach(&world.other, "again");
    attach(&deep, "x/inside");
    attach(&top, "x/inside");
    attach(&world.path("shown"), "lone");
    // Twice, one on the other.
    attach(&world.path("shown"), "lone");
    let inode = |path: &str| fs::metadata(world.path(path)).unwrap().ino();
    let (of_deep, of_shown) = (inode("x/inside/name"), inode("shown/a/file"));
    for round in 1..=3_u64 {
        upgrade(&world.rig, &[]).ok();
        assert_eq!(world.counts(), (round, 0), "{}", world.daemon.stderr());
        assert_eq!(fs::read_to_string(world.path("x/inside/name")).unwrap(), "top");
        assert_eq!((inode("x/inside/name"), inode("shown/a/file")), (of_deep, of_shown));
        for place in ["shown/a/file", "again/inside/a/file", "lone/a/file"] {
            assert_eq!(fs::read_to_string(world.path(place)).unwrap(), "a", "{place}, {round}");
        }
        // What is made in one place is seen in the other.
        let (made, seen) = (format!("shown/{round}"), format!("again/inside/{round}"));
        assert!(!world.path(&seen).exists());
        fs::write(world.path(&made), "made").unwrap();
        assert_eq!(fs::read_to_string(world.path(&seen)).unwrap(), "made");
    }
    // A directory to which something is attached cannot be removed, nor its name taken.
    let busy = fs::remove_dir(world.path("again")).unwrap_err().kind();
    assert_eq!(busy, std::io::ErrorKind::ResourceBusy);
    fs::create_dir(world.path("moved")).unwrap();
    world.run(&["move", world.at("shown"), world.at("moved")]).ok();
    upgrade(&world.rig, &[]).ok();
    assert_eq!(fs::read_to_string(world.path("moved/a/file")).unwrap(), "a");
    world.run(&["detach", world.at("x/inside")]).ok().says("everything is on dir:");
    assert_eq!(fs::read_to_string(world.path("x/inside/name")).unwrap(), "deep");
    let rig = world.umount();
    assert_eq!(fs::read_to_string(rig.root.join("other/inside/2")).unwrap(), "made");
}

/// No number that a process may still have leads into another volume, however often the program changes
/// while nothing is attached.
#[test]
fn numbers_are_not_given_again() {
    let Some(world) = World::new("", "") else { return };
    let gone = rustix::fs::open(
        world.path("x"),
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    );
    let gone = gone.unwrap();
    world.run(&["detach", "--lazy", world.at("x")]).ok();
    eventually("it has ended", || world.attached("x").is_null());
    upgrade(&world.rig, &[]).ok();
    upgrade(&world.rig, &[]).ok();
    let another = world.rig.root.join("another");
    fs::create_dir(&another).unwrap();
    fs::write(another.join("secret"), "").unwrap();
    world.run(&["attach", another.to_str().unwrap(), world.at("x")]).ok();
    let flags = rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::openat(&gone, ".", flags, rustix::fs::Mode::empty());
    assert!(opened.is_err(), "a process that was in the old volume is in the new one");
    assert!(world.path("x/secret").exists());
    drop(gone);
    world.umount();
}

/// Open files and directories keep a volume that no path leads to; its end comes with the last of them.
#[test]
fn one_that_was_detached_and_is_held_goes_on() {
    let Some(world) = World::new("", "dirty_after=1h") else { return };
    fs::create_dir(world.path("x/dir")).unwrap();
    (0..100).for_each(|n| fs::write(world.path(&format!("x/dir/{n}")), "").unwrap());
    let mut file = OpenOptions::new();
    let mut file = file.read(true).write(true).create_new(true).open(world.path("x/file")).unwrap();
    file.write_all(b"before").unwrap();
    let mut dir = fs::read_dir(world.path("x/dir")).unwrap();
    let first = dir.next().unwrap().unwrap().file_name();
    let id = world.attached("x")["id"].as_str().unwrap().to_owned();
    world.run(&["detach", "--lazy", world.at("x")]).ok();
    for round in 0..3 {
        upgrade(&world.rig, &[]).ok();
        let held = world.volume(|volume| volume["id"] == *id);
        assert_eq!(held["state"], "detached", "{round}: {held}");
        file.write_all(b"!").unwrap();
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, format!("before{}", "!".repeat(round + 1)));
    }
    let rest: Vec<_> = dir.map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(rest.len(), 99, "each name once");
    assert!(!rest.contains(&first));
    world.run(&["wait", &id, "--timeout", "0"]).ends(1, "not yet");
    drop(file);
    world.run(&["wait", &id]).ok().says("free");
    assert_eq!(fs::read(world.other.join("file")).unwrap(), b"before!!!");
    // It can be attached again.
    world.run(&["attach", world.other.to_str().unwrap(), world.at("x")]).ok();
    world.umount();
}

#[test]
fn an_unmount_afterwards_takes_all_along() {
    let Some(world) = World::new("dirty_after=1h,", "dirty_after=1h") else { return };
    fs::write(world.path("x/before"), "before").unwrap();
    upgrade(&world.rig, &[]).ok();
    fs::write(world.path("x/after"), "after").unwrap();
    if world.root()["mount_type"] == "fuseblk" {
        umount2(&world.rig.mnt, UnmountFlags::empty());
        assert_eq!(fs::read(world.other.join("after")).unwrap(), b"after", "umount2 has returned");
    } else {
        world.rig.verb("umount", &[]).ok();
    }
    assert_eq!(world.daemon.end(), Some(0), "{}", world.daemon.stderr());
    for name in ["before", "after"] {
        assert_eq!(fs::read_to_string(world.other.join(name)).unwrap(), name);
    }
    // Its store is free.
    world.rig.run(&["mount", "-d", world.other.to_str().unwrap(), world.rig.mnt.to_str().unwrap()]).ok();
    world.rig.verb("umount", &[]).ok();
}

#[test]
fn a_program_that_fails_gives_all_of_it_back() {
    let Some(world) = World::new("", "dirty_after=1h") else { return };
    let failing = failing_program(&world.rig, b"/proc/self/fd\0", b"/proc/no/such\0");
    let file = File::create(world.path("x/file")).unwrap();
    for n in 1..=3 {
        file.write_all_at(b".", n - 1).unwrap();
        upgrade_by(&world.rig, &failing).ends(1, "the old one goes on");
        assert_eq!(world.counts(), (0, n), "{}", world.daemon.stderr());
    }
    drop(file);
    upgrade(&world.rig, &[]).ok();
    assert_eq!(world.counts(), (1, 3));
    world.run(&["detach", world.at("x")]).ok();
    assert_eq!(fs::read(world.other.join("file")).unwrap(), b"...");
    world.umount();
}

/// A store that cannot be handed over is named, and nothing is touched.
#[test]
fn one_that_cannot_be_handed_over_is_named() {
    let Some(world) = World::new("", "dirty_after=1h") else { return };
    fs::create_dir(world.path("y")).unwrap();
    world.run(&["attach", "mem:", world.at("y")]).ok();
    fs::write(world.path("x/file"), "file").unwrap();
    upgrade(&world.rig, &[]).ends(1, "/y, which is attached: only volumes in directories");
    assert_eq!(world.counts(), (0, 0));
    assert_eq!(fs::metadata(world.other.join("file")).map_or(0, |file| file.len()), 0, "nothing was touched");
    world.run(&["detach", world.at("y")]).ok();
    upgrade(&world.rig, &[]).ok();
    assert_eq!(world.counts(), (1, 0));
    world.umount();
}

/// A volume on object storage keeps its lease.
#[test]
fn one_on_object_storage_goes_on() {
    let Some(world) = World::new("", "dirty_after=1h") else { return };
    let bucket = world.rig.root.join("bucket");
    fs::create_dir(&bucket).unwrap();
    let url = format!("file://{}/volume", bucket.display());
    world.run(&["format", &url]).ok();
    fs::create_dir(world.path("y")).unwrap();
    world.run(&["attach", "-o", "dirty_after=1h", &url, world.at("y")]).ok();
    let mut file = File::create(world.path("y/file")).unwrap();
    for _ in 0..3 {
        file.write_all(b"+").unwrap();
        upgrade(&world.rig, &[]).ok();
    }
    let second = world.rig.root.join("second");
    fs::create_dir(&second).unwrap();
    let pid = format!("process {}", world.daemon.pid);
    world.run(&["mount", &url, second.to_str().unwrap()]).ends(1, &pid);
    file.write_all(b"!").unwrap();
    drop(file);
    world.run(&["detach", world.at("y")]).ok();
    world.run(&["mount", "-d", &url, second.to_str().unwrap()]).ok();
    assert_eq!(fs::read(second.join("file")).unwrap(), b"+++!");
    world.run(&["umount", second.to_str().unwrap()]).ok();
    eventually("the volume at x is there", || world.attached("x")["state"] == "active");
    world.umount();
}
