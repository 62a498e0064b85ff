//! Usual work with files, from the first call to umount's return, and what it costs.
//!
//! Others acknowledge an fsync before the bucket has the data, and return from an unmount before it
//! has all of it. So that a reader sees what a figure buys, each row has the bytes that the bucket
//! lacks at umount's return; and requests are those until the bucket has everything: of a peer that
//! leaves some on this host, those of its next mount as well, until that has uploaded it.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::archive::Archive;
use super::bucket::Server;
use super::growth::{PUTS, REQUESTS, TOOK_MS, UMOUNT_MS, UNSAID};
use super::missing::{Expected, MISSING};
use super::peers::Peer;
use super::requests::Requests;
use super::subject::{Kind, Subject};
use super::wire::Sent;
use crate::random::Random;
use crate::report::{Metric, Recorder};

const WORK_MS: Metric = Metric::new("work", "ms");
const LEFT: Metric = Metric::new("bytes_left", "B");
const UPLOADED: Metric = Metric::new("uploaded", "kB");

/// How long a peer may take to upload what it has kept.
const UPLOADED_MAX: Duration = Duration::from_secs(60);

/// What is done in a new mount.
pub(super) struct Work<'a> {
    /// Before anything is timed.
    pub(super) prepare: &'a dyn Fn(&Path) -> anyhow::Result<()>,
    pub(super) done: &'a dyn Fn(&Path) -> anyhow::Result<()>,
    pub(super) expected: Expected,
    /// The expected files are removed by it, not made.
    pub(super) removes: bool,
}

/// Does it once, and records what it took.
///
/// # Errors
/// If a program or a call fails, in its words.
pub(super) fn measure(
    (scenario, variant): (&str, &str),
    work: &Work<'_>,
    subject: &Subject,
    (server, name): (&Server, &str),
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let formatted = subject.sent()?;
    let mounted = subject.mount()?;
    (work.prepare)(mounted.path())?;
    wait_until_uploaded(subject)?;
    let before = subject.sent()?;
    let begun = Instant::now();
    (work.done)(mounted.path())?;
    let done = begun.elapsed();
    let unmounted = mounted.umount()?;
    let took = begun.elapsed();
    let after = subject.sent()?;
    let mut value = |metric, value| recorder.value(scenario, variant, metric, value);
    let millis = |took: Duration| took.as_secs_f64() * 1000.0;
    value(TOOK_MS, millis(took));
    value(WORK_MS, millis(done));
    value(UMOUNT_MS, millis(took - done));
    let found = subject.find(&work.expected, (server, name))?;
    match (&subject.kind, work.removes) {
        (_, false) => value(MISSING, found.missing as f64),
        // Which files there are, its database on this host says.
        (Kind::Peer(Peer::Juicefs { .. }), true) => {}
        (_, true) => value(LEFT, (found.all - found.missing) as f64),
    }
    let own = unmounted.end()?;
    if let (Some(formatted), Some(before), Some(after)) = (formatted, before, after) {
        compare_counts(subject, own, formatted)?;
        let rest = upload_rest(subject)?;
        let sum = |count: fn(Sent) -> u64| (count(after - before) + count(rest)) as f64;
        value(REQUESTS, sum(Sent::all));
        value(PUTS, sum(Sent::all_puts));
        value(UPLOADED, sum(|sent| sent.bytes_up) / 1000.0);
    }
    Ok(())
}

/// Compares the requests that a process of ours has counted until its end with those on the wire.
fn compare_counts(subject: &Subject, own: Option<Requests>, formatted: Sent) -> anyhow::Result<()> {
    if matches!(subject.kind, Kind::Ours { .. }) {
        let own = own.context(UNSAID)?;
        let sent = subject.sent()?.map(|sent| (sent - formatted).as_requests());
        ensure!(sent == Some(own), "{own:?} by the process's own count, on the wire {sent:?}");
    }
    Ok(())
}

/// Mounts a peer again, if it has left something on this host, until that is uploaded; what that
/// took.
fn upload_rest(subject: &Subject) -> anyhow::Result<Sent> {
    if !subject.has_something_to_upload()? {
        return Ok(Sent::default());
    }
    let before = subject.sent()?;
    let mounted = subject.mount()?;
    wait_until_uploaded(subject)?;
    let after = subject.sent()?;
    mounted.umount()?.end()?;
    Ok(after.zip(before).map(|(after, before)| after - before).unwrap_or_default())
}

