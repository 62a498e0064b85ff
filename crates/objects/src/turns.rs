//! Turns of segments on their way to the bucket: as many at a time as leave small commits fast.
//!
//! # How many
//! A commit of a few KiB that comes beside eight segments waits until the store, and the line to it,
//! have taken most of these. So small commits are timed. The fastest of the last seconds shows what
//! one takes alone; one that takes twice as long, and [`NOTICED`] more, halves how many segments may
//! be on their way, down to one. After a second without such a commit each segment that ends allows
//! one more. A burst begins with two, for what it does to commits is not known. Where nobody commits,
//! nobody is held up.
//!
//! # Whose
//! Segments that somebody waits for go first; of equals, those of the tenant that has fewest on their
//! way; of its own, the first. So no tenant waits for all that another has written.

use std::cmp::Reverse;
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
/// A commit is slow if it takes so much longer than twice the fastest.
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
    /// When the last turn ended.
    ended: Option<Instant>,
    /// How many segments of each tenant are on their way.
    under_way: HashMap<u64, usize>,
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

    /// Whether the turn of one that waits has come.
    fn has_come(&self, id: u64) -> bool {
        let key = |(id, one): (&u64, &Waiting)| (Reverse(one.is_awaited), self.of(one.tenant), *id);
        let first = self.waiting.iter().min_by_key(|&one| key(one));
        let under_way: usize = self.under_way.values().sum();
        first.is_some_and(|(first, one)| {
            let most = if one.is_awaited { MOST } else { UNAWAITED };
            *first == id && under_way < most.min(self.allowed)
        })
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
        self.turns.state.lock().waiting.remove(&self.id);
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
            under_way: HashMap::new(),
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
        if took > 2 * fastest + NOTICED && !is_on("segments-not-paced") {
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

    /// Commits that became slow leave one segment on its way; when they are fast again, or the store is
    /// farther away than it was, as many as before.
    #[tokio::test(start_paused = true)]
    async fn slow_commits_leave_one_segment_and_fast_ones_give_them_back() {
        let turns = Turns::new();
        let ms = Duration::from_millis;
        let mut under_way: Vec<_> = std::iter::from_fn(|| come(&turns, 1, true)).collect();
        assert_eq!(under_way.len(), FIRST);
        under_way.clear();
        under_way.extend(burst(&turns, 1, true));
        assert_eq!(under_way.len(), MOST, "all are bounded");
        turns.committed(300, ms(2));
        turns.committed(300, ms(8));
        turns.committed(SMALL + 1, ms(500));
        drop(under_way.pop());
        assert!(come(&turns, 1, true).is_some(), "none of these was slow");
        for _ in 0..5 {
            turns.committed(300, ms(10));
        }
        under_way.truncate(1);
        assert!(come(&turns, 1, true).is_none(), "as many segments beside slow commits");
        drop(under_way.pop());
        under_way.extend(come(&turns, 1, true));
        assert_eq!(under_way.len(), 1, "one may always go");
        // Distance alone is not slow: what was fast before is forgotten.
        for _ in 0..3 {
            advance(REMEMBERED + ms(1)).await;
            turns.committed(300, ms(50));
        }
        advance(CAREFUL + ms(1)).await;
        turns.committed(300, ms(90));
        for at in 2..=MOST {
            drop(under_way.pop());
            while let Some(turn) = come(&turns, 1, true) {
                under_way.push(turn);
            }
            assert_eq!(under_way.len(), at);
        }
    }

    /// A segment that somebody waits for goes before others, and a tenant's does not wait for all of
    /// another's.
    #[tokio::test(start_paused = true)]
    async fn awaited_segments_go_first_and_tenants_take_turns() {
        let turns = Turns::new();
        let mut under_way = burst(&turns, 1, false);
        assert_eq!(under_way.len(), UNAWAITED);
        let order = Arc::new(Mutex::new(Vec::new()));
        let wait = |tenant, is_awaited| {
            let (turns, order) = (Arc::clone(&turns), Arc::clone(&order));
            tokio::spawn(async move {
                let turn = turns.turn(tenant, is_awaited).await;
                order.lock().push((tenant, is_awaited));
                turn
            })
        };
        let first = [wait(1, false), wait(1, false), wait(2, false)];
        tokio::task::yield_now().await;
        drop(under_way.pop());
        tokio::task::yield_now().await;
        assert_eq!(*order.lock(), [(2, false)], "a tenant's segments go before another's");
        // Somebody waits for it: not behind the four.
        let awaited = wait(1, true);
        awaited.await.unwrap();
        drop(under_way);
        for one in first {
            one.await.unwrap();
        }
        assert_eq!(order.lock().len(), 4);
        assert!(turns.state.lock().under_way.is_empty() && turns.state.lock().waiting.is_empty());
    }

    #[cfg(shuttle)]
    #[test]
    fn segments_that_are_not_paced_are_caught() {
        use sync::mutant::assert_caught;
        let test = "turns::schedules::slow_commits_leave_one_segment_and_fast_ones_give_them_back";
        assert_caught(test, &["segments-not-paced"], "as many segments beside slow commits");
    }
}
