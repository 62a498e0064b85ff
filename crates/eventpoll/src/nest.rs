//! Chains of eventpolls: no circles, and none that are too long.
//!
//! All links of the process are under one lock, which is held from the check until the link is there: of two that
//! would close a circle one comes first, and the other sees it.

use std::collections::{HashMap, HashSet};

use sync::Mutex;

use crate::{Error, Result};

/// Eventpolls in a chain.
const CHAIN_MAX: usize = 5;

/// Which eventpolls one watches, and which watch it.
#[derive(Debug, Default)]
struct Links {
    inner: HashMap<u64, Vec<u64>>,
    outer: HashMap<u64, Vec<u64>>,
}

#[cfg(not(any(loom, shuttle)))]
static LINKS: std::sync::LazyLock<Mutex<Links>> = std::sync::LazyLock::new(Mutex::default);
#[cfg(loom)]
loom::lazy_static! { static ref LINKS: Mutex<Links> = Mutex::default(); }
#[cfg(shuttle)]
shuttle::lazy_static! { static ref LINKS: Mutex<Links> = Mutex::default(); }

/// Makes `outer` watch `inner` by calling `add`, if that is allowed.
pub(crate) fn link<T>(outer: u64, inner: u64, add: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut links = LINKS.lock();
    if reaches(&links.inner, inner, outer, &mut HashSet::new()) {
        return Err(Error::Loop);
    }
    let above = longest(&links.outer, outer, &mut HashMap::new());
    let below = longest(&links.inner, inner, &mut HashMap::new());
    if above + below > CHAIN_MAX {
        return Err(Error::TooDeep { max: CHAIN_MAX });
    }
    if sync::mutant::is_on("eventpoll-link-unlocked") {
        drop(links);
        links = LINKS.lock();
    }
    let added = add()?;
    links.inner.entry(outer).or_default().push(inner);
    links.outer.entry(inner).or_default().push(outer);
    Ok(added)
}

/// Makes `outer` watch `inner` no more, by calling `delete`.
pub(crate) fn cut<T>(outer: u64, inner: u64, delete: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut links = LINKS.lock();
    let deleted = delete()?;
    links.remove(outer, inner);
    Ok(deleted)
}

/// `outer` does not watch `inner` any more.
pub(crate) fn unlink(outer: u64, inner: u64) {
    LINKS.lock().remove(outer, inner);
}

/// An eventpoll is gone.
pub(crate) fn forget(eventpoll: u64) {
    let mut links = LINKS.lock();
    for inner in links.inner.remove(&eventpoll).unwrap_or_default() {
        remove_from(&mut links.outer, inner, eventpoll);
    }
    for outer in links.outer.remove(&eventpoll).unwrap_or_default() {
        remove_from(&mut links.inner, outer, eventpoll);
    }
}

impl Links {
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
