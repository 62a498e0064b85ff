//! What calls survive: kills of the driver, deadlines, stores that hang, callers that are not to be
//! trusted.

use std::collections::HashMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use csi_proto::tonic::{Code, Status};
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::*;
use rustix::process::{Signal, kill_process};

use super::client::Client;
use super::{Driver, create, refused};
use crate::rig::{eventually, is_mounted};
use crate::stalled::Stalling;

/// A call of the ones that an orchestrator repeats until they end well.
type Call = (&'static str, Box<dyn Fn(&Client) -> Result<(), Status> + Send + Sync>);

#[test]
fn a_driver_that_is_killed_in_a_call_leaves_what_the_next_call_repairs() {
    let Some(mut driver) = Driver::new() else { return };
    let mut daemon = driver.start();
    let kept = driver.create("kept");
    driver.client().node_stage_volume(driver.stage(&kept, "kept")).unwrap();
    let serving = driver.serving("kept");
    fs::write(Path::new(&driver.staging("kept")).join("f"), "kept").unwrap();
    let id = driver.prefix(&driver.volumes.join("a"));
    let (stage, unstage) = (driver.stage(&id, "a"), driver.unstage(&id, "a"));
    let (publish, unpublish) = (driver.publish(&id, "a", "p"), driver.unpublish(&id, "p"));
    let volume = id.clone();
    let sized = CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 }),
        ..create("a")
    };
    let calls: [Call; 6] = [
        ("create", Box::new(move |client| client.create_volume(sized.clone()).map(drop))),
        ("stage", Box::new(move |client| client.node_stage_volume(stage.clone()).map(drop))),
        ("publish", Box::new(move |client| client.node_publish_volume(publish.clone()).map(drop))),
        ("unpublish", Box::new(move |client| client.node_unpublish_volume(unpublish.clone()).map(drop))),
        ("unstage", Box::new(move |client| client.node_unstage_volume(unstage.clone()).map(drop))),
        ("delete", Box::new(move |client| client.delete(&volume).map(drop))),
    ];
    for pause in [0, 2, 10, 50] {
        for (name, call) in &calls {
            let client = driver.client();
            thread::scope(|scope| {
                scope.spawn(|| call(&client));
                thread::sleep(Duration::from_millis(pause));
                daemon.kill();
            });
            daemon = driver.start();
            // What the killed driver began may have the volume for a moment.
            let client = driver.client();
            let mut last = None;
            eventually(name, || {
                last = call(&client).err();
                if let Some(error) = &last {
                    let codes =
                        [Code::FailedPrecondition, Code::Aborted, Code::Unavailable, Code::AlreadyExists];
                    assert!(codes.contains(&error.code()), "{name}, {pause}: {error:?}");
                }
                last.is_none()
            });
            assert!(call(&client).is_ok(), "{name} is not idempotent");
        }
        assert!(!Path::new(&driver.target("p")).exists());
        eventually("nothing is left", || fs::read_dir(&driver.volumes).unwrap().count() == 1);
    }
    // No end of the driver touched the other volume.
    assert_eq!(driver.serving("kept"), serving);
    assert_eq!(fs::read(Path::new(&driver.staging("kept")).join("f")).unwrap(), b"kept");
}

#[test]
fn what_a_killed_driver_was_mounting_does_not_come_after_the_unstaging() {
    let Some(mut driver) = Driver::new() else { return };
    let mut daemon = driver.start();
    for (n, pause) in [0, 1, 3, 5, 10, 20, 40].into_iter().enumerate() {
        let name = format!("v{n}");
        let id = driver.create(&name);
        let (client, stage) = (driver.client(), driver.stage(&id, &name));
        thread::scope(|scope| {
            scope.spawn(|| client.node_stage_volume(stage));
            thread::sleep(Duration::from_millis(pause));
            daemon.kill();
        });
        daemon = driver.start();
        let client = driver.client();
        eventually("it is unstaged", || match client.node_unstage_volume(driver.unstage(&id, &name)) {
            Ok(_) => true,
            Err(error) => {
                let codes = [Code::Aborted, Code::FailedPrecondition];
                assert!(codes.contains(&error.code()), "{pause}: {error:?}");
                false
            }
        });
        // Nothing is under way any more, and the volume is free.
        assert_eq!(driver.holder(&id), serde_json::Value::Null, "{pause}");
        client.delete(&id).unwrap();
        assert!(!is_mounted(Path::new(&driver.staging(&name))), "{pause}");
    }
}

