//! Chains of eventpolls: no circles, none that are too long, and not too many from one source.
//!
//! All links of the process are under one lock, which is held from the check until the link is
//! there: of two additions that would close a circle one comes first, and the other sees it. An
//! eventpoll that is dropped leaves a deferred task for the holder of the lock: to forget its links.
//!
//! # How many chains begin at a source
//! A signal calls each eventpoll that it can reach, once for each chain. Without a bound a few
//! hundred eventpolls that watch each other in layers make millions of calls of one signal (in
//! Linux: CVE-2011-1083, bounded by `path_limits` since). The bounds are Linux's: [`CHAINS_MAX`].
//! They are checked where a chain of two or more can begin: when an eventpoll is to be watched, for
//! itself and for all that it reaches, and when a source is added to an eventpoll that is watched.
//! Adding a source takes the lock only in that second case: `Watched::begin_nesting` informs the
//! eventpoll, under its own lock, before its sources are counted. A source that was added before is
//! counted; one that is added later finds that it has to take this lock.
//!
//! # Lock order
//! This lock, then the scan's lock of an eventpoll, one at a time; then a source's `change`.

use std::collections::{HashMap, HashSet};

use sync::mutant::is_on;

use crate::deferred::DeferredMutex;
use crate::queue::ENTRIES_MAX;
use crate::source::Watched;
use crate::{Error, Result};

/// Eventpolls in a chain.
const CHAIN_MAX: usize = 5;
/// How many chains of one, two, … eventpolls may begin at a source. The first is the bound of a
/// source's own wait entries (`queue`).
#[cfg(not(any(loom, shuttle)))]
const CHAINS_MAX: [usize; CHAIN_MAX] = [ENTRIES_MAX, 500, 100, 50, 10];
// Models have few eventpolls.
#[cfg(any(loom, shuttle))]
const CHAINS_MAX: [usize; CHAIN_MAX] = [ENTRIES_MAX, 2, 2, 2, 2];

/// Which eventpolls an eventpoll watches, and which watch it.
#[derive(Debug, Default)]
struct Links {
    inner: HashMap<u64, Vec<u64>>,
    outer: HashMap<u64, Vec<u64>>,
}

/// A task of a thread that does not wait for the lock.
#[derive(Debug, Clone, Copy)]
enum Unlinked {
    Link { outer: u64, inner: u64 },
    EventPoll(u64),
}

type Nest = DeferredMutex<Links, Unlinked>;

#[cfg(not(any(loom, shuttle)))]
static LINKS: std::sync::LazyLock<Nest> = std::sync::LazyLock::new(|| Nest::new(Links::default()));
#[cfg(loom)]
loom::lazy_static! { static ref LINKS: Nest = Nest::new(Links::default()); }
#[cfg(shuttle)]
shuttle::lazy_static! { static ref LINKS: Nest = Nest::new(Links::default()); }

/// Makes `outer` watch the eventpoll `inner` by calling `add`, if that is allowed.
pub(crate) fn link<T>(outer: u64, inner: &dyn Watched, add: impl FnOnce() -> Result<T>) -> Result<T> {
    let id = inner.queue().0.id();
    if is_on("eventpoll-link-unlocked") {
        with(|links| links.check(outer, id))?;
        return with(|links| links.add(outer, id, add));
    }
    with(|links| {
        links.check(outer, id)?;
        links.check_below(outer, inner)?;
        links.add(outer, id, add)
    })
}

/// Makes the eventpoll `outer`, which is watched itself, watch `source` by calling `add`, if that
/// is allowed.
pub(crate) fn watch<T>(outer: u64, source: &dyn Watched, add: impl FnOnce() -> Result<T>) -> Result<T> {
    with(|links| {
        let mut chains = Chains::default();
        chains.check(source, links, Some(outer))?;
        add()
    })
}

/// Stops `outer` from watching `inner`, by calling `delete`.
pub(crate) fn cut<T>(outer: u64, inner: u64, delete: impl FnOnce() -> Result<T>) -> Result<T> {
    with(|links| {
        let deleted = delete()?;
        links.remove(outer, inner);
        Ok(deleted)
    })
}

/// `outer` does not watch `inner` any more.
pub(crate) fn unlink(outer: u64, inner: u64) {
    LINKS.defer(Unlinked::Link { outer, inner }, Links::forget);
}

/// An eventpoll is gone.
pub(crate) fn forget(eventpoll: u64) {
    LINKS.defer(Unlinked::EventPoll(eventpoll), Links::forget);
}

fn with<T>(work: impl FnOnce(&mut Links) -> T) -> T {
    LINKS.with(Links::forget, work).0
}

impl Links {
    /// Whether `outer` may watch `inner`.
    fn check(&self, outer: u64, inner: u64) -> Result<()> {
        if reaches(&self.inner, inner, outer, &mut HashSet::new()) {
            return Err(Error::Loop);
        }
        let above = longest(&self.outer, outer, &mut HashMap::new());
        let below = longest(&self.inner, inner, &mut HashMap::new());
        if above + below > CHAIN_MAX {
            return Err(Error::TooDeep { max: CHAIN_MAX });
        }
        Ok(())
    }

