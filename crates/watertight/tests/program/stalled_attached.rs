//! Attached volumes whose stores do not answer: the threads and memory that they hold, how they are
//! given up, and the end of their mountpoint.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Daemon, Out, Rig, eventually, is_stalled_in, run};
use crate::syncing::Syncing;

/// A mountpoint with volumes attached to it, and a server that can be stopped, on whose mount some
/// of the stores are.
struct World {
    rig: Rig,
    daemon: Daemon,
    server: Option<(Daemon, Rig)>,
}

impl World {
    fn new(options: &str) -> Option<Self> {
        let mut rig = Rig::mounting()?;
        let daemon = rig.mount(options);
        Some(Self { rig, daemon, server: None })
    }

    /// With a server of its own.
    fn with_server(options: &str) -> Option<Self> {
        let mut server_rig = Rig::mounting()?;
        let server = server_rig.mount("type=fuse,uring=off");
        let mut world = Self::new(options)?;
        world.server = Some((server, server_rig));
        Some(world)
    }

    /// A path of the mountpoint; empty: the mountpoint itself.
    fn path(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.rig.mnt.clone() } else { self.rig.mnt.join(path) }
    }

    /// The directory of a store, which is made.
    fn store(&self, name: &str) -> PathBuf {
        let dir = self.rig.root.join(format!("store-{name}"));
        let _is_there = fs::create_dir(&dir);
        dir
    }

    /// A store on the mount of the server.
    fn store_on_server(&self, name: &str) -> PathBuf {
        let (_, rig) = self.server.as_ref().unwrap();
        let dir = rig.mnt.join(name);
        let _is_there = fs::create_dir(&dir);
        dir
    }

    fn stop(&self) {
        self.server.as_ref().unwrap().0.stop();
    }

    fn go_on(&self) {
        self.server.as_ref().unwrap().0.signal(Signal::CONT);
    }

    fn run(&self, verb: &str, arguments: &[&Path]) -> Out {
        let mut command = self.rig.command(&[verb]);
        command.args(arguments);
        run(command)
    }

    /// Attaches at a directory that is made for it.
    fn attach(&self, source: &str, name: &str, options: &str) {
        let path = self.path(name);
        fs::create_dir(&path).unwrap();
        self.run("attach", &[Path::new("-o"), Path::new(options), Path::new(source), &path]).ok();
    }

    /// The `status` of the volume at a path of the mountpoint.
    fn status(&self, path: &str) -> Value {
        let status = self.rig.status();
        let at = self.path(path);
        let volumes = status["volumes"].as_array().unwrap();
        volumes.iter().find(|v| v["mountpoint"] == at.to_str().unwrap()).cloned().unwrap_or_default()
    }

    /// The threads of the mount process, by name.
    fn threads(&self) -> Vec<String> {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.daemon.pid)).unwrap();
        let name =
            |task: std::io::Result<fs::DirEntry>| fs::read_to_string(task.ok()?.path().join("comm")).ok();
        tasks.filter_map(name).map(|name| name.trim().to_owned()).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        if let Some((server, _)) = &self.server {
            let pid = rustix::process::Pid::from_raw(server.pid.cast_signed()).unwrap();
            let _gone_already = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}

const CLIENTS: usize = 1000;
/// Places for requests of the mountpoint.
const PLACES: u64 = 256;

