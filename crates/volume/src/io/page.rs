//! Pages and where they come from.
//!
//! Pages are reused: memory that is touched for the first time costs several times a copy. The
//! budget bounds their number: an inode holds a permit for the pages in its cache. Beyond that
//! exist only pages that a call is using at this moment: a read's, a store call's, the copy that
//! one of them forces.

use std::sync::Arc;

use sync::Mutex;

/// Bytes in a page.
pub(crate) const PAGE_SIZE: usize = 4096;

/// Bytes in a page, as file offsets count.
pub(crate) const PAGE: u64 = PAGE_SIZE as u64;

/// One page of file data. Held in place by its `Arc`, so that the count of its owners lies beside
/// the bytes: reading one fetches the other.
#[derive(Debug)]
pub(crate) struct Page([u8; PAGE_SIZE]);

/// Pages that wait to be used again.
#[derive(Debug)]
pub(crate) struct Pool {
    // protected by: this lock, a leaf. Each page in it has no other owner.
    free: Mutex<Vec<Arc<Page>>>,
    spare_max: usize,
}

impl Pool {
    /// A pool that keeps up to `spare_max` pages.
    pub(crate) fn new(spare_max: usize) -> Arc<Self> {
        Arc::new(Self { free: Mutex::new(Vec::new()), spare_max })
    }

    /// A page with arbitrary old content, which the caller overwrites, and to which there is no
    /// other reference.
    pub(crate) fn page(&self) -> Arc<Page> {
        let reused = self.free.lock().pop();
        reused.unwrap_or_else(|| Arc::new(Page([0; PAGE_SIZE])))
    }

    /// Takes pages back; those that still have another user are freed when that ends.
    pub(crate) fn recycle(&self, pages: Vec<Arc<Page>>) {
        let mut free = self.free.lock();
        let room = self.spare_max.saturating_sub(free.len());
        let unused =
            pages.into_iter().filter_map(|mut page| Arc::get_mut(&mut page).is_some().then_some(page));
        free.extend(unused.take(room));
    }
}

impl Page {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8; PAGE_SIZE] {
        &self.0
    }

    /// The bytes, to be changed.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8; PAGE_SIZE] {
        &mut self.0
    }
}
