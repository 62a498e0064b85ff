//! What must be there after a crash, and what may be.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::plan::How;
use super::{Plan, Step, Word};

/// Checks the files in `dir` (the store's, not the mount's) after `done` acknowledged steps of
/// `plan`; returns everything that is wrong.
///
/// A directory that is not there holds nothing.
///
/// # Panics
/// When the directory cannot be read.
#[must_use]
pub fn check(dir: &Path, plan: Plan, done: usize) -> Vec<String> {
    let round = plan.round;
    let mut expected = Expected::default();
    let mut steps = plan;
    for step in steps.by_ref().take(done) {
        expected.acknowledge(&step);
    }
    let before = expected.names.clone();
    if let Some(step) = steps.next() {
        expected.under_way(&step);
    }
    let mut wrong = Vec::new();
    let mut found = BTreeSet::new();
    let entries = match std::fs::read_dir(dir) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        read => Some(read.unwrap_or_else(|e| panic!("readdir {}: {e}", dir.display()))),
    };
    for entry in entries.into_iter().flatten() {
        let entry = entry.expect("readdir");
        let name = entry.file_name().to_string_lossy().into_owned();
        let data = std::fs::read(entry.path()).unwrap_or_else(|e| panic!("read {name}: {e}"));
        let candidates: Vec<u64> = expected.candidates(&name, &before);
        if candidates.is_empty() {
            wrong.push(format!("{name}: nobody made this, or it was removed ({} bytes)", data.len()));
        }
        let complaints: Vec<Vec<String>> =
            candidates.iter().map(|file| expected.files[file].complaints(round, *file, &data)).collect();
        if !complaints.is_empty() && complaints.iter().all(|c| !c.is_empty()) {
            for complaint in complaints.into_iter().flatten().take(8) {
                wrong.push(format!("{name}: {complaint}"));
            }
        }
        found.insert(name);
    }
    for (name, entry) in &before {
        if entry.is_durable && !expected.may_be_gone.contains(name) && !found.contains(name) {
            wrong.push(format!("{name}: was synced and is gone"));
        }
    }
    wrong
}

#[derive(Debug, Clone)]
struct Entry {
    file: u64,
    is_durable: bool,
}

/// What is known of one file's words.
#[derive(Debug, Clone, Default)]
struct Content {
    words: Vec<Possible>,
    /// Words now, as the writer sees it.
    size: u64,
    /// The fewest words that the file may have.
    size_least: u64,
    /// The most.
    size_most: u64,
}

#[derive(Debug, Clone, Default)]
struct Possible {
    /// The generation that was synced, 0 for none.
    synced: u64,
    /// Later ones, 0 for a cut.
    later: Vec<u64>,
}

#[derive(Debug, Default)]
struct Expected {
    names: BTreeMap<String, Entry>,
    files: BTreeMap<u64, Content>,
    /// Names that the step under way takes away, or gives to another file.
    may_be_gone: BTreeSet<String>,
    may_be: Vec<(String, u64)>,
}

impl Expected {
    fn acknowledge(&mut self, step: &Step) {
        match *step {
            Step::Create { file, name } => {
                self.files.insert(file, Content::default());
                self.names.insert(path(name), Entry { file, is_durable: false });
            }
            Step::Write { name, place, words, generation, how } => {
                let content = self.content(name);
                content.write(place, words, generation);
                if how == How::Mapped || how == How::Synchronous {
                    content.sync_range(place, words);
                }
            }
            Step::Fsync { name, .. } => {
                self.content(name).sync();
                self.entry(name).is_durable = true;
            }
            Step::Sync => {
                self.files.values_mut().for_each(Content::sync);
                self.names.values_mut().for_each(|entry| entry.is_durable = true);
            }
            Step::Replace { file, name, words, generation } => {
                self.files.insert(file, Content::whole(words, generation));
                self.names.insert(path(name), Entry { file, is_durable: true });
                self.dir_synced();
            }
            Step::Unlink { name } => {
                self.names.remove(&path(name));
                self.dir_synced();
            }
            Step::Truncate { name, words } => {
                let content = self.content(name);
                content.cut(words);
                content.sync();
                self.entry(name).is_durable = true;
            }
        }
    }

