//! The log in a journal: a caller waits for a disk of this host, and the bucket gets it afterwards.
//!
//! The journal gets the log's objects as they grow: what was put and appended since the last write,
//! of all objects that are not durable, in their order. Callers that come meanwhile share the next
//! write. The open object is sealed and sent [`PACE`] after the journal has got something of it, when
//! none is on its way, so that fsyncs that come in between share a request. A caller that waits for
//! the bucket has it sealed at once.
//!
//! An object of which the journal has a part may be sent: what is sent has all of that and more.
//! The ones behind it are not, until the journal's disk has the whole of it or it is durable: an object
//! that is made from a part is the log's last. What was accepted alone is in the files and not on the
//! disk; so that nothing waits for that, an object that is sealed is synced.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BufMut as _, Bytes};
use slatedb::wal::WalError;
use store::{ErrorKind, JournalStats, Result};
use sync::mutant::is_on;

use super::object::HEADER;
use super::{CommitLog, Sealed, State, plain};
use crate::journal::targets::Targets;
use crate::journal::{Journal, Place, Record};
use crate::rows::Object;

/// A record with more of an object that may grow.
pub(crate) const PART: u16 = 1;
/// A record with the rest of an object, which may be nothing.
pub(crate) const REST: u16 = 2;
/// A record with a segment.
pub(crate) const SEGMENT: u16 = 3;

/// How long what the journal has may be kept for others that share its request: what a host that is
/// lost takes with it.
const PACE: Duration = Duration::from_secs(1);

/// How far the journal is to have what a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// The journal's files have it: it is kept if this process dies.
    Written,
    /// The journal's disk has it: it is kept if the host crashes.
    Synced,
}

/// Whether the journal has what a caller waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Journaled {
    /// The journal has it.
    Yes,
    /// The caller has to wait for the bucket.
    No,
}

/// How far the journal has the log.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// What its files have.
    written: Coverage,
    /// What its disk has.
    synced: Coverage,
    /// A caller waits for the disk.
    is_sync_wanted: bool,
    /// The first and the last object of a write that has begun and not ended, or whose end is not
    /// known: the disk may have any of it.
    writing: Option<(u64, u64)>,
    /// The records of each object.
    places: BTreeMap<u64, Vec<Place>>,
    /// Writes that were refused.
    refused: u64,
    /// The last one was, for want of room, and none was given back since.
    is_full: bool,
    /// A task seals the open object when it is due.
    is_timed: bool,
}

/// A place in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Position {
    number: u64,
    data: usize,
    rows: usize,
}

impl Position {
    const fn covers(&self, other: &Self) -> bool {
        self.number > other.number
            || self.number == other.number && self.data >= other.data && self.rows >= other.rows
    }
}

/// All of the log up to a position.
#[derive(Debug, Clone, Copy, Default)]
struct Coverage {
    end: Position,
    /// It has the whole of the last object.
    is_whole: bool,
}

/// What a record of the log's says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct About {
    pub(crate) number: u64,
    /// The last number that was durable.
    pub(crate) durable: u64,
    /// How much of the object comes before.
    pub(crate) data_from: u32,
    pub(crate) rows_from: u32,
    /// How much of the payload is data.
    pub(crate) data_len: u32,
}

impl About {
    fn write(&self) -> [u8; 32] {
        let mut out = [0; 32];
        let mut to = &mut out[..];
        to.put_u64(self.number);
        to.put_u64(self.durable);
        to.put_u32(self.data_from);
        to.put_u32(self.rows_from);
        to.put_u32(self.data_len);
        out
    }

    pub(crate) fn read(mut from: &[u8]) -> Self {
        let (number, durable) = (from.get_u64(), from.get_u64());
        let (data_from, rows_from, data_len) = (from.get_u32(), from.get_u32(), from.get_u32());
        Self { number, durable, data_from, rows_from, data_len }
    }

    /// What a record's rows are sealed with.
    pub(crate) fn seal_context(&self, epoch: u64) -> [u8; 32] {
        let mut out = [0; 32];
        let mut to = &mut out[..];
        to.put_slice(b"journal\0");
        to.put_u64(epoch);
        to.put_u64(self.number);
        to.put_u32(self.rows_from);
        out
    }
}