#[test]
fn a_thousand_clients_of_a_stalled_volume_take_a_bounded_number_of_threads_and_hold_up_nobody() {
    // The others are not to be called stalled, however slow the machine is.
    let Some(world) = World::with_server(&format!("threads={PLACES},stall_after=1h")) else { return };
    let hung = world.store_on_server("hung");
    fs::write(hung.join("file"), "x").unwrap();
    world.attach(hung.to_str().unwrap(), "hung", "stall_after=100ms");
    world.attach("mem:", "other", "stall_after=1h");
    let before = world.status("")["process"].clone();
    world.stop();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            // Names that the kernel does not know: the store is asked.
            let path = world.path("hung").join(n.to_string());
            let client = move || fs::symlink_metadata(path).map(drop).map_err(|error| error.raw_os_error());
            thread::Builder::new().stack_size(64 << 10).spawn(client).unwrap()
        })
        .collect();
    eventually("it is called stalled", || world.status("hung")["state"] == "stalled");
    // Other volumes of the mountpoint, and other processes, go on beside them.
    let begun = Instant::now();
    for n in 0..50 {
        for dir in ["", "other"] {
            let path = world.path(dir).join(format!("new-{n}"));
            fs::write(&path, "new").unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"new");
        }
    }
    File::open(world.path("other/new-0")).unwrap().sync_all().unwrap();
    println!("100 files beside {CLIENTS} clients of a stalled volume took {:?}", begun.elapsed());
    world.run("status", &[]).ok();
    // Those beyond the volume's share fail; the others wait.
    let share = 1 + usize::try_from(PLACES).unwrap() / 8;
    let failed = || clients.iter().filter(|client| client.is_finished()).count();
    eventually("who has no place gets an error", || failed() >= CLIENTS - share);
    assert!(failed() < CLIENTS, "the first ones wait");
    let after = world.status("")["process"].clone();
    let grown = |what: &str| after[what].as_u64().unwrap().saturating_sub(before[what].as_u64().unwrap());
    println!("threads: {} more, memory: {} bytes more", grown("threads"), grown("resident_bytes"));
    // As many as the capacity of the mountpoint, as many again in place of those that hang, and for
    // entries of a CPU that ran short; some for other things.
    assert!(grown("threads") <= 3 * PLACES + 64, "{after}");
    assert!(grown("resident_bytes") <= (3 * PLACES + 64) * (256 << 10), "{after}");
    world.go_on();
    for client in clients {
        let answer = client.join().unwrap().unwrap_err();
        let answer = answer.map(Errno::from_raw_os_error);
        assert!(matches!(answer, Some(Errno::NOENT | Errno::IO)), "{answer:?}");
    }
    eventually("it is active again", || world.status("hung")["state"] == "active");
    assert_eq!(fs::read(world.path("hung/file")).unwrap(), b"x");
    world.run("detach", &[&world.path("hung")]).ok();
    world.rig.verb("umount", &[]).ok();
    assert_eq!(world.daemon.end(), Some(0));
}

/// The server is asked at each close.
#[test]
fn more_files_than_places_that_are_closed_over_a_stopped_server_hold_up_nobody() {
    // The others are not to be called stalled, however slow the machine is.
    let Some(world) = World::with_server(&format!("threads={PLACES},stall_after=1h")) else { return };
    let (hung, other) = (world.store_on_server("hung"), world.store("other"));
    world.attach(hung.to_str().unwrap(), "hung", "stall_after=100ms");
    world.attach(other.to_str().unwrap(), "other", "stall_after=1h");
    let open = |n: usize| {
        fs::write(hung.join(n.to_string()), "x").unwrap();
        let file = File::open(world.path("hung").join(n.to_string())).unwrap();
        // Asked of the store while it answers.
        file.metadata().unwrap();
        file
    };
    let open: Vec<_> = (0..2 * usize::try_from(PLACES).unwrap()).map(open).collect();
    world.stop();
    let close = |file| thread::Builder::new().stack_size(64 << 10).spawn(move || drop::<File>(file)).unwrap();
    let clients: Vec<_> = open.into_iter().map(close).collect();
    eventually("it is called stalled", || world.status("hung")["state"] == "stalled");
    let root = world.path("other");
    let neighbour = thread::spawn(move || {
        for n in 0..50 {
            // So much that the kernel reads it ahead.
            let (name, data) = (n.to_string(), vec![b'y'; 256 << 10]);
            fs::write(other.join(&name), &data).unwrap();
            assert_eq!(fs::read(root.join(name)).unwrap(), data);
        }
    });
    eventually("a neighbour reads", || neighbour.is_finished());
    neighbour.join().unwrap();
    eventually("nobody waits for a close", || clients.iter().all(thread::JoinHandle::is_finished));
    assert_eq!(world.status("hung")["state"], "stalled");
    world.go_on();
    eventually("it is active again", || world.status("hung")["state"] == "active");
    assert_eq!(fs::read(world.path("hung/0")).unwrap(), b"x");
    eventually("nothing of it is open", || world.run("detach", &[&world.path("hung")]).code == Some(0));
    // The store is free: nothing has a file there.
    world.server.as_ref().unwrap().1.verb("umount", &[]).ok();
    world.rig.verb("umount", &[]).ok();
    assert_eq!(world.daemon.end(), Some(0));
}

