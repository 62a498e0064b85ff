//! Names that any user may give: none of them has an effect on a terminal, a log or a printed line.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use testing::cgroup::Cgroup;

use crate::control::call;
use crate::rig::{Daemon, LONG, Out, Rig, copy_program, eventually, run, wait};

/// Ends the line, begins one of its own, clears the screen, colours it, sets the title, rings,
/// turns the text around.
const HOSTILE: &str = "\nFORGED\r\x1b[2J\x1b[31m\x1b]0;t\x07\u{9b}2J\u{7f}\u{202e}\\";
/// How it is shown, up to the end of its first word.
const SHOWN: &str = r"\nFORGED\r\u{1b}[2J";

/// Only ends of lines have an effect, and each line is its own.
#[track_caller]
fn is_harmless(what: &str, text: &str) {
    let acts = |c: char| {
        c != '\n' && (c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
    };
    assert!(!text.contains(acts), "{what}: {text:?}");
    let forged = |line: &str| line.trim_start().starts_with("FORGED");
    assert!(!text.lines().any(forged), "{what}: {text}");
}

#[track_caller]
fn checked(what: &str, out: Out) -> Out {
    is_harmless(what, &out.stdout);
    is_harmless(what, &out.stderr);
    out
}

struct World {
    rig: Rig,
    mnt: PathBuf,
}

impl World {
    /// A mountpoint and a store with such names.
    fn new() -> Option<Self> {
        let rig = Rig::mounting()?;
        let [mnt, store] = ["m", "s"].map(|name| rig.root.join(format!("{name}{HOSTILE}")));
        fs::create_dir(&mnt).unwrap();
        fs::create_dir(&store).unwrap();
        Some(Self { rig, mnt })
    }

    fn mount(&mut self, arguments: &[&str], faults: &str, options: &str) -> Daemon {
        let store = self.rig.root.join(format!("s{HOSTILE}"));
        let source = format!("{faults}dir:{}", store.display());
        let mut command = self.rig.command(arguments);
        command.args(["mount", &source]).arg(&self.mnt).args(["-o", options]);
        let daemon = Daemon::start(command);
        let ready = daemon.line(LONG).unwrap_or_else(|| panic!("not ready: {}", daemon.stderr()));
        is_harmless("ready", &ready);
        assert!(ready.contains(&format!("m{SHOWN}")), "{ready}");
        daemon
    }

    /// Runs a verb on it, with more words.
    #[track_caller]
    fn verb(&self, verb: &[&str], more: &[&str]) -> Out {
        let mut command = self.rig.command(verb);
        command.arg(&self.mnt).args(more);
        checked(&verb.join(" "), run(command))
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Out {
        checked(&arguments.join(" "), self.rig.run(arguments))
    }
}

/// A process with such a name, in the directory.
struct Holder(Child);

impl Holder {
    fn start(rig: &Rig, at: &Path) -> Self {
        let program = rig.root.join(format!("h{}", &HOSTILE[..12]));
        copy_program("/bin/sleep", &program);
        let child = Command::new(&program).arg("1000").current_dir(at).stdin(Stdio::null()).spawn().unwrap();
        Self(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _gone = self.0.kill();
        let _status = wait(&mut self.0, LONG);
    }
}

#[test]
fn names_are_printed_in_one_line_that_does_nothing() {
    let Some(mut world) = World::new() else { return };
    let Some(parent) = Cgroup::make() else { return };
    let cgroup = parent.child(&HOSTILE.replace(['\n', '\\'], ""));
    let options =
        format!("dirty_after=1h,drain_timeout=1s,type=fuse,limit={}:wbps=1G", cgroup.path().display());
    let daemon = world.mount(&[], "fault:write:fail=ENOSPC,", &options);
    let file = world.mnt.join(format!("f{HOSTILE}"));
    fs::write(&file, "12345").unwrap();
    // It cannot be written: an error of that file.
    world.verb(&["sync"], &[]).ends(1, &format!("m{SHOWN}"));
    eventually("it is an error", || world.run(&["status"]).ok().stdout.contains(&format!("f{SHOWN}")));
    let held = Holder::start(&world.rig, &world.mnt);

    let status = world.run(&["status"]).ok();
    assert!(
        status.stdout.contains(&format!("m{SHOWN}")) && status.stdout.contains(&format!("s{SHOWN}")),
        "{status:?}"
    );
    world.run(&["status", "--holders"]).ok().says(r"h\nFORGED");
    world.run(&["status", "--cgroups"]);
    world.run(&["events", "--once"]).ok().says(&format!("f{SHOWN}"));
    world.verb(&["limit", "--show"], &[]).ok().says(r"\u{1b}[2J");
    world.verb(&["attach", "mem:"], &[]);
    world.verb(&["detach"], &[]);

    // For programs: exact.
    let json: Value =
        serde_json::from_str(&world.run(&["status", "--json", "--holders"]).ok().stdout).unwrap();
    let volume = &json["volumes"][0];
    assert_eq!(volume["mountpoint"].as_str(), world.mnt.to_str());
    assert_eq!(volume["errors"][0]["file"].as_str(), Some(&*format!("f{HOSTILE}")));
    let comm = volume["holders"]["found"].as_array().unwrap().iter().find(|one| one["how"] == "cwd");
    assert!(comm.is_none_or(|one| one["name"].as_str().unwrap().starts_with("h\nFORGED")), "{volume}");
    let events = world.run(&["events", "--once", "--json"]).ok();
    let events: Vec<Value> = events.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(events.iter().any(|event| event["path"].as_str() == world.mnt.to_str()), "{events:?}");
    let metrics = world.rig.run(&["status", "--metrics"]).ok().stdout;
    let label = world.mnt.to_str().unwrap().replace('\\', r"\\").replace('\n', r"\n");
    assert!(metrics.contains(&format!("mountpoint=\"{label}\"")), "{metrics}");
    let id = volume["id"].as_str().unwrap();
    let socket = world.rig.runtime.join(format!("{id}.sock"));
    assert!(call(&socket, "GET /metrics", "").contains(&format!("mountpoint=\"{label}\"")));

    world.verb(&["wait", "--timeout", "1ms"], &[]).ends(1, "not yet");
    world.verb(&["umount"], &[]).ends(1, &format!("m{SHOWN}"));
    world.verb(&["umount", "--force"], &[]).ends(1, &format!("f{SHOWN}"));
    drop(held);
    assert_ne!(daemon.end(), Some(0));
    is_harmless("log", &daemon.stderr());
    for line in daemon.stderr().lines().filter(|line| line.starts_with('{')) {
        let event: Value = serde_json::from_str(line).unwrap();
        assert!(event["volume"].as_str().is_none_or(|name| name == world.mnt.to_str().unwrap()), "{line}");
    }
    world.run(&["status"]);
    world.verb(&["wait"], &[]).ends(1, &format!("f{SHOWN}"));
    world.verb(&["wait", "--forget"], &[]);
}

#[test]
fn so_they_are_in_the_log_and_in_what_is_wrong() {
    let Some(mut world) = World::new() else { return };
    for format in ["text", "journald", "json"] {
        let daemon = world.mount(&["--log-format", format, "--log-level", "debug"], "", "type=fuse");
        fs::write(world.mnt.join("a"), "12345").unwrap();
        let held = Holder::start(&world.rig, &world.mnt);
        world.verb(&["umount"], &[]).ends(1, r"h\nFORGED");
        drop(held);
        world.verb(&["umount"], &[]).ok();
        assert_eq!(daemon.end(), Some(0));
        let log = daemon.stderr();
        is_harmless(format, &log);
        assert!(log.contains("FORGED"), "{format}: {log}");
    }
    let gone = world.rig.root.join(format!("gone{HOSTILE}"));
    let gone = gone.to_str().unwrap();
    for wrong in [
        &["status", gone][..],
        &["umount", gone],
        &["wait", gone],
        &["sync", gone],
        &["events", gone],
        &["stats", gone],
        &["why", gone],
        &["attach", gone, gone],
        &["detach", gone],
        &["move", gone, gone],
        &["clone", gone, gone],
        &["limit", gone, gone, HOSTILE],
        &["limit", HOSTILE, gone, "wbps=1"],
        &["mount", gone, gone],
        &["mount", HOSTILE, gone],
        &["mount", "mem:", gone, "-o", HOSTILE],
        &["mount", "mem:", gone, "-o", "cache=\n\x1b[2J"],
        &["mount", "mem:", gone, "-o", "limit=\x1b[2J:wbps=1"],
        &["serve", gone],
        &["serve", "--check", gone],
        &["install-helpers", gone],
        &["bench", gone],
        &["status", "--output", gone, "--metrics", gone],
        &["--log-level", HOSTILE, "status"],
        &[HOSTILE],
        &["status", "--frobnicate", HOSTILE],
        &[&format!("--{HOSTILE}")],
        &["top", HOSTILE],
    ] {
        let out = world.run(wrong);
        assert_ne!(out.code, Some(0), "{wrong:?}: {out:?}");
    }
    // Bytes that are no letters.
    let bytes = OsString::from_vec(b"/nowhere/\xff\x9b2J\n".to_vec());
    let mut command = world.rig.command(&["status"]);
    command.arg(bytes);
    checked("bytes", run(command)).ends(2, r"/nowhere/\xff\x9b2J\n");
}
