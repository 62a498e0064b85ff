//! Sends requests: bounded, retried, counted, and given up together.
//!
//! # Two classes
//! Small requests that others wait for (lease, log) have permits of their own, which bulk data
//! never takes. A request that waits for its next attempt holds none.
//!
//! # Retries
//! With exponential backoff and jitter, as long as the caller's [`Patience`] lasts. They have a
//! budget: ten answered requests earn one quick retry. Without it, as in an outage, a retry waits
//! for the longest pause, so that a store that comes back is not met by a storm.
//!
//! # Unknown outcomes
//! After an attempt that may have been carried out all the same, a conditional request's refusal
//! may be the echo of its own success: [`Answer::after_unknown`] says so.

use std::future::Future;
use std::sync::{Arc, Once};
use std::time::Duration;

use object_store::{Error as StoreError, Result as StoreResult};
use parking_lot::Mutex;
use store::{Error, ErrorKind};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::problem::{About, OverLimit, Problem, Retry};
use crate::stats::{Counters, Kind, Stats};

/// Requests at a time, of each class.
const CONTROL: usize = 32;
const BULK: usize = 32;
/// How long an attempt may take, beside the time for its bytes.
const LIMIT: Duration = Duration::from_secs(30);
/// The slowest transfer, in bytes a second, that is waited for.
const SLOWEST: u64 = 256 << 10;
/// The first pause; each doubles the one before.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// The first pause after the store asked for fewer requests.
const FIRST_THROTTLED_PAUSE: Duration = Duration::from_millis(400);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long a request is tried again that will hardly succeed.
const BRIEFLY: Duration = Duration::from_secs(1);
/// The budget, in answered requests: at most, and what a retry costs.
const BUDGET: u32 = 200;
const RETRY_COSTS: u32 = 10;

/// How long a request is tried again while the store is ill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Patience {
    /// So long: somebody waits at a terminal.
    For(Duration),
    /// Not at all: one attempt, and the caller decides.
    Once,
    /// Until [`Bucket::stop`](crate::bucket::Bucket::stop): the volume is mounted.
    UntilStopped,
}

/// Whose permits a request takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Control,
    Bulk,
}

/// How a request is sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct How {
    pub(crate) kind: Kind,
    pub(crate) class: Class,
    pub(crate) patience: Patience,
    /// The time limit of an attempt; `None`: the attempt has its own.
    pub(crate) limit: Option<Duration>,
}

/// The limit of an attempt that moves `bytes`.
pub(crate) const fn limit(bytes: u64) -> Duration {
    Duration::from_secs(LIMIT.as_secs() + bytes / SLOWEST)
}

/// The limit of each step of an attempt that has many.
pub(crate) const STEP: Duration = LIMIT;

/// A request's answer.
#[derive(Debug)]
pub(crate) struct Answer<T> {
    /// What was asked for, or why the store has it not: [`Problem::of`] knows no such error.
    pub(crate) result: StoreResult<T>,
    /// An earlier attempt may have been carried out.
    pub(crate) after_unknown: bool,
}

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum Unanswered {
    /// The bucket was stopped.
    Stopped,
    /// Patience is over, or cannot help.
    Problem(Problem),
}

impl Unanswered {
    pub(crate) fn error(&self, op: &'static str, name: &str, about: &About) -> Error {
        match self {
            Self::Stopped => Error::with(ErrorKind::Io, op, "the volume was given up"),
            Self::Problem(problem) => problem.error(op, name, about),
        }
    }
}

/// Budget and chance.
#[derive(Debug)]
struct Pauses {
    budget: u32,
    random: u64,
}

impl Pauses {
    const fn earn(&mut self) {
        if self.budget < BUDGET {
            self.budget += 1;
        }
    }

    /// The pause before the retry after `failures` of one request in a row.
    fn next(&mut self, failures: u32, is_throttled: bool) -> Duration {
        let first = if is_throttled { FIRST_THROTTLED_PAUSE } else { FIRST_PAUSE };
        let pause = match self.budget.checked_sub(RETRY_COSTS) {
            Some(left) => {
                self.budget = left;
                first.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(LONGEST_PAUSE)
            }
            None => LONGEST_PAUSE,
        };
        // Between the half and the whole of it, so that those who failed together return apart.
        pause / 2 + (pause / 2).mul_f64(self.fraction())
    }

