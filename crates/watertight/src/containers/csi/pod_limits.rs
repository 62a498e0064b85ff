//! What each pod may do on a volume: limits that a class or a volume gives, for the pod's cgroup.

use std::collections::HashMap;
use std::thread;
use std::time::{Duration, Instant};

use cgroups::{Choice, Hierarchy};
use csi_proto::tonic::Code;
use volume::LimitChange;

use super::failure::{Failure, Result};
use crate::control::api::{LimitRequest, Limits};
use crate::control::client::Client;
use crate::host::pods::{self, Pods};
use crate::term::units::parse_bytes;

/// The parameters of a class, and attributes of a volume, and the limits that they are.
pub const POD_LIMITS: [&str; 6] = [
    "pod-read-bps",
    "pod-write-bps",
    "pod-read-iops",
    "pod-write-iops",
    "pod-dirty-max",
    "pod-sync-isolation",
];
const LIMITS: [&str; 6] = ["rbps", "wbps", "riops", "wiops", "dirty_max", "sync_isolation"];
/// All of them lifted.
const NONE: &str = "rbps=max wbps=max riops=max wiops=max dirty_max=max sync_isolation=0";

/// The pod that a volume is published for, which Kubernetes says where the driver asks for it
/// (`podInfoOnMount`).
const POD_UID: &str = "csi.storage.k8s.io/pod.uid";
/// How long a pod's cgroup is waited for, which kubelet makes beside this call.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// The limits of each pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodLimits {
    /// As `watertight limit` has them.
    change: String,
    pod: Option<String>,
}

impl PodLimits {
    /// Those among the attributes of a volume, or the parameters of a class.
    ///
    /// # Errors
    /// A value is none.
    pub(super) fn parse(attributes: &HashMap<String, String>) -> Result<Option<Self>> {
        let mut change = Vec::new();
        for (key, limit) in POD_LIMITS.into_iter().zip(LIMITS) {
            let Some(value) = attributes.get(key) else { continue };
            let wrong = |why: &str| Failure::invalid(format!("{key}: {value:?}: {why}"));
            let value = match (limit, value.as_str()) {
                ("sync_isolation", "true") => "1".to_owned(),
                ("sync_isolation", "false") => "0".to_owned(),
                ("sync_isolation", _) => return Err(wrong("give true or false")),
                (_, text) => {
                    let number = parse_bytes(text).ok().filter(|&number| number > 0);
                    number.ok_or_else(|| wrong("give a number above 0, as 50M"))?.to_string()
                }
            };
            change.push(format!("{limit}={value}"));
        }
        if change.is_empty() {
            return Ok(None);
        }
        let change = change.join(" ");
        change.parse::<LimitChange>().map_err(|error| Failure::invalid(error.to_string()))?;
        Ok(Some(Self { change, pod: attributes.get(POD_UID).cloned() }))
    }

    /// Finds the pod's cgroup, which kubelet makes beside the call; waits for it for some seconds, and
    /// no longer than this. No turn is held by it.
    ///
    /// # Errors
    /// The pod is not known; it has no cgroup yet.
    pub(super) fn find(self, patience: Duration) -> Result<CgroupLimits> {
        let uid = self.pod.as_deref().filter(|uid| pods::is_uid(uid)).ok_or_else(|| {
            Failure::not_ready(
                "pods have limits on this volume, and the call does not say which pod it is for: the \
                                CSIDriver object needs podInfoOnMount: true",
            )
        })?;
        let tree = Hierarchy::find(&Choice::Auto).ok().flatten();
        let tree =
            tree.ok_or_else(|| Failure::not_ready("this node has no cgroups that limits could be for"))?;
        let cgroup = wait_for(&tree, uid, PATIENCE.min(patience)).ok_or_else(|| {
            let why = format!("there is no cgroup of the pod {uid} yet, which has limits; ask again");
            Failure::new(Code::Unavailable, why)
        })?;
        Ok(CgroupLimits { change: self.change, cgroup, tree })
    }
}

