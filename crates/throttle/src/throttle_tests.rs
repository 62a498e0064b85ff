//! Averages, debts, boosts and changes, by a clock that is set.

use proptest::prelude::*;
use sync::ManualClock;

use super::*;
use crate::reservation::Grant;

const SECOND: Duration = Duration::from_secs(1);

struct Rig {
    clock: Arc<ManualClock>,
    throttle: Throttle,
}

impl Rig {
    fn new(limits: &[(&str, &str)]) -> Self {
        let clock = Arc::new(ManualClock::default());
        let throttle = Throttle::new(Arc::clone(&clock) as Arc<dyn Clock>);
        let rig = Self { clock, throttle };
        rig.clock.advance(SECOND);
        limits.iter().for_each(|(path, limits)| rig.set(path, limits));
        rig
    }

    fn set(&self, path: &str, limits: &str) {
        let path = path.parse().expect("the test writes what is right");
        let mut now = self.throttle.get(&path);
        now.change(limits).expect("the test writes what is right");
        self.throttle.set(&path, now);
    }

    fn chain(&self, path: &str) -> Arc<Chain> {
        self.throttle.chain(&path.parse().expect("the test writes what is right"))
    }

    /// Does as much as it may for `time`; returns what was done and when. Wakes up as late as
    /// `late` says, in milliseconds.
    fn run(
        &self,
        path: &str,
        request: Request,
        time: Duration,
        mut late: impl FnMut() -> u64,
    ) -> Vec<(Duration, u64)> {
        let chain = self.chain(path);
        let until = self.throttle.now() + time;
        let mut done = Vec::new();
        while self.throttle.now() < until {
            match self.throttle.try_admit(&chain, &request) {
                Ok(()) => done.push((self.throttle.now(), request.bytes.max(request.operations))),
                Err(time) => {
                    let wait = time.min(until).saturating_sub(self.throttle.now());
                    self.clock.advance(wait + Duration::from_millis(late()));
                }
            }
        }
        done
    }
}

fn request(direction: Direction, bytes: u64, operations: u64) -> Request {
    Request { direction, bytes, operations, epoch: u64::MAX, inode: 0 }
}

fn wait(grant: Grant) -> Duration {
    match grant {
        Grant::NotBefore(time) => time,
        _ => Duration::ZERO,
    }
}

fn write(bytes: u64) -> Request {
    request(Direction::Write, bytes, 1)
}

