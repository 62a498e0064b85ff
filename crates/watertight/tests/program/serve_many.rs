//! `serve` with some hundred volumes inside one mountpoint.

use std::fs;

use rustix::process::Signal;

use crate::rig::{Daemon, eventually};
use crate::serve::{Served, Stopped, attached, inside};

/// So many, with a directory for one more.
fn served(many: usize) -> Option<(Served, Vec<String>)> {
    let it = Served::new()?;
    let all: Vec<String> = (0..=many).map(|number| format!("{number:03}")).collect();
    inside(&it, &all[..many]);
    for name in &all {
        fs::create_dir(it.store("root").join(name)).unwrap();
    }
    Some((it, all))
}

/// Makes it read its file again, until it has logged for how many of them it asks. It may not know
/// yet what a mount process has done already: then it is asked again.
fn reload(daemon: &Daemon, of: usize, asked: usize) {
    let line = format!("of {of} volumes inside mountpoints, {asked} are to be attached or detached");
    let said = |line: &str| daemon.stderr().matches(line).count();
    let before = said(&line);
    eventually(&line, || {
        let any = said("volumes inside mountpoints");
        daemon.signal(Signal::HUP);
        eventually("it has read its file", || said("volumes inside mountpoints") > any);
        said(&line) > before
    });
}

fn threads(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).unwrap().count()
}

#[test]
fn three_hundred_volumes_have_no_threads_of_their_own() {
    const MANY: usize = 300;
    let Some((mut it, all)) = served(MANY) else { return };
    let all = &all[..MANY];
    let daemon = it.start();
    assert_eq!(attached(&it), all);
    // One for each call to a mount process, of which there are few at a time.
    eventually("threads that have asked are gone", || threads(daemon.pid) < 30);
    let mnt = it.mnt("root");
    for name in all {
        fs::write(mnt.join(name).join("file"), name).unwrap();
    }
    let out = it.rig.run(&["status", mnt.join("123").to_str().unwrap()]).ok();
    assert_eq!(out.stdout.lines().filter(|line| line.contains("active")).count(), 1, "{}", out.stdout);

    let figures = || {
        let status = it.rig.run(&["status", "--json", mnt.to_str().unwrap()]).ok();
        let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
        let figure = |name: &str| status["volumes"][0]["process"][name].as_u64().unwrap();
        (figure("threads"), figure("open_fds"))
    };
    it.rig.run(&["sync", mnt.to_str().unwrap()]).ok();
    eventually("threads end when there is nothing to do", || figures().0 < 60);
    // The store, its socket, and the kernel's reference to the written file.
    assert!(figures().1 < 6 * MANY as u64, "{:?}", figures());

    inside(&it, &all[..MANY / 2]);
    daemon.signal(Signal::HUP);
    eventually("half of them are gone", || attached(&it) == all[..MANY / 2]);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    for name in all {
        assert_eq!(fs::read_to_string(it.store(name).join("file")).unwrap(), *name);
    }
    it.rig.is_quiet();
}

#[test]
fn a_reload_asks_only_for_what_has_changed() {
    const MANY: usize = 200;
    let Some((mut it, all)) = served(MANY) else { return };
    let daemon = it.start();
    // Nothing has changed, and no process is asked: it does not wait for one that does not answer.
    let stopped = Stopped::new(it.pid_of("root").unwrap());
    reload(&daemon, MANY, 0);
    drop(stopped);
    // One more.
    inside(&it, &all);
    reload(&daemon, MANY + 1, 1);
    eventually("it has come", || attached(&it) == all);
    // A volume that a user detached comes back; no process is asked about the others.
    it.rig.run(&["detach", it.mnt("root").join(&all[7]).to_str().unwrap()]).ok();
    assert_eq!(attached(&it).len(), MANY);
    reload(&daemon, MANY + 1, 1);
    eventually("it is back", || attached(&it) == all);
    // One less.
    inside(&it, &all[1..]);
    reload(&daemon, MANY + 1, 1);
    eventually("it is gone", || attached(&it) == all[1..]);
    reload(&daemon, MANY, 0);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    it.rig.is_quiet();
}
