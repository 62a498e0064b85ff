//! Volumes that the controller makes: snapshots, clones, quotas.

use std::fs;
use std::path::Path;

use csi_proto::tonic::Code;
use csi_proto::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use csi_proto::v1::*;

use super::{Driver, create, refused};
use crate::rig::eventually;

fn sized(name: &str, required_bytes: i64) -> CreateVolumeRequest {
    let range = CapacityRange { required_bytes, limit_bytes: 0 };
    CreateVolumeRequest { capacity_range: Some(range), ..create(name) }
}

fn source(of: Type) -> Option<VolumeContentSource> {
    Some(VolumeContentSource { r#type: Some(of) })
}

#[test]
fn no_volume_is_made_within_another_nor_deleted_around_one() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    let within = |dir: &Path, name: &str| CreateVolumeRequest {
        parameters: [("url".to_owned(), driver.prefix(dir))].into(),
        ..create(name)
    };
    let a = driver.create("a");
    let code = Code::FailedPrecondition;
    refused(client.create(within(&driver.volumes.join("a"), "b")), code, "lie within a volume");
    // One that another program has put there, however deep.
    for path in ["a/nested", "a/nested/deep/er"] {
        let nested = driver.volumes.join(path);
        fs::create_dir_all(&nested).unwrap();
        fs::copy(driver.volumes.join("a/format"), nested.join("format")).unwrap();
        refused(client.delete(&a), code, &format!("lies within it, {a}{}", &path[1..]));
        assert!(driver.volumes.join("a/format").exists() && nested.join("format").exists());
        fs::remove_dir_all(driver.volumes.join("a/nested")).unwrap();
    }
    client.delete(&a).unwrap();
    // Nor is one made around another.
    fs::create_dir_all(driver.volumes.join("b/c")).unwrap();
    let inner = client.create(within(&driver.volumes.join("b/c"), "d")).unwrap().volume_id;
    refused(client.create(create("b")), code, "would lie within it");
    client.delete(&inner).unwrap();
    client.create(create("b")).unwrap();
}

#[test]
fn a_mounted_volume_has_snapshots_and_clones_and_grows() {
    let Some(mut driver) = Driver::new() else { return };
    let _daemon = driver.start();
    let client = driver.client();
    let made = client.create(sized("a", 1 << 30)).unwrap();
    assert_eq!(made.capacity_bytes, 1 << 30);
    assert_eq!(client.create(sized("a", 1 << 30)).unwrap(), made);
    refused(client.create(sized("a", 1 << 31)), Code::AlreadyExists, "quota of 1073741824");
    let id = made.volume_id;
    client.node_stage_volume(driver.stage(&id, "a")).unwrap();
    let staging = driver.staging("a");
    fs::write(Path::new(&staging).join("f"), "first").unwrap();
    // The process that serves it makes the snapshot, with what is not in the bucket yet.
    let snapshot =
        CreateSnapshotRequest { source_volume_id: id.clone(), name: "s1".to_owned(), ..Default::default() };
    let one = client.create_snapshot(snapshot.clone()).unwrap().snapshot.unwrap();
    assert_eq!(client.create_snapshot(snapshot).unwrap().snapshot.unwrap(), one);
    assert!(one.ready_to_use && one.creation_time.unwrap().seconds > 1_700_000_000, "{one:?}");
    fs::write(Path::new(&staging).join("f"), "second").unwrap();
    let of_snapshot = CreateVolumeRequest {
        volume_content_source: source(Type::Snapshot(SnapshotSource {
            snapshot_id: one.snapshot_id.clone(),
        })),
        ..sized("b", 1 << 31)
    };
    let of_volume = CreateVolumeRequest {
        volume_content_source: source(Type::Volume(VolumeSource { volume_id: id.clone() })),
        ..create("c")
    };
    for (request, content) in [(of_snapshot, "first"), (of_volume, "second")] {
        let clone = client.create(request.clone()).unwrap();
        assert_eq!(client.create(request).unwrap(), clone);
        client.node_stage_volume(driver.stage(&clone.volume_id, "clone")).unwrap();
        assert_eq!(fs::read(Path::new(&driver.staging("clone")).join("f")).unwrap(), content.as_bytes());
        let unstage = || client.node_unstage_volume(driver.unstage(&clone.volume_id, "clone"));
        eventually("it is unstaged", || unstage().is_ok());
        refused(client.delete(&id), Code::FailedPrecondition, "");
    }
    // Where it is mounted, the node gives it the larger quota.
    let range = Some(CapacityRange { required_bytes: 3 << 30, limit_bytes: 0 });
    let expand = |id: &str| ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: range,
        ..Default::default()
    };
    assert!(client.controller_expand_volume(expand(&id)).unwrap().node_expansion_required);
    let on_node = NodeExpandVolumeRequest {
        volume_id: id.clone(),
        volume_path: staging.clone(),
        capacity_range: range,
        ..Default::default()
    };
    client.node_expand_volume(on_node.clone()).unwrap();
    // A call that comes late makes it no smaller.
    let less = Some(CapacityRange { required_bytes: 1 << 30, limit_bytes: 0 });
    client.node_expand_volume(NodeExpandVolumeRequest { capacity_range: less, ..on_node }).unwrap();
    let shown = rustix::fs::statvfs(staging.as_str()).unwrap();
    assert_eq!(shown.f_blocks * shown.f_frsize, 3 << 30);
    eventually("it is unstaged", || client.node_unstage_volume(driver.unstage(&id, "a")).is_ok());
    let clone = driver.prefix(&driver.volumes.join("b"));
    assert!(!client.controller_expand_volume(expand(&clone)).unwrap().node_expansion_required);
    // What others need is not deleted.
    let delete = DeleteSnapshotRequest { snapshot_id: one.snapshot_id, ..Default::default() };
    refused(client.delete_snapshot(delete.clone()), Code::FailedPrecondition, "clone");
    refused(client.delete(&id), Code::FailedPrecondition, "");
    for name in ["b", "c"] {
        client.delete(&driver.prefix(&driver.volumes.join(name))).unwrap();
    }
    refused(client.delete(&id), Code::FailedPrecondition, "snapshots, s1");
    for _ in 0..2 {
        client.delete_snapshot(delete.clone()).unwrap();
    }
    client.delete(&id).unwrap();
    assert_eq!(fs::read_dir(&driver.volumes).unwrap().count(), 0);
}
