//! A journal of entries for any number of readers, none of which holds up a writer.
//!
//! # State
//! Entries have numbers, from 1. Entry `n` is in slot `n % room` until entry `n + room` takes its
//! place.
//!
//! | field | access |
//! |---|---|
//! | `last` | a writer takes the next number from it; a reader sees from it how far there may be entries |
//! | `Slot::entry` | under its lock, which a writer only ever *tries* |
//! | `Slot::filled`, `Slot::void` | only grow; stored by a writer, when it has given back the slot's lock |
//! | `end` | the number of the last entry, stored once |
//!
//! Slots are made a chunk at a time, by the first writer that needs one: one of thousands of
//! journals without entries is small. Two writers that make the same chunk do not wait for each
//! other: one of the two chunks is dropped.
//!
//! # The protocol
//! A writer takes a number, and tries the lock of its slot. If another thread has it (a reader that
//! is a whole round behind, or a writer that was overtaken by a whole round), it declares the
//! number void and takes the next. So it waits for no thread, wherever the others were stopped.
//! Readers read a slot's content when `filled` says that it is there, so that a reader that
//! keeps up never holds a lock that a writer tries.
//!
//! A reader goes on at a number that is void. It stops at one that is neither filled nor void yet:
//! the writer that has it signals when it has filled it. It counts entries that were overwritten as
//! a gap, which concerns only this reader.
//!
//! # Orderings
//! * P9 writer: fill the slot, store `filled` with release. Reader: load `filled` with acquire,
//!   lock the slot. It finds this entry or a later one.
//! * A reader that found nothing is notified: `ready` P3, with the barrier in `Source::signal`.

use std::fmt;
use std::sync::Arc;

use once_cell::race::OnceBox;
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::mutant::is_on;

use crate::source::Watched;
use crate::{AsSource, Events, Poll, Source};

/// The newest entries of a journal. A thread that [writes](Self::push) never waits; each
/// [reader](Self::reader) goes at its own pace, and learns how many entries it has missed if it was
/// too slow.
///
/// As a source it is ready for [`Events::IN`] always; watch it with
/// [`Interest::edge`](crate::Interest::edge), and read until there is nothing.
///
/// ```
/// use watertight_eventpoll::{Journal, Read};
///
/// let journal = Journal::new(2);
/// let mut reader = journal.reader(0);
/// journal.push("one");
/// assert!(matches!(reader.read(), Read::Entry { number: 1, value } if *value == "one"));
/// ["two", "three", "four"].map(|value| journal.push(value));
/// assert!(matches!(reader.read(), Read::Lost(1)));
/// assert!(matches!(reader.read(), Read::Entry { number: 3, .. }));
/// journal.end("five");
/// assert!(matches!(reader.read(), Read::Entry { number: 4, .. }));
/// assert!(matches!(reader.read(), Read::Entry { number: 5, .. }));
/// assert!(matches!(reader.read(), Read::End));
/// ```
pub struct Journal<T> {
    last: AtomicU64,
    room: u64,
    chunks: Box<[OnceBox<[Slot<T>; CHUNK]>]>,
    is_ending: AtomicBool,
    end: AtomicU64,
    source: Source<Always>,
}

/// Slots of a chunk. Models have few.
const CHUNK: usize = if cfg!(any(loom, shuttle)) { 1 } else { 16 };

struct Slot<T> {
    filled: AtomicU64,
    void: AtomicU64,
    entry: Mutex<Option<(u64, Arc<T>)>>,
}

#[derive(Debug)]
struct Always;

impl Poll for Always {
    fn poll(&self) -> Events {
        Events::IN
    }
}

/// A reader of a [`Journal`].
pub struct Reader<T> {
    journal: Arc<Journal<T>>,
    seen: u64,
}

/// The result of a read.
#[derive(Debug)]
pub enum Read<T> {
    /// The next entry.
    Entry {
        /// Its number. Numbers only grow; now and then one is left out.
        number: u64,
        /// Its value.
        value: Arc<T>,
    },
    /// The reader was too slow: so many numbers are gone for it.
    Lost(u64),
    /// Nothing yet; the journal signals when there is more.
    Nothing,
    /// There will never be more.
    End,
}

impl<T> Journal<T> {
    /// A journal that keeps the newest `room` entries.
    ///
    /// # Panics
    /// When `room` is 0.
    #[must_use]
    pub fn new(room: usize) -> Arc<Self> {
        assert!(room > 0, "room for no entry");
        Arc::new(Self {
            last: AtomicU64::new(0),
            room: room as u64,
            chunks: (0..room.div_ceil(CHUNK)).map(|_| OnceBox::new()).collect(),
            is_ending: AtomicBool::new(false),
            end: AtomicU64::new(0),
            source: Source::new(Always),
        })
    }

