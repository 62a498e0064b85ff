//! `mount -d`: the parent returns when the mount is up, or with the child's error.

use std::fs;
use std::path::Path;

use crate::rig::{Rig, eventually};

#[test]
fn the_parent_returns_when_the_mount_is_up() {
    let Some(rig) = Rig::mounting() else { return };
    let log = rig.root.join("log");
    let (source, log_file) = (rig.store.to_str().unwrap(), log.to_str().unwrap());
    let mnt = rig.mnt.to_str().unwrap();
    let out = rig.run(&["mount", "-d", "--log-file", log_file, source, mnt]).ok().says("ready: dir:");
    assert!(rig.is_mounted());
    assert_eq!(out.stdout.lines().count(), 1);
    let pid = rig.volume()["pid"].as_u64().unwrap();
    assert!(out.stdout.contains(&format!("pid {pid}")), "{}", out.stdout);
    // It has let go of everything of ours.
    assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), Path::new("/"));
    for fd in [0, 1] {
        let target = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap();
        assert_eq!(target, Path::new("/dev/null"), "descriptor {fd}");
    }
    fs::write(rig.mnt.join("a"), "a").unwrap();
    rig.verb("umount", &[]).ok();
    assert_eq!(rig.stored("a").unwrap(), b"a");
    eventually("the log says how it ended", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("everything is on"))
    });
    assert!(!Path::new(&format!("/proc/{pid}")).exists() || !rig.is_mounted());
}

#[test]
fn what_fails_in_the_background_is_the_parents_failure() {
    let Some(mut rig) = Rig::mounting() else { return };
    let (source, mnt) = (rig.store.to_str().unwrap().to_owned(), rig.mnt.to_str().unwrap().to_owned());
    rig.run(&["mount", "-d", "/no/such/dir", &mnt]).ends(2, "source /no/such/dir does not exist");
    rig.run(&["mount", "-d", "-o", "frob", &source, &mnt]).ends(2, "no mount option frob");
    rig.run(&["mount", "-d", "--log-file", "/no/such/log", &source, &mnt]).ends(2, "--log-file /no/such/log");
    let daemon = rig.mount("");
    let other = rig.root.join("other");
    fs::create_dir(&other).unwrap();
    let other = other.to_str().unwrap();
    let said = rig.run(&["mount", "--daemon", &source, other]).ends(1, "is in use by ").stderr;
    assert_eq!(said.matches("in use").count(), 1, "said twice: {said}");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}
