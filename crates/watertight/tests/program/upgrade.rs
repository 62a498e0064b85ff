//! `upgrade`: another program takes the place of the one that serves, and the mount goes on.

mod attached;
mod clones;
mod held_up;
pub(crate) mod load;

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::rig::{Daemon, LONG, Out, PROGRAM, Rig, copy_program, eventually, run, skipped, umount2};
use crate::stalled::Stalling;
use load::Load;

/// How often a mount is upgraded under load, unless `WATERTIGHT_UPGRADES` says otherwise.
const UPGRADES: usize = 20;

/// How long requests waited for each of many upgrades.
#[derive(Default)]
pub(crate) struct Pauses(Vec<u64>);

impl Pauses {
    /// How many upgrades there are to be; `plain`: without a campaign.
    pub(crate) fn wanted(plain: usize) -> u64 {
        let given = std::env::var("WATERTIGHT_UPGRADES").ok().and_then(|n| n.parse().ok());
        given.unwrap_or(plain as u64)
    }

    /// The last one of a mountpoint's volume.
    pub(crate) fn note(&mut self, volume: &serde_json::Value) {
        self.0.push(volume["upgrades"]["pause_us"].as_u64().unwrap());
    }

    pub(crate) fn summary(mut self, what: &str) -> String {
        self.0.sort_unstable();
        let at = |part: usize| Duration::from_micros(self.0[(self.0.len() - 1) * part / 100]);
        let n = self.0.len();
        format!("{what}: n {n}, p50 {:?}, p95 {:?}, p99 {:?}, max {:?}", at(50), at(95), at(99), at(100))
    }
}

