//! The figures of cgroups in `status`, and the rest of them after an unmount.

use std::fs;

use serde_json::Value;
use testing::cgroup::Cgroup;

use crate::rig::{Rig, eventually};
use crate::syncing::Syncing;

/// The figures of a cgroup in the status.
fn figures(rig: &Rig, of: &Cgroup) -> Value {
    let status = rig.volume();
    let all = status["cgroups"].as_array().unwrap();
    let path = of.path().to_str().unwrap();
    all.iter().find(|cgroup| cgroup["path"] == path).cloned().unwrap_or(Value::Null)
}

fn write(rig: &Rig, by: &Cgroup, count: &str, sync: &str) {
    let file = format!("of={}", rig.mnt.join("file").display());
    by.run("dd", &["if=/dev/zero", &file, "bs=4096", count, sync]);
}

#[test]
fn status_and_metrics_show_what_each_cgroup_has_and_the_record_what_an_unmount_waited_for() {
    let Some(mut rig) = Rig::mounting() else { return };
    let (Some(a), Some(b)) = (Cgroup::make(), Cgroup::make()) else { return };
    let daemon = rig.mount("dirty_after=1h");
    write(&rig, &a, "count=5", "conv=notrunc");
    let of_a = figures(&rig, &a);
    assert_eq!((&of_a["owned_inodes"], &of_a["dirty_bytes"]), (&1.into(), &20480.into()), "{of_a}");
    assert_eq!(of_a["removed"], false);
    let text = rig.verb("status", &[]).stdout;
    let line = text.lines().find(|line| line.contains(a.path().to_str().unwrap()));
    assert!(line.is_some_and(|line| line.contains("20.0 KiB")), "{text}");
    assert_eq!(rig.volume()["dirty_bytes"], 20480);

    (0..9).for_each(|_| write(&rig, &b, "count=1", "conv=notrunc,fsync"));
    // The first of the nine wrote the data that the other cgroup had left, and that was more.
    write(&rig, &b, "count=1", "conv=notrunc,fsync");
    eventually("the inode is the other cgroup's", || figures(&rig, &b)["owned_inodes"] == 1);
    // It owns nothing any more, and is still shown.
    assert_eq!(figures(&rig, &a)["owned_inodes"], 0);
    assert_eq!(rig.volume()["switched_inodes"], 1);
    let metrics = rig.verb("status", &["--metrics"]).stdout;
    let sample = format!("cgroup=\"{}\",removed=\"0\"}} 1", b.path().display());
    assert!(
        metrics.lines().any(|l| l.starts_with("watertight_cgroup_inodes{") && l.ends_with(&sample)),
        "{metrics}"
    );

    let id = rig.volume()["id"].as_str().unwrap().to_owned();
    rig.verb("umount", &[]).ok().says("; changes of owner so far: 1; waited for the last of them: ");
    drop(daemon);
    let record = std::fs::read_to_string(rig.runtime.join(format!("{id}.json"))).unwrap();
    let record: Value = serde_json::from_str(&record).unwrap();
    assert_eq!(record["ended"]["switched_inodes"], 1, "{record}");
    assert!(record["ended"]["switch_drain_us"].is_u64(), "{record}");
}

#[test]
fn cgroups_can_be_left_out_and_a_tree_that_is_not_there_is_refused() {
    let Some(mut rig) = Rig::mounting() else { return };
    let out = rig.run(&["mount", "-o", "cgroup=nonesuch", "mem:", rig.mnt.to_str().unwrap()]);
    out.ends(2, "no cgroup hierarchy with `nonesuch`");
    let _daemon = rig.mount("cgroup=off,dirty_after=1h");
    std::fs::write(rig.mnt.join("file"), "x").unwrap();
    let status = rig.volume();
    assert_eq!(status["cgroup_tree"], "off");
    assert_eq!(status["cgroups"].as_array().unwrap().len(), 1);
    assert_eq!(status["cgroups"][0]["path"], "/");
    rig.verb("umount", &[]).ok();
}

/// As in /proc/meminfo: data that waits to be written, and data that is being written, are two
/// figures.
#[test]
fn dirty_and_under_write_back_are_apart_for_a_volume_as_for_its_cgroups() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write:nth=1:hang", "dirty_after=1h,stall_after=1h");
    fs::write(rig.mnt.join("a"), [1; 3 * 4096]).unwrap();
    let waiter = Syncing::prepare(&rig.mnt.join("a"), "").begin();
    eventually("the write is under way", || rig.volume()["writeback_bytes"] != 0);
    fs::write(rig.mnt.join("b"), [2; 2 * 4096]).unwrap();
    let volume = rig.volume();
    let of_volume = |key: &str| volume[key].as_u64().unwrap();
    let of_cgroups = |key: &str| {
        let all = volume["cgroups"].as_array().unwrap().iter();
        all.map(|cgroup| cgroup[key].as_u64().unwrap()).sum::<u64>()
    };
    for (key, pages) in [("to_write_bytes", 2), ("writeback_bytes", 3)] {
        assert_eq!((of_volume(key), of_cgroups(key)), (pages * 4096, pages * 4096), "{key}: {volume}");
    }
    // These keys mean what they meant before.
    assert_eq!((of_volume("dirty_bytes"), of_cgroups("dirty_bytes")), (5 * 4096, 2 * 4096), "{volume}");
    let table = rig.run(&["status"]).ok().stdout;
    let row = table.lines().nth(1).unwrap();
    assert!(row.contains("  8.0 KiB  12.0 KiB  "), "{table}");
    rig.verb("umount", &["--force"]).ends(1, "20480 bytes");
    assert!(!waiter.succeeds(), "who waited gets an error");
    assert_eq!(daemon.end(), Some(1));
}
