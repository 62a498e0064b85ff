//! `watertight bench`.

use std::fs;

use serde_json::Value;
use testing::cgroup::Cgroup;

use crate::rig::{Rig, run};

#[test]
fn a_bench_measures_volume_and_store_and_leaves_nothing() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    let out = rig.verb("bench", &["--slice", "10ms", "--json"]).ok();
    let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 7, "{report:#}");
    for row in rows {
        for side in ["volume", "store"] {
            let figure = |name: &str| row[side][name].as_f64().expect("a figure");
            assert!(figure("n") >= 2.0 && figure("per_second") > 0.0, "{row:#}");
            assert!(figure("p50_us") <= figure("p99_us") && figure("p99_us") <= figure("max_us"), "{row:#}");
        }
    }
    rig.verb("bench", &["--slice", "10ms"]).ok().says("store p99").says("create and unlink");
    assert_eq!(fs::read_dir(&rig.mnt).unwrap().count(), 0);
    assert_eq!(fs::read_dir(&rig.store).unwrap().count(), 0);
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}

/// With the usual 64 MiB each of these would take longer than any test lasts.
#[test]
fn a_bench_of_a_limited_volume_takes_less_data_and_says_so() {
    let Some(mut rig) = Rig::mounting() else { return };
    let Some(slow) = Cgroup::make() else { return };
    for limit in ["wbps=1M", "wiops=20"] {
        let daemon = rig.mount(&format!("cache=256M,limit={}:{limit}", slow.path().display()));
        let bench = |more: &[&str]| {
            let verb = rig.command(&["bench", "--slice", "200ms"]);
            let mut command = slow.command(verb.get_program());
            command.args(verb.get_args()).args(more).arg(&rig.mnt);
            command.envs(verb.get_envs().filter_map(|(name, value)| Some((name, value?))));
            run(command).ok()
        };
        let report: Value = serde_json::from_str(&bench(&["--json"]).stdout).expect("JSON");
        let rows = report["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 7, "{report:#}");
        assert!(rows.iter().all(|row| row["volume"]["n"].as_u64() >= Some(2)), "{report:#}");
        if limit.starts_with("wbps") {
            assert!(report["file_bytes"].as_u64() < Some(64 << 20), "{report:#}");
            bench(&[]).says("Less data than the usual 64.0 MiB");
        }
        assert_eq!(fs::read_dir(&rig.mnt).unwrap().count(), 0);
        rig.verb("umount", &[]).ok();
        assert_eq!(daemon.end(), Some(0));
    }
}

/// A sync takes longer than the part of a slice that the files are made in: these are made with two
/// syncs, one to find out how large a file can be, one how many small writes, however fast the
/// machine is. The third is that of the first row.
#[test]
fn a_store_that_stops_answering_is_given_up_and_its_row_says_so() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("file.sync:delay=100ms;file.sync:from=3:hang", "dirty_after=1h");
    let out = rig.verb("bench", &["--slice", "200ms", "--patience", "8s", "--json"]);
    let out = out.ends(1, "no answer for 8.0 s: ").ends(1, "the volume in `write in order`");
    let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    let is_volume =
        |row: &&Value| row["given_up"].as_array().is_some_and(|all| all.contains(&"volume".into()));
    let given_up: Vec<&Value> = rows.iter().filter(is_volume).collect();
    // Once, and it is not tried again.
    assert_eq!(given_up.len(), 1, "{report:#}");
    assert!(rows.iter().all(|row| row["volume"].is_null()), "{report:#}");
    goes_on(&report, "store");
    rig.verb("umount", &["--force"]);
    assert!(daemon.end().is_some());
}

/// This side was measured in each row in which it was not given up, on a machine however slow.
#[track_caller]
fn goes_on(report: &Value, side: &str) {
    let rows = report["rows"].as_array().expect("rows");
    let mut measured = rows.iter().filter(|row| row["work"] != "the files before");
    let gave_up = |row: &Value| row["given_up"].as_array().is_some_and(|all| all.contains(&side.into()));
    assert!(rows.iter().any(gave_up) || measured.all(|row| row[side]["n"].as_u64() >= Some(1)), "{report:#}");
}

#[test]
fn a_store_that_hangs_while_the_files_are_made_is_given_up_and_its_row_says_so() {
    let Some(mut rig) = Rig::mounting() else { return };
    // The first sync finds out how large a file can be; the second, by then with a file of 4 KiB,
    // how many small writes.
    for rules in ["write:hang", "file.sync:delay=100ms;file.sync:from=2:hang"] {
        let daemon = rig.mount_faulty(rules, "dirty_after=1h");
        let out = rig.verb("bench", &["--slice", "200ms", "--patience", "4s", "--json"]);
        let out = out.ends(1, "no answer for 4.0 s: the volume in `the files before`");
        let report: Value = serde_json::from_str(&out.stdout).expect("JSON");
        let rows = report["rows"].as_array().expect("rows");
        assert_eq!(rows.len(), 8, "{report:#}");
        assert_eq!(rows[0]["work"], "the files before");
        assert_eq!(rows[0]["given_up"][0], "volume");
        assert!(rows.iter().all(|row| row["volume"].is_null()), "{report:#}");
        goes_on(&report, "store");
        rig.verb("umount", &["--force"]);
        assert!(daemon.end().is_some());
    }
}

#[test]
fn a_bench_of_no_volume_or_of_no_time_is_refused() {
    let rig = Rig::new();
    rig.run(&["bench", &rig.root.display().to_string()]).ends(2, "not inside a mounted Watertight volume");
    rig.run(&["bench", "--slice", "1h", "/"]).ends(2, "10ms to 1m");
    rig.run(&["bench", "--patience", "2h", "/"]).ends(2, "up to 1h");
}

#[test]
fn a_store_that_is_no_directory_is_not_measured_and_that_is_said() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_source("mem:size=256M", "");
    rig.verb("bench", &["--slice", "10ms"]).ok().says("The store alone was not measured: mem:size=256M");
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}
