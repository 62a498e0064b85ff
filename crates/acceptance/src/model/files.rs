//! The model's data: open files, their bytes, holes and sizes.

use super::op::{Allocate, How, P, fill_bytes};
use super::tree::{Handle, Id, Kind, Model, err};
use super::{Op, Outcome, Value};

impl Model {
    /// Applies an operation on an open file, or one that opens it.
    pub(super) fn apply_to_file(&mut self, op: &Op) -> Option<Outcome> {
        match *op {
            Op::Open { slot, path, how } => self.open(slot, path, how),
            Op::Tmpfile { slot, dir } => {
                let opened = self.add_unnamed(dir).map(|id| {
                    self.slots[slot] = Some(Handle { id, append: false, direct: false });
                    Value::Done
                });
                Some(opened)
            }
            Op::Close { slot } => {
                self.slots[slot].take()?;
                Some(Ok(Value::Done))
            }
            Op::Read { slot, at, len } => {
                let (at, len) = aligned(self.slots[slot]?, at, len);
                Some(Ok(Value::Bytes(self.bytes(self.slots[slot]?.id, at, len))))
            }
            Op::MapRead { slot, at, len } => {
                let id = self.slots[slot]?.id;
                // Beyond the file's last page there is SIGBUS, not an error.
                let bytes = self.bytes(id, at, len);
                if bytes.is_empty() { None } else { Some(Ok(Value::Bytes(bytes))) }
            }
            Op::Write { slot, at, len, fill } => {
                let handle = self.slots[slot]?;
                let (at, len) = aligned(handle, at, len);
                if handle.direct && handle.append {
                    // Appending at an unaligned end is refused by some file systems, and not by
                    // others.
                    return None;
                }
                let at = if handle.append { self.data(handle.id).len() as u64 } else { at };
                self.store(handle.id, at, &fill_bytes(fill, len));
                Some(Ok(Value::Count(len as u64)))
            }
            Op::MapWrite { slot, at, len, fill } => {
                let id = self.slots[slot]?.id;
                let len = self.bytes(id, at, len).len();
                if len == 0 {
                    return None;
                }
                self.store(id, at, &fill_bytes(fill, len));
                Some(Ok(Value::Done))
            }
            Op::FTruncate { slot, len } => {
                self.resize(self.slots[slot]?.id, len);
                Some(Ok(Value::Done))
            }
            Op::Allocate { slot, how, at, len } => Some(self.allocate(self.slots[slot]?.id, how, at, len)),
            Op::Copy { from, at, to, to_at, len } => self.copy((from, at), (to, to_at), len),
            Op::SeekHole { slot, .. } | Op::Fsync { slot, .. } => {
                self.slots[slot]?;
                Some(Ok(Value::Done))
            }
            _ => unreachable!("{op:?} is for the tree"),
        }
    }

    pub(super) fn data(&self, id: Id) -> &Vec<u8> {
        match &self.node(id).kind {
            Kind::File(data) => data,
            other => panic!("node {id} is no file but {other:?}"),
        }
    }

    /// The bytes of a file, to be changed; its modification time is not what was set any more.
    fn data_mut(&mut self, id: Id) -> &mut Vec<u8> {
        let node = self.nodes.get_mut(&id).expect("an open file");
        node.mtime = None;
        match &mut node.kind {
            Kind::File(data) => data,
            other => panic!("node {id} is no file but {other:?}"),
        }
    }

    pub(super) fn resize(&mut self, id: Id, len: u64) {
        self.data_mut(id).resize(size(len), 0);
    }

    fn open(&mut self, slot: usize, path: P, how: How) -> Option<Outcome> {
        let found = self.find_or_make(path, 0o644, how.create.then_some(how.exclusive));
        let (id, is_new) = match found {
            Ok(found) => found,
            Err(e) => return Some(Err(e)),
        };
        match self.node(id).kind {
            Kind::File(_) => {}
            Kind::Dir(_) => return Some(err(libc::EISDIR)),
            Kind::Symlink(_) => return Some(err(libc::ELOOP)),
            Kind::Fifo => return None,
        }
        if how.truncate && !is_new {
            self.resize(id, 0);
        }
        self.slots[slot] = Some(Handle { id, append: how.append, direct: how.direct });
        Some(Ok(Value::Done))
    }

    fn bytes(&self, id: Id, at: u64, len: usize) -> Vec<u8> {
        let data = self.data(id);
        let at = size(at).min(data.len());
        data[at..data.len().min(at + len)].to_vec()
    }

    fn store(&mut self, id: Id, at: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let (data, at) = (self.data_mut(id), size(at));
        if data.len() < at + bytes.len() {
            data.resize(at + bytes.len(), 0);
        }
        data[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn allocate(&mut self, id: Id, how: Allocate, at: u64, len: u64) -> Outcome {
        if len == 0 {
            return err(libc::EINVAL);
        }
        let data = self.data_mut(id);
        let (at, end) = (size(at), size(at + len));
        if matches!(how, Allocate::Extend | Allocate::ZeroRange) && data.len() < end {
            data.resize(end, 0);
        }
        if matches!(how, Allocate::PunchHole | Allocate::ZeroRange | Allocate::ZeroRangeKeepSize) {
            let (at, end) = (at.min(data.len()), end.min(data.len()));
            data[at..end].fill(0);
        }
        Ok(Value::Done)
    }

    fn copy(&mut self, from: (usize, u64), to: (usize, u64), len: usize) -> Option<Outcome> {
        let (source, target) = (self.slots[from.0]?, self.slots[to.0]?);
        if source.direct || target.direct {
            // Alignment rules differ between file systems.
            return None;
        }
        if target.append {
            return Some(err(libc::EBADF));
        }
        let bytes = self.bytes(source.id, from.1, len);
        let n = bytes.len() as u64;
        if source.id == target.id && to.1 + n > from.1 && to.1 < from.1 + n {
            return Some(err(libc::EINVAL));
        }
        self.store(target.id, to.1, &bytes);
        Some(Ok(Value::Count(n)))
    }
}

/// O_DIRECT takes whole blocks at whole blocks.
pub(super) fn aligned(handle: Handle, at: u64, len: usize) -> (u64, usize) {
    if handle.direct { (at / 4096 * 4096, len.div_ceil(4096) * 4096) } else { (at, len) }
}

pub(super) fn size(n: u64) -> usize {
    usize::try_from(n).expect("files of the model are small")
}
