//! Data of a volume on object storage on this host's disk.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{LARGE, World};
use crate::control::call;
use crate::rig::{Rig, eventually};

fn cache_of(world: &World) -> PathBuf {
    world.rig.root.join("cache")
}

fn options(world: &World) -> String {
    format!("disk_cache={},disk_cache_size=64M", cache_of(world).display())
}

fn figures(world: &World) -> Value {
    world.rig.volume()["store_requests"].clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// Data that compression does not make smaller: xorshift.
fn noise() -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).take(LARGE / 8).flatten().collect()
}

/// The files of blocks below a directory.
fn blocks(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    all.flat_map(|path| if path.is_dir() { blocks(&path) } else { vec![path] })
        .filter(|path| path.metadata().unwrap().len() > 0)
        .collect()
}

/// Of a mounted world: the file is as it was written.
fn assert_read(world: &World) {
    assert!(fs::read(world.path("large")).unwrap() == noise());
    assert_eq!(fs::read(world.path("small")).unwrap(), b"small");
}

/// A volume with data that was read with a cache and is in it.
fn warm() -> Option<World> {
    let mut world = World::new()?;
    let daemon = world.mount("");
    fs::write(world.path("large"), noise()).unwrap();
    fs::write(world.path("small"), "small").unwrap();
    world.umount(&daemon);
    let daemon = world.mount(&options(&world));
    assert_read(&world);
    eventually("the cache has it", || {
        let cache = figures(&world)["disk_cache"].clone();
        number(&cache["bytes"]) >= LARGE as u64 && cache["misses"] == cache["blocks"]
    });
    world.umount(&daemon);
    Some(world)
}

#[test]
fn what_was_read_is_read_from_the_disk_after_the_next_mount() {
    let Some(mut world) = warm() else { return };
    assert_eq!(fs::metadata(cache_of(&world)).unwrap().mode() & 0o777, 0o700);
    let daemon = world.mount(&options(&world));
    let before = figures(&world);
    assert_read(&world);
    let after = figures(&world);
    let cache = &after["disk_cache"];
    assert_eq!(number(&cache["misses"]), 0, "{after}");
    assert!(number(&cache["hits"]) >= 12, "{after}");
    let down = number(&after["received_bytes"]) - number(&before["received_bytes"]);
    assert!(down < 100_000, "data came from the bucket: {down} bytes");
    world.rig.run(&["status"]).ok().says("disk cache: ").says("0 from the store");
    let metrics = call(&world.rig.socket(), "GET /metrics", "");
    let hits = number(&figures(&world)["disk_cache"]["hits"]);
    assert!(metrics.lines().any(|line| {
        line.starts_with("watertight_disk_cache_hits_total{") && line.ends_with(&format!(" {hits}"))
    }));
    // What this host writes is in it too.
    fs::write(world.path("new"), noise()).unwrap();
    world.umount(&daemon);
    let daemon = world.mount(&options(&world));
    assert!(fs::read(world.path("new")).unwrap() == noise());
    assert_eq!(number(&figures(&world)["disk_cache"]["misses"]), 0);
    world.umount(&daemon);
}

#[test]
fn what_is_damaged_in_it_or_gone_comes_from_the_bucket() {
    let Some(mut world) = warm() else { return };
    for (number, path) in blocks(&cache_of(&world)).into_iter().enumerate() {
        let mut content = fs::read(&path).unwrap();
        // In its header, in its data, its end; or all of it.
        match number % 4 {
            0 => content[number % 16] ^= 1,
            1 => content[number % 500 + 16] ^= 0x80,
            2 => content.truncate(content.len() - 1),
            _ => content.clear(),
        }
        fs::write(&path, content).unwrap();
    }
    let daemon = world.mount(&options(&world));
    assert_read(&world);
    assert!(number(&figures(&world)["disk_cache"]["damaged"]) >= 6, "{}", figures(&world));
    // The whole of it goes while it is used.
    fs::remove_dir_all(cache_of(&world)).unwrap();
    fs::write(world.path("more"), noise()).unwrap();
    fs::File::open(world.path("more")).unwrap().sync_all().unwrap();
    eventually("it is switched off", || figures(&world)["disk_cache"]["on"] == false);
    assert_read(&world);
    let log = daemon.stderr();
    assert_eq!(log.matches("the disk cache is switched off").count(), 1, "{log}");
    world.umount(&daemon);
}

