//! `quota`: limits of a volume and of directories in it.

use std::fs;
use std::io::{ErrorKind, Write as _};

use serde_json::Value;

use super::World;
use crate::rig::Out;

const MIB: usize = 1 << 20;

fn quota(world: &World, args: &[&str]) -> Out {
    world.rig.run(&[&["quota"], args].concat())
}

fn json(out: Out) -> Value {
    serde_json::from_str(&out.ok().stdout).unwrap()
}

/// Writes until it is refused; says how much was taken, and why it ended.
fn fill(path: &std::path::Path) -> (usize, ErrorKind) {
    let mut file = fs::OpenOptions::new().create(true).append(true).open(path).unwrap();
    let mut taken = 0;
    let error = loop {
        match file.write(&[7; 64 << 10]) {
            Ok(len) => taken += len,
            Err(error) => break error.kind(),
        }
    };
    // What was accepted is within the limit: nothing is refused afterwards.
    file.sync_all().unwrap();
    (taken, error)
}

#[test]
fn limits_are_held_to_when_it_is_written_and_nothing_is_refused_later() {
    let Some(mut world) = World::new() else { return };
    let daemon = world.mount("dirty_after=1h");
    let project = world.path("project");
    fs::create_dir(&project).unwrap();
    fs::write(project.join("before"), vec![1; MIB]).unwrap();
    let at = project.to_str().unwrap();
    let mnt = world.rig.mnt.to_str().unwrap().to_owned();
    quota(&world, &["get", at]).ends(1, "has no quota of its own");
    quota(&world, &["set", at]).ends(2, "give --bytes, --inodes or both");
    quota(&world, &["set", at, "--bytes", "4M", "--inodes", "4"])
        .ok()
        .says("/project: 1.0 MiB of 4.0 MiB, 2 of 4 files");
    assert_eq!(fill(&project.join("file")), (3 * MIB, ErrorKind::QuotaExceeded));
    fs::write(project.join("empty"), "").unwrap();
    assert_eq!(fs::write(project.join("more"), "").unwrap_err().kind(), ErrorKind::QuotaExceeded);
    // In place, and what makes room.
    let mut file = fs::OpenOptions::new().write(true).open(project.join("file")).unwrap();
    file.write_all(&vec![8; 3 * MIB]).unwrap();
    file.set_len(1000).unwrap();
    file.sync_all().unwrap();
    fs::remove_file(project.join("empty")).unwrap();
    drop(file);

    // Across its border: mv copies, as between file systems.
    fs::write(world.path("outside"), "outside").unwrap();
    let renamed = fs::rename(world.path("outside"), project.join("outside"));
    assert_eq!(renamed.unwrap_err().kind(), ErrorKind::CrossesDevices);
    fs::rename(&project, world.path("moved")).unwrap();

    // The volume's, which df shows.
    quota(&world, &["set", &mnt, "--bytes", "8M"]).ok();
    let room = rustix::fs::statvfs(&world.rig.mnt).unwrap();
    assert_eq!(room.f_blocks * room.f_frsize, 8 << 20);
    let (taken, error) = fill(&world.path("large"));
    assert_eq!(error, ErrorKind::StorageFull);
    assert!((6 * MIB..7 * MIB).contains(&taken), "{taken}");
    let list = json(quota(&world, &["list", "--json", &mnt]));
    assert_eq!((&list[0]["path"], &list[1]["path"]), (&"/".into(), &"/moved".into()));
    assert_eq!(list[1]["used_inodes"], 3);
    world.umount(&daemon);

    // By the URL, and by the next mount.
    let url = world.url.clone();
    assert_eq!(world.info()["version"], 2);
    let got = json(quota(&world, &["get", "--json", &url, "--path", "/moved"]));
    assert_eq!((&got[0]["used_bytes"], &got[0]["bytes"]), (&(MIB + 1000).into(), &(4 * MIB).into()));
    quota(&world, &["set", &url, "--path", "/moved", "--bytes", "2M"]).ok();
    quota(&world, &["get", &url, "--path", "/nothing"]).ends(1, "there is no directory /nothing");
    quota(&world, &["delete", &url]).ok();
    let daemon = world.mount("");
    assert_eq!(fill(&world.path("moved/file")).1, ErrorKind::QuotaExceeded);
    quota(&world, &["delete", world.path("moved").to_str().unwrap()]).ok();
    quota(&world, &["list", &mnt]).ok().says("there are no quotas");
    fs::write(world.path("moved/large"), vec![1; 4 * MIB]).unwrap();
    world.umount(&daemon);
}

#[test]
fn other_stores_have_no_quotas() {
    let Some(mut rig) = crate::rig::Rig::mounting() else { return };
    let _daemon = rig.mount("");
    let at = rig.mnt.to_str().unwrap().to_owned();
    rig.run(&["quota", "set", &at, "--bytes", "1M"]).ends(1, "not in a volume on object storage");
    rig.run(&["quota", "list", &at]).ends(1, "not in a volume on object storage");
}
