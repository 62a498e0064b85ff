//! The verb `change-key`.

use std::fs;
use std::thread;

use super::{World, key_file};
use crate::rig::Rig;

#[test]
fn a_key_is_changed_while_the_volume_is_mounted_and_its_data_stays() {
    let Some(rig) = Rig::mounting() else { return };
    let (old, new) = (key_file(&rig, "old", "a1"), key_file(&rig, "new", "b2"));
    let mut world = World::of(rig, &["--encrypt-key-file", &old]);
    let change = |world: &World, from: &str, to: &str| {
        world.rig.run(&["change-key", "--old-key-file", from, "--new-key-file", to, &world.url])
    };
    let daemon = world.mount(&format!("encrypt-key-file={old}"));
    fs::write(world.path("before"), "before").unwrap();
    fs::File::open(world.path("before")).unwrap().sync_all().unwrap();
    change(&world, &old, &new).ok().says("the volume has the key of").says("mounts that are there go on");
    // A host that has it mounted goes on.
    fs::write(world.path("after"), "after").unwrap();
    fs::File::open(world.path("after")).unwrap().sync_all().unwrap();
    assert_eq!(fs::read_to_string(world.path("before")).unwrap(), "before");
    world.umount(&daemon);

    let refused = world.mount_elsewhere(&world.url, &format!("encrypt-key-file={old}"));
    refused.ends(1, "the key file does not fit this volume");
    let daemon = world.mount(&format!("encrypt-key-file={new}"));
    for name in ["before", "after"] {
        assert_eq!(fs::read_to_string(world.path(name)).unwrap(), name);
    }
    world.umount(&daemon);
    // A call that was cut short may be repeated.
    change(&world, &old, &new).ok().says("had already the key of");
    let other = key_file(&world.rig, "other-key", "c3");
    change(&world, &old, &other).ends(1, "the key file does not fit this volume");
    change(&world, "/none", &other).ends(2, "/none");
    let missing = world.rig.run(&["change-key", "--old-key-file", &new, &world.url]);
    missing.ends(2, "--new-key-file");
}

#[test]
fn of_changes_at_once_one_counts() {
    let rig = Rig::new();
    let old = key_file(&rig, "old", "a1");
    let world = World::of(rig, &["--encrypt-key-file", &old]);
    let keys = ["b2", "c3", "d4"].map(|digits| key_file(&world.rig, digits, digits));
    let done: Vec<bool> = thread::scope(|scope| {
        let running: Vec<_> = keys
            .iter()
            .map(|new| {
                let (world, old) = (&world, &old);
                let change = ["change-key", "--old-key-file", old, "--new-key-file", new, &world.url];
                scope.spawn(move || world.rig.run(&change).code == Some(0))
            })
            .collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(done.iter().filter(|done| **done).count(), 1, "{done:?}");
    let fits = |key: &str| {
        let out = world.rig.run(&["info", "--encrypt-key-file", key, &world.url]);
        out.code == Some(0)
    };
    assert_eq!(keys.iter().map(|key| fits(key)).collect::<Vec<_>>(), done);
    assert!(!fits(&old));
}

#[test]
fn a_volume_without_a_key_gets_none() {
    let rig = Rig::new();
    let key = key_file(&rig, "key", "a1");
    let world = World::of(rig, &[]);
    let made = world.info();
    let change = ["change-key", "--old-key-file", &key, "--new-key-file", &key, &world.url];
    world.rig.run(&change).ends(2, "the volume is not encrypted");
    assert_eq!(world.info(), made);
}
