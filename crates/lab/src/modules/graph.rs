//! Which module of a crate uses which, and the circles among them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::paths::{ModPath, Named, Source};

/// More re-exports of re-exports than this are a circle of their own.
const REEXPORTS_MAX: usize = 16;

/// The files of a crate, and which of them each uses.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) uses: BTreeMap<PathBuf, BTreeSet<PathBuf>>,
}

impl Graph {
    /// Finds out where the paths of a crate's sources lead. A re-export is a use of the module that
    /// the item comes from, by the module that names it; not by the one that re-exports it.
    pub(super) fn of(source: &Source) -> Self {
        let mut graph = Self::default();
        for file in source.files.values() {
            graph.uses.entry(file.clone()).or_default();
        }
        for named in &source.named {
            let Some(used) = module_of(source, named, REEXPORTS_MAX) else { continue };
            let (user, used) = (&source.files[&named.scope], &source.files[&used]);
            if user != used
                && let Some(uses) = graph.uses.get_mut(user)
            {
                uses.insert(used.clone());
            }
        }
        graph
    }

    /// The circles: for each, all modules of which each is used, by way of others, by each.
    pub(super) fn circles(&self) -> Vec<BTreeSet<&PathBuf>> {
        let reached: BTreeMap<&PathBuf, BTreeSet<&PathBuf>> =
            self.uses.keys().map(|file| (file, self.reached_from(file))).collect();
        let mut circles: Vec<BTreeSet<&PathBuf>> = Vec::new();
        for (file, others) in &reached {
            if !others.contains(file) || circles.iter().any(|circle| circle.contains(file)) {
                continue;
            }
            circles.push(others.iter().copied().filter(|other| reached[other].contains(file)).collect());
        }
        circles
    }

    fn reached_from(&self, file: &PathBuf) -> BTreeSet<&PathBuf> {
        let mut reached = BTreeSet::new();
        let mut next: Vec<&PathBuf> = self.uses[file].iter().collect();
        while let Some(one) = next.pop() {
            if reached.insert(one) {
                next.extend(&self.uses[one]);
            }
        }
        reached
    }
}

/// The module in which what a path names is defined; none of another crate.
fn module_of(source: &Source, named: &Named, reexports_left: usize) -> Option<ModPath> {
    let mut segments = named.segments.iter().map(String::as_str).peekable();
    let mut at = named.scope.clone();
    match *segments.peek()? {
        "crate" => {
            at = Vec::new();
            segments.next();
        }
        "self" => {
            segments.next();
        }
        "super" => {
            while segments.next_if_eq(&"super").is_some() {
                at.pop()?;
            }
        }
        first => {
            // An item of this scope, or another crate's.
            let child = [at.as_slice(), &[first.to_owned()]].concat();
            if !source.files.contains_key(&child) {
                return None;
            }
        }
    }
    let mut rest: Vec<&str> = segments.collect();
    while let Some(first) = rest.first() {
        let child = [at.as_slice(), &[(*first).to_owned()]].concat();
        if source.files.contains_key(&child) {
            at = child;
            rest.remove(0);
            continue;
        }
        return Some(reexported(source, &at, &rest, reexports_left).unwrap_or(at));
    }
    Some(at)
}

/// Where a name comes from that a module re-exports.
fn reexported(source: &Source, at: &ModPath, rest: &[&str], reexports_left: usize) -> Option<ModPath> {
    let left = reexports_left.checked_sub(1)?;
    let follow = |named: &Named, rest: &[&str]| {
        let segments = named.segments.iter().cloned().chain(rest.iter().map(|&one| one.to_owned()));
        module_of(source, &Named { scope: named.scope.clone(), segments: segments.collect() }, left)
    };
    let all = source.reexports.get(at)?;
    all.iter().find(|(name, _)| name == rest[0]).and_then(|(_, named)| follow(named, &rest[1..]))
}
