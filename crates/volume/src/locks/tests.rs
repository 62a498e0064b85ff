//! The lock table, case by case.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use super::*;
use LockKind::{Read, Write};

const NODE: NodeId = store::ObjectId(7);
const OTHER: NodeId = store::ObjectId(8);

fn posix(owner: u64, kind: LockKind, start: u64, end: u64) -> Lock {
    Lock { family: LockFamily::Posix, kind, start, end, owner, pid: u32::try_from(owner).unwrap() + 100 }
}

fn flock(owner: u64, kind: LockKind) -> Lock {
    Lock { family: LockFamily::Flock, kind, start: 0, end: 0, owner, pid: 1 }
}

/// A wait and what it was told.
struct Pending {
    wait: Option<LockWait>,
    told: Receiver<Result<()>>,
}

fn wait(table: &LockTable, node: NodeId, wish: &Lock) -> Pending {
    let (send, told) = channel();
    let wait = table.wait(node, wish, Box::new(move |result| send.send(result).unwrap()));
    Pending { wait, told }
}

impl Pending {
    fn is_waiting(&self) -> bool {
        self.told.try_recv().is_err()
    }

    fn told(&self) -> Result<()> {
        self.told.try_recv().expect("the wait ended")
    }
}

fn unlock(table: &LockTable, lock: &Lock) {
    table.unlock(NODE, lock.family, lock.owner, lock.start, lock.end).unwrap();
}

#[test]
fn readers_share_and_writers_do_not() {
    let table = LockTable::default();
    table.set(NODE, &posix(1, Read, 0, 9)).unwrap();
    table.set(NODE, &posix(2, Read, 5, 14)).unwrap();
    assert_eq!(table.set(NODE, &posix(3, Write, 14, 20)), Err(Error::WouldBlock));
    table.set(NODE, &posix(3, Write, 15, 20)).unwrap();
    assert_eq!(table.set(NODE, &posix(1, Read, 0, 15)), Err(Error::WouldBlock));
    table.set(OTHER, &posix(3, Write, 0, 99)).unwrap();
    assert_eq!(table.len(), (4, 0));
}

#[test]
fn get_names_the_first_in_the_way() {
    let table = LockTable::default();
    table.set(NODE, &posix(1, Write, 50, 59)).unwrap();
    table.set(NODE, &posix(2, Read, 20, 29)).unwrap();
    assert_eq!(table.get(NODE, &posix(3, Write, 0, 99)).unwrap(), Some(posix(2, Read, 20, 29)));
    assert_eq!(table.get(NODE, &posix(3, Read, 0, 99)).unwrap(), Some(posix(1, Write, 50, 59)));
    assert_eq!(table.get(NODE, &posix(1, Write, 50, 59)).unwrap(), None, "one's own is not in the way");
    assert_eq!(table.get(NODE, &flock(3, Write)).unwrap(), None);
    assert_eq!(table.get(OTHER, &posix(3, Write, 0, 99)).unwrap(), None);
    table.set(NODE, &flock(1, Read)).unwrap();
    let seen = table.get(NODE, &flock(3, Write)).unwrap().unwrap();
    assert_eq!((seen.owner, seen.kind), (1, Read));
}

#[test]
fn ranges_reach_to_the_end_of_all_files() {
    let table = LockTable::default();
    let end = i64::MAX.unsigned_abs();
    table.set(NODE, &posix(1, Write, 100, end)).unwrap();
    let seen = table.get(NODE, &posix(2, Write, 0, u64::MAX)).unwrap().unwrap();
    assert_eq!((seen.start, seen.end), (100, u64::MAX));
    table.unlock(NODE, LockFamily::Posix, 1, 0, end).unwrap();
    assert!(table.is_empty());
    assert!(matches!(table.set(NODE, &posix(1, Write, 5, 4)), Err(Error::Invalid(_))));
    assert!(matches!(table.get(NODE, &posix(1, Write, 5, 4)), Err(Error::Invalid(_))));
    assert!(matches!(table.unlock(NODE, LockFamily::Posix, 1, 5, 4), Err(Error::Invalid(_))));
    let refused = wait(&table, NODE, &posix(1, Write, 5, 4));
    assert!(refused.wait.is_none() && matches!(refused.told(), Err(Error::Invalid(_))));
}