#[test]
fn how_an_unmount_ended_that_a_killed_driver_had_begun_is_told() {
    let Some(stalling) = Stalling::new() else { return };
    let Some(mut driver) = Driver::new() else { return };
    let hanging = stalling.rig.store.clone();
    driver.more = vec!["--url-prefix".to_owned(), driver.prefix(&hanging)];
    let mut daemon = driver.start();
    let class = |name: &str| CreateVolumeRequest {
        parameters: HashMap::from([("url".to_owned(), driver.prefix(&hanging))]),
        ..create(name)
    };
    let names = ["good", "bad", "again"];
    let [good, bad, again] = names.map(|name| driver.client().create(class(name)).unwrap().volume_id);
    let all = [(&good, "good"), (&bad, "bad"), (&again, "again")];
    for (id, name) in all {
        driver.client().node_stage_volume(driver.stage(id, name)).unwrap();
        fs::write(Path::new(&driver.staging(name)).join("f"), "data").unwrap();
    }
    let killed = ["bad", "again"].map(|name| driver.serving(name));
    stalling.server.stop();
    let short = |driver: &Driver| driver.client().within(Duration::from_millis(500));
    for (id, name) in all {
        refused(short(&driver).node_unstage_volume(driver.unstage(id, name)), Code::Aborted, "goes on");
    }
    daemon.kill();
    daemon = driver.start();
    // The unmounts go on, and no second one begins.
    for (id, name) in all {
        refused(
            short(&driver).node_unstage_volume(driver.unstage(id, name)),
            Code::Aborted,
            "earlier process",
        );
    }
    // One ends well, and the others' processes are killed; by then there is no driver.
    daemon.kill();
    for killed in killed {
        kill_process(killed, Signal::KILL).unwrap();
    }
    stalling.server.signal(Signal::CONT);
    let unmounting = |name: &str| {
        let at = driver.root.join("plugins").join(name).join("globalmount");
        fs::read_dir("/proc").unwrap().flatten().any(|entry| {
            let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let line = String::from_utf8_lossy(&line).into_owned();
            line.contains("csi-unmount") && line.contains(at.to_str().unwrap())
        })
    };
    eventually("all unmounts have ended", || !names.into_iter().any(unmounting));
    let _daemon = driver.start();
    let client = driver.client();
    client.node_unstage_volume(driver.unstage(&good, "good")).unwrap();
    refused(client.node_unstage_volume(driver.unstage(&bad, "bad")), Code::DataLoss, "died before");
    client.node_unstage_volume(driver.unstage(&bad, "bad")).unwrap();
    // Staging it again tells of it as well, once.
    refused(client.node_stage_volume(driver.stage(&again, "again")), Code::DataLoss, "died before");
    eventually("it is staged", || client.node_stage_volume(driver.stage(&again, "again")).is_ok());
    client.node_unstage_volume(driver.unstage(&again, "again")).unwrap();
    // What is lost is what was not on the store.
    eventually("it is staged", || client.node_stage_volume(driver.stage(&good, "good")).is_ok());
    assert_eq!(fs::read(Path::new(&driver.staging("good")).join("f")).unwrap(), b"data");
    client.node_unstage_volume(driver.unstage(&good, "good")).unwrap();
}

