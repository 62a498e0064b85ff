//! Turns of segments on their way to the bucket: as many at a time as leave small commits fast.
//!
//! # How many
//! A commit of a few KiB that comes beside eight segments waits until the store, and the line to it,
//! have taken most of these. So small commits are timed: those with no segment beside show what one
//! takes alone. One beside segments that takes twice as long, and [`NOTICED`] more, halves how many of
//! these may be on their way, down to one. After a second without such a commit each segment that
//! ends allows one more. A burst begins with two, for what it does to commits is not known. Where
//! nobody commits, nobody is held up.
//!
//! # Whose
//! The tenant's that has had none for the longest time; of its own, first those that somebody waits
//! for. So no tenant waits for all that another has written. One segment that somebody waits for may
//! always go for each tenant: a request that hangs holds up its own.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sync::mutant::is_on;
use tokio::sync::Notify;
use tokio::time::Instant;

/// Segments of a volume that are on their way at a time.
const MOST: usize = 8;
/// Of these, as many as go on their way while nobody waits for them.
const UNAWAITED: usize = 4;
/// As many as a burst begins with.
const FIRST: usize = 2;
/// Commits that are as small as this are timed.
const SMALL: usize = 64 << 10;
/// A commit is slow if it takes so much longer than twice what one takes alone.
const NOTICED: Duration = Duration::from_millis(5);
/// So long after a slow commit no more segments are allowed than before. After so long without a
/// segment another burst begins.
const CAREFUL: Duration = Duration::from_secs(1);
/// How long a fastest commit counts, at least; at most twice as long.
const REMEMBERED: Duration = Duration::from_secs(10);

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Turns {
    state: Mutex<State>,
    /// A turn has ended, or one that waited has left.
    changed: Notify,
}

#[derive(Debug)]
struct State {
    allowed: usize,
    /// When the last commit ended that was slow.
    slow: Option<Instant>,
    fastest: Fastest,
    /// What a commit takes with no segment beside: the mean of the last few.
    alone: Option<Duration>,
    /// When the last turn ended.
    ended: Option<Instant>,
    /// How many segments of each tenant are on their way.
    under_way: HashMap<u64, usize>,
    /// The last turn of each tenant that waits or has one.
    served: HashMap<u64, u64>,
    turns: u64,
    /// Those that wait, in the order in which they came.
    waiting: BTreeMap<u64, Waiting>,
    next: u64,
}

#[derive(Debug, Clone, Copy)]
struct Waiting {
    tenant: u64,
    is_awaited: bool,
}

/// The fastest commit of this span of time and of the one before.
#[derive(Debug, Default)]
struct Fastest {
    begun: Option<Instant>,
    now: Option<Duration>,
    before: Option<Duration>,
}

impl Fastest {
    /// Adds a commit; the fastest with it.
    fn add(&mut self, took: Duration) -> Duration {
        let now = Instant::now();
        if self.begun.is_none_or(|begun| now - begun > REMEMBERED) {
            (self.begun, self.before, self.now) = (Some(now), self.now, None);
        }
        let fastest = self.now.map_or(took, |fastest| fastest.min(took));
        self.now = Some(fastest);
        self.before.map_or(fastest, |before| before.min(fastest))
    }
}

impl State {
    fn of(&self, tenant: u64) -> usize {
        self.under_way.get(&tenant).copied().unwrap_or(0)
    }

    /// Whether one that waits may go as far as the number of segments decides.
    fn may_go(&self, one: &Waiting) -> bool {
        let under_way: usize = self.under_way.values().sum();
        let most = if one.is_awaited { MOST } else { UNAWAITED };
        under_way < most.min(self.allowed) || one.is_awaited && self.of(one.tenant) == 0
    }

    /// Whether the turn of one that waits has come.
    fn has_come(&self, id: u64) -> bool {
        let last = |tenant| self.served.get(&tenant).copied().unwrap_or(0);
        let ready = self.waiting.iter().filter(|(_, one)| self.may_go(one));
        let next = ready.min_by_key(|(id, one)| (last(one.tenant), !one.is_awaited, **id));
        next.is_some_and(|(next, _)| *next == id)
    }

