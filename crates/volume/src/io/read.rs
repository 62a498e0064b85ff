//! Reading file data: from the cache where it is newer than the store's.

use std::sync::Arc;

use crate::handles::FileHandle;
use crate::inode::Inode;
use crate::io::page::{PAGE, Page};
use crate::{Ctx, HandleId, Result, Volume};

impl Volume {
    /// Reads at `offset` into `buf`; says how many bytes, fewer than asked only at the end of the
    /// file.
    ///
    /// # Errors
    /// The store's, and [`Error::NoHandle`](crate::Error::NoHandle).
    pub fn read(&self, ctx: &Ctx<'_>, handle: HandleId, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let file = self.readable(handle)?;
        file.inode.read(ctx, offset, buf)
    }

    fn readable(&self, handle: HandleId) -> Result<Arc<FileHandle>> {
        // The kernel reads through any handle to fill the rest of a page that is partly written.
        self.files.get(handle)
    }
}

impl Inode {
    pub(crate) fn read(&self, ctx: &Ctx<'_>, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if buf.is_empty() {
            return Ok(0);
        }
        let last = (offset + buf.len() as u64 - 1) / PAGE;
        let (size, pages) = {
            let state = self.state();
            match state.overlay {
                None => (None, Vec::new()),
                Some(overlay) => {
                    let pages = state.cache.range(offset / PAGE, last);
                    (Some(overlay.size), pages.map(|(index, page)| (index, Arc::clone(page))).collect())
                }
            }
        };
        let Some(size) = size else {
            return self.read_store(ctx, buf, offset);
        };
        let wanted = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(buf.len());
        let buf = &mut buf[..wanted];
        if wanted == 0 {
            return Ok(0);
        }
        let covered = pages.len() as u64 == (offset + wanted as u64 - 1) / PAGE - offset / PAGE + 1;
        if !covered {
            let got = self.read_store(ctx, buf, offset)?;
            buf[got..].fill(0);
        }
        for (index, page) in &pages {
            copy_page(page, *index, offset, buf);
        }
        Ok(wanted)
    }
}

/// Copies the part of page `index` that lies in `buf`, which begins at `offset` of the file.
fn copy_page(page: &Page, index: u64, offset: u64, buf: &mut [u8]) {
    let start = index * PAGE;
    let from = offset.max(start);
    let until = (offset + buf.len() as u64).min(start + PAGE);
    if from >= until {
        return;
    }
    let place = |at: u64, base: u64| usize::try_from(at - base).unwrap_or(usize::MAX);
    let source = &page.bytes()[place(from, start)..place(until, start)];
    buf[place(from, offset)..place(until, offset)].copy_from_slice(source);
}