#[test]
fn how_an_ephemeral_volume_ended_is_told_to_its_pod_s_unpublishing() {
    let Some(stalling) = Stalling::new() else { return };
    let Some(mut driver) = Driver::new() else { return };
    let data = stalling.rig.store.clone();
    driver.more = vec!["--directory".to_owned(), data.parent().unwrap().to_str().unwrap().to_owned()];
    let daemon = driver.start();
    let publish = NodePublishVolumeRequest {
        volume_context: super::node::attributes(&data, &[("csi.storage.k8s.io/ephemeral", "true")]),
        staging_target_path: String::new(),
        ..driver.publish("csi-e", "none", "e")
    };
    driver.client().node_publish_volume(publish).unwrap();
    fs::write(Path::new(&driver.target("e")).join("f"), "data").unwrap();
    let [volume] = driver.rig.status()["volumes"].as_array().unwrap().clone().try_into().unwrap();
    let serving = i32::try_from(volume["pid"].as_i64().unwrap()).unwrap();
    stalling.server.stop();
    let unpublish = |driver: &Driver, time: Duration| {
        driver.client().within(time).node_unpublish_volume(driver.unpublish("csi-e", "e"))
    };
    let short = Duration::from_millis(500);
    refused(unpublish(&driver, short), Code::Aborted, "goes on");
    assert!(!is_mounted(Path::new(&driver.target("e"))));
    daemon.kill();
    let _daemon = driver.start();
    refused(unpublish(&driver, short), Code::Aborted, "ask again");
    kill_process(rustix::process::Pid::from_raw(serving).unwrap(), Signal::KILL).unwrap();
    stalling.server.signal(Signal::CONT);
    let mut told = None;
    eventually("it is told", || {
        told = unpublish(&driver, Duration::from_secs(60)).err();
        told.as_ref().is_none_or(|why| why.code() != Code::Aborted)
    });
    assert_eq!(told.unwrap().code(), Code::DataLoss);
    eventually("it is unpublished", || unpublish(&driver, Duration::from_secs(60)).is_ok());
    for left in ["directories", "targets"] {
        assert_eq!(fs::read_dir(driver.rig.root.join("state").join(left)).unwrap().count(), 0, "{left}");
    }
}

#[test]
fn how_a_volume_ended_is_told_also_where_its_unmount_could_not_note_it() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    let [lost, well] = ["lost", "well"].map(|name| driver.create(name));
    for (id, name) in [(&lost, "lost"), (&well, "well")] {
        client.node_stage_volume(driver.stage(id, name)).unwrap();
        fs::write(Path::new(&driver.staging(name)).join("f"), "data").unwrap();
    }
    // As an unmount does that is killed before it has written its note.
    kill_process(driver.serving("lost"), Signal::KILL).unwrap();
    rustix::mount::unmount(driver.staging("lost"), rustix::mount::UnmountFlags::DETACH).unwrap();
    driver.rig.run(&["umount", &driver.staging("well")]).ok();
    let mut told = None;
    eventually("it is told", || {
        told = client.node_unstage_volume(driver.unstage(&lost, "lost")).err();
        told.as_ref().is_some_and(|why| why.code() == Code::DataLoss)
    });
    assert!(told.unwrap().message().contains("died before"));
    for (id, name) in [(&lost, "lost"), (&well, "well")] {
        client.node_unstage_volume(driver.unstage(id, name)).unwrap();
    }
}

#[test]
fn options_of_the_mount_are_those_of_an_author_who_is_not_root() {
    let Some(mut driver) = Driver::new() else { return };
    let cache = driver.rig.root.join("cache");
    driver.more = vec!["--disk-cache".to_owned(), cache.to_str().unwrap().to_owned()];
    let _daemon = driver.start();
    let client = driver.client();
    let id = driver.create("a");
    let with = |flag: &str| {
        let mut capability = super::capability(Mode::SingleNodeWriter);
        if let Some(volume_capability::AccessType::Mount(mount)) = &mut capability.access_type {
            mount.mount_flags = vec![flag.to_owned()];
        }
        capability
    };
    let stage =
        |flag: &str| NodeStageVolumeRequest { volume_capability: Some(with(flag)), ..driver.stage(&id, "a") };
    for (flag, word) in [
        ("journal=/etc,fsync_to=host", "names a directory of the node"),
        ("disk_cache=/etc", "names a directory of the node"),
        ("encrypt-key-file=/etc/shadow", "no path"),
        ("suid", "set-id"),
        ("cache=1T", "--cache-max"),
        ("fsync_to=host", "no --journal"),
    ] {
        refused(client.node_stage_volume(stage(flag)), Code::InvalidArgument, word);
    }
    let made = CreateVolumeRequest { volume_capabilities: vec![with("journal=/etc")], ..create("b") };
    refused(client.create_volume(made), Code::InvalidArgument, "names a directory of the node");
    assert!(!cache.exists());
    client.node_stage_volume(stage("disk_cache_size=64M")).unwrap();
    assert!(fs::read_dir(&cache).unwrap().count() > 0);
    eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, "a")).is_ok());
}

