//! Runs a plan in a directory.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::plan::How;
use super::{Plan, Step, pattern};
use crate::sys::Mapping;

/// Does steps in one directory.
#[derive(Debug)]
pub struct Writer {
    dir: PathBuf,
    round: u64,
    /// Which file each name is, to write its words.
    files: Vec<(u64, u64)>,
    /// Says "done" without syncing: what the check must notice.
    is_lying: bool,
}

/// Runs `plan` in `dir`; after each step one line on `acks`. Ends when a step fails or the plan
/// does.
///
/// # Errors
/// Of the step that failed, or of `acks`.
pub fn write_steps(dir: &Path, plan: Plan, is_lying: bool, acks: &mut dyn Write) -> io::Result<()> {
    let mut writer = Writer::new(dir, plan.round, is_lying);
    for step in plan {
        writer.run(&step)?;
        acks.write_all(b"\n")?;
    }
    Ok(())
}

impl Writer {
    /// A writer in `dir`.
    #[must_use]
    pub fn new(dir: &Path, round: u64, is_lying: bool) -> Self {
        Self { dir: dir.to_owned(), round, files: Vec::new(), is_lying }
    }

    /// Does one step.
    ///
    /// # Errors
    /// Of the first call that failed.
    pub fn run(&mut self, step: &Step) -> io::Result<()> {
        match *step {
            Step::Create { file, name } => {
                OpenOptions::new().write(true).create_new(true).open(self.path(name))?;
                self.files.push((name, file));
                Ok(())
            }
            Step::Write { name, place, words, generation, how } => {
                let data = pattern(self.round, self.file(name), generation, place, words);
                self.write(name, place * 8, &data, how)
            }
            Step::Fsync { name, data_only } => {
                let file = self.open(name, 0)?;
                if data_only { self.really(|| file.sync_data()) } else { self.really(|| file.sync_all()) }
            }
            Step::Sync => {
                let dir = File::open(&self.dir)?;
                self.really(|| Ok(rustix::fs::syncfs(&dir)?))
            }
            Step::Replace { file, name, words, generation } => {
                let temporary = self.dir.join(format!("t{file}"));
                let new = OpenOptions::new().write(true).create_new(true).open(&temporary)?;
                new.write_all_at(&pattern(self.round, file, generation, 0, words), 0)?;
                self.really(|| new.sync_all())?;
                std::fs::rename(&temporary, self.path(name))?;
                self.files.retain(|(n, _)| *n != name);
                self.files.push((name, file));
                self.sync_dir()
            }
            Step::Unlink { name } => {
                std::fs::remove_file(self.path(name))?;
                self.files.retain(|(n, _)| *n != name);
                self.sync_dir()
            }
            Step::Truncate { name, words } => {
                let file = self.open(name, 0)?;
                file.set_len(words * 8)?;
                self.really(|| file.sync_all())
            }
        }
    }

    fn write(&self, name: u64, offset: u64, data: &[u8], how: How) -> io::Result<()> {
        match how {
            How::Plain => self.open(name, 0)?.write_all_at(data, offset),
            How::Synchronous => {
                let flags = if self.is_lying { 0 } else { libc::O_SYNC };
                self.open(name, flags)?.write_all_at(data, offset)
            }
            How::Mapped => {
                let offset = usize::try_from(offset).map_err(io::Error::other)?;
                let map = Mapping::new(&self.open(name, 0)?, offset + data.len())?;
                map.write(offset, data);
                self.really(|| map.sync())
            }
        }
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.really(|| File::open(&self.dir)?.sync_all())
    }

    fn really(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.is_lying { Ok(()) } else { sync() }
    }

    fn open(&self, name: u64, flags: i32) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(self.path(name))
    }

    fn path(&self, name: u64) -> PathBuf {
        self.dir.join(format!("f{name}"))
    }

    fn file(&self, name: u64) -> u64 {
        self.files.iter().find(|(n, _)| *n == name).expect("the plan writes to what exists").1
    }
}
