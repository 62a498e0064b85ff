//! Random operations on a mounted volume and on a model in memory: everything must be equal.
//!
//! `ACCEPTANCE_SEED` chooses another sequence, `ACCEPTANCE_LONG=1` many more cases from a seed of
//! the moment, which is printed. A failure is shrunk and printed as operations: keep it as a
//! `regression_*` test below.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::{Strategy as _, any};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};
use watertight_acceptance::model::{Allocate, Ground, How, Op, P, Rename, Tally, When, op, run};
use watertight_acceptance::rng::Rng;
use watertight_acceptance::{Setup, Subject, Verb, is_long, note};

/// A fresh directory of one volume for every case.
struct Volume {
    subject: Subject,
    case: u32,
    tally: Tally,
}

impl Volume {
    fn new(subject: Subject) -> Self {
        Self { subject, case: 0, tally: Tally::default() }
    }

    /// Runs one case, on a mount that lives.
    fn case(&mut self, ops: &[Op], when: When) -> Result<(), String> {
        if !self.subject.is_alive() {
            self.subject.crash();
            self.subject.mount();
        }
        self.case += 1;
        std::fs::create_dir(self.dir()).map_err(|e| format!("mkdir for the case: {e}"))?;
        let tally = run(ops, self, when)?;
        self.tally.done += tally.done;
        self.tally.refused += tally.refused;
        self.tally.left_out += tally.left_out;
        std::fs::remove_dir_all(self.dir()).map_err(|e| format!("removing all of it: {e}"))?;
        if !self.subject.is_host() && self.shows_store() && self.store_dir().exists() {
            return Err("what was removed on the mount is still in the store".to_owned());
        }
        Ok(())
    }
}

impl Ground for Volume {
    fn dir(&self) -> PathBuf {
        self.subject.at(&format!("case-{}", self.case))
    }

    fn store_dir(&self) -> PathBuf {
        self.subject.store().join(format!("case-{}", self.case))
    }

    fn shows_store(&self) -> bool {
        !self.subject.is_in_bucket()
    }

    fn unmount(&mut self) {
        self.subject.unmount(Verb::Program);
        self.subject.finish();
    }

    fn mount(&mut self) {
        self.subject.mount();
    }

    fn syncs(&self) -> bool {
        self.subject.kernel_waits()
    }
}

struct Shape {
    cases: u32,
    operations: usize,
    when: When,
    setup: Setup,
}

fn random(name: &str, shape: Shape) {
    let Some(subject) = Subject::with(name, shape.setup.limit(Duration::from_secs(700))) else { return };
    let volume = RefCell::new(Volume::new(subject));
    let seed = match std::env::var("ACCEPTANCE_SEED") {
        Ok(seed) => seed.parse().expect("ACCEPTANCE_SEED is a number"),
        Err(_) if is_long() => Rng::from_time().next_u64(),
        Err(_) => 1,
    };
    let config = Config {
        cases: if is_long() { shape.cases * 50 } else { shape.cases },
        max_shrink_iters: 3000,
        max_shrink_time: 120_000,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &Rng::new(seed).bytes(32));
    let mut runner = TestRunner::new_with_rng(config, rng);
    // Something to work on: most operations of an empty volume are refused.
    let strategy = (any::<bool>(), vec(op(300), 1..shape.operations)).prop_map(|(furnished, ops)| {
        let first = if furnished { furniture() } else { Vec::new() };
        [first, ops].concat()
    });
    let result =
        runner.run(&strategy, |ops| volume.borrow_mut().case(&ops, shape.when).map_err(TestCaseError::fail));
    match result {
        Ok(()) => {
            let mut volume = volume.into_inner();
            volume.subject.close();
            let Tally { done, refused, left_out } = volume.tally;
            note(
                name,
                &format!("seed {seed}: {done} operations done, {refused} refused, {left_out} left out"),
            );
            assert!(done * 2 > refused + left_out, "two of three operations did nothing");
        }
        Err(TestError::Fail(why, ops)) => {
            let ops: Vec<String> = ops.iter().map(|op| format!("    {op:?},\n")).collect();
            panic!("seed {seed}: {why}\n&[\n{}]", ops.concat())
        }
        Err(other) => panic!("seed {seed}: {other}"),
    }
}

/// Two directories and four open files.
fn furniture() -> Vec<Op> {
    let open = |slot, path| {
        let how = How { create: true, ..How::default() };
        Op::Open { slot, path: P(path), how }
    };
    let mkdir = |path| Op::Mkdir { path: P(path), perm: 0o755 };
    vec![mkdir(3), mkdir(9), open(0, 0), open(1, 4), open(2, 10), open(3, 12)]
}

#[test]
fn short_sequences_compared_after_every_operation() {
    random("model-short", Shape { cases: 400, operations: 60, when: When::Always, setup: Setup::default() });
}

