//! `recover=on`: the server is killed, and the mount goes on. Module [`kills`] has programs that check
//! all that they see meanwhile, and the campaign; [`ends`], what ends such a mount.

#[cfg(feature = "objects")]
mod bucket;
mod ends;
mod kills;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use rustix::fs::{Mode, OFlags};
use rustix::mount::UnmountFlags;
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Daemon, LONG, Rig, eventually, skipped};
use crate::upgrade::load::Load;
use crate::upgrade::{counts, failing_program, upgrade, upgrade_by};

/// A mount that is kept, and taken away with the test.
pub(crate) struct Kept {
    rig: Rig,
    keeper: Daemon,
    /// The volume, if it is on object storage.
    url: Option<String>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("{}", self.keeper.stderr());
            let _gone = rustix::mount::unmount(&self.rig.mnt, UnmountFlags::DETACH | UnmountFlags::FORCE);
        }
    }
}

/// Whether the kernel sends requests again.
fn can_resend() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-', '+']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 9) {
        skipped("the kernel does not send requests again (Linux 6.9)");
    }
    version >= (6, 9)
}

impl Kept {
    fn mount(options: &str) -> Option<Self> {
        if !can_resend() {
            return None;
        }
        let mut rig = Rig::mounting()?;
        let keeper = rig.mount(&format!("recover=on{options}"));
        Some(Self { rig, keeper, url: None })
    }

    /// Ends the mount, and shows where the volume is: at a path at which it is mounted again, if it is
    /// on object storage.
    fn end(&mut self) -> PathBuf {
        self.unmount();
        match &self.url.clone() {
            None => self.rig.store.clone(),
            Some(url) => {
                self.keeper = self.rig.mount_source(url, "uring=off");
                self.rig.mnt.clone()
            }
        }
    }

    fn recovery(&self) -> (String, u64) {
        let recovery = self.rig.volume()["recovery"].clone();
        (recovery["state"].as_str().unwrap().to_owned(), recovery["deaths"].as_u64().unwrap())
    }

    fn server(&self) -> Pid {
        let pid = self.rig.volume()["pid"].as_u64().unwrap();
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }

    fn kill(&self, signal: Signal) {
        kill_process(self.server(), signal).unwrap();
    }

    /// Kills it, and waits for the next one.
    fn kill_and_wait(&self, signal: Signal) {
        let before = self.recovery().1;
        self.kill(signal);
        eventually("another one serves", || self.recovery().1 == before + 1);
    }

    fn at(&self, name: &str) -> PathBuf {
        self.rig.mnt.join(name)
    }

    /// Has `ask` done while no server is there.
    fn while_none_serves<T: Send>(&self, ask: impl FnOnce() -> T + Send) -> T {
        let server = self.server();
        self.keeper.stop();
        kill_process(server, Signal::KILL).unwrap();
        eventually("the server is dead", || {
            let stat = fs::read_to_string(format!("/proc/{}/stat", server.as_raw_nonzero()));
            stat.is_ok_and(|stat| stat.contains(") Z "))
        });
        thread::scope(|scope| {
            let asking = scope.spawn(ask);
            thread::sleep(std::time::Duration::from_millis(100));
            assert!(!asking.is_finished(), "no server has answered");
            self.keeper.signal(Signal::CONT);
            asking.join().unwrap()
        })
    }

    fn unmount(&self) {
        self.rig.verb("umount", &[]).ok();
        assert_eq!(self.keeper.end(), Some(0), "{}", self.keeper.stderr());
        self.rig.is_quiet();
    }
}

/// What was accepted is there, synced or not, and what was open goes on.
#[test]
fn no_accepted_byte_is_lost_and_no_file_is_closed() {
    for mode in ["write-through", "kernel-writeback"] {
        let Some(it) = Kept::mount(&format!(",mode={mode},dirty_after=1h")) else { return };
        check_accepted(it, mode);
    }
}

fn check_accepted(mut it: Kept, mode: &str) {
    {
        let options = || {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true);
            options
        };
        let file = options().open(it.at("file")).unwrap();
        let data: Vec<u8> = (0..3_000_000_u32).map(|n| n.to_le_bytes()[1]).collect();
        file.write_all_at(&data, 5).unwrap();
        let gone = options().open(it.at("gone")).unwrap();
        gone.write_all_at(b"gone", 0).unwrap();
        fs::remove_file(it.at("gone")).unwrap();
        let replaced = options().open(it.at("replaced")).unwrap();
        replaced.write_all_at(b"replaced", 0).unwrap();
        fs::write(it.at("new"), "new").unwrap();
        fs::rename(it.at("new"), it.at("replaced")).unwrap();
        for _ in 0..2 {
            it.kill_and_wait(Signal::KILL);
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut read = vec![0; data.len()];
            file.read_exact_at(&mut read, 5).unwrap();
            assert!(read == data, "{mode}: the data is another");
            file.sync_all().unwrap();
            for (file, text) in [(&gone, &b"gone"[..]), (&replaced, b"replaced")] {
                let mut read = vec![0; text.len()];
                file.read_exact_at(&mut read, 0).unwrap();
                assert_eq!(read, text);
                file.write_all_at(text, 0).unwrap();
                file.sync_data().unwrap();
            }
            assert_eq!(fs::read(it.at("replaced")).unwrap(), b"new");
        }
        drop((file, gone, replaced));
        let stored = fs::read(it.end().join("file")).unwrap();
        assert!(stored[5..] == data, "{mode}: other data is stored");
    }
}