/// What a segment's record says about itself.
pub(crate) fn about_segment(epoch: u64, number: u64) -> [u8; 32] {
    let mut out = [0; 32];
    let mut to = &mut out[..];
    to.put_u64(epoch);
    to.put_u64(number);
    out
}

/// The segment of a record, as [`about_segment`] says it.
pub(crate) fn segment_of(about: &[u8; 32]) -> Object {
    let mut from = &about[..];
    Object::Segment(from.get_u64(), from.get_u64())
}

/// What the holder's journal repeats to the next: epoch and nonce.
pub(crate) fn context(epoch: u64, nonce: [u8; 16]) -> [u8; 32] {
    let mut out = [0; 32];
    let mut to = &mut out[..];
    to.put_u64(epoch);
    to.put_slice(&nonce);
    out
}

/// What [`context`] made.
pub(crate) fn holder_of(context: &[u8; 32]) -> (u64, [u8; 16]) {
    let mut from = &context[..];
    let epoch = from.get_u64();
    let mut nonce = [0; 16];
    from.copy_to_slice(&mut nonce);
    (epoch, nonce)
}

/// A part of an object that the journal has not.
struct Piece {
    about: About,
    is_rest: bool,
    data: Bytes,
    rows: Bytes,
}

struct Write {
    epoch: u64,
    pieces: Vec<Piece>,
    /// What the journal has when it is done.
    covers: Coverage,
}

impl State {
    /// Objects beyond this number are not sent.
    pub(super) fn sendable(&self, window: u64) -> u64 {
        let Progress { written, synced, writing, .. } = &self.journaled;
        let first = self.durable.saturating_add(1);
        // Of what was written and not synced, a loss of power leaves any part.
        let known = if is_on("log-sent-behind-what-is-not-synced") { written } else { synced };
        let from = known.end.number.saturating_add(u64::from(known.is_whole));
        let in_part = Some((from, written.end.number))
            .filter(|(from, last)| from <= last && !is_on("log-sent-behind-a-part"));
        let unknown = writing.iter().copied().chain(in_part).filter(|(_, last)| *last >= first);
        let held_up = unknown.map(|(from, _)| from.max(first)).min().unwrap_or(u64::MAX);
        self.durable.saturating_add(window).min(held_up)
    }

    /// The end of what was put and appended by now.
    fn end(&self) -> Position {
        if !self.is_open_empty() {
            return Position { number: self.open, data: self.data.len(), rows: self.rows.len() };
        }
        let number = self.open - 1;
        let content = self.sealed.get(&number).map(|sealed| &sealed.content);
        let (data, rows) = content.map_or((0, 0), |content| (content.data.len(), content.rows.len()));
        Position { number, data, rows }
    }

    fn is_journaled(&self, position: &Position, level: Level) -> bool {
        let is_written = level == Level::Written || is_on("journal-written-taken-for-synced");
        let has = if is_written { &self.journaled.written } else { &self.journaled.synced };
        self.durable >= position.number || has.end.covers(position)
    }

    /// Whether an fsync was acknowledged for something of the open object.
    fn is_open_journaled(&self) -> bool {
        !self.is_open_empty() && self.journaled.synced.end.number == self.open
    }

    /// Whether nothing is on its way, and an fsync was acknowledged for what could be sent.
    fn is_sendable_alone(&self) -> bool {
        self.sealed.is_empty() && self.is_open_journaled() && self.failed.is_none()
    }

    /// What the journal has not; nothing: `None`.
    fn unwritten(&self) -> Option<Write> {
        let Coverage { end: had, is_whole: had_whole } = self.journaled.written;
        let from = |number| if number == had.number { (had.data, had.rows) } else { (0, 0) };
        let is_wanted = |number| number > had.number || number == had.number && !had_whole;
        let about = |number, data_from: usize, rows_from: usize, data_len: usize| About {
            number,
            durable: self.durable,
            data_from: len_of(data_from),
            rows_from: len_of(rows_from),
            data_len: len_of(data_len),
        };
        let mut pieces = Vec::new();
        for (&number, sealed) in self.sealed.iter().filter(|(number, _)| is_wanted(**number)) {
            let (data, rows) = from(number);
            let (data_part, rows_part) =
                (sealed.content.data.slice(data..), sealed.content.rows.slice(rows..));
            let about = about(number, data, rows, data_part.len());
            pieces.push(Piece { about, is_rest: true, data: data_part, rows: rows_part });
        }
        let (data, rows) = from(self.open);
        let is_grown = self.data.len() > data || self.rows.len() > rows;
        if is_grown {
            let data_part = Bytes::copy_from_slice(&self.data[data..]);
            let rows_part = Bytes::copy_from_slice(&self.rows[rows..]);
            let about = about(self.open, data, rows, data_part.len());
            pieces.push(Piece { about, is_rest: false, data: data_part, rows: rows_part });
        }
        let is_whole = pieces.last()?.is_rest;
        Some(Write { epoch: self.epoch, pieces, covers: Coverage { end: self.end(), is_whole } })
    }

