//! What a worker's directory has to hold: now, and, after a kill, at least.
//!
//! A commit has all names that were changed before it, and the data of the files that were synced
//! or written back: so after a kill each name leads to what it led to at the last sync of anything,
//! or to something that it has led to since; and each unit of a file is as it was when that file was
//! synced, or as a write since has made it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::units::{Stamp, UNIT};

/// A file, whatever its names are.
pub(super) type FileId = u64;

/// What a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Node {
    Dir,
    File(FileId),
}

/// A file's units, each by the write that made it.
pub(super) type Units = Vec<Stamp>;

/// A change of a file that no sync has covered yet.
#[derive(Debug, Clone)]
enum Change {
    Written { at: usize, stamps: Units },
    Cut { len: usize },
}

/// A file: as it is, as it was synced, and what was done since.
#[derive(Debug, Clone, Default)]
pub(super) struct File {
    pub(super) units: Units,
    synced: Units,
    since: Vec<Change>,
}

impl File {
    /// A write of these units begins.
    pub(super) fn begin_write(&mut self, at: usize, stamps: &[Stamp]) {
        self.since.push(Change::Written { at, stamps: stamps.to_vec() });
    }

    /// It has ended.
    pub(super) fn end_write(&mut self, at: usize, stamps: &[Stamp]) {
        let end = at + stamps.len();
        self.units.resize(self.units.len().max(end), 0);
        self.units[at..end].copy_from_slice(stamps);
    }

    pub(super) fn begin_cut(&mut self, len: usize) {
        self.since.push(Change::Cut { len });
    }

    pub(super) fn end_cut(&mut self, len: usize) {
        self.units.resize(len, 0);
    }

    pub(super) fn synced(&mut self) {
        self.synced.clone_from(&self.units);
        self.since.clear();
    }

    /// The least and the most bytes that it may have after a kill.
    pub(super) fn lengths(&self) -> (usize, usize) {
        let (mut len, mut least, mut most) = (self.synced.len(), self.synced.len(), self.synced.len());
        for change in &self.since {
            len = match change {
                Change::Written { at, stamps } => len.max(at + stamps.len()),
                Change::Cut { len } => *len,
            };
            (least, most) = (least.min(len), most.max(len));
        }
        (least * UNIT, most * UNIT)
    }

    /// The writes of which a unit may be after a kill.
    pub(super) fn allowed(&self, place: usize) -> Vec<Stamp> {
        let mut allowed = vec![self.synced.get(place).copied().unwrap_or(0)];
        for change in &self.since {
            match change {
                Change::Written { at, stamps } => {
                    // What is behind the end, and was not written, is zeros.
                    allowed.extend(place.checked_sub(*at).and_then(|place| stamps.get(place)));
                }
                Change::Cut { len } if *len <= place => allowed.push(0),
                Change::Cut { .. } => {}
            }
        }
        allowed
    }
}

/// All of a directory at a moment: its names, and the files by their numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct Image {
    pub(super) names: BTreeMap<String, Node>,
    pub(super) files: HashMap<FileId, Units>,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) names: BTreeMap<String, Node>,
    pub(super) files: HashMap<FileId, File>,
    synced_names: BTreeMap<String, Node>,
    /// What each name was to lead to since.
    renamed: Vec<(String, Option<Node>)>,
    next: FileId,
}

impl Model {
    /// A file that has no name yet.
    pub(super) fn new_file(&mut self) -> FileId {
        self.next += 1;
        self.files.insert(self.next, File::default());
        self.next
    }

    /// The file must be known.
    pub(super) fn file(&mut self, id: FileId) -> &mut File {
        self.files.entry(id).or_default()
    }

    /// A name is about to lead there, or nowhere.
    pub(super) fn begin_name(&mut self, name: &str, to: Option<Node>) {
        self.renamed.push((name.to_owned(), to));
    }

    pub(super) fn end_name(&mut self, name: &str, to: Option<Node>) {
        match to {
            Some(node) => {
                self.names.insert(name.to_owned(), node);
            }
            None => {
                self.names.remove(name);
            }
        }
    }

    /// A sync of this file is done: with it all names are durable.
    pub(super) fn synced(&mut self, id: FileId) {
        self.file(id).synced();
        self.names_are_synced();
    }

