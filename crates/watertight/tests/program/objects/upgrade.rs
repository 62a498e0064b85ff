//! `upgrade` of volumes on object storage: refused, before anything is touched.

use std::fs;
use std::path::Path;

use super::World;
use super::read_only::Reader;
use crate::rig::{Out, eventually, run};
use crate::upgrade::next_program;

fn upgrade(world: &World, at: &Path, runtime: &Path) -> Out {
    let mut command = world.rig.command(&["upgrade", "--program"]);
    command.arg(next_program(&world.rig)).arg(at).env("WATERTIGHT_RUNTIME_DIR", runtime);
    run(command)
}

#[test]
fn a_volume_with_a_journal_and_a_disk_cache_and_a_snapshot_are_refused() {
    let Some(mut world) = World::new() else { return };
    let [journal, cache] = ["journal", "cache"].map(|name| world.rig.root.join(name));
    fs::create_dir(&journal).unwrap();
    let options = format!("uring=off,dirty_after=1h,fsync_to=host,journal={}", journal.display());
    let daemon = world.mount(&format!("{options},disk_cache={}", cache.display()));
    fs::write(world.path("file"), "file").unwrap();
    let mnt = world.rig.mnt.to_str().unwrap().to_owned();
    world.rig.run(&["snapshot", "create", &mnt, "first"]).ok();
    fs::write(world.path("file"), "dirty").unwrap();
    let dirty = || world.rig.volume()["dirty_bytes"].as_u64().unwrap();
    eventually("there is dirty data", || dirty() > 0);

    let out = upgrade(&world, &world.rig.mnt, &world.rig.runtime);
    out.ends(1, "only volumes in directories can be handed over").ends(1, "lease, journal and disk cache");
    assert!(dirty() > 0, "nothing was touched");
    assert_eq!(world.rig.volume()["upgrades"]["count"], 0);
    let reader = Reader::with(&mut world, "reader", "uring=off,snapshot=first");
    upgrade(&world, &world.rig.root.join("reader"), &world.rig.root.join("run-reader"))
        .ends(1, "only volumes in directories can be handed over");
    assert_eq!(reader.read("file").unwrap(), b"file");
    reader.umount(&world);
    fs::write(world.path("after"), "after").unwrap();
    world.umount(&daemon);

    let daemon = world.mount("uring=off");
    assert_eq!(fs::read(world.path("file")).unwrap(), b"dirty");
    assert_eq!(fs::read(world.path("after")).unwrap(), b"after");
    world.umount(&daemon);
}