#[test]
fn a_wait_ends_when_the_lock_is_given_back() {
    let table = LockTable::default();
    let held = posix(1, Write, 0, 99);
    table.set(NODE, &held).unwrap();
    let waiting = wait(&table, NODE, &posix(2, Write, 50, 59));
    assert!(waiting.wait.is_some() && waiting.is_waiting());
    table.unlock(NODE, LockFamily::Posix, 1, 0, 49).unwrap();
    assert!(waiting.is_waiting(), "not the range it waits for");
    table.unlock(NODE, LockFamily::Posix, 1, 50, 99).unwrap();
    assert_eq!(waiting.told(), Ok(()));
    assert_eq!(table.set(NODE, &held), Err(Error::WouldBlock));
    assert_eq!(table.len(), (1, 0));
    let at_once = wait(&table, NODE, &posix(2, Read, 0, 9));
    assert!(at_once.wait.is_none());
    assert_eq!(at_once.told(), Ok(()));
}

#[test]
fn those_who_wait_are_served_in_order() {
    let table = LockTable::default();
    let held = flock(1, Write);
    table.set(NODE, &held).unwrap();
    let first = wait(&table, NODE, &flock(2, Read));
    let second = wait(&table, NODE, &flock(3, Write));
    let third = wait(&table, NODE, &flock(4, Read));
    unlock(&table, &held);
    assert_eq!(first.told(), Ok(()));
    assert!(second.is_waiting());
    assert_eq!(third.told(), Ok(()), "readers go together");
    unlock(&table, &flock(2, Read));
    assert!(second.is_waiting());
    unlock(&table, &flock(4, Read));
    assert_eq!(second.told(), Ok(()));
}

#[test]
fn a_downgrade_lets_readers_in_and_an_upgrade_waits_for_them() {
    let table = LockTable::default();
    table.set(NODE, &posix(1, Write, 0, 9)).unwrap();
    let reader = wait(&table, NODE, &posix(2, Read, 0, 9));
    table.set(NODE, &posix(1, Read, 0, 9)).unwrap();
    assert_eq!(reader.told(), Ok(()));
    assert_eq!(table.set(NODE, &posix(1, Write, 0, 9)), Err(Error::WouldBlock));
    assert_eq!(
        table.set(NODE, &posix(2, Write, 5, 5)),
        Err(Error::WouldBlock),
        "the read lock is still there"
    );
    let upgrade = wait(&table, NODE, &posix(1, Write, 0, 9));
    assert!(upgrade.is_waiting());
    unlock(&table, &posix(2, Read, 0, 9));
    assert_eq!(upgrade.told(), Ok(()));
}

#[test]
fn a_granted_downgrade_gives_earlier_wishes_another_chance() {
    let table = LockTable::default();
    // 1 waits for 2's range with a wish that would weaken its own lock; 3 waits for that.
    table.set(NODE, &posix(1, Write, 0, 9)).unwrap();
    table.set(NODE, &posix(2, Write, 10, 19)).unwrap();
    let reader = wait(&table, NODE, &posix(3, Read, 0, 9));
    let downgrade = wait(&table, NODE, &posix(1, Read, 0, 19));
    assert!(reader.is_waiting() && downgrade.is_waiting());
    unlock(&table, &posix(2, Write, 10, 19));
    assert_eq!(downgrade.told(), Ok(()));
    assert_eq!(reader.told(), Ok(()));
}

#[test]
fn changing_the_kind_of_an_flock_gives_the_old_one_up() {
    let table = LockTable::default();
    table.set(NODE, &flock(1, Read)).unwrap();
    table.set(NODE, &flock(2, Read)).unwrap();
    let writer = wait(&table, NODE, &flock(3, Write));
    assert_eq!(table.set(NODE, &flock(1, Write)), Err(Error::WouldBlock));
    assert!(writer.is_waiting());
    unlock(&table, &flock(2, Read));
    assert_eq!(writer.told(), Ok(()), "1 lost its lock by asking for another kind");
    unlock(&table, &flock(3, Write));
    table.set(NODE, &flock(1, Write)).unwrap();
    table.set(NODE, &flock(1, Write)).unwrap();
    assert_eq!(table.len(), (1, 0));
    let reader = wait(&table, NODE, &flock(2, Read));
    table.set(NODE, &flock(1, Read)).unwrap();
    assert_eq!(reader.told(), Ok(()));
}

