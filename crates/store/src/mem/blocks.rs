//! Sparse data in shared blocks.
//!
//! A block holds the bytes of 64 KiB of the file; the bytes behind a block's last one,
//! and a block that is not there, read as zeros. Blocks are shared by copies and split on the first
//! write. Each block of a file is charged to the space by itself, also where two share a block: a
//! write can then never run out of space because of a copy.
//!
//! Invariant: nothing but zeros lies at or behind the file's size.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::space::{BLOCK, Space};
use crate::Result;

/// Unit of charging, in bytes.
const PAGE: usize = 4096;
const BLOCK_U64: u64 = BLOCK as u64;

/// One block of a file.
#[derive(Debug)]
struct Block {
    bytes: Arc<Vec<u8>>,
    /// Its share of the space.
    charged: usize,
}

/// A file's data.
#[derive(Debug)]
pub(crate) struct Blocks {
    space: Arc<Space>,
    blocks: BTreeMap<u64, Block>,
    size: u64,
    /// Sum of the blocks' charges.
    charged: u64,
}

/// An extent within one block.
struct Extent {
    index: u64,
    /// From and to within the block.
    from: usize,
    to: usize,
    /// Where it lies within the whole range.
    at: usize,
}

/// The extents of a range in memory.
#[allow(clippy::cast_possible_truncation, reason = "offsets within a block")]
fn extents(offset: u64, len: usize) -> impl Iterator<Item = Extent> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= len {
            return None;
        }
        let pos = offset + at as u64;
        let from = (pos % BLOCK_U64) as usize;
        let to = (from + len - at).min(BLOCK);
        let extent = Extent { index: pos / BLOCK_U64, from, to, at };
        at += to - from;
        Some(extent)
    })
}

fn charge_of(len: usize) -> usize {
    len.next_multiple_of(PAGE)
}

/// The bytes of a write: the buffers one after the other.
pub(crate) struct Source<'a, 'b> {
    bufs: &'a [std::io::IoSlice<'b>],
    from: usize,
}

impl<'a, 'b> Source<'a, 'b> {
    pub(crate) fn new(bufs: &'a [std::io::IoSlice<'b>]) -> Self {
        Self { bufs, from: 0 }
    }

    /// Calls `put` with the next `len` bytes, in order.
    fn give(&mut self, mut len: usize, mut put: impl FnMut(&[u8])) {
        while len > 0 {
            let Some((first, rest)) = self.bufs.split_first() else { return };
            let part = &first[self.from..];
            let n = part.len().min(len);
            put(&part[..n]);
            len -= n;
            self.from += n;
            if self.from == first.len() {
                (self.bufs, self.from) = (rest, 0);
            }
        }
    }
}

impl Blocks {
    pub(crate) fn new(space: Arc<Space>) -> Self {
        Self { space, blocks: BTreeMap::new(), size: 0, charged: 0 }
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of space in use.
    pub(crate) fn charged(&self) -> u64 {
        self.charged
    }

    /// Fills `buf` from `offset` on, to the file's end at most; says how many bytes.
    pub(crate) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let Some(left) = self.size.checked_sub(offset) else { return 0 };
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(buf.len());
        for extent in extents(offset, len) {
            let out = &mut buf[extent.at..extent.at + extent.to - extent.from];
            let bytes = self.blocks.get(&extent.index).map_or(&[][..], |p| p.bytes.as_slice());
            let there = bytes.get(extent.from..extent.to.min(bytes.len())).unwrap_or(&[]);
            out[..there.len()].copy_from_slice(there);
            out[there.len()..].fill(0);
        }
        len
    }

    /// Writes `len` bytes of `source`. When the space ends, the bytes before that stay.
    pub(crate) fn write(&mut self, source: &mut Source<'_, '_>, offset: u64, len: usize) -> Result<()> {
        for extent in extents(offset, len) {
            self.put(&extent, |bytes| {
                if extent.from < bytes.len() {
                    let inside = extent.to.min(bytes.len());
                    let mut at = extent.from;
                    source.give(inside - extent.from, |part| {
                        bytes[at..at + part.len()].copy_from_slice(part);
                        at += part.len();
                    });
                    source.give(extent.to - inside, |part| bytes.extend_from_slice(part));
                } else {
                    bytes.resize(extent.from, 0);
                    source.give(extent.to - extent.from, |part| bytes.extend_from_slice(part));
                }
            })?;
            self.size = self.size.max(offset + (extent.at + extent.to - extent.from) as u64);
        }
        Ok(())
    }

