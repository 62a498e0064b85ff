//! Open files and directories of a memory store.

use std::io::IoSlice;
use std::sync::Arc;

use super::blocks::Source;
use super::node::Node;
use super::tree::Tree;
use crate::{AllocateMode, Dir, DirEntry, Error, ErrorKind, File, Result, Seek};

/// Entries that are copied out of the tree at a time.
const BATCH: usize = 256;

/// An open file.
#[derive(Debug)]
pub(crate) struct MemFile(pub(crate) Arc<Node>);

fn end_of(offset: u64, len: u64, op: &'static str) -> Result<u64> {
    match offset.checked_add(len) {
        Some(end) if i64::try_from(end).is_ok() => Ok(end),
        _ => Err(Error::new(ErrorKind::FileTooBig, op)),
    }
}

impl File for MemFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        end_of(offset, 0, "read")?;
        let n = self.0.data.read().read(buf, offset);
        self.0.note_read();
        Ok(n)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        let len: usize = bufs.iter().map(|b| b.len()).sum();
        end_of(offset, len as u64, "write")?;
        if len == 0 {
            return Ok(());
        }
        let mut data = self.0.data.write();
        let result = data.write(&mut Source::new(bufs), offset, len);
        self.0.note_write(&data);
        result
    }

    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        let op = "allocate";
        if len == 0 {
            return Err(Error::new(ErrorKind::Invalid, op));
        }
        let keeps_size = mode.contains(AllocateMode::KEEP_SIZE);
        let kind = mode - AllocateMode::KEEP_SIZE;
        let punches = kind == AllocateMode::PUNCH_HOLE && keeps_size;
        if !(kind.is_empty() || kind == AllocateMode::ZERO_RANGE || punches) {
            return Err(Error::new(ErrorKind::Unsupported, op));
        }
        let end = end_of(offset, len, op)?;
        let mut data = self.0.data.write();
        if punches {
            data.punch(offset, end);
        } else {
            data.reserve(offset, end, op)?;
            if kind == AllocateMode::ZERO_RANGE {
                data.punch(offset, end);
                data.reserve(offset, end, op)?;
            }
            if !keeps_size {
                data.extend_to(end);
            }
        }
        self.0.note_write(&data);
        Ok(())
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        let none = || Error::new(ErrorKind::NoSuchAddress, "seek");
        let data = self.0.data.read();
        if offset >= data.size() {
            return Err(none());
        }
        match what {
            Seek::Data => data.next_data(offset).ok_or_else(none),
            Seek::Hole => Ok(data.next_hole(offset)),
        }
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        Ok(())
    }
}

/// An open directory.
#[derive(Debug)]
pub(crate) struct MemDir {
    pub(crate) tree: Arc<Tree>,
    pub(crate) node: Arc<Node>,
}

impl Dir for MemDir {
    /// Entries are copied out in batches: the sink may call the store.
    fn list(&self, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let mut offset = offset;
        loop {
            let batch = self.tree.entries(&self.node, offset, BATCH);
            if batch.is_empty() {
                return Ok(());
            }
            for entry in batch {
                offset = entry.next;
                if !sink(entry) {
                    return Ok(());
                }
            }
        }
    }
}
