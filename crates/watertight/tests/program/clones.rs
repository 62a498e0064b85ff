//! `clone`: a second mountpoint of a volume.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::UnmountFlags;

use crate::rig::{Daemon, LONG, Out, Rig, eventually, run, umount2, wait};

/// A mounted volume with directories `x` and `y`, a second mountpoint, another store.
struct World {
    rig: Rig,
    daemon: Daemon,
    second: PathBuf,
    other: PathBuf,
}

impl World {
    fn new(propagation: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            crate::rig::skipped("only root may show a clone");
            return None;
        }
        let mut rig = Rig::mounting()?;
        let daemon = rig.mount("dirty_after=1h");
        let (second, other) = (rig.root.join("second"), rig.root.join("other"));
        for dir in [&second, &other, &rig.mnt.join("x"), &rig.mnt.join("y")] {
            fs::create_dir(dir).unwrap();
        }
        let world = Self { rig, daemon, second, other };
        let option = format!("--propagation={propagation}");
        world.run("clone", &[Path::new(&option), &world.rig.mnt, &world.second]).ok().says("is shown at");
        Some(world)
    }

    fn run(&self, verb: &str, arguments: &[&Path]) -> Out {
        let mut command = self.rig.command(&[verb]);
        command.args(arguments);
        run(command)
    }

    fn first(&self, path: &str) -> PathBuf {
        self.rig.mnt.join(path)
    }

    fn second(&self, path: &str) -> PathBuf {
        self.second.join(path)
    }

    fn clones(&self) -> serde_json::Value {
        let status = self.rig.status();
        let volumes = status["volumes"].as_array().unwrap();
        volumes.iter().find(|v| v["attached_to"].is_null()).map(|v| v["clones"].clone()).unwrap_or_default()
    }
}

#[test]
fn what_is_attached_in_one_is_in_the_other_and_the_volume_ends_with_the_last() {
    let Some(world) = World::new("shared") else { return };
    assert_eq!(world.clones()[0]["mountpoint"], world.second.to_str().unwrap());
    assert_eq!(world.clones()[0]["propagation"], "shared");
    world.run("status", &[]).ok().says("also at").says("(shared)");
    fs::write(world.first("file"), "one").unwrap();
    assert_eq!(fs::read_to_string(world.second("file")).unwrap(), "one");
    assert!(!world.second("x/theirs").exists());
    world.run("attach", &[&world.other, &world.first("x")]).ok();
    fs::write(world.second("x/theirs"), "two").unwrap();
    assert_eq!(fs::read_to_string(world.first("x/theirs")).unwrap(), "two");
    // By the other mountpoint, and back.
    world.run("detach", &[&world.second("x")]).ok().says("everything is on");
    assert_eq!(fs::read_to_string(world.other.join("theirs")).unwrap(), "two");
    assert!(!world.first("x/theirs").exists() && !world.second("x/theirs").exists());
    world.run("attach", &[&world.other, &world.second("y")]).ok().says(world.second("y").to_str().unwrap());
    assert!(world.first("y/theirs").exists());

    // Held: by name, and nothing is changed. The first is not in its way.
    let mut holder = Command::new("sleep")
        .arg("1000")
        .stdin(Stdio::from(File::open(world.second("file")).unwrap()))
        .spawn()
        .unwrap();
    world.run("umount", &[&world.second]).ends(1, "is busy (EBUSY)").ends(1, "sleep");
    assert!(world.second("file").exists());
    holder.kill().unwrap();
    wait(&mut holder, LONG).unwrap();
    // The first goes, the volume goes on.
    fs::write(world.first("late"), "late").unwrap();
    world.run("umount", &[&world.rig.mnt]).ok().says("the volume goes on at");
    assert!(!world.first("file").exists());
    assert_eq!(fs::read_to_string(world.second("late")).unwrap(), "late");
    fs::write(world.second("y/last"), "last").unwrap();
    // The last takes all along.
    world.run("umount", &[&world.second]).ok().says("everything is on");
    assert_eq!(fs::read_to_string(world.other.join("last")).unwrap(), "last");
    assert_eq!(fs::read_to_string(world.rig.store.join("late")).unwrap(), "late");
    assert_eq!(world.daemon.end(), Some(0));
    world.rig.is_quiet();
}

#[test]
fn what_a_clone_has_alone_ends_with_it_however_it_is_unmounted() {
    let Some(world) = World::new("private") else { return };
    for raw in [false, true] {
        if raw {
            world.run("clone", &[Path::new("--propagation=private"), &world.rig.mnt, &world.second]).ok();
        }
        let out = world.run("attach", &[&world.other, &world.second("x")]).ok();
        let id = out.stdout.split("(volume ").nth(1).unwrap().split(')').next().unwrap().to_owned();
        let name = format!("raw-{raw}");
        fs::write(world.second("x").join(&name), "x").unwrap();
        assert!(!world.first("x").join(&name).exists());
        if raw {
            umount2(&world.second, UnmountFlags::empty());
        } else {
            world.run("umount", &[&world.second]).ok().says("the volume goes on at");
            assert_eq!(fs::read_to_string(world.other.join(&name)).unwrap(), "x", "on return");
        }
        world.run("wait", &[Path::new(&id)]).ok().says("free");
        assert_eq!(fs::read_to_string(world.other.join(&name)).unwrap(), "x");
        eventually("no clone is left", || world.clones().is_null());
    }
    world.rig.verb("umount", &[]).ok();
    assert_eq!(world.daemon.end(), Some(0));
    world.rig.is_quiet();
}

#[test]
fn a_signal_unmounts_all_mountpoints() {
    let Some(world) = World::new("slave") else { return };
    fs::write(world.second("file"), "x").unwrap();
    let World { rig, daemon, second, .. } = world;
    daemon.signal(rustix::process::Signal::TERM);
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(fs::read_to_string(rig.store.join("file")).unwrap(), "x");
    assert!(fs::read_dir(&second).unwrap().next().is_none());
    rig.is_quiet();
}

#[test]
fn what_cannot_be_cloned_is_refused_with_a_reason() {
    let Some(world) = World::new("shared") else { return };
    world.run("clone", &[&world.rig.mnt, Path::new("/nowhere/at/all")]).ends(2, "/nowhere/at/all");
    world.run("clone", &[&world.rig.mnt, &world.second]).ends(2, "");
    world.run("clone", &[Path::new("/nowhere"), &world.other]).ends(2, "is not a mounted Watertight volume");
    world.run("move", &[&world.first("x"), &world.second("y")]).ends(2, "are in two mountpoints");
    world.run("attach", &[&world.other, &world.first("x")]).ok();
    world.run("move", &[&world.first("x"), &world.first("y")]).ends(1, "is shared");
    world.run("detach", &[&world.first("x")]).ok();
    let store = world.rig.store.join("inside");
    fs::create_dir(&store).unwrap();
    world.run("clone", &[&world.rig.mnt, &store]).ends(1, "inside the source");
    world.run("umount", &[&world.second]).ok();
    world.rig.verb("umount", &[]).ok();
    assert_eq!(world.daemon.end(), Some(0));
}
