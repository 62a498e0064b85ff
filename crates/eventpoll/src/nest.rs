//! Chains of eventpolls: no circles, and none that are too long.
//!
//! All links of the process are under one lock, which is held from the check until the link is there: of two that
//! would close a circle one comes first, and the other sees it. Eventpolls that go leave it to who has the lock to forget their links.

use std::collections::{HashMap, HashSet};

use sync::mutant::is_on;

use crate::errands::Errands;
use crate::{Error, Result};

/// Eventpolls in a chain.
const CHAIN_MAX: usize = 5;

/// Which eventpolls one watches, and which watch it.
#[derive(Debug, Default)]
struct Links {
    inner: HashMap<u64, Vec<u64>>,
    outer: HashMap<u64, Vec<u64>>,
}

/// What is left by those who do not wait for the lock.
#[derive(Debug, Clone, Copy)]
enum Gone {
    Link { outer: u64, inner: u64 },
    EventPoll(u64),
}

type Nest = Errands<Links, Gone>;

#[cfg(not(any(loom, shuttle)))]
static LINKS: std::sync::LazyLock<Nest> = std::sync::LazyLock::new(|| Nest::new(Links::default()));
#[cfg(loom)]
loom::lazy_static! { static ref LINKS: Nest = Nest::new(Links::default()); }
#[cfg(shuttle)]
shuttle::lazy_static! { static ref LINKS: Nest = Nest::new(Links::default()); }

/// Makes `outer` watch `inner` by calling `add`, if that is allowed.
pub(crate) fn link<T>(outer: u64, inner: u64, add: impl FnOnce() -> Result<T>) -> Result<T> {
    if is_on("eventpoll-link-unlocked") {
        with(|links| links.check(outer, inner))?;
        return with(|links| links.add(outer, inner, add));
    }
    with(|links| {
        links.check(outer, inner)?;
        links.add(outer, inner, add)
    })
}

/// Makes `outer` watch `inner` no more, by calling `delete`.
pub(crate) fn cut<T>(outer: u64, inner: u64, delete: impl FnOnce() -> Result<T>) -> Result<T> {
    with(|links| {
        let deleted = delete()?;
        links.remove(outer, inner);
        Ok(deleted)
    })
}

/// `outer` does not watch `inner` any more.
pub(crate) fn unlink(outer: u64, inner: u64) {
    LINKS.leave(Gone::Link { outer, inner }, Links::forget);
}

/// An eventpoll is gone.
pub(crate) fn forget(eventpoll: u64) {
    LINKS.leave(Gone::EventPoll(eventpoll), Links::forget);
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

    fn add<T>(&mut self, outer: u64, inner: u64, add: impl FnOnce() -> Result<T>) -> Result<T> {
        let added = add()?;
        self.inner.entry(outer).or_default().push(inner);
        self.outer.entry(inner).or_default().push(outer);
        Ok(added)
    }

    fn forget(&mut self, gone: Gone) {
        match gone {
            Gone::Link { outer, inner } => self.remove(outer, inner),
            Gone::EventPoll(eventpoll) => {
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
