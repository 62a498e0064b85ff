//! The plugin as Podman uses it: it counts itself, and takes an unmount's error for a mount that stays.

use std::fs;
use std::path::Path;

use rustix::process::{Pid, Signal};
use serde_json::{Value, json};

use super::{Plugin, signal};
use crate::rig::{eventually, is_mounted};

/// As Podman has it for all its mounts.
const ID: &str = "2f73349cfc4630255319c6c8dfc1b46a8996ace9d14d8e07563b165915918ec2";

fn is_unused(plugin: &Plugin) -> bool {
    plugin.status("data")["uses"] == 0
}

#[track_caller]
fn is_no_directory(path: &Path) {
    assert!(!is_mounted(path) && !path.exists(), "a directory of the host is not the volume");
}

#[track_caller]
fn nothing_has_it(plugin: &Plugin, path: &Path) {
    is_no_directory(path);
    plugin.rig.is_quiet();
}

/// Whether another process than this one serves the volume.
fn is_served_anew(plugin: &Plugin, process: Pid) -> bool {
    let status = plugin.rig.status();
    let is_new = |volume: &Value| volume["pid"] != process.as_raw_nonzero().get();
    status["volumes"].as_array().unwrap().iter().any(|it| it["state"] == "active" && is_new(it))
}

#[test]
fn podman_finds_a_volume_mounted_again_whose_mount_process_was_killed() {
    let Some(mut plugin) = Plugin::new() else { return };
    let daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.mount("data", ID);
    fs::write(path.join("a"), "a").unwrap();
    fs::File::open(path.join("a")).unwrap().sync_all().unwrap();
    let first = plugin.mount_process(&path);
    signal(first, Signal::KILL);
    // A container that restarts mounts nothing: it takes the directory as it is.
    eventually("it is mounted again", || is_served_anew(&plugin, first) && is_mounted(&path));
    eventually("that is said", || plugin.status("data")["error"].is_string());
    let status = plugin.status("data");
    assert!(status["error"].as_str().unwrap().contains("later writes may be lost"), "{status}");
    assert_eq!(status["uses"], 1);
    assert_eq!(fs::read(path.join("a")).unwrap(), b"a");

    // Both are killed, and the next plugin finds a mount that nobody serves.
    let second = plugin.mount_process(&path);
    daemon.kill();
    signal(second, Signal::KILL);
    let _daemon = plugin.start();
    eventually("it is mounted by the next", || is_served_anew(&plugin, second) && is_mounted(&path));
    fs::write(path.join("b"), "b").unwrap();
    plugin.unmount("data", ID).unwrap();
    assert_eq!(plugin.rig.stored("b").unwrap(), b"b");
    nothing_has_it(&plugin, &path);
}

#[test]
fn an_unmount_of_podman_s_after_a_kill_is_no_mount_that_stays() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    for _ in 0..3 {
        let path = plugin.mount("data", ID);
        signal(plugin.mount_process(&path), Signal::KILL);
        // Whether it finds the dead mount or the next one.
        plugin.unmount("data", ID).unwrap();
        assert!(is_unused(&plugin));
        is_no_directory(&path);
    }
}

#[test]
fn podman_is_not_kept_from_a_mount_that_a_process_of_the_host_holds() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.mount("data", ID);
    fs::write(path.join("a"), "a").unwrap();
    let held = fs::File::open(&path).unwrap();
    plugin.unmount("data", ID).unwrap();
    assert_eq!(plugin.rig.stored("a").unwrap(), b"a");
    let error = plugin.status("data")["error"].clone();
    assert!(error.as_str().unwrap().contains("is busy"), "{error}");
    // The next container mounts, and its unmount is a whole one.
    assert_eq!(plugin.mount("data", ID), path);
    drop(held);
    plugin.unmount("data", ID).unwrap();
    nothing_has_it(&plugin, &path);
}

#[test]
fn a_volume_is_mounted_again_where_podman_did_not_wait_for_its_unmount() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.mount("data", ID);
    fs::write(path.join("a"), "a").unwrap();
    let process = plugin.mount_process(&path);
    signal(process, Signal::STOP);
    let unmounting = plugin.send("VolumeDriver.Unmount", &json!({"Name": "data", "ID": ID}));
    eventually("it is being unmounted", || plugin.status("data")["doing"] == "unmounting it");
    drop(unmounting);
    // The plugin has seen that by the time it answers a later call.
    assert_eq!(plugin.status("data")["doing"], "unmounting it");
    signal(process, Signal::CONT);
    // Podman believes it mounted, and gives the directory to the next container.
    eventually("it is mounted again", || is_served_anew(&plugin, process) && is_mounted(&path));
    eventually("the use is counted", || plugin.status("data")["uses"] == 1);
    assert_eq!(fs::read(path.join("a")).unwrap(), b"a");
    plugin.unmount("data", ID).unwrap();
    assert!(is_unused(&plugin));
    nothing_has_it(&plugin, &path);
}

#[test]
fn the_next_plugin_mounts_what_podman_believes_mounted() {
    let Some(mut plugin) = Plugin::new() else { return };
    let daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.mount("data", ID);
    daemon.kill();
    // As if it had been killed in the midst of an unmount.
    plugin.rig.run(&["umount", path.to_str().unwrap()]).ok();
    let _daemon = plugin.start();
    eventually("it is mounted again", || is_mounted(&path));
    eventually("it is counted", || plugin.status("data")["state"] == "active");
    assert_eq!(plugin.status("data")["uses"], 1);
    plugin.unmount("data", ID).unwrap();
    nothing_has_it(&plugin, &path);
}

#[test]
fn files_that_an_engine_wrote_into_the_bare_directory_are_not_hidden() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.state.join("mounts/data");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("stray"), "stray").unwrap();
    let wrong = plugin.call("VolumeDriver.Mount", &json!({"Name": "data", "ID": "c1"})).unwrap_err();
    assert!(wrong.contains("has files in it") && wrong.contains("move them away"), "{wrong}");
    let wrong = plugin.call("VolumeDriver.Remove", &json!({"Name": "data"})).unwrap_err();
    assert!(wrong.contains("has files in it"), "{wrong}");
    fs::remove_file(path.join("stray")).unwrap();
    assert_eq!(plugin.mount("data", "c1"), path);
    plugin.unmount("data", "c1").unwrap();
    nothing_has_it(&plugin, &path);
}
