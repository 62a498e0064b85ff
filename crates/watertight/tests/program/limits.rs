//! As root: the privileges that the process gives up, and how few descriptors are enough.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::rig::{Rig, has};

/// `CAP_SYS_RESOURCE`, with which quotas and reserved space would not be respected.
const SYS_RESOURCE: u64 = 1 << 24;

#[test]
fn no_thread_that_writes_may_exceed_quotas() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    fs::write(rig.mnt.join("a"), "1").unwrap();
    rig.verb("sync", &[]).ok();
    let mut looked_at = 0;
    for task in fs::read_dir(format!("/proc/{}/task", daemon.pid)).unwrap() {
        let task: PathBuf = task.unwrap().path();
        // Threads come and go.
        let Ok(name) = fs::read_to_string(task.join("comm")) else { continue };
        // It only waits for signals, and began before the limits were raised.
        if name.trim() == "signals" {
            continue;
        }
        let Ok(status) = fs::read_to_string(task.join("status")) else { continue };
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
        let effective = u64::from_str_radix(effective.trim(), 16).unwrap();
        assert_eq!(effective & SYS_RESOURCE, 0, "thread {name}");
        looked_at += 1;
    }
    assert!(looked_at > 3);
    rig.verb("umount", &[]).ok();
}

#[test]
fn many_more_files_than_descriptors() {
    let Some(mut rig) = Rig::mounting() else { return };
    if !has("setpriv") || !has("prlimit") {
        return;
    }
    // As a root that cannot raise limits.
    let inner = rig.command(&["mount", "-o", "dirty_after=1h"]);
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set=-sys_resource", "--inh-caps=-sys_resource", "prlimit", "--nofile=512:512"])
        .arg(inner.get_program())
        .args(inner.get_args())
        .args([&rig.store, &rig.mnt])
        .envs(inner.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let daemon = rig.start(command);
    for n in 0..3000 {
        fs::write(rig.mnt.join(n.to_string()), n.to_string()).unwrap();
    }
    assert_eq!(rig.volume()["state"], "active");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
    for n in 0..3000 {
        assert_eq!(rig.stored(&n.to_string()).unwrap(), n.to_string().as_bytes());
    }
}