    /// Forgets a tenant that neither waits nor has a turn.
    fn forget(&mut self, tenant: u64) {
        if self.of(tenant) == 0 && self.waiting.values().all(|one| one.tenant != tenant) {
            self.served.remove(&tenant);
        }
    }
}

/// A segment may be on its way as long as this lives.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    tenant: u64,
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        if let Some(count) = state.under_way.get_mut(&self.tenant) {
            *count -= 1;
            if *count == 0 {
                state.under_way.remove(&self.tenant);
            }
        }
        state.forget(self.tenant);
        state.ended = Some(Instant::now());
        if state.slow.is_none_or(|slow| slow.elapsed() > CAREFUL) {
            state.allowed = MOST.min(state.allowed + 1);
        }
        drop(state);
        self.turns.changed.notify_waiters();
    }
}

/// One that waits, and leaves if nobody waits for its turn any more.
struct Place<'a> {
    turns: &'a Turns,
    id: u64,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut state = self.turns.state.lock();
        if let Some(one) = state.waiting.remove(&self.id) {
            state.forget(one.tenant);
        }
        drop(state);
        self.turns.changed.notify_waiters();
    }
}

impl Turns {
    pub(crate) fn new() -> Arc<Self> {
        let state = State {
            allowed: FIRST,
            slow: None,
            ended: None,
            fastest: Fastest::default(),
            alone: None,
            under_way: HashMap::new(),
            served: HashMap::new(),
            turns: 0,
            waiting: BTreeMap::new(),
            next: 0,
        };
        Arc::new(Self { state: Mutex::new(state), changed: Notify::new() })
    }

    /// Waits for the turn of a segment of a tenant.
    pub(crate) async fn turn(self: &Arc<Self>, tenant: u64, is_awaited: bool) -> Turn {
        let id = {
            let mut state = self.state.lock();
            let is_rest = state.under_way.is_empty() && state.waiting.is_empty();
            if is_rest && state.ended.is_some_and(|ended| ended.elapsed() > CAREFUL) {
                state.allowed = state.allowed.min(FIRST);
            }
            state.next += 1;
            let id = state.next;
            state.waiting.insert(id, Waiting { tenant, is_awaited });
            id
        };
        let place = Place { turns: self, id };
        loop {
            // Before the look, so that no change is missed after it.
            let changed = self.changed.notified();
            {
                let mut state = self.state.lock();
                if state.has_come(id) {
                    *state.under_way.entry(tenant).or_default() += 1;
                    state.turns += 1;
                    let turn = state.turns;
                    state.served.insert(tenant, turn);
                    break;
                }
            }
            changed.await;
        }
        drop(place);
        Turn { turns: Arc::clone(self), tenant }
    }

    /// The fastest commit of the last seconds, if there was one.
    pub(crate) fn fastest(&self) -> Option<Duration> {
        let state = self.state.lock();
        state.fastest.now.into_iter().chain(state.fastest.before).min()
    }

