//! Operations on ranges of files: allocation, holes, copies by reference.

use std::sync::Arc;

use store::{AllocateMode, ErrorKind, Result, Seek};

use crate::data::{check_whole, end_of, may_have_data};
use crate::engine::Batch;
use crate::extents::ExtentChange;
use crate::node::Pin;
use crate::rows::{Extent, ExtentRow};
use crate::tree::{Tree, fail, now};

/// Most bytes that one call copies, so that it ends soon.
const COPY_BYTES_MAX: u64 = 4 << 30;
/// Extents that one call copies.
const COPY_EXTENTS_MAX: usize = 4096;
/// Extents that a seek looks at, at a time.
const SEEK_EXTENTS: usize = 64;

impl Tree {
    pub(crate) async fn allocate(
        self: &Arc<Self>,
        pin: &Pin,
        mode: AllocateMode,
        offset: u64,
        len: u64,
    ) -> Result<()> {
        let op = "allocate";
        if len == 0 {
            return fail(ErrorKind::Invalid, op);
        }
        let keeps_size = mode.contains(AllocateMode::KEEP_SIZE);
        let kind = mode - AllocateMode::KEEP_SIZE;
        let punches = kind == AllocateMode::PUNCH_HOLE && keeps_size;
        let zeroes = kind == AllocateMode::ZERO_RANGE;
        if !(kind.is_empty() || zeroes || punches) {
            return fail(ErrorKind::Unsupported, op);
        }
        let end = end_of(offset, len, op)?;
        let mut state = self.lock_settled(pin).await?;
        may_have_data(&state, op)?;
        check_whole(&state, op)?;
        self.know_extents(pin.ino).await;
        (state.row.mtime, state.row.ctime) = (now(), now());
        let mut at = offset;
        // In one batch, unless there are very many extents.
        while at < end {
            let mut change = ExtentChange::default();
            let to = change.load_some(self, pin.ino, (at, end)).await?;
            if punches || zeroes {
                change.cut(at, to);
            }
            if !punches {
                let holes = change.holes(at, to);
                self.check_space(holes.iter().map(|(start, end)| end - start).sum())?;
                for (start, end) in holes {
                    change.add(Extent { start, row: ExtentRow { len: end - start, data: None } });
                }
            }
            if !punches && !keeps_size && to > state.row.size {
                let charge = state.charge.max(to);
                state.charge_to(&self.quotas, charge, op)?;
                (state.row.size, state.stored_size) = (to, to);
            }
            self.write_extents(pin, &mut state, change, Batch::default()).await?;
            at = to;
        }
        Ok(())
    }

    pub(crate) async fn seek(self: &Arc<Self>, pin: &Pin, what: Seek, offset: u64) -> Result<u64> {
        let size = self.lock_settled(pin).await?.row.size;
        if offset >= size {
            return fail(ErrorKind::NoSuchAddress, "seek");
        }
        let mut at = offset;
        loop {
            let extents = self.extents(pin.ino, (at, size), SEEK_EXTENTS).await?;
            let is_last = extents.len() < SEEK_EXTENTS;
            // Reserved space reads as zeros: it is a hole.
            for extent in extents.iter().filter(|extent| extent.row.data.is_some()) {
                match what {
                    Seek::Data => return Ok(extent.start.max(offset)),
                    Seek::Hole if extent.start > at => return Ok(at),
                    Seek::Hole => at = extent.end(),
                }
            }
            match what {
                Seek::Hole if is_last || extents.last().is_some_and(|e| e.end() > at) => {
                    return Ok(at.min(size));
                }
                Seek::Data if is_last => return fail(ErrorKind::NoSuchAddress, "seek"),
                _ => at = extents.last().map_or(size, Extent::end),
            }
        }
    }

    /// Copies by reference: no data moves.
    pub(crate) async fn copy_range(
        self: &Arc<Self>,
        (src, src_offset): (&Pin, u64),
        (dst, dst_offset): (&Pin, u64),
        len: u64,
    ) -> Result<u64> {
        let op = "copy range";
        // What it finds in one file may be gone there before the other has it.
        let _under_way = self.work.begin();
        let (size, mut len) = {
            let state = self.lock_settled(src).await?;
            may_have_data(&state, op)?;
            (state.row.size, len.min(COPY_BYTES_MAX).min(state.row.size.saturating_sub(src_offset)))
        };
        if src.ino == dst.ino && src_offset < dst_offset + len && dst_offset < src_offset + len {
            return fail(ErrorKind::Invalid, op);
        }
        end_of(dst_offset, len, op)?;
        if len == 0 {
            return Ok(0);
        }
        let range = (src_offset, (src_offset + len).min(size));
        let extents = self.extents(src.ino, range, COPY_EXTENTS_MAX).await?;
        if let Some(last) = extents.last().filter(|_| extents.len() == COPY_EXTENTS_MAX) {
            len = len.min(last.end() - src_offset);
        }
        self.check_space(len)?;
        let mut state = self.lock_settled(dst).await?;
        may_have_data(&state, op)?;
        check_whole(&state, op)?;
        self.know_extents(dst.ino).await;
        let charge = state.charge.max(dst_offset + len);
        state.charge_to(&self.quotas, charge, op)?;
        let mut change = ExtentChange::default();
        let end = change.load_some(self, dst.ino, (dst_offset, dst_offset + len)).await?;
        len = end - dst_offset;
        change.cut(dst_offset, end);
        for extent in extents {
            let (from, to) = (extent.start.max(src_offset), extent.end().min(src_offset + len));
            if from < to {
                let part = extent.part(from, to);
                change.add(Extent { start: from - src_offset + dst_offset, row: part.row });
            }
        }
        state.row.size = state.row.size.max(end);
        state.stored_size = state.stored_size.max(end);
        (state.row.mtime, state.row.ctime) = (now(), now());
        self.write_extents(dst, &mut state, change, Batch::default()).await?;
        Ok(len)
    }
}
