//! `csi`: the driver of Kubernetes, called as kubelet and the sidecars call it.

mod chart;
mod client;
mod controller;
mod image;
mod launch;
mod manifests;
mod node;
mod robust;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use csi_proto::tonic::Code;
use csi_proto::v1::volume_capability::access_mode::Mode;
use csi_proto::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use csi_proto::v1::*;
use rustix::process::Pid;

use crate::rig::{Daemon, Rig};
use client::Client;

/// What answers took that are waited for as long as it takes.
const PATIENT: Duration = Duration::from_secs(100);

/// A driver, and what kubelet and the sidecars would do.
struct Driver {
    rig: Rig,
    socket: PathBuf,
    /// Kubelet's directory.
    root: PathBuf,
    /// The bucket.
    volumes: PathBuf,
    more: Vec<String>,
}

impl Driver {
    fn new() -> Option<Self> {
        let rig = Rig::mounting()?;
        let volumes = rig.root.join("volumes");
        Some(Self::with(rig, volumes))
    }

    fn with(rig: Rig, volumes: PathBuf) -> Self {
        let (socket, root) = (rig.root.join("csi/csi.sock"), rig.root.join("kubelet"));
        for dir in [&volumes, &root] {
            fs::create_dir_all(dir).unwrap();
        }
        Self { rig, socket, root, volumes, more: Vec::new() }
    }

    fn command(&self) -> Command {
        let mut command = self.rig.command(&["csi", "--controller", "--node-id", "n1", "--endpoint"]);
        command.arg(format!("unix://{}", self.socket.display()));
        command.arg("--url-prefix").arg(self.prefix(&self.volumes)).args(&self.more);
        command.arg("--kubelet-root").arg(&self.root).arg("--state").arg(self.rig.root.join("state"));
        command
    }

    fn prefix(&self, dir: &Path) -> String {
        format!("file://{}", dir.display())
    }

    fn start(&mut self) -> Daemon {
        let command = self.command();
        self.rig.start(command)
    }

    fn client(&self) -> Client {
        Client::connect(&self.socket)
    }

    /// The staging path of a volume, made as kubelet makes it.
    fn staging(&self, name: &str) -> String {
        let path = self.root.join("plugins").join(name).join("globalmount");
        // Where a volume is mounted already, its server would be asked.
        if !crate::rig::is_mounted(&path) {
            fs::create_dir_all(&path).unwrap();
        }
        path.to_str().unwrap().to_owned()
    }

    /// The path of a pod's volume, whose directory kubelet makes.
    fn target(&self, pod: &str) -> String {
        let dir = self.root.join("pods").join(pod);
        fs::create_dir_all(&dir).unwrap();
        dir.join("mount").to_str().unwrap().to_owned()
    }

    fn stage(&self, id: &str, name: &str) -> NodeStageVolumeRequest {
        NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.staging(name),
            volume_capability: Some(capability(Mode::SingleNodeWriter)),
            ..Default::default()
        }
    }

    fn unstage(&self, id: &str, name: &str) -> NodeUnstageVolumeRequest {
        NodeUnstageVolumeRequest { volume_id: id.to_owned(), staging_target_path: self.staging(name) }
    }

    fn publish(&self, id: &str, name: &str, pod: &str) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: self.staging(name),
            target_path: self.target(pod),
            volume_capability: Some(capability(Mode::SingleNodeWriter)),
            ..Default::default()
        }
    }

    fn unpublish(&self, id: &str, pod: &str) -> NodeUnpublishVolumeRequest {
        NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: self.target(pod) }
    }

    /// Makes a volume; its id.
    #[track_caller]
    fn create(&self, name: &str) -> String {
        self.client().create(create(name)).unwrap().volume_id
    }

    /// Who holds a volume.
    fn holder(&self, id: &str) -> serde_json::Value {
        let info = self.rig.run(&["info", "--json", id]).ok();
        serde_json::from_str::<serde_json::Value>(&info.stdout).unwrap()["holder"].clone()
    }

    /// Whether no process of a volume can be asked any more.
    fn serves_nothing(&self) -> bool {
        self.rig.status()["volumes"].as_array().unwrap().is_empty()
    }

    /// The process that serves a staged volume.
    fn serving(&self, name: &str) -> Pid {
        let (status, staging) = (self.rig.status(), self.staging(name));
        let volumes = status["volumes"].as_array().unwrap();
        let one = volumes.iter().find(|volume| volume["mountpoint"] == staging.as_str());
        let pid = one.unwrap_or_else(|| panic!("{status}"))["pid"].as_i64().unwrap();
        Pid::from_raw(i32::try_from(pid).unwrap()).unwrap()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Mount processes outlive the driver.
        for mount in watertight::host::mountinfo::MountTable::read().iter() {
            if mount.mountpoint.starts_with(&self.rig.root) {
                let _ = self.rig.run(&["umount".as_ref(), "--force".as_ref(), mount.mountpoint.as_os_str()]);
            }
        }
    }
}

fn capability(mode: Mode) -> VolumeCapability {
    VolumeCapability {
        access_mode: Some(AccessMode { mode: mode.into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    }
}

fn create(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter)],
        ..Default::default()
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, csi_proto::tonic::Status>, code: Code, word: &str) {
    let status = answer.unwrap_err();
    assert!(status.code() == code && status.message().contains(word), "not {code:?}, {word:?}: {status:?}");
}
