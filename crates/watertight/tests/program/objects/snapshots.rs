//! The verb `snapshot`, and mounts of snapshots.

use std::fs;

use serde_json::Value;

use super::bad_input::names;
use super::read_only::{Reader, world, write};
use super::{LARGE, pattern};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn a_snapshot_shows_what_was_there_until_it_is_deleted() {
    let Some((mut world, bucket)) = world() else { return };
    let segments = || names(&bucket).iter().filter(|name| name.starts_with("seg/")).count();
    let holder = world.mount("dirty_after=1h");
    let mnt = world.rig.mnt.to_str().unwrap().to_owned();
    fs::create_dir(world.path("dir")).unwrap();
    fs::write(world.path("dir/large"), pattern(LARGE)).unwrap();
    // Not synced: the snapshot has it all the same.
    fs::write(world.path("small"), b"one").unwrap();
    let out = world.rig.run(&["snapshot", "create", "--json", &mnt, "one"]).ok();
    let made = json(&out.stdout);
    assert_eq!((made["name"].as_str(), made["files"].as_u64()), (Some("one"), Some(3)), "{made}");
    assert!(made["bytes"].as_u64().unwrap() >= LARGE as u64, "{made}");
    world.rig.run(&["snapshot", "create", &mnt, "one"]).ends(1, "there is a snapshot `one` already");

    fs::remove_dir_all(world.path("dir")).unwrap();
    write(&world.path("small"), b"two");
    // By its URL, which this host has mounted.
    world.rig.run(&["snapshot", "create", &world.url, "two two"]).ok().says("snapshot two two is made");
    write(&world.path("small"), b"now");
    let list = world.rig.run(&["snapshot", "list", "--json", &world.url]).ok();
    let list = json(&list.stdout);
    assert_eq!((list["snapshots"][0]["name"].as_str(), list["snapshots"][0] == made), (Some("one"), true));
    assert_eq!(list["snapshots"][1]["name"], "two two");
    assert_eq!(world.info()["snapshots"], list["snapshots"]);

    let show = |world: &mut super::World, snapshot: &str, at: &str| {
        Reader::with(world, at, &format!("snapshot={snapshot}"))
    };
    let one = show(&mut world, "one", "first");
    assert!(one.read("dir/large").unwrap() == pattern(LARGE));
    assert_eq!(one.read("small").unwrap(), b"one");
    let two = show(&mut world, "two two", "second");
    assert_eq!((two.read("small").unwrap(), two.read("dir/large")), (b"two".to_vec(), None));
    one.umount(&world);
    two.umount(&world);
    world.umount(&holder);

    // Nobody holds it: garbage collection keeps what the snapshots show.
    world.rig.run(&["gc", &world.url]).ok();
    assert_eq!(segments(), 1);
    let one = show(&mut world, "one", "third");
    assert!(one.read("dir/large").unwrap() == pattern(LARGE));
    one.umount(&world);
    world.rig.run(&["snapshot", "delete", &world.url, "one"]).ok();
    world.rig.run(&["gc", &world.url]).ok();
    assert_eq!(segments(), 1, "nobody had found it dead when the second was made");
    world.rig.run(&["snapshot", "delete", &world.url, "two two"]).ok();
    world.rig.run(&["gc", &world.url]).ok().says(" were removed");
    assert_eq!(segments(), 0);
    world.rig.run(&["snapshot", "create", &world.url, "three"]).ok();
    let out = world.rig.run(&["snapshot", "list", &world.url]).ok();
    assert!(out.stdout.contains("three") && !out.stdout.contains("two two"), "{}", out.stdout);
    let holder = world.mount("");
    assert_eq!(fs::read(world.path("small")).unwrap(), b"now");
    world.umount(&holder);
    let three = show(&mut world, "three", "fourth");
    assert_eq!(three.read("small").unwrap(), b"now");
    three.umount(&world);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let Some((mut world, _)) = world() else { return };
    let url = world.url.clone();
    world.rig.run(&["snapshot", "list", &url]).ok().says("it has no snapshots");
    world.rig.run(&["snapshot", "create", &url]).ends(2, "give the name of the snapshot");
    world.rig.run(&["snapshot", "list", &url, "a"]).ends(2, "takes no name");
    world.rig.run(&["snapshot", "create", &url, "a/b"]).ends(2, "is no name of a snapshot");
    world.rig.run(&["snapshot", "delete", &url, "a"]).ends(1, "there is no snapshot `a`");
    world.rig.run(&["snapshot", "list", &format!("{url}-none")]).ends(1, "there is no volume");
    world.rig.run(&["snapshot", "list", "/nowhere"]).ends(2, "is not inside a mounted Watertight volume");
    world.mount_elsewhere(&url, "snapshot=a").ends(1, "there is no snapshot `a`");
    world.mount_elsewhere(&url, "snapshot=a,takeover").ends(2, "takeover and abandon");
    // Held by another host, which its name says.
    let holder = world.mount("");
    let mut command = world.rig.command(&["snapshot", "create", &url, "a"]);
    command.env("WATERTIGHT_RUNTIME_DIR", world.rig.root.join("run-elsewhere"));
    crate::rig::run(command).ends(1, "is held by");
    // By its mountpoint as by its URL.
    let mounted = world.rig.mnt.to_str().unwrap().to_owned();
    world.rig.run(&["snapshot", "create", &mounted, "a/b"]).ends(2, "is no name of a snapshot");
    world.rig.run(&["snapshot", "create", &url, "a"]).ok();
    let reader = Reader::with(&mut world, "reader", "snapshot=a");
    let error = fs::write(reader.path("x"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    reader.umount(&world);
    world.umount(&holder);
    let daemon = world.rig.mount_source("mem:", "");
    let mnt = world.rig.mnt.to_str().unwrap().to_owned();
    world.rig.run(&["snapshot", "create", &mnt, "a"]).ends(1, "keeps no snapshots");
    world.umount(&daemon);
}
