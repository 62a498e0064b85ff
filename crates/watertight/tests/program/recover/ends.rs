//! What ends a mount that is kept, and what waits for the next server.

use std::fs;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Resource, Rlimit, Signal, getrlimit, kill_process, prlimit};

use super::Kept;
use crate::rig::{eventually, skipped, umount2};

/// Longer than a call takes that waits for nothing.
const SOON: Duration = Duration::from_secs(10);

/// Whether umount2(2) waits for the server here.
fn waits(it: &Kept) -> bool {
    let waits = it.rig.volume()["mount_type"] == "fuseblk";
    if !waits {
        skipped("umount2(2) does not wait here");
    }
    waits
}

#[test]
fn an_unmount_waits_for_the_next_server() {
    let Some(it) = Kept::mount(",dirty_after=1h") else { return };
    if !waits(&it) {
        return;
    }
    fs::write(it.at("file"), "file").unwrap();
    let mnt = it.rig.mnt.clone();
    it.while_none_serves(move || umount2(&mnt, UnmountFlags::empty()));
    assert_eq!(it.rig.stored("file").unwrap(), b"file", "umount2 has returned");
    assert_eq!(it.keeper.end(), Some(0), "{}", it.keeper.stderr());
    it.rig.is_quiet();
}

/// Whenever the server dies on the way of an unmount, the next one ends it.
#[test]
fn an_unmount_whose_server_dies_is_ended_by_the_next() {
    for step in 0..4_u64 {
        let Some(it) = Kept::mount(",dirty_after=1h") else { return };
        if !waits(&it) {
            return;
        }
        for n in 0..20 {
            fs::write(it.at(&n.to_string()), "file").unwrap();
        }
        let server = it.server();
        let mnt = it.rig.mnt.clone();
        let unmounting = thread::spawn(move || umount2(&mnt, UnmountFlags::empty()));
        thread::sleep(Duration::from_micros(step * 2000));
        // It may have ended by itself.
        let _sent = kill_process(server, Signal::KILL);
        unmounting.join().unwrap();
        for n in 0..20 {
            assert_eq!(it.rig.stored(&n.to_string()).unwrap(), b"file", "umount2 has returned");
        }
        // A server that has answered the unmount may die before its own end: no next one is needed.
        let ended = it.keeper.end();
        assert!(matches!(ended, Some(0 | 137)), "step {step}: {ended:?}: {}", it.keeper.stderr());
        // Nor has it said then how it ended.
        if ended == Some(0) {
            it.rig.is_quiet();
        }
    }
}

#[test]
fn a_forced_unmount_waits_for_no_server() {
    let Some(it) = Kept::mount("") else { return };
    let server = it.server();
    it.keeper.stop();
    kill_process(server, Signal::KILL).unwrap();
    let begun = Instant::now();
    rustix::mount::unmount(&it.rig.mnt, UnmountFlags::FORCE | UnmountFlags::DETACH).unwrap();
    assert!(begun.elapsed() < SOON && !it.rig.is_mounted());
    it.keeper.signal(Signal::CONT);
    assert!(it.keeper.end().is_some(), "nothing is left to be kept");
}

#[test]
fn verbs_wait_for_the_next_server_and_force_does_not() {
    let Some(it) = Kept::mount("") else { return };
    it.rig.run(&["limit", "/a", it.rig.mnt.to_str().unwrap(), "riops=7"]).ok();
    fs::write(it.at("file"), "file").unwrap();
    for verb in ["sync", "status"] {
        it.while_none_serves(|| it.rig.verb(verb, &[])).ok();
    }
    let file = it.at("file");
    it.while_none_serves(|| fs::File::open(file).unwrap().sync_all()).unwrap();
    assert_eq!(it.recovery(), ("on".to_owned(), 3));
    let limits = it.rig.run(&["limit", "--show", it.rig.mnt.to_str().unwrap()]).ok().stdout;
    assert!(limits.contains("riops=7"), "{limits}");
    it.rig.verb("umount", &["--force"]);
    assert!(!it.rig.is_mounted());
    it.keeper.end();
}

#[test]
fn umount_waits_for_the_next_server() {
    let Some(it) = Kept::mount("") else { return };
    fs::write(it.at("file"), "file").unwrap();
    it.while_none_serves(|| it.rig.verb("umount", &[])).ok();
    assert_eq!(it.keeper.end(), Some(0), "{}", it.keeper.stderr());
    assert_eq!(it.rig.stored("file").unwrap(), b"file");
    it.rig.is_quiet();
}