    /// Adds what `step` may have done, but was not acknowledged.
    fn under_way(&mut self, step: &Step) {
        match *step {
            Step::Create { file, name } => {
                self.files.insert(file, Content::default());
                self.may_be.push((path(name), file));
            }
            Step::Write { name, place, words, generation, .. } => {
                self.content(name).write(place, words, generation);
            }
            Step::Fsync { .. } | Step::Sync => {}
            Step::Replace { file, name, words, generation } => {
                // Under its final name it is whole; under the temporary one any part may be there.
                self.files.insert(file, Content::whole(words, generation));
                self.may_be.push((path(name), file));
                let partial = file | PARTIAL;
                let mut content = Content::default();
                content.write(0, words, generation);
                self.files.insert(partial, content);
                self.may_be.push((format!("t{file}"), partial));
            }
            Step::Unlink { name } => {
                self.may_be_gone.insert(path(name));
            }
            Step::Truncate { name, words } => self.content(name).cut(words),
        }
    }

    /// The files that `name` may be.
    fn candidates(&self, name: &str, before: &BTreeMap<String, Entry>) -> Vec<u64> {
        let now = before.get(name).map(|entry| entry.file);
        let next = self.may_be.iter().filter(|(n, _)| n == name).map(|(_, file)| *file);
        now.into_iter().chain(next).collect()
    }

    /// fsync of the directory: its names stay.
    fn dir_synced(&mut self) {
        self.names.values_mut().for_each(|entry| entry.is_durable = true);
    }

    fn entry(&mut self, name: u64) -> &mut Entry {
        self.names.get_mut(&path(name)).expect("the plan uses what exists")
    }

    fn content(&mut self, name: u64) -> &mut Content {
        let file = self.entry(name).file;
        self.files.get_mut(&file).expect("every name has a file")
    }
}

/// Marks a file's number as that of its unfinished state.
const PARTIAL: u64 = 1 << 32;

impl Content {
    fn whole(words: u64, generation: u64) -> Self {
        let mut content = Self::default();
        content.write(0, words, generation);
        content.sync();
        content
    }

    fn write(&mut self, place: u64, words: u64, generation: u64) {
        let end = index(place + words);
        if self.words.len() < end {
            self.words.resize_with(end, Possible::default);
        }
        for word in &mut self.words[index(place)..end] {
            word.later.push(generation);
        }
        self.size = self.size.max(place + words);
        self.size_most = self.size_most.max(self.size);
    }

    fn cut(&mut self, words: u64) {
        if self.words.len() < index(words) {
            self.words.resize_with(index(words), Possible::default);
        }
        for word in &mut self.words[index(words)..] {
            word.later.push(0);
        }
        self.size = words;
        self.size_least = self.size_least.min(words);
    }

    fn sync(&mut self) {
        for word in &mut self.words {
            word.sync();
        }
        (self.size_least, self.size_most) = (self.size, self.size);
    }

    /// What O_SYNC and msync promise: these words, and a file that reaches to them.
    fn sync_range(&mut self, place: u64, words: u64) {
        for word in &mut self.words[index(place)..index(place + words)] {
            word.sync();
        }
        self.size_least = self.size_least.max(place + words);
    }

    fn complaints(&self, round: u64, file: u64, data: &[u8]) -> Vec<String> {
        let mut wrong = Vec::new();
        let (least, most) = (self.size_least * 8, self.size_most * 8);
        let len = data.len() as u64;
        if len < least || len > most {
            wrong.push(format!("has {len} bytes, should have {least} to {most}"));
        }
        for (i, bytes) in data.chunks(8).enumerate() {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            let word = u64::from_le_bytes(padded);
            let possible = self.words.get(i).cloned().unwrap_or_default();
            if let Err(why) = possible.judge(round, file & !PARTIAL, i as u64, word) {
                wrong.push(format!("at byte {}: {why}", i * 8));
            }
        }
        wrong
    }
}

impl Possible {
    fn sync(&mut self) {
        if let Some(last) = self.later.last() {
            self.synced = *last;
            self.later.clear();
        }
    }

    fn judge(&self, round: u64, file: u64, place: u64, word: u64) -> Result<(), String> {
        if word == 0 {
            return if self.synced == 0 || self.later.contains(&0) {
                Ok(())
            } else {
                Err(format!("zeros, where generation {} was synced", self.synced))
            };
        }
        let is = Word::unpack(word);
        if (is.round, is.file, is.place) != (round, file, place) {
            return Err(format!("{is:?}, which is not of round {round}, file {file}, place {place}"));
        }
        if is.generation == self.synced || self.later.contains(&is.generation) {
            Ok(())
        } else {
            Err(format!(
                "generation {}, where {} was synced and {:?} written later",
                is.generation, self.synced, self.later
            ))
        }
    }
}

fn path(name: u64) -> String {
    format!("f{name}")
}

fn index(words: u64) -> usize {
    usize::try_from(words).expect("files are small")
}