/// A copy of the program that nobody else can write to, wherever the one under test lies.
pub(crate) fn next_program(rig: &Rig) -> PathBuf {
    let path = rig.root.join("next");
    if !path.exists() {
        copy_program(PROGRAM, &path);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    path
}

/// Upgrades the rig's mount, by `next_program`.
pub(crate) fn upgrade(rig: &Rig, more: &[&str]) -> Out {
    let program = next_program(rig);
    rig.verb("upgrade", &[&["--program", program.to_str().unwrap()], more].concat())
}

/// Upgrades by a program.
pub(crate) fn upgrade_by(rig: &Rig, program: &Path) -> Out {
    rig.verb("upgrade", &["--program", program.to_str().unwrap()])
}

/// Over `/dev/fuse`, whatever the host's switch for io_uring says.
fn mounted(options: &str) -> Option<(Rig, Daemon)> {
    let mut rig = Rig::mounting()?;
    let daemon = rig.mount(&format!("{options}uring=off"));
    Some((rig, daemon))
}

/// How often it was upgraded, and how often that failed in the new program.
pub(crate) fn counts(rig: &Rig) -> (u64, u64) {
    let upgrades = rig.volume()["upgrades"].clone();
    (upgrades["count"].as_u64().unwrap(), upgrades["failed"].as_u64().unwrap())
}

fn pause_us(rig: &Rig) -> u64 {
    rig.volume()["upgrades"]["pause_us"].as_u64().unwrap()
}

#[test]
fn programs_notice_a_pause_and_nothing_else() {
    let Some((rig, daemon)) = mounted("dirty_after=1h,") else { return };
    let started = rig.volume()["started_ms"].clone();
    let load = Load::start(&rig.mnt);
    let mut pauses = Pauses::default();
    for n in 1..=Pauses::wanted(UPGRADES) {
        load.step();
        upgrade(&rig, &["--max-pause", "60s"]).ok().says("requests waited");
        assert_eq!(counts(&rig), (n, 0), "{}", daemon.stderr());
        pauses.note(&rig.volume());
        load.check();
    }
    println!("{}", pauses.summary("upgrades under load"));
    load.finish();
    let volume = rig.volume();
    assert_eq!((&volume["pid"], &volume["started_ms"]), (&daemon.pid.into(), &started));
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    rig.is_quiet();
    load.is_in(&rig.store);
}

#[test]
fn what_was_open_is_open_still() {
    for mode in ["write-through", "kernel-writeback"] {
        let Some((rig, daemon)) = mounted(&format!("mode={mode},dirty_after=1h,")) else { return };
        is_open_still(&rig);
        assert_eq!(rig.volume()["mode"], mode);
        rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
        assert_eq!(rig.stored("log").unwrap(), b"one\nmore\nmore\nmore\n");
        assert_eq!(rig.stored("secret").unwrap(), b"secret+++");
        assert!(rig.stored("gone").is_none());
    }
}

pub(crate) fn is_open_still(rig: &Rig) {
    // A file that nobody could open again, one without a name, and one that never had one.
    let secret = rig.mnt.join("secret");
    let mut options = OpenOptions::new();
    let mut secret = options.read(true).write(true).create_new(true).mode(0o0).open(secret).unwrap();
    secret.write_all(b"secret").unwrap();
    let mut gone = options.mode(0o644).open(rig.mnt.join("gone")).unwrap();
    gone.write_all(b"gone").unwrap();
    fs::remove_file(rig.mnt.join("gone")).unwrap();
    let tmp_flags = rustix::fs::OFlags::TMPFILE.bits().cast_signed();
    let tmp = OpenOptions::new().read(true).write(true).mode(0o600).custom_flags(tmp_flags).open(&rig.mnt);
    let mut tmp = tmp.unwrap();
    tmp.write_all(b"tmp").unwrap();
    let mut appended = OpenOptions::new().append(true).create(true).open(rig.mnt.join("log")).unwrap();
    appended.write_all(b"one\n").unwrap();
    for round in 0..3 {
        upgrade(rig, &[]).ok();
        for (file, text) in [(&mut secret, "secret"), (&mut gone, "gone"), (&mut tmp, "tmp")] {
            let mut read = String::new();
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_string(&mut read).unwrap();
            assert!(read.starts_with(text), "{round}: {read:?}");
            file.write_all(b"+").unwrap();
            file.sync_all().unwrap();
            assert_eq!(file.metadata().unwrap().len(), text.len() as u64 + round + 1);
        }
        appended.write_all(b"more\n").unwrap();
    }
    assert_eq!(gone.metadata().unwrap().nlink(), 0);
    // New handles do not have the numbers of old ones.
    let new = File::create(rig.mnt.join("new")).unwrap();
    new.write_all_at(b"new", 0).unwrap();
    let mut read = Vec::new();
    gone.seek(SeekFrom::Start(0)).unwrap();
    gone.read_to_end(&mut read).unwrap();
    assert_eq!(read, b"gone+++");
    assert_eq!(fs::metadata(rig.mnt.join("secret")).unwrap().permissions().mode() & 0o777, 0);
}

/// What the kernel gives back later is given back, and no more and no less: nodes that it still
/// knows are there, and none stays when it has forgotten it.
#[test]
fn look_ups_are_counted_on() {
    let Some((rig, daemon)) = mounted("") else { return };
    let names: Vec<PathBuf> = (0..100).map(|n| rig.mnt.join(format!("f{n}"))).collect();
    let nodes = || rig.volume()["nodes"].as_u64().unwrap();
    let before = nodes();
    for name in &names {
        fs::write(name, "x").unwrap();
        // Several look-ups of each.
        fs::hard_link(name, name.with_extension("2")).unwrap();
    }
    let ctimes: Vec<_> = names.iter().map(|name| fs::metadata(name).unwrap().ctime_nsec()).collect();
    upgrade(&rig, &[]).ok();
    upgrade(&rig, &[]).ok();
    assert!(nodes() >= 100, "{}", nodes());
    for (name, ctime) in names.iter().zip(ctimes) {
        assert_eq!(fs::read(name).unwrap(), b"x");
        assert_eq!(fs::metadata(name).unwrap().ctime_nsec(), ctime);
        fs::remove_file(name).unwrap();
        fs::remove_file(name.with_extension("2")).unwrap();
    }
    eventually("all that was removed is forgotten", || nodes() <= before.max(1));
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
}

#[test]
fn an_unmount_afterwards_tells_the_truth() {
    for how in ["umount2", "signal", "verb"] {
        let Some((rig, daemon)) = mounted("dirty_after=1h,") else { return };
        fs::write(rig.mnt.join("before"), "before").unwrap();
        upgrade(&rig, &[]).ok();
        fs::write(rig.mnt.join("after"), "after").unwrap();
        match how {
            "umount2" if rig.volume()["mount_type"] == "fuseblk" => {
                umount2(&rig.mnt, rustix::mount::UnmountFlags::empty());
                assert_eq!(rig.stored("after").unwrap(), b"after", "umount2 has returned");
            }
            "signal" => daemon.signal(Signal::TERM),
            _ => drop(rig.verb("umount", &[]).ok()),
        }
        assert_eq!(daemon.end(), Some(0), "{how}: {}", daemon.stderr());
        assert!(!rig.is_mounted());
        assert_eq!(rig.stored("before").unwrap(), b"before");
        assert_eq!(rig.stored("after").unwrap(), b"after");
        rig.verb("wait", &[]).ok();
        rig.is_quiet();
    }
}

#[test]
fn a_mount_in_the_background_and_its_limits_go_on() {
    let Some(rig) = Rig::mounting() else { return };
    let log = rig.root.join("log");
    let (source, mnt) = (rig.store.to_str().unwrap(), rig.mnt.to_str().unwrap());
    let log_file = log.to_str().unwrap();
    rig.run(&["mount", "-d", "--log-file", log_file, "-o", "uring=off,limit=/a:wbps=1M", source, mnt]).ok();
    rig.run(&["limit", "/b", mnt, "riops=7", "sync_isolation=1", "dirty_max=3M"]).ok();
    let limits = || rig.run(&["limit", "--show", "--json", mnt]).ok().stdout;
    let before = limits();
    assert!(before.contains("/a") && before.contains("/b"), "{before}");
    // The program that is called takes over.
    let mut all = Command::new(next_program(&rig));
    all.args(["upgrade", "--all"]).env("WATERTIGHT_RUNTIME_DIR", &rig.runtime).env_remove("RUST_LOG");
    run(all).ok().says("requests waited");
    assert_eq!(limits(), before);
    // The process is called what it was, and can be found.
    let pid = rig.volume()["pid"].as_u64().unwrap();
    assert_eq!(fs::read_to_string(format!("/proc/{pid}/comm")).unwrap(), "watertight\n");
    eventually("the log says so", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("has taken over"))
    });
    // Neither does an upgrade leave processes or descriptors behind.
    let descriptors = || fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let zombies = || {
        let all = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        let state = |child: &&str| {
            let stat = fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
        };
        all.split_whitespace().filter(state).count()
    };
    eventually("the old helper process is gone", || zombies() == 0);
    let few = descriptors();
    for _ in 0..3 {
        upgrade(&rig, &[]).ok();
    }
    eventually("nothing is left", || zombies() == 0 && descriptors() <= few + 2);
    rig.verb("umount", &[]).ok();
}

