//! The verb `fsck`.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::bad_input::names;
use super::read_only::{world, write};
use super::{LARGE, World, key_file, pattern};
use crate::rig::Out;

fn json(out: &Out) -> Value {
    serde_json::from_str(&out.stdout).unwrap()
}

fn segment(bucket: &Path) -> std::path::PathBuf {
    bucket.join(names(bucket).into_iter().find(|name| name.starts_with("seg/")).unwrap())
}

#[test]
fn what_is_damaged_is_named_and_what_can_be_is_mended() {
    let Some((mut world, bucket)) = world() else { return };
    world.rig.run(&["fsck", &world.url]).ok().says("it is whole");
    let holder = world.mount("");
    fs::create_dir(world.path("dir")).unwrap();
    write(&world.path("dir/large"), &pattern(LARGE));
    write(&world.path("small"), b"small");
    // Beside its holder it is checked; it is mended only without.
    let out = world.rig.run(&["fsck", "--data", &world.url]).ok().says("it is whole");
    assert!(out.stdout.contains(&format!("process {}", holder.pid)), "{}", out.stdout);
    world.rig.run(&["fsck", "--repair", &world.url]).ends(1, "is held by");
    world.umount(&holder);

    // Data that is missing or changed is named, and stays an error.
    let object = segment(&bucket);
    let kept = fs::read(&object).unwrap();
    let mut changed = kept.clone();
    changed[100] ^= 1;
    fs::write(&object, &changed).unwrap();
    world.rig.run(&["fsck", &world.url]).ok().says("data was not read");
    let out = world.rig.run(&["fsck", "--data", "--repair", &world.url]);
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(
        out.stdout.contains("/dir/large: data in seg/") && out.stdout.contains("nothing could be mended")
    );
    fs::remove_file(&object).unwrap();
    let out = world.rig.run(&["fsck", "--json", &world.url]);
    assert_eq!(out.code, Some(1), "{out:?}");
    let found = json(&out);
    assert_eq!((&found["whole"], &found["findings"][0]["path"]), (&Value::from(false), &"/dir/large".into()));
    assert!(found["repair"].is_null() && found["bytes_read"].is_null(), "{found}");
    let holder = world.mount("");
    assert!(fs::read(world.path("dir/large")).is_err(), "no other bytes are read");
    assert_eq!(fs::read(world.path("small")).unwrap(), b"small");
    world.umount(&holder);
    fs::write(&object, &kept).unwrap();

    // The lease is made anew, and the volume can be mounted.
    fs::write(bucket.join("lease"), "garbage").unwrap();
    assert!(world.mount_elsewhere(&world.url, "").stderr.contains("the lease"));
    let out = world.rig.run(&["fsck", "--repair", "--json", &world.url]).ok();
    let found = json(&out);
    assert_eq!((&found["whole"], &found["repair"]["mended"]), (&Value::from(true), &1.into()), "{found}");
    assert_eq!(fs::read(bucket.join("damaged/lease")).unwrap(), b"garbage");
    let holder = world.mount("");
    assert!(fs::read(world.path("dir/large")).unwrap() == pattern(LARGE));
    world.umount(&holder);

    // What everything rests on cannot be mended.
    let table = names(&bucket).into_iter().find(|name| name.starts_with("meta/compacted/")).unwrap();
    fs::write(bucket.join(table), "garbage").unwrap();
    let out = world.rig.run(&["fsck", "--repair", &world.url]);
    assert_eq!(out.code, Some(1), "{out:?}");
    assert!(out.stdout.contains("nothing was touched"), "{}", out.stdout);
}

#[test]
fn a_holder_that_was_killed_leaves_a_log_that_can_be_mended() {
    let Some((mut world, bucket)) = world() else { return };
    let holder = world.mount("");
    write(&world.path("first"), b"first");
    write(&world.path("second"), b"second");
    holder.kill();
    world.rig.verb("umount", &[]).ends(1, "died");
    let logs = || names(&bucket).into_iter().filter(|name| name.starts_with("log/"));
    let last = logs().max().unwrap();
    let bytes = fs::read(bucket.join(&last)).unwrap();
    fs::write(bucket.join(&last), &bytes[..bytes.len() - 3]).unwrap();
    assert!(world.mount_elsewhere(&world.url, "").stderr.contains("it is cut off"));
    let out = world.rig.run(&["fsck", "--repair", &world.url]).ok();
    for part in ["mended", &format!("{last}: a copy is kept as damaged/{last}"), "it is whole"] {
        assert!(out.stdout.contains(part), "no {part:?} in {}", out.stdout);
    }
    let holder = world.mount("");
    assert_eq!(fs::read(world.path("first")).unwrap(), b"first");
    world.umount(&holder);
    world.rig.run(&["fsck", "--data", &world.url]).ok();
}

#[test]
fn what_is_no_volume_is_not_checked_and_an_encrypted_one_needs_its_key() {
    let Some((world, _)) = world() else { return };
    world.rig.run(&["fsck", &format!("{}-none", world.url)]).ends(1, "there is no volume");
    world.rig.run(&["fsck", "nothing://x"]).ends(2, "nothing");
    let key = key_file(&world.rig, "key", "0123456789abcdef");
    let url = format!("{}-encrypted", world.url);
    let encrypted = World { url: url.clone(), rig: world.rig };
    encrypted.format(&["--encrypt-key-file", &key]).ok();
    encrypted.rig.run(&["fsck", &url]).ends(1, "encrypt-key-file");
    encrypted.rig.run(&["fsck", "--encrypt-key-file", &key, &url]).ok().says("it is whole");
}
