//! The verb `gc`.

use std::fs;
use std::os::unix::fs::MetadataExt as _;

use super::bad_input::names;
use super::read_only::{Reader, world};
use super::{LARGE, pattern};

fn bytes(dir: &std::path::Path) -> u64 {
    names(dir).iter().map(|name| fs::metadata(dir.join(name)).unwrap().size()).sum()
}

#[test]
fn what_was_deleted_leaves_the_bucket_and_what_is_there_stays() {
    let Some((mut world, bucket)) = world() else { return };
    let holder = world.mount("");
    for file in ["kept", "deleted", "replaced"] {
        super::read_only::write(&world.path(file), &pattern(LARGE));
    }
    fs::remove_file(world.path("deleted")).unwrap();
    super::read_only::write(&world.path("replaced"), b"small");
    world.umount(&holder);

    let segments = || names(&bucket).iter().filter(|name| name.starts_with("seg/")).count();
    assert_eq!(segments(), 3);
    let dry = world.rig.run(&["gc", "--dry-run", "--json", &world.url]).ok();
    let dry: serde_json::Value = serde_json::from_str(&dry.stdout).unwrap();
    assert!(dry["objects"].as_u64().unwrap() >= 2 && dry["dry_run"] == true, "{dry}");
    assert_eq!(segments(), 3, "a dry run removes nothing");
    let before = bytes(&bucket);
    let said = world.rig.run(&["gc", &world.url]).ok();
    assert!(said.stdout.contains(" were removed"), "{}", said.stdout);
    assert_eq!(segments(), 1);
    assert!(bytes(&bucket) < before);

    let holder = world.mount("");
    assert!(fs::read(world.path("kept")).unwrap() == pattern(LARGE));
    assert_eq!(fs::read(world.path("replaced")).unwrap(), b"small");
    assert_eq!(fs::read_dir(world.path("")).unwrap().count(), 2);
    // Its holder does that itself.
    world.rig.run(&["gc", &world.url]).ends(1, "is held by");
    world.umount(&holder);
}

#[test]
fn while_it_is_read_elsewhere_nothing_is_removed() {
    let Some((mut world, _)) = world() else { return };
    let holder = world.mount("");
    super::read_only::write(&world.path("file"), &pattern(LARGE));
    world.umount(&holder);
    let reader = Reader::new(&mut world, "reader");
    let holder = world.mount("");
    super::read_only::write(&world.path("file"), b"small");
    world.umount(&holder);
    let said = world.rig.run(&["gc", &world.url]).ok();
    assert!(
        said.stdout.contains("nothing was removed, for it is mounted read-only elsewhere"),
        "{}",
        said.stdout
    );
    assert!(reader.read("file").unwrap() == pattern(LARGE));
    reader.umount(&world);
    let said = world.rig.run(&["gc", &world.url]).ok();
    assert!(said.stdout.contains(" were removed"), "{}", said.stdout);
    world.rig.run(&["gc", &format!("{}-none", world.url)]).ends(1, "there is no volume");
    world.rig.run(&["gc", "nothing://x"]).ends(2, "nothing");
}
