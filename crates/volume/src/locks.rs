//! File locks: fcntl(2) record locks and flock(2), which do not see each other.
//!
//! # Meaning
//! As the kernel's own: record locks belong to an owner and a range; an owner's own locks never conflict,
//! a new one replaces what the owner had there, so that ranges are split, merged, upgraded and
//! downgraded. An flock is one per owner; changing its kind gives the old one up first, also if the new
//! one is then refused.
//!
//! # Waiting
//! A wish that has to wait is a piece of data with a function to call; no thread waits for it. Whoever
//! gives a lock back grants what became possible, the longest waiting first, and calls the functions
//! after the table's lock is released. A wish does not wait for earlier *wishes*, only for locks: a reader
//! that holds a lock could otherwise wait for a writer that waits for it. Each wish hangs on one owner that
//! is in its way, so that giving a lock back looks at those only who waited for it.
//!
//! # Deadlock
//! Before a record lock waits, the owners in its way are followed to what they wait for, to those in the
//! way of that, and so on. If that leads back to who asks, it is refused. The walk is bounded
//! ([`WALK_MAX`]): a longer chain is taken for none, and its waiters can still be interrupted. flock
//! deadlocks are not looked for, as nowhere.
//!
//! # State, all under `LockTable::state`
//! * `files`: the locks of each file that has any, and the numbers of the wishes that wait there. A wish is
//!   under the owner that its [`Wait`] names, and that owner is in its way.
//! * `waits`: the wishes by number; numbers grow, so that their order is the order of arrival.
//! * `waits_of`: the waiting record-lock wishes of each owner, for the walk.
//! * `held`: how many ranges are locked, over all files.
//!
//! Lock order: `state` is a leaf. [`LockDone`] functions are called without it.

mod file;
mod ranges;

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

use std::collections::{BTreeSet, HashMap};

use sync::Mutex;

use crate::{Error, Lock, LockDone, LockFamily, LockKind, LockWait, NodeId, Result};
use file::{FileLocks, whole};

/// How many locks and waits a table may have.
#[derive(Debug, Clone, Copy)]
pub struct LockLimits {
    /// Locked ranges.
    pub held_max: usize,
    /// Wishes that wait.
    pub waiting_max: usize,
}

impl Default for LockLimits {
    fn default() -> Self {
        Self { held_max: 65_536, waiting_max: 16_384 }
    }
}

/// Owners that the search for a deadlock looks at, counted each time: some tens of microseconds.
const WALK_MAX: usize = 16_384;

/// The locks of one volume.
#[derive(Debug)]
pub struct LockTable {
    limits: LockLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    files: HashMap<NodeId, FileLocks>,
    waits: HashMap<u64, Wait>,
    waits_of: HashMap<u64, BTreeSet<u64>>,
    held: usize,
    next_wait: u64,
}

struct Wait {
    node: NodeId,
    wish: Lock,
    /// Who is in the way.
    blocker: u64,
    done: LockDone,
}

impl std::fmt::Debug for Wait {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Wait").field("node", &self.node).field("wish", &self.wish).finish_non_exhaustive()
    }
}

/// What to tell to those whose wait ended; [`tell`] it without the table's lock.
type Ended = Vec<(LockDone, Result<()>)>;

fn tell(ended: Ended) {
    for (done, result) in ended {
        done(result);
    }
}

impl Default for LockTable {
    fn default() -> Self {
        Self::new(LockLimits::default())
    }
}

impl LockTable {
    /// An empty table.
    #[must_use]
    pub fn new(limits: LockLimits) -> Self {
        Self { limits, state: Mutex::default() }
    }

    /// The lock that is in the way of `wish`, if there is one; of several, the one that begins first.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a range that ends before it begins.
    pub fn get(&self, node: NodeId, wish: &Lock) -> Result<Option<Lock>> {
        let wish = checked(wish)?;
        let state = self.state.lock();
        Ok(state.files.get(&node).and_then(|file| file.of(wish.family).first_in_the_way(&wish)))
    }

    /// Takes the lock at once, or not at all.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if it is held by somebody else, [`Error::NoLocks`] if there are too many.
    pub fn set(&self, node: NodeId, wish: &Lock) -> Result<()> {
        let wish = checked(wish)?;
        let mut ended = Ended::new();
        let result = {
            let mut state = self.state.lock();
            let result = match state.try_take(node, &wish, self.limits.held_max, &mut ended) {
                Taken::Yes => Ok(()),
                Taken::InTheWay(_) => Err(Error::WouldBlock),
                Taken::NoRoom => Err(Error::NoLocks),
            };
            state.tidy(node);
            result
        };
        tell(ended);
        result
    }

