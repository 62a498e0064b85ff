//! `kill -9` to the program at random moments: what was synced is in the store, whole, and no other
//! bytes.
#![allow(clippy::unwrap_used, reason = "what fails in a helper fails the test")]

use std::io::Read as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use watertight_acceptance::crash::{Plan, Step, Writer, check};
use watertight_acceptance::daemon::{Daemon, RUNTIME_DIR};
use watertight_acceptance::program;
use watertight_acceptance::rng::Rng;
use watertight_acceptance::scratch::Scratch;
use watertight_acceptance::{Cmd, Setup, Subject, is_long, note};

const WORKER: &str = env!("CARGO_BIN_EXE_acceptance-worker");

/// What one round left.
struct Round {
    number: u64,
    acknowledged: usize,
    plan: Plan,
}

impl Round {
    fn complaints(&self, dir: &Path) -> Vec<String> {
        check(dir, self.plan.clone(), self.acknowledged)
    }
}

/// A writer at work, the program killed `after` its first step was done.
fn round(subject: &mut Subject, number: u64, seed: u64, honesty: &str, after: Duration) -> Round {
    let dir = subject.at(&format!("round-{number}"));
    std::fs::create_dir(&dir).expect("mkdir on the volume");
    let can_sync = subject.kernel_waits();
    let mut writer = Cmd::new(WORKER)
        .arg("crash")
        .arg(&dir)
        .args([&number.to_string(), &seed.to_string()])
        .args([if can_sync { "sync" } else { "nosync" }, honesty])
        .quiet()
        .start();
    let mut acks = writer.stdout().expect("a pipe");
    let (tell, begun) = mpsc::channel::<()>();
    let count = thread::spawn(move || {
        let (mut first, mut more) = ([0], Vec::new());
        let done = acks.read(&mut first)?;
        drop(tell);
        acks.read_to_end(&mut more).map(|n| done + n)
    });
    // However long a busy machine takes to start it: a program that is killed before a writer is at
    // work shows nothing.
    let _closed = begun.recv();
    thread::sleep(after);
    if subject.is_host() {
        writer.kill();
    }
    subject.crash();
    let ended = writer.wait(Duration::from_secs(120));
    assert!(ended.is_some(), "the writer outlives the mount by two minutes");
    let acknowledged = count.join().expect("the counter").expect("read a pipe");
    Round { number, acknowledged, plan: Plan::new(number, seed, can_sync) }
}

fn random_moment(rng: &mut Rng) -> Duration {
    Duration::from_micros(rng.range(5_000, 100_000))
}

/// `rounds` crashes of one volume, each checked at once; all of them again at the end.
fn crashes(name: &str, setup: Setup, rounds: u64, seed: u64) {
    let started = Instant::now();
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let mut rng = Rng::new(seed);
    let mut all = Vec::new();
    for number in 0..rounds {
        let after = random_moment(&mut rng);
        let done = round(&mut subject, number, seed, "honest", after);
        let wrong = done.complaints(&store_dir(&subject, number));
        assert!(
            wrong.is_empty(),
            "round {number}, seed {seed}, killed after {after:?} with {} steps done:\n{}",
            done.acknowledged,
            wrong.join("\n")
        );
        all.push(done);
        subject.mount();
    }
    subject.close();
    // Later rounds and the last, orderly unmount changed nothing of the earlier ones.
    for done in &all {
        let wrong = done.complaints(&store_dir(&subject, done.number));
        assert!(wrong.is_empty(), "round {} at the end:\n{}", done.number, wrong.join("\n"));
    }
    let steps: usize = all.iter().map(|r| r.acknowledged).sum();
    assert!(steps > all.len(), "{steps} steps in all: the rounds killed nobody at work");
    let each = started.elapsed().as_secs_f64() / all.len() as f64;
    note(name, &format!("{} rounds, {steps} acknowledged steps, {each:.2} s a round", all.len()));
}

fn store_dir(subject: &Subject, number: u64) -> std::path::PathBuf {
    subject.store().join(format!("round-{number}"))
}

fn rounds(usual: u64) -> u64 {
    if is_long() { usual * 10 } else { usual }
}

#[test]
fn synced_data_survives_a_kill() {
    crashes("kill-9", Setup::default(), rounds(120), 1);
}

#[test]
fn synced_data_survives_a_kill_of_a_small_cache() {
    // Little memory: flushers are at work all the time, and are killed in the middle of it.
    crashes("kill-9-small-cache", Setup::default().option("cache=4M"), rounds(100), 2);
}