#[test]
fn the_families_do_not_see_each_other() {
    let table = LockTable::default();
    table.set(NODE, &flock(1, Write)).unwrap();
    table.set(NODE, &posix(2, Write, 0, 99)).unwrap();
    let waiting = wait(&table, NODE, &flock(3, Write));
    table.unlock(NODE, LockFamily::Posix, 2, 0, u64::MAX).unwrap();
    table.unlock(NODE, LockFamily::Posix, 1, 0, u64::MAX).unwrap();
    assert!(waiting.is_waiting());
    table.unlock(NODE, LockFamily::Flock, 1, 5, 5).unwrap();
    assert_eq!(waiting.told(), Ok(()), "an flock is the whole file whatever the range");
}

#[test]
fn a_cancelled_wait_is_told_so_once() {
    let table = LockTable::default();
    let held = posix(1, Write, 0, 9);
    table.set(NODE, &held).unwrap();
    let cancelled = wait(&table, NODE, &posix(2, Write, 0, 9));
    let number = cancelled.wait.clone().unwrap();
    table.cancel(&number);
    assert_eq!(cancelled.told(), Err(Error::Interrupted));
    table.cancel(&number);
    unlock(&table, &held);
    assert!(cancelled.told.try_recv().is_err(), "told once");
    assert!(table.is_empty());
    table.set(NODE, &held).unwrap();
    let granted = wait(&table, NODE, &posix(2, Write, 0, 9));
    unlock(&table, &held);
    table.cancel(&granted.wait.clone().unwrap());
    assert_eq!(granted.told(), Ok(()));
    assert_eq!(table.len(), (1, 0), "cancelling what was granted changes nothing");
}

#[test]
fn deadlocks_are_refused() {
    let table = LockTable::default();
    for owner in 1..=4 {
        table.set(NODE, &posix(owner, Write, owner * 10, owner * 10 + 9)).unwrap();
    }
    let mut waits: Vec<Pending> = (1..=3)
        .map(|owner| wait(&table, NODE, &posix(owner, Write, owner * 10 + 10, owner * 10 + 19)))
        .collect();
    assert!(waits.iter().all(Pending::is_waiting));
    let refused = wait(&table, NODE, &posix(4, Read, 10, 10));
    assert_eq!(refused.told(), Err(Error::Deadlock));
    let fifth = wait(&table, NODE, &posix(5, Read, 10, 10));
    assert!(fifth.is_waiting(), "who holds nothing deadlocks nobody");
    table.cancel(&waits[1].wait.clone().unwrap());
    waits.remove(1);
    let fine = wait(&table, NODE, &posix(4, Read, 10, 10));
    assert!(fine.is_waiting(), "the circle was broken");
}

#[test]
fn deadlocks_over_several_files_and_readers_are_refused() {
    let table = LockTable::default();
    table.set(NODE, &posix(1, Read, 0, 9)).unwrap();
    table.set(NODE, &posix(2, Read, 0, 9)).unwrap();
    table.set(OTHER, &posix(3, Write, 0, 9)).unwrap();
    let second = wait(&table, OTHER, &posix(2, Read, 0, 9));
    assert!(second.is_waiting());
    let third = wait(&table, NODE, &posix(3, Write, 0, 9));
    assert_eq!(third.told(), Err(Error::Deadlock), "2 is one of several in the way");
    let upgrade = wait(&table, NODE, &posix(1, Write, 0, 9));
    assert!(upgrade.is_waiting());
    assert_eq!(wait(&table, NODE, &posix(2, Write, 0, 9)).told(), Err(Error::Deadlock), "two upgrades");
}

#[test]
fn flocks_are_not_searched_for_deadlocks() {
    let table = LockTable::default();
    table.set(NODE, &flock(1, Write)).unwrap();
    table.set(OTHER, &flock(2, Write)).unwrap();
    let first = wait(&table, OTHER, &flock(1, Write));
    let second = wait(&table, NODE, &flock(2, Write));
    assert!(first.is_waiting() && second.is_waiting());
}

#[test]
fn an_endless_chain_ends_the_search() {
    let table = LockTable::default();
    // Each step of the walk looks at each owner.
    let last = 2 * u64::try_from(WALK_MAX).unwrap().isqrt();
    for owner in 1..=last {
        table.set(NODE, &posix(owner, Write, owner, owner)).unwrap();
    }
    let mut waits = Vec::new();
    for owner in (2..=last).rev() {
        waits.push(wait(&table, NODE, &posix(owner - 1, Write, owner, owner)));
    }
    assert!(waits.iter().all(Pending::is_waiting));
    let beyond = wait(&table, NODE, &posix(last, Write, 1, 1));
    assert!(beyond.is_waiting(), "too far to see");
    table.clear();
    assert_eq!(beyond.told(), Err(Error::Released));
}

