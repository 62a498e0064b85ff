//! Pages and where they come from.
//!
//! A page exists only under a [`Permit`] of the volume's budget, which is the hard bound on memory. Buffers
//! are reused: memory that is touched for the first time costs several times a copy.

use std::sync::Arc;

use sync::Mutex;
use writeback::Permit;

/// Bytes in a page.
pub(crate) const PAGE_SIZE: usize = 4096;

/// Bytes in a page, as file offsets count.
pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

type Buffer = Box<[u8; PAGE_SIZE]>;

/// One page of file data.
#[derive(Debug)]
pub(crate) struct Page {
    data: Option<Buffer>,
    pool: Arc<Pool>,
    _permit: Permit,
}

/// Buffers that wait to be used again.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    // protected by: this lock, a leaf. Never longer than the budget's limit.
    free: Mutex<Vec<Buffer>>,
}

impl Pool {
    /// A page with arbitrary old content, which the caller overwrites or clears.
    pub(crate) fn page(self: &Arc<Self>, permit: Permit) -> Page {
        let reused = self.free.lock().pop();
        let data = reused.unwrap_or_else(|| Box::new([0; PAGE_SIZE]));
        Page { data: Some(data), pool: Arc::clone(self), _permit: permit }
    }
}

impl Page {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8; PAGE_SIZE] {
        self.data.as_ref().expect("present until drop")
    }

    /// The bytes, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        self.data.as_mut().expect("present until drop")
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        if let Some(buffer) = self.data.take() {
            self.pool.free.lock().push(buffer);
        }
    }
}
