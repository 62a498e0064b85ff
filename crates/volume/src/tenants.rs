//! Tenants: the cgroups that requests belong to.
//!
//! A tenant is a cgroup of the host. The cgroup of a request's thread is looked up when it writes,
//! or opens a file to write, and is true as of 50 ms before (see [`cgroups::ThreadCache`]). Requests
//! without a thread (memory-mapped writes, kernel write-back) count for the inode's owner, and for
//! the opener if it has none: for the nearest ancestor that lives of an opener that was removed.

use std::path::Path;
use std::sync::Arc;

use cgroups::{CgroupEvent, CgroupId, Hierarchy, ThreadCache, Watch};
use throttle::CgroupPath;
use writeback::{Cgroup, Switcher};

use crate::Caller;

/// A cgroup may be made, moved to and removed between two checks. No caller should meet that more
/// often than this.
const ATTEMPTS: usize = 4;

/// The cgroups of the host, for all volumes of a process. By default there is only the root, to
/// which everything belongs.
#[derive(Debug, Default)]
pub struct Tenants {
    pub(crate) switcher: Arc<Switcher>,
    host: Option<Host>,
}

#[derive(Debug)]
struct Host {
    tree: Hierarchy,
    threads: Arc<ThreadCache>,
    watch: Watch,
}

impl Tenants {
    /// The cgroups of this tree.
    ///
    /// # Errors
    /// When the host gives no thread or descriptor.
    pub fn of(tree: Hierarchy) -> std::io::Result<Arc<Self>> {
        let switcher = Arc::<Switcher>::default();
        let threads = Arc::<ThreadCache>::default();
        let watch = {
            let (switcher, threads) = (Arc::clone(&switcher), Arc::clone(&threads));
            Watch::start(tree.clone(), move |event| match event {
                CgroupEvent::Removed(id) => {
                    threads.forget(id);
                    switcher.remove_cgroup(id);
                }
                CgroupEvent::Renamed(id, name) => switcher.rename_cgroup(id, &name),
            })?
        };
        Ok(Arc::new(Self { switcher, host: Some(Host { tree, threads, watch }) }))
    }

    /// The tree of cgroups, as options name it; `None` where tenants are not told apart.
    #[must_use]
    pub fn tree(&self) -> Option<&Hierarchy> {
        self.host.as_ref().map(|host| &host.tree)
    }

    /// The tenant that asks; `None` if the request has no thread, or its tenant cannot be found.
    pub(crate) fn of_caller(&self, caller: &Caller) -> Option<CgroupId> {
        let Some(host) = &self.host else { return Some(CgroupId::ROOT) };
        if caller.pid == 0 {
            return None;
        }
        host.threads.get(caller.pid, || self.look_up(host, caller.pid))
    }

    /// The cgroup with this number; the root if it was removed meanwhile, or there is none.
    pub(crate) fn cgroup_of(&self, owner: Option<CgroupId>) -> Arc<Cgroup> {
        let cgroups = self.switcher.cgroups();
        owner.and_then(|owner| cgroups.get(owner)).unwrap_or_else(|| Arc::clone(cgroups.root()))
    }

    /// Whether there is such a cgroup. The cached cgroup of a thread may be older than that
    /// cgroup's end.
    pub(crate) fn is_living(&self, owner: CgroupId) -> bool {
        self.switcher.cgroups().get(owner).is_some()
    }

    /// The path of a caller's cgroup; the root if it cannot be found.
    #[must_use]
    pub fn path_of(&self, caller: &Caller) -> CgroupPath {
        self.of_caller(caller).map_or_else(CgroupPath::root, |owner| self.path(owner))
    }

    /// The path of a cgroup that is known; that of the root if it is not.
    pub(crate) fn path(&self, owner: CgroupId) -> CgroupPath {
        self.path_of_living(owner).unwrap_or_else(CgroupPath::root)
    }

    /// The path of a cgroup that lives; `None` if there is none with this number, or not any more.
    pub(crate) fn path_of_living(&self, owner: CgroupId) -> Option<CgroupPath> {
        self.switcher.cgroups().get(owner).map(|cgroup| CgroupPath::from(&*cgroup.path()))
    }

    fn look_up(&self, host: &Host, tid: u32) -> Option<CgroupId> {
        for _ in 0..ATTEMPTS {
            let path = host.tree.path_of(tid)?;
            if let Some(found) = self.look_up_path(host, &path) {
                return Some(found);
            }
        }
        None
    }

    /// The living cgroup at a path of [`path_of_living`](Self::path_of_living); the root if there
    /// is none.
    pub(crate) fn cgroup_at(&self, path: &CgroupPath) -> Arc<Cgroup> {
        let found = self.host.as_ref().and_then(|host| self.look_up_path(host, Path::new(path.as_str())));
        self.cgroup_of(found)
    }

    /// None: it was removed or renamed since the kernel returned its path.
    fn look_up_path(&self, host: &Host, path: &Path) -> Option<CgroupId> {
        let cgroups = self.switcher.cgroups();
        let found = host.tree.look_up(path)?;
        let is_known = cgroups.get(found.id()).is_some();
        let made = |id, parent, name: &std::ffi::OsStr| {
            cgroups.add_named(id, parent, name);
        };
        (is_known || host.watch.add(&found, made)).then(|| found.id())
    }
}

/// One caller, in whichever cgroup its thread is at the time.
pub(crate) struct TenantOf<'a> {
    pub(crate) tenants: &'a Tenants,
    pub(crate) caller: Caller,
}

impl writeback::SyncCaller for TenantOf<'_> {
    fn cgroup(&self) -> CgroupPath {
        self.tenants.path_of(&self.caller)
    }
}