    /// Takes the lock when it becomes free, and then calls `done`, once.
    ///
    /// `None`: `done` was called already, with what there was to say. Otherwise the wait can be
    /// [cancelled](Self::cancel); it may have ended in the meantime. The errors that `done` can get
    /// are those of [`set`](Self::set) but for [`Error::WouldBlock`], and [`Error::Deadlock`].
    pub fn wait(&self, node: NodeId, wish: &Lock, done: LockDone) -> Option<LockWait> {
        let wish = match checked(wish) {
            Ok(wish) => wish,
            Err(error) => {
                done(Err(error));
                return None;
            }
        };
        let mut ended = Ended::new();
        let mut wait = None;
        {
            let mut state = self.state.lock();
            match state.try_take(node, &wish, self.limits.held_max, &mut ended) {
                Taken::Yes => ended.push((done, Ok(()))),
                Taken::NoRoom => ended.push((done, Err(Error::NoLocks))),
                Taken::InTheWay(_) if state.waits.len() >= self.limits.waiting_max => {
                    ended.push((done, Err(Error::NoLocks)));
                }
                Taken::InTheWay(_) if state.would_deadlock(node, &wish) => {
                    ended.push((done, Err(Error::Deadlock)));
                }
                Taken::InTheWay(blocker) => wait = Some(state.park(Wait { node, wish, blocker, done })),
            }
            state.tidy(node);
        }
        tell(ended);
        wait
    }

    /// Ends a wait with [`Error::Interrupted`], unless it ended before.
    pub fn cancel(&self, wait: &LockWait) {
        let ended = self.state.lock().unpark(wait.number);
        if let Some(wait) = ended {
            (wait.done)(Err(Error::Interrupted));
        }
    }

    /// Gives up what `owner` has in `[start, end]` (of an flock: all of it).
    ///
    /// # Errors
    /// [`Error::NoLocks`] if a hole in the middle of a range would make one range too many;
    /// [`Error::Invalid`] for a range that ends before it begins. Giving up everything never fails.
    pub fn unlock(&self, node: NodeId, family: LockFamily, owner: u64, start: u64, end: u64) -> Result<()> {
        let range = checked(&Lock { family, kind: LockKind::Read, start, end, owner, pid: 0 })?;
        let mut ended = Ended::new();
        let result = {
            let mut state = self.state.lock();
            let result = state.give_up(node, &range, self.limits.held_max, &mut ended);
            state.tidy(node);
            result
        };
        tell(ended);
        result
    }

    /// Drops all locks of a file that is gone; its waits end with [`Error::NoNode`].
    pub fn remove(&self, node: NodeId) {
        let mut ended = Ended::new();
        {
            let mut state = self.state.lock();
            if let Some(file) = state.files.remove(&node) {
                state.held -= file.len();
                for family in [LockFamily::Posix, LockFamily::Flock] {
                    for number in file.of(family).all_waiting() {
                        let wait = state.unpark(number);
                        ended.extend(wait.map(|w| (w.done, Err(Error::NoNode(node)))));
                    }
                }
            }
        }
        tell(ended);
    }

    /// Drops everything; all waits end with [`Error::Released`].
    pub fn clear(&self) {
        let old = std::mem::take(&mut *self.state.lock());
        tell(old.waits.into_values().map(|wait| (wait.done, Err(Error::Released))).collect());
    }

    /// Locked ranges, and wishes that wait.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        let state = self.state.lock();
        (state.held, state.waits.len())
    }

    /// Whether nothing is locked and nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == (0, 0)
    }
}