#[test]
fn detach_force_over_a_stopped_server_with_many_requests_answers_all_of_them() {
    let Some(world) = World::with_server("stall_after=100ms") else { return };
    let hung = world.store_on_server("hung");
    world.attach(hung.to_str().unwrap(), "hung", "stall_after=100ms,dirty_after=1h");
    fs::write(world.path("hung/dirty"), "12345").unwrap();
    // By way of the directory: a call that comes late finds the volume that was given up, and not
    // the directory below it.
    let dir = Arc::new(File::open(world.path("hung")).unwrap());
    world.stop();
    let client = |n: usize| {
        let dir = Arc::clone(&dir);
        // Some of them have the lock of the directory.
        thread::spawn(move || {
            if n.is_multiple_of(2) {
                rustix::fs::mkdirat(&*dir, n.to_string(), rustix::fs::Mode::RWXU)
            } else {
                rustix::fs::statat(&*dir, n.to_string(), rustix::fs::AtFlags::empty()).map(drop)
            }
        })
    };
    let clients: Vec<_> = (0..100).map(client).collect();
    eventually("it is called stalled", || world.status("hung")["state"] == "stalled");
    let out = world.run("detach", &[Path::new("--force"), &world.path("hung")]).ends(1, "dirty: 5 bytes");
    println!("detach --force over a stopped server with many requests took {:?}", out.took);
    for client in clients {
        assert!(client.join().unwrap().is_err(), "who waited gets an error");
    }
    drop(dir);
    assert!(!world.path("hung/dirty").exists());
    // Neither the threads that serve other volumes nor the one that answers `status` are kept.
    fs::write(world.path("own"), "own").unwrap();
    world.run("status", &[]).ok();
    world.go_on();
    eventually("its threads are gone", || !world.threads().iter().any(|name| name == "wt-given-up"));
    world.rig.verb("umount", &[]).ends(1, "dirty: 5 bytes");
    assert_eq!(world.daemon.end(), Some(1), "what was lost is told once more");
}

#[test]
fn what_was_open_of_a_volume_that_is_given_up_is_closed_by_a_thread_of_its_own() {
    let Some(world) = World::with_server("stall_after=100ms,drain_timeout=500ms") else { return };
    let hung = world.store_on_server("hung");
    fs::write(hung.join("file"), "x").unwrap();
    world.attach(hung.to_str().unwrap(), "hung", "stall_after=100ms,dirty_after=1h");
    // Open on the server: its close waits for the server.
    let open = File::options().append(true).open(world.path("hung/file")).unwrap();
    fs::write(world.path("hung/dirty"), "12345").unwrap();
    world.stop();
    let out = world.run("detach", &[Path::new("--force"), &world.path("hung")]).ends(1, "dirty: 5 bytes");
    println!("detach --force with files open on a stopped server took {:?}", out.took);
    eventually("a thread closes what was open", || world.threads().iter().any(|name| name == "wt-given-up"));
    drop(open);
    fs::write(world.path("own"), "own").unwrap();
    File::open(world.path("own")).unwrap().sync_all().unwrap();
    // The end does not wait for it, and logs that.
    world.daemon.signal(Signal::TERM);
    world.daemon.says("files are still being closed; this process does not wait for that");
    world.go_on();
    assert_eq!(world.daemon.end(), Some(1), "data was lost");
    assert_eq!(world.rig.stored("own").unwrap(), b"own");
}

#[test]
fn a_detach_that_waits_for_its_store_ends_when_the_volume_is_given_up() {
    for how in [None, Some("--lazy")] {
        let Some(world) = World::new("dirty_after=1h") else { return };
        let source = format!("fault:write:hang,dir:{}", world.store("a").display());
        world.attach(&source, "a", "stall_after=50ms,dirty_after=1h");
        fs::write(world.path("a/file"), "12345").unwrap();
        let mut command = world.rig.command(&["detach"]);
        command.args(how).arg(world.path("a"));
        let waiting = thread::spawn(move || run(command));
        // In a call that is its: it has come so far.
        eventually("it is called stalled", || is_stalled_in(&world.status("a"), "write"));
        assert!(!waiting.is_finished(), "it must not claim what is not so");
        let id = world.status("a")["id"].as_str().unwrap().to_owned();
        // By its path, which may have gone, or its id.
        let name = if how.is_none() { world.path("a") } else { PathBuf::from(id) };
        world.run("umount", &[Path::new("--force"), &name]).ends(1, "5 bytes");
        waiting.join().unwrap().ends(1, "5 bytes");
        fs::write(world.path("own"), "own").unwrap();
        world.rig.verb("umount", &["--force"]);
        assert!(world.daemon.end().is_some());
    }
}

