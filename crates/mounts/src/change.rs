//! The remains of a change: tables that readers may still see, and mounts that left their
//! namespaces.

use std::collections::BTreeMap;
use std::sync::Arc;

use rcu::Cookie;

use crate::map::Old;
use crate::mount::Mount;
use crate::namespace::Ns;
use crate::protocol::{Departed, Locked};

/// A change under way. The lock of the tree is held.
#[derive(Debug, Default)]
pub(crate) struct Change {
    /// Boxed: a map of one has room for eleven, and a request for so much memory makes the
    /// allocator tidy up.
    old: BTreeMap<u64, Box<(Arc<Ns>, Old)>>,
}

impl Change {
    /// The old tables that readers of `ns` may still see.
    pub(crate) fn old(&mut self, ns: &Arc<Ns>) -> &mut Old {
        &mut self.old.entry(ns.home.id).or_insert_with(|| Box::new((Arc::clone(ns), Old::default()))).1
    }

    /// After all locks are free: leaves the replaced tables to the readers' domains, which begin
    /// grace periods for them.
    pub(crate) fn publish(self) {
        for (ns, old) in self.old.into_values().map(|left| *left) {
            old.leave_to(&ns.home.domain);
        }
    }
}

/// The locks of several namespaces, taken in the order of their numbers.
pub(crate) struct AllLocked<'a>(Vec<(u64, Locked<'a>)>);

impl<'a> AllLocked<'a> {
    pub(crate) fn lock(namespaces: &'a BTreeMap<u64, Arc<Ns>>) -> Self {
        Self(namespaces.iter().map(|(&id, ns)| (id, ns.home.lock.lock())).collect())
    }

    pub(crate) fn of(&self, ns: &Ns) -> &Locked<'a> {
        let at = self.0.binary_search_by_key(&ns.home.id, |(id, _)| *id).expect("all that change are locked");
        &self.0[at].1
    }
}

/// A mount that left its namespace, and whose reference the unmount has not put yet.
#[derive(Debug)]
pub(crate) struct Departure {
    pub(crate) mount: Arc<Mount>,
    pub(crate) ns: Arc<Ns>,
    pub(crate) found: Departed,
    /// Taken after the mount had left, with a full barrier: when this grace period has passed, no
    /// section is left that could have found it.
    pub(crate) stamp: Cookie,
}
