//! Reads files ahead where they are read in sequence.
//!
//! An open file has a few **streams**: places where its readers are. A read that continues one (or
//! comes a little early or late: the kernel sends several at a time) keeps that many bytes ahead of
//! it on their way: its **window**. A read anywhere else begins a stream without a window, in the
//! place of the one that was not used for longest; the next that continues it gets one. At the
//! beginning of a file the first read does.
//!
//! The window doubles each time half of it is used up. A stream that begins with its file has a window
//! of [`FROM_START`] times what it has read, until that is the largest: so many times more than is
//! read, and the rest of a segment, comes for nothing at most. The kernel makes its first requests as
//! large as the program's reads: a program that reads a little gets a little ahead, and one that reads
//! 1 MiB at a time has the largest window after six reads. Where answers take 50 ms, to double it so
//! far would take as long as to read 100 MiB.
//!
//! What is read ahead is bounded for the volume ([`crate::blocks`]): a window that gets no bytes is
//! halved, and the reader reads for itself.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use store::Result;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::blocks::{BLOCK, Reserved, blocks_of};
use crate::node::Pin;
use crate::reading::is_whole;
use crate::rows::{Extent, Object};
use crate::segments::EXTENT_BYTES_MAX;
use crate::tree::Tree;

/// The smallest window, and the largest.
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_MAX: u64 = 48 << 20;
/// How many times what it has read the window of a stream is that begins with its file.
const FROM_START: u64 = 8;
/// How long a stream begins. What reaches the largest window by then uses it up before it is gone.
const BEGINNING: Duration = Duration::from_secs(1);
/// Who has read so much in sequence does not come back to what was read.
const IN_SEQUENCE: u64 = 4 << 20;
/// Less than this is read ahead only where the file ends.
const STEP_MIN: u64 = 1 << 20;
/// Streams of an open file.
const STREAMS: usize = 8;
/// A stream that was not read from for this long begins again: what was read ahead is gone.
const PAUSE_MAX: Duration = Duration::from_secs(8);
/// The window grows while half of it is used in less time than this, and shrinks if it takes
/// longer.
const FAST: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(4);
/// Extents that are read ahead at a time.
const EXTENTS: usize = 256;
/// Blocks of one GET; and of one that takes the rest of its extent with it: of a segment of 8 MiB the
/// checksums and the footer are in a block more.
const RUN: u32 = 16;
const RUN_MAX: u32 = RUN + 2;
/// Larger windows end where segments of a file begin that was written in sequence: such a segment comes
/// whole, with one GET. Where segments begin elsewhere, the last one's rest comes with it.
const SEGMENT: u64 = EXTENT_BYTES_MAX as u64;

/// Where one reader is.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// The furthest end of its reads.
    next: u64,
    /// Up to here it is read ahead.
    ahead: u64,
    window: u64,
    /// When it began, if with its file.
    begun: Option<Instant>,
    /// How far it has come since.
    read: u64,
    /// When the window was read ahead last.
    grown: Instant,
    used: Instant,
}

impl Stream {
    fn new(offset: u64, now: Instant) -> Self {
        let begun = (offset == 0).then_some(now);
        Self { next: offset, ahead: offset, window: 0, begun, read: 0, grown: now, used: now }
    }

    /// Notes a read up to `end`.
    fn on_read(&mut self, end: u64, now: Instant) {
        let has_paused = now.duration_since(self.used) >= PAUSE_MAX;
        self.used = now;
        self.read += end.saturating_sub(self.next);
        self.next = self.next.max(end);
        self.ahead = if has_paused { self.next } else { self.ahead.max(self.next) };
    }

    fn is_beginning(&self, now: Instant) -> bool {
        let is_recent = |begun: Instant| now.duration_since(begun) < BEGINNING;
        self.begun.is_some_and(is_recent) && self.read <= WINDOW_MAX / FROM_START
    }

    /// What is to be read ahead after a read of `len` bytes, and what was reserved for it.
    fn read_ahead(
        &mut self,
        len: u64,
        size: u64,
        now: Instant,
        reserve: impl FnOnce(u64) -> Reserved,
    ) -> Option<(Range<u64>, Reserved)> {
        let window = self.next_window(now).max(len).clamp(WINDOW_MIN, WINDOW_MAX);
        let used_up = if self.is_beginning(now) { window } else { self.window };
        let least = (used_up / 2).max(used_up.saturating_sub(SEGMENT));
        if self.ahead - self.next > least || self.ahead >= size {
            return None;
        }
        let (from, to) = (self.ahead, self.next.saturating_add(window));
        let to = if window < SEGMENT { to } else { to / SEGMENT * SEGMENT };
        let wanted = to.min(size).checked_sub(from).filter(|wanted| *wanted > 0)?;
        (self.grown, self.window) = (now, window);
        let reserved = reserve(wanted);
        if reserved.bytes < wanted.min(STEP_MIN) {
            self.window /= 2;
            return None;
        }
        self.ahead = from + reserved.bytes;
        Some((from..self.ahead, reserved))
    }

    /// Its window, if it is read ahead now.
    fn next_window(&self, now: Instant) -> u64 {
        if self.is_beginning(now) {
            return self.window.max(FROM_START * self.read);
        }
        // A slow reader finds gone what was read ahead for long.
        match now.duration_since(self.grown) {
            took if took < FAST => 2 * self.window,
            took if took > SLOW => self.window / 2,
            _ => self.window,
        }
    }
}

/// What a read has shown.
#[derive(Debug, Default)]
struct Noted {
    /// Its reader has read so much in sequence that it will hardly come back.
    is_in_sequence: bool,
    /// What is to be read ahead, and what is reserved for it.
    ahead: Option<(Range<u64>, Reserved)>,
}