fn wait_until_uploaded(subject: &Subject) -> anyhow::Result<()> {
    let until = Instant::now() + UPLOADED_MAX;
    while subject.has_something_to_upload()? {
        ensure!(Instant::now() < until, "not uploaded after {} s", UPLOADED_MAX.as_secs());
        // A peer tells nobody when it has; that shows in its directory alone.
        thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// The work of a kind of scenario.
///
/// # Errors
/// If it cannot be done, or prepared.
pub(super) fn by_kind(
    of: (&str, &str),
    kind: &str,
    subject: &Subject,
    (server, name, scratch): (&Server, &str, &Path),
    recorder: &mut Recorder,
) -> anyhow::Result<()> {
    let at = (server, name);
    if let Some(archive) = Archive::of(kind, scratch)? {
        let (prepare, done) = (|_: &Path| Ok(()), |at: &Path| archive.unpack(at));
        let expected = Expected::tree(&archive.tree)?;
        let work = Work { prepare: &prepare, done: &done, expected, removes: false };
        return measure(of, &work, subject, at, recorder);
    }
    let tree = scratch.join("tree");
    if !tree.exists() {
        plant(&tree)?;
    }
    if kind == "rm" {
        let prepare = |at: &Path| {
            run(Command::new("cp").arg("-r").arg(&tree).arg(at))?;
            rustix::fs::syncfs(File::open(at)?).context("syncfs")
        };
        let done = |at: &Path| run(Command::new("rm").arg("-rf").arg(at.join("tree")));
        let expected = Expected::below("tree", &tree)?;
        return measure(
            of,
            &Work { prepare: &prepare, done: &done, expected, removes: true },
            subject,
            at,
            recorder,
        );
    }
    let done = |at: &Path| if kind == "git" { git(at, &tree) } else { sqlite(at) };
    // On this host's own file system, by which it is known what there is to be found.
    let model = scratch.join(format!("{kind}.model"));
    if !model.exists() {
        fs::create_dir(&model)?;
        done(&model)?;
    }
    // Git writes there what the file system can do.
    let expected = Expected::sizes(&model, &[".git/config"])?;
    let work = Work { prepare: &|_| Ok(()), done: &done, expected, removes: false };
    measure(of, &work, subject, at, recorder)
}

fn git(at: &Path, tree: &Path) -> anyhow::Result<()> {
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command.current_dir(at).args(["-c", "user.name=lab", "-c", "user.email=lab@example.com"]);
        command.args(["-c", "gc.auto=0", "-c", "init.defaultBranch=main", "-c", "safe.directory=*"]);
        // So that what comes of it has the same names and sizes each time.
        command.args(["-c", "pack.threads=1"]);
        command.env("GIT_AUTHOR_DATE", "@1700000000 +0000").env("GIT_COMMITTER_DATE", "@1700000000 +0000");
        run(command.args(arguments))
    };
    git(&["init", "--quiet", "."])?;
    run(Command::new("cp").arg("-r").arg(tree.join(".")).arg(at))?;
    git(&["add", "."])?;
    git(&["commit", "--quiet", "-m", "all"])?;
    git(&["checkout", "--quiet", "-b", "other"])?;
    git(&["gc", "--quiet"])
}

fn sqlite(at: &Path) -> anyhow::Result<()> {
    let mut script = String::from("PRAGMA synchronous=FULL; CREATE TABLE t(a INTEGER, b TEXT);\n");
    for number in 0..50 {
        script.push_str(&format!("INSERT INTO t VALUES({number}, printf('%.500c', 'x'));\n"));
    }
    run(Command::new("sqlite3").arg(at.join("database")).arg(script))
}

/// A small tree of sources.
fn plant(tree: &Path) -> anyhow::Result<()> {
    let mut data = vec![0; 16 << 10];
    for number in 0..300_usize {
        let directory = tree.join(format!("d{:02}", number % 20));
        fs::create_dir_all(&directory)?;
        Random::new(number as u64).fill(&mut data);
        fs::write(directory.join(format!("file-{number}")), &data[..100 + number * 50])?;
    }
    Ok(())
}

fn run(command: &mut Command) -> anyhow::Result<()> {
    let output = command.output().with_context(|| format!("{:?}", command.get_program()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{:?}: {}", command.get_program(), said.trim());
    Ok(())
}