    /// A write that only has the disk take what was written before.
    fn nothing(&self) -> Write {
        Write { epoch: self.epoch, pieces: Vec::new(), covers: self.journaled.written }
    }
}

impl CommitLog {
    /// From now on these callers wait for this journal.
    pub(crate) fn attach_journal(self: &Arc<Self>, journal: Arc<Journal>, targets: Targets) {
        if self.journal.set((Arc::clone(&journal), targets)).is_ok() {
            let writing = tokio::spawn(Arc::clone(self).write_journal(journal));
            *self.writing_journal.lock() = Some(writing);
        }
    }

    /// The journal, also one that takes nothing any more.
    pub(crate) fn journal(&self) -> Option<&Arc<Journal>> {
        self.journal.get().map(|(journal, _)| journal)
    }

    /// Whether a change waits for the journal before its caller is answered.
    pub(crate) fn accepts_on_host(&self) -> bool {
        self.journal.get().is_some_and(|(_, targets)| targets.accept)
    }

    /// Bytes that were put and appended, and that neither the bucket nor the journal's files have.
    pub(crate) fn unsaved_bytes(&self) -> u64 {
        let state = self.state.lock();
        let Coverage { end, is_whole } = state.journaled.written;
        let len = |number: u64, data: usize, rows: usize| match number.cmp(&end.number) {
            Ordering::Less => 0,
            Ordering::Equal if is_whole => 0,
            Ordering::Equal => data.saturating_sub(end.data) + rows.saturating_sub(end.rows),
            Ordering::Greater => data + rows,
        };
        // Also of an object that is there, and none before it: what comes after a gap is void.
        let sealed = state
            .sealed
            .iter()
            .map(|(number, Sealed { content, .. })| len(*number, content.data.len(), content.rows.len()));
        let open = len(state.open, state.data.len(), state.rows.len());
        (sealed.sum::<usize>() + open) as u64
    }

    pub(crate) fn journal_stats(&self) -> Option<JournalStats> {
        self.journal().map(|journal| journal.stats())
    }

    /// Waits until the journal has all that was put and appended by now.
    ///
    /// # Errors
    /// The log has failed.
    pub(crate) async fn commit_to_journal(self: &Arc<Self>, level: Level) -> Result<Journaled> {
        let Some((journal, targets)) = self.journal.get() else { return Ok(Journaled::No) };
        if level == Level::Synced && !targets.fsync {
            return Ok(Journaled::No);
        }
        if journal.has_failed() {
            journal.pass_by();
            return Ok(Journaled::No);
        }
        let (end, refused) = {
            let state = self.state.lock();
            (state.end(), state.journaled.refused)
        };
        self.wait_until(|state| {
            if let Some(error) = &state.failed {
                return Some(Err(plain(error)));
            }
            if state.is_journaled(&end, level) {
                return Some(Ok(Journaled::Yes));
            }
            if state.journaled.refused > refused {
                journal.pass_by();
                return Some(Ok(Journaled::No));
            }
            state.journaled.is_sync_wanted |= level == Level::Synced;
            self.journal_wanted.notify_one();
            None
        })
        .await
    }

    /// Writes what callers wait for, until the log ends.
    async fn write_journal(self: Arc<Self>, journal: Arc<Journal>) {
        loop {
            self.journal_wanted.notified().await;
            let (write, is_synced) = {
                let mut state = self.state.lock();
                if state.failed.is_some() {
                    return;
                }
                if journal.has_failed() {
                    // What the last write has left is not known, and stays so. Waiting callers are woken.
                    state.journaled.refused += 1;
                    drop(state);
                    self.changed.notify_waiters();
                    continue;
                }
                let is_synced = std::mem::take(&mut state.journaled.is_sync_wanted);
                let write = match state.unwritten() {
                    Some(write) => write,
                    // All was written before, and the disk may not have it.
                    None if is_synced => state.nothing(),
                    None => continue,
                };
                let ends = write.pieces.first().zip(write.pieces.last());
                state.journaled.writing = ends.map(|(first, last)| (first.about.number, last.about.number));
                (write, is_synced)
            };
            self.write_to(&journal, write, is_synced).await;
            if let Err(error) = journal.trim().await {
                tracing::warn!(%error, "a file of the journal cannot be removed");
            }
        }
    }

