//! `upgrade` of a mountpoint that is shown at a second one as well.

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::UnmountFlags;
use serde_json::Value;

use super::{failing_program, mounted, next_program, upgrade, upgrade_by};
use crate::rig::{Daemon, LONG, Out, Rig, eventually, skipped, umount2, wait};

/// A mountpoint, a clone of it, and two more stores.
struct World {
    rig: Rig,
    daemon: Daemon,
    second: PathBuf,
    stores: [PathBuf; 2],
}

impl World {
    /// With `x` attached before it is cloned, and `y` in the clone.
    fn new(propagation: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            skipped("only root may show a clone");
            return None;
        }
        let (rig, daemon) = mounted("dirty_after=1h,")?;
        let second = rig.root.join("second");
        let stores = ["one", "two"].map(|name| rig.root.join(name));
        for dir in stores.iter().chain([&second]) {
            fs::create_dir(dir).unwrap();
        }
        for dir in ["x", "y", "z"] {
            fs::create_dir(rig.mnt.join(dir)).unwrap();
        }
        for store in &stores {
            fs::write(store.join("name"), store.file_name().unwrap().as_encoded_bytes()).unwrap();
        }
        let world = Self { rig, daemon, second, stores };
        world.attach(&world.stores[0], &world.first("x")).ok();
        let how = format!("--propagation={propagation}");
        world.rig.verb("clone", &[&how, world.second.to_str().unwrap()]).ok();
        world.attach(&world.stores[1], &world.second("y")).ok();
        Some(world)
    }

    fn attach(&self, what: &Path, at: &Path) -> Out {
        self.rig.run(&["attach", what.to_str().unwrap(), at.to_str().unwrap()])
    }

    fn detach(&self, at: &Path) -> Out {
        self.rig.run(&["detach", at.to_str().unwrap()])
    }

    fn first(&self, path: &str) -> PathBuf {
        self.rig.mnt.join(path)
    }

    fn second(&self, path: &str) -> PathBuf {
        self.second.join(path)
    }

    fn root(&self) -> Value {
        let status = self.rig.status();
        let volumes = status["volumes"].as_array().unwrap();
        volumes.iter().find(|volume| volume["attached_to"].is_null()).unwrap().clone()
    }

    fn clones(&self) -> Value {
        self.root()["clones"].clone()
    }

    fn counts(&self) -> (u64, u64) {
        let upgrades = &self.root()["upgrades"];
        (upgrades["count"].as_u64().unwrap(), upgrades["failed"].as_u64().unwrap())
    }

    fn volumes(&self) -> usize {
        self.rig.status()["volumes"].as_array().unwrap().len()
    }

    fn umount(self) {
        self.rig.verb("umount", &[]).ok();
        assert_eq!(self.daemon.end(), Some(0), "{}", self.daemon.stderr());
        self.rig.is_quiet();
    }
}

