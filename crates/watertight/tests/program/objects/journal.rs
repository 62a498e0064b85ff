//! A journal on a disk of this host: an fsync waits for it and not for the bucket, which is in a
//! directory whose server is stopped by a signal.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc::channel;
use std::thread;

use rustix::process::Signal;
use serde_json::Value;

use super::{LARGE, World, pattern};
use crate::rig::{Daemon, LONG, Rig, eventually, has, run, unshare};

/// A volume whose bucket can be stopped. The bucket's server goes first at the end.
struct Stalling {
    world: World,
    journal: PathBuf,
    server: Daemon,
    server_rig: Rig,
}

impl Stalling {
    fn new() -> Option<Self> {
        let mut server_rig = Rig::mounting()?;
        let server = server_rig.mount("type=fuse,uring=off");
        let rig = Rig::new();
        let bucket = server_rig.mnt.join("bucket");
        fs::create_dir(&bucket).unwrap();
        let world = World { url: format!("file://{}", bucket.display()), rig };
        world.format(&[]).ok();
        let journal = world.rig.root.join("journal");
        fs::create_dir(&journal).unwrap();
        Some(Self { world, journal, server, server_rig })
    }

    fn options(&self) -> String {
        format!("journal={},fsync_to=host,dirty_after=1h", self.journal.display())
    }

    fn mount(&mut self) -> Daemon {
        let options = self.options();
        self.world.mount(&options)
    }

    /// Writes a file, and returns when its fsync has.
    fn write(&self, name: &str, content: Vec<u8>) {
        let path = self.world.path(name);
        let (done, ended) = channel();
        thread::spawn(move || {
            let mut file = File::create(path).unwrap();
            file.write_all(&content).unwrap();
            file.sync_all().unwrap();
            done.send(()).unwrap();
        });
        ended.recv_timeout(LONG).unwrap_or_else(|_| panic!("the fsync of {name} does not return"));
    }

    /// Objects in the bucket: the directory below its server has them, also while that is stopped.
    fn objects(&self) -> usize {
        let bucket = self.server_rig.store.join("bucket");
        let count = |dir: &str| fs::read_dir(bucket.join(dir)).map_or(0, Iterator::count);
        count("log") + count("seg")
    }

    fn journal_figure(&self, name: &str) -> u64 {
        self.world.rig.volume()["store_requests"]["journal"][name].as_u64().unwrap()
    }

    /// Files of the journal that are left.
    fn journal_files(&self) -> usize {
        let uuid = self.world.info()["uuid"].as_str().unwrap().to_owned();
        fs::read_dir(self.journal.join(uuid)).unwrap().count() - 1
    }

    /// Stops the bucket, syncs files to the journal, and kills the mount process.
    fn leave_in_the_journal(&mut self) {
        let daemon = self.mount();
        self.write("before", pattern(5000));
        self.world.rig.verb("sync", &[]).ok();
        eventually("the journal has nothing alone", || self.journal_figure("bytes") == 0);
        self.server.stop();
        let objects = self.objects();
        let mut sync = self.world.rig.command(&["sync"]);
        sync.arg(&self.world.rig.mnt).stdout(Stdio::null()).stderr(Stdio::null());
        self.write("small", pattern(5000));
        self.write("large", pattern(LARGE));
        self.write("last", b"last".to_vec());
        let mut sync = sync.spawn().unwrap();
        self.write("beside a sync", pattern(100));
        assert!(self.journal_figure("bytes") > 8 << 10, "{}", self.world.rig.volume());
        assert!(sync.try_wait().unwrap().is_none(), "a sync returns before the bucket has it");
        assert_eq!(self.objects(), objects, "the bucket was not stopped");
        daemon.kill();
        let _it_fails = sync.wait().unwrap();
        self.server.signal(Signal::CONT);
        let out = self.world.rig.verb("umount", &[]).ends(1, "died before everything was written");
        let where_it_is = format!("is in the journal {} of this host", self.journal.display());
        assert!(out.stderr.contains(&where_it_is), "{out:?}");
        let out = self.world.rig.run(&["status"]);
        assert!(format!("{out:?}").contains(&where_it_is), "{out:?}");
    }

    fn refuse(&self, options: &str, words: &[&str]) {
        let out = self.world.mount_elsewhere(&self.world.url, options).ends(1, words[0]);
        words.iter().for_each(|word| assert!(out.stderr.contains(word), "no {word} in {out:?}"));
    }
}