    /// Lets `change` write into the block of `extent`, which is there and is this file's alone.
    fn put(&mut self, extent: &Extent, change: impl FnOnce(&mut Vec<u8>)) -> Result<()> {
        use std::collections::btree_map::Entry;
        match self.blocks.entry(extent.index) {
            Entry::Vacant(slot) => {
                let charged = charge_of(extent.to);
                self.space.take(charged as u64, "write")?;
                self.charged += charged as u64;
                let mut bytes = self.space.buffer(extent.to);
                change(&mut bytes);
                slot.insert(Block { bytes: Arc::new(bytes), charged });
            }
            Entry::Occupied(slot) => {
                let block = slot.into_mut();
                let needed = charge_of(extent.to);
                if needed > block.charged {
                    let more = (needed - block.charged) as u64;
                    self.space.take(more, "write")?;
                    self.charged += more;
                    block.charged = needed;
                }
                if Arc::get_mut(&mut block.bytes).is_none() {
                    let mut own = self.space.buffer(extent.to.max(block.bytes.len()));
                    own.extend_from_slice(&block.bytes);
                    block.bytes = Arc::new(own);
                }
                if let Some(bytes) = Arc::get_mut(&mut block.bytes) {
                    grow(bytes, extent.to);
                    change(bytes);
                }
            }
        }
        Ok(())
    }

    fn drop_place(&mut self, block: Block) {
        self.space.give(block.charged as u64);
        self.charged -= block.charged as u64;
        self.space.recycle(block.bytes);
    }

    /// Sets the size; bytes that are cut off are gone, bytes that are added read as zeros.
    #[allow(clippy::cast_possible_truncation, reason = "an offset within a block")]
    pub(crate) fn set_size(&mut self, size: u64) {
        if size < self.size {
            let first_gone = size.div_ceil(BLOCK_U64);
            let gone = self.blocks.split_off(&first_gone);
            for block in gone.into_values() {
                self.drop_place(block);
            }
            let tail = (size % BLOCK_U64) as usize;
            if tail > 0 {
                self.cut(size / BLOCK_U64, tail);
            }
        }
        self.size = size;
    }

    /// Cuts a block to `len` bytes.
    fn cut(&mut self, index: u64, len: usize) {
        let Some(block) = self.blocks.get_mut(&index) else { return };
        let keep = charge_of(len);
        if keep < block.charged {
            let less = (block.charged - keep) as u64;
            self.space.give(less);
            self.charged -= less;
            block.charged = keep;
        }
        if block.bytes.len() > len {
            match Arc::get_mut(&mut block.bytes) {
                Some(bytes) => bytes.truncate(len),
                None => block.bytes = Arc::new(block.bytes[..len].to_vec()),
            }
        }
    }

    /// Makes `[offset, end)` read as zeros, and gives back the space of the blocks there.
    #[allow(clippy::cast_possible_truncation, reason = "offsets within a block")]
    pub(crate) fn punch(&mut self, offset: u64, end: u64) {
        let (first, last) = (offset / BLOCK_U64, end.div_ceil(BLOCK_U64));
        let touched: Vec<u64> = self.blocks.range(first..last).map(|(&i, _)| i).collect();
        for index in touched {
            let start = index * BLOCK_U64;
            let from = offset.saturating_sub(start) as usize;
            let to = (end - start).min(BLOCK_U64) as usize;
            let Some(block) = self.blocks.get_mut(&index) else { continue };
            // The bytes behind the last one are zeros already.
            let reaches_end = to >= block.bytes.len();
            if reaches_end && from == 0 {
                if let Some(block) = self.blocks.remove(&index) {
                    self.drop_place(block);
                }
            } else if reaches_end {
                self.cut(index, from);
            } else {
                Arc::make_mut(&mut block.bytes)[from..to].fill(0);
            }
        }
    }

