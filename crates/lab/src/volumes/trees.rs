//! Trees that programs unpack: an archive for `tar` and a repository for `git`, made by this
//! module, equal in every run.

use super::clients::filler;
use super::sizes::Sizes;
use anyhow::{Context as _, bail, ensure};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The archive and the repository.
#[derive(Debug)]
pub(crate) struct Trees {
    archive: PathBuf,
    archived_files: u32,
    /// The repository and its head commit, or why there is none.
    repository: Result<(PathBuf, String), String>,
}

/// Length of the file of that number, bytes: many small ones, some of 60 KiB.
fn length(number: u32) -> usize {
    const LENGTHS: [usize; 8] = [120, 900, 2_100, 3_300, 4_096, 7_000, 14_000, 61_440];
    LENGTHS[number as usize % LENGTHS.len()]
}

fn name(number: u32) -> String {
    format!("d{:02}/s{:02}/file-{number:05}.txt", number % 20, number / 20 % 5)
}

impl Trees {
    /// Makes both below `scratch`. Without `git` there is no repository, and its scenario reports
    /// that.
    ///
    /// # Errors
    /// If the archive cannot be made.
    pub(crate) fn generate(scratch: &Path, sizes: &Sizes) -> anyhow::Result<Self> {
        let archive = scratch.join("tree.tar");
        make_archive(scratch, &archive, sizes.tar_files)?;
        let repository = make_repository(scratch, sizes.git_files).map_err(|error| format!("{error:#}"));
        Ok(Self { archive, archived_files: sizes.tar_files, repository })
    }

    /// Unpacks the archive with `tar`; returns the time. The tree is removed afterwards.
    ///
    /// # Errors
    /// If `tar` fails or a file is missing.
    pub(crate) fn untar(&self, root: &Path) -> anyhow::Result<Duration> {
        let target = root.join("untar");
        std::fs::create_dir(&target).context("mkdir")?;
        let start = Instant::now();
        let result = quiet(Command::new("tar").arg("-xf").arg(&self.archive).arg("-C").arg(&target));
        let took = start.elapsed();
        let counted = result.and_then(|_| count_files(&target));
        std::fs::remove_dir_all(&target).context("remove the tree")?;
        let files = counted?;
        ensure!(files == self.archived_files, "{files} files instead of {}", self.archived_files);
        Ok(took)
    }

    /// Clones the repository with `git`; returns the time. The clone is checked and removed
    /// afterwards.
    ///
    /// # Errors
    /// If `git` fails or the clone is not the repository.
    pub(crate) fn git_clone(&self, root: &Path) -> anyhow::Result<Duration> {
        let (repository, head) = match &self.repository {
            Ok(repository) => repository,
            Err(why) => bail!("no repository: {why}"),
        };
        let clone = root.join("clone");
        let start = Instant::now();
        let url = format!("file://{}", repository.display());
        let result = quiet(git().args(["clone", "--quiet", &url]).arg(&clone));
        let took = start.elapsed();
        let checked = result.and_then(|_| check_clone(&clone, head));
        if clone.exists() {
            std::fs::remove_dir_all(&clone).context("remove the clone")?;
        }
        checked.map(|()| took)
    }
}

fn check_clone(clone: &Path, head: &str) -> anyhow::Result<()> {
    let inside = |arguments: &[&str]| quiet(git().arg("-C").arg(clone).args(arguments));
    let found = inside(&["rev-parse", "HEAD"])?;
    ensure!(found.trim() == head, "the clone is at {}, not at {head}", found.trim());
    let changes = inside(&["status", "--porcelain"])?;
    ensure!(changes.is_empty(), "the clone has changes: {}", changes.lines().next().unwrap_or_default());
    Ok(())
}

/// `git` without the user's configuration.
fn git() -> Command {
    let mut git = Command::new("git");
    git.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    git.args(["-c", "safe.directory=*", "-c", "init.defaultBranch=main"]);
    git
}