/// The most that was done within any time of this length.
fn most_within(done: &[(Duration, u64)], length: Duration) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (at, amount) in done {
        sum += amount;
        while done[first].0 + length <= *at {
            sum -= done[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

fn sum(done: &[(Duration, u64)]) -> u64 {
    done.iter().map(|(_, amount)| amount).sum()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// At any rate, however late waiters wake up, in any window: not more than 2 % over the limit
    /// in any second or any ten, and not more than 2 % under it over ten.
    #[test]
    fn averages_keep_to_the_limit_within_2_percent(
        rate in 1_u64 << 20..1 << 28,
        late in prop::collection::vec(0_u64..5, 1..50),
        reads in any::<bool>(),
    ) {
        let (direction, key) = if reads { (Direction::Read, "rbps") } else { (Direction::Write, "wbps") };
        let rig = Rig::new(&[("/a", &format!("{key}={rate}"))]);
        let chunk = rig.chain("/a").chunk_size(&request(direction, 0, 1));
        let mut late = late.into_iter().cycle();
        let done = rig.run("/a", request(direction, chunk, 1), 11 * SECOND, || late.next().unwrap());
        prop_assert!(most_within(&done, SECOND) * 100 <= rate * 102);
        prop_assert!(most_within(&done, 10 * SECOND) * 100 <= 10 * rate * 102);
        prop_assert!(sum(&done) * 100 >= 11 * rate * 98);
    }

    /// Operations: within 2 %, or one operation.
    #[test]
    fn averages_of_operations_keep_to_the_limit(
        rate in 1_u64..100_000,
        late in prop::collection::vec(0_u64..5, 1..50),
        reads in any::<bool>(),
    ) {
        let (direction, key) = if reads { (Direction::Read, "riops") } else { (Direction::Write, "wiops") };
        let rig = Rig::new(&[("/a", &format!("{key}={rate}"))]);
        let mut late = late.into_iter().cycle();
        let done = rig.run("/a", request(direction, 0, 1), 11 * SECOND, || late.next().unwrap());
        for seconds in [1, 10] {
            let most = u64::try_from(seconds).unwrap() * rate;
            prop_assert!(most_within(&done, seconds as u32 * SECOND) <= (most * 102 / 100).max(most + 1));
        }
        prop_assert!(sum(&done) >= 11 * rate * 98 / 100);
    }

    /// Two children and their parent: each keeps to its own limit, both together to the parent's,
    /// and the parent's limit is used.
    #[test]
    fn every_ancestor_must_admit(parent in 1_u64 << 20..1 << 26, part in 1_u64..100) {
        let rig = Rig::new(&[("/p", &format!("wbps={parent}")), ("/p/a", &format!("wbps={}", parent * part / 100 + 4096))]);
        let chains = [rig.chain("/p/a"), rig.chain("/p/b")];
        let mut done = [0_u64; 2];
        while rig.throttle.now() < 11 * SECOND {
            let mut next = Duration::MAX;
            for (chain, done) in chains.iter().zip(&mut done) {
                let chunk = chain.chunk_size(&write(0));
                match rig.throttle.try_admit(chain, &write(chunk)) {
                    Ok(()) => { *done += chunk; next = Duration::ZERO; }
                    Err(at) => next = next.min(at),
                }
            }
            rig.clock.advance(next.saturating_sub(rig.throttle.now()));
        }
        prop_assert!(done[0] <= (parent * part / 100 + 4096) * 10 * 102 / 100 + 8192);
        let both = done[0] + done[1];
        prop_assert!(both <= parent * 10 * 102 / 100 && both >= parent * 10 * 97 / 100, "{both} of {parent}");
    }
}

#[test]
fn unused_time_is_not_saved_up() {
    let rig = Rig::new(&[("/a", "wbps=1M")]);
    rig.clock.advance(100 * SECOND);
    let done = rig.run("/a", write(8192), SECOND, || 0);
    assert!(sum(&done) * 100 <= 102 << 20);
}

#[test]
fn the_longer_wait_of_bytes_and_operations_counts() {
    let rig = Rig::new(&[("/a", "wbps=1M wiops=10")]);
    assert!(sum(&rig.run("/a", write(4096), 10 * SECOND, || 0)) <= 101 * 4096);
    let rig = Rig::new(&[("/a", "wbps=4K wiops=1000")]);
    assert!(sum(&rig.run("/a", write(4096), 10 * SECOND, || 0)) <= 12 * 4096);
}

#[test]
fn other_ways_and_other_cgroups_are_not_limited() {
    let rig = Rig::new(&[("/a", "wbps=1M")]);
    rig.throttle.charge(&rig.chain("/a"), &write(1 << 30));
    for (path, direction) in [
        ("/a", Direction::Read),
        ("/ab", Direction::Write),
        ("/", Direction::Write),
        ("/b", Direction::Write),
    ] {
        let request = request(direction, 1 << 30, 1);
        assert_eq!(rig.throttle.try_admit(&rig.chain(path), &request), Ok(()), "{path}");
    }
    assert!(rig.throttle.try_admit(&rig.chain("/a/b"), &write(1)).is_err());
}

#[test]
fn what_goes_at_once_is_a_debt() {
    let rig = Rig::new(&[("/a", "wbps=1M")]);
    let chain = rig.chain("/a");
    rig.throttle.charge(&chain, &write(10 << 20));
    let owed = rig.throttle.owed(&chain);
    assert!(owed <= 10 << 20 && owed > 9 << 20);
    assert_eq!(rig.run("/a", write(8192), 9 * SECOND, || 0), []);
    let after = sum(&rig.run("/a", write(8192), 11 * SECOND, || 0));
    assert!((10 << 20) + after <= (20 << 20) * 102 / 100 && after > 9 << 20, "{after}");
    assert_eq!(rig.throttle.owed(&chain) >> 14, 0, "paid");
}

/// Another throttle, by another clock, has its callers wait for as long as this one would have.
#[test]
fn debts_that_were_written_down_are_owed_elsewhere() {
    let limits = [("/a", "wbps=1M wiops=100 rbps=2M"), ("/a/b", "wbps=4M"), ("/c", "wbps=1M")];
    let (rig, other) = (Rig::new(&limits), Rig::new(&limits));
    other.clock.advance(1000 * SECOND);
    rig.throttle.charge(&rig.chain("/a/b"), &write(10 << 20));
    rig.throttle.charge(&rig.chain("/a"), &write(3 << 20));
    rig.throttle.charge(&rig.chain("/a"), &request(Direction::Read, 1 << 20, 1));
    rig.throttle.charge(&rig.chain("/gone"), &write(1 << 20));
    rig.throttle.suspend(true);
    let debts = rig.throttle.debts();
    rig.throttle.suspend(false);
    assert_eq!(debts.len(), 2, "of those that owe something: {debts:?}");
    other.throttle.owe(&debts);
    for path in ["/a", "/a/b", "/a/x", "/c"] {
        for request in [write(4096), request(Direction::Read, 4096, 1)] {
            let wait = |rig: &Rig| {
                let ready = rig.throttle.ready_at(&rig.chain(path), &request);
                ready.saturating_sub(rig.throttle.now())
            };
            let (before, after) = (wait(&rig), wait(&other));
            assert!(before.abs_diff(after) < Duration::from_millis(1), "{path}: {before:?} and {after:?}");
        }
        let owed = |rig: &Rig| rig.throttle.owed(&rig.chain(path));
        assert!(owed(&rig).abs_diff(owed(&other)) < 4096, "{path}");
    }
    // At limits that are gone nothing is owed.
    let none = Rig::new(&[]);
    none.throttle.owe(&debts);
    assert!(none.throttle.debts().is_empty());
}

#[test]
fn limits_change_while_running_and_debts_stay() {
    let rig = Rig::new(&[("/a", "wbps=1M")]);
    let chain = rig.chain("/a");
    rig.throttle.charge(&chain, &write(10 << 20));
    rig.set("/a", "wbps=10M");
    assert!(!rig.throttle.is_current(&chain));
    assert_eq!(rig.run("/a", write(8192), SECOND * 9 / 10, || 0), [], "ten times as fast, and still owed");
    let done = sum(&rig.run("/a", write(8192), SECOND, || 0));
    assert!((8 << 20..10 << 20).contains(&done), "{done}");
    rig.set("/a", "wbps=max");
    assert!(rig.chain("/a").is_empty() && rig.throttle.limits().is_empty());
    assert_eq!(rig.throttle.try_admit(&chain, &write(1 << 40)), Ok(()), "also by an old chain");
}

#[test]
fn a_limit_is_its_paths_whether_the_cgroup_is_there_or_made_again() {
    let rig = Rig::new(&[("/a/b", "wbps=1M")]);
    let first = rig.chain("/a/b");
    rig.throttle.charge(&first, &write(1 << 20));
    drop(first);
    let again = rig.chain("/a/b");
    assert!(rig.throttle.try_admit(&again, &write(1)).is_err(), "a new cgroup owes what the old one did");
}

#[test]
fn those_who_wait_go_in_order_and_what_they_did_not_do_is_given_back() {
    let rig = Rig::new(&[("/a", "wbps=1M")]);
    let chain = rig.chain("/a");
    let reservations: Vec<_> = (0..4).map(|_| rig.throttle.reserve(&chain, write(1 << 20))).collect();
    let now = rig.throttle.now();
    let waits: Vec<_> = reservations
        .iter()
        .map(|reservation| wait(reservation.grant()).saturating_sub(now).as_millis())
        .collect();
    assert_eq!(waits, [0, 988, 1988, 2988]);
    for (number, reservation) in reservations.into_iter().enumerate() {
        if number % 2 == 0 {
            reservation.commit(1 << 19, 1);
        }
    }
    assert_eq!(rig.throttle.owed(&chain), (1 << 20) * 988 / 1000, "half of two of four");
}

#[test]
fn an_old_reservation_does_not_wait_for_an_old_limit() {
    let rig = Rig::new(&[("/a", "wbps=1K")]);
    let chain = rig.chain("/a");
    rig.throttle.reserve(&chain, write(1 << 20)).commit(1 << 20, 1);
    let reservation = rig.throttle.reserve(&chain, write(1 << 20));
    assert!(matches!(reservation.grant(), Grant::NotBefore(_)));
    rig.set("/a", "wbps=1G");
    assert_eq!(reservation.grant(), Grant::Stale);
    drop(reservation);
    let again = rig.throttle.reserve(&rig.chain("/a"), write(1 << 20));
    assert!(
        wait(again.grant()) <= rig.throttle.now() + Duration::from_millis(1),
        "the first one's, at the new rate"
    );
}

#[test]
fn suspended_limits_let_all_go_and_hold_again_with_their_debts() {
    let rig = Rig::new(&[("/a", "wbps=1M")]);
    rig.throttle.charge(&rig.chain("/a"), &write(10 << 20));
    let chain = rig.chain("/a");
    rig.throttle.reserve(&chain, write(1 << 20)).commit(1 << 20, 1);
    let waiting = rig.throttle.reserve(&chain, write(1 << 20));
    assert!(matches!(waiting.grant(), Grant::NotBefore(_)));
    rig.throttle.suspend(true);
    assert_eq!(waiting.grant(), Grant::Stale, "it asks again");
    drop(waiting);
    assert!(!rig.throttle.is_limiting() && rig.chain("/a").is_empty());
    assert_eq!(rig.throttle.limits().len(), 1, "they are there still");
    rig.throttle.suspend(false);
    assert!(rig.throttle.is_limiting());
    assert!(rig.throttle.try_admit(&rig.chain("/a"), &write(1)).is_err(), "and so is the debt");
}
