//! Other people's suites: pjdfstest, fsx, stress-ng.
//!
//! `cargo install --locked pjdfstest@0.2.2 fsx@0.3.2` brings the first two.
#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use watertight_acceptance::program::{find, have};
use watertight_acceptance::scratch::Scratch;
use watertight_acceptance::stress;
use watertight_acceptance::subject::need_root;
use watertight_acceptance::{Cmd, Setup, Subject, is_long, note};

/// What pjdfstest said.
struct Verdict {
    failed: BTreeSet<String>,
    skipped: BTreeSet<String>,
    passed: usize,
    said: String,
}

/// Every test of the suite in `dir`; a second file system is at `secondary`.
fn pjdfstest(dir: &Path, config: &Path, secondary: &Path) -> Verdict {
    let tool = find("pjdfstest").expect("looked up before");
    let output = Cmd::new(tool)
        .arg("--configuration-file")
        .arg(config)
        .arg("--secondary-fs")
        .arg(secondary)
        .arg("--path")
        .arg(dir)
        .env("NO_COLOR", "1")
        .limit(Duration::from_secs(300))
        .run();
    let said = output.out();
    let ended = |how: &str| -> BTreeSet<String> {
        said.lines()
            .filter_map(|line| line.strip_suffix(how))
            .filter(|name| name.ends_with(' ') && !name.starts_with(['\t', ' ']))
            .map(|name| name.trim().to_owned())
            .collect()
    };
    let (failed, skipped) = (ended("FAILED"), ended("skipped"));
    let passed = ended("ok").len();
    let summary = format!("{} failed, {} skipped, {passed} passed", failed.len(), skipped.len());
    assert!(said.contains(&summary), "the summary is not {summary:?}:\n{said}\n{}", output.err());
    Verdict { failed, skipped, passed, said }
}

/// Two unprivileged users of this machine with their groups, as the suite's configuration wants
/// them.
fn dummy_users() -> Option<String> {
    let group_name = |gid: &str| {
        let groups = fs::read_to_string("/etc/group").ok()?;
        groups.lines().find_map(|line| {
            let fields: Vec<&str> = line.split(':').collect();
            (fields.get(2) == Some(&gid)).then(|| fields[0].to_owned())
        })
    };
    let users = fs::read_to_string("/etc/passwd").ok()?;
    let entry = |user: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(user))?;
        let group = group_name(line.split(':').nth(3)?)?;
        Some(format!("[\"{user}\", \"{group}\"]"))
    };
    let found: Vec<String> =
        ["nobody", "tests", "daemon", "bin", "games"].into_iter().filter_map(entry).take(2).collect();
    (found.len() == 2).then(|| found.join(", "))
}

fn pjdfstest_config(dir: &Path) -> Option<std::path::PathBuf> {
    let users = dummy_users()?;
    let text = format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nutimensat = {{}}\nutime_now = {{}}\n\
         stat_st_birthtime = {{}}\n\
         [settings]\nnaptime = 0.01\nallow_remount = false\n\
         [dummy_auth]\nentries = [{users}]\n"
    );
    let path = dir.join("pjdfstest.toml");
    fs::write(&path, text).expect("write the configuration");
    Some(path)
}

/// Skipped on every FUSE file system: the C library tells the limit of links by the file system's
/// type only, and does not know it for FUSE. [`link_count_is_bounded_as_in_the_store`] is in its
/// place.
const LINK_MAX_TEST: &str = "link::link_count_max";

fn pjdfstest_on(name: &str, setup: Setup) {
    if !have(name, &["pjdfstest"]) || !need_root(name) {
        return;
    }
    let scratch = Scratch::new(name);
    let Some(config) = pjdfstest_config(scratch.path()) else {
        watertight_acceptance::skip(name, "this machine lacks two unprivileged users");
        return;
    };
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let host_dir = scratch.dir("host");
    let host = pjdfstest(&host_dir, &config, Path::new("/dev/shm"));
    let ours = pjdfstest(subject.path(), &config, Path::new("/dev/shm"));
    note(
        name,
        &format!(
            "{} passed, {} skipped, {} failed; the host's own: {}, {}, {}",
            ours.passed,
            ours.skipped.len(),
            ours.failed.len(),
            host.passed,
            host.skipped.len(),
            host.failed.len()
        ),
    );
    assert!(ours.failed.is_empty(), "failed: {:#?}\n{}", ours.failed, ours.said);
    let mut more: Vec<_> = ours.skipped.difference(&host.skipped).collect();
    more.retain(|test| *test != LINK_MAX_TEST);
    assert!(more.is_empty(), "skipped here and not on the host's file system: {more:#?}");
    assert!(ours.passed >= 380, "only {} tests ran", ours.passed);
    subject.close();
}

