//! `watertight demo`.

use std::fs;

use crate::rig::{Rig, run};

#[test]
fn the_demo_shows_what_it_says_and_leaves_nothing() {
    let Some(rig) = Rig::mounting() else { return };
    for kind in ["auto", "fuse"] {
        let mut command = rig.command(&["demo", "--type", kind]);
        command.env("TMPDIR", &rig.root);
        let out = run(command).ok().says("checksum");
        assert!(out.stdout.contains("open: "), "the holder is named: {}", out.stdout);
        let names: Vec<_> = fs::read_dir(&rig.root).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| !name.to_string_lossy().contains("demo")), "{names:?}");
    }
    assert!(!rig.runtime.exists(), "it used a runtime directory of its own");
}

#[test]
fn a_demo_that_cannot_mount_says_why() {
    let Some(rig) = Rig::mounting() else { return };
    rig.run(&["demo", "--type", "nfs"]).ends(1, "auto, fuseblk or fuse");
}
