//! Memory for blocks that are read, used again.
//!
//! The memory that an allocator returns for each block anew is given back to the host when the block
//! goes, and made again, page by page, for the next: to fill it takes three times as long as to copy
//! the bytes alone. So a block that goes leaves its memory here, for all volumes of the process:
//! [`FREE_MAX`] at most, until nobody has read for a while ([`release`]).

use std::sync::LazyLock;

use bytes::Bytes;
use parking_lot::Mutex;

/// What a buffer holds that is used again: a block.
pub(crate) const BUFFER_LEN: usize = 256 << 10;
/// Buffers of [`BUFFER_LEN`] that are kept: 16 MiB.
const FREE_MAX: usize = 64;

/// A leaf: it is held for a push or a pop.
static FREE: LazyLock<Mutex<Vec<Vec<u8>>>> = LazyLock::new(Mutex::default);

/// Memory that is filled from the front, and then does not change any more.
#[derive(Debug)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    /// For `len` bytes.
    pub(crate) fn new(len: usize) -> Self {
        let used_before = if len == BUFFER_LEN { FREE.lock().pop() } else { None };
        Self(used_before.unwrap_or_else(|| Vec::with_capacity(len)))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn extend_from_slice(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// What was filled.
    pub(crate) fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut memory = std::mem::take(&mut self.0);
        if memory.capacity() != BUFFER_LEN {
            return;
        }
        memory.clear();
        let mut free = FREE.lock();
        if free.len() < FREE_MAX {
            free.push(memory);
        }
    }
}

/// Gives the memory back that is not in use.
pub(crate) fn release() {
    let free = std::mem::take(&mut *FREE.lock());
    drop(free);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_that_is_used_again_has_nothing_of_before() {
        for byte in 1..=100 {
            let mut buffer = Buffer::new(BUFFER_LEN);
            assert_eq!((buffer.len(), buffer.0.capacity()), (0, BUFFER_LEN));
            buffer.extend_from_slice(&[byte; 3]);
            let bytes = buffer.freeze();
            let part = bytes.slice(1..);
            drop(bytes);
            assert_eq!(part, [byte; 2][..], "a part keeps it");
        }
        let all: Vec<Buffer> = (0..2 * FREE_MAX).map(|_| Buffer::new(BUFFER_LEN)).collect();
        drop(all);
        assert!(FREE.lock().len() <= FREE_MAX);
    }
}
