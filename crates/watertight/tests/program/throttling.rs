//! Limits and syncs of real cgroups on a real mount. No test here fails because the machine was
//! slow: throttled calls take minutes, and all other checks compare what is dirty and what is owed,
//! not how long it took.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testing::cgroup::Cgroup;

use crate::rig::{LONG, Rig, eventually, has, no_copies, skipped, wait};

const MIB: u64 = 1 << 20;
/// Mebibytes that take the throttled cgroup longer than any test lasts.
const MINUTES: u64 = 60;

/// A mount that no sync(2) of the host's other programs reaches.
const NO_OTHERS: &str = ",type=fuse";

struct World {
    rig: Rig,
    slow: Cgroup,
    other: Cgroup,
    /// Names and mebibytes.
    written: RefCell<Vec<(String, u64)>>,
}

impl World {
    /// A mount, a cgroup that may write 256 KiB a second to its store, and another one.
    fn new(options: &str) -> Option<Self> {
        let mut rig = Rig::mounting()?;
        let (slow, other) = (Cgroup::make()?, Cgroup::make()?);
        let limit = format!("dirty_after=1h,cache=256M,limit={}:wbps=256K{options}", slow.path().display());
        drop(rig.mount(&limit));
        Some(Self { rig, slow, other, written: RefCell::default() })
    }

    /// A process in the throttled cgroup writes so many mebibytes.
    fn dirty(&self, name: &str, mebibytes: u64) {
        self.write(&self.slow, name, mebibytes);
    }

    fn write(&self, by: &Cgroup, name: &str, mebibytes: u64) {
        let of = format!("of={}", self.rig.mnt.join(name).display());
        let count = format!("count={mebibytes}");
        by.run("dd", &["if=/dev/zero", &of, "bs=1M", &count, "status=none"]);
        self.written.borrow_mut().push((name.to_owned(), mebibytes));
    }

    fn limits(&self) -> Value {
        let out = self.rig.run(&["limit", "--show", "--json", &self.rig.mnt.display().to_string()]);
        serde_json::from_str(&out.ok().stdout).expect("JSON")
    }

    fn owed(&self) -> u64 {
        let limits = self.limits();
        let slow = self.slow.path().display().to_string();
        let rows = limits["limits"].as_array().expect("rows");
        rows.iter().find(|row| row["cgroup"] == slow).expect("a row")["owed_bytes"].as_u64().expect("bytes")
    }

    fn dirty_bytes(&self) -> u64 {
        let out = self.rig.verb("status", &["--json"]).ok();
        let status: Value = serde_json::from_str(&out.stdout).expect("JSON");
        status["volumes"][0]["dirty_bytes"].as_u64().expect("bytes")
    }

    /// A sync of the mount by a process in `cgroup`, as sync(1) asks for it, if the kernel passes
    /// that on, and as the verb does.
    fn syncs(&self, cgroup: &Cgroup) -> Vec<Child> {
        let mut all = vec![self.sync_verb(cgroup)];
        if sends_syncs(&self.rig) {
            let mut command = cgroup.command("sync");
            command.arg("-f").arg(&self.rig.mnt).stdin(Stdio::null());
            all.push(command.spawn().expect("sync runs"));
        }
        all
    }

