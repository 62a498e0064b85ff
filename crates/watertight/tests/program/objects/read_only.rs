//! Mounts that only read: several, beside a holder and without one.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::bad_input::names;
use super::{LARGE, World, pattern};
use crate::rig::{Daemon, Out, Rig, run};

/// A mount that reads, on a host of its own.
pub(super) struct Reader {
    daemon: Daemon,
    pub(super) mnt: PathBuf,
    runtime: PathBuf,
}

impl Reader {
    pub(super) fn new(world: &mut World, name: &str) -> Self {
        Self::with(world, name, "ro")
    }

    /// With these options.
    pub(super) fn with(world: &mut World, name: &str, options: &str) -> Self {
        let (mnt, runtime) = (world.rig.root.join(name), world.rig.root.join(format!("run-{name}")));
        fs::create_dir(&mnt).unwrap();
        let mut command = world.rig.command(&["mount", "-o", options, &world.url]);
        command.arg(&mnt).env("WATERTIGHT_RUNTIME_DIR", &runtime);
        Self { daemon: world.rig.start(command), mnt, runtime }
    }

    pub(super) fn read(&self, name: &str) -> Option<Vec<u8>> {
        fs::read(self.mnt.join(name)).ok()
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.mnt.join(name)
    }

    /// Its volume.
    pub(super) fn status(&self, world: &World) -> serde_json::Value {
        let mut command = world.rig.command(&["status", "--json"]);
        command.env("WATERTIGHT_RUNTIME_DIR", &self.runtime);
        let all: serde_json::Value = serde_json::from_str(&run(command).ok().stdout).unwrap();
        all["volumes"][0].clone()
    }

    pub(super) fn umount(self, world: &World) -> Out {
        let mut command = world.rig.command(&["umount"]);
        command.arg(&self.mnt).env("WATERTIGHT_RUNTIME_DIR", &self.runtime);
        let out = run(command).ok();
        assert_eq!(self.daemon.end(), Some(0));
        out
    }
}

/// A volume in a directory, whose objects can be listed.
pub(super) fn world() -> Option<(World, PathBuf)> {
    let rig = Rig::mounting()?;
    let bucket = rig.root.join("bucket");
    let world = World { url: format!("file://{}", bucket.display()), rig };
    world.format(&[]).ok();
    Some((world, bucket))
}

/// The objects that are no marks of readers.
fn others(bucket: &Path) -> Vec<String> {
    names(bucket).into_iter().filter(|name| !name.starts_with("reader/")).collect()
}

pub(super) fn write(path: &Path, content: &[u8]) {
    fs::write(path, content).unwrap();
    fs::File::open(path).unwrap().sync_all().unwrap();
}

#[test]
fn several_hosts_read_beside_the_holder_what_it_had_committed_and_write_nothing_but_their_marks() {
    let Some((mut world, bucket)) = world() else { return };
    let holder = world.mount("dirty_after=1h");
    fs::create_dir(world.path("dir")).unwrap();
    write(&world.path("dir/small"), b"small");
    write(&world.path("large"), &pattern(LARGE));
    world.rig.verb("sync", &[]).ok();
    let before = names(&bucket);
    let lease = fs::read(bucket.join("lease")).unwrap();
    let (first, second) = (Reader::new(&mut world, "first"), Reader::new(&mut world, "second"));
    for reader in [&first, &second] {
        assert_eq!(reader.read("dir/small").unwrap(), b"small");
        assert!(reader.read("large").unwrap() == pattern(LARGE));
        assert_eq!(fs::read_dir(&reader.mnt).unwrap().count(), 2);
        let error = fs::write(reader.mnt.join("x"), "x").unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        assert_eq!(world.info()["holder"]["pid"], holder.pid);
    }
    second.umount(&world);
    assert_eq!((others(&bucket), fs::read(bucket.join("lease")).unwrap()), (before, lease));
    assert_eq!(names(&bucket).len(), others(&bucket).len() + 1, "each has one mark, until it is unmounted");

    // The holder goes on; a reader shows the moment of its mount.
    write(&world.path("later"), b"later");
    fs::remove_file(world.path("dir/small")).unwrap();
    world.rig.verb("sync", &[]).ok();
    assert_eq!(first.read("later"), None);
    assert_eq!(first.read("dir/small").unwrap(), b"small");
    let third = Reader::new(&mut world, "third");
    assert_eq!(third.read("later").unwrap(), b"later");
    assert_eq!(third.read("dir/small"), None);
    third.umount(&world);
    world.umount(&holder);
    assert!(first.read("large").unwrap() == pattern(LARGE), "also after the holder's unmount");
    first.umount(&world);
}

#[test]
fn a_volume_that_nobody_holds_is_read_and_can_be_taken_meanwhile() {
    let Some((mut world, bucket)) = world() else { return };
    let options = "-o ro";
    // Until it has been mounted once, there is nothing to be read.
    world.mount_elsewhere(&world.url, "ro").ends(1, "the volume is new").ends(1, options);
    let holder = world.mount("");
    write(&world.path("a"), b"a");
    world.umount(&holder);
    let before = names(&bucket);
    let reader = Reader::new(&mut world, "reader");
    assert_eq!(reader.read("a").unwrap(), b"a");
    assert_eq!(world.info()["holder"], Value::Null);
    assert_eq!(others(&bucket), before);
    let holder = world.mount("");
    write(&world.path("b"), b"b");
    assert_eq!((reader.read("a").unwrap(), reader.read("b")), (b"a".to_vec(), None));
    world.umount(&holder);
    reader.umount(&world);
    assert_eq!(names(&bucket), others(&bucket), "its mark is gone");
    world
        .mount_elsewhere(&world.url, "ro,takeover")
        .ends(2, "takeover and abandon are for a mount that writes");
}

#[test]
fn what_a_killed_holder_had_synced_is_read_without_taking_the_volume() {
    let Some((mut world, bucket)) = world() else { return };
    let holder = world.mount("dirty_after=1h");
    write(&world.path("synced"), &pattern(LARGE));
    holder.kill();
    let before = names(&bucket);
    let reader = Reader::new(&mut world, "reader");
    assert!(reader.read("synced").unwrap() == pattern(LARGE));
    reader.umount(&world);
    assert_eq!(names(&bucket), before);
    world.rig.verb("umount", &[]).ends(1, "died before everything was written");
    let holder = world.mount("takeover");
    assert!(fs::read(world.path("synced")).unwrap() == pattern(LARGE));
    world.umount(&holder);
}