#[test]
fn a_mount_of_the_driver_s_follows_no_link() {
    let Some(driver) = Driver::new() else { return };
    let (real, link) = (driver.rig.root.join("real"), driver.rig.root.join("link"));
    fs::create_dir_all(real.join("mnt")).unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    let mount = |at: &Path| driver.rig.run(&["mount", "-d", "--no-links", "mem:", at.to_str().unwrap()]);
    mount(&link.join("mnt")).ends(2, "by a symbolic link");
    assert!(!is_mounted(&real.join("mnt")));
    mount(&real.join("mnt")).ok();
    let umount = |at: &Path| driver.rig.run(&["umount", "--no-links", at.to_str().unwrap()]);
    umount(&link.join("mnt")).ends(2, "by a symbolic link");
    assert!(is_mounted(&real.join("mnt")));
    umount(&real.join("mnt")).ok();
}

#[test]
fn two_calls_at_once_both_end_well() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let both = |call: &(dyn Fn(&Client) -> Result<(), Status> + Sync)| {
        thread::scope(|scope| {
            let each: Vec<_> = (0..2).map(|_| scope.spawn(|| call(&driver.client()))).collect();
            each.into_iter().for_each(|one| one.join().unwrap().unwrap());
        });
    };
    both(&|client| client.create_volume(create("a")).map(drop));
    let id = driver.prefix(&driver.volumes.join("a"));
    both(&|client| client.node_stage_volume(driver.stage(&id, "a")).map(drop));
    both(&|client| client.node_publish_volume(driver.publish(&id, "a", "p")).map(drop));
    let mounts = watertight::host::mountinfo::MountTable::read();
    assert_eq!(mounts.iter().filter(|mount| mount.mountpoint == Path::new(&driver.target("p"))).count(), 1);
    both(&|client| client.node_unpublish_volume(driver.unpublish(&id, "p")).map(drop));
    both(&|client| client.node_unstage_volume(driver.unstage(&id, "a")).map(drop));
    both(&|client| client.delete(&id).map(drop));
}

#[test]
fn a_store_that_hangs_aborts_its_own_calls_and_holds_up_no_other() {
    let Some(stalling) = Stalling::new() else { return };
    let Some(mut driver) = Driver::new() else { return };
    let hanging = stalling.rig.store.clone();
    driver.more = vec!["--url-prefix".to_owned(), driver.prefix(&hanging)];
    let _daemon = driver.start();
    let class = |dir: &Path, name: &str| CreateVolumeRequest {
        parameters: HashMap::from([("url".to_owned(), driver.prefix(dir))]),
        ..create(name)
    };
    let client = driver.client();
    let slow = client.create(class(&hanging, "slow")).unwrap().volume_id;
    let quick = client.create(class(&driver.volumes, "quick")).unwrap().volume_id;
    client.node_stage_volume(driver.stage(&slow, "slow")).unwrap();
    client.node_publish_volume(driver.publish(&slow, "slow", "slow")).unwrap();
    let target = driver.target("slow");
    fs::write(Path::new(&target).join("f"), "data").unwrap();
    stalling.server.stop();
    // The pod's mount goes at once; the volume stays until its data is written.
    let begun = Instant::now();
    client.node_unpublish_volume(driver.unpublish(&slow, "slow")).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10) && !is_mounted(Path::new(&target)));
    let short = driver.client().within(Duration::from_millis(500));
    refused(short.node_unstage_volume(driver.unstage(&slow, "slow")), Code::Aborted, "goes on");
    refused(short.node_unstage_volume(driver.unstage(&slow, "slow")), Code::Aborted, "has begun earlier");
    refused(short.create(class(&hanging, "more")), Code::Aborted, "goes on");
    for _ in 0..2 {
        client.node_stage_volume(driver.stage(&quick, "quick")).unwrap();
        client.node_publish_volume(driver.publish(&quick, "quick", "quick")).unwrap();
        client.node_unpublish_volume(driver.unpublish(&quick, "quick")).unwrap();
        eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&quick, "quick")).is_ok());
    }
    stalling.server.signal(Signal::CONT);
    client.node_unstage_volume(driver.unstage(&slow, "slow")).unwrap();
    client.node_stage_volume(driver.stage(&slow, "slow")).unwrap();
    assert_eq!(fs::read(Path::new(&driver.staging("slow")).join("f")).unwrap(), b"data");
    client.node_unstage_volume(driver.unstage(&slow, "slow")).unwrap();
}

