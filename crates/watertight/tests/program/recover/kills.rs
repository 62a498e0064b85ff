//! Programs that check all that they see, while servers are killed.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{CWD, RenameFlags, XattrFlags};
use rustix::process::{Pid, Signal, kill_process};

use super::Kept;
use crate::rig::eventually;
use crate::upgrade::load::Load;

/// How often servers are killed in a test.
pub(super) const KILLS: u64 = 8;
/// Changes of a round of [`change_names`].
const CHANGES: u64 = 14;

/// How long callers have waited.
struct Pauses(Vec<Duration>);

impl Pauses {
    /// Kills the server, and has a name looked for that nobody has asked for.
    fn kill(&mut self, it: &Kept, server: Pid) {
        kill_process(server, Signal::KILL).unwrap();
        let begun = Instant::now();
        fs::metadata(it.at(&format!("unknown{}", self.0.len()))).unwrap_err();
        self.0.push(begun.elapsed());
    }

    fn tell(mut self, what: &str) {
        self.0.sort_unstable();
        let at = |part: usize| self.0[(self.0.len() - 1) * part / 100];
        eprintln!(
            "{what}: {} kills, pause p50 {:?}, p99 {:?}, max {:?}",
            self.0.len(),
            at(50),
            at(99),
            at(100)
        );
    }
}

#[test]
fn programs_notice_a_pause_when_the_server_is_killed() {
    let Some(it) = Kept::mount("") else { return };
    check_load(it, "programs of all kinds");
}

pub(super) fn check_load(mut it: Kept, what: &str) {
    let load = Load::start(&it.rig.mnt);
    let mut pauses = Pauses(Vec::new());
    for n in 1..=KILLS {
        load.step();
        // Anywhere in what the programs do.
        thread::sleep(Duration::from_micros(n * 7919 % 10_000));
        pauses.kill(&it, it.server());
        load.check();
        assert_eq!(it.recovery(), ("on".to_owned(), n), "{}", it.keeper.stderr());
    }
    pauses.tell(what);
    load.finish();
    load.is_in(&it.end());
}

/// Makes every kind of change that a second execution would answer otherwise, until the end.
fn change_names(dir: &Path, is_over: &AtomicBool, rounds: &AtomicU64) {
    fs::create_dir(dir).unwrap();
    let at = |name: &str| dir.join(name);
    let mut round = 0;
    while !is_over.load(Ordering::SeqCst) {
        fs::create_dir(at("dir")).unwrap();
        let mut file = OpenOptions::new().write(true).create_new(true).open(at("dir/file")).unwrap();
        file.write_all(b"file").unwrap();
        drop(file);
        symlink("target", at("link")).unwrap();
        fs::hard_link(at("dir/file"), at("hard")).unwrap();
        rustix::fs::setxattr(at("hard"), "user.one", b"1", XattrFlags::CREATE).unwrap();
        rustix::fs::removexattr(at("hard"), "user.one").unwrap();
        fs::rename(at("hard"), at("moved")).unwrap();
        rustix::fs::renameat_with(CWD, at("moved"), CWD, at("link"), RenameFlags::EXCHANGE).unwrap();
        assert_eq!(fs::read_link(at("moved")).unwrap(), Path::new("target"), "exchanged once");
        assert_eq!(fs::metadata(at("link")).unwrap().nlink(), 2);
        let mut log = OpenOptions::new().append(true).create(true).open(at("log")).unwrap();
        log.write_all(&[b'.'; 3]).unwrap();
        fs::remove_file(at("moved")).unwrap();
        fs::remove_file(at("link")).unwrap();
        fs::remove_file(at("dir/file")).unwrap();
        fs::remove_dir(at("dir")).unwrap();
        round += 1;
        rounds.store(round, Ordering::SeqCst);
    }
}

/// Writes large parts of a file, and reads them from the server, until the end.
fn write_and_read(path: &Path, is_over: &AtomicBool, rounds: &AtomicU64) {
    const LEN: usize = 1 << 20;
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(true).open(path).unwrap();
    let mut round = 0_u64;
    let mut read = vec![0; LEN];
    while !is_over.load(Ordering::SeqCst) {
        let byte = u8::try_from(round % 251).unwrap();
        file.write_all_at(&vec![byte; LEN], 0).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        file.read_exact_at(&mut read, 0).unwrap();
        assert!(read.iter().all(|read| *read == byte), "what was written last");
        round += 1;
        rounds.store(round, Ordering::SeqCst);
    }
}

/// Programs that go on until this is dropped, also where the test has failed.
struct Programs<'a> {
    is_over: &'a AtomicBool,
    rounds: &'a [AtomicU64],
}

impl Drop for Programs<'_> {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// The programs: four that change names, one that writes and reads. Kills servers so often; between two
/// of them each program comes on.
pub(super) fn check_kills(it: &mut Kept, kills: u64, what: &str) {
    let is_over = AtomicBool::new(false);
    let rounds: Vec<AtomicU64> = (0..5).map(|_| AtomicU64::new(0)).collect();
    let mut pauses = Pauses(Vec::new());
    let kept = &*it;
    thread::scope(|scope| {
        let programs = Programs { is_over: &is_over, rounds: &rounds };
        let workers: Vec<_> = (0..5)
            .map(|n: usize| {
                let (at, is_over, rounds) = (kept.at(&n.to_string()), &is_over, &rounds[n]);
                scope.spawn(move || match n {
                    4 => write_and_read(&at, is_over, rounds),
                    _ => change_names(&at, is_over, rounds),
                })
            })
            .collect();
        let mut server = kept.server();
        for n in 1..=kills {
            // Anywhere in what the programs do.
            thread::sleep(Duration::from_micros(n.wrapping_mul(7919) % 20_011));
            let before: Vec<u64> = programs.rounds.iter().map(|one| one.load(Ordering::SeqCst)).collect();
            pauses.kill(kept, server);
            eventually("each goes on", || {
                assert!(workers.iter().all(|worker| !worker.is_finished()), "a program has failed");
                programs.rounds.iter().zip(&before).all(|(now, before)| now.load(Ordering::SeqCst) > *before)
            });
            server = kept.server();
            if n % 500 == 0 {
                eprintln!("{n} of {kills} kills");
            }
        }
    });
    assert_eq!(it.recovery(), ("on".to_owned(), kills), "{}", it.keeper.stderr());
    let stored = it.end();
    let mut changes = 0;
    for (n, rounds) in rounds[..4].iter().enumerate() {
        let at = stored.join(n.to_string());
        let (log, rounds) = (fs::read(at.join("log")).unwrap(), rounds.load(Ordering::SeqCst));
        assert_eq!(log.len() as u64, 3 * rounds, "each write once");
        let left = fs::read_dir(&at).unwrap().count();
        assert_eq!(left, 1, "only the log");
        changes += rounds * CHANGES;
    }
    eprintln!("{changes} changes, each made once");
    pauses.tell(what);
}

#[test]
fn each_change_is_made_once() {
    let Some(mut it) = Kept::mount("") else { return };
    check_kills(&mut it, 2 * KILLS, "changes of names, large writes and reads");
}

/// As often as `WATERTIGHT_KILLS` says.
#[test]
#[ignore = "a campaign: docs/TESTING.md"]
fn campaign() {
    let kills = std::env::var("WATERTIGHT_KILLS").ok().and_then(|n| n.parse().ok());
    let Some(mut it) = Kept::mount("") else { return };
    check_kills(&mut it, kills.unwrap_or(1000), "campaign");
}
