//! `stats`: what is counted, and what operations' time was spent on.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;
use testing::cgroup::Cgroup;

use crate::rig::{LONG, Rig, eventually, wait};
use crate::stalled::Stalling;

fn stats(rig: &Rig, more: &[&str]) -> Value {
    let out = rig.verb("stats", &[&["--json"], more].concat()).ok();
    serde_json::from_str(&out.stdout).expect("JSON")
}

/// A figure of a class of operations; 0 where there was none.
fn figure(stats: &Value, op: &str, name: &str) -> u64 {
    stats["operations"].get(op).map_or(0, |of| of[name].as_u64().expect("a number"))
}

/// Of all operations together.
fn sum(stats: &Value, name: &str) -> u64 {
    let all = stats["operations"].as_object().expect("operations");
    all.keys().map(|op| figure(stats, op, name)).sum()
}

#[test]
fn totals_are_of_what_was_asked_and_parts_add_up() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("dirty_after=1h");
    let before = stats(&rig, &[]);
    for n in 0..3 {
        fs::create_dir(rig.mnt.join(n.to_string())).unwrap();
    }
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    let file = File::options().write(true).open(rig.mnt.join("a")).unwrap();
    file.sync_all().unwrap();
    file.sync_all().unwrap();
    fs::remove_file(rig.mnt.join("a")).unwrap();
    fs::rename(rig.mnt.join("0"), rig.mnt.join("3")).unwrap();
    // A request is counted after its answer.
    eventually("all are counted", || {
        let now = stats(&rig, &[]);
        let added = |op| figure(&now, op, "count") - figure(&before, op, "count");
        let all = [("create", 4), ("write", 1), ("fsync", 2), ("unlink", 1), ("rename", 1)];
        assert!(all.iter().all(|(op, count)| added(op) <= *count), "{now}");
        all.iter().all(|(op, count)| added(op) == *count)
    });
    let now = stats(&rig, &[]);
    for op in now["operations"].as_object().unwrap().keys() {
        let of = |name| figure(&now, op, name);
        let parts = ["queue_us", "limit_us", "cache_us", "store_us", "rest_us"].map(of);
        assert_eq!(parts.iter().sum::<u64>(), of("total_us"), "{op}: {now}");
        let order = ["p50_us", "p95_us", "p99_us", "max_us"].map(of);
        assert!(order.is_sorted() && of("max_us") <= of("total_us"), "{op}: {now}");
    }
    assert!(figure(&now, "create", "store_us") > 0, "a directory is made on the store: {now}");
    assert_eq!(sum(&now, "limit_us"), 0, "nothing is limited: {now}");
    let text = rig.verb("stats", &[]).ok().says("  OP ").says("  fsync ").stdout;
    assert!(text.starts_with(rig.mnt.to_str().unwrap()), "{text}");
    rig.verb("stats", &["--by", "cgroup"]).ok().says("no request waited for a limit");
    drop(file);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn a_limited_cgroups_wait_is_in_its_limit() {
    let Some(mut rig) = Rig::mounting() else { return };
    let Some(slow) = Cgroup::make() else { return };
    let daemon = rig.mount(&format!("dirty_after=1h,limit={}:wbps=1M", slow.path().display()));
    let of = format!("of={}", rig.mnt.join("a").display());
    slow.run("dd", &["if=/dev/zero", &of, "bs=1M", "count=3", "conv=fsync", "status=none"]);
    eventually("the fsync is counted", || figure(&stats(&rig, &[]), "fsync", "count") == 1);
    let now = stats(&rig, &[]);
    assert!(figure(&now, "fsync", "limit_us") > 0, "{now}");
    assert!(figure(&now, "fsync", "limit_us") <= figure(&now, "fsync", "total_us"), "{now}");
    let waits = stats(&rig, &["--by", "cgroup"]);
    let path = slow.path().display().to_string();
    let wait = waits["limit_waits"].as_array().unwrap().iter().find(|wait| wait["cgroup"] == path);
    let wait = wait.unwrap_or_else(|| panic!("no {path} in {waits}"));
    assert_eq!((&wait["limit"], &wait["waiting"]), (&"io.max".into(), &0.into()));
    assert!(wait["waits"].as_u64() > Some(0) && wait["waited_us"].as_u64() > Some(0), "{waits}");
    rig.verb("stats", &["--by", "cgroup"]).ok().says("  CGROUP ").says(&path);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn the_time_of_a_store_that_stalls_is_the_stores() {
    let Some(mut it) = Stalling::new() else { return };
    let (daemon, waiter) = it.stall();
    eventually("it is called stalled", || it.is_stalled());
    // It is asked for while the store does not answer.
    stats(&it.rig, &[]);
    it.server.signal(Signal::CONT);
    assert!(waiter.succeeds());
    eventually("the fsync is counted", || figure(&stats(&it.rig, &[]), "fsync", "count") == 1);
    let now = stats(&it.rig, &[]);
    assert!(sum(&now, "store_us") >= 200_000, "{now}");
    assert!(figure(&now, "fsync", "max_us") >= 200_000, "{now}");
    it.rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn an_interval_has_what_was_added_in_it() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    for n in 0..5 {
        fs::create_dir(rig.mnt.join(n.to_string())).unwrap();
    }
    eventually("all are counted", || figure(&stats(&rig, &[]), "create", "count") == 5);
    let out = rig.verb("stats", &["--interval", "20ms", "--count", "2", "--json"]).ok().stdout;
    let intervals: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(intervals.len(), 2, "{out}");
    for interval in intervals {
        assert_eq!(figure(&interval, "create", "count"), 0, "{out}");
        assert!(interval["counted_ms"].as_u64() >= Some(10), "{out}");
    }
    // It ends when nothing reads it any more.
    let mut command = rig.command(&["stats", "--interval", "10ms"]);
    let mut child = command.arg(&rig.mnt).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with(rig.mnt.to_str().unwrap()), "{line}");
    assert!(wait(&mut child, LONG).expect("it ends").success());
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn an_attached_volume_has_figures_of_its_own() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let inside = rig.mnt.join("inside");
    fs::create_dir(&inside).unwrap();
    rig.run(&["attach", "mem:", inside.to_str().unwrap()]).ok();
    (0..2).for_each(|n| fs::create_dir(inside.join(n.to_string())).unwrap());
    let of_inside = || {
        let out = rig.run(&["stats", "--json", inside.to_str().unwrap()]).ok();
        serde_json::from_str::<Value>(&out.stdout).expect("JSON")
    };
    eventually("both are counted", || figure(&of_inside(), "create", "count") == 2);
    eventually("one is counted", || figure(&stats(&rig, &[]), "create", "count") == 1);
    rig.run(&["detach", inside.to_str().unwrap()]).ok();
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

#[test]
fn what_cannot_be_meant_is_refused() {
    let rig = Rig::new();
    rig.run(&["stats"]).ends(2, "Usage");
    rig.run(&["stats", "/"]).ends(2, "is not inside a mounted Watertight volume");
    for (wrong, said) in [
        (&["--interval", "1ms", "/"][..], "--interval takes 10ms or more"),
        (&["--interval", "soon", "/"], "is not a duration"),
        (&["--interval", "1s", "--count", "0", "/"], "--count"),
        (&["--count", "3", "/"], "--interval"),
        (&["--by", "user", "/"], "possible values"),
    ] {
        rig.run(&[&["stats"], wrong].concat()).ends(2, said);
    }
}
