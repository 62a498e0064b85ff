//! Uses that no call ends, and a plugin whose program was replaced.

use std::fs;
use std::process::Command;

use serde_json::json;

use super::Plugin;
use crate::rig::{Daemon, eventually, is_mounted, no_copies};
use crate::upgrade::next_program;

/// Another plugin, to which what was counted by then was counted long ago.
fn start_later(plugin: &mut Plugin, daemon: Daemon) -> Daemon {
    daemon.kill();
    let record = plugin.state.join("volumes/data.json");
    let mut read: serde_json::Value = serde_json::from_slice(&fs::read(&record).unwrap()).unwrap();
    for at in read["mounted_ms"].as_object_mut().unwrap().values_mut() {
        *at = json!(at.as_u64().unwrap() - 700_000);
    }
    fs::write(&record, read.to_string()).unwrap();
    plugin.start()
}

#[test]
fn a_volume_whose_containers_ended_without_a_plugin_is_unmounted_by_the_next() {
    let Some(mut plugin) = Plugin::new() else { return };
    // A copy of the mount in another namespace is a use.
    let _no_copies = no_copies();
    let daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.mount("data", "c1");
    plugin.mount("data", "c2");
    fs::write(path.join("a"), "a").unwrap();
    let _daemon = start_later(&mut plugin, daemon);
    eventually("it is unmounted", || !is_mounted(&path));
    eventually("nothing is counted", || plugin.status("data")["uses"] == 0);
    assert_eq!(plugin.rig.stored("a").unwrap(), b"a");
    plugin.rig.will_be_quiet();
}

#[test]
fn the_last_container_s_unmount_is_one_beside_uses_that_nothing_holds() {
    let Some(mut plugin) = Plugin::new() else { return };
    let _no_copies = no_copies();
    let daemon = plugin.start();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.mount("data", "c1");
    // As a container that goes on without the plugin.
    let held = fs::File::open(&path).unwrap();
    let daemon = start_later(&mut plugin, daemon);
    plugin.mount("data", "c2");
    plugin.unmount("data", "c2").unwrap();
    assert!(is_mounted(&path), "the first one holds it");
    assert_eq!(plugin.status("data")["uses"], 1);
    // It ends while Docker cannot reach the plugin; another one comes and goes.
    plugin.mount("data", "c3");
    drop(held);
    fs::write(path.join("a"), "a").unwrap();
    plugin.unmount("data", "c3").unwrap();
    assert_eq!(plugin.rig.stored("a").unwrap(), b"a");
    assert!(!is_mounted(&path));
    plugin.rig.is_quiet();
    drop(daemon);
}

#[test]
fn a_plugin_whose_program_was_replaced_mounts() {
    let Some(mut plugin) = Plugin::new() else { return };
    let program = next_program(&plugin.rig);
    let usual = plugin.command();
    let mut command = Command::new(&program);
    command.args(usual.get_args());
    command.envs(usual.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let _daemon = plugin.rig.start(command);
    fs::remove_file(&program).unwrap();
    plugin.create("data", &plugin.rig.store);
    let path = plugin.mount("data", "c1");
    fs::write(path.join("a"), "a").unwrap();
    plugin.unmount("data", "c1").unwrap();
    assert_eq!(plugin.rig.stored("a").unwrap(), b"a");
}
