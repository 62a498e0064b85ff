//! What was read once: read, listed and looked at again, beside a directory that the same program
//! has mounted.

use std::fs::{self, File};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, ensure};

use super::bucket::Server;
use super::subject::{Subject, control, umount};
use crate::child::Server as Process;
use crate::progress::Progress;
use crate::random::Random;
use crate::report::{Metric, Recorder};

pub(super) const WARM: &str = "warm";
/// The variant that is compared with.
pub(super) const DIRECTORY: &str = "directory";

const STATS: Metric = Metric::rate("stats", "1/s");
const NAMES: Metric = Metric::rate("names", "1/s");
const OPENS: Metric = Metric::rate("opens", "1/s");
const SMALL: Metric = Metric::rate("read_small", "1/s");
const LARGE: Metric = Metric::rate("read_large", "MB/s");

const DIRECTORIES: usize = 20;
/// Small files of a directory, and their size.
const FILES: usize = 100;
const FILE: usize = 4096;
/// The large file.
const LARGE_BYTES: usize = 64 << 20;
/// Passes of each over all of it in a round, in turn.
const PASSES: usize = 10;

/// A tree that is mounted.
struct Tree {
    variant: &'static str,
    at: PathBuf,
}

/// Reads the same tree again and again, in both.
///
/// # Errors
/// If one of them cannot be mounted, or reads something else.
pub(super) fn measure(
    (program, server, scratch): (&Path, &Server, &Path),
    round: usize,
    progress: &Progress,
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    progress.now(WARM);
    let subject = Subject::ours(program, server, scratch, &format!("{WARM}-{round}"))?;
    let mounted = subject.mount()?;
    let directory = scratch.join(format!("{WARM}-directory-{round}"));
    let plain = Plain::mount(program, &directory)?;
    let trees = [
        Tree { variant: "default", at: mounted.path().to_owned() },
        Tree { variant: DIRECTORY, at: plain.at.clone() },
    ];
    for tree in &trees {
        tree.plant()?;
        rustix::fs::syncfs(File::open(&tree.at)?).context("syncfs")?;
        tree.pass(&mut Recorder::default())?;
    }
    for pass in 0..PASSES {
        // Neither is always the first.
        let order = if pass % 2 == 0 { [0, 1] } else { [1, 0] };
        for tree in order {
            trees[tree].pass(recorder)?;
        }
    }
    plain.unmount()?;
    mounted.unmount()?;
    let note = "what was read once is read, listed, opened and looked at again; goal: 0.9 of the directory, which the \
                same program has mounted";
    recorder.note(WARM, "default", note);
    Ok(())
}

impl Tree {
    fn dir(&self, directory: usize) -> PathBuf {
        self.at.join(format!("d{directory}"))
    }

    fn files(&self) -> impl Iterator<Item = PathBuf> {
        (0..DIRECTORIES).flat_map(move |directory| {
            (0..FILES).map(move |file| self.dir(directory).join(format!("file-{file}")))
        })
    }

    fn plant(&self) -> anyhow::Result<()> {
        for directory in 0..DIRECTORIES {
            fs::create_dir(self.dir(directory))?;
        }
        let mut data = vec![0; LARGE_BYTES];
        Random::new(1).fill(&mut data);
        for file in self.files() {
            fs::write(file, &data[..FILE])?;
        }
        fs::write(self.at.join("large"), &data)?;
        Ok(())
    }

    /// One pass over all of it.
    fn pass(&self, recorder: &mut Recorder) -> anyhow::Result<()> {
        let files = (DIRECTORIES * FILES) as f64;
        let mut rate = |metric, count: f64, begun: Instant| {
            recorder.rate(WARM, self.variant, metric, count / begun.elapsed().as_secs_f64());
        };
        let begun = Instant::now();
        for file in self.files() {
            ensure!(fs::metadata(file)?.len() == FILE as u64, "a file has another size");
        }
        rate(STATS, files, begun);
        let begun = Instant::now();
        for directory in 0..DIRECTORIES {
            ensure!(fs::read_dir(self.dir(directory))?.count() == FILES, "a directory has other names");
        }
        rate(NAMES, files, begun);
        let begun = Instant::now();
        for file in self.files() {
            drop(File::open(file)?);
        }
        rate(OPENS, files, begun);
        let begun = Instant::now();
        for file in self.files() {
            ensure!(fs::read(file)?.len() == FILE, "a file ends early");
        }
        rate(SMALL, files, begun);
        let begun = Instant::now();
        let (mut file, mut part, mut read) = (File::open(self.at.join("large"))?, vec![0; 1 << 20], 0);
        loop {
            match file.read(&mut part)? {
                0 => break,
                len => read += len,
            }
        }
        ensure!(read == LARGE_BYTES, "the large file ends early");
        rate(LARGE, read as f64 / 1e6, begun);
        Ok(())
    }
}

/// A directory that the program has mounted.
struct Plain {
    process: Process,
    at: PathBuf,
}

impl Plain {
    fn mount(program: &Path, directory: &Path) -> anyhow::Result<Self> {
        let (source, at, run) = (directory.join("source"), directory.join("mount"), directory.join("run"));
        for new in [&source, &at, &run] {
            fs::create_dir_all(new)?;
        }
        fs::set_permissions(&run, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let mut command = Command::new(program);
        command.arg("mount").arg(&source).arg(&at).env("WATERTIGHT_RUNTIME_DIR", &run);
        let process = Process::start(&mut command, &at, &directory.join("mount.log"))?;
        // Once it answers, it looks at the mount no more.
        control(&run)?.status()?;
        Ok(Self { process, at })
    }

    fn unmount(self) -> anyhow::Result<()> {
        umount(&self.at)?;
        self.process.stop()
    }
}
