//! Running a test under many schedules, with shuttle.

use shuttle::scheduler::{PctScheduler, RandomScheduler, Scheduler};
use shuttle::{Config, FailurePersistence, Runner};

/// Schedules of each kind, unless `WATERTIGHT_SCHEDULES` says another number.
const SCHEDULES: usize = 200;
/// Where the random numbers begin, unless `WATERTIGHT_SEED` says otherwise: two runs see the same schedules.
const SEED: u64 = 1;
/// Changes of priority in one schedule: bugs that need so many switches at the right places are found.
const PCT_DEPTH: usize = 3;
/// Real code needs more stack than models do.
const STACK_SIZE: usize = 512 << 10;

/// Runs `test` under random schedules, and under schedules that let one thread run as far as it gets and switch
/// at few places. A deadlock is a failure.
///
/// # Panics
/// As `test` does, and for a deadlock.
pub fn check(test: impl Fn() + Send + Sync + Clone + 'static) {
    let (schedules, seed) = (set("WATERTIGHT_SCHEDULES", SCHEDULES), set("WATERTIGHT_SEED", SEED));
    run(RandomScheduler::new_from_seed(seed, schedules), test.clone());
    run(PctScheduler::new_from_seed(seed, PCT_DEPTH, schedules), test);
}

fn run(scheduler: impl Scheduler + 'static, test: impl Fn() + Send + Sync + 'static) {
    let mut config = Config::new();
    config.stack_size = STACK_SIZE;
    // Two runs with one seed take the same schedules; nobody needs to keep them.
    config.failure_persistence = FailurePersistence::None;
    config.silence_warnings = true;
    Runner::new(scheduler, config).run(test);
}

fn set<T: std::str::FromStr>(variable: &str, default: T) -> T {
    std::env::var(variable).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}