    /// In 0..1, by splitmix64.
    fn fraction(&mut self) -> f64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        f64::from(u32::try_from((z ^ (z >> 31)) >> 32).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Requests {
    stop: CancellationToken,
    control: Semaphore,
    bulk: Semaphore,
    pauses: Mutex<Pauses>,
    pub(crate) counters: Arc<Counters>,
    logged: Once,
}

impl Requests {
    /// With chance from `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            stop: CancellationToken::new(),
            control: Semaphore::new(CONTROL),
            bulk: Semaphore::new(BULK),
            pauses: Mutex::new(Pauses { budget: BUDGET / 2, random: seed }),
            counters: Arc::default(),
            logged: Once::new(),
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.cancel();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Ends when the bucket is stopped.
    pub(crate) async fn stopped(&self) {
        self.stop.cancelled().await;
    }

    /// `None`: stopped.
    pub(crate) async fn permit(&self, class: Class) -> Option<SemaphorePermit<'_>> {
        let permits = match class {
            Class::Control => &self.control,
            Class::Bulk => &self.bulk,
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            permit = permits.acquire() => permit.ok(),
        }
    }

    /// Sends a request, by as many attempts as it takes and as patience allows.
    pub(crate) async fn send<T, F: Future<Output = StoreResult<T>>>(
        &self,
        how: How,
        mut attempt: impl FnMut() -> F,
    ) -> Result<Answer<T>, Unanswered> {
        let _under_way = self.counters.begin();
        let begun = Instant::now();
        let deadline = match how.patience {
            Patience::For(patience) => Some(begun + patience),
            Patience::Once | Patience::UntilStopped => None,
        };
        let mut after_unknown = false;
        let mut failures = 0;
        loop {
            let problem = match self.attempt(how, deadline, attempt()).await? {
                Ok(result) => return Ok(Answer { result, after_unknown }),
                Err(problem) => problem,
            };
            after_unknown |= problem.is_unknown();
            failures += 1;
            let is_retried = match (problem.retry(), how.patience) {
                (_, Patience::Once) | (Retry::Never, _) => false,
                (Retry::Always, _) => true,
                (Retry::Briefly | Retry::Mounted, Patience::UntilStopped) => true,
                (Retry::Briefly, Patience::For(_)) => begun.elapsed() < BRIEFLY,
                (Retry::Mounted, Patience::For(_)) => false,
            };
            if !is_retried {
                return Err(Unanswered::Problem(problem));
            }
            let pause = self.pauses.lock().next(failures, problem.is_throttle());
            if deadline.is_some_and(|deadline| Instant::now() + pause >= deadline) {
                return Err(Unanswered::Problem(problem));
            }
            tracing::debug!(%problem, ?pause, failures, "a request to the bucket is tried again");
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return Err(Unanswered::Stopped),
                () = tokio::time::sleep(pause) => {}
            }
            self.counters.retried(how.kind);
        }
    }

    /// One attempt: what the store answers, or the problem.
    async fn attempt<T>(
        &self,
        how: How,
        deadline: Option<Instant>,
        attempt: impl Future<Output = StoreResult<T>>,
    ) -> Result<Result<StoreResult<T>, Problem>, Unanswered> {
        let limited = async {
            let Some(_permit) = self.permit(how.class).await else { return Err(Unanswered::Stopped) };
            let begun = Instant::now();
            self.counters.sent(how.kind);
            let outcome = match how.limit {
                None => attempt.await,
                Some(limit) => match tokio::time::timeout(limit, attempt).await {
                    Ok(outcome) => outcome,
                    Err(_) => Err(over_limit(limit)),
                },
            };
            Ok((outcome, begun.elapsed()))
        };
        let late = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let (outcome, time) = tokio::select! {
            biased;
            () = self.stop.cancelled() => return Err(Unanswered::Stopped),
            outcome = limited => outcome?,
            () = late => (Err(over_limit(LIMIT)), LIMIT),
        };
        Ok(self.judge(how.kind, outcome, time))
    }

    /// Counts an attempt's outcome.
    pub(crate) fn judge<T>(
        &self,
        kind: Kind,
        outcome: StoreResult<T>,
        time: Duration,
    ) -> Result<StoreResult<T>, Problem> {
        match outcome.as_ref().err().and_then(Problem::of) {
            None => {
                self.counters.answered(kind, time);
                self.pauses.lock().earn();
                Ok(outcome)
            }
            Some(problem) => {
                self.counters.failed(kind, &problem);
                Err(problem)
            }
        }
    }
}

impl Requests {
    /// Logs, once, the requests in all: an unmount ends the process before they could be asked for.
    pub(crate) fn log(&self) {
        self.logged.call_once(|| {
            let Stats { get, put, list, delete, .. } = self.counters.stats();
            let [get, put, list, delete] = [get, put, list, delete].map(|kind| kind.requests);
            tracing::debug!(get, put, list, delete, "requests sent to a bucket, in all");
        });
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.log();
    }
}

pub(crate) fn over_limit(limit: Duration) -> StoreError {
    StoreError::Generic { store: "bucket", source: Box::new(OverLimit(limit)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_long_without_budget() {
        let mut pauses = Pauses { budget: 35, random: 1 };
        let range = |pause: Duration, whole: Duration| pause >= whole / 2 && pause <= whole;
        assert!(range(pauses.next(1, false), FIRST_PAUSE));
        assert!(range(pauses.next(3, false), FIRST_PAUSE * 4));
        assert!(range(pauses.next(40, true), LONGEST_PAUSE));
        assert!(range(pauses.next(1, false), LONGEST_PAUSE), "the budget is spent");
        for _ in 0..5 {
            pauses.earn();
        }
        assert!(range(pauses.next(1, true), FIRST_THROTTLED_PAUSE));
        assert!(range(pauses.next(1, false), LONGEST_PAUSE));
    }

    #[test]
    fn chance_depends_on_the_seed_and_stays_in_bounds() {
        let draw = |seed| {
            let mut pauses = Pauses { budget: 0, random: seed };
            (0..1000).map(|_| pauses.fraction()).collect::<Vec<_>>()
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert!(draw(3).iter().all(|fraction| (0.0..1.0).contains(fraction)));
        let mean = draw(4).iter().sum::<f64>() / 1000.0;
        assert!((0.45..0.55).contains(&mean), "{mean}");
    }
}
