//! A store that stops answering for real: a directory on another mount, whose server is stopped by
//! a signal.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;

use rustix::process::Signal;

use crate::rig::{Daemon, LONG, Rig, eventually, run};
use crate::syncing::Syncing;

/// A volume whose store is on a mount of `server`, which can be stopped. The server goes first at
/// the end.
pub(crate) struct Stalling {
    pub(crate) rig: Rig,
    pub(crate) server: Daemon,
    _server_rig: Rig,
}

impl Stalling {
    pub(crate) fn new() -> Option<Self> {
        let mut server_rig = Rig::mounting()?;
        let server = server_rig.mount("type=fuse,uring=off");
        let mut rig = Rig::new();
        rig.store = server_rig.mnt.join("store");
        fs::create_dir(&rig.store).unwrap();
        Some(Self { rig, server, _server_rig: server_rig })
    }

    /// Mounts it, and has an fsync(2) of the file `before` wait for the server, which is stopped.
    pub(crate) fn stall(&mut self) -> (Daemon, Syncing) {
        let daemon = self.rig.mount("stall_after=200ms,dirty_after=1h");
        fs::write(self.rig.mnt.join("before"), "before").unwrap();
        // Opened before: an opening asks the store.
        let waiter = Syncing::prepare(&self.rig.mnt.join("before"), "during");
        self.server.stop();
        (daemon, waiter.begin())
    }

    pub(crate) fn is_stalled(&self) -> bool {
        self.rig.volume()["state"] == "stalled"
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        // Ends the waits in the kernel of every process that uses the store; a server that was
        // stopped dies of it as well.
        let _gone_already = rustix::process::kill_process(
            rustix::process::Pid::from_raw(self.server.pid.cast_signed()).unwrap(),
            Signal::KILL,
        );
    }
}

