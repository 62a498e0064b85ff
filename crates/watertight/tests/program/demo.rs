//! `watertight demo`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use testing::cgroup::Cgroup;

use crate::rig::{Daemon, LONG, Out, PROGRAM, Rig, has, run};
use crate::tmux::{Terminal, row};

#[test]
fn the_demo_shows_what_it_says_and_leaves_nothing() {
    let Some(rig) = Rig::mounting() else { return };
    let (out, pid) = run_it(&rig, &[]);
    let out = out.ok().says("checksum").says("0 of 48").says("umount --force of the stalled one");
    let row =
        out.stdout.lines().find(|line| line.starts_with("200000 events received after")).expect("a row");
    assert_eq!(row.matches(" ms").count() + row.matches(" s").count(), 2, "both were measured: {row}");
    assert!(out.stdout.contains("open: "), "the holder is named: {}", out.stdout);
    if Cgroup::make().is_some() {
        out.says("sync beside a throttled tenant");
    }
    leaves_nothing(&rig, Some(pid));
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
    // A row ends in its result: it is on one line.
    for what in [
        "umount returns after",
        "stalled store reported after",
        "200000 events received after",
        "umount --force of the stalled one",
    ] {
        let whole = row(&screen, what).expect("a row");
        assert!(whole.starts_with(what) && [" ms", " s"].iter().any(|unit| whole.ends_with(unit)), "{whole}");
    }
    leaves_nothing(&rig, None);
}

/// The directories of the system's own programs: no S3 server is there.
#[cfg(feature = "objects")]
const SYSTEM_PATH: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

#[cfg(feature = "objects")]
#[test]
fn the_demo_of_object_storage_finds_everything_in_the_bucket_and_leaves_nothing() {
    let Some(rig) = Rig::mounting() else { return };
    let mut command = rig.command(&["demo", "objects"]);
    command.env("PATH", SYSTEM_PATH);
    let (out, _) = run_command(&rig, command);
    let out = out.ok().says("a directory takes its place, by file://").says("each file fsynced");
    let out = out.says("0 bytes are missing");
    let row = |start: &str| {
        let row = out.stdout.lines().find(|line| line.trim_start().starts_with(start));
        row.unwrap_or_else(|| panic!("no {start} in {}", out.stdout)).to_owned()
    };
    assert!(row("bytes missing in the bucket then").ends_with(" 0"), "{}", out.stdout);
    assert!(row("umount returns after").ends_with('s'), "{}", out.stdout);
    let is_there = Path::new("/usr/bin/rclone").exists();
    assert_eq!(out.stdout.contains("rclone mount --vfs-cache-mode writes"), is_there, "{}", out.stdout);
    leaves_nothing(&rig, None);
}

#[cfg(feature = "objects")]
#[test]
fn a_demo_of_object_storage_that_is_interrupted_leaves_nothing() {
    let Some(rig) = Rig::mounting() else { return };
    let mut command = rig.command(&["demo", "objects"]);
    command.env("TMPDIR", &rig.root).env("PATH", SYSTEM_PATH);
    let demo = Daemon::start(command);
    while !demo.line(LONG).unwrap().contains("is mounted at") {}
    demo.signal(rustix::process::Signal::INT);
    assert_eq!(demo.end(), Some(1), "{}", demo.stderr());
    leaves_nothing(&rig, None);
}

/// Runs it to its end, with its directory in the test's; and its process.
fn run_it(rig: &Rig, arguments: &[&str]) -> (Out, u32) {
    run_command(rig, rig.command(&[&["demo"], arguments].concat()))
}

fn run_command(rig: &Rig, mut command: Command) -> (Out, u32) {
    command.env("TMPDIR", &rig.root);
    // A shell writes its process number, and becomes the demo.
    let mut shell = Command::new("sh");
    shell.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(rig.root.join("pid"));
    shell.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    let out = run(shell);
    let pid = fs::read_to_string(rig.root.join("pid")).unwrap();
    (out, pid.trim().parse().unwrap())
}

/// The directories of this name, in all trees of cgroups.
fn cgroups(inside: &Path, name: &str, found: &mut Vec<PathBuf>) {
    // Directories that other tests remove meanwhile do not concern this one.
    for entry in fs::read_dir(inside).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            cgroups(&entry.path(), name, found);
            if entry.file_name() == name {
                found.push(entry.path());
            }
        }
    }
}

/// Processes of this program that were started by a demo of this test, itself or not: they have its
/// `TMPDIR`.
fn processes(rig: &Rig) -> Vec<PathBuf> {
    let ours = format!("TMPDIR={}", rig.root.display());
    let is_left = |process: &PathBuf| {
        fs::read_link(process.join("exe")).is_ok_and(|program| program == Path::new(PROGRAM))
            && fs::read(process.join("environ"))
                .is_ok_and(|all| all.split(|byte| *byte == 0).any(|one| one == ours.as_bytes()))
    };
    fs::read_dir("/proc").unwrap().map(|entry| entry.unwrap().path()).filter(is_left).collect()
}

/// Of the demo of this process, if that is known, no cgroup is left.
#[track_caller]
fn leaves_nothing(rig: &Rig, pid: Option<u32>) {
    let left = processes(rig);
    assert!(left.is_empty(), "{left:?}");
    if let Some(pid) = pid {
        let mut left = Vec::new();
        cgroups(Path::new("/sys/fs/cgroup"), &format!("watertight-demo-{pid}"), &mut left);
        assert!(left.is_empty(), "{left:?}");
    }
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
    leaves_nothing(&rig, Some(demo.pid));
}

#[test]
fn a_demo_that_cannot_mount_says_why() {
    let Some(rig) = Rig::mounting() else { return };
    let (out, pid) = run_it(&rig, &["--type", "nfs"]);
    out.ends(1, "auto, fuseblk or fuse");
    leaves_nothing(&rig, Some(pid));
}