    /// A sync of everything is done.
    pub(super) fn all_synced(&mut self) {
        self.files.values_mut().for_each(File::synced);
        self.names_are_synced();
    }

    fn names_are_synced(&mut self) {
        self.synced_names.clone_from(&self.names);
        self.renamed.clear();
        let named: BTreeSet<FileId> = self.names.values().filter_map(file_of).collect();
        self.files.retain(|id, _| named.contains(id));
    }

    /// What a name may lead to after a kill.
    pub(super) fn may_be(&self, name: &str) -> Vec<Option<Node>> {
        let mut all = vec![self.synced_names.get(name).copied()];
        all.extend(self.renamed.iter().filter(|(renamed, _)| renamed == name).map(|(_, to)| *to));
        all
    }

    /// All names that there may be after a kill.
    pub(super) fn names_ever(&self) -> BTreeSet<String> {
        self.synced_names.keys().chain(self.renamed.iter().map(|(name, _)| name)).cloned().collect()
    }

    /// From now on what was found is what there has to be, and all of it is durable.
    pub(super) fn adopt(&mut self, found: Image) {
        self.names = found.names;
        self.files =
            found.files.into_iter().map(|(id, units)| (id, File { units, ..File::default() })).collect();
        self.next = self.files.keys().copied().max().unwrap_or(0);
        self.all_synced();
    }

    /// As it is now.
    pub(super) fn image(&self) -> Image {
        let named: BTreeSet<FileId> = self.names.values().filter_map(file_of).collect();
        let units = |id: &FileId| self.files.get(id).map(|file| file.units.clone()).unwrap_or_default();
        Image { names: self.names.clone(), files: named.iter().map(|id| (*id, units(id))).collect() }
    }

    /// Bytes of the files that have names, each counted once.
    pub(super) fn bytes(&self) -> u64 {
        let named: BTreeSet<FileId> = self.names.values().filter_map(file_of).collect();
        let len = |id: &FileId| self.files.get(id).map_or(0, |file| file.units.len() * UNIT);
        named.iter().map(|id| len(id) as u64).sum()
    }
}

fn file_of(node: &Node) -> Option<FileId> {
    match node {
        Node::File(id) => Some(*id),
        Node::Dir => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_kill_a_file_is_as_it_was_synced_or_as_something_since_has_made_it() {
        let mut file = File::default();
        file.begin_write(0, &[1, 1, 1]);
        file.end_write(0, &[1, 1, 1]);
        assert_eq!((file.lengths(), file.allowed(0)), ((0, 3 * UNIT), vec![0, 1]));
        file.synced();
        assert_eq!((file.lengths(), file.allowed(0)), ((3 * UNIT, 3 * UNIT), vec![1]));
        file.begin_write(2, &[2, 2]);
        file.begin_cut(1);
        assert_eq!(file.lengths(), (UNIT, 4 * UNIT));
        assert_eq!(
            (file.allowed(0), file.allowed(2), file.allowed(3)),
            (vec![1], vec![1, 2, 0], vec![0, 2, 0])
        );
        assert_eq!(file.units, [1, 1, 1], "neither has ended");
        file.end_write(2, &[2, 2]);
        assert_eq!(file.units, [1, 1, 2, 2]);
        file.end_cut(1);
        assert_eq!(file.units, [1]);
    }

    #[test]
    fn a_sync_makes_all_names_durable_and_forgets_what_has_none() {
        let mut model = Model::default();
        let (a, b) = (model.new_file(), model.new_file());
        for (name, id) in [("a", a), ("b", b)] {
            model.begin_name(name, Some(Node::File(id)));
            model.end_name(name, Some(Node::File(id)));
        }
        assert_eq!(model.may_be("a"), [None, Some(Node::File(a))]);
        model.synced(a);
        assert_eq!(model.may_be("a"), [Some(Node::File(a))]);
        model.begin_name("b", None);
        assert_eq!(model.may_be("b"), [Some(Node::File(b)), None]);
        model.end_name("b", None);
        assert_eq!((model.names.len(), model.files.len()), (1, 2), "b may be there after a kill");
        model.all_synced();
        assert_eq!((model.files.len(), model.names_ever().len()), (1, 1));
    }
}