#[test]
fn after_detach_force_neither_syncs_nor_the_mountpoints_end_wait_for_the_store() {
    let Some(world) = World::new("stall_after=100ms,dirty_after=1h,drain_timeout=60s") else { return };
    let source = format!("fault:write:hang,dir:{}", world.store("a").display());
    world.attach(&source, "a", "stall_after=100ms,dirty_after=1h");
    fs::write(world.path("a/file"), "12345").unwrap();
    let waiter = Syncing::prepare(&world.path("a/file"), "").begin();
    eventually("it is called stalled", || world.status("a")["state"] == "stalled");
    world.run("detach", &[Path::new("--force"), &world.path("a")]).ends(1, "file: 5 bytes");
    assert!(!waiter.succeeds(), "who waited gets an error");
    fs::write(world.path("own"), "own").unwrap();
    world.run("sync", &[&world.path("")]).ok();
    world.daemon.signal(Signal::TERM);
    assert_eq!(world.daemon.end(), Some(1), "what was lost is told once more");
    let said = world.daemon.stderr();
    assert!(said.contains("a/file: 5 bytes"), "{said}");
    assert!(!said.contains("in which nothing could be written"), "it was waited for: {said}");
    assert_eq!(world.rig.stored("own").unwrap(), b"own");
}

#[test]
fn detach_force_over_a_sync_that_hangs_says_that_everything_was_written() {
    let Some(world) = World::new("dirty_after=1h") else { return };
    let store = world.store("a");
    world.attach(
        &format!("fault:sync:hang,dir:{}", store.display()),
        "a",
        "stall_after=50ms,dirty_after=10ms",
    );
    fs::write(world.path("a/file"), "12345").unwrap();
    eventually("it is written", || fs::read(store.join("file")).is_ok_and(|data| data == b"12345"));
    eventually("nothing is dirty", || world.status("a")["dirty_bytes"] == 0);
    let waiter = Syncing::prepare(&world.path("a/file"), "").begin();
    eventually("it is called stalled", || world.status("a")["state"] == "stalled");
    let said =
        "everything was written; up to 5 bytes are not known to be durable: the store did not answer in time";
    let out = world.run("detach", &[Path::new("--force"), &world.path("a")]).ends(1, said);
    println!("detach --force over a sync that hangs took {:?}", out.took);
    assert!(!waiter.succeeds(), "who waited gets an error");
    world.rig.verb("umount", &["--force"]);
    assert!(world.daemon.end().is_some());
}

#[test]
fn sigterm_beside_several_stalled_volumes_ends_at_one_deadline_and_says_which_and_what_is_lost() {
    for kind in ["auto", "fuse"] {
        let options = format!("type={kind},stall_after=100ms,dirty_after=1h,drain_timeout=1s");
        let Some(world) = World::new(&options) else { return };
        let (stalled, healthy) = (["a", "b", "c"], ["d", "e", "f"]);
        for name in stalled.iter().chain(&healthy) {
            let fault = if stalled.contains(name) { "fault:write:hang," } else { "" };
            let source = format!("{fault}dir:{}", world.store(name).display());
            world.attach(&source, name, "stall_after=100ms,dirty_after=1h,drain_timeout=1s");
            fs::write(world.path(name).join("file"), "12345").unwrap();
        }
        // One is stalled before, the others by the end itself.
        let waiter = Syncing::prepare(&world.path("a/file"), "").begin();
        eventually("it is called stalled", || world.status("a")["state"] == "stalled");
        fs::write(world.path("own"), "own").unwrap();
        let begun = Instant::now();
        world.daemon.signal(Signal::TERM);
        assert_eq!(world.daemon.end(), Some(1));
        println!("SIGTERM beside three stalled volumes ({kind}) took {:?}", begun.elapsed());
        assert!(!waiter.succeeds());
        let said = world.daemon.stderr();
        for name in stalled {
            let path = world.path(name);
            assert!(said.contains(&format!("not everything of {} was written", path.display())), "{said}");
            assert!(said.contains(&format!("{}/file: 5 bytes", path.display())), "{said}");
        }
        assert!(said.contains("not written: 15 bytes of 3 files"), "{said}");
        // One deadline, and no further patience after it.
        assert_eq!(
            said.matches("given up after 1.0 s in which nothing could be written").count(),
            1,
            "{said}"
        );
        for name in healthy {
            assert_eq!(fs::read(world.store(name).join("file")).unwrap(), b"12345", "{name}");
        }
        assert_eq!(world.rig.stored("own").unwrap(), b"own");
        assert!(!world.rig.is_mounted());
    }
}

