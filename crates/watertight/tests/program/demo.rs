//! `watertight demo`.

use std::fs;

use testing::cgroup::Cgroup;

use crate::rig::{Daemon, LONG, PROGRAM, Rig, has, run};
use crate::tmux::{Terminal, row};

#[test]
fn the_demo_shows_what_it_says_and_leaves_nothing() {
    let Some(rig) = Rig::mounting() else { return };
    let mut command = rig.command(&["demo"]);
    command.env("TMPDIR", &rig.root);
    let out = run(command).ok().says("checksum").says("0 of 48").says("umount --force of the stalled one");
    let row = out.stdout.lines().find(|line| line.starts_with("200000 events heard after")).expect("a row");
    assert_eq!(row.matches(" ms").count() + row.matches(" s").count(), 2, "both were measured: {row}");
    assert!(out.stdout.contains("open: "), "the holder is named: {}", out.stdout);
    if Cgroup::make().is_some() {
        out.says("sync beside a throttled tenant");
    }
    leaves_nothing(&rig);
    assert!(!rig.runtime.exists(), "it used a runtime directory of its own");
}

#[test]
fn its_table_fits_a_terminal() {
    let Some(rig) = Rig::mounting() else { return };
    if !has("tmux") {
        return;
    }
    let terminal =
        Terminal::start(&rig, &format!("TMPDIR={} {PROGRAM} demo --type fuse", rig.root.display()));
    terminal.shows("its end", |screen| row(screen, "ended with 0").is_some());
    let screen = terminal.screen();
    let whole = row(&screen, "files not on the store then").expect("a row");
    assert!(whole.ends_with("0 of 48"), "{whole}");
    // A row ends in what it took: it is on one line.
    for what in [
        "umount returns after",
        "hear of a stalled store after",
        "200000 events heard after",
        "umount --force of the stalled one",
    ] {
        let whole = row(&screen, what).expect("a row");
        assert!(whole.starts_with(what) && [" ms", " s"].iter().any(|unit| whole.ends_with(unit)), "{whole}");
    }
    leaves_nothing(&rig);
}

#[track_caller]
fn leaves_nothing(rig: &Rig) {
    let names: Vec<_> = fs::read_dir(&rig.root).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("demo")), "{names:?}");
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let root = rig.root.to_str().unwrap();
    assert!(mounts.lines().all(|line| !line.contains(root)), "{mounts}");
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