    /// A commit of so many bytes was made, and took so long.
    pub(crate) fn committed(&self, bytes: usize, took: Duration) {
        if bytes > SMALL {
            return;
        }
        let mut state = self.state.lock();
        let fastest = state.fastest.add(took);
        let was_alone = state.under_way.is_empty() && state.ended.is_none_or(|ended| ended.elapsed() > took);
        if was_alone {
            state.alone = Some(state.alone.map_or(took, |alone| (7 * alone + took) / 8));
            return;
        }
        let usual = state.alone.unwrap_or(fastest).max(fastest);
        // Those that were on their way together are slow for one reason.
        let is_known = state.slow.is_some_and(|slow| slow.elapsed() < took);
        if took > 2 * usual + NOTICED && !is_known && !is_on("segments-not-paced") {
            state.allowed = (state.allowed / 2).max(1);
            state.slow = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod schedules {
    use futures_util::FutureExt as _;
    use tokio::time::advance;

    use super::*;

    fn come(turns: &Arc<Turns>, tenant: u64, is_awaited: bool) -> Option<Turn> {
        turns.turn(tenant, is_awaited).now_or_never()
    }

    /// As many segments as may be on their way, after a burst of so many.
    fn burst(turns: &Arc<Turns>, tenant: u64, is_awaited: bool) -> Vec<Turn> {
        for _ in 0..MOST {
            drop(come(turns, tenant, is_awaited).unwrap());
        }
        std::iter::from_fn(|| come(turns, tenant, is_awaited)).collect()
    }

    /// Commits that become slow beside segments leave one of these on its way; when they are fast
    /// again, as many as before.
    #[tokio::test(start_paused = true)]
    async fn slow_commits_leave_one_segment_and_fast_ones_give_them_back() {
        let turns = Turns::new();
        let ms = Duration::from_millis;
        // Nobody waits for another: each says how many there are.
        let fill = |under_way: &mut Vec<Turn>| {
            under_way.extend(std::iter::from_fn(|| come(&turns, 1, true)));
            under_way.len()
        };
        turns.committed(300, ms(2));
        turns.committed(300, ms(90));
        let mut under_way = Vec::new();
        assert_eq!(fill(&mut under_way), FIRST, "what was slow alone was not slow by segments");
        under_way.clear();
        under_way.extend(burst(&turns, 1, true));
        assert_eq!(under_way.len(), MOST, "all are bounded");
        turns.committed(300, ms(30));
        turns.committed(SMALL + 1, ms(500));
        drop(under_way.pop());
        assert_eq!(fill(&mut under_way), MOST, "none of these was slow");
        for _ in 0..4 {
            turns.committed(300, ms(60));
            advance(ms(60)).await;
        }
        under_way.truncate(1);
        assert_eq!(fill(&mut under_way), 1, "as many segments beside slow commits");
        drop(under_way.pop());
        assert_eq!(fill(&mut under_way), 1, "one may always go");
        advance(CAREFUL + ms(1)).await;
        turns.committed(300, ms(25));
        for at in 2..=MOST {
            drop(under_way.pop());
            assert_eq!(fill(&mut under_way), at);
        }
    }

    /// Of one tenant a segment that somebody waits for goes first; of two tenants, each in turn.
    #[tokio::test(start_paused = true)]
    async fn tenants_take_turns_and_one_that_waits_for_its_own_goes_at_once() {
        let turns = Turns::new();
        let mut under_way = burst(&turns, 1, false);
        assert_eq!(under_way.len(), UNAWAITED);
        let order = Arc::new(Mutex::new(Vec::new()));
        let wait = |tenant, is_awaited| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                let turn = turns.turn(tenant, is_awaited).await;
                order.lock().push((tenant, is_awaited));
                tokio::time::sleep(Duration::from_millis(10)).await;
                drop(turn);
            })
        };
        // All commits are slow: one segment at a time.
        for _ in 0..4 {
            turns.committed(300, Duration::from_millis(1));
            turns.committed(300, Duration::from_secs(1));
            advance(Duration::from_secs(1)).await;
        }
        let mut waiting: Vec<_> = (0..4).map(|_| wait(1, false)).collect();
        tokio::task::yield_now().await;
        waiting.push(wait(2, false));
        waiting.push(wait(2, false));
        waiting.push(wait(1, true));
        tokio::task::yield_now().await;
        assert!(order.lock().is_empty());
        wait(3, true).await.unwrap();
        assert_eq!(
            *order.lock(),
            [(3, true)],
            "a tenant's segments go before another's that somebody waits for"
        );
        under_way.clear();
        for one in waiting {
            one.await.unwrap();
        }
        let expected =
            [(3, true), (2, false), (1, true), (2, false), (1, false), (1, false), (1, false), (1, false)];
        assert_eq!(*order.lock(), expected, "a tenant waits for all of another's");
        let state = turns.state.lock();
        assert!(state.under_way.is_empty() && state.waiting.is_empty() && state.served.is_empty());
    }

    #[cfg(shuttle)]
    #[test]
    fn segments_that_are_not_paced_are_caught() {
        use sync::mutant::assert_caught;
        let test = "turns::schedules::slow_commits_leave_one_segment_and_fast_ones_give_them_back";
        assert_caught(test, &["segments-not-paced"], "as many segments beside slow commits");
    }
}