/// The limits of a pod whose cgroup is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct CgroupLimits {
    change: String,
    cgroup: String,
    tree: Hierarchy,
}

impl CgroupLimits {
    /// Sets them on a volume, and lifts those of pods that are gone. Where the pod has the volume
    /// already, what an administrator has changed since stays: kubelet publishes again and again.
    ///
    /// # Errors
    /// The volume's process does not do that.
    pub(super) fn apply(&self, client: &Client, is_new: bool) -> Result<()> {
        let all = client.limits().map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
        if is_new || all.limits.iter().all(|own| own.cgroup != self.cgroup) {
            set(client, &self.cgroup, &self.change)?;
        }
        lift_of_gone(client, &self.tree, &all)
    }
}

fn wait_for(tree: &Hierarchy, uid: &str, patience: Duration) -> Option<String> {
    let until = Instant::now() + patience;
    let mut pause = PAUSE;
    loop {
        if let Some(found) = pods::cgroup_of(tree.mountpoint(), uid) {
            return found.into_os_string().into_string().ok();
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return None;
        }
        // Each look goes through all of the tree.
        thread::sleep(pause.min(left));
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn set(client: &Client, cgroup: &str, limits: &str) -> Result<()> {
    let request = LimitRequest { cgroup: cgroup.to_owned(), limits: limits.to_owned() };
    let done = client.limit(&request).map(drop);
    done.map_err(|error| Failure::new(Code::Unavailable, format!("cannot limit {cgroup}: {error}")))
}

/// A limit is of a cgroup's path, and stays when the pod is gone.
fn lift_of_gone(client: &Client, tree: &Hierarchy, all: &Limits) -> Result<()> {
    let of_pods = Pods::default();
    for own in all.limits.iter().map(|own| own.cgroup.as_str()) {
        if of_pods.at(own).is_some() && tree.look_up(std::path::Path::new(own)).is_none() {
            set(client, own, NONE)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(given: &[(&str, &str)]) -> Result<Option<PodLimits>> {
        PodLimits::parse(&given.iter().map(|&(key, value)| (key.to_owned(), value.to_owned())).collect())
    }

    #[test]
    fn limits_are_numbers_and_switches() {
        assert_eq!(parse(&[("type", "object")]).unwrap(), None);
        let limits = parse(&[("pod-write-bps", "1M"), ("pod-sync-isolation", "true"), (POD_UID, "u")]);
        let limits = limits.unwrap().unwrap();
        assert_eq!(
            (limits.change.as_str(), limits.pod.as_deref()),
            ("wbps=1048576 sync_isolation=1", Some("u"))
        );
        assert!(NONE.parse::<LimitChange>().is_ok());
        for (key, value) in [
            ("pod-write-bps", "fast"),
            ("pod-write-bps", "0"),
            ("pod-read-iops", "-1"),
            ("pod-read-bps", "1M wbps=1"),
            ("pod-sync-isolation", "1"),
        ] {
            let wrong = parse(&[(key, value)]).unwrap_err();
            assert!(wrong.code == Code::InvalidArgument && wrong.words().contains(key), "{wrong:?}");
        }
    }

    #[test]
    fn a_cgroup_that_kubelet_makes_meanwhile_is_waited_for() {
        let uid = "0c1b2a3d-4e5f-6789-abcd-ef0123456789";
        let dir = tempfile::tempdir().unwrap();
        let tree = Hierarchy::at(dir.path(), "");
        assert_eq!(wait_for(&tree, uid, Duration::ZERO), None);
        let pod = format!("kubepods/pod{uid}");
        let made = dir.path().join(&pod);
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(PAUSE * 2);
                std::fs::create_dir_all(made).unwrap();
            });
            let found = wait_for(&tree, uid, Duration::from_secs(60));
            assert_eq!(found, Some(format!("/{pod}")));
        });
    }
}
