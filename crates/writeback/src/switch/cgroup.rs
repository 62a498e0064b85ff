//! Cgroups, the owners of dirty data, as a tree.
//!
//! A cgroup that was removed is not found by its number any more, but a holder of it still finds
//! its parents: its data goes to the nearest one that lives. Numbers are the kernel's; a number
//! that is used again names another cgroup.
//!
//! Lock order: `Cgroups::by_id`, then `Cgroup::name`. That and `Cgroups::removed` are leaves.

use std::collections::{HashMap, VecDeque};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;

use cgroups::CgroupId;
use sync::Mutex;
use sync::atomic::{AtomicBool, Ordering};

/// Removed cgroups that are remembered.
const REMOVED_MAX: usize = 4096;

/// One cgroup.
#[derive(Debug)]
pub struct Cgroup {
    id: CgroupId,
    parent: Option<Arc<Cgroup>>,
    /// The name of its directory, which may be changed.
    name: Mutex<OsString>,
    is_living: AtomicBool,
}

/// The cgroups that live.
#[derive(Debug)]
pub struct Cgroups {
    root: Arc<Cgroup>,
    by_id: Mutex<HashMap<CgroupId, Arc<Cgroup>>>,
    removed: Mutex<Removed>,
}

/// The cgroups that were removed last: data that comes late for one of them goes to its nearest
/// living ancestor.
#[derive(Debug, Default)]
struct Removed {
    by_id: HashMap<CgroupId, Arc<Cgroup>>,
    order: VecDeque<CgroupId>,
}

impl Default for Cgroups {
    fn default() -> Self {
        let root = Arc::new(Cgroup::new(CgroupId::ROOT, None, OsStr::new("")));
        let by_id = Mutex::new(HashMap::from([(CgroupId::ROOT, Arc::clone(&root))]));
        Self { root, by_id, removed: Mutex::default() }
    }
}

impl Cgroup {
    fn new(id: CgroupId, parent: Option<&Arc<Cgroup>>, name: &OsStr) -> Self {
        let name = Mutex::new(name.to_owned());
        Self { id, parent: parent.cloned(), name, is_living: AtomicBool::new(true) }
    }

    /// The cgroup that it is in; `None` for the root.
    #[must_use]
    pub fn parent(&self) -> Option<&Arc<Cgroup>> {
        self.parent.as_ref()
    }

    /// Its path from the root of the tree, such as `/a/b`; for the root `/`.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match &self.parent {
            None => PathBuf::from("/"),
            Some(parent) => parent.path().join(&*self.name.lock()),
        }
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> CgroupId {
        self.id
    }

    /// Whether it has not been removed.
    #[must_use]
    pub fn is_living(&self) -> bool {
        // ORDERING: Relaxed, only ever cleared; a thread that sees it too late gives data to a
        // removed cgroup, and the clean-up of its wb finds that data.
        self.is_living.load(Ordering::Relaxed)
    }

    /// Itself if it lives, else the nearest of its ancestors that does.
    #[must_use]
    pub fn nearest_living(self: &Arc<Self>) -> Arc<Self> {
        let mut at = self;
        while let Some(parent) = at.parent.as_ref().filter(|_| !at.is_living()) {
            at = parent;
        }
        Arc::clone(at)
    }
}

impl Removed {
    fn add(&mut self, cgroup: &Arc<Cgroup>) {
        if self.by_id.insert(cgroup.id, Arc::clone(cgroup)).is_none() {
            self.order.push_back(cgroup.id);
        }
        if self.order.len() > REMOVED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_id.remove(&oldest);
        }
    }
}

impl Cgroups {
    /// The root, which is never removed.
    #[must_use]
    pub fn root(&self) -> &Arc<Cgroup> {
        &self.root
    }

    /// A cgroup that lives.
    #[must_use]
    pub fn get(&self, id: CgroupId) -> Option<Arc<Cgroup>> {
        self.by_id.lock().get(&id).cloned()
    }

    /// The cgroup with this number; if it was removed, the nearest of its ancestors that lives. The
    /// root for a number that never was, or was removed long ago.
    #[must_use]
    pub fn nearest(&self, id: CgroupId) -> Arc<Cgroup> {
        let removed = || self.removed.lock().by_id.get(&id).map(Cgroup::nearest_living);
        self.get(id).or_else(removed).unwrap_or_else(|| Arc::clone(&self.root))
    }