/// The streams of an open file.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Vec<Stream>>);

impl Streams {
    /// Notes a read of a file of `size` bytes. For what is to be read ahead then `reserve` grants bytes.
    fn on_read(&self, offset: u64, len: u64, size: u64, reserve: impl FnOnce(u64) -> Reserved) -> Noted {
        let end = offset.saturating_add(len).min(size);
        if end <= offset {
            return Noted::default();
        }
        let (mut streams, now) = (self.0.lock(), Instant::now());
        let slack = 2 * len;
        let continues = |s: &Stream| offset <= s.next.saturating_add(slack) && end + slack >= s.next;
        let found = streams.iter().position(continues);
        let at = found.unwrap_or_else(|| {
            if streams.len() == STREAMS
                && let Some(oldest) = (0..STREAMS).min_by_key(|&index| streams[index].used)
            {
                streams.swap_remove(oldest);
            }
            streams.push(Stream::new(offset, now));
            streams.len() - 1
        });
        let stream = &mut streams[at];
        stream.on_read(end, now);
        let is_followed = found.is_some() || offset == 0;
        let ahead = if is_followed { stream.read_ahead(len, size, now, reserve) } else { None };
        Noted { is_in_sequence: stream.read >= IN_SEQUENCE, ahead }
    }
}

impl Tree {
    /// Reads until `buf` is full or the file ends, and what follows ahead if it is read in
    /// sequence.
    pub(crate) async fn read_stream(
        self: &Arc<Self>,
        pin: &Pin,
        streams: &Streams,
        buf: &mut [u8],
        offset: u64,
    ) -> Result<usize> {
        let wanted = buf.len() as u64;
        self.read_with(pin, buf, offset, |size| {
            let reader = self.segments.reader();
            let noted = streams.on_read(offset, wanted, size, |bytes| reader.reserve(bytes));
            let Some((range, reserved)) = noted.ahead else { return noted.is_in_sequence };
            let (tree, ino) = (Arc::clone(self), pin.ino);
            self.runtime.spawn(async move {
                if let Err(error) = tree.read_ahead(ino, range, reserved).await {
                    tracing::debug!(ino, %error, "a file is not read ahead");
                }
            });
            noted.is_in_sequence
        })
        .await
    }

    async fn read_ahead(
        self: &Arc<Self>,
        ino: u64,
        mut range: Range<u64>,
        mut reserved: Reserved,
    ) -> Result<()> {
        let _under_way = self.work.begin();
        let is_large = range.end - range.start >= SEGMENT;
        let seen = if is_large { range.end.saturating_add(SEGMENT) } else { range.end };
        let mut extents = self.extents(ino, (range.start, seen), EXTENTS).await?;
        if is_large {
            let end = end_of_object(&extents, range.end);
            let more = self.segments.reader().reserve(end - range.end);
            if more.bytes == end - range.end {
                range.end = end;
                reserved.add(more);
            }
            extents.retain(|extent| extent.start < range.end);
        }
        let runs = self.runs_of(&extents, range)?;
        let mut fetches = JoinSet::new();
        for (object, run) in runs {
            let part = reserved.split(run.len() as u64 * BLOCK);
            if part.bytes == 0 {
                // Small extents take more than their own bytes.
                break;
            }
            let tree = Arc::clone(self);
            fetches.spawn(async move { tree.segments.reader().fetch_ahead(object, run, part).await });
        }
        drop(reserved);
        fetches.join_all().await;
        Ok(())
    }

    /// The blocks in which the part `range` of these extents is: runs of one object, each one GET.
    pub(crate) fn runs_of(&self, extents: &[Extent], range: Range<u64>) -> Result<Vec<(Object, Range<u32>)>> {
        let mut runs: Vec<(Object, Range<u32>)> = Vec::new();
        for extent in extents {
            let part = extent.part(extent.start.max(range.start), extent.end().min(range.end));
            let Some((object, bytes)) = self.segments.place_of(&part)? else { continue };
            let mut blocks = blocks_of(&bytes);
            if let Some((_, last)) = runs
                .last_mut()
                .filter(|(of, run)| *of == object && (run.start..=run.end).contains(&blocks.start))
            {
                blocks = last.end..blocks.end.max(last.end);
                let joined = run_end(object, last.start..blocks.end);
                blocks.start = joined.max(last.end);
                last.end = blocks.start;
            }
            while !blocks.is_empty() {
                let end = run_end(object, blocks.clone());
                runs.push((object, blocks.start..end));
                blocks.start = end;
            }
        }
        Ok(runs)
    }
}

/// How far the object goes on in the file that is at `end` of it, if it is one that is begun before.
fn end_of_object(extents: &[Extent], end: u64) -> u64 {
    let object = |extent: &Extent| extent.row.data.as_ref().map(|(stored, _)| stored.object);
    let reaches = |extent: &Extent| extent.start < end && extent.end() >= end;
    let Some(at) = extents.iter().position(reaches) else { return end };
    let of = object(&extents[at]);
    let is_rest = |extent: &&Extent| of.is_some() && object(extent) == of;
    extents[at..].iter().take_while(is_rest).last().map_or(end, Extent::end)
}

/// Where the first GET of these blocks ends.
fn run_end(object: Object, blocks: Range<u32>) -> u32 {
    let is_one = blocks.len() <= RUN_MAX as usize || is_whole(object, &blocks);
    if is_one { blocks.end } else { blocks.start + RUN }
}

#[cfg(test)]
mod tests;
