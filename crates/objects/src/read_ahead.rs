//! Reads files ahead where they are read in sequence.
//!
//! An open file has a few **streams**: places where its readers are. A read that continues one (or
//! comes a little early or late: the kernel sends several at a time) keeps that many bytes ahead of
//! it on their way: its **window**, which doubles each time half of it is used up. A read anywhere
//! else begins a stream without a window, in the place of the one that was not used for longest;
//! the next that continues it gets one. At the beginning of a file the first read does.
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
use crate::reading::RUN_MAX;
use crate::rows::{Extent, Object};
use crate::tree::Tree;

/// The smallest window, and the largest.
const WINDOW_MIN: u64 = 256 << 10;
const WINDOW_MAX: u64 = 32 << 20;
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

/// Where one reader is.
#[derive(Debug, Clone, Copy)]
struct Stream {
    /// The furthest end of its reads.
    next: u64,
    /// Up to here it is read ahead.
    ahead: u64,
    window: u64,
    /// When the window was read ahead last.
    grown: Instant,
    used: Instant,
}

/// The streams of an open file.
#[derive(Debug, Default)]
pub(crate) struct Streams(Mutex<Vec<Stream>>);

impl Streams {
    /// Notes a read of a file of `size` bytes. Returns what is to be read ahead, and the bytes that
    /// `reserve` granted for it.
    fn on_read(
        &self,
        offset: u64,
        len: u64,
        size: u64,
        reserve: impl FnOnce(u64) -> Reserved,
    ) -> Option<(Range<u64>, Reserved)> {
        let end = offset.saturating_add(len).min(size);
        if end <= offset {
            return None;
        }
        let (mut streams, now) = (self.0.lock(), Instant::now());
        let slack = 2 * len;
        let continues = |s: &Stream| offset <= s.next.saturating_add(slack) && end + slack >= s.next;
        let (stream, is_new) = match streams.iter().position(continues) {
            Some(found) => (&mut streams[found], false),
            None => {
                if streams.len() == STREAMS
                    && let Some(oldest) = (0..STREAMS).min_by_key(|&index| streams[index].used)
                {
                    streams.swap_remove(oldest);
                }
                streams.push(Stream { next: end, ahead: end, window: 0, grown: now, used: now });
                (streams.last_mut()?, true)
            }
        };
        let has_paused = now.duration_since(stream.used) >= PAUSE_MAX;
        stream.used = now;
        stream.next = stream.next.max(end);
        stream.ahead = if has_paused { stream.next } else { stream.ahead.max(stream.next) };
        if is_new && offset > 0 {
            return None;
        }
        if stream.ahead - stream.next > stream.window / 2 || stream.ahead >= size {
            return None;
        }
        // A slow reader finds gone what was read ahead for long.
        let window = match now.duration_since(stream.grown) {
            took if took < FAST => 2 * stream.window,
            took if took > SLOW => stream.window / 2,
            _ => stream.window,
        };
        stream.grown = now;
        stream.window = window.max(len).clamp(WINDOW_MIN, WINDOW_MAX);
        let (from, to) = (stream.ahead, stream.next.saturating_add(stream.window).min(size));
        let wanted = to.checked_sub(from).filter(|wanted| *wanted > 0)?;
        let reserved = reserve(wanted);
        if reserved.bytes < wanted.min(STEP_MIN) {
            stream.window /= 2;
            return None;
        }
        stream.ahead = from + reserved.bytes;
        Some((from..stream.ahead, reserved))
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
            let ahead = streams.on_read(offset, wanted, size, |bytes| reader.reserve(bytes));
            let Some((range, reserved)) = ahead else { return };
            let (tree, ino) = (Arc::clone(self), pin.ino);
            self.runtime.spawn(async move {
                if let Err(error) = tree.read_ahead(ino, range, reserved).await {
                    tracing::debug!(ino, %error, "a file is not read ahead");
                }
            });
        })
        .await
    }

    async fn read_ahead(self: &Arc<Self>, ino: u64, range: Range<u64>, mut reserved: Reserved) -> Result<()> {
        let _under_way = self.work.begin();
        let extents = self.extents(ino, (range.start, range.end), EXTENTS).await?;
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
                let joined = blocks.end.min(last.start + RUN_MAX);
                blocks.start = joined.max(last.end);
                last.end = blocks.start;
            }
            while !blocks.is_empty() {
                let end = blocks.end.min(blocks.start + RUN_MAX);
                runs.push((object, blocks.start..end));
                blocks.start = end;
            }
        }
        Ok(runs)
    }
}

#[cfg(test)]
mod tests;