#[test]
fn synced_data_survives_a_kill_with_kernel_writeback() {
    crashes("kill-9-writeback", Setup::default().option("mode=kernel-writeback"), rounds(40), 3);
}

/// Makes snapshots of a mounted volume until that fails, for the mount was killed; returns the names
/// of those that were acknowledged.
fn make_snapshots(mountpoint: &Path, runtime: &Path, number: u64) -> Vec<String> {
    let mut made = Vec::new();
    loop {
        let name = format!("{number}-{}", made.len());
        let create = Cmd::new(program::watertight()).env(RUNTIME_DIR, runtime).args(["snapshot", "create"]);
        if !create.arg(mountpoint).arg(&name).run().status.success() {
            return made;
        }
        made.push(name);
    }
}

/// Collects garbage, and repacks what is mostly dead; every second time that is killed, too.
fn collect_garbage(url: &str, rng: &mut Rng) {
    let mut collection = Cmd::new(program::watertight()).arg("gc").arg(url).quiet().start();
    if rng.range(0, 2) == 0 {
        thread::sleep(random_moment(rng));
        collection.kill();
    }
    assert!(collection.wait(Duration::from_secs(120)).is_some(), "a collection takes two minutes");
}

/// What earlier rounds left is in a snapshot of a later one.
fn check_snapshot(url: &str, name: &str, (dir, runtime): (&Path, &Path), all: &[Round]) {
    let mut shown = Daemon::mount(&url.into(), dir, &[format!("snapshot={name}")], runtime)
        .unwrap_or_else(|said| panic!("the snapshot {name} is not mounted: {said}"));
    for done in all {
        let wrong = done.complaints(&dir.join(format!("round-{}", done.number)));
        assert!(wrong.is_empty(), "round {} in the snapshot {name}:\n{}", done.number, wrong.join("\n"));
    }
    Cmd::new(program::watertight()).env(RUNTIME_DIR, runtime).arg("umount").arg(dir).ok();
    assert!(shown.wait(Duration::from_secs(120)).is_some(), "the mount of a snapshot stays");
}

/// A volume in a bucket with a cache on this host's disk, of which snapshots are made in the midst of
/// the writing; between rounds garbage is collected, and what is left of overwritten objects repacked.
#[test]
fn synced_data_survives_a_kill_beside_a_cache_snapshots_and_repacking() {
    let name = "kill-9-bucket";
    if watertight_acceptance::subject::bucket().is_none() {
        watertight_acceptance::skip(name, "ACCEPTANCE_STORE names no bucket");
        return;
    }
    let cache = Scratch::new(name);
    let option = format!("disk_cache={}", cache.path().join("cache").display());
    let setup = Setup::default().option(&option).limit(Duration::from_secs(1800));
    let Some(mut subject) = Subject::with(name, setup) else { return };
    let url = subject.url().expect("it is in a bucket").to_owned();
    let (mut rng, mut all, mut snapshots) = (Rng::new(4), Vec::new(), 0);
    let places = (subject.outside("snapshot"), cache.private_dir("run"));
    for number in 0..rounds(20) {
        let after = random_moment(&mut rng) * 4;
        let (mountpoint, runtime) = (subject.path().to_owned(), subject.runtime().to_owned());
        let making = thread::spawn(move || make_snapshots(&mountpoint, &runtime, number));
        let done = round(&mut subject, number, 4, "honest", after);
        let made = making.join().expect("makes snapshots");
        collect_garbage(&url, &mut rng);
        let wrong = done.complaints(&store_dir(&subject, number));
        assert!(wrong.is_empty(), "round {number}, killed after {after:?}:\n{}", wrong.join("\n"));
        subject.mount();
        for (place, snapshot) in made.iter().enumerate() {
            if place == 0 {
                check_snapshot(&url, snapshot, (&places.0, &places.1), &all);
            }
            subject.program().args(["snapshot", "delete"]).arg(subject.path()).arg(snapshot).ok();
        }
        let left = Cmd::new(program::watertight()).args(["snapshot", "list"]).arg(&url).ok().out();
        let is_left = |snapshot: &String| left.split_whitespace().any(|word| word == snapshot);
        assert!(!made.iter().any(is_left), "{made:?} are deleted: {left}");
        snapshots += made.len();
        all.push(done);
    }
    subject.close();
    for done in &all {
        let wrong = done.complaints(&store_dir(&subject, done.number));
        assert!(wrong.is_empty(), "round {} at the end:\n{}", done.number, wrong.join("\n"));
    }
    let steps: usize = all.iter().map(|r| r.acknowledged).sum();
    assert!(steps > all.len() && snapshots > 0, "{steps} steps, {snapshots} snapshots: nobody was at work");
    note(name, &format!("{} kills, {steps} acknowledged steps, {snapshots} snapshots", all.len()));
}