    /// Whether the chains that begin at `inner`, or at anything that it reaches, stay within their
    /// bounds if `outer` watches it.
    fn check_below(&mut self, outer: u64, inner: &dyn Watched) -> Result<()> {
        let id = inner.queue().0.id();
        // As if the link were there, while chains are counted.
        self.outer.entry(id).or_default().push(outer);
        let mut chains = Chains::default();
        let mut result = chains.check(inner, self, Some(outer));
        let mut seen = HashSet::from([id]);
        let mut below = inner.begin_nesting();
        while result.is_ok()
            && let Some(source) = below.pop()
        {
            if seen.insert(source.queue().0.id()) {
                result = chains.check(&*source, self, None);
                below.extend(source.begin_nesting());
            }
        }
        // Only the last: the link may exist already, which `add` reports.
        if let Some(outers) = self.outer.get_mut(&id) {
            outers.pop();
            if outers.is_empty() {
                self.outer.remove(&id);
            }
        }
        result
    }

    fn add<T>(&mut self, outer: u64, inner: u64, add: impl FnOnce() -> Result<T>) -> Result<T> {
        let added = add()?;
        self.inner.entry(outer).or_default().push(inner);
        self.outer.entry(inner).or_default().push(outer);
        Ok(added)
    }

    fn forget(&mut self, unlinked: Unlinked) {
        match unlinked {
            Unlinked::Link { outer, inner } => self.remove(outer, inner),
            Unlinked::EventPoll(eventpoll) => {
                for inner in self.inner.remove(&eventpoll).unwrap_or_default() {
                    remove_from(&mut self.outer, inner, eventpoll);
                }
                for outer in self.outer.remove(&eventpoll).unwrap_or_default() {
                    remove_from(&mut self.inner, outer, eventpoll);
                }
            }
        }
    }

    fn remove(&mut self, outer: u64, inner: u64) {
        remove_from(&mut self.inner, outer, inner);
        remove_from(&mut self.outer, inner, outer);
    }
}

/// How many chains of one, two, … eventpolls there are.
type Counts = [usize; CHAIN_MAX];

/// For each eventpoll that was visited, the chains that begin with it.
#[derive(Default)]
struct Chains(HashMap<u64, Counts>);

impl Chains {
    /// Whether the chains that begin at `source` are within their bounds, with one more eventpoll
    /// that watches it.
    fn check(&mut self, source: &dyn Watched, links: &Links, more: Option<u64>) -> Result<()> {
        let mut counts = Counts::default();
        let mut eventpolls = source.queue().0.eventpolls();
        eventpolls.extend(more);
        for eventpoll in eventpolls {
            add_up(&mut counts, &self.from(eventpoll, links), 0);
        }
        // The first bound is the queue's.
        let too_many = (1..CHAIN_MAX).find(|&length| counts[length] > CHAINS_MAX[length]);
        match too_many {
            Some(length) => Err(Error::TooManyPaths { length: length + 1, max: CHAINS_MAX[length] }),
            None => Ok(()),
        }
    }

    fn from(&mut self, eventpoll: u64, links: &Links) -> Counts {
        if let Some(known) = self.0.get(&eventpoll) {
            return *known;
        }
        let mut counts = Counts::default();
        counts[0] = 1;
        for &outer in links.outer.get(&eventpoll).map_or(&[][..], Vec::as_slice) {
            let above = self.from(outer, links);
            add_up(&mut counts, &above, 1);
        }
        self.0.insert(eventpoll, counts);
        counts
    }
}

/// Adds chains that are longer by so many eventpolls.
fn add_up(counts: &mut Counts, more: &Counts, longer: usize) {
    for (count, more) in counts[longer..].iter_mut().zip(more) {
        *count = count.saturating_add(*more);
    }
}

fn remove_from(links: &mut HashMap<u64, Vec<u64>>, key: u64, value: u64) {
    if let Some(values) = links.get_mut(&key) {
        values.retain(|known| *known != value);
        if values.is_empty() {
            links.remove(&key);
        }
    }
}

fn reaches(links: &HashMap<u64, Vec<u64>>, from: u64, to: u64, seen: &mut HashSet<u64>) -> bool {
    from == to
        || seen.insert(from)
            && links.get(&from).is_some_and(|next| next.iter().any(|&next| reaches(links, next, to, seen)))
}

/// Eventpolls in the longest chain that begins at `from`.
fn longest(links: &HashMap<u64, Vec<u64>>, from: u64, known: &mut HashMap<u64, usize>) -> usize {
    if let Some(&length) = known.get(&from) {
        return length;
    }
    let next = links.get(&from).map_or(&[][..], Vec::as_slice);
    let length = 1 + next.iter().map(|&next| longest(links, next, known)).max().unwrap_or(0);
    known.insert(from, length);
    length
}
