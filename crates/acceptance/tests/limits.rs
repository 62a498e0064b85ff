//! What is bounded stays bounded, and what fails is reported: memory, a full store, a store that
//! fails.
#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use watertight_acceptance::rng::Rng;
use watertight_acceptance::scratch::{Scratch, detach};
use watertight_acceptance::subject::{is_host, need_root};
use watertight_acceptance::{Cmd, Setup, Subject, note};

const MIB: usize = 1 << 20;

/// What the program may use besides its cache: code, tables, threads at rest with their buffers.
const FIXED_KIB: u64 = 32 << 10;

/// What each write that is under way needs besides: its data (1 MiB at most) and a thread.
const WRITE_KIB: u64 = 1152;

/// Writes that the kernel has under way for itself, in write-back mode.
const KERNEL_WRITES: u64 = 64;

/// What a volume in a bucket needs besides: data on its way (64 MiB, of which four segments of 8 MiB
/// are there twice and encoded), rows and parts of objects that are kept.
const BUCKET_KIB: u64 = 256 << 10;

/// Fails when more was resident than a cache of 64 MiB and `writes` at a time allow.
fn assert_bounded(subject: &Subject, writes: u64, took: Duration) {
    if subject.is_host() {
        return;
    }
    let writes = if subject.is_kernel_writeback() { KERNEL_WRITES } else { writes };
    let bucket = if subject.is_in_bucket() { BUCKET_KIB } else { 0 };
    let bound = (64 << 10) + FIXED_KIB + writes * WRITE_KIB + bucket;
    let most = subject.daemon().memory_kib("VmHWM");
    note(
        subject.name(),
        &format!(
            "{:.1} s, at most {:.1} MiB resident, allowed {:.1} MiB",
            took.as_secs_f64(),
            most as f64 / 1024.0,
            bound as f64 / 1024.0
        ),
    );
    assert!(most <= bound, "{most} KiB resident at the most, allowed {bound}");
}

/// 4 GiB through a cache of 64 MiB to a store of some 200 MB/s: the writer waits, memory stays.
#[test]
fn memory_stays_under_its_bound() {
    let name = "memory-bound";
    let setup = Setup::default().option("cache=64M").fault("write:delay=4ms");
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let (file_mib, turns) = (256_u64, 16_u64);
    let path = subject.at("big");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let mut block = Rng::new(1).bytes(MIB);
    let started = Instant::now();
    for turn in 0..turns {
        for at in 0..file_mib {
            block[..8].copy_from_slice(&(turn << 32 | at).to_le_bytes());
            file.write_all_at(&block, at * MIB as u64).unwrap();
        }
    }
    assert_bounded(&subject, 1, started.elapsed());
    drop(file);
    subject.close();
    let stored = File::open(subject.store().join("big")).unwrap();
    let mut is = vec![0; MIB];
    for at in 0..file_mib {
        block[..8].copy_from_slice(&((turns - 1) << 32 | at).to_le_bytes());
        stored.read_exact_at(&mut is, at * MIB as u64).unwrap();
        assert!(is == block, "MiB {at} in the store");
    }
}

/// Sixty-four writers at a time, each of which may have one write waiting for room.
#[test]
fn memory_of_many_writers_stays_under_its_bound() {
    let name = "memory-writers";
    let setup = Setup::default().option("cache=64M").fault("write:delay=10ms");
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let (writers, each) = (64_u64, 8);
    let started = Instant::now();
    let block = |writer: u64| Rng::new(writer).bytes(MIB);
    std::thread::scope(|scope| {
        for writer in 0..writers {
            let path = subject.at(&writer.to_string());
            scope.spawn(move || {
                let (file, block) = (File::create(path).unwrap(), block(writer));
                (0..each).for_each(|at| file.write_all_at(&block, (at * MIB) as u64).unwrap());
            });
        }
    });
    assert_bounded(&subject, writers, started.elapsed());
    subject.close();
    for writer in 0..writers {
        let stored = fs::read(subject.store().join(writer.to_string())).unwrap();
        let block = block(writer);
        assert_eq!(stored.len(), block.len() * each);
        assert!(stored.chunks(MIB).all(|part| part == block), "file {writer} in the store");
    }
}

/// How long a removed file's space may stay in use.
const SPACE_LIMIT: Duration = Duration::from_secs(30);

/// A small tmpfs, unmounted when dropped.
struct SmallFs {
    path: PathBuf,
    _scratch: Scratch,
}

impl SmallFs {
    fn new(name: &str, mib: u64) -> Self {
        let scratch = Scratch::new(name);
        let path = scratch.dir("full");
        Cmd::new("mount")
            .args(["-t", "tmpfs", "-o"])
            .arg(format!("size={mib}m,mode=755"))
            .args(["tmpfs".as_ref(), path.as_os_str()])
            .ok();
        Self { path, _scratch: scratch }
    }
}

impl Drop for SmallFs {
    fn drop(&mut self) {
        detach(&self.path);
    }
}

/// Writes `data` in parts until one fails; how much was accepted, and the error.
fn write_until_refused(file: &File, data: &[u8]) -> (usize, Option<io::Error>) {
    let mut done = 0;
    while done < data.len() {
        let part = &data[done..data.len().min(done + 65_536)];
        match file.write_at(part, done as u64) {
            Ok(n) => done += n,
            Err(e) => return (done, Some(e)),
        }
    }
    (done, None)
}

