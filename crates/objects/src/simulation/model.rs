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
        let mut bytes = self.version.to_le_bytes().repeat(self.len.div_ceil(4));
        bytes.truncate(self.len);
        bytes
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

    /// As [`Self::of`] shows it.
    fn shown(self) -> Self {
        let kept = u32::MAX.checked_shl(8 * u32::try_from(self.len).unwrap_or(4)).unwrap_or(0);
        Self { version: self.version & !kept, len: self.len }
    }
}

/// A file: the versions of its content that were written, in order.
#[derive(Debug, Clone, Default)]
struct File {
    versions: Vec<Content>,
    /// How many of them each has acknowledged.
    acknowledged: Acknowledged,
}

/// The names after each step.
type Names = BTreeMap<String, usize>;

/// The model of one holder.
#[derive(Debug, Default)]
pub(super) struct Model {
    files: Vec<File>,
    /// The names after each step; the first is what the holder found.
    history: Vec<Names>,
    /// Which of them each has acknowledged last.
    acknowledged: Acknowledged,
    version: u32,
}

/// A moment.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    step: usize,
    /// How many versions each file had.
    versions: Vec<usize>,
}

/// A moment of a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileMark {
    step: usize,
    file: usize,
    versions: usize,
}

/// What has a change when the host acknowledges it. Each has all that the ones before it have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    /// It outlives the host.
    Bucket,
    /// The journal's disk: it outlives a loss of power.
    Host,
    /// The journal's files: it outlives the process.
    Files,
}

/// How far each has acknowledged.
#[derive(Debug, Clone, Copy, Default)]
struct Acknowledged([usize; 3]);

impl Acknowledged {
    const fn new(all: usize) -> Self {
        Self([all; 3])
    }

    fn raise(&mut self, by: By, to: usize) {
        self.0[by as usize..].iter_mut().for_each(|at| *at = to.max(*at));
    }

    const fn by(self, by: By) -> usize {
        self.0[by as usize]
    }
}

/// What a volume shows: names, in order, and what their files hold.
pub(super) type Seen = Vec<(String, Content)>;

/// The versions of files' contents that were seen last.
pub(super) type Floor = BTreeMap<usize, usize>;

impl Model {
    /// That of a holder which found this; it numbers its contents from `version` on.
    pub(super) fn new(seen: &Seen, version: u32) -> Self {
        let file = |content: &Content| File { versions: vec![*content], acknowledged: Acknowledged::new(1) };
        let names = seen.iter().enumerate().map(|(file, (name, _))| (name.clone(), file)).collect();
        let files = seen.iter().map(|(_, content)| file(content)).collect();
        Self { files, history: vec![names], acknowledged: Acknowledged::default(), version }
    }

    fn names(&self) -> Names {
        self.history.last().cloned().unwrap_or_default()
    }

    fn push(&mut self, names: Names) {
        self.history.push(names);
    }

    pub(super) fn begin_create(&mut self, name: &str) {
        self.files.push(File { versions: vec![Content::EMPTY], ..File::default() });
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

    /// A write over all that a file holds; `None`: it holds nothing.
    pub(super) fn begin_overwrite(&mut self, name: &str) -> Option<Content> {
        let file = self.names()[name];
        let versions = &mut self.files[file].versions;
        let len = versions.last().map(|content| content.len).filter(|len| *len > 0)?;
        self.version += 1;
        let content = Content { version: self.version, len };
        versions.push(content);
        Some(content)
    }

    /// What a file holds, if it is there and holds something.
    pub(super) fn content(&self, name: &str) -> Option<Content> {
        let file = *self.names().get(name)?;
        self.files[file].versions.last().copied().filter(|content| content.len > 0)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.names().contains_key(name)
    }

    pub(super) fn mark(&self) -> Mark {
        let versions = self.files.iter().map(|file| file.versions.len()).collect();
        Mark { step: self.history.len().saturating_sub(1), versions }
    }

    pub(super) fn mark_file(&self, name: &str) -> FileMark {
        let file = self.names()[name];
        FileMark { step: self.mark().step, file, versions: self.files[file].versions.len() }
    }

    pub(super) fn acknowledged_all(&mut self, mark: &Mark, by: By) {
        self.acknowledged.raise(by, mark.step);
        for (file, versions) in self.files.iter_mut().zip(&mark.versions) {
            file.acknowledged.raise(by, *versions);
        }
    }

    /// A file's sync covers its data, and all names before it.
    pub(super) fn acknowledged_file(&mut self, mark: FileMark, by: By) {
        self.acknowledged.raise(by, mark.step);
        self.files[mark.file].acknowledged.raise(by, mark.versions);
    }

    /// What the holder itself sees.
    pub(super) fn now(&self) -> Seen {
        let names = self.names();
        let content = |file: &usize| self.files[*file].versions.last().map_or(Content::EMPTY, |c| c.shown());
        names.iter().map(|(name, file)| (name.clone(), content(file))).collect()
    }

    /// The first step from `from` on after which the volume may show this, if versions of contents
    /// are those of `floor` or later; those are then raised.
    pub(super) fn first_that_shows(&self, seen: &Seen, from: usize, floor: &mut Floor) -> Option<usize> {
        (from..self.history.len()).find(|step| {
            let names = &self.history[*step];
            if names.len() != seen.len() {
                return false;
            }
            let mut raised = floor.clone();
            let fits = seen.iter().all(|(name, content)| {
                let Some(file) = names.get(name) else { return false };
                let first = raised.get(file).copied().unwrap_or(0);
                let versions = self.files[*file].versions.iter().enumerate().skip(first);
                let found = versions.into_iter().find(|(_, version)| version.shown() == *content);
                found.map(|(version, _)| raised.insert(*file, version)).is_some()
            });
            if fits {
                *floor = raised;
            }
            fits
        })
    }

    /// The next holder has found this: it must be a prefix that holds what was acknowledged.
    #[track_caller]
    pub(super) fn assert_left(&self, seen: &Seen, by: By) {
        let fits = |names: &Names| {
            names.len() == seen.len()
                && seen.iter().all(|(name, content)| {
                    names.get(name).is_some_and(|file| self.files[*file].may_hold(*content, by))
                })
        };
        let possible = &self.history[self.acknowledged.by(by)..];
        let files = &self.files;
        assert!(
            possible.iter().any(fits),
            "what the next holder found is no prefix with all that was acknowledged: {seen:?} is none of \
             {possible:?} with {files:?}"
        );
    }
}

impl File {
    /// Whether a crash may leave this content: that of the last sync, or a later one.
    fn may_hold(&self, seen: Content, by: By) -> bool {
        self.versions[self.acknowledged.by(by).saturating_sub(1)..]
            .iter()
            .any(|version| version.shown() == seen)
    }
}