#[test]
fn a_pod_goes_while_its_volume_is_staged_anew_on_a_store_that_hangs() {
    let Some(stalling) = Stalling::new() else { return };
    let Some(mut driver) = Driver::new() else { return };
    let hanging = stalling.rig.store.clone();
    driver.more = vec!["--url-prefix".to_owned(), driver.prefix(&hanging)];
    let _daemon = driver.start();
    let client = driver.client();
    let class = CreateVolumeRequest {
        parameters: HashMap::from([("url".to_owned(), driver.prefix(&hanging))]),
        ..create("slow")
    };
    let id = client.create(class).unwrap().volume_id;
    client.node_stage_volume(driver.stage(&id, "slow")).unwrap();
    client.node_publish_volume(driver.publish(&id, "slow", "p")).unwrap();
    let target = driver.target("p");
    kill_process(driver.serving("slow"), Signal::KILL).unwrap();
    eventually("its process is gone", || driver.serves_nothing());
    stalling.server.stop();
    let short = driver.client().within(Duration::from_millis(500));
    refused(short.node_publish_volume(driver.publish(&id, "slow", "p")), Code::Aborted, "goes on");
    let begun = Instant::now();
    client.node_unpublish_volume(driver.unpublish(&id, "p")).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(10) && !is_mounted(Path::new(&target)));
    stalling.server.signal(Signal::CONT);
    eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, "slow")).is_ok());
}

