//! A node's volumes: staged, published, given back.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use csi_proto::tonic::Code;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::*;
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use super::{Driver, capability, refused};
use crate::rig::{eventually, is_mounted};

#[test]
fn a_volume_is_staged_shown_to_pods_and_given_back() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    let name = client.get_plugin_info(GetPluginInfoRequest {}).unwrap().name;
    assert_eq!(name, "csi.watertight.dev");
    let id = driver.create("a");
    let staging = driver.staging("a");
    refused(
        client.node_publish_volume(driver.publish(&id, "a", "p1")),
        Code::FailedPrecondition,
        "is staged",
    );
    // Each call may be repeated.
    for _ in 0..2 {
        client.node_stage_volume(driver.stage(&id, "a")).unwrap();
    }
    let pid = driver.serving("a");
    for _ in 0..2 {
        client.node_publish_volume(driver.publish(&id, "a", "p1")).unwrap();
        let read_only = NodePublishVolumeRequest { readonly: true, ..driver.publish(&id, "a", "p2") };
        client.node_publish_volume(read_only).unwrap();
    }
    let (one, two) = (driver.target("p1"), driver.target("p2"));
    fs::write(Path::new(&one).join("f"), "data").unwrap();
    assert_eq!(fs::read(Path::new(&two).join("f")).unwrap(), b"data");
    let denied = fs::write(Path::new(&two).join("g"), "x").unwrap_err();
    assert_eq!(denied.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    let stats =
        NodeGetVolumeStatsRequest { volume_id: id.clone(), volume_path: one.clone(), ..Default::default() };
    let usage = client.node_get_volume_stats(stats).unwrap().usage;
    assert!(usage.len() == 2 && usage[0].total > 0 && usage[1].used > 0, "{usage:?}");
    // What a pod has open does not keep its mount.
    let open = fs::File::open(Path::new(&one).join("f")).unwrap();
    for _ in 0..2 {
        client.node_unpublish_volume(driver.unpublish(&id, "p1")).unwrap();
    }
    assert!(!Path::new(&one).exists() && is_mounted(Path::new(&two)));
    client.node_unpublish_volume(driver.unpublish(&id, "p2")).unwrap();
    // It keeps the volume, until it is closed.
    let short = driver.client().within(Duration::from_millis(500));
    refused(short.node_unstage_volume(driver.unstage(&id, "a")), Code::Aborted, "goes on");
    drop(open);
    for _ in 0..2 {
        client.node_unstage_volume(driver.unstage(&id, "a")).unwrap();
    }
    assert!(!is_mounted(Path::new(&staging)), "{pid:?}");
    assert_eq!(driver.holder(&id), Value::Null);
    // Another node has it with everything in it.
    client.node_stage_volume(driver.stage(&id, "b")).unwrap();
    assert_eq!(fs::read(Path::new(&driver.staging("b")).join("f")).unwrap(), b"data");
    refused(client.delete(&id), Code::FailedPrecondition, "held");
    client.node_unstage_volume(driver.unstage(&id, "b")).unwrap();
    for _ in 0..2 {
        client.delete(&id).unwrap();
    }
    assert_eq!(fs::read_dir(&driver.volumes).unwrap().count(), 0);
}

#[test]
fn a_serving_process_that_dies_is_told_of_and_staging_heals() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    let id = driver.create("a");
    client.node_stage_volume(driver.stage(&id, "a")).unwrap();
    client.node_publish_volume(driver.publish(&id, "a", "p1")).unwrap();
    let target = driver.target("p1");
    let file = Path::new(&target).join("f");
    fs::write(&file, "data").unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let health = || {
        let request = NodeGetVolumeHealthRequest {
            volume_id: id.clone(),
            volume_publish_path: target.clone(),
            ..Default::default()
        };
        client.node_get_volume_health(request).unwrap().volume_health.unwrap().health_statuses
    };
    assert_eq!(health(), []);
    kill_process(driver.serving("a"), Signal::KILL).unwrap();
    eventually("its health says so", || {
        health().first().is_some_and(|one| one.message.contains("is gone; what was fsynced is on the store"))
    });
    let stats = NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: target.clone(),
        ..Default::default()
    };
    refused(client.node_get_volume_stats(stats), Code::Unavailable, "is gone");
    // The kernel has taken the process apart in a moment.
    eventually("it is staged", || client.node_stage_volume(driver.stage(&id, "a")).is_ok());
    client.node_publish_volume(driver.publish(&id, "a", "p1")).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"data");
    assert_eq!(health(), []);
    client.node_unpublish_volume(driver.unpublish(&id, "p1")).unwrap();
    eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, "a")).is_ok());
}