#[test]
fn a_directory_that_is_no_cache_is_refused_before_the_volume_is_mounted() {
    let Some(world) = World::new() else { return };
    let mount = |options: &str| world.mount_elsewhere(&world.url, options);
    mount("disk_cache=cache").ends(2, "an absolute path");
    mount("disk_cache_size=1G").ends(2, "disk_cache_size needs a cache");
    mount(&format!("disk_cache={},disk_cache_size=1M", cache_of(&world).display())).ends(2, "at least 16M");
    let foreign = world.rig.root.join("letters");
    fs::create_dir(&foreign).unwrap();
    fs::set_permissions(&foreign, Permissions::from_mode(0o700)).unwrap();
    fs::write(foreign.join("letter"), "dear").unwrap();
    mount(&format!("disk_cache={}", foreign.display())).ends(2, "it is not empty, and no cache");
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 1);
    assert_eq!(world.info()["holder"], Value::Null, "the volume is free");
    let Some(rig) = Rig::mounting() else { return };
    let plain = rig.root.join("plain");
    fs::create_dir(&plain).unwrap();
    let mut command = rig.command(&["mount", "-o", "disk_cache=/cache", plain.to_str().unwrap()]);
    command.arg(&rig.mnt);
    crate::rig::run(command).ends(2, "option disk_cache=/cache is for volumes on object storage");
}

#[test]
fn warm_brings_a_tree_to_the_disk_and_says_where_there_is_none() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("");
    fs::create_dir_all(world.path("tree/below")).unwrap();
    fs::write(world.path("tree/large"), noise()).unwrap();
    fs::write(world.path("tree/below/small"), "small").unwrap();
    fs::write(world.path("apart"), noise()).unwrap();
    symlink(world.path("apart"), world.path("tree/link")).unwrap();
    fs::write(world.path("tree/below/empty"), "").unwrap();
    let tree = world.path("tree").to_str().unwrap().to_owned();
    world.rig.run(&["warm", &tree]).ends(1, "it has no disk cache");
    world.umount(&daemon);

    let daemon = world.mount(&options(&world));
    let out = world.rig.run(&["warm", "--json", &tree]).ok();
    let done: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!((&done["files"], &done["failed"], &done["stopped"]), (&3.into(), &0.into(), &false.into()));
    assert_eq!(number(&done["bytes"]), LARGE as u64 + 5);
    let got = number(&figures(&world)["received_bytes"]);
    world.rig.run(&["warm", &tree]).ok().says("3 files with 3.0 MiB are in the disk cache");
    let more = number(&figures(&world)["received_bytes"]) - got;
    assert!(more < 100_000, "what is there is fetched again: {more} bytes");
    world.rig.run(&["warm", "/proc/self"]).ends(2, "is not inside a mounted Watertight volume");
    world.umount(&daemon);

    let daemon = world.mount(&options(&world));
    assert!(fs::read(world.path("tree/large")).unwrap() == noise());
    assert_eq!(fs::read(world.path("tree/below/small")).unwrap(), b"small");
    assert_eq!(number(&figures(&world)["disk_cache"]["misses"]), 0);
    assert!(fs::read(world.path("apart")).unwrap() == noise());
    assert!(number(&figures(&world)["disk_cache"]["misses"]) > 8, "links are not followed");
    world.umount(&daemon);
}

#[test]
fn warm_says_what_does_not_fit() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("");
    for file in 0..8 {
        fs::write(world.path(&format!("file-{file}")), noise()).unwrap();
    }
    world.umount(&daemon);
    let daemon = world.mount(&format!("disk_cache={},disk_cache_size=16M", cache_of(&world).display()));
    let all = world.rig.mnt.to_str().unwrap().to_owned();
    let out = world.rig.run(&["warm", "--json", &all]).ends(1, "which may take 16.0 MiB: where that is less");
    let done: Value = serde_json::from_str(&out.stdout).unwrap();
    let (bytes, gone) = (number(&done["bytes"]), number(&done["gone"]));
    assert!(bytes == 8 * LARGE as u64 && gone >= bytes - (16 << 20), "{done}");
    world.rig.run(&["warm", &format!("{all}/file-1")]).ok().says("1 file with 3.0 MiB are in the disk cache");
    world.umount(&daemon);
}
