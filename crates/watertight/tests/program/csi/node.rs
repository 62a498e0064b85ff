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
use testing::cgroup::Cgroup;

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
    let NodeGetVolumeStatsResponse { usage, volume_condition } = client.node_get_volume_stats(stats).unwrap();
    assert!(usage.len() == 2 && usage[0].total > 0 && usage[1].used > 0, "{usage:?}");
    assert!(!volume_condition.unwrap().abnormal);
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
        let said = |one: &volume_health::VolumeHealthEntry| {
            one.message.contains("is gone (") && one.message.contains("what was fsynced is on ")
        };
        health().first().is_some_and(said)
    });
    let stats = NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: target.clone(),
        ..Default::default()
    };
    // What kubelet shows of a volume, where it asks for no health.
    let stats = client.node_get_volume_stats(stats).unwrap();
    let condition = stats.volume_condition.unwrap();
    assert!(condition.abnormal && condition.message.contains("is gone") && stats.usage.is_empty());
    // The record says what happened.
    let message = health()[0].message.clone();
    assert!(message.contains("died before everything was written"), "{message}");
    // The kernel has taken the process apart in a moment.
    eventually("it is staged", || client.node_stage_volume(driver.stage(&id, "a")).is_ok());
    client.node_publish_volume(driver.publish(&id, "a", "p1")).unwrap();
    assert_eq!(fs::read(&file).unwrap(), b"data");
    assert_eq!(health(), []);
    client.node_unpublish_volume(driver.unpublish(&id, "p1")).unwrap();
    eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, "a")).is_ok());
}

/// With recover=on pods notice nothing of it: what they have open goes on, also over an end of the driver,
/// and unstaging tells the truth afterwards.
#[test]
fn a_serving_process_that_dies_is_followed_by_another_with_recover_on() {
    let Some(mut driver) = Driver::new() else { return };
    let journal = driver.rig.root.join("journal");
    let data = driver.rig.root.join("srv/data");
    fs::create_dir_all(&data).unwrap();
    let [directory, journal] =
        [data.parent().unwrap(), &journal].map(|path| path.to_str().unwrap().to_owned());
    driver.more = ["--journal", &journal, "--directory", &directory].map(str::to_owned).to_vec();
    let mut daemon = driver.start();
    let id = driver.create("a");
    let mut with = capability(Mode::SingleNodeWriter);
    if let Some(volume_capability::AccessType::Mount(mount)) = &mut with.access_type {
        mount.mount_flags = vec!["recover=on".to_owned(), "dirty_after=1h".to_owned()];
    }
    let with = Some(with);
    for (id, attributes) in [(id.as_str(), HashMap::new()), ("data", attributes(&data, &[]))] {
        let client = driver.client();
        let stage = NodeStageVolumeRequest {
            volume_capability: with.clone(),
            volume_context: attributes.clone(),
            ..driver.stage(id, "a")
        };
        match client.node_stage_volume(stage.clone()) {
            Err(status) if status.message().contains("kernel") => {
                return crate::rig::skipped("the kernel cannot send requests again (6.9 and newer)");
            }
            staged => drop(staged.unwrap()),
        }
        let publish = NodePublishVolumeRequest {
            volume_capability: with.clone(),
            volume_context: attributes.clone(),
            ..driver.publish(id, "a", "p1")
        };
        client.node_publish_volume(publish.clone()).unwrap();
        let target = driver.target("p1");
        let mut file = fs::File::create(Path::new(&target).join("f")).unwrap();
        for round in 1..=3 {
            std::io::Write::write_all(&mut file, b"+").unwrap();
            kill_process(driver.serving("a"), Signal::KILL).unwrap();
            eventually("another one serves", || driver.rig.volume()["recovery"]["deaths"] == round);
            assert_eq!(driver.rig.volume()["recovery"]["state"], "on");
            if round == 2 {
                daemon.signal(Signal::KILL);
                daemon.end();
                daemon = driver.start();
            }
            // Nothing is to be repaired, and the calls find all as it was.
            driver.client().node_stage_volume(stage.clone()).unwrap();
            driver.client().node_publish_volume(publish.clone()).unwrap();
        }
        std::io::Write::write_all(&mut file, b"!").unwrap();
        drop(file);
        let client = driver.client();
        client.node_unpublish_volume(driver.unpublish(id, "p1")).unwrap();
        eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(id, "a")).is_ok());
        eventually("nothing serves", || driver.serves_nothing());
    }
    assert_eq!(fs::read(data.join("f")).unwrap(), b"+++!");
    assert_eq!(driver.holder(&id), Value::Null);
    let client = driver.client();
    client.node_stage_volume(driver.stage(&id, "b")).unwrap();
    assert_eq!(fs::read(Path::new(&driver.staging("b")).join("f")).unwrap(), b"+++!");
    client.node_unstage_volume(driver.unstage(&id, "b")).unwrap();
}