#[test]
fn pjdfstest_whole() {
    pjdfstest_on("pjdfs", Setup::default());
}

#[test]
fn pjdfstest_whole_with_kernel_writeback() {
    pjdfstest_on("pjdfs-wb", Setup::default().option("mode=kernel-writeback"));
}

/// As many names as the host's file system allows, and EMLINK for one more: what pjdfstest cannot
/// test here.
#[test]
fn link_count_is_bounded_as_in_the_store() {
    let name = "link-max";
    let Some(mut subject) = Subject::start(name) else { return };
    if subject.is_in_bucket() {
        watertight_acceptance::skip(name, "a bucket has no limit that can be met");
        return;
    }
    let most = watertight_acceptance::sys::link_max(subject.store()).unwrap();
    // 127 is what the C library says when it does not know.
    if !(128..=70_000).contains(&most) {
        watertight_acceptance::skip(name, &format!("the host's file system allows {most} links"));
        return;
    }
    let file = subject.at("file");
    fs::write(&file, "x").unwrap();
    let dir = subject.at("links");
    fs::create_dir(&dir).unwrap();
    for n in 1..most {
        fs::hard_link(&file, dir.join(n.to_string())).unwrap_or_else(|e| panic!("link {n} of {most}: {e}"));
    }
    let more = fs::hard_link(&file, dir.join("one more")).unwrap_err();
    assert_eq!(more.raw_os_error(), Some(libc::EMLINK));
    assert_eq!(std::os::unix::fs::MetadataExt::nlink(&fs::metadata(&file).unwrap()), most);
    fs::remove_dir_all(&dir).unwrap();
    fs::hard_link(&file, subject.at("again")).unwrap();
    subject.close();
}

/// Reads, writes, maps, truncates, punches, copies at random, every read compared: 100 000
/// operations.
fn fsx(name: &str, seed: u64, operations: u64, more: &str, setup: Setup) {
    if !have(name, &["fsx"]) {
        return;
    }
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let artifacts = subject.outside("artifacts");
    let config = artifacts.join("fsx.toml");
    // Few fsyncs: each waits for the host's disk, as msync after each mapped write does unless
    // `more` says no.
    fs::write(
        &config,
        format!(
            "flen = 1048576\n{more}[opsize]\nmax = 131072\n[weights]\nclose_open = 1.0\ninvalidate = 1.0\n\
             mapread = 2.0\nmapwrite = 2.0\nread = 4.0\nwrite = 4.0\ntruncate = 2.0\nfsync = 0.02\n\
             fdatasync = 0.02\nposix_fallocate = 1.0\npunch_hole = 1.0\nsendfile = 1.0\n\
             posix_fadvise = 1.0\ncopy_file_range = 1.0\n"
        ),
    )
    .unwrap();
    let operations = if is_long() { operations * 10 } else { operations };
    let output = Cmd::new(find("fsx").expect("looked up before"))
        .args(["-N", &operations.to_string(), "-S", &seed.to_string()])
        .arg("-f")
        .arg(&config)
        .arg("-P")
        .arg(&artifacts)
        .arg(subject.at("file"))
        .limit(Duration::from_secs(400))
        .ok();
    assert!(output.out().contains("A-OK"), "{}\n{}", output.out(), output.err());
    note(name, &format!("{operations} operations in {:.1} s", output.took.as_secs_f64()));
    // What fsx wrote last was compared on the mount; the store must hold the same.
    let data = fs::read(subject.at("file")).unwrap();
    subject.close();
    assert!(fs::read(subject.store().join("file")).unwrap() == data, "in the store");
}

const NO_MSYNC: &str = "nomsyncafterwrite = true\n";

fn fsx_setup() -> Setup {
    Setup::default().limit(Duration::from_secs(450))
}

#[test]
fn fsx_seed_1() {
    fsx("fsx-1", 1, 100_000, "", fsx_setup());
}

