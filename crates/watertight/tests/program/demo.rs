//! `watertight demo`.

use std::fs;

use crate::rig::{Daemon, LONG, Rig, run};

#[test]
fn the_demo_shows_what_it_says_and_leaves_nothing() {
    let Some(rig) = Rig::mounting() else { return };
    for kind in ["auto", "fuse"] {
        let mut command = rig.command(&["demo", "--type", kind]);
        command.env("TMPDIR", &rig.root);
        let out = run(command).ok().says("checksum");
        assert!(out.stdout.contains("open: "), "the holder is named: {}", out.stdout);
        leaves_nothing(&rig);
    }
    assert!(!rig.runtime.exists(), "it used a runtime directory of its own");
}

#[track_caller]
fn leaves_nothing(rig: &Rig) {
    let names: Vec<_> = fs::read_dir(&rig.root).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("demo")), "{names:?}");
}

#[test]
fn a_demo_that_is_interrupted_leaves_nothing() {
    let Some(rig) = Rig::mounting() else { return };
    let mut command = rig.command(&["demo"]);
    command.env("TMPDIR", &rig.root);
    let demo = Daemon::start(command);
    // It has mounted, and is writing or unmounting.
    while !demo.line(LONG).unwrap().contains("is mounted at") {}
    demo.signal(rustix::process::Signal::INT);
    assert_eq!(demo.end(), Some(1), "{}", demo.stderr());
    leaves_nothing(&rig);
}

#[test]
fn a_demo_that_cannot_mount_says_why() {
    let Some(rig) = Rig::mounting() else { return };
    let mut command = rig.command(&["demo", "--type", "nfs"]);
    command.env("TMPDIR", &rig.root);
    run(command).ends(1, "auto, fuseblk or fuse");
    leaves_nothing(&rig);
}