/// Calls of the control socket that wait for something wait on; a listener of events hears of the
/// other program.
#[test]
fn calls_that_wait_go_on_and_listeners_are_told() {
    let Some((rig, daemon)) = mounted("dirty_after=1h,") else { return };
    let mnt = rig.mnt.to_str().unwrap();
    let waiting = [&["wait", mnt][..], &["wait", "--timeout", "1h", mnt]];
    let waiting = waiting.map(|arguments| Daemon::start(rig.command(arguments)));
    let listening = Daemon::start(rig.command(&["events", mnt]));
    let first = listening.line(LONG).unwrap_or_else(|| panic!("{}", listening.stderr()));
    assert!(first.contains("mounted"), "{first}");
    for n in 1..=3 {
        fs::write(rig.mnt.join("file"), "file").unwrap();
        upgrade(&rig, &[]).ok();
        assert_eq!(counts(&rig), (n, 0), "{}", daemon.stderr());
    }
    listening.says("another program has taken it over");
    assert_eq!(listening.end(), Some(1));
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    for waiting in waiting {
        assert_eq!(waiting.end(), Some(0), "{}", waiting.stderr());
    }
}

#[test]
fn a_program_that_cannot_take_over_is_refused_and_nothing_changes() {
    let Some((rig, daemon)) = mounted("dirty_after=1h,") else { return };
    let mut file = File::create(rig.mnt.join("file")).unwrap();
    let not_executable = rig.root.join("not-executable");
    fs::copy("/bin/true", &not_executable).unwrap();
    fs::set_permissions(&not_executable, fs::Permissions::from_mode(0o600)).unwrap();
    let writable = rig.root.join("writable");
    copy_program("/bin/true", &writable);
    fs::set_permissions(&writable, fs::Permissions::from_mode(0o757)).unwrap();
    let foreign = rig.root.join("foreign");
    copy_program("/bin/true", &foreign);
    if std::os::unix::fs::chown(&foreign, Some(12345), None).is_ok() {
        upgrade_by(&rig, &foreign).ends(1, "belongs to user 12345");
    }
    let open = rig.root.join("open");
    fs::create_dir(&open).unwrap();
    copy_program("/bin/true", &open.join("program"));
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    // It could not be read while requests wait.
    let inside = rig.mnt.join("program");
    copy_program("/bin/true", &inside);
    for (program, why) in [
        (Path::new("/bin/true"), "cannot take over from this one"),
        (&writable, "can be written by other users"),
        (&open.join("program"), "which can be written by other users"),
        (&inside, "is on a file system of type fuse"),
        (&not_executable, "cannot be started"),
        (&rig.store, "is not a file"),
    ] {
        file.write_all(b".").unwrap();
        upgrade_by(&rig, program).ends(1, why);
    }
    upgrade_by(&rig, Path::new("/no/such/program")).ends(2, "cannot be found");
    // What the process itself finds out.
    let take = |version: &str, arguments: &[&str]| {
        let mut command = rig.command(&["can-take", version, "--"]);
        command.args(arguments);
        run(command)
    };
    take("1", &["watertight", "mount", "a", "b"]).ok().says("can take the state over");
    take("99", &["watertight", "mount", "a", "b"]).ends(1, "this one has version 99");
    take("1", &["watertight", "mount", "a", "b", "-o", "frob"]).ends(2, "no mount option frob");
    take("1", &["watertight", "mount", "a", "b", "--frob"]).ends(2, "does not know the mount's arguments");
    take("1", &["watertight", "status"]).ends(2, "not those of a mount");
    assert_eq!(counts(&rig), (0, 0));
    file.write_all(b"!").unwrap();
    drop(file);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(rig.stored("file").unwrap(), b"......!");
}

