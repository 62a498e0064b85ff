//! Limits and syncs of real cgroups on a real mount. No test here fails because the machine was slow: throttled takes long, and for all else it is
//! asked what is dirty and what is owed, not how long it took.

use std::fs;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use testing::cgroup::Cgroup;

use crate::rig::Rig;

const MIB: u64 = 1 << 20;

struct World {
    rig: Rig,
    slow: Cgroup,
    other: Cgroup,
}

impl World {
    /// A mount, a cgroup that may write 1 MiB a second to its store, and another one.
    fn new(options: &str) -> Option<Self> {
        let mut rig = Rig::mounting()?;
        let (slow, other) = (Cgroup::make()?, Cgroup::make()?);
        let limit = format!("dirty_after=1h,cache=256M,limit={}:wbps=1M{options}", slow.path().display());
        drop(rig.mount(&limit));
        Some(Self { rig, slow, other })
    }

    /// Somebody in the throttled cgroup writes so many mebibytes.
    fn dirty(&self, name: &str, mebibytes: u64) {
        let of = format!("of={}", self.rig.mnt.join(name).display());
        let count = format!("count={mebibytes}");
        self.slow.run("dd", &["if=/dev/zero", &of, "bs=1M", &count, "status=none"]);
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

    fn is_fuseblk(&self) -> bool {
        self.rig.verb("status", &["--json"]).ok().stdout.contains("\"fuseblk\"")
    }

    /// A sync of the mount's file system by somebody in `cgroup`.
    fn sync_f(&self, cgroup: &Cgroup) -> Child {
        let mut command = cgroup.command("sync");
        command.arg("-f").arg(&self.rig.mnt).stdin(Stdio::null());
        command.spawn().expect("sync runs")
    }

    fn end(self) {
        let begun = Instant::now();
        self.rig.verb("umount", &[]).ok();
        // Whatever was left: an unmount waits for no limit.
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert!(fs::read_dir(&self.rig.store).expect("the store").count() > 0);
    }
}

fn ended(mut child: Child) {
    assert!(child.wait().expect("it ends").success());
}

#[test]
fn a_sync_from_another_cgroup_is_boosted_and_leaves_a_debt() {
    let Some(world) = World::new("") else { return };
    world.dirty("a", 24);
    if world.is_fuseblk() {
        ended(world.sync_f(&world.other));
    } else {
        world.rig.verb("sync", &[]).ok();
    }
    assert_eq!(world.dirty_bytes(), 0);
    // Throttled it would have taken 24 s and left none.
    assert!(world.owed() > MIB, "{}", world.owed());
    world.end();
}

#[test]
fn an_fsync_from_another_cgroup_is_boosted_for_its_file_alone() {
    let Some(world) = World::new("") else { return };
    world.dirty("a", 8);
    world.dirty("b", 8);
    world.other.run("sync", &[world.rig.mnt.join("a")]);
    assert!(world.owed() > MIB);
    assert_eq!(world.dirty_bytes(), 8 * MIB, "the other file is its owner's to write");
    world.end();
}

#[test]
fn a_cgroups_own_fsync_stays_throttled_and_another_sync_releases_it() {
    let Some(world) = World::new("") else { return };
    world.dirty("a", 1);
    let begun = Instant::now();
    world.slow.run("sync", &[world.rig.mnt.join("a")]);
    assert!(begun.elapsed() > Duration::from_millis(900), "{:?}", begun.elapsed());
    // Ten minutes' worth of data, and a sync of its own beside it.
    world.dirty("b", 150);
    let file = world.rig.mnt.join("b");
    let mut own = world.slow.command("sync");
    let own = own.arg(&file).stdin(Stdio::null()).spawn().expect("sync runs");
    world.rig.verb("sync", &[]).ok();
    ended(own);
    assert!(world.owed() > 8 * MIB);
    world.end();
}

#[test]
fn an_isolated_cgroup_waits_for_its_own_data_only() {
    let Some(world) = World::new("") else { return };
    let name = world.other.path().display().to_string();
    let mnt = world.rig.mnt.display().to_string();
    world.rig.run(&["limit", &name, &mnt, "sync_isolation=1"]).ok();
    world.dirty("a", 8);
    if world.is_fuseblk() {
        ended(world.sync_f(&world.other));
        assert_eq!(world.dirty_bytes(), 8 * MIB);
        assert_eq!(world.owed(), 0);
        let of = format!("of={}", world.rig.mnt.join("own").display());
        world.other.run("dd", &["if=/dev/zero", &of, "bs=1M", "count=2", "status=none"]);
        ended(world.sync_f(&world.other));
        assert_eq!(world.dirty_bytes(), 8 * MIB, "its own was written");
    }
    world.end();
}

#[test]
fn an_isolated_cgroup_that_wrote_nothing_syncs_at_once_while_the_store_hangs() {
    let Some(mut rig) = Rig::mounting() else { return };
    let Some(other) = Cgroup::make() else { return };
    let limit = format!("dirty_after=10ms,limit={}:sync_isolation=1", other.path().display());
    drop(rig.mount_faulty("write:hang;sync:hang", &limit));
    fs::write(rig.mnt.join("a"), vec![1; 1 << 20]).expect("room");
    let status = rig.verb("status", &["--json"]).ok().stdout;
    if status.contains("\"fuseblk\"") {
        // Hangs with the store, unless it is isolated: then it has nothing to ask the store for.
        let mut sync = other.command("sync");
        assert!(sync.arg("-f").arg(&rig.mnt).status().expect("sync runs").success());
        assert!(other.command("sync").arg(&rig.mnt).spawn().is_ok_and(|mut child| child.wait().is_ok()));
    }
    let _ = rig.verb("umount", &["--force"]);
}

#[test]
fn limits_are_shown_changed_and_lifted_while_running() {
    let Some(world) = World::new("") else { return };
    let (slow, mnt) = (world.slow.path().display().to_string(), world.rig.mnt.display().to_string());
    let shown = world.rig.run(&["limit", "--show", &mnt]).ok().stdout;
    assert_eq!(
        shown.trim(),
        format!(
            "{} rbps=max wbps=1048576 riops=max wiops=max dirty_max=max sync_isolation=0",
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
        (vec!["limit", &slow, "/proc", "wbps=1M"], "no mounted volume of ours"),
    ] {
        world.rig.run(&arguments).ends(2, word);
    }
    fs::write(world.rig.mnt.join("f"), "x").expect("a write");
    world.end();
}