/// One that kills its server is not done again for ever.
#[test]
fn a_request_that_servers_die_of_is_answered_eio() {
    let Some(cgroup) = testing::cgroup::Cgroup::make() else { return };
    let Some(it) = Kept::mount("") else { return };
    let path = cgroup.path().display().to_string();
    it.rig.run(&["limit", &path, it.rig.mnt.to_str().unwrap(), "wbps=4K"]).ok();
    let of = format!("of={}", it.at("slow").display());
    // It stays in the server's hands: the limit lets it go on after minutes.
    let mut command = cgroup.command("dd");
    command.args(["if=/dev/zero", &of, "bs=1M", "count=1"]).stderr(std::process::Stdio::piped());
    let mut dd = command.spawn().unwrap();
    eventually("the request is under way", || {
        it.rig.volume()["requests"]["by_kind"]["write"].as_u64().is_some_and(|n| n > 0)
    });
    it.kill_and_wait(Signal::KILL);
    for _ in 0..3 {
        eventually("it is sent again", || {
            assert!(dd.try_wait().unwrap().is_none(), "it has ended: {:?}", dd.wait());
            it.rig.volume()["requests"]["by_kind"]["write"].as_u64().is_some_and(|n| n > 0)
        });
        it.kill_and_wait(Signal::ABORT);
    }
    let out = dd.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(said.contains("Input/output error"), "{said}");
    it.keeper.says("it is answered EIO");
    fs::write(it.at("other"), "other").unwrap();
    it.unmount();
}

#[test]
fn without_its_keeper_the_mount_goes_on_and_says_so() {
    let Some(it) = Kept::mount("") else { return };
    let server = it.server();
    fs::write(it.at("file"), "file").unwrap();
    it.keeper.kill();
    eventually("it says so", || it.recovery().0 == "no-keeper");
    assert_eq!(it.server(), server);
    fs::write(it.at("file"), "again").unwrap();
    kill_process(server, Signal::KILL).unwrap();
    eventually("the mount is dead", || fs::metadata(it.at("file")).is_err());
    it.rig.verb("umount", &[]);
    assert!(!it.rig.is_mounted());
    assert_eq!(it.rig.stored("file").unwrap(), b"again");
}

#[test]
fn a_mount_in_the_background_is_kept_with_its_log() {
    if !can_resend() {
        return;
    }
    let Some(rig) = Rig::mounting() else { return };
    let log = rig.root.join("log");
    let (source, mnt) = (rig.store.to_str().unwrap(), rig.mnt.to_str().unwrap());
    rig.run(&["mount", "-d", "--log-file", log.to_str().unwrap(), "-o", "recover=on", source, mnt]).ok();
    let pid = |rig: &Rig| i32::try_from(rig.volume()["pid"].as_u64().unwrap()).unwrap();
    let server = pid(&rig);
    let status = fs::read_to_string(format!("/proc/{server}/status")).unwrap();
    let keeper: i32 = status.lines().find_map(|line| line.strip_prefix("PPid:\t")).unwrap().parse().unwrap();
    let used = fs::read_to_string(format!("/proc/{keeper}/status")).unwrap();
    println!("keeper: {:?}", used.lines().filter(|line| line.starts_with("Rss")).collect::<Vec<_>>());
    kill_process(Pid::from_raw(server).unwrap(), Signal::KILL).unwrap();
    eventually("another one serves", || pid(&rig) != server);
    eventually("the log says so", || {
        fs::read_to_string(&log).is_ok_and(|log| log.contains("has taken over from one that died"))
    });
    // A signal to the keeper is one to the server.
    kill_process(Pid::from_raw(keeper).unwrap(), Signal::TERM).unwrap();
    eventually("it is unmounted", || !rig.is_mounted());
    eventually("the keeper has ended", || !Path::new(&format!("/proc/{keeper}")).exists());
    rig.is_quiet();
}

#[test]
fn what_cannot_be_recovered_yet_is_refused_in_words() {
    if !can_resend() {
        return;
    }
    let Some(rig) = Rig::mounting() else { return };
    let mnt = rig.mnt.to_str().unwrap();
    rig.run(&["mount", "-o", "recover=on", "mem:", mnt]).ends(2, "is in the memory of its process");
    let source = rig.store.to_str().unwrap();
    rig.run(&["mount", "-o", "recover=on,uring=on", source, mnt]).ends(2, "leave uring=on out");
    rig.run(&["mount", "-o", "recover=maybe", source, mnt]).ends(2, "recover");
    let Some(it) = Kept::mount("") else { return };
    let (inside, other) = (it.at("inside"), it.rig.root.join("other"));
    fs::create_dir(&inside).unwrap();
    fs::create_dir(&other).unwrap();
    it.rig.run(&["attach", other.to_str().unwrap(), inside.to_str().unwrap()]).ends(1, "recover=on");
    it.rig.verb("clone", &[other.to_str().unwrap()]).ends(1, "recover=on");
    it.unmount();
}

