//! How much memory a store may take, and memory to use again.

use std::sync::Arc;

use sync::Mutex;
use sync::atomic::{AtomicU64, Ordering};

use crate::{Error, ErrorKind, Result};

/// Bytes of a full block.
pub(crate) const BLOCK: usize = 64 * 1024;
/// Bytes of freed blocks that are kept: the first touch of fresh memory costs several times a copy.
const POOL_BYTES_MAX: usize = 64 << 20;

/// A store's memory.
///
/// `used` is atomic (see its operations); `pool` is protected by its lock, a leaf.
#[derive(Debug)]
pub(crate) struct Space {
    capacity: u64,
    used: AtomicU64,
    pool: Mutex<Vec<Vec<u8>>>,
}

impl Space {
    pub(crate) fn new(capacity: u64) -> Self {
        Self { capacity, used: AtomicU64::new(0), pool: Mutex::new(Vec::new()) }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    pub(crate) fn used(&self) -> u64 {
        // ORDERING: Relaxed. A figure of the moment; the bound is kept by `take`'s own update.
        self.used.load(Ordering::Relaxed)
    }

    /// Takes `bytes`, or says that there is no room.
    pub(crate) fn take(&self, bytes: u64, op: &'static str) -> Result<()> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.capacity);
        // ORDERING: Relaxed. The counter alone keeps the bound; no memory is published through it.
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits) {
            Ok(_) => Ok(()),
            Err(_) => Err(Error::new(ErrorKind::NoSpace, op)),
        }
    }

    /// Gives `bytes` back.
    pub(crate) fn give(&self, bytes: u64) {
        // ORDERING: Relaxed, as in `take`.
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// An empty buffer for a block that will soon hold `len` bytes.
    pub(crate) fn buffer(&self, len: usize) -> Vec<u8> {
        if len > BLOCK / 2
            && let Some(buf) = self.pool.lock().pop()
        {
            return buf;
        }
        Vec::with_capacity(if len > BLOCK / 2 { BLOCK } else { len })
    }

    /// Keeps the memory of a block that has no other owner.
    pub(crate) fn recycle(&self, bytes: Arc<Vec<u8>>) {
        let Ok(mut buf) = Arc::try_unwrap(bytes) else { return };
        if buf.capacity() != BLOCK {
            return;
        }
        buf.clear();
        let mut pool = self.pool.lock();
        if pool.len() < POOL_BYTES_MAX / BLOCK {
            pool.push(buf);
        } else {
            drop(pool);
            drop(buf);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_its_bound_and_counts_back() {
        let space = Space::new(100);
        space.take(60, "t").unwrap();
        assert_eq!(space.take(41, "t").unwrap_err().kind(), ErrorKind::NoSpace);
        assert_eq!(space.take(u64::MAX, "t").unwrap_err().kind(), ErrorKind::NoSpace);
        space.take(40, "t").unwrap();
        space.give(100);
        assert_eq!(space.used(), 0);
    }

    #[test]
    fn memory_of_full_blocks_is_used_again_and_comes_back_empty() {
        let space = Space::new(1 << 20);
        let mut buf = space.buffer(BLOCK);
        buf.resize(BLOCK, 7);
        let at = buf.as_ptr();
        space.recycle(Arc::new(buf));
        let again = space.buffer(BLOCK);
        assert_eq!((again.as_ptr(), again.len()), (at, 0));
    }
}
