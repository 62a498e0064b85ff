//! `why`: what a process, or a volume's requests, wait for.

use std::fs;
use std::process::{Child, Stdio};

use rustix::process::Signal;
use serde_json::Value;
use testing::cgroup::Cgroup;

use crate::rig::{Rig, eventually};
use crate::stalled::Stalling;

/// Kills the process at the end, also when an assertion fails.
struct KillAtEnd(Child);

impl Drop for KillAtEnd {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _gone_already = self.0.wait();
    }
}

#[test]
fn a_process_at_its_limit_is_told_of_it_and_of_what_is_before_it() {
    let Some(mut rig) = Rig::mounting() else { return };
    let Some(slow) = Cgroup::make() else { return };
    let daemon = rig.mount(&format!("dirty_after=1h,cache=256M,limit={}:wbps=256K", slow.path().display()));
    let mut dd = slow.command("dd");
    dd.args(["if=/dev/zero", "bs=1M", "count=60", "conv=fsync", "status=none"]);
    dd.arg(format!("of={}", rig.mnt.join("a").display())).stdin(Stdio::null());
    let dd = KillAtEnd(dd.spawn().unwrap());
    let pid = dd.0.id().to_string();
    let mut said = String::new();
    eventually("it waits for its limit", || {
        said = rig.run(&["why", &pid]).ok().stdout;
        said.contains("for its own limit of 256.0 KiB/s: ")
    });
    assert!(said.starts_with(&format!("dd ({pid}) has waited ")), "{said}");
    assert!(said.contains(" are before it, ") && said.contains(" at that rate\n"), "{said}");
    assert!(said.contains("\n  fsync of dd ("), "{said}");
    // By the path, as well.
    eventually("its volume's requests wait", || {
        said = rig.verb("why", &["--json"]).ok().stdout;
        let value: Value = serde_json::from_str(&said).unwrap();
        value["requests"][0]["limit"]["cgroup"] == slow.path().display().to_string()
    });
    let value: Value = serde_json::from_str(&said).unwrap();
    let first = &value["requests"][0];
    assert_eq!((&first["part"], &first["limit"]["limit"]), (&"limit".into(), &"io.max".into()), "{said}");
    assert!(first["limit"]["bytes"].as_u64() > Some(0), "{said}");
    assert!(value["sentence"].as_str().unwrap().contains("its own limit"), "{said}");
    drop(dd);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_store_that_stalls_is_named() {
    let Some(mut it) = Stalling::new() else { return };
    let (daemon, waiter) = it.stall();
    let id = it.rig.volume()["id"].as_str().unwrap().to_owned();
    eventually("the store is named", || {
        let out = it.rig.run(&["why", &id]).ok().stdout;
        out.contains("the store has not answered `")
    });
    it.server.signal(Signal::CONT);
    assert!(waiter.succeeds());
    it.rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn where_nothing_waits_it_says_so() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    fs::write(rig.mnt.join("a"), "1").unwrap();
    let out = rig.verb("why", &[]).ok().says("nothing waits at ").stdout;
    assert!(out.contains(rig.mnt.to_str().unwrap()), "{out}");
    let own = daemon.pid.to_string();
    rig.run(&["why", &own]).ok().says(&format!("no request of process {own} waits in a volume"));
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn what_is_no_process_and_no_path_in_a_volume_is_refused() {
    let rig = Rig::new();
    rig.run(&["why"]).ends(2, "Usage");
    rig.run(&["why", "/"]).ends(2, "is not inside a mounted Watertight volume");
    // The kernel's numbers are smaller.
    rig.run(&["why", "4194305"]).ends(2, "there is no process 4194305");
}
