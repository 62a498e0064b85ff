//! The lock table against a model that knows single bytes and nothing else.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, channel};

use proptest::prelude::*;

use super::*;

const BYTES: u64 = 24;
/// The byte behind the last.
const REST: usize = 24;
const OWNERS: u64 = 4;
const NODES: u64 = 2;

#[derive(Debug, Clone)]
enum Op {
    Set {
        node: u64,
        lock: Lock,
    },
    Wait {
        node: u64,
        lock: Lock,
    },
    Unlock {
        node: u64,
        lock: Lock,
    },
    /// The n-th of the present waits.
    Cancel(usize),
}

fn lock() -> impl Strategy<Value = Lock> {
    (any::<bool>(), any::<bool>(), 0..BYTES, 0..BYTES, 0..OWNERS, 0..8u8).prop_map(
        |(is_posix, is_read, a, b, owner, to_end)| {
            let family = if is_posix { LockFamily::Posix } else { LockFamily::Flock };
            let kind = if is_read { LockKind::Read } else { LockKind::Write };
            let end = if to_end == 0 { u64::MAX } else { a.max(b) };
            Lock { family, kind, start: a.min(b), end, owner, pid: 0 }
        },
    )
}

fn op() -> impl Strategy<Value = Op> {
    let at = || (0..NODES, lock());
    prop_oneof![
        3 => at().prop_map(|(node, lock)| Op::Set { node, lock }),
        3 => at().prop_map(|(node, lock)| Op::Wait { node, lock }),
        4 => at().prop_map(|(node, lock)| Op::Unlock { node, lock }),
        1 => (0..8usize).prop_map(Op::Cancel),
    ]
}

/// What one owner has of each byte; the byte behind the last stands for all the rest. Of an flock all
/// bytes are alike.
type Bytes = [Option<LockKind>; REST + 1];

#[derive(Default)]
struct Model {
    held: BTreeMap<(u64, bool, u64), Bytes>,
    waits: BTreeMap<u64, (u64, Lock)>,
}

fn bytes_of(lock: &Lock) -> std::ops::RangeInclusive<usize> {
    match lock.family {
        LockFamily::Flock => 0..=REST,
        LockFamily::Posix => {
            usize::try_from(lock.start).unwrap()..=usize::try_from(lock.end.min(BYTES)).unwrap()
        }
    }
}

impl Model {
    fn key(node: u64, lock: &Lock) -> (u64, bool, u64) {
        (node, lock.family == LockFamily::Posix, lock.owner)
    }

    fn in_the_way(&self, node: u64, lock: &Lock) -> Vec<u64> {
        let is_posix = lock.family == LockFamily::Posix;
        self.held
            .iter()
            .filter(|((n, p, owner), bytes)| {
                *n == node
                    && *p == is_posix
                    && *owner != lock.owner
                    && bytes[bytes_of(lock)]
                        .iter()
                        .flatten()
                        .any(|&k| k == LockKind::Write || lock.kind == LockKind::Write)
            })
            .map(|((_, _, owner), _)| *owner)
            .collect()
    }

    fn put(&mut self, node: u64, lock: &Lock, kind: Option<LockKind>) {
        let bytes = self.held.entry(Self::key(node, lock)).or_default();
        bytes[bytes_of(lock)].fill(kind);
    }

    /// Grants what can be granted, first come first, until nothing more can.
    fn settle(&mut self, told: &mut Vec<u64>) {
        loop {
            let ready = self.waits.iter().find(|(_, (node, lock))| self.in_the_way(*node, lock).is_empty());
            let Some((&number, &(node, lock))) = ready else { return };
            self.waits.remove(&number);
            self.put(node, &lock, Some(lock.kind));
            told.push(number);
        }
    }

    /// Gives up an flock of another kind, and says whether the wish is met already.
    fn prepare(&mut self, node: u64, lock: &Lock) -> bool {
        if lock.family != LockFamily::Flock {
            return false;
        }
        let present = self.held.get(&Self::key(node, lock)).and_then(|bytes| bytes[0]);
        if present == Some(lock.kind) {
            return true;
        }
        self.put(node, lock, None);
        false
    }

    fn try_take(&mut self, node: u64, lock: &Lock) -> bool {
        if self.prepare(node, lock) {
            return true;
        }
        let is_free = self.in_the_way(node, lock).is_empty();
        if is_free {
            self.put(node, lock, Some(lock.kind));
        }
        is_free
    }

