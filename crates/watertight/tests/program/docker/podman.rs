//! The plugin as Podman uses it: it counts itself, and takes an unmount's error for a mount that stays.

use std::fs;
use std::path::Path;

use rustix::process::Signal;
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

#[test]
fn podman_mounts_anew_after_its_mount_process_was_killed() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.mount("data", ID);
    signal(plugin.mount_process(&path), Signal::KILL);
    eventually("it is gone", || plugin.rig.status()["volumes"].as_array().unwrap().is_empty());
    // An error would be a mount that stays, and there is none.
    plugin.unmount("data", ID).unwrap();
    let error = plugin.status("data")["error"].clone();
    assert!(error.as_str().unwrap().contains("died before everything was written"), "{error}");
    assert!(is_unused(&plugin));
    is_no_directory(&path);
    assert_eq!(plugin.mount("data", ID), path);
    assert!(is_mounted(&path));
    fs::write(path.join("a"), "a").unwrap();
    plugin.unmount("data", ID).unwrap();
    assert_eq!(plugin.rig.stored("a").unwrap(), b"a");
    nothing_has_it(&plugin, &path);
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
    let is_another = |status: &Value| {
        let volumes = status["volumes"].as_array().unwrap();
        volumes
            .iter()
            .any(|volume| volume["state"] == "active" && volume["pid"] != process.as_raw_nonzero().get())
    };
    eventually("it is mounted again", || is_another(&plugin.rig.status()) && is_mounted(&path));
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
