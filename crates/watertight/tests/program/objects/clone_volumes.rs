//! The verb `clone-volume`.

use std::fs;

use super::bad_input::names;
use super::read_only::{Reader, world, write};
use super::{LARGE, World, pattern};
use crate::rig::Daemon;

fn mount(world: &mut World, url: &str) -> Daemon {
    world.rig.mount_source(url, "")
}

#[test]
fn a_clone_begins_as_its_snapshot_and_goes_its_own_way() {
    let Some((mut world, bucket)) = world() else { return };
    let holder = world.mount("");
    write(&world.path("large"), &pattern(LARGE));
    write(&world.path("small"), b"one");
    fs::create_dir(world.path("dir")).unwrap();
    world.rig.run(&["snapshot", "create", &world.url, "base"]).ok();
    // It goes on while it is cloned.
    write(&world.path("small"), b"two");
    let (url, clone, second) =
        (world.url.clone(), format!("{}-clone", world.url), format!("{}-second", world.url));
    world.rig.run(&["clone-volume", &url, "base", &clone]).ok().says("a volume is there now");
    world.rig.run(&["clone-volume", &url, "base", &clone]).ends(1, "there is a volume already");
    fs::remove_file(world.path("large")).unwrap();
    world.umount(&holder);
    world.rig.run(&["gc", &url]).ok();
    let parents = names(&bucket);

    let daemon = mount(&mut world, &clone);
    assert!(fs::read(world.path("large")).unwrap() == pattern(LARGE));
    assert_eq!(fs::read(world.path("small")).unwrap(), b"one");
    write(&world.path("small"), b"three");
    write(&world.path("large"), &pattern(LARGE + 1));
    write(&world.path("dir/new"), &pattern(LARGE));
    world.rig.run(&["snapshot", "create", &clone, "again"]).ok();
    fs::remove_file(world.path("large")).unwrap();
    world.umount(&daemon);
    // A clone of the clone.
    world.rig.run(&["clone-volume", "--json", &clone, "again", &second]).ok();
    world.rig.run(&["gc", &clone]).ok();
    let daemon = mount(&mut world, &second);
    assert!(fs::read(world.path("large")).unwrap() == pattern(LARGE + 1));
    assert!(fs::read(world.path("dir/new")).unwrap() == pattern(LARGE));
    assert_eq!(fs::read(world.path("small")).unwrap(), b"three");
    world.umount(&daemon);
    assert_eq!(names(&bucket), parents, "nothing of the parent was touched");
    let daemon = mount(&mut world, &clone);
    assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 2);
    world.umount(&daemon);
    let daemon = mount(&mut world, &url);
    assert_eq!(fs::read(world.path("small")).unwrap(), b"two");
    world.umount(&daemon);

    // What a clone needs stays until the clone is gone.
    world
        .rig
        .run(&["snapshot", "delete", &url, "base"])
        .ends(1, "is a clone of the snapshot `base`, and needs it");
    let base = Reader::with(&mut world, "base", "snapshot=base");
    assert_eq!(base.read("small").unwrap(), b"one");
    base.umount(&world);
    world.rig.run(&["snapshot", "delete", &clone, "again"]).ends(1, "needs it");
    fs::remove_dir_all(second.strip_prefix("file://").unwrap()).unwrap();
    world.rig.run(&["snapshot", "delete", &clone, "again"]).ok();
    fs::remove_dir_all(clone.strip_prefix("file://").unwrap()).unwrap();
    world.rig.run(&["snapshot", "delete", &url, "base"]).ok();
    world.rig.run(&["gc", &url]).ok().says(" were removed");
    assert!(!names(&bucket).iter().any(|name| name.starts_with("seg/")), "nobody needs it any more");
}

#[test]
fn clones_that_cannot_be_are_refused() {
    let Some((mut world, _)) = world() else { return };
    let (url, clone) = (world.url.clone(), format!("{}-clone", world.url));
    world.rig.run(&["clone-volume", &url, "base", &clone]).ends(1, "there is no snapshot `base`");
    world.rig.run(&["clone-volume", &url, "base", &format!("{url}/inside")]).ends(2, "in the same directory");
    world.rig.run(&["clone-volume", &url, "base", "memory://x"]).ends(2, "in the same bucket");
    let key = super::key_file(&world.rig, "key", "a1");
    let (secret, copy) = (format!("{}-secret", world.url), format!("{}-copy", world.url));
    let daemon = {
        world.rig.run(&["format", "--encrypt-key-file", &key, &secret]).ok();
        world.rig.mount_source(&secret, &format!("encrypt-key-file={key}"))
    };
    write(&world.path("file"), &pattern(LARGE));
    world.rig.run(&["snapshot", "create", &secret, "base"]).ok();
    world.umount(&daemon);
    // Of an encrypted one without the key; the clone has the same.
    world.rig.run(&["clone-volume", &secret, "base", &copy]).ok();
    world.mount_elsewhere(&copy, "").ends(1, "it needs -o encrypt-key-file");
    let other = super::key_file(&world.rig, "new-key", "b2");
    world.rig.run(&["change-key", "--old-key-file", &key, "--new-key-file", &other, &copy]).ok();
    let daemon = world.rig.mount_source(&copy, &format!("encrypt-key-file={other}"));
    assert!(fs::read(world.path("file")).unwrap() == pattern(LARGE));
    world.umount(&daemon);
}
