//! The data of files: written into memory, taken to the bucket in rounds, then given extents.
//!
//! A **round** takes all of a file's data that no round has taken, writes it (small data into the
//! log's open object, bulk into a segment), waits for the round before it, and writes the rows: a
//! row is appended only after its data is durable, or travels with it. Rounds of a file end in
//! order, so that later data never is there without earlier data. A file's size in the engine
//! never lies beyond its extents.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use crate::engine::Batch;
use crate::extent_cache::Known;
use crate::extents::ExtentChange;
use crate::node::{Locked, Pin};
use crate::pieces::Taken;
use crate::rows::{Extent, ExtentRow};
use crate::segments::{EXTENT_BYTES_MAX, Part};
use crate::tree::{Tree, fail, now};

/// Data of a round that is not more than this goes into the log.
const SMALL_BYTES_MAX: usize = 256 << 10;
/// The same where each write is a round: what one write has at most.
const ACCEPTED_BYTES_MAX: usize = 1 << 20;
/// Data of one file that is taken to the bucket without being asked for.
const ROUND_BYTES: u64 = EXTENT_BYTES_MAX as u64;
/// Data of one tenant that may rest above the store: two rounds, so that the way to the bucket is not
/// idle while a file is written.
pub(crate) const WRITE_BEHIND_BYTES: u64 = 2 * ROUND_BYTES;
/// Writes to one file after which that is done, so that its rows fit into a batch.
const ROUND_WRITES: usize = 16 << 10;
/// Extents that one read looks at, at a time.
const READ_EXTENTS: usize = 64;

/// The end of `offset` and `len`.
pub(crate) fn end_of(offset: u64, len: u64, op: &'static str) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if i64::try_from(end).is_ok() => Ok(end),
        _ => fail(ErrorKind::FileTooBig, op),
    }
}