/// A mountpoint with two volumes, the store of one of which may hang, all with something to write;
/// and how long its end by SIGTERM took.
fn ended_where_nothing_is_open(fault: &str) -> Option<(World, Option<i32>, Duration)> {
    let world = World::new("stall_after=100ms,dirty_after=1h,drain_timeout=2s")?;
    for (name, fault) in [("a", fault), ("b", "")] {
        let source = format!("{fault}dir:{}", world.store(name).display());
        world.attach(&source, name, "stall_after=100ms,dirty_after=1h");
        fs::write(world.path(name).join("file"), "12345").unwrap();
    }
    fs::write(world.path("own"), "own").unwrap();
    let begun = Instant::now();
    world.daemon.signal(Signal::TERM);
    let code = world.daemon.end();
    Some((world, code, begun.elapsed()))
}

/// The kernel asks for the end then, and the mountpoint's own volume ends after the attached ones:
/// that is no work.
#[test]
fn sigterm_where_nothing_is_open_ends_at_the_same_deadline() {
    let Some((world, code, took)) = ended_where_nothing_is_open("fault:write:hang,") else { return };
    println!("SIGTERM where nothing is open took {took:?}");
    let said = world.daemon.stderr();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("given up after 2.0 s in which nothing could be written"), "{said}");
    assert_eq!(fs::read(world.store("b").join("file")).unwrap(), b"12345");
    assert_eq!(world.rig.stored("own").unwrap(), b"own");
    // A volume that is at work has five seconds more. A run where nothing hangs shows how slow the
    // machine and its disk are now.
    let Some((_beside, code, alone)) = ended_where_nothing_is_open("") else { return };
    assert_eq!(code, Some(0));
    assert!(took < Duration::from_secs(7) || alone > Duration::from_secs(1), "{took:?}, {alone:?}: {said}");
}

/// The processes of volumes whose stores hang in the kernel cannot go, and are not waited for.
#[test]
fn sigterm_of_serve_beside_several_stalled_volumes_says_which_and_what_is_lost() {
    let Some(mut world) = World::with_server("dirty_after=1h") else { return };
    let stores = [world.store("a"), world.store_on_server("b"), world.store_on_server("c")];
    let mut text = String::new();
    for (name, store) in ["a", "b", "c"].iter().zip(&stores) {
        let mountpoint = world.rig.root.join(name);
        fs::create_dir(&mountpoint).unwrap();
        text.push_str(&format!(
            "[[volume]]\nsource = \"dir:{}\"\nmountpoint = \"{}\"\n\
             options = \"stall_after=100ms,dirty_after=1h,drain_timeout=1s\"\n",
            store.display(),
            mountpoint.display()
        ));
    }
    let file = world.rig.root.join("volumes.toml");
    fs::write(&file, text).unwrap();
    let mut command = world.rig.command(&["serve"]);
    command.arg(&file);
    let serve = world.rig.start(command);
    for name in ["a", "b", "c"] {
        fs::write(world.rig.root.join(name).join("file"), "12345").unwrap();
    }
    world.stop();
    let begun = Instant::now();
    serve.signal(Signal::TERM);
    assert_eq!(serve.end(), Some(1));
    println!("SIGTERM of serve beside two stalled volumes took {:?}", begun.elapsed());
    let said = serve.stderr();
    let last = said.rsplit_once("not everything is written:").unwrap().1;
    for name in ["b", "c"] {
        let path = world.rig.root.join(name);
        let line = last.lines().find(|line| line.contains(&format!("{}: its process", path.display())));
        assert!(line.is_some_and(|line| line.contains("file: 5 bytes")), "{name}: {said}");
    }
    assert!(!last.contains(&format!("{}: ", world.rig.root.join("a").display())), "{said}");
    assert_eq!(fs::read(stores[0].join("file")).unwrap(), b"12345");
    world.go_on();
    world.rig.verb("umount", &[]).ok();
    assert_eq!(world.daemon.end(), Some(0));
}