/// A program that is as this one, but has this text in place of that: it fails in the middle.
pub(crate) fn failing_program(rig: &Rig, from: &[u8], to: &[u8]) -> PathBuf {
    let path = rig.root.join("failing");
    copy_program(PROGRAM, &path);
    let mut bytes = fs::read(&path).unwrap();
    let at: Vec<usize> = (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from)).collect();
    assert!(!at.is_empty(), "the program has no such text");
    at.iter().for_each(|&at| bytes[at..at + to.len()].copy_from_slice(to));
    let other = rig.root.join("patched");
    fs::write(&other, bytes).unwrap();
    let failing = rig.root.join("failing-program");
    copy_program(other.to_str().unwrap(), &failing);
    fs::set_permissions(&failing, fs::Permissions::from_mode(0o755)).unwrap();
    failing
}

#[test]
fn a_program_that_fails_while_it_takes_over_gives_the_mount_back() {
    let Some((rig, daemon)) = mounted("dirty_after=1h,") else { return };
    // It does not find its descriptors.
    let failing = failing_program(&rig, b"/proc/self/fd\0", b"/proc/no/such\0");
    let mut file = File::create(rig.mnt.join("file")).unwrap();
    flock(&file, FlockOperation::LockExclusive).unwrap();
    for n in 1..=3 {
        file.write_all(b".").unwrap();
        upgrade_by(&rig, &failing).ends(1, "the old one goes on");
        assert_eq!(counts(&rig), (0, n), "{}", daemon.stderr());
        let error = rig.volume()["upgrades"]["error"].as_str().unwrap().to_owned();
        assert!(error.contains("/proc is not mounted"), "{error}");
        let other = File::open(rig.mnt.join("file")).unwrap();
        assert!(flock(&other, FlockOperation::NonBlockingLockExclusive).is_err(), "the lock is held");
    }
    // The store was never free for another.
    let source = format!("dir:{}", rig.store.display());
    let other = rig.root.join("other");
    fs::create_dir(&other).unwrap();
    rig.run(&["mount", &source, other.to_str().unwrap()]).ends(1, "in use");
    // One that works afterwards works.
    upgrade(&rig, &[]).ok();
    assert_eq!(counts(&rig), (1, 3));
    file.write_all(b"!").unwrap();
    drop(file);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(rig.stored("file").unwrap(), b"...!");
}

#[test]
fn what_cannot_be_handed_over_yet_is_refused_with_a_reason() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("statfs:nth=99:fail=EIO", "uring=off");
    upgrade(&rig, &[]).ends(1, "only volumes in directories and on object storage");
    rig.verb("umount", &[]).ok();
    daemon.end();
    let daemon = rig.mount_source("mem:", "uring=off");
    upgrade(&rig, &[]).ends(1, "only volumes in directories and on object storage");
    rig.verb("umount", &[]).ok();
    daemon.end();
    rig.run(&["upgrade", "/"]).ends(2, "is not a mounted Watertight volume");
    rig.run(&["upgrade"]).ends(2, "required");
    rig.run(&["upgrade", "--all"]).ok().says("no volume is mounted");
}