impl Drop for Stalling {
    fn drop(&mut self) {
        // Ends the waits in the kernel of every process that uses the bucket.
        let pid = rustix::process::Pid::from_raw(self.server.pid.cast_signed()).unwrap();
        let _gone_already = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// Bytes that no compression makes fewer of.
fn noise(mut seed: u64) -> Vec<u8> {
    let mut next = || {
        seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (seed ^ (seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        (mixed ^ (mixed >> 27)).to_le_bytes()
    };
    (0..LARGE / 8).flat_map(|_| next()).collect()
}

/// Also where the bucket has not answered for the last of it.
#[test]
fn what_the_journal_has_accepted_is_there_after_a_kill() {
    let Some(mut it) = Stalling::new() else { return };
    let options = format!("journal={},accept_to=host,dirty_after=1h", it.journal.display());
    let lost = |it: &Stalling| it.world.rig.volume()["lost_if_killed_bytes"].as_u64().unwrap();
    let daemon = it.world.mount(&options);
    fs::write(it.world.path("first"), pattern(LARGE)).unwrap();
    it.server.stop();
    let (done, ended) = channel();
    let dir = it.world.rig.mnt.clone();
    thread::spawn(move || {
        for n in 0..20 {
            fs::write(dir.join(n.to_string()), pattern(5000 + n)).unwrap();
        }
        fs::write(dir.join("large"), noise(1)).unwrap();
        fs::rename(dir.join("0"), dir.join("moved")).unwrap();
        fs::remove_file(dir.join("1")).unwrap();
        done.send(()).unwrap();
    });
    ended.recv_timeout(LONG).expect("the bucket is waited for");
    eventually("the journal has all", || lost(&it) == 0);
    daemon.kill();
    it.server.signal(Signal::CONT);
    it.world.rig.verb("umount", &[]);
    let daemon = it.world.mount(&options);
    assert_eq!(fs::read(it.world.path("first")).unwrap(), pattern(LARGE));
    assert_eq!(fs::read(it.world.path("large")).unwrap(), noise(1));
    assert_eq!(fs::read(it.world.path("moved")).unwrap(), pattern(5000));
    assert!(!it.world.path("0").exists() && !it.world.path("1").exists());
    for n in 2..20 {
        assert_eq!(fs::read(it.world.path(&n.to_string())).unwrap(), pattern(5000 + n));
    }
    it.world.umount(&daemon);
    // Without it only what was synced is safe, and it says so.
    let daemon = it.world.mount("dirty_after=1h");
    fs::write(it.world.path("unsafe"), pattern(LARGE)).unwrap();
    assert!(lost(&it) >= LARGE as u64, "{}", it.world.rig.volume());
    it.world.rig.verb("status", &[]).ok().says("would be lost if its process died now");
    it.world.rig.verb("sync", &[]).ok();
    assert_eq!(lost(&it), 0, "{}", it.world.rig.volume());
    it.world.umount(&daemon);
}

fn host() -> String {
    rustix::system::uname().nodename().to_str().unwrap().to_owned()
}

#[test]
fn an_fsync_waits_for_the_journal_and_a_kill_loses_nothing_of_it() {
    let Some(mut it) = Stalling::new() else { return };
    it.leave_in_the_journal();
    assert!(it.journal_files() > 0);
    let info = it.world.info();
    assert_eq!(info["journal"]["host"], host(), "{info}");
    // Nobody else takes the volume, and the words say what to do.
    let (named, journal) = (format!("host {} has a journal", host()), it.journal.display().to_string());
    let right = format!("`-o journal={journal}`");
    it.refuse("", &[&named, &right, &format!("abandon={}", host())]);
    let other = it.world.rig.root.join("another-journal");
    fs::create_dir(&other).unwrap();
    it.refuse(&format!("takeover,fsync_to=host,journal={}", other.display()), &[&named, &right]);
    it.refuse("abandon=somebody", &[&named]);
    if has("unshare") {
        let at = it.world.rig.root.join("other");
        let (alone, mut command) = unshare();
        command.args(["--uts", "sh", "-c", "hostname elsewhere; exec \"$@\"", "sh", crate::rig::PROGRAM]);
        command.args(["mount", &it.world.url]).arg(&at);
        command.env("WATERTIGHT_RUNTIME_DIR", it.world.rig.root.join("run-elsewhere"));
        run(command).ends(1, &named);
        drop(alone);
    }
    let daemon = it.mount();
    for (name, content) in [("before", pattern(5000)), ("small", pattern(5000)), ("large", pattern(LARGE))] {
        assert_eq!(fs::read(it.world.path(name)).unwrap(), content, "{name}");
    }
    assert_eq!(fs::read_to_string(it.world.path("last")).unwrap(), "last");
    assert_eq!(fs::read(it.world.path("beside a sync")).unwrap(), pattern(100));
    it.world.umount(&daemon);
    // Everything is in the bucket: any host may have it.
    assert_eq!((it.journal_files(), &it.world.info()["journal"]), (0, &Value::Null));
    let daemon = it.world.mount("");
    assert_eq!(fs::read(it.world.path("large")).unwrap(), pattern(LARGE));
    it.world.umount(&daemon);
}

#[test]
fn a_journal_that_was_given_up_is_kept_and_named() {
    let Some(mut it) = Stalling::new() else { return };
    it.leave_in_the_journal();
    let daemon = it.world.mount(&format!("abandon={}", host()));
    assert_eq!(fs::read(it.world.path("before")).unwrap(), pattern(5000));
    assert!(!it.world.path("last").exists(), "it was in the journal alone");
    fs::write(it.world.path("new"), "new").unwrap();
    it.world.umount(&daemon);
    // Its host learns what was lost, once.
    let options = it.options();
    it.refuse(&options, &["another host has taken the volume over", "are lost", "is kept as"]);
    let kept = fs::read_dir(&it.journal).unwrap().flatten();
    let kept: Vec<_> = kept.filter(|entry| entry.file_name().to_string_lossy().contains(".lost-")).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(fs::read_dir(kept[0].path()).unwrap().count() > 0);
    let daemon = it.mount();
    assert_eq!(fs::read_to_string(it.world.path("new")).unwrap(), "new");
    assert!(!it.world.path("last").exists());
    it.world.umount(&daemon);
}

#[test]
fn a_host_gives_its_own_journal_up() {
    let Some(mut it) = Stalling::new() else { return };
    it.leave_in_the_journal();
    let options = it.options();
    let daemon = it.world.mount(&format!("{options},abandon={}", host()));
    assert_eq!(fs::read(it.world.path("before")).unwrap(), pattern(5000));
    assert!(!it.world.path("last").exists(), "it was in the journal alone");
    let aside = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().contains(".abandoned-");
    let kept: Vec<_> = fs::read_dir(&it.journal).unwrap().flatten().filter(aside).collect();
    assert_eq!(kept.len(), 1, "{kept:?}");
    assert!(fs::read_dir(kept[0].path()).unwrap().count() > 0);
    it.write("later", b"later".to_vec());
    it.world.umount(&daemon);
    assert_eq!((it.journal_files(), &it.world.info()["journal"]), (0, &Value::Null));
}

#[test]
fn a_journal_that_is_full_makes_fsyncs_wait_for_the_bucket() {
    let Some(mut it) = Stalling::new() else { return };
    let options = format!("{},journal_size=16M", it.options());
    let daemon = it.world.mount(&options);
    it.server.stop();
    let waiting = |n: u64| {
        let path = it.world.path(&format!("file-{n}"));
        let (done, ended) = channel();
        thread::spawn(move || {
            let mut file = File::create(path).unwrap();
            file.write_all(&noise(n)).unwrap();
            file.sync_all().unwrap();
            done.send(()).unwrap();
        });
        ended
    };
    let fsyncs: Vec<_> = (0..8).map(waiting).collect();
    // Less room is left than a segment takes.
    eventually("the journal is full", || it.journal_figure("disk_bytes") > (16 - 3) << 20);
    assert!(it.journal_figure("disk_bytes") <= it.journal_figure("disk_bytes_max"));
    eventually("an fsync waits for the bucket", || it.journal_figure("passed_by") > 0);
    assert_eq!(it.journal_figure("disk_bytes_max"), 16 << 20);
    it.server.signal(Signal::CONT);
    for fsync in fsyncs {
        fsync.recv_timeout(LONG).expect("an fsync returns when the bucket has it");
    }
    it.write("later", b"later".to_vec());
    it.world.umount(&daemon);
    let daemon = it.world.mount("");
    assert_eq!(fs::read_to_string(it.world.path("later")).unwrap(), "later");
    assert_eq!(fs::read(it.world.path("file-7")).unwrap(), noise(7));
    it.world.umount(&daemon);
}

#[test]
fn a_directory_that_others_can_change_is_refused() {
    let Some(mut world) = World::new() else { return };
    let journal = world.rig.root.join("journal");
    let options = format!("journal={},fsync_to=host", journal.display());
    world.mount_elsewhere(&world.url, &options).ends(1, "there is no such directory for the journal");
    fs::create_dir(&journal).unwrap();
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o777)).unwrap();
    world.mount_elsewhere(&world.url, &options).ends(1, "chmod go-w");
    fs::set_permissions(&journal, fs::Permissions::from_mode(0o700)).unwrap();
    world.mount_elsewhere(&world.url, &format!("ro,{options}")).ends(2, "journal is for a mount that writes");
    // A refused mount takes nothing: the volume is free.
    let daemon = world.mount(&options);
    fs::write(world.path("file"), "file").unwrap();
    File::open(world.path("file")).unwrap().sync_all().unwrap();
    world.mount_elsewhere(&world.url, &options).ends(1, "another process of this host uses the journal");
    world.umount(&daemon);
    let daemon = world.mount("");
    assert_eq!(fs::read_to_string(world.path("file")).unwrap(), "file");
    world.umount(&daemon);
}
