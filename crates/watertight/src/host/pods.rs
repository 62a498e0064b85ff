//! Kubernetes' pods on this host: which cgroup is a pod's, and what people call it.
//!
//! A cgroup of a pod has the pod's UID in its name, whichever driver kubelet has for cgroups
//! (`/kubepods/burstable/podUID/CONTAINER` or
//! `/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podUID.slice/cri-containerd-CONTAINER.scope`)
//! and whichever version they are of; one above it is kubelet's `kubepods`. Names are those of
//! kubelet's logs: a directory `NAMESPACE_POD_UID` for each pod, and a link
//! `POD_NAMESPACE_CONTAINER-ID.log` for each container.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::term::shown::Name;

const PODS: &str = "/var/log/pods";
const CONTAINERS: &str = "/var/log/containers";
/// Entries of a directory of logs that are read, and directories of a tree that a search looks into.
const ENTRIES_MAX: usize = 20_000;
/// How deep below a tree's root pods' cgroups are looked for.
const DEPTH_MAX: usize = 6;

/// A pod, as far as it is known.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pod {
    /// Its UID.
    pub uid: String,
    /// Its namespace; none: kubelet's logs do not have it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<Name>,
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<Name>,
    /// The container, where a cgroup is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Name>,
}

impl fmt::Display for Pod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.namespace, &self.name) {
            (Some(namespace), Some(name)) => write!(f, "{namespace}/{name}")?,
            _ => write!(f, "pod {}", self.uid)?,
        }
        self.container.as_ref().map_or(Ok(()), |container| write!(f, "/{container}"))
    }
}

/// The pods whose names are known.
#[derive(Debug, Clone, Default)]
pub struct Pods {
    /// Namespaces and names, by UIDs.
    pods: HashMap<String, (Name, Name)>,
    /// Names of containers, by ids.
    containers: HashMap<String, Name>,
}

impl Pods {
    /// Those of this host, if one of these cgroups is a pod's; else none is looked for.
    #[must_use]
    pub fn of_cgroups<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        if paths.into_iter().any(|path| parse(path).is_some()) {
            Self::read(Path::new(PODS), Path::new(CONTAINERS))
        } else {
            Self::default()
        }
    }

    /// Those of these directories.
    #[must_use]
    pub fn read(pods: &Path, containers: &Path) -> Self {
        let pods = names_in(pods).into_iter().filter_map(|dir| {
            let (rest, uid) = dir.rsplit_once('_')?;
            let (namespace, name) = rest.split_once('_')?;
            Some((uid.to_owned(), (Name::from(namespace.to_owned()), Name::from(name.to_owned()))))
        });
        let containers = names_in(containers).into_iter().filter_map(|link| {
            let (rest, id) = link.strip_suffix(".log")?.rsplit_once('-')?;
            let (_, container) = rest.rsplit_once('_')?;
            Some((id.to_owned(), Name::from(container.to_owned())))
        });
        Self { pods: pods.collect(), containers: containers.collect() }
    }

    /// The pod whose cgroup, or that of one of whose containers, has this path; none: it is no pod's.
    #[must_use]
    pub fn at(&self, cgroup: &str) -> Option<Pod> {
        let (uid, container) = parse(cgroup)?;
        let (namespace, name) = self.pods.get(&uid).cloned().unzip();
        let container = container.and_then(|id| self.containers.get(&id).cloned());
        Some(Pod { uid, namespace, name, container })
    }

    /// The pod of a process.
    #[must_use]
    pub fn of_process(&self, pid: u32) -> Option<Pod> {
        cgroups_of(pid).iter().find_map(|path| self.at(path))
    }
}

/// The cgroups of a process, in all trees.
#[must_use]
pub fn cgroups_of(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().filter_map(|line| line.splitn(3, ':').nth(2).map(str::to_owned)).collect()
}

/// Whether it is root's, or this process's own.
fn is_roots(meta: &fs::Metadata) -> bool {
    meta.uid() == rustix::process::geteuid().as_raw() || meta.uid() == 0
}