#[test]
fn a_call_for_another_volume_or_one_that_is_mounted_elsewhere_is_refused() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    let (a, b) = (driver.create("a"), driver.create("b"));
    client.node_stage_volume(driver.stage(&a, "a")).unwrap();
    let code = Code::FailedPrecondition;
    refused(client.node_publish_volume(driver.publish(&b, "a", "p1")), code, "another volume");
    client.node_publish_volume(driver.publish(&a, "a", "p1")).unwrap();
    let (staging, target) = (driver.staging("a"), driver.target("p1"));
    refused(client.node_unstage_volume(driver.unstage(&a, "a")), code, &target);
    for other in [b.as_str(), "name"] {
        refused(client.node_unpublish_volume(driver.unpublish(other, "p1")), code, "another volume");
        refused(client.node_unstage_volume(driver.unstage(other, "a")), code, "another volume");
    }
    // A staging path is no pod's.
    let unpublish = NodeUnpublishVolumeRequest { volume_id: a.clone(), target_path: staging.clone() };
    refused(client.node_unpublish_volume(unpublish), code, "staged");
    let publish = NodePublishVolumeRequest { target_path: staging.clone(), ..driver.publish(&a, "a", "p1") };
    refused(client.node_publish_volume(publish), code, "staged");
    // Nor is a pod's path, or another bind mount, a staging path.
    let stage = NodeStageVolumeRequest { staging_target_path: target.clone(), ..driver.stage(&a, "a") };
    refused(client.node_stage_volume(stage), code, "bind mount");
    assert!(is_mounted(Path::new(&staging)) && is_mounted(Path::new(&target)));
    // A person's umount leaves the pod's bind mount, which has the volume.
    rustix::mount::unmount(staging.as_str(), rustix::mount::UnmountFlags::DETACH).unwrap();
    refused(client.node_unstage_volume(driver.unstage(&a, "a")), code, &target);
    refused(client.node_stage_volume(driver.stage(&a, "a")), code, &target);
    client.node_unpublish_volume(driver.unpublish(&a, "p1")).unwrap();
    eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&a, "a")).is_ok());
    assert_eq!(driver.holder(&a), Value::Null);
}

fn attributes(path: &Path, more: &[(&str, &str)]) -> HashMap<String, String> {
    let path = path.to_str().unwrap();
    let all = [("type", "directory"), ("path", path)];
    all.iter().chain(more).map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
}

