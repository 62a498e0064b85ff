//! The volumes that a volume was cloned from: it begins as a snapshot, and reads what that needs
//! where it is.
//!
//! By its name alone it is known whose an object is. A clone's first epoch lies behind its parent's
//! at the time of the snapshot, and its log behind the parent's: segments and objects of the log
//! with smaller numbers are the parent's, or its parent's. Tables have random names: those of the
//! manifest that a clone begins with are not its own, and of those the ones that the parent began
//! with are not the parent's.
//!
//! Nothing of another volume is written or removed here: names lead to parents for reading alone.

use std::collections::{HashMap, HashSet};

use object_store::path::Path;
use serde::{Deserialize, Serialize};
use store::Result;

use crate::object_names::{engine_path, number_of, segment_of};
use crate::rows::Object;
use crate::uuid::Uuid;

/// The most generations of clones.
pub(crate) const PARENTS_MAX: usize = 16;

/// A volume that another was cloned from, as the clone's `format` has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parent {
    /// Where it is in the bucket.
    pub(crate) prefix: String,
    /// Its identity.
    pub(crate) uuid: Uuid,
    /// The manifest of the snapshot, which is the clone's first.
    pub(crate) manifest: u64,
    /// Segments of this epoch and earlier ones are not the clone's.
    pub(crate) epoch: u64,
    /// Objects of the log up to this number are not the clone's.
    pub(crate) log: u64,
}

impl Parent {
    fn has(&self, object: Object) -> bool {
        match object {
            Object::Log(number) => number <= self.log,
            Object::Segment(epoch, _) => epoch <= self.epoch,
        }
    }
}

/// Whether a volume may have these parents, the nearest first.
pub(crate) fn check(parents: &[Parent]) -> Result<(), &'static str> {
    if parents.len() > PARENTS_MAX {
        return Err("it has more than 16 generations of parents");
    }
    if parents.iter().any(|parent| Path::parse(&parent.prefix).is_err()) {
        return Err("the prefix of a parent is none");
    }
    let is_behind = |pair: &[Parent]| pair[0].epoch > pair[1].epoch && pair[0].log > pair[1].log;
    if !parents.windows(2).all(is_behind) {
        return Err("its parents are not in their order");
    }
    Ok(())
}

/// The parents of one volume, the nearest first; mostly none.
#[derive(Debug, Default)]
pub(crate) struct Parents {
    all: Vec<(Path, Parent)>,
    /// Where tables are that the volume began with, by their names.
    tables: HashMap<String, Path>,
}

impl Parents {
    pub(crate) fn new(parents: &[Parent]) -> Self {
        let all = parents.iter().map(|parent| (Path::from(parent.prefix.as_str()), parent.clone()));
        Self { all: all.collect(), tables: HashMap::new() }
    }

    /// As [`new`](Self::new), with the tables that each volume began with, the clone's own first.
    pub(crate) fn with_tables(parents: &[Parent], begun_with: &[HashSet<String>]) -> Self {
        let mut this = Self::new(parents);
        for table in begun_with.first().into_iter().flatten() {
            let generations = begun_with.iter().take_while(|tables| tables.contains(table)).count();
            let (place, _) = &this.all[generations - 1];
            this.tables.insert(table.clone(), engine_path(place).join("compacted").join(table.as_str()));
        }
        this
    }

    /// The manifest that the volume began with; 0: it is no clone.
    pub(crate) fn manifest(&self) -> u64 {
        self.all.first().map_or(0, |(_, parent)| parent.manifest)
    }

    /// The last object of the log that is not the volume's own; 0: all are.
    pub(crate) fn log(&self) -> u64 {
        self.all.first().map_or(0, |(_, parent)| parent.log)
    }

    /// Whether an object is a parent's.
    pub(crate) fn have(&self, object: Object) -> bool {
        self.all.first().is_some_and(|(_, parent)| parent.has(object))
    }

    /// Where they are.
    pub(crate) fn places(&self) -> impl Iterator<Item = &Path> {
        self.all.iter().map(|(place, _)| place)
    }

    /// Where the object with this name is, if it is a parent's.
    pub(crate) fn place_of(&self, name: &str) -> Option<&Path> {
        if self.all.is_empty() {
            return None;
        }
        let number = name.strip_prefix("log/").and_then(number_of).map(Object::Log);
        let object = number.or_else(|| segment_of(name))?;
        // The farthest that can have it: a parent's own have greater numbers than its parent's.
        self.all.iter().take_while(|(_, parent)| parent.has(object)).last().map(|(place, _)| place)
    }

    /// Where the engine's object at `location` is read, if it is a table that the volume at `root`
    /// began with: to the engine it seems to be the volume's own.
    pub(crate) fn table_at(&self, root: &Path, location: &Path) -> Option<&Path> {
        let table = self.tables.get(location.filename()?)?;
        location.prefix_matches(&engine_path(root).join("compacted")).then_some(table)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parent(prefix: &str, (epoch, log): (u64, u64)) -> Parent {
        Parent { prefix: prefix.to_owned(), uuid: Uuid::default(), manifest: 1, epoch, log }
    }

    #[test]
    fn an_object_s_name_says_whose_it_is() {
        let all = [parent("b", (7, 700)), parent("a", (3, 300))];
        check(&all).unwrap();
        let parents = Parents::new(&all);
        let place =
            |object| parents.place_of(&crate::object_names::object_name(object)).map(ToString::to_string);
        for (object, expected) in [
            (Object::Segment(1, 9), Some("a")),
            (Object::Segment(3, 9), Some("a")),
            (Object::Segment(4, 0), Some("b")),
            (Object::Segment(7, 0), Some("b")),
            (Object::Segment(8, 0), None),
            (Object::Log(300), Some("a")),
            (Object::Log(301), Some("b")),
            (Object::Log(701), None),
        ] {
            assert_eq!(place(object).as_deref(), expected, "{object:?}");
        }
        for other in ["format", "lease", "meta/manifest/1", "reader/1/2", "seg/../x", "log/x"] {
            assert_eq!(parents.place_of(other), None);
        }
        assert!(Parents::default().place_of("seg/00/0000000000000001/0000000000000000").is_none());
    }

    #[test]
    fn parents_that_cannot_be_are_refused() {
        assert!(check(&[parent("b", (3, 700)), parent("a", (3, 300))]).is_err());
        assert!(check(&[parent("b", (7, 300)), parent("a", (3, 300))]).is_err());
        assert!(check(&[parent("a//b", (1, 1))]).is_err());
        let many: Vec<_> = (0..17).rev().map(|n| parent("a", (n, n))).collect();
        assert!(check(&many).is_err() && check(&many[1..]).is_ok());
    }
}