/// The children of a process that has one thread that starts them.
fn children(pid: u32) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
}

/// Servers that crash as soon as they are there are not started for ever.
#[test]
fn a_crash_loop_ends_the_mount_and_says_so() {
    let Some(it) = Kept::mount("") else { return };
    fs::write(it.at("file"), "file").unwrap();
    let keeper = it.keeper.pid;
    eventually("the keeper gives up", || {
        for server in children(keeper) {
            let _gone = kill_process(server, Signal::ABORT);
        }
        it.keeper.stderr().contains("no other is started") || watertight::host::process::is_zombie(keeper)
    });
    assert_eq!(it.keeper.end(), Some(1), "{}", it.keeper.stderr());
    assert!(fs::metadata(it.at("file")).is_err(), "nobody serves it");
    it.rig.verb("umount", &[]);
    assert!(!it.rig.is_mounted());
    assert_eq!(it.rig.stored("file").unwrap(), b"file");
}

/// A signal to the keeper, while no server is there, is the next one's.
#[test]
fn a_signal_is_not_lost_between_two_servers() {
    let Some(it) = Kept::mount("") else { return };
    let server = it.server();
    it.keeper.stop();
    kill_process(server, Signal::KILL).unwrap();
    it.keeper.signal(Signal::TERM);
    it.keeper.signal(Signal::CONT);
    eventually("it is unmounted", || !it.rig.is_mounted());
    it.keeper.end();
    assert!(!Path::new(&format!("/proc/{}", it.keeper.pid)).exists());
    it.rig.is_quiet();
}

/// What a host lacks for another server, it may have later: the mount waits, and says so.
#[test]
fn where_no_server_can_be_started_the_keeper_tries_again() {
    let Some(it) = Kept::mount("") else { return };
    fs::write(it.at("file"), "file").unwrap();
    let (keeper, server) = (Pid::from_raw(it.keeper.pid.cast_signed()), it.server());
    let few = Rlimit { current: Some(8), ..getrlimit(Resource::Nofile) };
    let before = prlimit(keeper, Resource::Nofile, few).unwrap();
    kill_process(server, Signal::KILL).unwrap();
    eventually("the keeper says so", || it.keeper.stderr().contains("no server can be started"));
    let file = it.at("file");
    thread::scope(|scope| {
        let reading = scope.spawn(|| fs::File::open(file).unwrap().sync_all());
        assert_eq!(children(it.keeper.pid), [], "it has no descriptors for one");
        prlimit(keeper, Resource::Nofile, before).unwrap();
        reading.join().unwrap().unwrap();
    });
    assert_eq!(it.recovery(), ("on".to_owned(), 1));
    it.unmount();
}

/// What the keeper is told finds no room after some hundred files.
#[test]
fn a_keeper_that_is_stopped_holds_up_nobody() {
    let Some(it) = Kept::mount("") else { return };
    let path = |n: usize| it.at(&n.to_string());
    let not_held = || it.rig.volume()["recovery"]["not_held"].as_u64().unwrap();
    it.keeper.stop();
    let mut files = Vec::new();
    eventually("the socket to the keeper is full", || {
        for n in files.len()..files.len() + 100 {
            fs::write(path(n), n.to_string()).unwrap();
            files.push(fs::File::open(path(n)).unwrap());
            fs::remove_file(path(n)).unwrap();
        }
        not_held() > 0
    });
    // These are dropped before the keeper holds others.
    let taken = files.len() - usize::try_from(not_held()).unwrap();
    files.drain(..taken / 2);
    it.keeper.signal(Signal::CONT);
    let last = it.at("last");
    eventually("the keeper holds files again", || {
        let before = not_held();
        fs::write(&last, "last").unwrap();
        let open = fs::File::open(&last).unwrap();
        fs::remove_file(&last).unwrap();
        let is_held = not_held() == before;
        files.push(open);
        is_held
    });
    it.kill_and_wait(Signal::KILL);
    let text = |file: &fs::File| std::io::read_to_string(file);
    assert_eq!(text(files.last().unwrap()).unwrap(), "last");
    for (n, file) in (taken / 2..taken).zip(&files) {
        assert_eq!(text(file).unwrap(), n.to_string(), "the keeper has held it");
    }
    drop(files);
    it.unmount();
}
