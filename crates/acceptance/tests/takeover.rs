//! A volume in a bucket is taken over from a holder that stopped: all that it acknowledged is there,
//! and once it goes on it acknowledges nothing more and changes nothing.
//!
//! The holder is stopped (SIGSTOP) in the middle of its writer's fsyncs, for longer than a holder
//! may leave a claim without an answer, and continued while the new holder writes. The writer is a
//! process of its own: one that starts others must have no file open of a server that is stopped,
//! for they would close it, and so wait for that server, in the middle of execve(2).

use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use watertight_acceptance::daemon::{Daemon, RUNTIME_DIR};
use watertight_acceptance::rng::Rng;
use watertight_acceptance::scratch::{Scratch, detach};
use watertight_acceptance::subject::{bucket, new_volume};
use watertight_acceptance::{Cmd, is_long, note, program, skip};

const NAME: &str = "takeover";

const WORKER: &str = env!("CARGO_BIN_EXE_acceptance-worker");

/// How long a verb or a process may take. Far more than it needs: the machine may be busy.
const LIMIT: Duration = Duration::from_secs(120);

/// Bytes of a record: its number, repeated.
const RECORD: usize = 512;

/// A new volume and two places where hosts mount it, each with a runtime directory of its own.
struct Volume {
    url: String,
    scratch: Scratch,
}

impl Volume {
    fn new(number: u64) -> Self {
        let scratch = Scratch::new(&format!("{NAME}-{number}"));
        let below = bucket().unwrap_or_else(|| format!("file://{}", scratch.dir("bucket").display()));
        let url = new_volume(&below, &scratch);
        for host in ["a", "b"] {
            let _mountpoint = scratch.dir(host);
            let _runtime = scratch.private_dir(&format!("run-{host}"));
        }
        Self { url, scratch }
    }

    fn mountpoint(&self, host: &str) -> PathBuf {
        self.scratch.path().join(host)
    }

    fn runtime(&self, host: &str) -> PathBuf {
        self.scratch.path().join(format!("run-{host}"))
    }

    fn mount(&self, host: &str, options: &[&str]) -> Daemon {
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        Daemon::mount(&self.url.clone().into(), &self.mountpoint(host), &options, &self.runtime(host))
            .unwrap_or_else(|said| panic!("host {host}: {said}"))
    }

    fn unmount(&self, host: &str, mut daemon: Daemon) {
        let program = Cmd::new(program::watertight()).env(RUNTIME_DIR, self.runtime(host));
        program.arg("umount").arg(self.mountpoint(host)).ok();
        let ended = daemon.wait(LIMIT).expect("the program leaves");
        assert!(ended.success(), "{}: {ended}\n{}", daemon.command(), daemon.log().text());
    }
}

fn record(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(RECORD / 8)
}

/// How many whole records a log has from its start; the rest must be nothing.
fn records(path: &Path) -> u64 {
    let data = fs::read(path).expect("read the log");
    assert_eq!(data.len() % RECORD, 0, "{}: no record is torn", path.display());
    for (number, data) in data.chunks(RECORD).enumerate() {
        assert!(data == record(number as u64), "record {number} in {}", path.display());
    }
    (data.len() / RECORD) as u64
}

/// One round; returns how many records the new holder found.
fn round(volume: &Volume, number: u64, rng: &mut Rng) -> u64 {
    let mut first = volume.mount("a", &[]);
    let name = format!("log-{number}");
    let log = |host: &str| volume.mountpoint(host).join(&name);
    let mut writer = Cmd::new(WORKER).arg("log").arg(log("a")).quiet().start();
    let mut acknowledgements = writer.stdout().expect("a pipe");
    let count = Arc::new(AtomicU64::new(0));
    let (tell, begun) = mpsc::channel::<()>();
    let counter = thread::spawn({
        let count = Arc::clone(&count);
        move || {
            let mut tell = Some(tell);
            let mut bytes = [0; 64];
            while let Ok(read @ 1..) = acknowledgements.read(&mut bytes) {
                count.fetch_add(read as u64, Ordering::SeqCst);
                tell = None;
            }
            drop(tell);
        }
    });
    let _closed = begun.recv();
    thread::sleep(Duration::from_micros(rng.range(0, 50_000)));
    first.signal(Signal::STOP);
    // What it had answered before is acknowledged; this takes longer than to count that.
    let second = volume.mount("b", &["takeover"]);
    let before = count.load(Ordering::SeqCst);
    assert!(before > 0, "the writer was at work");
    let found = records(&log("b"));
    assert!(found >= before, "{found} records are there, {before} were acknowledged");

    let marker_path = volume.mountpoint("b").join(format!("marker-{number}"));
    let marker = File::create(&marker_path).expect("create");
    first.signal(Signal::CONT);
    for at in 0..20 {
        marker.write_all_at(&record(at), at * RECORD as u64).expect("write");
        marker.sync_all().expect("the new holder's fsync");
    }
    drop(marker);
    assert!(writer.wait(LIMIT).is_some_and(|ended| !ended.success()), "the writer's next fsync fails");
    counter.join().expect("the counter");
    // One that was in the bucket when the holder stopped may be answered when it goes on: that is
    // true.
    let after = count.load(Ordering::SeqCst);
    assert!(after <= found, "{after} fsyncs were acknowledged, and {found} records are there");
    assert_eq!(records(&log("b")), found, "what the new holder found");
    volume.unmount("b", second);
    let said = first.log().text();
    assert!(said.contains("the volume was taken over"), "the old holder says:\n{said}");
    first.kill();
    detach(&volume.mountpoint("a"));

    let third = volume.mount("b", &[]);
    assert_eq!(records(&log("b")), found, "at the next mount");
    assert_eq!(records(&marker_path), 20);
    volume.unmount("b", third);
    found
}

/// Volumes beside each other, for each round waits longer than a holder may leave a claim alone.
#[test]
fn a_holder_that_was_replaced_acknowledges_nothing() {
    if !Path::new("/dev/fuse").exists() || !program::can_mount() {
        skip(NAME, "nothing can be mounted here");
        return;
    }
    let (volumes, rounds) = if is_long() { (10, 20) } else { (2, 1) };
    let found: u64 = thread::scope(|scope| {
        let all: Vec<_> = (0..volumes)
            .map(|number| {
                scope.spawn(move || {
                    let (volume, mut rng) = (Volume::new(number), Rng::new(number));
                    (0..rounds).map(|at| round(&volume, at, &mut rng)).sum::<u64>()
                })
            })
            .collect();
        all.into_iter().map(|volume| volume.join().expect("a volume's rounds")).sum()
    });
    note(
        NAME,
        &format!(
            "{} takeovers from a stopped holder, {found} synced records found, none acknowledged falsely",
            volumes * rounds
        ),
    );
}