/// Anti-vacuity: a writer that says "synced" without syncing is caught, on the same mount by the
/// same check.
#[test]
fn a_writer_that_never_syncs_is_caught() {
    let name = "kill-9-lying";
    let Some(mut subject) = Subject::start(name) else { return };
    if subject.is_host() {
        watertight_acceptance::skip(name, "a plain directory loses nothing when a process dies");
        return;
    }
    let mut caught = 0;
    for number in 0..5 {
        let done = round(&mut subject, number, 99, "lying", Duration::from_millis(60));
        caught += u32::from(!done.complaints(&store_dir(&subject, number)).is_empty());
        subject.mount();
    }
    assert!(caught >= 3, "only {caught} of 5 rounds without any fsync were caught");
}

/// The steps of one plan done in a plain directory: what the checker accepts.
fn written(steps: usize) -> (Scratch, Plan) {
    let scratch = Scratch::new("crash-check");
    let plan = Plan::new(3, 17, true);
    let mut writer = Writer::new(scratch.path(), plan.round, false);
    for step in plan.clone().take(steps) {
        writer.run(&step).unwrap();
    }
    (scratch, plan)
}

/// How many steps until a file has been synced with something in it, and its name.
fn until_fsync(plan: &Plan) -> (usize, String) {
    let at = plan.clone().position(|step| matches!(step, Step::Replace { .. })).unwrap();
    let Some(Step::Replace { name, .. }) = plan.clone().nth(at) else { panic!("just found") };
    (at + 1, format!("f{name}"))
}

#[test]
fn the_checker_accepts_what_a_writer_leaves() {
    for steps in [0, 1, 5, 20, 100, 400] {
        let (scratch, plan) = written(steps);
        assert_eq!(check(scratch.path(), plan.clone(), steps), Vec::<String>::new());
        // One step more may be under way.
        if steps > 0 {
            assert_eq!(check(scratch.path(), plan, steps - 1), Vec::<String>::new(), "{steps}");
        }
    }
}

#[test]
fn the_checker_misses_a_file() {
    let (steps, name) = until_fsync(&Plan::new(3, 17, true));
    let (scratch, plan) = written(steps);
    std::fs::remove_file(scratch.path().join(&name)).unwrap();
    let wrong = check(scratch.path(), plan, steps);
    assert!(wrong.iter().any(|w| w.contains("is gone")), "{wrong:?}");
}

#[test]
fn the_checker_sees_a_foreign_file() {
    let (scratch, plan) = written(5);
    std::fs::write(scratch.path().join("t999"), "x").unwrap();
    let wrong = check(scratch.path(), plan, 5);
    assert!(wrong.iter().any(|w| w.contains("nobody made this")), "{wrong:?}");
}

#[test]
fn the_checker_sees_lost_foreign_and_torn_words() {
    let (steps, name) = until_fsync(&Plan::new(3, 17, true));
    let damage: [(&str, &[u8]); 3] =
        [("zeros", &[0; 8]), ("which is not of", &[0xab; 8]), ("which is not of", &[1, 2, 3])];
    for (complaint, bytes) in damage {
        let (scratch, plan) = written(steps);
        let file = std::fs::OpenOptions::new().write(true).open(scratch.path().join(&name)).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        let wrong = check(scratch.path(), plan, steps);
        assert!(wrong.iter().any(|w| w.contains(complaint)), "{complaint}: {wrong:?}");
    }
}

#[test]
fn the_checker_sees_a_short_file() {
    let (steps, name) = until_fsync(&Plan::new(3, 17, true));
    let (scratch, plan) = written(steps);
    let file = std::fs::OpenOptions::new().write(true).open(scratch.path().join(&name)).unwrap();
    file.set_len(file.metadata().unwrap().len() - 8).unwrap();
    let wrong = check(scratch.path(), plan, steps);
    assert!(wrong.iter().any(|w| w.contains("should have")), "{wrong:?}");
}