    /// The cgroup `id`; if it was not known, a new one below `parent` (below the root if that
    /// does not live), named by its number.
    pub fn add(&self, id: CgroupId, parent: CgroupId) -> Arc<Cgroup> {
        self.add_named(id, parent, OsStr::new(&id.0.to_string()))
    }

    /// Like [`Cgroups::add`], with a name.
    pub fn add_named(&self, id: CgroupId, parent: CgroupId, name: &OsStr) -> Arc<Cgroup> {
        let mut by_id = self.by_id.lock();
        if let Some(known) = by_id.get(&id) {
            return Arc::clone(known);
        }
        let parent = by_id.get(&parent).unwrap_or(&self.root);
        let made = Arc::new(Cgroup::new(id, Some(parent), name));
        by_id.insert(id, Arc::clone(&made));
        made
    }

    /// A cgroup has another name; the root has none.
    pub(crate) fn rename(&self, id: CgroupId, name: &OsStr) {
        if let Some(cgroup) = self.get(id).filter(|cgroup| cgroup.parent.is_some()) {
            *cgroup.name.lock() = name.to_owned();
        }
    }

    /// Takes a cgroup that was removed out of the tree; `None` if it is not there or is the root.
    pub(crate) fn remove(&self, id: CgroupId) -> Option<Arc<Cgroup>> {
        if id == CgroupId::ROOT {
            return None;
        }
        let removed = self.by_id.lock().remove(&id)?;
        // ORDERING: Relaxed, see `is_living`.
        removed.is_living.store(false, Ordering::Relaxed);
        self.removed.lock().add(&removed);
        Some(removed)
    }

    /// The numbers of all that live, the root's too.
    #[must_use]
    pub fn living(&self) -> Vec<CgroupId> {
        self.by_id.lock().keys().copied().collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn what_a_removed_cgroup_had_is_its_nearest_living_ancestors() {
        let cgroups = Cgroups::default();
        let (a, b, c) = (CgroupId(1), CgroupId(2), CgroupId(3));
        cgroups.add(a, CgroupId::ROOT);
        cgroups.add(b, a);
        let c = cgroups.add(c, b);
        assert_eq!(c.nearest_living().id(), CgroupId(3));
        assert!(cgroups.remove(CgroupId(3)).is_some());
        assert_eq!(c.nearest_living().id(), b);
        cgroups.remove(b);
        assert_eq!(c.nearest_living().id(), a);
        cgroups.remove(a);
        assert_eq!(c.nearest_living().id(), CgroupId::ROOT);
        assert!(cgroups.remove(a).is_none() && cgroups.remove(CgroupId::ROOT).is_none());
    }

    #[test]
    fn who_comes_late_for_a_removed_cgroup_finds_its_nearest_living_ancestor() {
        let cgroups = Cgroups::default();
        let (a, b) = (CgroupId(1), CgroupId(2));
        cgroups.add(a, CgroupId::ROOT);
        cgroups.add(b, a);
        cgroups.remove(b);
        assert_eq!((cgroups.nearest(b).id(), cgroups.nearest(CgroupId(9)).id()), (a, CgroupId::ROOT));
        for other in 10..10 + REMOVED_MAX as u64 {
            cgroups.add(CgroupId(other), a);
            cgroups.remove(CgroupId(other));
        }
        assert_eq!(cgroups.nearest(b).id(), CgroupId::ROOT, "forgotten: what is remembered is bounded");
        assert_eq!(cgroups.nearest(CgroupId(10)).id(), a);
    }

    #[test]
    fn paths_follow_renaming() {
        let cgroups = Cgroups::default();
        cgroups.add_named(CgroupId(1), CgroupId::ROOT, OsStr::new("a"));
        let b = cgroups.add_named(CgroupId(2), CgroupId(1), OsStr::new("b"));
        assert_eq!((b.path(), cgroups.root().path()), ("/a/b".into(), "/".into()));
        cgroups.rename(CgroupId(1), OsStr::new("c"));
        assert_eq!(b.path(), PathBuf::from("/c/b"));
    }

    #[test]
    fn a_number_that_is_given_again_is_another_cgroup() {
        let cgroups = Cgroups::default();
        let old = cgroups.add(CgroupId(1), CgroupId::ROOT);
        cgroups.remove(CgroupId(1));
        let new = cgroups.add(CgroupId(1), CgroupId::ROOT);
        assert!(!old.is_living() && new.is_living());
        assert!(Arc::ptr_eq(&cgroups.add(CgroupId(1), CgroupId::ROOT), &new));
        assert_eq!(cgroups.living().len(), 2);
    }
}
