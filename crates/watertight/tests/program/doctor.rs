//! `doctor`: what a host has, and what repairs it.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use rustix::process::Signal;
use serde_json::Value;

use crate::rig::{Out, Rig, eventually, run};
use crate::stalled::Stalling;

fn found(out: &Out) -> Vec<Value> {
    serde_json::from_str(&out.stdout).unwrap()
}

/// What it says of a thing: verdicts, and words.
fn of(checks: &[Value], name: &str) -> Vec<(String, String)> {
    let of = checks.iter().filter(|check| check["name"] == name);
    of.map(|check| {
        let text = |key: &str| check[key].as_str().unwrap_or_default().to_owned();
        (text("verdict"), text("found"))
    })
    .collect()
}

#[test]
fn a_host_on_which_volumes_work_has_nothing_bad() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let source = rig.store.to_str().unwrap().to_owned();
    let out = rig.run(&["doctor", "--json", &source]).ok();
    let checks = found(&out);
    for name in ["fuse", "user", "kernel", "io_uring", "cgroups", "open files", "memory", "runtime directory"]
    {
        assert_eq!(of(&checks, name).len(), 1, "{name}: {checks:?}");
    }
    assert!(
        checks.iter().all(|check| check["verdict"] == "good" || check["repair"].is_string()),
        "{checks:?}"
    );
    let (verdict, words) = of(&checks, "volumes").remove(0);
    assert!(verdict == "good" && words.contains("1 is mounted"), "{words}");
    assert!(of(&checks, "store")[0].1.contains("free"), "{checks:?}");
    rig.run(&["doctor"]).ok().says("good  fuse: /dev/fuse can be opened");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn what_is_wrong_with_a_volume_or_a_store_is_bad_and_has_a_repair() {
    let Some(mut rig) = Rig::mounting() else { return };
    let missing = rig.root.join("missing").display().to_string();
    let out = rig.run(&["doctor", "--json", &missing]).ends(1, "is bad");
    assert_eq!(of(&found(&out), "store")[0].0, "bad");
    let open = rig.root.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    let mut command = rig.command(&["doctor", "--json"]);
    command.env("WATERTIGHT_RUNTIME_DIR", &open);
    let out = run(command).ends(1, "is bad");
    assert_eq!(of(&found(&out), "runtime directory")[0].0, "bad", "{out:?}");
    let daemon = rig.mount("");
    daemon.kill();
    let out = rig.run(&["doctor", "--json"]).ends(1, "1 check is bad");
    let (verdict, words) = of(&found(&out), "volumes").remove(0);
    assert!(verdict == "bad" && words.contains("its process died"), "{words}");
    rig.verb("umount", &[]);
    rig.verb("wait", &["--forget"]);
    rig.run(&["doctor"]).ok().says("volumes: none is mounted");
}

#[test]
fn a_store_that_does_not_answer_is_named() {
    let Some(mut it) = Stalling::new() else { return };
    let (_daemon, waiter) = it.stall();
    eventually("it is called stalled", || it.is_stalled());
    let out = it.rig.run(&["doctor", "--json"]).ends(1, "is bad");
    let (verdict, words) = of(&found(&out), "volumes").remove(0);
    assert!(verdict == "bad" && words.contains("does not answer"), "{words}");
    it.server.signal(Signal::CONT);
    assert!(waiter.succeeds());
    it.rig.verb("umount", &[]).ok();
}