#[test]
fn a_stall_is_noticed_and_cleared_with_nothing_lost() {
    let Some(mut it) = Stalling::new() else { return };
    let (daemon, waiter) = it.stall();
    eventually("it is called stalled", || it.is_stalled());
    daemon.says(" is stalled: the store has not answered `");
    // A verb that looks at all mounts of the host is not held up by the mount whose server is
    // stopped.
    it.rig.run(&["status"]).ok().says("stalled: the store has not answered `");
    it.rig.verb("wait", &["--timeout", "100ms"]).ends(1, "not yet: stalled, 6 B of 1 file");
    it.server.signal(Signal::CONT);
    assert!(waiter.succeeds());
    eventually("it is active again", || it.rig.volume()["state"] == "active");
    daemon.says("the store answers again, after ");
    // On a busy machine it may have been called so more than once.
    let stalls = || it.rig.volume()["stalls"].as_u64().unwrap();
    let before = stalls();
    let told = it.rig.verb("events", &["--once", "--json"]).ok().stdout;
    let events = told.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let begun = events.filter(|event| event["kind"] == "stall" && event["edge"] == "begins").count();
    assert!(before > 0 && (before..=stalls()).contains(&(begun as u64)), "{before}: {told}");
    assert_eq!(it.rig.stored("before").unwrap(), b"during");
    it.rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_mount_of_a_store_whose_server_is_stopped_says_that_it_waits() {
    for in_background in [false, true] {
        let Some(it) = Stalling::new() else { return };
        it.server.stop();
        let mut mount = it.rig.command(&["mount"]);
        mount.args(in_background.then_some("-d")).arg(&it.rig.store).arg(&it.rig.mnt);
        let mount = Daemon::start(mount);
        mount.says(&format!("mounting {}: waiting for the store ", it.rig.mnt.display()));
        mount.says(", which does not answer");
        it.server.signal(Signal::CONT);
        let ready = mount.line(LONG).unwrap_or_else(|| panic!("not ready: {}", mount.stderr()));
        assert!(ready.starts_with("ready: "), "{ready}");
        it.rig.verb("umount", &[]).ok();
        assert_eq!(mount.end(), Some(0));
    }
}

#[test]
fn a_mount_that_waits_for_its_store_ends_by_a_signal_and_in_the_background_with_whoever_waits_for_it() {
    for (in_background, is_known) in [(false, false), (false, true), (true, false), (true, true)] {
        let Some(it) = Stalling::new() else { return };
        if is_known {
            // To the kernel: `mount` hangs when it opens it, not when it looks for it.
            fs::metadata(&it.rig.store).unwrap();
        }
        it.server.stop();
        let mut mount = it.rig.command(&["mount"]);
        mount.args(in_background.then_some("-d")).arg(&it.rig.store).arg(&it.rig.mnt);
        let mount = Daemon::start(mount);
        mount.says(", which does not answer");
        // A shell that has started the tests in the background ignores SIGINT for every child that
        // does not ask for it.
        mount.signal(if in_background { Signal::TERM } else { Signal::INT });
        assert_eq!(mount.end(), if in_background { None } else { Some(1) });
        // In the background its child prints that, and ends with it.
        mount.says(&format!("{}: stopped before it was mounted", it.rig.mnt.display()));
    }
}

#[test]
fn a_sync_of_a_mountpoint_leaves_out_a_stalled_volume_and_says_so() {
    let Some(mut server_rig) = Rig::mounting() else { return };
    let server = server_rig.mount("type=fuse,uring=off");
    let (hung, well) = (server_rig.mnt.join("store"), server_rig.root.join("well"));
    fs::create_dir(&hung).unwrap();
    fs::create_dir(&well).unwrap();
    let mut rig = Rig::new();
    let daemon = rig.mount("type=fuseblk,dirty_after=1h");
    for (name, store) in [("hung", &hung), ("well", &well)] {
        let at = rig.mnt.join(name);
        fs::create_dir(&at).unwrap();
        // The other one is not to be called stalled, however slow the machine is.
        let stall_after = if name == "hung" { "100ms" } else { "1h" };
        let mut attach = rig.command(&["attach"]);
        attach.args([store, &at]).args(["-o", &format!("stall_after={stall_after},dirty_after=1h")]);
        run(attach).ok();
        fs::write(at.join("file"), name).unwrap();
    }
    // Opened before: an opening asks the store.
    let waiter = Syncing::prepare(&rig.mnt.join("hung/file"), "");
    let there = File::open(rig.mnt.join("hung")).unwrap();
    server.stop();
    let waiter = waiter.begin();
    let is_stalled = || {
        let status = rig.status();
        let volumes = status["volumes"].as_array().unwrap();
        volumes.iter().any(|volume| volume["state"] == "stalled")
    };
    eventually("it is called stalled", is_stalled);
    rig.verb("sync", &[])
        .ends(1, "hung is left out: its store does not answer; its dirty data is not durable");
    assert_eq!(fs::read(well.join("file")).unwrap(), b"well");
    // By syncfs(2) as well, of any file: the data that this cgroup wrote there is not durable.
    assert_eq!(rustix::fs::syncfs(&there), Err(rustix::io::Errno::IO));
    for path in ["", "well"] {
        fs::write(rig.mnt.join("well/more"), path).unwrap();
        let mut sync = Command::new("sync");
        sync.arg("-f").arg(rig.mnt.join(path));
        run(sync).ends(1, "Input/output error");
        assert_eq!(fs::read_to_string(well.join("more")).unwrap(), path);
    }
    // Of the other volume nothing was left out.
    fs::write(rig.mnt.join("well/more"), "more").unwrap();
    let mut sync = rig.command(&["sync"]);
    sync.arg(rig.mnt.join("well"));
    run(sync).ok();
    assert_eq!(fs::read(well.join("more")).unwrap(), b"more");
    let left_out = "hung is left out of a sync of the mountpoint: its store does not answer";
    daemon.says(left_out);
    assert_eq!(daemon.stderr().matches(left_out).count(), 1, "once for each stall");
    server.signal(Signal::CONT);
    assert!(waiter.succeeds());
    assert_eq!(fs::read(hung.join("file")).unwrap(), b"hung");
    // Not at the first time: until a check of the volume, it counts as stalled; on a busy machine
    // it may do so once more.
    eventually("nothing is left out", || rig.verb("sync", &[]).code == Some(0));
    drop(there);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn force_over_a_stopped_server_returns_at_once_and_names_what_is_lost() {
    for kind in ["auto", "fuse"] {
        let Some(mut it) = Stalling::new() else { return };
        let daemon = it.rig.mount(&format!("type={kind},stall_after=100ms,dirty_after=1h"));
        for name in ["a", "b"] {
            fs::write(it.rig.mnt.join(name), vec![7; 100_000]).unwrap();
        }
        let waiter = Syncing::prepare(&it.rig.mnt.join("a"), "");
        it.server.stop();
        let waiter = waiter.begin();
        eventually("it is called stalled", || it.is_stalled());
        // By its store's path, which cannot be looked up now.
        let store = it.rig.store.to_str().unwrap().to_owned();
        it.rig.run(&["status", &store]).ok().says("stalled");
        it.rig.run(&["wait", "--timeout", "100ms", &store]).ends(1, "not yet: stalled");
        let out =
            it.rig.verb("umount", &["--force"]).ends(1, "not written: 195.3 KiB (200000 bytes) of 2 files");
        for line in ["  a: 100000 bytes", "  b: 100000 bytes"] {
            assert!(out.stderr.contains(line), "no {line:?} in: {}", out.stderr);
        }
        // Its threads wait in the kernel and cannot be ended: that is said, not waited for.
        assert!(out.stderr.contains("waits in the kernel until its store answers"), "{}", out.stderr);
        // The verb did not wait for any other deadline, which would be printed here.
        assert!(!daemon.stderr().contains("has not removed the mount"), "{}", daemon.stderr());
        println!("--force over a stopped server ({kind}) took {:?}", out.took);
        assert!(!it.rig.is_mounted());
        assert!(!waiter.succeeds(), "who waited gets an error");
        // The process may still exist, which does not keep the known figures from being reported.
        let out = it.rig.verb("wait", &["--timeout", "100ms"]).ends(1, "200000 bytes");
        assert!(out.stderr.contains("not everything is on "), "{}", out.stderr);
        it.rig.run(&["wait", "--timeout", "100ms", &store]).ends(1, "200000 bytes");
        it.server.signal(Signal::CONT);
        assert_eq!(daemon.end(), Some(1));
        it.rig.verb("wait", &[]).ends(1, "200000 bytes");
    }
}

#[test]
fn whoever_ends_a_volume_does_not_wait_for_its_first_syncfs() {
    let Some(it) = Stalling::new() else { return };
    // Known to the kernel: the mount waits where it opens it.
    fs::metadata(&it.rig.store).unwrap();
    it.server.stop();
    let mut mount = it.rig.command(&["mount"]);
    mount.arg(&it.rig.store).arg(&it.rig.mnt);
    let mount = Daemon::start(mount);
    mount.says(", which does not answer");
    // The process that makes that call for it hangs, as it would over a store that does.
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", mount.pid)).unwrap();
    let helper = rustix::process::Pid::from_raw(children.trim().parse().unwrap()).unwrap();
    rustix::process::kill_process(helper, Signal::STOP).unwrap();
    it.server.signal(Signal::CONT);
    eventually("it is mounted", || it.rig.is_mounted());
    let ended = it.rig.verb("umount", &["--force"]);
    // It may have been killed with the mount process.
    let _gone = rustix::process::kill_process(helper, Signal::CONT);
    assert!(!ended.stderr.contains("did not answer"), "{}", ended.stderr);
    assert!(!it.rig.is_mounted());
    mount.end();
}

#[test]
fn what_the_kernel_is_asked_does_not_wait_for_the_store() {
    let Some(mut it) = Stalling::new() else { return };
    // No deadline that could help.
    let daemon = it.rig.mount("type=fuse,stall_after=100ms,dirty_after=1h,drain_timeout=1h");
    // A file that the process has open on the stopped server: a child of it would have to close its
    // copy.
    fs::write(it.rig.mnt.join("dirty"), "dirty").unwrap();
    it.server.stop();
    daemon.signal(Signal::TERM);
    eventually("the path is gone", || !it.rig.is_mounted());
    it.server.signal(Signal::CONT);
    assert_eq!(daemon.end(), Some(0));
    assert_eq!(it.rig.stored("dirty").unwrap(), b"dirty");
}

#[test]
fn sigterm_over_a_stalled_store_ends_at_its_deadline_and_says_what_is_lost() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:hang", "stall_after=100ms,dirty_after=1h,drain_timeout=500ms");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(1));
    let said = daemon.stderr();
    assert!(said.contains(&format!("{}: failed, not everything is on", rig.mnt.display())), "{said}");
    assert!(said.contains("a: 5 bytes"), "{said}");
    assert!(!rig.is_mounted());
}

#[test]
fn an_unmount_that_waits_for_a_store_says_so_and_what_was_lost_when_sigterm_has_given_it_up() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:hang", "stall_after=100ms,dirty_after=1h,drain_timeout=500ms");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    let mut umount = rig.command(&["umount"]);
    let mut umount = umount.arg(&rig.mnt).stdin(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let (lines, (tell, told)) = (BufReader::new(umount.stderr.take().unwrap()).lines(), channel());
    thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let line = told.recv_timeout(LONG).expect("it says that it waits");
    for part in ["the store has not answered `", "5 B of 1 file to be written", "`watertight umount --force`"]
    {
        assert!(line.contains(part), "no {part:?} in: {line}");
    }
    assert!(rig.is_mounted());
    daemon.signal(Signal::TERM);
    assert_eq!(umount.wait().unwrap().code(), Some(1));
    let said: Vec<String> = told.iter().collect();
    let said = said.join("\n");
    assert!(said.contains("not everything is on ") && said.contains("a: 5 bytes"), "{said}");
    assert!(!said.contains("stays mounted"), "{said}");
    assert_eq!(daemon.end(), Some(1));
}

#[test]
fn a_read_that_hangs_is_a_stall_too() {
    let Some(mut rig) = Rig::mounting() else { return };
    fs::write(rig.store.join("a"), "12345").unwrap();
    let daemon = rig.mount_faulty("read:hang", "stall_after=100ms");
    let path = rig.mnt.join("a");
    let reader = thread::spawn(move || fs::read(path));
    rig.is_stalled_in("read_at");
    // Nothing is lost by giving it up: nothing was written.
    rig.verb("umount", &["--force"]).ok();
    assert!(reader.join().unwrap().is_err());
    assert!(daemon.end().is_some());
}

const WRITTEN: &str =
    "everything was written; up to 5 bytes are not known to be durable: the store did not answer in time";

#[test]
fn force_does_not_wait_for_a_sync_that_hangs_and_says_that_nothing_is_known_to_be_durable() {
    for is_stalled in [false, true] {
        let Some(mut rig) = Rig::mounting() else { return };
        // No client has asked the store for anything, or one waits for it.
        let daemon = rig.mount_faulty("sync:hang", "stall_after=50ms,dirty_after=10ms");
        fs::write(rig.mnt.join("a"), "12345").unwrap();
        eventually("it is written", || rig.stored("a").as_deref() == Some(b"12345"));
        eventually("nothing is dirty", || rig.volume()["dirty_bytes"] == 0);
        let waiter = is_stalled.then(|| {
            let waiter = Syncing::prepare(&rig.mnt.join("a"), "").begin();
            eventually("it is called stalled", || rig.volume()["state"] == "stalled");
            waiter
        });
        let out = rig.verb("umount", &["--force"]).ends(1, WRITTEN);
        assert!(out.stderr.contains("not written: 0 bytes of 0 files"), "{}", out.stderr);
        println!("--force over a sync that hangs (stalled: {is_stalled}) took {:?}", out.took);
        assert!(waiter.is_none_or(|waiter| !waiter.succeeds()), "who waits gets an error");
        assert_eq!(daemon.end(), Some(1));
    }
}

#[test]
fn the_drain_deadline_over_a_sync_that_hangs_says_that_everything_was_written() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("sync:hang", "stall_after=50ms,dirty_after=10ms,drain_timeout=500ms");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    // Before the deadline has begun, which is short for a busy machine.
    eventually("nothing is dirty", || rig.volume()["dirty_bytes"] == 0);
    daemon.signal(Signal::TERM);
    assert_eq!(daemon.end(), Some(1));
    let said = daemon.stderr();
    assert!(said.contains(WRITTEN) && said.contains("given up after 500 ms"), "{said}");
    assert_eq!(rig.stored("a").unwrap(), b"12345");
}

#[test]
fn force_does_not_wait_for_a_write_that_hangs_and_names_the_file() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:hang", "stall_after=1h,dirty_after=1h,drain_timeout=1h");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    let waiter = Syncing::prepare(&rig.mnt.join("a"), "").begin();
    eventually("the write is under way", || rig.volume()["writeback_bytes"] != 0);
    let out = rig.verb("umount", &["--force"]).ends(1, "a: 5 bytes");
    println!("--force over a write that hangs took {:?}", out.took);
    assert!(!waiter.succeeds(), "who waited gets an error");
    assert_eq!(daemon.end(), Some(1));
}
