//! What the volume may hold after a crash.

use std::collections::BTreeMap;

/// What a file holds: a version of it, whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    version: u32,
    len: usize,
}

impl Content {
    const EMPTY: Self = Self { version: 0, len: 0 };

    pub(super) fn bytes(self) -> Vec<u8> {
        self.version.to_le_bytes().iter().copied().cycle().take(self.len).collect()
    }

    /// The version that these bytes are. A file of one byte says the lowest eight bits only.
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut version = [0; 4];
        for (to, from) in version.iter_mut().zip(bytes) {
            *to = *from;
        }
        let content = Self { version: u32::from_le_bytes(version), len: bytes.len() };
        assert_eq!(content.bytes(), bytes, "the content is one version, whole");
        content
    }

    fn is_seen_as(self, seen: Self) -> bool {
        Self::of(&self.bytes()) == seen
    }
}

/// A file: the versions of its content that were written, in order.
#[derive(Debug, Clone, Default)]
struct File {
    versions: Vec<Content>,
    /// How many of them were acknowledged by a sync.
    synced: usize,
}

/// The names after each step.
type Names = BTreeMap<String, usize>;

/// The model.
#[derive(Debug, Default)]
pub(super) struct Model {
    files: Vec<File>,
    /// The names after each step; the first is what a life began with.
    history: Vec<Names>,
    /// Which of them was acknowledged last.
    acknowledged: usize,
    version: u32,
}

/// A moment.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    step: usize,
}

/// A moment of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileMark {
    step: usize,
    file: usize,
    versions: usize,
}

impl Model {
    fn names(&self) -> Names {
        self.history.last().cloned().unwrap_or_default()
    }

    fn push(&mut self, names: Names) {
        if self.history.is_empty() {
            self.history.push(Names::new());
        }
        self.history.push(names);
    }

    pub(super) fn begin_create(&mut self, name: &str) {
        self.files.push(File { versions: vec![Content::EMPTY], synced: 0 });
        let mut names = self.names();
        names.insert(name.to_owned(), self.files.len() - 1);
        self.push(names);
    }

    pub(super) fn begin_unlink(&mut self, name: &str) {
        let mut names = self.names();
        names.remove(name);
        self.push(names);
    }

    pub(super) fn begin_rename(&mut self, from: &str, to: &str) {
        let mut names = self.names();
        if let Some(file) = names.remove(from) {
            names.insert(to.to_owned(), file);
        }
        self.push(names);
    }

    /// A write is a truncation, then the data: the file may be empty in between.
    pub(super) fn begin_write(&mut self, name: &str, len: usize) -> Content {
        self.version += 1;
        let content = Content { version: self.version, len };
        let file = self.names()[name];
        self.files[file].versions.extend([Content::EMPTY, content]);
        content
    }

    pub(super) fn mark(&self) -> Mark {
        Mark { step: self.history.len().saturating_sub(1) }
    }

    pub(super) fn mark_file(&self, name: &str) -> FileMark {
        let file = self.names()[name];
        FileMark { step: self.mark().step, file, versions: self.files[file].versions.len() }
    }

    pub(super) fn acknowledged_all(&mut self, mark: Mark) {
        self.acknowledged = self.acknowledged.max(mark.step);
        for file in &mut self.files {
            file.synced = file.versions.len();
        }
    }

    /// A file's sync covers its data, and all names before it.
    pub(super) fn acknowledged_file(&mut self, mark: FileMark) {
        self.acknowledged = self.acknowledged.max(mark.step);
        let file = &mut self.files[mark.file];
        file.synced = file.synced.max(mark.versions);
    }

    /// The next host has found this: it must be a prefix that holds what was acknowledged. What it
    /// found is what holds from now on.
    pub(super) fn recovered(&mut self, seen: &[(String, Content)]) {
        if self.history.is_empty() {
            self.history.push(Names::new());
        }
        let fits = |names: &&Names| {
            names.len() == seen.len()
                && seen.iter().all(|(name, content)| {
                    names.get(name).is_some_and(|file| self.files[*file].may_hold(*content))
                })
        };
        let possible = &self.history[self.acknowledged..];
        let found = possible
            .iter()
            .find(fits)
            .cloned()
            .unwrap_or_else(|| panic!("{seen:?} is none of {possible:#?} with {:#?}", self.files));
        for (name, content) in seen {
            let file = &mut self.files[found[name]];
            let version =
                file.versions[file.synced.saturating_sub(1)..].iter().rposition(|v| v.is_seen_as(*content));
            let kept = file.synced.saturating_sub(1) + version.unwrap_or(0);
            file.versions.truncate(kept + 1);
            file.synced = file.versions.len();
        }
        self.history = vec![found];
        self.acknowledged = 0;
    }
}

impl File {
    /// Whether a crash may leave this content: that of the last sync, or a later one.
    fn may_hold(&self, seen: Content) -> bool {
        self.versions[self.synced.saturating_sub(1)..].iter().any(|version| version.is_seen_as(seen))
    }
}
