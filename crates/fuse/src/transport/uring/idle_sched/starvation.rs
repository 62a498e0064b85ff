//! Finds threads in the class that do not move, and decides whether they starved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sync::atomic::Ordering;
use sync::mutant::is_on;

use super::policy::{self, Policy, RunQueue};
use super::thread::{ENTERING, IdleSched, TICK};

/// How long no thread takes the class after one starved: at first, and at most.
const BAN: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];
/// For how many ticks a thread that got its class back and wants to run may not get to it.
const PATIENCE: u32 = 8;

/// The results of the watchdog's last checks.
#[derive(Debug, Default)]
pub(super) struct StarvationDetector {
    /// The threads that were in the class, with the number of their waits; and room for the next
    /// check.
    seen: Vec<(Arc<IdleSched>, u64)>,
    now: Vec<(Arc<IdleSched>, u64)>,
    /// The threads that got their class back, wanted to run, and of which it is open whether they
    /// starved.
    released: Vec<Released>,
    pub(super) ban: Ban,
}

#[derive(Debug)]
struct Released {
    sched: Arc<IdleSched>,
    before: RunQueue,
    ticks: u32,
}

/// The fate of a thread that wanted to run when it got its class back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It has not run yet.
    Open,
    /// It had waited for something else, or is gone.
    Fine,
    /// It had waited for the CPU.
    Starved,
}

impl StarvationDetector {
    /// Gives the class back to each thread that has not moved since the last check, and bans it
    /// where a thread starved. Says whether there was no thread to check.
    pub(super) fn look(&mut self, threads: &[Arc<IdleSched>]) -> bool {
        let Self { seen, now, released, ban } = self;
        released.retain_mut(|released| match released.look() {
            Verdict::Open => true,
            Verdict::Fine => false,
            Verdict::Starved => {
                tracing::debug!(tid = ?released.sched.tid, "other threads want the CPU of a serving thread");
                ban.begin();
                false
            }
        });
        now.clear();
        for sched in threads {
            // ORDERING: SeqCst, P1.
            let seq = sched.seq.load(Ordering::SeqCst);
            if seq == 0 {
                continue;
            }
            if seen.iter().any(|(known, before)| Arc::ptr_eq(known, sched) && *before == seq) {
                released.extend(release(sched, seq, ban));
            }
            now.push((Arc::clone(sched), seq));
        }
        std::mem::swap(seen, now);
        seen.is_empty() && released.is_empty()
    }

    /// Whether no thread may take the class now: it is banned, or about to be.
    pub(super) fn is_banned(&self) -> bool {
        self.ban.holds() || !self.released.is_empty()
    }

    /// Gives all threads their class back; says whether none is left that could still take it.
    pub(super) fn release_all(&mut self, threads: &[Arc<IdleSched>]) -> bool {
        let mut is_all = true;
        for sched in threads {
            // ORDERING: SeqCst, P1.
            let seq = sched.seq.load(Ordering::SeqCst);
            if seq != 0 {
                release(sched, seq, &mut self.ban);
                is_all &= seq & ENTERING == 0;
            }
        }
        is_all
    }
}

/// Gives a thread its class back. The thread is to be watched if it wants to run even so.
fn release(sched: &Arc<IdleSched>, seq: u64, ban: &mut Ban) -> Option<Released> {
    let wants_to_run = policy::wants_to_run(&sched.tid);
    let before = RunQueue::of(&sched.tid);
    if !policy::set(&sched.tid, Policy::Normal) {
        return None;
    }
    if seq & ENTERING == 0 || is_on("stay-clears-taking") {
        // ORDERING: SeqCst, P2. Fails if the thread has moved meanwhile. A thread that is about to
        // take the class would still do so.
        let cleared = sched.seq.compare_exchange(seq, 0, Ordering::SeqCst, Ordering::SeqCst);
        if cleared.is_err() {
            return None;
        }
    }
    if before.is_none() {
        // Whether it starved cannot be known.
        ban.begin();
    }
    Some(Released { sched: Arc::clone(sched), before: before.filter(|_| wants_to_run)?, ticks: 0 })
}

impl Released {
    fn look(&mut self) -> Verdict {
        self.ticks += 1;
        let now = RunQueue::of(&self.sched.tid);
        match verdict(self.before, now) {
            Verdict::Open if self.ticks >= PATIENCE => {
                if policy::wants_to_run(&self.sched.tid) {
                    Verdict::Starved
                } else {
                    Verdict::Fine
                }
            }
            verdict => verdict,
        }
    }
}

/// The verdict by two readings, the first from when the thread got its class back.
pub(super) fn verdict(before: RunQueue, now: Option<RunQueue>) -> Verdict {
    match now {
        None => Verdict::Fine,
        Some(now) if now.turns == before.turns => Verdict::Open,
        Some(now) if now.waited.saturating_sub(before.waited) >= TICK => Verdict::Starved,
        Some(_) => Verdict::Fine,
    }
}

/// For how long no thread takes the class.
#[derive(Debug, Default)]
pub(super) struct Ban {
    until: Option<Instant>,
    last: Duration,
    is_for_good: bool,
}

impl Ban {
    pub(super) fn begin(&mut self) {
        if self.holds() {
            return;
        }
        let now = Instant::now();
        let is_soon = self.until.is_some_and(|until| now < until + self.last);
        self.last = if is_soon { (self.last * 2).min(BAN[1]) } else { BAN[0] };
        self.until = Some(now + self.last);
    }

    pub(super) fn for_good(&mut self) {
        self.is_for_good = true;
    }

    pub(super) fn holds(&self) -> bool {
        self.is_for_good || self.until.is_some_and(|until| Instant::now() < until)
    }

    /// When the ban ends, if it holds and does.
    pub(super) fn until(&self) -> Option<Instant> {
        self.until.filter(|_| self.holds() && !self.is_for_good)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn bans_grow_while_they_are_needed() {
        let mut ban = Ban::default();
        assert!(!ban.holds());
        ban.begin();
        assert!(ban.holds());
        assert_eq!(ban.last, BAN[0]);
        ban.begin();
        assert_eq!(ban.last, BAN[0], "one event is one ban");
        for expected in [2, 4, 8, 16, 32, 60, 60] {
            // It has just ended.
            ban.until = Some(Instant::now());
            ban.begin();
            assert_eq!(ban.last, Duration::from_secs(expected));
        }
        ban.until = Some(Instant::now() - 2 * BAN[1]);
        assert!(!ban.holds());
        ban.begin();
        assert_eq!(ban.last, BAN[0], "long after");
    }

    #[test]
    fn who_waited_for_the_cpu_has_starved() {
        let at = |waited_ms, turns| RunQueue { waited: Duration::from_millis(waited_ms), turns };
        let before = at(10, 5);
        assert_eq!(verdict(before, Some(before)), Verdict::Open);
        assert_eq!(verdict(before, Some(at(11, 6))), Verdict::Fine);
        assert_eq!(verdict(before, Some(at(12, 6))), Verdict::Starved);
        assert_eq!(verdict(before, None), Verdict::Fine, "the thread is gone");
    }
}