    async fn write_to(self: &Arc<Self>, journal: &Journal, write: Write, is_synced: bool) {
        let records: Vec<_> = write.pieces.iter().map(|piece| self.record(write.epoch, piece)).collect();
        let written = journal.append(&records, is_synced).await;
        {
            let mut state = self.state.lock();
            match written {
                Ok(places) => {
                    state.journaled.writing = None;
                    for (piece, place) in write.pieces.iter().zip(places) {
                        state.journaled.places.entry(piece.about.number).or_default().push(place);
                    }
                    state.journaled.written = write.covers;
                    state.journaled.is_full = false;
                    if is_synced {
                        state.journaled.synced = write.covers;
                    }
                    // Some of it may have become durable meanwhile.
                    self.release(&mut state);
                }
                Err(error) => {
                    state.journaled.refused += 1;
                    if error.kind() == ErrorKind::NoSpace {
                        // Nothing of it was written.
                        state.journaled.writing = None;
                        state.journaled.is_full = true;
                    }
                }
            }
            self.send_journaled(&mut state);
            self.send(&mut state);
        }
        self.changed.notify_waiters();
    }

    /// What is not in the journal yet is to be there soon; what is sealed, on its disk, too: the objects
    /// behind it are not sent before.
    pub(super) fn journal_soon(&self, state: &mut State, is_sealed: bool) {
        let accepts =
            self.journal.get().is_some_and(|(journal, targets)| targets.accept && !journal.has_failed());
        if accepts && !state.journaled.is_full {
            state.journaled.is_sync_wanted |= is_sealed && !is_on("log-sent-behind-what-is-not-synced");
            self.journal_wanted.notify_one();
        }
    }

    /// Has what was acknowledged sealed soon, if nothing else is on its way then.
    pub(super) fn send_journaled(self: &Arc<Self>, state: &mut State) {
        if !state.is_sendable_alone() || std::mem::replace(&mut state.journaled.is_timed, true) {
            return;
        }
        let log = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(PACE).await;
            let Some(log) = log.upgrade() else { return };
            let mut state = log.state.lock();
            state.journaled.is_timed = false;
            // Else this is looked at again when what is on its way is there.
            if state.is_sendable_alone() {
                log.seal(&mut state);
            }
        });
    }

    /// Gives the journal back what is durable.
    pub(super) fn release(&self, state: &mut State) {
        let Some(journal) = self.journal() else { return };
        let kept = state.journaled.places.split_off(&(state.durable + 1));
        let released = std::mem::replace(&mut state.journaled.places, kept);
        state.journaled.is_full &= released.is_empty();
        for places in released.into_values() {
            journal.release(&places);
        }
    }

    fn record(&self, epoch: u64, piece: &Piece) -> Record {
        let Piece { about, is_rest, data, rows } = piece;
        let rows = self.codec.seal(&about.seal_context(epoch), rows);
        let kind = if *is_rest { REST } else { PART };
        Record { kind, about: about.write(), payload: vec![data.clone(), rows] }
    }

    /// Takes nothing any more. Whether the bucket has everything, and the files are gone.
    pub(crate) async fn end_journal(&self) -> bool {
        let Some(journal) = self.journal() else { return true };
        self.fail(WalError::Closed);
        self.journal_wanted.notify_one();
        let writing = self.writing_journal.lock().take();
        if let Some(writing) = writing {
            // What it is writing is released by it.
            let _it_ended = writing.await;
        }
        match journal.end().await {
            Ok(is_empty) => is_empty,
            Err(error) => {
                tracing::warn!(%error, "a file of the journal cannot be removed");
                false
            }
        }
    }
}

fn len_of(len: usize) -> u32 {
    u32::try_from(len).expect("an object is small")
}

/// The longest payload of a record of the log's.
pub(crate) const PAYLOAD_MAX: u64 = super::object::OBJECT_BYTES_MAX + HEADER as u64;
