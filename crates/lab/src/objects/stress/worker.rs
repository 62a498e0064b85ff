//! A program that uses a volume: by a seed it makes, changes, copies and removes what is in a
//! directory of its own, and keeps a model of it.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use super::check::{self, Survived};
use super::model::{FileId, Image, Model, Node};
use super::units::{Stamp, UNIT, bytes_of, is_of};
use crate::random::Random;

/// Units of a new file, and of a write, at most.
const NEW_MAX: u64 = 2000;
const WRITE_MAX: u64 = 130;
/// No file grows beyond this.
const FILE_MAX: usize = 8_000;
/// Directories that files are made in.
const DIRS: u64 = 4;
/// Copies of one of these that there may be at a time.
const COPIES_MAX: usize = 2;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Worker {
    number: u64,
    root: PathBuf,
    model: Model,
    random: Random,
    /// Bytes of files that it keeps at most, and about.
    budget: u64,
    next_stamp: Stamp,
    next_name: u64,
    /// Bytes that it has written, and calls.
    pub(super) written: u64,
    pub(super) operations: u64,
    pub(super) syncs: u64,
}

impl Worker {
    /// A worker with an empty directory below `mount`, which it will make.
    pub(super) fn new(number: u64, mount: &Path, seed: u64, budget: u64) -> Self {
        Self {
            number,
            root: mount.join(format!("w{number}")),
            model: Model::default(),
            random: Random::new(seed ^ (number << 32)),
            budget,
            next_stamp: 0,
            next_name: 0,
            written: 0,
            operations: 0,
            syncs: 0,
        }
    }