#[test]
fn fsx_seed_2_without_msync() {
    // Mapped pages stay dirty in the kernel while everything else goes on.
    fsx("fsx-2", 2, 100_000, NO_MSYNC, fsx_setup());
}

#[test]
fn fsx_seed_3_small_cache() {
    // Pages come and go all the time.
    fsx("fsx-3", 3, 100_000, NO_MSYNC, fsx_setup().option("cache=4M"));
}

#[test]
fn fsx_with_kernel_writeback() {
    fsx("fsx-wb", 4, 30_000, NO_MSYNC, fsx_setup().option("mode=kernel-writeback"));
}

/// The file stressors of stress-ng that pass on ext4. Not among them: what needs a mount of its own
/// (bind-mount, binderfs) and what works on other files than those in its directory (procfs,
/// tmpfs). fanotify, which opens files of every mount of the machine, has a test program of its
/// own.
const STRESSORS: &[&str] = &[
    "access",
    "aio",
    "aiol",
    "chattr",
    "chdir",
    "chmod",
    "chown",
    "copy-file",
    "dentry",
    "dir",
    "dirdeep",
    "dirmany",
    "dnotify",
    "dup",
    "fallocate",
    "fcntl",
    "fiemap",
    "file-ioctl",
    "filename",
    "flock",
    "fpunch",
    "fsize",
    "fstat",
    "getdent",
    "handle",
    "hdd",
    "inode-flags",
    "inotify",
    "io",
    "iomix",
    "lease",
    "link",
    "locka",
    "lockf",
    "lockofd",
    "mknod",
    "msync",
    "open",
    "readahead",
    "rename",
    "revio",
    "seek",
    "sendfile",
    "splice",
    "symlink",
    "sync-file",
    "touch",
    "utime",
    "verity",
    "xattr",
];

/// Stressors that may be skipped on a mount although the host's own file system has what they need.
const SKIPPED_HERE_ONLY: &[(&str, &str)] =
    &[("fiemap", "the kernel never asks a FUSE file system where a file's extents are")];

/// Every `of`-th stressor from `first` on, on one mount.
fn stressors(name: &str, first: usize, of: usize) {
    if !have(name, &["stress-ng"]) {
        return;
    }
    let Some(mut subject) = Subject::with(name, Setup::default().limit(Duration::from_secs(600))) else {
        return;
    };
    let host = Scratch::new(name);
    let (mut passed, mut not_here, mut neither) = (0, Vec::new(), Vec::new());
    let (mut wrong_on_both, mut worse) = (Vec::new(), Vec::new());
    for stressor in STRESSORS.iter().skip(first).step_by(of) {
        let here = stress::run(stressor, subject.path());
        match stress::judge(stressor, here, || stress::run(stressor, host.path()), SKIPPED_HERE_ONLY) {
            stress::Verdict::Passed => passed += 1,
            stress::Verdict::Excepted(why) => not_here.push(format!("{stressor}: {why}")),
            stress::Verdict::SkippedOnBoth(why) => neither.push(format!("{stressor}: {why}")),
            stress::Verdict::FailsOnBoth(why) => wrong_on_both.push(format!("{stressor}: {why}")),
            stress::Verdict::Worse(why) => worse.push(format!("{stressor}: {why}")),
        }
        assert!(subject.is_alive(), "{stressor} ended the mount:\n{}", worse.join("\n"));
    }
    note(
        name,
        &format!(
            "{passed} passed, {} skipped on the host's file system too, {} here only, {} fail there too, {} here only",
            neither.len(),
            not_here.len(),
            wrong_on_both.len(),
            worse.len()
        ),
    );
    for (what, which) in [("on both", neither), ("here only", not_here), ("fails on both", wrong_on_both)] {
        which.iter().for_each(|one| note(name, &format!("{what}: {one}")));
    }
    assert!(worse.is_empty(), "worse than the host's file system:\n{}", worse.join("\n"));
    assert!(passed * 10 >= STRESSORS.len() / of * 8, "only {passed} stressors did anything");
    subject.close();
}

#[test]
fn stress_ng_first_half() {
    stressors("stress-ng-1", 0, 2);
}

#[test]
fn stress_ng_second_half() {
    stressors("stress-ng-2", 1, 2);
}