#[test]
fn publishing_serves_a_volume_again_whose_process_died() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    let secrets: HashMap<String, String> =
        [("AWS_ACCESS_KEY_ID", "id-in-a-test"), ("AWS_SECRET_ACCESS_KEY", "key-in-a-test")]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
    for (name, own_keys) in [("own", true), ("given", false)] {
        let id = driver.create(name);
        let given = if own_keys { HashMap::new() } else { secrets.clone() };
        let stage = NodeStageVolumeRequest { secrets: given, ..driver.stage(&id, name) };
        client.node_stage_volume(stage).unwrap();
        let [old, new] = ["old", "new"].map(|pod| format!("{name}-{pod}"));
        client.node_publish_volume(driver.publish(&id, name, &old)).unwrap();
        let file = Path::new(&driver.target(&old)).join("f");
        fs::write(&file, "data").unwrap();
        fs::File::open(&file).unwrap().sync_all().unwrap();
        let killed = driver.serving(name);
        kill_process(killed, Signal::KILL).unwrap();
        // Until then the volume is shown as it was.
        eventually("its process is gone", || driver.serves_nothing());
        // Another volume's call does not mount it there.
        let other = driver.create(&format!("{name}-other"));
        let mut answer = client.node_publish_volume(driver.publish(&other, name, &new));
        eventually("the kernel knows that the process is gone", || {
            answer = client.node_publish_volume(driver.publish(&other, name, &new));
            answer.as_ref().is_err_and(|why| why.message().contains("another volume was staged there"))
        });
        refused(answer, Code::FailedPrecondition, "another volume was staged there");
        if !own_keys {
            // The driver's own keys are not tried on what other keys opened.
            let mut last = None;
            eventually("it is refused", || {
                last = client.node_publish_volume(driver.publish(&id, name, &new)).err();
                last.as_ref().is_some_and(|why| why.message().contains("node-publish-secret-name"))
            });
            assert_eq!(last.unwrap().code(), Code::FailedPrecondition);
        }
        // No call stages it, as kubelet believes that it is.
        let given = if own_keys { HashMap::new() } else { secrets.clone() };
        let publish = |pod: &str| {
            let request = driver.publish(&id, name, pod);
            client.node_publish_volume(NodePublishVolumeRequest { secrets: given.clone(), ..request })
        };
        eventually("it is published", || publish(&new).is_ok());
        assert_ne!(driver.serving(name), killed);
        // The pod that had it has it again, as kubelet publishes anew for it (requiresRepublish).
        publish(&old).unwrap();
        for pod in [&old, &new] {
            assert_eq!(fs::read(Path::new(&driver.target(pod)).join("f")).unwrap(), b"data");
            client.node_unpublish_volume(driver.unpublish(&id, pod)).unwrap();
        }
        eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, name)).is_ok());
    }
}