    /// The verb, by a process in `cgroup`.
    fn sync_verb(&self, cgroup: &Cgroup) -> Child {
        let verb = self.rig.command(&["sync"]);
        let mut command = cgroup.command(verb.get_program());
        command.args(verb.get_args()).arg(&self.rig.mnt).stdin(Stdio::null());
        command.envs(verb.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.spawn().expect("it runs")
    }

    /// umount(8) without our helper, by a process in `cgroup`: umount2(2) alone, once no process
    /// that looks through /proc holds the mount.
    fn umount2(&self, cgroup: &Cgroup, more: &[&str]) {
        let _no_copies = no_copies();
        eventually("umount2 does not say EBUSY", || {
            let mut command = cgroup.command("umount");
            command.arg("--internal-only").args(more).arg(&self.rig.mnt).stdin(Stdio::null());
            let mut umount = command.spawn().expect("umount runs");
            wait(&mut umount, LONG).expect("it ends").success()
        });
        assert!(!self.rig.is_mounted());
    }

    fn written_bytes(&self) -> u64 {
        self.rig.volume()["written_bytes"].as_u64().expect("bytes")
    }

    /// Unmounts: that waits for no limit, and the rest of the data is on the store then.
    fn end(self) {
        self.rig.verb("umount", &[]).ok();
        self.is_on_the_store();
    }

    fn is_on_the_store(&self) {
        for (name, mebibytes) in &*self.written.borrow() {
            let stored = fs::metadata(self.rig.store.join(name)).expect("it is there").len();
            assert_eq!(stored, mebibytes * MIB, "{name}");
        }
    }
}

/// Whether sync(2) reaches the mount; prints it if not.
fn sends_syncs(rig: &Rig) -> bool {
    let is = rig.volume()["syncfs"] == true;
    if !is {
        skipped("in part: the kernel does not send sync(2) for this mount");
    }
    is
}

#[track_caller]
fn ended(mut child: Child) {
    assert!(wait(&mut child, LONG).expect("it ends").success());
}

#[test]
fn a_sync_from_another_cgroup_is_boosted_and_leaves_a_debt() {
    let Some(world) = World::new("") else { return };
    for name in ["a", "b"] {
        world.dirty(name, MINUTES);
        for sync in world.syncs(&world.other) {
            ended(sync);
            assert_eq!(world.dirty_bytes(), 0);
        }
        // At its limit it would owe nothing.
        assert!(world.owed() > MIB, "{}", world.owed());
        let (slow, mnt) = (world.slow.path().display().to_string(), world.rig.mnt.display().to_string());
        // Nothing is owed where nothing is limited: or the second round would have to wait before
        // it may write.
        world.rig.run(&["limit", &slow, &mnt, "wbps=max"]).ok();
        world.rig.run(&["limit", &slow, &mnt, "wbps=256K"]).ok();
    }
    world.end();
}

#[test]
fn an_fsync_from_another_cgroup_is_boosted_for_its_file_alone() {
    let Some(world) = World::new(NO_OTHERS) else { return };
    // The debt for this sync lasts for minutes.
    world.dirty("a", MINUTES);
    world.dirty("b", 8);
    world.other.run("sync", &[world.rig.mnt.join("a")]);
    assert!(world.owed() > MIB);
    assert_eq!(world.dirty_bytes(), 8 * MIB, "the other file is its owner's to write");
    world.end();
}

#[test]
fn after_a_neighbours_sync_the_owners_own_fsync_does_not_wait_for_the_debt() {
    let Some(world) = World::new(NO_OTHERS) else { return };
    world.dirty("a", MINUTES);
    world.other.run("sync", &[world.rig.mnt.join("a")]);
    let owed = world.owed();
    assert!(owed > MIB);
    let of = format!("of={}", world.rig.mnt.join("b").display());
    world.slow.run("dd", &["if=/dev/zero", &of, "bs=4k", "count=1", "conv=fsync", "status=none"]);
    assert_eq!(world.dirty_bytes(), 0, "the fsync is done");
    assert!(world.owed() > owed / 2, "it has waited for the debt: {owed}, then {}", world.owed());
    world.end();
}

#[test]
fn a_cgroups_own_fsync_stays_throttled_and_another_sync_releases_it() {
    let Some(world) = World::new(NO_OTHERS) else { return };
    world.dirty("a", 1);
    let begun = Instant::now();
    world.slow.run("sync", &[world.rig.mnt.join("a")]);
    assert!(begun.elapsed() > Duration::from_millis(3900), "{:?}", begun.elapsed());
    world.dirty("b", MINUTES);
    let mut own = world.slow.command("sync");
    let mut own = own.arg(world.rig.mnt.join("b")).stdin(Stdio::null()).spawn().expect("sync runs");
    let written = world.written_bytes();
    eventually("it writes", || world.written_bytes() > written);
    assert!(own.try_wait().expect("a child").is_none(), "at its limit it goes on for minutes");
    world.rig.verb("sync", &[]).ok();
    ended(own);
    assert!(world.owed() > 8 * MIB);
    world.end();
}

/// Once more if a sync(2) of another program came between, which leaves a debt.
fn takes_what_its_limit_takes(world: &World, run: impl Fn(&World)) {
    let mut is_alone = false;
    while !is_alone {
        let begun = Instant::now();
        run(world);
        // A request's worth is ahead of the limit at any time.
        is_alone = world.owed() < MIB / 2;
        assert!(!is_alone || begun.elapsed() > Duration::from_millis(3900), "{:?}", begun.elapsed());
    }
}

#[test]
fn a_cgroups_own_sync_stays_throttled() {
    let Some(world) = World::new("") else { return };
    takes_what_its_limit_takes(&world, |world| {
        world.dirty("a", 1);
        ended(world.sync_verb(&world.slow));
    });
    if sends_syncs(&world.rig) {
        takes_what_its_limit_takes(&world, |world| {
            world.dirty("b", 1);
            world.slow.run("sync", &[Path::new("-f"), &world.rig.mnt]);
        });
    }
    world.end();
}

#[test]
fn synchronous_writes_wait_for_their_own_cgroups_limit_only() {
    let Some(world) = World::new(NO_OTHERS) else { return };
    world.dirty("a", MINUTES);
    let write = |by: &Cgroup, name: &str| {
        let of = format!("of={}", world.rig.mnt.join(name).display());
        by.run("dd", &["if=/dev/zero", &of, "bs=256K", "count=4", "oflag=sync", "status=none"]);
        world.written.borrow_mut().push((name.to_owned(), 1));
    };
    write(&world.other, "b");
    assert_eq!((world.dirty_bytes(), world.owed()), (MINUTES * MIB, 0));
    let begun = Instant::now();
    write(&world.slow, "c");
    assert!(begun.elapsed() > Duration::from_millis(2900), "{:?}", begun.elapsed());
    assert_eq!(world.dirty_bytes(), MINUTES * MIB);
    world.end();
}

#[test]
fn an_unmount_waits_for_no_limit() {
    let Some(world) = World::new("") else { return };
    world.dirty("a", MINUTES);
    world.end();
}

/// The kernel sends no sync before the end of the mount: it has no caller, and no policy applies.
#[test]
fn a_raw_umount2_waits_for_no_limit_whoever_calls_it() {
    for (by_other, isolation) in [(false, "0"), (false, "1"), (true, "0"), (true, "1")] {
        for lazy in [&[][..], &["--lazy"]] {
            let Some(world) = World::new("").filter(|_| has("umount")) else { return };
            let is_waited_for = sends_syncs(&world.rig);
            let by = if by_other { &world.other } else { &world.slow };
            let (path, mnt) = (by.path().display().to_string(), world.rig.mnt.display().to_string());
            world.rig.run(&["limit", &path, &mnt, &format!("sync_isolation={isolation}")]).ok();
            world.dirty("a", MINUTES);
            world.umount2(by, lazy);
            if is_waited_for {
                world.is_on_the_store();
            }
            world.rig.verb("wait", &[]).ok().says("free");
            world.is_on_the_store();
        }
    }
}

#[test]
fn a_raw_umount2_releases_a_sync_that_waits_at_its_cgroups_limit() {
    let Some(world) = World::new(NO_OTHERS).filter(|_| has("umount")) else { return };
    world.dirty("a", MINUTES);
    // By the control socket: it holds nothing of the mount.
    let mut sync = world.sync_verb(&world.slow);
    let written = world.written_bytes();
    eventually("it writes", || world.written_bytes() > written);
    assert!(sync.try_wait().expect("a child").is_none(), "at its limit it goes on for minutes");
    world.umount2(&world.slow, &[]);
    ended(sync);
    world.rig.verb("wait", &[]).ok().says("free");
    world.is_on_the_store();
}

#[test]
fn an_isolated_cgroup_waits_for_its_own_data_only() {
    let Some(world) = World::new("") else { return };
    let name = world.other.path().display().to_string();
    let mnt = world.rig.mnt.display().to_string();
    world.rig.run(&["limit", &name, &mnt, "sync_isolation=1"]).ok();
    world.dirty("a", 8);
    for sync in world.syncs(&world.other) {
        ended(sync);
        assert_eq!(world.dirty_bytes(), 8 * MIB);
        assert_eq!(world.owed(), 0);
    }
    for (name, by_verb) in [("own", true), ("own2", false)] {
        world.write(&world.other, name, 2);
        assert_eq!(world.dirty_bytes(), 10 * MIB);
        if by_verb || !sends_syncs(&world.rig) {
            ended(world.sync_verb(&world.other));
        } else {
            world.syncs(&world.other).into_iter().for_each(ended);
        }
        assert_eq!(world.dirty_bytes(), 8 * MIB, "its own was written");
    }
    world.rig.run(&["limit", &world.other.path().display().to_string(), &mnt, "sync_isolation=0"]).ok();
    ended(world.sync_verb(&world.other));
    assert_eq!(world.dirty_bytes(), 0, "it is isolated no more");
    world.end();
}

#[test]
fn an_isolated_cgroup_that_wrote_nothing_syncs_at_once_while_the_store_hangs() {
    let Some(mut rig) = Rig::mounting() else { return };
    let (Some(isolated), Some(other)) = (Cgroup::make(), Cgroup::make()) else { return };
    let limit = format!("dirty_after=10ms,limit={}:sync_isolation=1", isolated.path().display());
    let daemon = rig.mount_faulty("write:hang;sync:hang", &limit);
    fs::write(rig.mnt.join("a"), vec![1; 1 << 20]).expect("room");
    let world = World { rig, slow: isolated, other, written: RefCell::default() };
    // The store hangs: a sync that has to wait for others' data waits.
    let mut waits = world.syncs(&world.other);
    eventually("it is being written", || world.rig.volume()["writeback_bytes"] != 0);
    world.syncs(&world.slow).into_iter().for_each(ended);
    // fsync of the directory, of which it changed nothing either.
    world.slow.run("sync", &[&world.rig.mnt]);
    for sync in &mut waits {
        assert!(sync.try_wait().expect("a child").is_none(), "the store has answered");
    }
    world.rig.verb("umount", &["--force"]).ends(1, "not written");
    for mut sync in waits {
        assert!(!wait(&mut sync, LONG).expect("it ends").success(), "nothing is durable");
    }
    assert_eq!(daemon.end(), Some(1));
}

#[test]
fn throttled_syncs_keep_nobody_from_the_control_socket() {
    let Some(world) = World::new(NO_OTHERS) else { return };
    world.dirty("a", MINUTES);
    // More than may run at a time; on this type of mount the verb waits in the control socket.
    let mut syncs: Vec<Child> = (0..24).map(|_| world.sync_verb(&world.slow)).collect();
    // The kernel names a socket as it was when it was bound, before it had its place.
    let socket = world.rig.socket().with_extension("").display().to_string();
    let connections = || {
        let all = fs::read_to_string("/proc/net/unix").expect("the kernel's sockets");
        all.lines().filter(|line| line.contains(&socket)).count()
    };
    // The socket itself, and one for each.
    eventually("all have called", || connections() > syncs.len());
    assert_eq!(world.rig.volume()["state"], "active");
    assert!(world.dirty_bytes() > 0);
    for sync in &mut syncs {
        assert!(sync.try_wait().expect("a child").is_none(), "at its limit it goes on for minutes");
    }
    // Another cgroup's sync has a thread, and boosts the data that they wait for.
    ended(world.sync_verb(&world.other));
    syncs.into_iter().for_each(ended);
    world.dirty("b", MINUTES);
    let mut syncs: Vec<Child> = (0..24).map(|_| world.sync_verb(&world.slow)).collect();
    eventually("all have called", || connections() > syncs.len());
    assert!(syncs.iter_mut().all(|sync| sync.try_wait().is_ok_and(|ended| ended.is_none())));
    world.end();
    // They end with the volume, which has written everything.
    syncs.into_iter().for_each(ended);
}

#[test]
fn limits_are_shown_changed_and_lifted_while_running() {
    let Some(world) = World::new("") else { return };
    let (slow, mnt) = (world.slow.path().display().to_string(), world.rig.mnt.display().to_string());
    let shown = world.rig.run(&["limit", "--show", &mnt]).ok().stdout;
    assert_eq!(
        shown.trim(),
        format!(
            "{} rbps=max wbps=262144 riops=max wiops=max dirty_max=max sync_isolation=0",
            world.slow.path().display()
        )
    );
    world.rig.run(&["limit", &slow, &mnt, "wbps=2M", "riops=100", "dirty_max=64M"]).ok();
    let shown = world.rig.run(&["limit", "--show", &slow, &mnt]).ok().stdout;
    assert!(shown.contains("wbps=2097152 riops=100") && shown.contains("dirty_max=67108864"), "{shown}");
    // Also for a cgroup that is not there, and by its directory.
    world.rig.run(&["limit", "/watertight-not-there", &mnt, "wbps=1K"]).ok();
    let directory = world.slow.directory().display().to_string();
    world.rig.run(&["limit", &directory, &mnt, "wbps=max", "riops=max", "dirty_max=max"]).ok();
    let shown = world.rig.run(&["limit", "--show", &mnt]).ok().stdout;
    assert!(!shown.contains(&slow) && shown.contains("/watertight-not-there"), "{shown}");
    for (arguments, word) in [
        (vec!["limit", &slow, &mnt], "write `watertight limit CGROUP VOLUME"),
        (vec!["limit", &slow, &mnt, "wbps=fast"], "wbps=fast"),
        (vec!["limit", &slow, &mnt, "speed=1"], "there are rbps"),
        (vec!["limit", "slow", &mnt, "wbps=1M"], "is not a cgroup's path"),
        (vec!["limit", &slow, "/proc", "wbps=1M"], "not inside a mounted Watertight volume"),
    ] {
        world.rig.run(&arguments).ends(2, word);
    }
    fs::write(world.rig.mnt.join("f"), "x").expect("a write");
    world.end();
}