fn checked(lock: &Lock) -> Result<Lock> {
    let lock = whole(lock);
    if lock.start > lock.end { Err(Error::Invalid("a lock ends before it begins")) } else { Ok(lock) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
enum Taken {
    Yes,
    /// This owner, perhaps among others.
    InTheWay(u64),
    NoRoom,
}

impl State {
    /// Takes the lock if nobody is in its way, and grants what waited for what that gave up.
    fn try_take(&mut self, node: NodeId, wish: &Lock, held_max: usize, ended: &mut Ended) -> Taken {
        let holders = self.files.entry(node).or_default().of_mut(wish.family);
        let mut is_less = false;
        if wish.family == LockFamily::Flock {
            if holders.has(wish) {
                return Taken::Yes;
            }
            // Another kind: the old one goes first, whatever becomes of the new one.
            let before = holders.len_of(wish.owner);
            is_less = holders.put(wish.owner, wish.start, wish.end, None);
            self.held -= before;
        }
        let taken = self.take(node, wish, held_max, &mut is_less);
        if is_less {
            self.grant(node, wish.family, wish.owner, held_max, ended);
        }
        taken
    }

    fn take(&mut self, node: NodeId, wish: &Lock, held_max: usize, is_less: &mut bool) -> Taken {
        let holders = self.files.entry(node).or_default().of_mut(wish.family);
        if let Some(owner) = holders.in_the_way(wish).next() {
            return Taken::InTheWay(owner);
        }
        let before = holders.len_of(wish.owner);
        let after = holders.len_after(wish.owner, wish.start, wish.end, Some(wish.kind));
        if after > before && self.held - before + after > held_max {
            return Taken::NoRoom;
        }
        *is_less |= holders.put(wish.owner, wish.start, wish.end, Some((wish.kind, wish.pid)));
        self.held = self.held - before + holders.len_of(wish.owner);
        Taken::Yes
    }

    fn give_up(&mut self, node: NodeId, range: &Lock, held_max: usize, ended: &mut Ended) -> Result<()> {
        let Some(file) = self.files.get_mut(&node) else { return Ok(()) };
        let holders = file.of_mut(range.family);
        let before = holders.len_of(range.owner);
        let after = holders.len_after(range.owner, range.start, range.end, None);
        if after > before && self.held - before + after > held_max {
            return Err(Error::NoLocks);
        }
        let is_less = holders.put(range.owner, range.start, range.end, None);
        self.held = self.held - before + holders.len_of(range.owner);
        if is_less {
            self.grant(node, range.family, range.owner, held_max, ended);
        }
        Ok(())
    }

    /// Grants the wishes that only `owner` was in the way of, in the order of arrival.
    fn grant(&mut self, node: NodeId, family: LockFamily, owner: u64, held_max: usize, ended: &mut Ended) {
        let mut candidates = self.take_waiting(node, family, owner);
        while let Some(number) = candidates.pop_first() {
            let Some(wish) = self.waits.get(&number).map(|wait| wait.wish) else { continue };
            let mut is_less = false;
            let result = match self.take(node, &wish, held_max, &mut is_less) {
                Taken::InTheWay(blocker) => {
                    self.hang(number, blocker);
                    continue;
                }
                Taken::Yes => Ok(()),
                Taken::NoRoom => Err(Error::NoLocks),
            };
            if is_less {
                // It replaced its owner's own, stronger lock: that had been in the way of others.
                candidates.append(&mut self.take_waiting(node, family, wish.owner));
            }
            if let Some(wait) = self.unpark(number) {
                ended.push((wait.done, result));
            }
        }
    }

    fn take_waiting(&mut self, node: NodeId, family: LockFamily, owner: u64) -> BTreeSet<u64> {
        self.files.get_mut(&node).map(|file| file.of_mut(family).take_waiting(owner)).unwrap_or_default()
    }

    fn park(&mut self, wait: Wait) -> LockWait {
        self.next_wait += 1;
        let number = self.next_wait;
        let (node, wish, blocker) = (wait.node, wait.wish, wait.blocker);
        if wish.family == LockFamily::Posix {
            self.waits_of.entry(wish.owner).or_default().insert(number);
        }
        self.waits.insert(number, wait);
        self.hang(number, blocker);
        LockWait { node, number }
    }

    /// Lets a wish wait for `blocker`.
    fn hang(&mut self, number: u64, blocker: u64) {
        let Some(wait) = self.waits.get_mut(&number) else { return };
        wait.blocker = blocker;
        self.files.entry(wait.node).or_default().of_mut(wait.wish.family).park(number, blocker);
    }

    fn unpark(&mut self, number: u64) -> Option<Wait> {
        let wait = self.waits.remove(&number)?;
        if let Some(file) = self.files.get_mut(&wait.node) {
            file.of_mut(wait.wish.family).unpark(number, wait.blocker);
        }
        self.tidy(wait.node);
        if wait.wish.family == LockFamily::Posix
            && let Some(numbers) = self.waits_of.get_mut(&wait.wish.owner)
        {
            numbers.remove(&number);
            if numbers.is_empty() {
                self.waits_of.remove(&wait.wish.owner);
            }
        }
        Some(wait)
    }

    /// Forgets a file without locks.
    fn tidy(&mut self, node: NodeId) {
        if self.files.get(&node).is_some_and(FileLocks::is_empty) {
            self.files.remove(&node);
        }
    }

    /// Whether somebody in the way of `wish` waits, in the end, for its owner.
    fn would_deadlock(&self, node: NodeId, wish: &Lock) -> bool {
        if wish.family != LockFamily::Posix {
            return false;
        }
        let mut budget = WALK_MAX;
        let mut in_the_way = |node: &NodeId, wish: &Lock| -> Option<Vec<u64>> {
            let Some(file) = self.files.get(node) else { return Some(Vec::new()) };
            let holders = file.of(LockFamily::Posix);
            budget = budget.checked_sub(holders.owners())?;
            Some(holders.in_the_way(wish).collect())
        };
        let Some(mut todo) = in_the_way(&node, wish) else { return false };
        let mut seen = BTreeSet::new();
        while let Some(owner) = todo.pop() {
            if owner == wish.owner {
                return true;
            }
            if !seen.insert(owner) {
                continue;
            }
            for number in self.waits_of.get(&owner).into_iter().flatten() {
                let Some(wait) = self.waits.get(number) else { continue };
                match in_the_way(&wait.node, &wait.wish) {
                    Some(more) => todo.extend(more),
                    None => return false,
                }
            }
        }
        false
    }
}