#[test]
fn long_sequences_compared_at_remounts() {
    random("model-long", Shape { cases: 150, operations: 500, when: When::Seldom, setup: Setup::default() });
}

#[test]
fn long_sequences_in_a_small_cache() {
    let setup = Setup::default().option("cache=4M");
    random("model-small", Shape { cases: 120, operations: 400, when: When::Seldom, setup });
}

#[test]
fn sequences_with_kernel_writeback() {
    let setup = Setup::default().option("mode=kernel-writeback");
    random("model-wb", Shape { cases: 200, operations: 200, when: When::Seldom, setup });
}

#[test]
fn sequences_on_plain_fuse() {
    let setup = Setup::default().option("type=fuse");
    random("model-fuse", Shape { cases: 150, operations: 100, when: When::Always, setup });
}

/// One sequence, kept.
fn kept(name: &str, setup: Setup, ops: &[Op]) {
    let Some(subject) = Subject::with(name, setup) else { return };
    let mut volume = Volume::new(subject);
    for when in [When::Always, When::Seldom] {
        volume.case(ops, when).unwrap_or_else(|why| panic!("{when:?}: {why}"));
    }
    volume.subject.close();
}

const NEW: How = How { create: true, exclusive: true, truncate: false, append: false, direct: false };

/// By hand, not found by chance: the whole life of a file that loses its name while it is open.
#[test]
fn unlinked_while_open() {
    let (a, b) = (P(0), P(1));
    kept(
        "model-unlinked",
        Setup::default(),
        &[
            Op::Open { slot: 0, path: a, how: NEW },
            Op::Write { slot: 0, at: 100, len: 10_000, fill: 1 },
            Op::Link { from: a, to: b },
            Op::Unlink { path: a },
            Op::Open { slot: 1, path: a, how: NEW },
            Op::Rename { from: a, to: b, how: Rename::Replace },
            Op::Allocate { slot: 0, how: Allocate::PunchHole, at: 4096, len: 4096 },
            Op::Copy { from: 0, at: 0, to: 1, to_at: 50_000, len: 10_100 },
            Op::Fsync { slot: 0, data_only: false },
            Op::LinkSlot { slot: 0, to: a },
            Op::Close { slot: 0 },
            Op::Read { slot: 1, at: 0, len: 100_000 },
            Op::Remount,
            Op::Truncate { path: b, len: 55_000 },
        ],
    );
}

/// Data that only the kernel had was called a hole.
#[test]
fn regression_seek_data_with_kernel_writeback() {
    kept(
        "model-seek",
        Setup::default().option("mode=kernel-writeback"),
        &[
            Op::Open { slot: 3, path: P(9), how: NEW },
            Op::Write { slot: 3, at: 5630, len: 1075, fill: 0 },
            Op::SeekHole { slot: 3, at: 0 },
        ],
    );
}

/// Anti-vacuity: a tree that differs from the model in any respect is reported.
#[test]
fn the_comparison_sees_differences() {
    use std::fs;
    use watertight_acceptance::model::{Model, Real, differences};
    use watertight_acceptance::scratch::Scratch;
    type Damage = (&'static str, fn(&std::path::Path));
    let damages: [Damage; 7] = [
        ("bytes 3..4 differ", |d| {
            let mut data = fs::read(d.join("a")).unwrap();
            data[3] ^= 1;
            fs::write(d.join("a"), data).unwrap();
        }),
        ("size is 99", |d| {
            fs::OpenOptions::new().write(true).open(d.join("a")).unwrap().set_len(99).unwrap()
        }),
        ("not in the model", |d| fs::write(d.join("c"), "").unwrap()),
        ("is not listed", |d| fs::remove_file(d.join("a")).unwrap()),
        ("link count is 2", |d| fs::hard_link(d.join("a"), d.join("c")).unwrap()),
        ("kind is", |d| {
            fs::remove_dir(d.join("d")).unwrap();
            fs::write(d.join("d"), "").unwrap();
        }),
        ("mtime is", |d| {
            let now = std::time::SystemTime::now();
            fs::File::open(d.join("d")).unwrap().set_modified(now).unwrap();
        }),
    ];
    for (complaint, damage) in damages {
        let scratch = Scratch::new("model-compare");
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (mut model, mut real) = (Model::new(owner), Real::new(scratch.path()));
        for op in [
            Op::Open { slot: 0, path: P(0), how: NEW },
            Op::Write { slot: 0, at: 0, len: 5000, fill: 9 },
            Op::Mkdir { path: P(3), perm: 0o755 },
            Op::SetTimes { path: P(3), secs: 77, nanos: 5 },
        ] {
            assert_eq!(model.apply(&op), Some(real.apply(&op)));
        }
        assert_eq!(differences(&model, scratch.path()), Vec::<String>::new());
        damage(scratch.path());
        let found = differences(&model, scratch.path());
        assert!(found.iter().any(|f| f.contains(complaint)), "{complaint}: {found:?}");
    }
}