#[test]
fn bounds_are_kept() {
    let table = LockTable::new(LockLimits { held_max: 3, waiting_max: 1 });
    table.set(NODE, &posix(1, Write, 0, 99)).unwrap();
    table.set(NODE, &posix(1, Read, 40, 59)).unwrap();
    assert_eq!(table.len(), (3, 0));
    assert_eq!(table.set(NODE, &posix(1, Write, 200, 200)), Err(Error::NoLocks));
    assert_eq!(table.unlock(NODE, LockFamily::Posix, 1, 10, 19), Err(Error::NoLocks), "a hole is one more");
    table.set(NODE, &posix(1, Write, 100, 109)).unwrap();
    assert_eq!(table.len(), (3, 0), "a neighbour is not one more");
    let waiting = wait(&table, NODE, &posix(2, Write, 0, 0));
    assert!(waiting.is_waiting());
    assert_eq!(wait(&table, NODE, &posix(3, Write, 0, 0)).told(), Err(Error::NoLocks));
    table.unlock(NODE, LockFamily::Posix, 1, 0, u64::MAX).unwrap();
    assert_eq!(waiting.told(), Ok(()));
    assert_eq!(table.len(), (1, 0));
}

#[test]
fn a_grant_that_finds_no_room_says_so() {
    let table = LockTable::new(LockLimits { held_max: 2, waiting_max: 9 });
    table.set(NODE, &posix(1, Write, 0, 9)).unwrap();
    let waiting = wait(&table, NODE, &posix(2, Write, 5, 5));
    table.set(OTHER, &posix(1, Write, 0, 9)).unwrap();
    // Two ranges are held; giving up a part leaves that part, and the wish would be the third.
    table.unlock(NODE, LockFamily::Posix, 1, 5, 9).unwrap();
    assert_eq!(waiting.told(), Err(Error::NoLocks));
    assert_eq!(table.len(), (2, 0));
}

#[test]
fn what_is_gone_takes_its_locks_along() {
    let table = LockTable::default();
    table.set(NODE, &posix(1, Write, 0, 9)).unwrap();
    table.set(NODE, &flock(1, Write)).unwrap();
    table.set(OTHER, &flock(1, Write)).unwrap();
    let a = wait(&table, NODE, &posix(2, Read, 0, 0));
    let b = wait(&table, NODE, &flock(2, Read));
    let c = wait(&table, OTHER, &flock(2, Read));
    table.remove(NODE);
    assert_eq!((a.told(), b.told()), (Err(Error::NoNode(NODE)), Err(Error::NoNode(NODE))));
    assert!(c.is_waiting());
    assert_eq!(table.len(), (1, 1));
    table.remove(NODE);
    table.clear();
    assert_eq!(c.told(), Err(Error::Released));
    assert!(table.is_empty());
}

#[test]
fn a_told_function_may_use_the_table() {
    let table = Arc::new(LockTable::default());
    table.set(NODE, &posix(1, Write, 0, 9)).unwrap();
    let (send, told) = channel();
    let inside = Arc::clone(&table);
    table.wait(
        NODE,
        &posix(2, Write, 0, 9),
        Box::new(move |result| {
            let seen = inside.get(NODE, &posix(3, Read, 0, 0)).unwrap().unwrap().owner;
            inside.unlock(NODE, LockFamily::Posix, 2, 0, 9).unwrap();
            send.send((result, seen)).unwrap();
        }),
    );
    unlock(&table, &posix(1, Write, 0, 9));
    assert_eq!(told.recv().unwrap(), (Ok(()), 2));
    assert!(table.is_empty());
}

#[test]
fn many_threads_keep_it_exclusive() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    let table = LockTable::default();
    let inside = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for owner in 1..=4 {
            let (table, inside) = (&table, &inside);
            scope.spawn(move || {
                for _ in 0..500 {
                    let pending = wait(table, NODE, &posix(owner, Write, 0, 9));
                    pending.told.recv().unwrap().unwrap();
                    // ORDERING: SeqCst, a test's own count; nothing depends on less.
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    // ORDERING: as above.
                    inside.fetch_sub(1, Ordering::SeqCst);
                    unlock(table, &posix(owner, Write, 0, 9));
                }
            });
        }
    });
    assert!(table.is_empty());
}