#[test]
fn a_connection_over_io_uring_is_refused() {
    if !Path::new("/sys/module/fuse/parameters/enable_uring").exists() {
        return skipped("the kernel has no FUSE over io_uring");
    }
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("uring=on,dirty_after=1h");
    fs::write(rig.mnt.join("file"), "file").unwrap();
    upgrade(&rig, &[]).ends(1, "io_uring, which cannot be handed over; mount with -o uring=off");
    assert_eq!(rig.stored("file").unwrap_or_default(), b"", "nothing was touched");
    assert_eq!(counts(&rig), (0, 0));
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(rig.stored("file").unwrap(), b"file");
}

/// A store that does not answer in time has the upgrade refused: requests are served as before.
#[test]
fn what_does_not_come_to_an_end_in_time_has_it_refused() {
    let Some(mut it) = Stalling::new() else { return };
    let daemon = it.rig.mount("uring=off,dirty_after=1h");
    let mut file = File::create(it.rig.mnt.join("file")).unwrap();
    file.write_all(b"1").unwrap();
    it.server.stop();
    let syncing = std::thread::spawn(move || file.sync_all().map(|()| file));
    eventually("the request is under way", || {
        it.rig.volume()["requests"]["by_kind"]["fsync"].as_u64().is_some_and(|n| n > 0)
    });
    let times = ["--timeout", "300ms", "--max-pause", "300ms"];
    upgrade(&it.rig, &times).ends(1, "could not be written in time");
    it.server.signal(Signal::CONT);
    let mut file = syncing.join().unwrap().unwrap();
    assert_eq!(counts(&it.rig), (0, 0));
    file.write_all(b"2").unwrap();
    upgrade(&it.rig, &["--max-pause", "60s"]).ok();
    file.write_all(b"3").unwrap();
    drop(file);
    it.rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(it.rig.stored("file").unwrap(), b"123");
}

/// Stops the server of the volume's store, and looks up a name that it would have to answer.
fn lookup_that_hangs(it: &Stalling) -> std::thread::JoinHandle<Result<fs::Metadata, std::io::ErrorKind>> {
    it.server.stop();
    let unknown = it.rig.mnt.join("unknown");
    let looking = std::thread::spawn(move || fs::metadata(unknown).map_err(|error| error.kind()));
    eventually("the request is under way", || {
        it.rig.volume()["requests"]["by_kind"]["lookup"].as_u64().is_some_and(|n| n > 0)
    });
    looking
}

/// A request that does not come to an end has requests read again.
#[test]
fn a_request_that_lasts_has_it_refused() {
    let Some(mut it) = Stalling::new() else { return };
    let daemon = it.rig.mount("uring=off");
    let looking = lookup_that_hangs(&it);
    upgrade(&it.rig, &["--timeout", "300ms", "--max-pause", "300ms"]).ends(1, "did not come to an end");
    it.server.signal(Signal::CONT);
    assert_eq!(looking.join().unwrap().unwrap_err(), std::io::ErrorKind::NotFound);
    fs::write(it.rig.mnt.join("other"), "other").unwrap();
    assert_eq!(counts(&it.rig), (0, 0));
    upgrade(&it.rig, &["--max-pause", "60s"]).ok();
    it.rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
    assert_eq!(it.rig.stored("other").unwrap(), b"other");
}

/// A signal ends an upgrade's wait for a request.
#[test]
fn a_signal_that_comes_while_it_waits_has_it_refused() {
    let Some(mut it) = Stalling::new() else { return };
    let daemon = it.rig.mount("uring=off");
    let looking = lookup_that_hangs(&it);
    std::thread::scope(|scope| {
        let begun = Instant::now();
        let refused = scope.spawn(|| upgrade(&it.rig, &["--timeout", "60s", "--max-pause", "60s"]));
        daemon.says("requests wait for another program");
        daemon.signal(Signal::TERM);
        refused.join().unwrap().ends(1, "a signal has come");
        assert!(begun.elapsed() < Duration::from_secs(45), "{:?}", begun.elapsed());
    });
    it.server.signal(Signal::CONT);
    let _the_mount_may_have_gone = looking.join().unwrap();
    assert_eq!(daemon.end(), Some(0), "{}", daemon.stderr());
}