/// The names in a directory of root's, up to a bound; of another's, none: nobody else names pods.
fn names_in(dir: &Path) -> Vec<String> {
    let is_closed = fs::metadata(dir).is_ok_and(|meta| meta.mode() & 0o022 == 0 && is_roots(&meta));
    let entries = fs::read_dir(dir).ok().filter(|_| is_closed).into_iter().flatten().take(ENTRIES_MAX);
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Whether it is a pod's UID: hexadecimal digits and dashes.
#[must_use]
pub fn is_uid(text: &str) -> bool {
    (32..=36).contains(&text.len())
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

/// The UID of the pod, and the id of the container, in a cgroup's path.
fn parse(path: &str) -> Option<(String, Option<String>)> {
    let mut parts = path.split('/');
    let mut is_below = false;
    let uid = parts.by_ref().find_map(|part| {
        let uid = uid_of(part).filter(|_| is_below);
        is_below |= has_pods(part);
        uid
    })?;
    // `ID`, `crio-ID.scope`, `cri-containerd-ID.scope`.
    let container = parts.next().map(|part| part.strip_suffix(".scope").unwrap_or(part));
    let id = container.and_then(|name| name.rsplit('-').next()).filter(|id| !id.is_empty());
    Some((uid, id.map(str::to_owned)))
}

/// Whether the cgroup of this name is the one that kubelet has all pods in, or a class of them.
fn has_pods(name: &str) -> bool {
    const PODS: &str = "kubepods";
    name == PODS || name.strip_suffix(".slice").is_some_and(|slice| slice.split('-').any(|part| part == PODS))
}

/// The UID of the pod whose cgroup has this name, below one that [has pods](has_pods).
fn uid_of(name: &str) -> Option<String> {
    // In systemd's names, dashes are levels.
    let uid = match name.strip_suffix(".slice") {
        Some(slice) => slice.rsplit('-').next()?.strip_prefix("pod")?.replace('_', "-"),
        None => name.strip_prefix("pod")?.to_owned(),
    };
    is_uid(&uid).then_some(uid)
}

/// The path of a pod's cgroup below the root of a tree, if it is there. Directories of ordinary users,
/// which may give cgroups of theirs any names, are not looked into.
#[must_use]
pub fn cgroup_of(tree: &Path, uid: &str) -> Option<PathBuf> {
    let mut looked = 0;
    let mut queue = VecDeque::from([(PathBuf::from("/"), 0, false)]);
    while let Some((at, depth, is_below)) = queue.pop_front() {
        let dir = tree.join(at.strip_prefix("/").unwrap_or(&at));
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            if !entry.metadata().is_ok_and(|meta| meta.is_dir() && is_roots(&meta)) {
                continue;
            }
            let Ok(name) = entry.file_name().into_string() else { continue };
            match uid_of(&name).filter(|_| is_below) {
                Some(found) if found == uid => return Some(at.join(name)),
                // Another's pod has none below it.
                Some(_) => {}
                None if depth < DEPTH_MAX && looked < ENTRIES_MAX => {
                    looked += 1;
                    let is_below = is_below || has_pods(&name);
                    queue.push_back((at.join(name), depth + 1, is_below));
                }
                None => {}
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::term::shown::Show as _;

    const UID: &str = "0c1b2a3d-4e5f-6789-abcd-ef0123456789";
    const SLICE: &str = "0c1b2a3d_4e5f_6789_abcd_ef0123456789";
    const ID: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";

    /// The paths of a pod's cgroup, and of its container's, of both drivers and all classes.
    fn paths() -> Vec<(String, String)> {
        let fs = ["/kubepods", "/kubepods/burstable", "/kubelet/kubepods/besteffort"]
            .map(|above| (format!("{above}/pod{UID}"), format!("{above}/pod{UID}/{ID}")));
        let systemd = ["kubepods", "kubepods-besteffort", "kubelet-kubepods-burstable"].map(|above| {
            let pod = format!("/kubepods.slice/{above}.slice/{above}-pod{SLICE}.slice");
            (pod.clone(), format!("{pod}/cri-containerd-{ID}.scope"))
        });
        fs.into_iter().chain(systemd).collect()
    }

    #[test]
    fn a_cgroup_names_its_pod_and_container() {
        let dir = tempfile::tempdir().unwrap();
        let (pods, containers) = (dir.path().join("pods"), dir.path().join("containers"));
        fs::create_dir_all(pods.join(format!("shop_db-0_{UID}/postgres"))).unwrap();
        fs::create_dir(&containers).unwrap();
        fs::write(containers.join(format!("db-0_shop_postgres-{ID}.log")), "").unwrap();
        let known = Pods::read(&pods, &containers);
        for (pod, container) in paths() {
            assert_eq!(known.at(&pod).unwrap().to_string(), "shop/db-0", "{pod}");
            for below in ["", "/init.scope"] {
                let found = known.at(&format!("{container}{below}")).unwrap();
                assert_eq!(found.to_string(), "shop/db-0/postgres", "{container}");
            }
            assert_eq!(Pods::default().at(&container).unwrap().to_string(), format!("pod {UID}"));
        }
        for other in
            ["/", "", "/system.slice", "/kubepods/podium", "/pods/pod1", "/user.slice/user-pod.slice"]
        {
            assert_eq!(known.at(other), None, "{other}");
        }
        // What an ordinary user calls a cgroup.
        for above in ["", "/user.slice/user-1.slice/user@1.service", "/kubepodsx", "/akubepods.slice"] {
            for pod in [format!("{above}/pod{UID}"), format!("{above}/kubepods-pod{SLICE}.slice/a.scope")] {
                assert_eq!(known.at(&pod), None, "{pod}");
            }
        }
        // A directory that others can write names nobody.
        fs::set_permissions(&pods, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let unknown = Pods::read(&pods, &containers);
        assert_eq!(unknown.at(&paths()[0].0).unwrap().namespace, None);
    }

    /// A cgroup of the kernel's, with those above it that are the test's; removed at the end.
    struct Real<'t>(&'t Path, PathBuf);

    impl Drop for Real<'_> {
        fn drop(&mut self) {
            for at in self.1.ancestors().take_while(|at| *at != self.0) {
                // Others may be in one that is above.
                let _stays = fs::remove_dir(at);
            }
        }
    }

    #[test]
    fn a_process_of_a_real_cgroup_is_a_pod_s_in_both_versions() {
        use cgroups::{Choice, Hierarchy};
        for choice in [Choice::V2, Choice::Controller("memory".to_owned())] {
            let Ok(Some(tree)) = Hierarchy::find(&choice) else {
                testing::skipped(format!("there is no tree {choice:?}"));
                continue;
            };
            let uid = format!("{:08x}{}", std::process::id(), &UID[8..]);
            let slice = uid.replace('-', "_");
            let pod = format!("watertight-kubepods.slice/watertight-kubepods-pod{slice}.slice");
            let container = tree.mountpoint().join(&pod).join(format!("cri-containerd-{ID}.scope"));
            if let Err(error) = fs::create_dir_all(&container) {
                testing::skipped(format!("no cgroup can be made in {}: {error}", tree.mountpoint().shown()));
                continue;
            }
            let made = Real(tree.mountpoint(), container);
            let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
            fs::write(made.1.join("cgroup.procs"), child.id().to_string()).unwrap();
            let found = (cgroup_of(tree.mountpoint(), &uid), Pods::default().of_process(child.id()));
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(found.0, Some(Path::new("/").join(&pod)), "{choice:?}");
            assert_eq!(found.1.unwrap().uid, uid, "{choice:?}");
        }
    }

    #[test]
    fn a_pod_s_cgroup_is_found_by_its_uid_in_each_kind_of_tree() {
        for (pod, container) in paths() {
            let tree = tempfile::tempdir().unwrap();
            let other = pod.replace("0c1b2a3d", "1c1b2a3d");
            for path in [&other, &container, "/system.slice/a.service"] {
                fs::create_dir_all(tree.path().join(&path[1..])).unwrap();
            }
            assert_eq!(cgroup_of(tree.path(), UID).as_deref(), Some(Path::new(&pod)));
            assert_eq!(cgroup_of(tree.path(), &UID.replace('0', "2")), None);
        }
    }

    #[test]
    fn a_cgroup_of_an_ordinary_user_is_no_pod_s() {
        let tree = tempfile::tempdir().unwrap();
        let user = tree.path().join("user.slice/user@1.service");
        fs::create_dir_all(user.join(format!("pod{UID}"))).unwrap();
        assert_eq!(cgroup_of(tree.path(), UID), None);
        let pods = user.join("kubepods");
        fs::create_dir_all(pods.join(format!("pod{UID}"))).unwrap();
        assert!(cgroup_of(tree.path(), UID).is_some());
        // Only root can give it to another.
        if std::os::unix::fs::chown(&user, Some(1), None).is_ok() {
            assert_eq!(cgroup_of(tree.path(), UID), None);
        }
    }
}
