//! The attached volumes, of which there may be thousands: found by id, by number, and by the path
//! where they were last seen.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;

use super::types::{Attached, AttachedIndex, Key};
use crate::control::volume_id::VolumeId;

fn key(path: &Path) -> Key {
    let bytes = path.as_os_str().as_bytes();
    bytes.strip_suffix(b"/").unwrap_or(bytes).iter().map(|&b| if b == b'/' { 0 } else { b }).collect()
}

/// The values at `dir` or below it.
fn below<'m, T>(map: &'m BTreeMap<Key, T>, dir: &Path) -> impl Iterator<Item = &'m T> + use<'m, T> {
    let dir = key(dir);
    let all = map.range(dir.clone()..);
    let is_there =
        move |at: &[u8]| at.strip_prefix(&*dir).is_some_and(|rest| rest.first().is_none_or(|&b| b == 0));
    all.take_while(move |(at, _)| is_there(at)).map(|(_, one)| one)
}

impl AttachedIndex {
    /// Adds a volume that is about to be attached.
    pub(super) fn add(&mut self, one: &Arc<Attached>) {
        self.by_id.insert(one.id.clone(), Arc::clone(one));
        self.by_path.entry(key(&one.known_path())).or_default().push(Arc::clone(one));
    }

    /// It has a number now, unless it has ended already.
    pub(super) fn number(&mut self, one: &Arc<Attached>) {
        if let Some(number) = one.number().filter(|_| self.by_id.contains_key(&one.id)) {
            self.by_number.insert(number, Arc::clone(one));
        }
    }

    pub(super) fn remove(&mut self, one: &Attached) {
        self.by_id.remove(&one.id);
        if let Some(number) = one.number() {
            self.by_number.remove(&number);
        }
        self.leave_path(one);
    }

    fn leave_path(&mut self, one: &Attached) {
        let path = key(&one.known_path());
        if let Some(here) = self.by_path.get_mut(&path) {
            here.retain(|other| other.id != one.id);
            if here.is_empty() {
                self.by_path.remove(&path);
            }
        }
    }

    /// A volume moves: `change` updates the volume itself.
    pub(super) fn change_path(&mut self, one: &Attached, change: impl FnOnce()) {
        self.leave_path(one);
        change();
        // A volume that has ended is not found any more.
        if let Some(one) = self.by_id.get(&one.id).map(Arc::clone) {
            self.by_path.entry(key(&one.known_path())).or_default().push(one);
        }
    }

    /// All, in the order of their ids.
    pub(super) fn all(&self) -> Vec<Arc<Attached>> {
        self.by_id.values().map(Arc::clone).collect()
    }

    /// The volumes whose ids come after `after`, in their order: `max` at most.
    pub(super) fn after(&self, after: Option<&VolumeId>, max: usize) -> Vec<Arc<Attached>> {
        let after = (after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded);
        self.by_id.range::<VolumeId, _>(after).take(max).map(|(_, one)| Arc::clone(one)).collect()
    }

    pub(super) fn of_id(&self, id: &VolumeId) -> Option<Arc<Attached>> {
        self.by_id.get(id).map(Arc::clone)
    }

    pub(super) fn of_number(&self, number: u64) -> Option<Arc<Attached>> {
        self.by_number.get(&number).map(Arc::clone)
    }

    /// The newest of the volumes that were last seen at a path.
    pub(super) fn known_at(&self, path: &Path) -> Option<Arc<Attached>> {
        self.by_path.get(&key(path))?.last().map(Arc::clone)
    }

    /// Those that were seen at a path, or below it, last.
    pub(super) fn known_below(&self, path: &Path) -> Vec<Arc<Attached>> {
        below(&self.by_path, path).flatten().map(Arc::clone).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_below_a_directory_comes_next_to_it() {
        let below = |dir: &str, all: &[&str]| {
            let all: BTreeMap<Key, &str> = all.iter().map(|path| (key(Path::new(path)), *path)).collect();
            below(&all, Path::new(dir)).copied().collect::<Vec<_>>().join(" ")
        };
        let all = ["/mnt/a/b", "/mnt/a", "/mnt/a-b", "/mnt/a.b/c", "/mnt/ab", "/mnt/a/b/c", "/mnt", "/srv"];
        assert_eq!(below("/mnt/a", &all), "/mnt/a /mnt/a/b /mnt/a/b/c");
        assert_eq!(below("/mnt/a/", &all), "/mnt/a /mnt/a/b /mnt/a/b/c");
        assert_eq!(below("/mnt/a/b/c/d", &all), "");
        assert_eq!(below("/", &all).split(' ').count(), all.len());
        assert_eq!(below("/mnt/x", &all), "");
    }
}