/// A clone shows what it showed, and goes on to see, and to be seen, as before.
#[test]
fn what_a_clone_sees_and_who_sees_it_stays() {
    for (propagation, sees, is_seen) in
        [("shared", true, true), ("slave", true, false), ("private", false, false)]
    {
        let Some(world) = World::new(propagation) else { return };
        let mut open = File::open(world.second("x/name")).unwrap();
        let mut listed = fs::read_dir(&world.second).unwrap();
        let mut inside =
            Command::new("cat").current_dir(world.second("y")).stdin(Stdio::piped()).spawn().unwrap();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let inodes =
            || [world.first("x/name"), world.second("x/name"), world.second("y/name")].map(|at| inode(&at));
        let (before, shown) = (inodes(), world.clones());
        for round in 1..=3 {
            fs::write(world.second("x/written"), round.to_string()).unwrap();
            // By either mountpoint.
            let named = if round == 2 { world.second.as_path() } else { &world.rig.mnt };
            let program = next_program(&world.rig);
            let by = ["upgrade", "--program", program.to_str().unwrap(), named.to_str().unwrap()];
            world.rig.run(&by).ok();
            assert_eq!(world.counts(), (round, 0), "{}", world.daemon.stderr());
            assert_eq!((inodes(), world.clones()), (before, shown.clone()), "{propagation}, {round}");
            assert_eq!(fs::read_to_string(world.first("x/written")).unwrap(), round.to_string());
            assert_eq!(world.first("y/name").exists(), is_seen, "{propagation}, {round}");
            let there = fs::read_link(format!("/proc/{}/cwd", inside.id())).unwrap();
            assert_eq!(there, world.second("y"), "{propagation}, {round}");
            // What is attached from here on.
            let store = world.rig.root.join(format!("new-{round}"));
            fs::create_dir(&store).unwrap();
            fs::write(store.join("name"), "new").unwrap();
            let ways =
                [(world.first("z"), world.second("z"), sees), (world.second("z"), world.first("z"), is_seen)];
            for (here, there, is_tied) in ways {
                world.attach(&store, &here).ok();
                assert!(here.join("name").exists());
                assert_eq!(
                    there.join("name").exists(),
                    is_tied,
                    "{propagation}, {round}: {}",
                    there.display()
                );
                world.detach(&here).ok();
                assert!(!here.join("name").exists() && !there.join("name").exists());
            }
        }
        // A program that cannot take over.
        let failing = failing_program(&world.rig, b"/proc/self/fd\0", b"/proc/no/such\0");
        upgrade_by(&world.rig, &failing).ends(1, "the old one goes on");
        assert_eq!((inodes(), world.clones()), (before, shown.clone()), "{propagation}");
        assert_eq!(listed.by_ref().count(), 3, "{propagation}: the directory that was open");
        drop(listed);
        let mut content = String::new();
        open.read_to_string(&mut content).unwrap();
        assert_eq!(content, "one");
        drop(open);
        world.rig.run(&["umount", world.second.to_str().unwrap()]).ends(1, "is busy (EBUSY)");
        drop(inside.stdin.take());
        wait(&mut inside, LONG).unwrap();
        // What only the clone shows ends with it.
        let left = if is_seen { 3 } else { 2 };
        world.rig.run(&["umount", world.second.to_str().unwrap()]).ok().says("the volume goes on at");
        assert_eq!(
            (world.volumes(), world.clones().as_array().map_or(0, Vec::len)),
            (left, 0),
            "{propagation}"
        );
        upgrade(&world.rig, &[]).ok();
        assert_eq!(fs::read_to_string(world.first("x/name")).unwrap(), "one");
        world.umount();
    }
}

/// An unmount by umount2(2) is noticed by the next program, too, and one that comes while a process is
/// inside ends the clone when that has left.
#[test]
fn a_clone_that_was_handed_over_ends_with_its_last_user() {
    let Some(world) = World::new("private") else { return };
    let mut inside = Command::new("cat").current_dir(&world.second).stdin(Stdio::piped()).spawn().unwrap();
    upgrade(&world.rig, &[]).ok();
    umount2(&world.second, UnmountFlags::DETACH);
    upgrade(&world.rig, &[]).ok();
    assert_eq!(world.volumes(), 3, "a process is inside");
    drop(inside.stdin.take());
    wait(&mut inside, LONG).unwrap();
    eventually("the clone ends", || {
        world.volumes() == 2 && world.clones().as_array().is_none_or(Vec::is_empty)
    });
    world.umount();
}

/// The first mountpoint may be gone, and the clone is what shows the volume.
#[test]
fn a_volume_whose_first_mountpoint_is_gone_is_refused_and_goes_on() {
    let Some(world) = World::new("shared") else { return };
    world.rig.run(&["umount", world.rig.mnt.to_str().unwrap()]).ok().says("the volume goes on at");
    let program = next_program(&world.rig);
    let upgraded =
        world.rig.run(&["upgrade", "--program", program.to_str().unwrap(), world.second.to_str().unwrap()]);
    upgraded.ends(1, "its mount was taken away");
    assert_eq!(fs::read_to_string(world.second("x/name")).unwrap(), "one");
    world.rig.run(&["umount", world.second.to_str().unwrap()]).ok().says("everything is on");
    assert_eq!(world.daemon.end(), Some(0), "{}", world.daemon.stderr());
    world.rig.is_quiet();
}