    /// Takes the space of `[offset, end)`, so that writing there cannot fail.
    pub(crate) fn reserve(&mut self, offset: u64, end: u64, op: &'static str) -> Result<()> {
        let (first, last) = (offset / BLOCK_U64, end.div_ceil(BLOCK_U64));
        let here: u64 = self.blocks.range(first..last).map(|(_, p)| p.charged as u64).sum();
        let needed = (last - first).saturating_mul(BLOCK_U64).saturating_sub(here);
        self.space.take(needed, op)?;
        self.charged += needed;
        for index in first..last {
            let block =
                self.blocks.entry(index).or_insert_with(|| Block { bytes: Arc::default(), charged: BLOCK });
            block.charged = BLOCK;
        }
        Ok(())
    }

    /// Makes the file at least `end` bytes long.
    pub(crate) fn extend_to(&mut self, end: u64) {
        self.size = self.size.max(end);
    }

    /// The first data at or behind `offset`, which is inside the file.
    pub(crate) fn next_data(&self, offset: u64) -> Option<u64> {
        let first = offset / BLOCK_U64;
        self.blocks.range(first..).find_map(|(&index, block)| {
            let start = index * BLOCK_U64;
            let from = offset.max(start);
            (from < (start + block.bytes.len() as u64).min(self.size)).then_some(from)
        })
    }

    /// The first hole at or behind `offset`, which is inside the file; its end counts as one.
    pub(crate) fn next_hole(&self, offset: u64) -> u64 {
        let mut at = offset;
        while let Some(block) = self.blocks.get(&(at / BLOCK_U64)) {
            let start = at / BLOCK_U64 * BLOCK_U64;
            let end = start + block.bytes.len() as u64;
            if at >= end || end < start + BLOCK_U64 {
                at = at.max(end);
                break;
            }
            at = end;
        }
        at.min(self.size)
    }

    /// The content of `[offset, offset + len)`, to be put elsewhere: where in the range, and the
    /// bytes.
    pub(crate) fn share(&self, offset: u64, len: usize) -> Vec<Shared> {
        extents(offset, len)
            .map(|extent| Shared {
                at: extent.at,
                from: extent.from,
                to: extent.to,
                bytes: self.blocks.get(&extent.index).map(|p| Arc::clone(&p.bytes)).unwrap_or_default(),
            })
            .collect()
    }

    /// Puts a shared extent at `offset`: as it is where a whole block fits, else as a copy.
    pub(crate) fn put_shared(&mut self, shared: &Shared, offset: u64) -> Result<()> {
        let len = shared.to - shared.from;
        if len == BLOCK && offset.is_multiple_of(BLOCK_U64) {
            let index = offset / BLOCK_U64;
            let charged = charge_of(shared.bytes.len());
            self.space.take(charged as u64, "copy range")?;
            self.charged += charged as u64;
            let block = Block { bytes: Arc::clone(&shared.bytes), charged };
            if let Some(old) = self.blocks.insert(index, block) {
                self.drop_place(old);
            }
            self.extend_to(offset + len as u64);
            return Ok(());
        }
        let there = shared.bytes.get(shared.from..shared.to.min(shared.bytes.len())).unwrap_or(&[]);
        let zeros = vec![0; len - there.len()];
        let bufs = [std::io::IoSlice::new(there), std::io::IoSlice::new(&zeros)];
        self.write(&mut Source::new(&bufs), offset, len)
    }
}

/// An extent of a file's data, kept by reference.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Where in the range that was asked for.
    pub(crate) at: usize,
    from: usize,
    to: usize,
    bytes: Arc<Vec<u8>>,
}

impl Shared {
    pub(crate) fn len(&self) -> usize {
        self.to - self.from
    }
}

/// Makes room for `len` bytes without growing by small steps.
fn grow(bytes: &mut Vec<u8>, len: usize) {
    if len > bytes.capacity() {
        let capacity = len.max(bytes.capacity() * 2).min(BLOCK);
        bytes.reserve_exact(capacity - bytes.len());
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for (_, block) in std::mem::take(&mut self.blocks) {
            self.drop_place(block);
        }
    }
}