    /// Writes an entry, and signals. Never waits for another thread. After the [end](Self::end) it
    /// does nothing.
    pub fn push(&self, value: T) {
        // ORDERING: Acquire: a writer that comes after the end writes nothing over it.
        if self.is_ending.load(Ordering::Acquire) {
            return;
        }
        self.fill(Arc::new(value));
        self.source.signal(Events::IN);
    }

    /// Writes the last entry, unless that was done before; returns whether it did.
    pub fn end(&self, value: T) -> bool {
        // ORDERING: AcqRel, only one caller gets `false`.
        if self.is_ending.swap(true, Ordering::AcqRel) {
            return false;
        }
        let number = self.fill(Arc::new(value));
        // ORDERING: Release: a reader that sees the end finds `last` no smaller.
        self.end.store(number, Ordering::Release);
        self.source.signal(Events::IN);
        true
    }

    /// The highest number that was given out; 0 before the first.
    #[must_use]
    pub fn last(&self) -> u64 {
        // ORDERING: Acquire, as for readers.
        self.last.load(Ordering::Acquire)
    }

    /// A reader of the entries after number `seen`.
    #[must_use]
    pub fn reader(self: &Arc<Self>, seen: u64) -> Reader<T> {
        Reader { seen: seen.min(self.last()), journal: Arc::clone(self) }
    }

    fn fill(&self, value: Arc<T>) -> u64 {
        loop {
            // ORDERING: AcqRel: all threads take numbers in one order.
            let number = self.last.fetch_add(1, Ordering::AcqRel) + 1;
            let slot = self.slot(number);
            if is_on("journal-filled-first") {
                slot.filled.fetch_max(number, Ordering::Release);
            }
            let Some(mut entry) = slot.entry.try_lock() else {
                if !is_on("journal-not-void") {
                    // ORDERING: Release, a number alone.
                    slot.void.fetch_max(number, Ordering::Release);
                }
                continue;
            };
            // Overtaken by a whole round: every reader has missed this number.
            let old = if entry.as_ref().is_none_or(|(newer, _)| *newer < number) {
                entry.replace((number, value))
            } else {
                None
            };
            // Models switch threads at atomics only: a place to be stopped with the lock.
            #[cfg(any(loom, shuttle))]
            let _ = slot.filled.load(Ordering::Relaxed);
            drop(entry);
            drop(old);
            // ORDERING: Release, P9.
            slot.filled.fetch_max(number, Ordering::Release);
            return number;
        }
    }

    #[cfg_attr(any(loom, shuttle), allow(clippy::modulo_one, reason = "models have chunks of one"))]
    fn slot(&self, number: u64) -> &Slot<T> {
        let at = usize::try_from(number % self.room).unwrap_or(0);
        let slot = |_| Slot { filled: AtomicU64::new(0), void: AtomicU64::new(0), entry: Mutex::new(None) };
        &self.chunks[at / CHUNK].get_or_init(|| Box::new(std::array::from_fn(slot)))[at % CHUNK]
    }
}

impl<T> Reader<T> {
    /// The next entry, or the reason why there is none. Takes turns with other readers of the same
    /// entry for a moment, and waits for no other thread. Entries behind one that a writer has not
    /// finished yet come after that one.
    pub fn read(&mut self) -> Read<T> {
        let journal = &*self.journal;
        loop {
            // ORDERING: Acquire, pairs with the release in `end`.
            let end = journal.end.load(Ordering::Acquire);
            if end > 0 && self.seen >= end {
                return Read::End;
            }
            let (last, number) = (journal.last(), self.seen + 1);
            if last < number {
                return Read::Nothing;
            }
            let slot = journal.slot(number);
            // ORDERING: Acquire, P9.
            let filled = slot.filled.load(Ordering::Acquire);
            if filled < number {
                // ORDERING: Acquire, a number alone.
                if slot.void.load(Ordering::Acquire) < number {
                    return Read::Nothing;
                }
                self.seen = number;
                continue;
            }
            let entry = slot.entry.lock().clone();
            match entry {
                Some((found, value)) if found == number => {
                    self.seen = number;
                    return Read::Entry { number, value };
                }
                _ => return self.lost(number),
            }
        }
    }

    /// `number` was overwritten: goes on with the oldest entry that may still be there.
    fn lost(&mut self, number: u64) -> Read<T> {
        let oldest = (self.journal.last() + 1).saturating_sub(self.journal.room);
        let lost = oldest.max(number + 1) - number;
        self.seen += lost;
        Read::Lost(lost)
    }

    /// The number of the last entry that was read.
    #[must_use]
    pub const fn seen(&self) -> u64 {
        self.seen
    }

    /// The journal that it reads.
    #[must_use]
    pub const fn journal(&self) -> &Arc<Journal<T>> {
        &self.journal
    }
}

impl<T> AsSource for Journal<T> {
    fn watched(&self) -> Arc<dyn Watched> {
        self.source.watched()
    }
}

impl<T> fmt::Debug for Journal<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Journal").field("room", &self.room).finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Reader<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").field("seen", &self.seen).finish_non_exhaustive()
    }
}