/// Runs to the end; returns the output, or the last line of the error output.
fn quiet(command: &mut Command) -> anyhow::Result<String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot start {program}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no reason given");
    ensure!(output.status.success(), "{program}: {}: {last}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn count_files(directory: &Path) -> anyhow::Result<u32> {
    let mut files = 0;
    for entry in std::fs::read_dir(directory).context("list the tree")? {
        let entry = entry.context("list the tree")?;
        if entry.file_type()?.is_dir() {
            files += count_files(&entry.path())?;
        } else {
            files += 1;
        }
    }
    Ok(files)
}

fn make_archive(scratch: &Path, archive: &Path, files: u32) -> anyhow::Result<()> {
    let tree = scratch.join("tree");
    for number in 0..files {
        let path = tree.join(name(number));
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory)?;
        }
        std::fs::write(path, filler(length(number)))?;
    }
    quiet(Command::new("tar").arg("-cf").arg(archive).arg("-C").arg(&tree).arg("."))?;
    std::fs::remove_dir_all(&tree)?;
    Ok(())
}

/// A bare repository with a tenth of the files changed in each of ten commits.
fn make_repository(scratch: &Path, files: u32) -> anyhow::Result<(PathBuf, String)> {
    const COMMITS: u32 = 10;
    let repository = scratch.join("repository.git");
    quiet(git().args(["init", "--quiet", "--bare"]).arg(&repository))?;
    let mut stream = Vec::new();
    for commit in 0..=COMMITS {
        write!(
            stream,
            "commit refs/heads/main\ncommitter Lab <lab@localhost> {} +0000\n",
            1_700_000_000 + commit
        )?;
        writeln!(stream, "data 6\nchange")?;
        for number in (0..files).filter(|number| commit == 0 || number % COMMITS == commit - 1) {
            let content = text(number, commit);
            write!(stream, "M 100644 inline {}\ndata {}\n{content}\n", name(number), content.len())?;
        }
    }
    let mut import = git()
        .arg("-C")
        .arg(&repository)
        .args(["fast-import", "--quiet"])
        .stdin(Stdio::piped())
        .spawn()
        .context("cannot start git")?;
    import.stdin.take().context("no way to write to git")?.write_all(&stream)?;
    ensure!(import.wait()?.success(), "git fast-import failed");
    let head = quiet(git().arg("-C").arg(&repository).args(["rev-parse", "refs/heads/main"]))?;
    Ok((repository, head.trim().to_owned()))
}

/// Text about as long as [`length`] says.
fn text(number: u32, commit: u32) -> String {
    let mut text = String::new();
    let mut line = 0_u32;
    while text.len() < length(number) {
        let word = number.wrapping_mul(2_654_435_761).wrapping_add(line.wrapping_mul(40_503));
        let _ = writeln!(text, "line {line} of file {number} in version {commit}: {word:08x}");
        line += 1;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes() -> Sizes {
        Sizes {
            runs: 1,
            slice: Duration::ZERO,
            warm_up: Duration::ZERO,
            sequential_bytes: 0,
            random_bytes: 0,
            tar_files: 30,
            git_files: 20,
        }
    }

    fn is_missing(program: &str) -> bool {
        let missing = Command::new(program).arg("--version").stdout(Stdio::null()).status().is_err();
        if missing {
            testing::skipped(format_args!("no `{program}` on this machine"));
        }
        missing
    }

    #[test]
    fn an_archive_is_unpacked_counted_and_removed() {
        if is_missing("tar") {
            return;
        }
        let (scratch, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut trees = Trees::generate(scratch.path(), &sizes()).unwrap();
        assert!(trees.untar(root.path()).unwrap() > Duration::ZERO);
        trees.archived_files = 31;
        let error = trees.untar(root.path()).unwrap_err().to_string();
        assert!(error.contains("30 files instead of 31"), "{error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_repository_is_cloned_checked_and_removed() {
        if is_missing("git") || is_missing("tar") {
            return;
        }
        let (scratch, root) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let mut trees = Trees::generate(scratch.path(), &sizes()).unwrap();
        assert!(trees.git_clone(root.path()).unwrap() > Duration::ZERO);
        if let Ok((_, head)) = &mut trees.repository {
            *head = "0".repeat(40);
        }
        let error = trees.git_clone(root.path()).unwrap_err().to_string();
        assert!(error.contains("the clone is at"), "{error}");
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}
