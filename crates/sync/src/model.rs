//! Running a test under many schedules, with shuttle.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

/// Schedules of each kind, unless `WATERTIGHT_SCHEDULES` says another number.
const SCHEDULES: usize = 200;
/// Schedules of each kind for a test that is wrong on purpose.
const SCHEDULES_WRONG: usize = 50_000;
/// Schedules of one kind before the other kind's turn: a failure that one finds only rarely the
/// other may find soon.
const TURN: usize = 50;
/// The first seed, unless `WATERTIGHT_SEED` sets another: two runs take the same schedules.
const SEED: u64 = 1;
/// Changes of priority in one schedule: bugs that need so many switches at the right places are
/// found.
const PCT_DEPTH: usize = 3;
/// Real code needs more stack than models do.
const STACK_SIZE: usize = 512 << 10;

/// Runs `test` under random schedules, and under schedules that let one thread run as far as it
/// gets and switch at few places. A deadlock is a failure.
///
/// # Panics
/// As `test` does, and for a deadlock.
pub fn check(test: impl Fn() + Send + Sync + Clone + 'static) {
    check_times(set("WATERTIGHT_SCHEDULES", SCHEDULES), test);
}

/// Runs a test that is wrong on purpose: the first schedule that fails is the last, so that there
/// may be many.
///
/// # Panics
/// As `test` does, and for a deadlock.
pub fn check_wrong(test: impl Fn() + Send + Sync + Clone + 'static) {
    check_times(SCHEDULES_WRONG, test);
}

fn check_times(schedules: usize, test: impl Fn() + Send + Sync + Clone + 'static) {
    // Seeds of one run follow each other, those of different runs are far apart.
    let mut seed = set("WATERTIGHT_SEED", SEED) << 32;
    let mut left = schedules;
    while left > 0 {
        let turn = left.min(TURN);
        run(PctScheduler::new_from_seed(seed, PCT_DEPTH, turn), test.clone());
        run(RandomScheduler::new_from_seed(seed, turn), test.clone());
        (seed, left) = (seed + 1, left - turn);
    }
}

/// `true` in some schedules, `false` in others.
#[must_use]
pub fn maybe() -> bool {
    use shuttle::rand::Rng as _;
    shuttle::rand::thread_rng().gen_bool(0.5)
}

/// A number below `bound`, another one in each schedule.
#[must_use]
pub fn number(bound: usize) -> usize {
    use shuttle::rand::Rng as _;
    shuttle::rand::thread_rng().gen_range(0..bound)
}

fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_SIZE;
    // Two runs with one seed take the same schedules; there is no need to keep them.
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(test);
}

fn set<T: std::str::FromStr>(variable: &str, default: T) -> T {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