#[test]
fn each_pod_has_its_limits_for_as_long_as_it_is_there() {
    const UID: &str = "0c1b2a3d-4e5f-6789-abcd-ef0123456789";
    let Some(mut driver) = Driver::new() else { return };
    let Some(above) = Cgroup::make() else { return };
    let kubepods = above.child("kubepods");
    let pod = kubepods.child(&format!("pod{UID}"));
    let container = pod.child(&"c0".repeat(32));
    let _daemon = driver.start();
    let client = driver.client();
    let of = |pairs: &[(&str, &str)]| -> HashMap<String, String> {
        pairs.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect()
    };
    let made = client.create(CreateVolumeRequest {
        parameters: of(&[("pod-write-bps", "256K"), ("pod-sync-isolation", "true")]),
        ..super::create("a")
    });
    let made = made.unwrap();
    let id = made.volume_id;
    client
        .node_stage_volume(NodeStageVolumeRequest {
            volume_context: made.volume_context.clone(),
            ..driver.stage(&id, "a")
        })
        .unwrap();
    let publish = |name: &str, uid: &str| {
        let mut volume_context = made.volume_context.clone();
        if !uid.is_empty() {
            volume_context.insert("csi.storage.k8s.io/pod.uid".to_owned(), uid.to_owned());
        }
        client.node_publish_volume(NodePublishVolumeRequest {
            volume_context,
            ..driver.publish(&id, "a", name)
        })
    };
    refused(publish("p", ""), Code::FailedPrecondition, "podInfoOnMount");
    refused(publish("p", &UID.replace('0', "1")), Code::Unavailable, "no cgroup of the pod");
    assert!(!is_mounted(Path::new(&driver.target("p"))));
    publish("p", UID).unwrap();
    let limits = || -> Vec<Value> {
        let out = driver.rig.run(&["limit", "--show", "--json", &driver.staging("a")]).ok().stdout;
        serde_json::from_str::<Value>(&out).unwrap()["limits"].as_array().unwrap().clone()
    };
    let [own] = limits().try_into().unwrap();
    assert_eq!(own["cgroup"], pod.path().to_str().unwrap());
    assert_eq!((&own["wbps"], &own["sync_isolation"]), (&(256 << 10).into(), &true.into()), "{own}");
    // What an administrator changes stays when kubelet publishes again, as it does now and then.
    let at = driver.staging("a");
    driver.rig.run(&["limit", pod.path().to_str().unwrap(), &at, "wbps=128K"]).ok();
    publish("p", UID).unwrap();
    let [own] = limits().try_into().unwrap();
    assert_eq!(own["wbps"], 128 << 10, "{own}");
    client.node_unpublish_volume(driver.unpublish(&id, "p")).unwrap();
    publish("p", UID).unwrap();
    let [own] = limits().try_into().unwrap();
    assert_eq!(own["wbps"], 256 << 10, "{own}");
    // What the pod's container writes takes its time; others' does not.
    let write = |file: &str| {
        let file = format!("of={}", Path::new(&driver.target("p")).join(file).display());
        ["if=/dev/zero".to_owned(), file, "bs=64K".to_owned(), "count=16".to_owned(), "conv=fsync".to_owned()]
    };
    let begun = Instant::now();
    container.run("dd", &write("limited"));
    let limited = begun.elapsed();
    assert!(limited >= Duration::from_secs(2), "1 MiB in {limited:?}");
    // A process of the pod that holds the volume is named with it.
    let mut sleeper = container.command("sleep").arg("1000").current_dir(driver.target("p")).spawn().unwrap();
    let inside = format!("/proc/{}/cgroup", sleeper.id());
    eventually("it is in its cgroup", || fs::read_to_string(&inside).is_ok_and(|text| text.contains(UID)));
    let mut all = Value::Null;
    eventually("it is named", || {
        let out = driver.rig.run(&["status", "--json", "--holders"]).ok().stdout;
        all = serde_json::from_str(&out).unwrap();
        let holders = all["volumes"][0]["holders"]["found"].as_array().unwrap().clone();
        holders.iter().any(|one| one["pid"] == sleeper.id() && one["pod"]["uid"] == UID)
    });
    let metrics = driver.rig.run(&["status", "--metrics"]).ok().stdout;
    let sample = format!("pod_uid=\"{UID}\"}} 1");
    assert!(
        metrics.lines().any(|line| line.starts_with("watertight_cgroup_pod{") && line.ends_with(&sample)),
        "{metrics}"
    );
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    // The next pod's publishing lifts those of pods that are gone.
    drop(container);
    drop(pod);
    let next = UID.replace("0c", "1c");
    let _next = kubepods.child(&format!("pod{next}"));
    publish("q", &next).unwrap();
    let [own] = limits().try_into().unwrap();
    assert!(own["cgroup"].as_str().unwrap().ends_with(&next), "{own}");
    for name in ["p", "q"] {
        client.node_unpublish_volume(driver.unpublish(&id, name)).unwrap();
    }
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

pub(super) fn attributes(path: &Path, more: &[(&str, &str)]) -> HashMap<String, String> {
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