/// The store is full: write(2) takes what fits the cache, fsync reports it, the data stays, and is
/// written once there is room.
#[test]
fn a_full_store_reaches_fsync() {
    let name = "store-full";
    if !need_root(name) {
        return;
    }
    let full = SmallFs::new(name, 12);
    // Far more cache than is written, so that no writer has to wait for room in it.
    let setup = Setup::default().option("cache=64M").store(&full.path);
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let mut rng = Rng::new(8);
    fs::write(subject.at("ballast"), rng.bytes(8 << 20)).unwrap();
    File::open(subject.at("ballast")).unwrap().sync_all().unwrap();
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(subject.at("file")).unwrap();
    let data = rng.bytes(8 << 20);
    let (accepted, refused) = write_until_refused(&file, &data);
    let synced = file.sync_all();
    let code = |e: &io::Error| e.raw_os_error();
    let at_write = refused.as_ref().and_then(code);
    let at_fsync = synced.as_ref().err().and_then(code);
    note(name, &format!("{accepted} bytes accepted; write: {at_write:?}, fsync: {at_fsync:?}"));
    if subject.is_host() {
        assert_eq!(at_write, Some(libc::ENOSPC), "a plain directory refuses the write itself");
    } else {
        assert_eq!((at_write, accepted), (None, data.len()), "a write that fits the cache is accepted");
        assert_eq!(at_fsync, Some(libc::ENOSPC), "fsync of what does not fit");
    }
    let mut is = vec![0; accepted];
    file.read_exact_at(&mut is, 0).unwrap();
    assert!(is == data[..accepted], "what was accepted is still there to read");
    fs::remove_file(subject.at("ballast")).unwrap();
    // The kernel reports a file's end when it likes; until then its space is in use.
    let started = Instant::now();
    while let Err(e) = file.sync_all() {
        assert_eq!(code(&e), Some(libc::ENOSPC));
        assert!(started.elapsed() < SPACE_LIMIT, "a removed file's space is not free after {SPACE_LIMIT:?}");
        std::thread::sleep(Duration::from_millis(50));
    }
    note(name, &format!("there was room {:?} after the removal", started.elapsed()));
    assert!(fs::read(full.path.join("file")).unwrap() == data[..accepted], "in the store");
    assert_eq!(write_until_refused(&file, &data[..2 << 20]).0, 2 << 20, "writes go on");
    drop(file);
    subject.close();
}

/// A failed write-back is reported once to every open file, the data stays, and is written when the
/// store recovers.
#[test]
fn a_failed_write_back_is_told_once_to_each() {
    let name = "eio-once";
    if is_host() {
        watertight_acceptance::skip(name, "a plain directory does not fail on purpose");
        return;
    }
    let setup = Setup::default().fault("write:nth=1:fail=EIO");
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let path = subject.at("file");
    let open =
        |path: &Path| OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let (first, second) = (open(&path).unwrap(), open(&path).unwrap());
    first.write_all_at(b"written while the store fails", 0).unwrap();
    let code = |r: io::Result<()>| r.err().and_then(|e| e.raw_os_error());
    assert_eq!(code(first.sync_all()), Some(libc::EIO), "the first opener's first fsync");
    assert_eq!(code(second.sync_all()), Some(libc::EIO), "the second opener's first fsync");
    let late = open(&path).unwrap();
    assert_eq!(code(first.sync_all()), None, "the first opener's second fsync: the store is well again");
    assert_eq!(code(second.sync_all()), None, "the second opener's second fsync");
    assert_eq!(code(late.sync_all()), None, "one that was opened after the error had been told");
    let check = |subject: &Subject| {
        assert_eq!(fs::read(subject.store().join("file")).unwrap(), b"written while the store fails");
    };
    // Nobody else can look into a bucket's volume before it is unmounted.
    if !subject.is_in_bucket() {
        check(&subject);
    }
    drop((first, second, late));
    subject.close();
    check(&subject);
}

/// As long as the store fails, every fsync does; nothing is dropped.
#[test]
fn data_outlives_a_failing_store() {
    let name = "failing-store";
    if is_host() {
        watertight_acceptance::skip(name, "a plain directory does not fail on purpose");
        return;
    }
    let rules: Vec<String> = (1..=5).map(|n| format!("write:nth={n}:fail=EIO")).collect();
    let Some(mut subject) = Subject::with(name, Setup::default().fault(rules.join(";"))) else { return };
    let path = subject.at("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    let data = Rng::new(2).bytes(300_000);
    file.write_all_at(&data, 0).unwrap();
    let mut failures = 0;
    // Each fsync writes at least once, so the rule of five failures is used up.
    while let Err(e) = file.sync_all() {
        assert_eq!(e.raw_os_error(), Some(libc::EIO));
        assert!(fs::read(&path).unwrap() == data, "the data stays readable after failure {failures}");
        failures += 1;
        assert!(failures <= 6, "fsync fails although the store recovered");
    }
    assert!(failures > 0, "no fsync told of a failure");
    let check =
        |subject: &Subject| assert!(fs::read(subject.store().join("file")).unwrap() == data, "in the store");
    if !subject.is_in_bucket() {
        check(&subject);
    }
    drop(file);
    subject.close();
    check(&subject);
}