/// The server leaves its place to one of another program, which is no death.
#[test]
fn an_upgrade_is_a_pause_and_no_death() {
    const UPGRADES: u64 = 5;
    let Some(it) = Kept::mount("") else { return };
    check_upgrades(it, UPGRADES);
}

fn check_upgrades(mut it: Kept, upgrades: u64) {
    let load = Load::start(&it.rig.mnt);
    for n in 1..=upgrades {
        load.step();
        let server = it.server();
        upgrade(&it.rig, &[]).ok().says("requests waited");
        assert_ne!(it.server(), server);
        assert_eq!(
            (counts(&it.rig), it.recovery()),
            ((n, 0), ("on".to_owned(), 0)),
            "{}",
            it.keeper.stderr()
        );
        load.check();
    }
    // It is kept as the one before.
    it.kill_and_wait(Signal::KILL);
    load.check();
    load.finish();
    assert_eq!((counts(&it.rig), it.recovery()), ((upgrades, 0), ("on".to_owned(), 1)));
    load.is_in(&it.end());
}

#[test]
fn a_new_program_that_cannot_serve_gives_the_mount_back() {
    let Some(it) = Kept::mount("") else { return };
    // It does not find the store.
    let failing = failing_program(&it.rig, b"/proc/self/fd\0", b"/proc/no/such\0");
    let file = File::create(it.at("file")).unwrap();
    for n in 1..=3 {
        file.write_all_at(b"x", n - 1).unwrap();
        upgrade_by(&it.rig, &failing).ends(1, "the old one goes on");
        assert_eq!(
            (counts(&it.rig), it.recovery()),
            ((0, n), ("on".to_owned(), 0)),
            "{}",
            it.keeper.stderr()
        );
    }
    it.kill_and_wait(Signal::KILL);
    upgrade(&it.rig, &[]).ok();
    assert_eq!(counts(&it.rig), (1, 3));
    drop(file);
    it.unmount();
    assert_eq!(it.rig.stored("file").unwrap(), b"xxx");
}

/// What is open and looked up is given back as if nothing had been.
#[test]
fn nothing_is_left_behind() {
    let Some(it) = Kept::mount("") else { return };
    check_nothing_is_left(&it);
}

fn check_nothing_is_left(it: &Kept) {
    let figure = |name: &str| it.rig.volume()[name].as_u64().unwrap();
    for n in 0..100 {
        fs::write(it.at(&n.to_string()), "x").unwrap();
    }
    let open: Vec<File> = (0..100).map(|n| File::open(it.at(&n.to_string())).unwrap()).collect();
    for _ in 0..3 {
        it.kill_and_wait(Signal::KILL);
    }
    assert!(figure("open_files") >= 100 && figure("nodes") >= 100);
    drop(open);
    (0..100).for_each(|n| fs::remove_file(it.at(&n.to_string())).unwrap());
    eventually("all is given back", || figure("open_files") == 0 && figure("nodes") <= 2);
    let begun = Instant::now();
    it.unmount();
    assert!(begun.elapsed() < LONG);
}

/// The host uses inode numbers again: an object that is gone and one that has its number by now are two.
#[test]
fn an_object_that_has_the_number_of_one_before_is_itself() {
    let Some(it) = Kept::mount("") else { return };
    // The kernel goes on knowing a file that a descriptor refers to; the next server does not hold it.
    let known = |name: &str| {
        fs::write(it.at(name), name).unwrap();
        let ino = fs::metadata(it.rig.store.join(name)).unwrap().ino();
        let file = rustix::fs::open(it.at(name), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
        (File::from(file), ino)
    };
    let gone = |name: &str| {
        fs::remove_file(it.at(name)).unwrap();
        it.kill_and_wait(Signal::KILL);
    };
    let (first, ino) = known("first");
    gone("first");
    let (second, ino_of_second) = known("second");
    gone("second");
    // Its number is free: its next owner gets it as the number of its node, too.
    drop(first);
    eventually("the kernel has forgotten the first", || it.rig.volume()["nodes"].as_u64().unwrap() <= 2);
    let (third, ino_of_third) = known("third");
    let is_reused = (ino, ino) == (ino_of_second, ino_of_third);
    if !is_reused {
        // Another process of the host has taken it: all the same, each file is itself.
        eprintln!("inode numbers: {ino}, {ino_of_second}, {ino_of_third}");
    }
    it.kill_and_wait(Signal::KILL);
    let through = |file: &File| fs::read(format!("/proc/self/fd/{}", file.as_raw_fd()));
    assert_eq!(fs::read(it.at("third")).unwrap(), b"third");
    assert_eq!(through(&third).unwrap(), b"third");
    match through(&second) {
        Err(_) => {}
        // A process that looked at the server's files may have held it when that was killed.
        Ok(data) => assert!(!is_reused && data == b"second", "it is gone"),
    }
    drop((second, third));
    it.unmount();
}