#[test]
fn what_a_hostile_caller_asks_for_is_refused() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let mode = fs::metadata(&driver.socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let client = driver.client();
    let id = driver.create("a");
    client.node_stage_volume(driver.stage(&id, "a")).unwrap();
    let outside = driver.rig.root.join("outside");
    fs::create_dir(&outside).unwrap();
    std::os::unix::fs::symlink(&outside, driver.root.join("link")).unwrap();
    let (outside, root) = (outside.to_str().unwrap(), driver.root.to_str().unwrap());
    for target in [
        "relative",
        "/etc/x",
        root,
        &format!("{root}/../outside/x"),
        &format!("{root}/link/x"),
        &format!("{root}/a\nb"),
        &format!("{root}/{}", "a/".repeat(4000)),
        outside,
    ] {
        let publish =
            NodePublishVolumeRequest { target_path: target.to_owned(), ..driver.publish(&id, "a", "p") };
        let answer = client.node_publish_volume(publish).unwrap_err();
        assert!([Code::InvalidArgument, Code::FailedPrecondition].contains(&answer.code()), "{answer:?}");
        let unpublish = NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: target.to_owned() };
        assert!(client.node_unpublish_volume(unpublish).is_err(), "{target}");
        let stage =
            NodeStageVolumeRequest { staging_target_path: target.to_owned(), ..driver.stage(&id, "a") };
        assert!(client.node_stage_volume(stage).is_err(), "{target}");
    }
    assert_eq!(fs::read_dir(outside).unwrap().count(), 0);
    // A mount of somebody else's is not taken away.
    let theirs = driver.target("theirs");
    fs::create_dir(&theirs).unwrap();
    rustix::mount::mount("none", theirs.as_str(), "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    refused(
        client.node_unpublish_volume(driver.unpublish(&id, "theirs")),
        Code::FailedPrecondition,
        "of type tmpfs",
    );
    assert!(is_mounted(Path::new(&theirs)));
    let with = |change: &dyn Fn(&mut CreateVolumeRequest)| {
        let mut request = create("x");
        change(&mut request);
        client.create_volume(request)
    };
    let of = |key: &str, value: &str| HashMap::from([(key.to_owned(), value.to_owned())]);
    for (answer, word) in [
        (with(&|request| request.name = "../x".to_owned()), "volume's name"),
        (with(&|request| request.parameters = of("url", "file:///etc")), "--url-prefix"),
        (with(&|request| request.parameters = of("frob", "1")), "no parameter"),
        (with(&|request| request.secrets = of("LD_PRELOAD", "hidden")), "no such key"),
        (with(&|request| request.secrets = of("AWS_ENDPOINT_URL", "hidden")), "both needed"),
        (with(&|request| request.volume_capabilities.clear()), "capabilities are missing"),
    ] {
        let status = answer.as_ref().unwrap_err();
        assert!(!status.message().contains("hidden"), "{status:?}");
        refused(answer, Code::InvalidArgument, word);
    }
    // An id that is no URL has nothing to delete; of another's, nothing is deleted.
    client.delete("none").unwrap();
    for id in ["file:///etc", &format!("{id}/../../outside"), &driver.prefix(&driver.volumes)] {
        refused(client.delete(id), Code::FailedPrecondition, "");
    }
    let delete = |id: &str| {
        client.delete_snapshot(DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() })
    };
    for none in ["none", "none@s1", &format!("{id}@s1")] {
        assert!(delete(none).is_ok(), "{none}");
    }
    for other in
        ["file:///etc@s1", "s3://other/a@s1", &id, &format!("{id}@csi-clone-a"), &format!("{id}@a,b")]
    {
        refused(delete(other), Code::FailedPrecondition, "");
    }
    refused(delete("a\nb"), Code::InvalidArgument, "control character");
    for id in ["file:///etc", &format!("{id}/../../outside"), "none", &driver.prefix(&driver.volumes)] {
        let get = ControllerGetVolumeRequest { volume_id: (*id).to_owned() };
        assert_eq!(client.controller_get_volume(get).unwrap_err().code(), Code::NotFound, "{id}");
    }
    let attributes = of("type", "block");
    let stage = NodeStageVolumeRequest { volume_context: attributes, ..driver.stage(&id, "b") };
    refused(client.node_stage_volume(stage), Code::InvalidArgument, "object or directory");
    assert!(driver.volumes.join("a/format").exists());
}

#[test]
fn keys_are_in_the_environment_of_the_volume_s_processes_alone() {
    let Some(mut driver) = Driver::new() else { return };
    let daemon = driver.start();
    let client = driver.client();
    let id = driver.create("a");
    let secrets = [("AWS_ACCESS_KEY_ID", "key-in-a-test"), ("AWS_SECRET_ACCESS_KEY", "hidden-in-a-test")];
    let secrets = secrets.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    client.node_stage_volume(NodeStageVolumeRequest { secrets, ..driver.stage(&id, "a") }).unwrap();
    let pid = driver.serving("a").as_raw_pid();
    let of =
        |file: &str| String::from_utf8_lossy(&fs::read(format!("/proc/{pid}/{file}")).unwrap()).into_owned();
    assert!(of("environ").contains("AWS_SECRET_ACCESS_KEY=hidden-in-a-test"));
    assert!(!of("cmdline").contains("hidden"));
    eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, "a")).is_ok());
    assert!(!daemon.stderr().contains("hidden"), "{}", daemon.stderr());
    for log in fs::read_dir(driver.rig.root.join("state/logs")).unwrap() {
        assert!(!fs::read_to_string(log.unwrap().path()).unwrap().contains("hidden"));
    }
}