#[test]
fn directories_of_the_node_are_served_below_those_that_are_allowed() {
    let Some(mut driver) = Driver::new() else { return };
    let (data, other) = (driver.rig.root.join("srv/data"), driver.rig.root.join("other"));
    for dir in [&data, &data.join("deeper"), &other] {
        fs::create_dir_all(dir).unwrap();
    }
    std::os::unix::fs::symlink(&other, driver.rig.root.join("srv/link")).unwrap();
    driver.more = vec!["--directory".to_owned(), driver.rig.root.join("srv").to_str().unwrap().to_owned()];
    let _daemon = driver.start();
    let client = driver.client();
    // A static volume.
    let stage = |path: &Path| NodeStageVolumeRequest {
        volume_context: attributes(path, &[]),
        ..driver.stage("data", "data")
    };
    client.node_stage_volume(stage(&data)).unwrap();
    let publish = NodePublishVolumeRequest {
        volume_context: attributes(&data, &[]),
        ..driver.publish("data", "data", "p1")
    };
    client.node_publish_volume(publish).unwrap();
    fs::write(Path::new(&driver.target("p1")).join("f"), "data").unwrap();
    client.node_unpublish_volume(driver.unpublish("data", "p1")).unwrap();
    client.node_unstage_volume(driver.unstage("data", "data")).unwrap();
    assert_eq!(fs::read(data.join("f")).unwrap(), b"data");
    for path in [
        &other,
        &driver.rig.root.join("srv/link"),
        Path::new("/etc"),
        &data.join("missing"),
        &data.join("deeper"),
    ] {
        let answer = client.node_stage_volume(stage(path)).unwrap_err();
        assert_eq!(answer.code(), Code::FailedPrecondition, "{path:?}: {answer:?}");
    }
    // Ephemeral ones: two pods share the directory, and the last gives it back.
    let publish = |pod: &str, path: &Path| NodePublishVolumeRequest {
        volume_context: attributes(path, &[("csi.storage.k8s.io/ephemeral", "true")]),
        staging_target_path: String::new(),
        ..driver.publish(&format!("csi-{pod}"), "none", pod)
    };
    for pod in ["e1", "e2", "e2"] {
        client.node_publish_volume(publish(pod, &data)).unwrap();
    }
    assert_eq!(fs::read(Path::new(&driver.target("e1")).join("f")).unwrap(), b"data");
    client.node_unpublish_volume(driver.unpublish("csi-e1", "e1")).unwrap();
    fs::write(Path::new(&driver.target("e2")).join("g"), "more").unwrap();
    client.node_unpublish_volume(driver.unpublish("csi-e2", "e2")).unwrap();
    assert_eq!(fs::read(data.join("g")).unwrap(), b"more");
    eventually("nothing is mounted", || driver.rig.status()["volumes"].as_array().unwrap().is_empty());
    assert!(client.node_publish_volume(publish("e3", &other)).is_err());
    let bucket = NodePublishVolumeRequest {
        volume_context: HashMap::from([("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned())]),
        ..driver.publish(&driver.prefix(&driver.volumes.join("a")), "none", "e4")
    };
    refused(client.node_publish_volume(bucket), Code::InvalidArgument, "who writes a pod");
}

#[test]
fn others_read_what_one_node_writes() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    // A quota has been set, and so the volume has been opened once.
    let range = Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 });
    let id = client.create(CreateVolumeRequest { capacity_range: range, ..super::create("a") }).unwrap();
    let id = id.volume_id;
    client.node_stage_volume(driver.stage(&id, "writer")).unwrap();
    let mut reader = driver.stage(&id, "reader");
    let mut shared = capability(Mode::MultiNodeReaderOnly);
    if let Some(volume_capability::AccessType::Mount(mount)) = &mut shared.access_type {
        mount.mount_flags = vec!["follow=200ms".to_owned()];
    }
    reader.volume_capability = Some(shared);
    client.node_stage_volume(reader).unwrap();
    let file = Path::new(&driver.staging("writer")).join("f");
    fs::write(&file, "data").unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let seen = Path::new(&driver.staging("reader")).join("f");
    eventually("the reader sees it", || fs::read(&seen).is_ok_and(|read| read == b"data"));
    // Another access of the same staging is told from this one.
    let mut again = driver.stage(&id, "writer");
    again.volume_capability = Some(capability(Mode::SingleNodeReaderOnly));
    refused(client.node_stage_volume(again), Code::AlreadyExists, "for writing");
    for name in ["reader", "writer"] {
        eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, name)).is_ok());
    }
}

/// `cargo test -p watertight --test program -- --ignored --nocapture csi::node::how_long`.
#[test]
#[ignore = "a measurement"]
fn how_long_a_publish_takes_and_what_a_staged_volume_costs() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    let (mut stages, mut publishes, mut unpublishes, mut unstages) = (vec![], vec![], vec![], vec![]);
    let timed = |into: &mut Vec<Duration>, call: &dyn Fn()| {
        let begun = Instant::now();
        call();
        into.push(begun.elapsed());
    };
    for n in 0..20 {
        let name = format!("v{n}");
        let id = driver.create(&name);
        let (stage, publish) = (driver.stage(&id, &name), driver.publish(&id, &name, &name));
        timed(&mut stages, &|| assert!(client.node_stage_volume(stage.clone()).is_ok()));
        timed(&mut publishes, &|| assert!(client.node_publish_volume(publish.clone()).is_ok()));
    }
    let status = fs::read_to_string(format!("/proc/{}/status", driver.serving("v0").as_raw_pid())).unwrap();
    let memory = status.lines().find(|line| line.starts_with("RssAnon")).unwrap().to_owned();
    for n in 0..20 {
        let name = format!("v{n}");
        let id = driver.prefix(&driver.volumes.join(&name));
        let (unpublish, unstage) = (driver.unpublish(&id, &name), driver.unstage(&id, &name));
        timed(&mut unpublishes, &|| assert!(client.node_unpublish_volume(unpublish.clone()).is_ok()));
        timed(&mut unstages, &|| assert!(client.node_unstage_volume(unstage.clone()).is_ok()));
    }
    for (what, mut times) in
        [("stage", stages), ("publish", publishes), ("unpublish", unpublishes), ("unstage", unstages)]
    {
        times.sort();
        println!("{what}: median {:?}, longest {:?}", times[times.len() / 2], times[times.len() - 1]);
    }
    println!("of one volume's process: {memory}");
}
