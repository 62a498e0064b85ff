//! Counts of the requests that were served, by kind.

use sync::StatCounter;

use crate::protocol::abi::{OPCODES, Opcode};

/// How many sets of counters there are, so that readers on different CPUs do not share cache lines.
const SHARDS: usize = 8;

/// Counters of one session.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    shards: [Shard; SHARDS],
}

#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    requests: [StatCounter; OPCODES],
    errors: StatCounter,
    panics: StatCounter,
    unknown: StatCounter,
}

impl Default for Shard {
    fn default() -> Self {
        Self {
            requests: std::array::from_fn(|_| StatCounter::default()),
            errors: StatCounter::default(),
            panics: StatCounter::default(),
            unknown: StatCounter::default(),
        }
    }
}

/// A snapshot of the counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StatsView {
    /// Requests by kind, those that came at least once.
    pub requests: Vec<(Opcode, u64)>,
    /// Requests answered with an error, look-ups of names that do not exist left out.
    pub errors: u64,
    /// Requests whose handler panicked; answered with EIO.
    pub panics: u64,
    /// Messages that are no known request.
    pub unknown: u64,
}

impl StatsView {
    /// How many requests of this kind came.
    #[must_use]
    pub fn of(&self, op: Opcode) -> u64 {
        self.requests.iter().find(|(other, _)| *other == op).map_or(0, |(_, n)| *n)
    }
}

impl Stats {
    fn shard(&self, thread: usize) -> &Shard {
        &self.shards[thread % SHARDS]
    }

    pub(crate) fn request(&self, thread: usize, opcode: u32) {
        let shard = self.shard(thread);
        match usize::try_from(opcode).ok().and_then(|n| shard.requests.get(n)) {
            Some(counter) => counter.add(1),
            None => shard.unknown.add(1),
        }
    }

    pub(crate) fn error(&self, thread: usize) {
        self.shard(thread).errors.add(1);
    }

    pub(crate) fn panic(&self, thread: usize) {
        self.shard(thread).panics.add(1);
    }

    pub(crate) fn unknown(&self, thread: usize) {
        self.shard(thread).unknown.add(1);
    }

    pub(crate) fn view(&self) -> StatsView {
        let sum = |of: &dyn Fn(&Shard) -> &StatCounter| self.shards.iter().map(|shard| of(shard).get()).sum();
        let requests = Opcode::ALL
            .iter()
            .map(|&op| (op, sum(&|shard: &Shard| &shard.requests[op as usize])))
            .filter(|(_, n)| *n > 0)
            .collect();
        StatsView {
            requests,
            errors: sum(&|shard| &shard.errors),
            panics: sum(&|shard| &shard.panics),
            unknown: sum(&|shard| &shard.unknown),
        }
    }
}