    /// Makes its directories, and syncs them.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn begin(&mut self) -> anyhow::Result<()> {
        fs::create_dir(&self.root)?;
        for number in 0..DIRS {
            let name = format!("d{number}");
            self.model.begin_name(&name, Some(Node::Dir));
            fs::create_dir(self.root.join(&name))?;
            self.model.end_name(&name, Some(Node::Dir));
        }
        self.sync_all()
    }

    /// Makes files until it has about as much as it keeps.
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn fill(&mut self) -> anyhow::Result<()> {
        while self.model.bytes() < self.budget / 5 * 4 {
            self.create()?;
        }
        self.sync_all()
    }

    /// How its directory is named.
    pub(super) fn name(&self) -> String {
        format!("w{}", self.number)
    }

    /// What there has to be.
    pub(super) fn image(&self) -> Image {
        self.model.image()
    }

    /// Bytes of its files.
    pub(super) fn bytes(&self) -> u64 {
        self.model.bytes()
    }

    /// Does something, by its seed.
    ///
    /// # Errors
    /// What the file system refuses, and what is read that is not as it was written.
    pub(super) fn step(&mut self) -> anyhow::Result<()> {
        self.operations += 1;
        let is_full = self.model.bytes() > self.budget;
        match self.random.next() % 1000 {
            _ if is_full && !self.random.next().is_multiple_of(3) => self.shrink(),
            0..140 => self.create(),
            140..420 => self.overwrite(),
            420..580 => self.append(),
            580..630 => self.truncate(),
            630..690 => self.rename(),
            690..730 => self.link(),
            730..770 => self.remove(),
            770..774 => self.copy_tree(),
            774..778 => self.remove_tree(),
            778..900 => self.sync_one(),
            900..910 => self.sync_all(),
            _ => self.read(),
        }
    }

    /// A number below `end`.
    fn below(&mut self, end: u64) -> u64 {
        self.random.next() % end.max(1)
    }

    fn place_below(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap_or(0)
    }

    fn stamp(&mut self) -> Stamp {
        self.next_stamp += 1;
        self.number << 40 | self.next_stamp
    }

    /// Names that lead to files.
    fn files(&self) -> Vec<(&String, FileId)> {
        let file = |(name, node)| if let &Node::File(id) = node { Some((name, id)) } else { None };
        self.model.names.iter().filter_map(file).collect()
    }

    /// One of its files.
    fn any(&mut self) -> Option<(String, FileId)> {
        let count = self.files().len();
        let at = self.place_below(count);
        self.files().get(at).map(|(name, id)| ((*name).clone(), *id))
    }

    fn new_name(&mut self) -> String {
        self.next_name += 1;
        format!("d{}/f{}", self.below(DIRS), self.next_name)
    }

    fn create(&mut self) -> anyhow::Result<()> {
        let name = self.new_name();
        let id = self.model.new_file();
        self.model.begin_name(&name, Some(Node::File(id)));
        let file = File::create_new(self.root.join(&name)).context("create")?;
        self.model.end_name(&name, Some(Node::File(id)));
        // Most files are small.
        let most = if self.below(4) == 0 { NEW_MAX } else { NEW_MAX / 50 };
        let units = usize::try_from(self.below(most))?;
        self.write(&file, id, 0, units)
    }

    fn overwrite(&mut self) -> anyhow::Result<()> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        let len = self.model.file(id).units.len();
        let units = usize::try_from(1 + self.below(WRITE_MAX))?.min(len);
        let at = self.place_below(len + 1 - units);
        let file = OpenOptions::new().write(true).open(self.root.join(&name)).context("open")?;
        self.write(&file, id, at, units)
    }

    fn append(&mut self) -> anyhow::Result<()> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        let len = self.model.file(id).units.len();
        // Now and then behind the end: a hole.
        let at = len + if self.below(8) == 0 { self.place_below(50) } else { 0 };
        let units = usize::try_from(1 + self.below(WRITE_MAX))?;
        if at + units > FILE_MAX {
            return Ok(());
        }
        let file = OpenOptions::new().write(true).open(self.root.join(&name)).context("open")?;
        self.write(&file, id, at, units)
    }

    fn write(&mut self, file: &File, id: FileId, at: usize, units: usize) -> anyhow::Result<()> {
        if units == 0 {
            return Ok(());
        }
        let stamps = vec![self.stamp(); units];
        self.model.file(id).begin_write(at, &stamps);
        file.write_all_at(&bytes_of(&stamps, at), (at * UNIT) as u64).context("write")?;
        self.model.file(id).end_write(at, &stamps);
        self.written += (units * UNIT) as u64;
        Ok(())
    }

    fn truncate(&mut self) -> anyhow::Result<()> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        let len = self.model.file(id).units.len();
        let to = self.place_below(len + 20);
        let file = OpenOptions::new().write(true).open(self.root.join(&name)).context("open")?;
        self.model.file(id).begin_cut(to);
        file.set_len((to * UNIT) as u64).context("truncate")?;
        self.model.file(id).end_cut(to);
        Ok(())
    }

    /// To a new name, or over another file.
    fn rename(&mut self) -> anyhow::Result<()> {
        let Some((from, id)) = self.any() else { return Ok(()) };
        let over = if self.below(2) == 0 { self.any() } else { None };
        let to = match over {
            // rename(2) of a file over another name of its own does nothing.
            Some((_, other)) if other == id => return Ok(()),
            Some((name, _)) => name,
            None => self.new_name(),
        };
        self.model.begin_name(&from, None);
        self.model.begin_name(&to, Some(Node::File(id)));
        fs::rename(self.root.join(&from), self.root.join(&to)).context("rename")?;
        self.model.end_name(&from, None);
        self.model.end_name(&to, Some(Node::File(id)));
        Ok(())
    }

    fn link(&mut self) -> anyhow::Result<()> {
        let Some((from, id)) = self.any() else { return Ok(()) };
        let to = self.new_name();
        self.model.begin_name(&to, Some(Node::File(id)));
        fs::hard_link(self.root.join(from), self.root.join(&to)).context("link")?;
        self.model.end_name(&to, Some(Node::File(id)));
        Ok(())
    }

    fn remove(&mut self) -> anyhow::Result<()> {
        let Some((name, _)) = self.any() else { return Ok(()) };
        self.model.begin_name(&name, None);
        fs::remove_file(self.root.join(&name)).context("unlink")?;
        self.model.end_name(&name, None);
        Ok(())
    }

    fn shrink(&mut self) -> anyhow::Result<()> {
        if self.copies().is_empty() { self.remove() } else { self.remove_tree() }
    }

    fn copies(&self) -> Vec<String> {
        let tops = self.model.names.keys().filter(|name| name.starts_with('c') && !name.contains('/'));
        tops.cloned().collect()
    }

    /// Names below a directory, with it.
    fn tree(&self, top: &str) -> Vec<(String, Node)> {
        let below =
            |name: &str| name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
        let names = self.model.names.iter().filter(|(name, _)| below(name));
        names.map(|(name, node)| (name.clone(), *node)).collect()
    }

    /// `cp -a` of one of its directories.
    fn copy_tree(&mut self) -> anyhow::Result<()> {
        if self.copies().len() >= COPIES_MAX {
            return Ok(());
        }
        self.next_name += 1;
        let (from, to) = (format!("d{}", self.below(DIRS)), format!("c{}", self.next_name));
        let mut copied: Vec<(String, Node)> = Vec::new();
        let mut of_file = std::collections::HashMap::new();
        for (name, node) in self.tree(&from) {
            let node = match node {
                Node::Dir => Node::Dir,
                Node::File(id) => {
                    let new = *of_file.entry(id).or_insert_with(|| self.model.new_file());
                    let stamps = self.model.file(id).units.clone();
                    self.model.file(new).begin_write(0, &stamps);
                    Node::File(new)
                }
            };
            copied.push((format!("{to}{}", &name[from.len()..]), node));
        }
        copied.iter().for_each(|(name, node)| self.model.begin_name(name, Some(*node)));
        self.run(&["cp", "-a", &from, &to])?;
        copied.iter().for_each(|(name, node)| self.model.end_name(name, Some(*node)));
        for (old, new) in of_file {
            let stamps = self.model.file(old).units.clone();
            self.written += (stamps.len() * UNIT) as u64;
            self.model.file(new).end_write(0, &stamps);
        }
        Ok(())
    }

    fn remove_tree(&mut self) -> anyhow::Result<()> {
        let Some(top) = self.copies().first().cloned() else { return Ok(()) };
        let gone = self.tree(&top);
        gone.iter().for_each(|(name, _)| self.model.begin_name(name, None));
        self.run(&["rm", "-r", &top])?;
        gone.iter().for_each(|(name, _)| self.model.end_name(name, None));
        Ok(())
    }

    fn run(&self, command: &[&str]) -> anyhow::Result<()> {
        let output = Command::new(command[0])
            .args(&command[1..])
            .current_dir(&self.root)
            .stdin(Stdio::null())
            .output()
            .with_context(|| command.join(" "))?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{}: {}", command.join(" "), said.trim());
        Ok(())
    }

    fn sync_one(&mut self) -> anyhow::Result<()> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        let file = File::open(self.root.join(&name)).context("open")?;
        if self.below(2) == 0 { file.sync_all() } else { file.sync_data() }.context("fsync")?;
        self.model.synced(id);
        self.syncs += 1;
        Ok(())
    }

    /// syncfs(2).
    ///
    /// # Errors
    /// The file system's.
    pub(super) fn sync_all(&mut self) -> anyhow::Result<()> {
        rustix::fs::syncfs(File::open(&self.root)?).context("syncfs")?;
        self.model.all_synced();
        self.syncs += 1;
        Ok(())
    }

    /// A part of a file, compared with what was written there.
    fn read(&mut self) -> anyhow::Result<()> {
        let Some((name, id)) = self.any() else { return Ok(()) };
        let len = self.model.file(id).units.len();
        let units = usize::try_from(1 + self.below(NEW_MAX))?.min(len);
        let at = self.place_below(len + 1 - units);
        let mut bytes = vec![0; units * UNIT];
        let file = File::open(self.root.join(&name)).context("open")?;
        file.read_exact_at(&mut bytes, (at * UNIT) as u64).context("read")?;
        let (own, stamps) = (self.name(), &self.model.file(id).units[at..at + units]);
        for ((unit, stamp), place) in bytes.chunks_exact(UNIT).zip(stamps).zip(at..) {
            if !is_of(unit, *stamp, place) {
                bail!("{own}/{name}: unit {place} is not of write {stamp:x}: {:x?}", &unit[..16]);
            }
        }
        Ok(())
    }

    /// Its directory, here or in another mount, has exactly what it has to have.
    ///
    /// # Errors
    /// What differs.
    pub(super) fn compare(&self) -> anyhow::Result<()> {
        check::exactly(&self.root, &self.model.image()).with_context(|| self.name())
    }

    /// After a kill: what was synced is there. Goes on with what was found; how many files were torn.
    ///
    /// # Errors
    /// What was lost.
    pub(super) fn survive(&mut self) -> anyhow::Result<usize> {
        let Survived { image, torn } =
            check::after_kill(&self.root, &self.model).with_context(|| self.name())?;
        self.model.adopt(image);
        for name in &torn {
            self.mend(name)?;
        }
        self.sync_all()?;
        self.compare()?;
        Ok(torn.len())
    }

    /// Writes all of a file anew.
    fn mend(&mut self, name: &str) -> anyhow::Result<()> {
        let Some(Node::File(id)) = self.model.names.get(name).copied() else { bail!("{name} is no file") };
        let file = OpenOptions::new().write(true).open(self.root.join(name))?;
        let units = self.model.file(id).units.len();
        file.set_len((units * UNIT) as u64)?;
        self.write(&file, id, 0, units)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In memory, where a sync of everything waits for nobody else's data.
    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
    }

    #[test]
    fn on_a_file_system_that_keeps_its_promises_nothing_differs() {
        let directory = directory();
        let mut worker = Worker::new(1, directory.path(), 7, 4 << 20);
        worker.begin().unwrap();
        for number in 0..1500 {
            worker.step().unwrap_or_else(|error| panic!("step {number}: {error:#}"));
        }
        worker.compare().unwrap();
        assert!(worker.syncs > 50 && worker.written > 10 << 20, "{worker:?}");
        assert!(worker.bytes() < 12 << 20, "{} bytes", worker.bytes());
        // What was synced or not: all of it is there, so it is a state that a kill may leave.
        assert_eq!(worker.survive().unwrap(), 0);
        worker.step().unwrap();
        worker.compare().unwrap();
    }

    #[test]
    fn what_a_kill_may_not_take_is_missed() {
        let directory = directory();
        let mut worker = Worker::new(1, directory.path(), 7, 4 << 20);
        worker.begin().unwrap();
        (0..300).for_each(|_| worker.step().unwrap());
        worker.sync_all().unwrap();
        let (name, _) = worker.any().unwrap();
        fs::remove_file(worker.root.join(&name)).unwrap();
        assert!(worker.survive().is_err() && worker.compare().is_err());
    }
}