impl Tree {
    /// Writes data, which outlives this process when this returns, if that was asked for.
    pub(crate) async fn accept_write(
        self: &Arc<Self>,
        pin: &Pin,
        bufs: &[IoSlice<'_>],
        offset: u64,
    ) -> Result<()> {
        let write = async {
            self.write_at(pin, bufs, offset).await?;
            if self.accepts_on_host() { self.settled(pin).await } else { Ok(()) }
        };
        self.accept(write).await
    }

    pub(crate) async fn write_at(
        self: &Arc<Self>,
        pin: &Pin,
        bufs: &[IoSlice<'_>],
        offset: u64,
    ) -> Result<()> {
        let len: usize = bufs.iter().map(|buf| buf.len()).sum();
        let end = end_of(offset, len as u64, "write")?;
        if len == 0 {
            return Ok(());
        }
        self.check_space(len as u64)?;
        // ORDERING: Relaxed, a figure alone: whose room it takes is returned with it.
        let tenant = pin.tenant.load(Ordering::Relaxed);
        let is_tight = self.pending.take(tenant, len as u64).await?;
        let mut data = BytesMut::with_capacity(len);
        bufs.iter().for_each(|buf| data.extend_from_slice(buf));
        let locked = pin.lock().await.and_then(|mut state| {
            check_whole(&state, "write")?;
            let charge = state.charge.max(end);
            state.charge_to(&self.quotas, charge, "write").map(|()| state)
        });
        let mut state = match locked {
            Ok(state) => state,
            Err(error) => {
                self.pending.give(tenant, len as u64);
                return Err(error);
            }
        };
        if state.pieces.are_of_another(tenant) {
            self.settle(pin, &mut state, false);
        }
        state.pieces.write(offset, data.freeze(), tenant);
        state.row.size = state.row.size.max(end);
        (state.row.mtime, state.row.ctime) = (now(), now());
        self.pending.add(pin);
        if state.pieces.bytes() >= ROUND_BYTES || state.pieces.writes() >= ROUND_WRITES {
            self.settle(pin, &mut state, false);
        }
        drop(state);
        if is_tight {
            // Not those of others: their locks are not waited for.
            let files = self.pending.files().into_iter();
            self.settle_each(files.filter(|pin| pin.tenant.load(Ordering::Relaxed) == tenant)).await?;
        }
        Ok(())
    }

    /// Promises a file's user that data up to `size` will be taken: it counts for its quotas at once.
    ///
    /// # Errors
    /// `Quota`, `NoSpace`: there is no room for it.
    pub(crate) async fn promise_size(self: &Arc<Self>, pin: &Pin, size: u64) -> Result<()> {
        // ORDERING: Relaxed. The lock in `are_on` orders it: where this finds that inodes do not count yet,
        // the walk that counts them later finds the size.
        pin.accepted.fetch_max(size, Ordering::Relaxed);
        if !self.quotas.are_on() {
            return Ok(());
        }
        let mut state = pin.lock().await?;
        may_have_data(&state, "write")?;
        let charge = state.charge.max(size);
        state.charge_to(&self.quotas, charge, "write")
    }

    /// Refuses what the volume has no room for.
    pub(crate) fn check_space(&self, more: u64) -> Result<()> {
        let Some(max) = self.size_max else { return Ok(()) };
        let used = u64::try_from(self.totals.lock().bytes).unwrap_or(0);
        if used.saturating_add(self.pending.bytes()).saturating_add(more) > max {
            return fail(ErrorKind::NoSpace, "write");
        }
        Ok(())
    }

    /// Begins a round if there is data for it; returns how many rounds have to end until all that
    /// was written by now has its extents. The segments of one that is awaited go before those of its
    /// tenant that are not.
    pub(crate) fn settle(self: &Arc<Self>, pin: &Pin, state: &mut Locked, is_awaited: bool) -> u64 {
        if let Some(round) = state.pieces.take() {
            let (tree, pin) = (Arc::clone(self), pin.clone());
            let (tenant, bytes) = (round.tenant, round.bytes);
            self.pending.begin_round(bytes);
            self.runtime.spawn(async move {
                match tree.run_round(&pin, round, is_awaited).await {
                    Ok(()) => tree.pending.end_round(tenant, bytes),
                    Err(error) => tree.pending.fail(error),
                }
            });
        }
        state.pieces.rounds()
    }

    /// A file is not written to for now. What gets a segment of its own by now gains nothing by waiting.
    pub(crate) fn on_close(self: &Arc<Self>, pin: &Pin) {
        // Another call has it at this moment: it begins a round, or a later one does.
        let Some(mut state) = pin.try_lock() else { return };
        // Without a name it goes with its last user.
        if state.row.nlink > 0 && state.pieces.bytes() > SMALL_BYTES_MAX as u64 {
            self.settle(pin, &mut state, false);
        }
    }

    /// Begins a round of each file that has data for it.
    pub(crate) async fn settle_all(self: &Arc<Self>) -> Result<Vec<(Pin, u64)>> {
        self.settle_each(self.pending.files()).await
    }

    async fn settle_each(self: &Arc<Self>, files: impl IntoIterator<Item = Pin>) -> Result<Vec<(Pin, u64)>> {
        let mut rounds = Vec::new();
        for pin in files {
            let mut state = pin.lock().await?;
            let round = self.settle(&pin, &mut state, false);
            drop(state);
            rounds.push((pin, round));
        }
        Ok(rounds)
    }

    /// Waits until `rounds` rounds of a file have ended.
    pub(crate) async fn wait_for(&self, pin: &Pin, rounds: u64) -> Result<()> {
        tokio::select! {
            biased;
            () = pin.ended.wait_for(rounds) => Ok(()),
            error = self.pending.failed() => Err(error),
        }
    }

    /// Gives all data of a file that was written by now its extents.
    pub(crate) async fn settled(self: &Arc<Self>, pin: &Pin) -> Result<()> {
        let mut state = pin.lock().await?;
        let rounds = self.settle(pin, &mut state, true);
        drop(state);
        pin.wait_begins(rounds);
        self.wait_for(pin, rounds).await
    }

    /// Locks a file all of whose data has its extents.
    pub(crate) async fn lock_settled(self: &Arc<Self>, pin: &Pin) -> Result<Locked> {
        loop {
            let mut state = pin.lock().await?;
            let rounds = self.settle(pin, &mut state, true);
            if pin.ended.get() >= rounds {
                return Ok(state);
            }
            drop(state);
            pin.wait_begins(rounds);
            self.wait_for(pin, rounds).await?;
        }
    }

    async fn run_round(self: &Arc<Self>, pin: &Pin, round: Taken, is_awaited: bool) -> Result<()> {
        // Until the rows are written nobody else knows of its data.
        let _under_way = self.work.begin();
        let len: usize = round.pieces.iter().map(|(_, data)| data.len()).sum();
        // A round of each write would make a segment of each: the log gathers them.
        let small_max = if self.accepts_on_host() { ACCEPTED_BYTES_MAX } else { SMALL_BYTES_MAX };
        let stored = if len > small_max {
            let awaited = || pin.wait_until_awaited(round.round);
            let extents = extents_of(round.pieces);
            let stored = self.put_bulk((round.tenant, pin.ino), extents, is_awaited, awaited).await?;
            if !is_on("rounds-end-in-any-order") {
                self.wait_for(pin, round.round).await?;
            }
            stored
        } else {
            self.wait_for(pin, round.round).await?;
            let mut stored = Vec::new();
            for (start, data) in extents_of(round.pieces) {
                stored.push((start, self.segments.put_small(&data).await?));
            }
            stored
        };
        let mut state = pin.lock().await?;
        self.know_extents(pin.ino).await;
        let mut change = ExtentChange::default();
        for (start, stored) in stored {
            change.wrote(&stored);
            let row = ExtentRow { len: u64::from(stored.len), data: Some((stored, 0)) };
            let extent = Extent { start, row };
            let (mut at, end) = (start, extent.end());
            // In one batch, unless it replaces very many extents.
            while at < end {
                let to = change.load_some(self, pin.ino, (at, end)).await?;
                change.cut(at, to);
                change.add(extent.part(at, to));
                state.stored_size = state.stored_size.max(to);
                if change.is_large() {
                    let change = std::mem::take(&mut change);
                    self.write_extents(pin, &mut state, change, Batch::default()).await?;
                }
                at = to;
            }
        }
        self.write_extents(pin, &mut state, change, Batch::default()).await?;
        state.pieces.end(round.round);
        if state.pieces.is_empty() && state.pieces.rounds() == round.round + 1 {
            self.pending.remove(pin.ino);
        }
        pin.ended.set(round.round + 1);
        Ok(())
    }

    /// Writes a change of a file's extents and its row, with what else is in the batch.
    pub(crate) async fn write_extents(
        &self,
        pin: &Pin,
        state: &mut Locked,
        change: ExtentChange,
        mut batch: Batch,
    ) -> Result<()> {
        state.row.allocated = state.row.allocated.saturating_add_signed(change.allocated);
        change.put(pin.ino, &mut batch);
        state.put(pin.ino, &self.quotas, &mut batch);
        self.write_known(pin.ino, &change, batch).await
    }

    /// Writes a batch with a change of a file's extents, which is locked.
    pub(crate) async fn write_known(&self, ino: u64, change: &ExtentChange, batch: Batch) -> Result<()> {
        // Out of the cache until the engine has the change: what fails leaves nothing there.
        let mut known = self.extent_cache.take(ino);
        self.write(batch).await?;
        if let Some(Known::All(extents)) = &mut known {
            change.apply(extents);
        }
        known.into_iter().for_each(|known| self.extent_cache.give(ino, known));
        Ok(())
    }

    /// Makes a file's data, size and names durable: by the journal, if there is one.
    pub(crate) async fn sync_file(self: &Arc<Self>, pin: &Pin) -> Result<()> {
        if is_on("fsync-of-all-files") {
            return self.sync_all().await;
        }
        if !is_on("fsync-without-its-data") {
            self.settled(pin).await?;
        }
        self.engine.commit_to_host().await
    }

    /// Makes everything durable.
    pub(crate) async fn sync_all(self: &Arc<Self>) -> Result<()> {
        let all = self.settle_all().await?;
        self.segment_queue.sync_begins();
        all.iter().for_each(|(pin, rounds)| pin.wait_begins(*rounds));
        for (pin, rounds) in all {
            self.wait_for(&pin, rounds).await?;
        }
        self.pending.failure()?;
        self.engine.commit().await
    }

    /// Reads until `buf` is full or the file ends.
    #[cfg(test)]
    pub(crate) async fn read_at(self: &Arc<Self>, pin: &Pin, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.read_with(pin, buf, offset, |_| false).await
    }

    /// Reads until `buf` is full or the file ends; passes the file's size to `on_size` before
    /// anything is fetched, which says whether the file is read in sequence.
    pub(crate) async fn read_with(
        self: &Arc<Self>,
        pin: &Pin,
        buf: &mut [u8],
        offset: u64,
        on_size: impl FnOnce(u64) -> bool + Send,
    ) -> Result<usize> {
        end_of(offset, 0, "read")?;
        let (len, missing, is_in_sequence) = {
            let state = pin.lock().await?;
            let is_in_sequence = on_size(state.row.size);
            let left = state.row.size.saturating_sub(offset);
            let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
            (len, state.pieces.read(offset, &mut buf[..len]), is_in_sequence)
        };
        for (start, end) in missing {
            let out = &mut buf[index(start - offset)..index(end - offset)];
            self.read_extents(pin.ino, start, out, is_in_sequence).await?;
        }
        Ok(len)
    }

    async fn read_extents(&self, ino: u64, start: u64, out: &mut [u8], is_in_sequence: bool) -> Result<()> {
        let _under_way = self.work.begin();
        let end = start + out.len() as u64;
        let (mut at, mut rest) = (start, out);
        while at < end {
            let extents = self.extents(ino, (at, end), READ_EXTENTS).await?;
            let is_last = extents.len() < READ_EXTENTS;
            let mut parts = Vec::with_capacity(extents.len());
            for extent in &extents {
                let (from, to) = (extent.start.max(at), extent.end().min(end));
                let (hole, behind) = std::mem::take(&mut rest).split_at_mut(index(from - at));
                let (out, behind) = behind.split_at_mut(index(to - from));
                (at, rest) = (to, behind);
                hole.fill(0);
                match &extent.row.data {
                    None => out.fill(0),
                    Some((stored, skip)) => {
                        let skipped = u32::try_from(from - extent.start).ok();
                        let first = skipped.and_then(|skipped| skip.checked_add(skipped));
                        let range = first.and_then(|first| Some(first..first.checked_add(len_of(out))?));
                        let part = range.ok_or_else(|| crate::rows::corrupted("an extent"))?;
                        parts.push(Part { stored, part, out, is_passed: is_in_sequence });
                    }
                }
            }
            self.segments.read_all(&mut parts).await?;
            if is_last {
                rest.fill(0);
                return Ok(());
            }
        }
        Ok(())
    }
}

/// Refuses to change a file of which a truncation has taken a part.
pub(crate) fn check_whole(state: &Locked, op: &'static str) -> Result<()> {
    if state.is_cut_in_part {
        let why = "a truncation of this file has failed half-way: truncate it again first";
        return Err(Error::with(ErrorKind::Io, op, why));
    }
    Ok(())
}

pub(crate) fn may_have_data(state: &Locked, op: &'static str) -> Result<()> {
    use crate::rows::Kind;
    match state.row.kind {
        Kind::Regular => Ok(()),
        Kind::Directory => fail(ErrorKind::IsDirectory, op),
        _ => fail(ErrorKind::Invalid, op),
    }
}

/// Pieces that touch each other become one extent, up to the longest.
fn extents_of(pieces: Vec<(u64, Bytes)>) -> Vec<(u64, Vec<Bytes>)> {
    let mut extents: Vec<(u64, Vec<Bytes>)> = Vec::new();
    // Where the last one ends, and how much more it may have.
    let (mut end, mut room) = (0, 0);
    for (mut start, mut data) in pieces {
        while !data.is_empty() {
            if start != end || room == 0 || extents.is_empty() {
                extents.push((start, Vec::new()));
                room = EXTENT_BYTES_MAX;
            }
            let part = data.split_to(room.min(data.len()));
            (start, room) = (start + part.len() as u64, room - part.len());
            end = start;
            extents.last_mut().expect("one was begun").1.push(part);
        }
    }
    extents
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).expect("inside a buffer")
}

fn len_of(part: &[u8]) -> u32 {
    u32::try_from(part.len()).unwrap_or(u32::MAX)
}