    fn leads_to(&self, owners: &[u64], target: u64, seen: &mut Vec<u64>) -> bool {
        owners.iter().any(|&owner| {
            if owner == target {
                return true;
            }
            if seen.contains(&owner) {
                return false;
            }
            seen.push(owner);
            let next: Vec<u64> = self
                .waits
                .values()
                .filter(|(_, l)| l.family == LockFamily::Posix && l.owner == owner)
                .flat_map(|(node, l)| self.in_the_way(*node, l))
                .collect();
            self.leads_to(&next, target, seen)
        })
    }
}

struct Both {
    table: LockTable,
    model: Model,
    /// By the model's number, which is the order of arrival.
    waits: BTreeMap<u64, LockWait>,
    next: u64,
    send: Sender<(u64, Result<()>)>,
    told: Receiver<(u64, Result<()>)>,
}

fn node_id(node: u64) -> NodeId {
    store::ObjectId(node + 1)
}

impl Both {
    fn new() -> Self {
        let (send, told) = channel();
        let (table, model) = (LockTable::default(), Model::default());
        Self { table, model, waits: BTreeMap::new(), next: 0, send, told }
    }

    fn run(&mut self, op: &Op) {
        let mut expected: Vec<(u64, Result<()>)> = Vec::new();
        match op {
            Op::Set { node, lock } => {
                let is_taken = self.model.try_take(*node, lock);
                let result = self.table.set(node_id(*node), lock);
                assert_eq!(result, if is_taken { Ok(()) } else { Err(Error::WouldBlock) });
            }
            Op::Wait { node, lock } => self.wait(*node, lock, &mut expected),
            Op::Unlock { node, lock } => {
                self.model.put(*node, lock, None);
                self.table.unlock(node_id(*node), lock.family, lock.owner, lock.start, lock.end).unwrap();
            }
            Op::Cancel(n) => {
                let Some(&number) = self.model.waits.keys().nth(*n) else { return };
                self.model.waits.remove(&number);
                self.table.cancel(&self.waits[&number]);
                expected.push((number, Err(Error::Interrupted)));
            }
        }
        let mut granted = Vec::new();
        self.model.settle(&mut granted);
        expected.extend(granted.into_iter().map(|number| (number, Ok(()))));
        let mut got: Vec<_> = self.told.try_iter().collect();
        got.sort_by_key(|(number, _)| *number);
        expected.sort_by_key(|(number, _)| *number);
        assert_eq!(got, expected);
        self.compare();
    }

    fn wait(&mut self, node: u64, lock: &Lock, expected: &mut Vec<(u64, Result<()>)>) {
        self.next += 1;
        let number = self.next;
        if self.model.try_take(node, lock) {
            expected.push((number, Ok(())));
        } else {
            let in_the_way = self.model.in_the_way(node, lock);
            let is_circle = lock.family == LockFamily::Posix
                && self.model.leads_to(&in_the_way, lock.owner, &mut Vec::new());
            if is_circle {
                expected.push((number, Err(Error::Deadlock)));
            } else {
                self.model.waits.insert(number, (node, *lock));
            }
        }
        let send = self.send.clone();
        let done: LockDone = Box::new(move |result| send.send((number, result)).unwrap());
        if let Some(wait) = self.table.wait(node_id(node), lock, done) {
            self.waits.insert(number, wait);
        }
    }

    /// Asks the table about every byte, as each owner and as a stranger.
    fn compare(&self) {
        let mut ranges = 0;
        for node in 0..NODES {
            for family in [LockFamily::Posix, LockFamily::Flock] {
                for owner in 0..=OWNERS {
                    for byte in 0..=BYTES {
                        for kind in [LockKind::Read, LockKind::Write] {
                            let probe = Lock { family, kind, start: byte, end: byte, owner, pid: 0 };
                            let seen = self.table.get(node_id(node), &probe).unwrap();
                            let expected = self.model.in_the_way(node, &probe);
                            assert_eq!(seen.is_some(), !expected.is_empty(), "{probe:?}");
                            assert!(seen.is_none_or(|lock| expected.contains(&lock.owner)));
                        }
                    }
                }
            }
        }
        for bytes in self.model.held.values() {
            let changes = bytes.windows(2).filter(|w| w[1].is_some() && w[0] != w[1]).count();
            ranges += changes + usize::from(bytes[0].is_some());
        }
        assert_eq!(self.table.len(), (ranges, self.model.waits.len()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn agrees_with_single_bytes(ops in prop::collection::vec(op(), 1..60)) {
        let mut both = Both::new();
        for op in &ops {
            both.run(op);
        }
    }
}
