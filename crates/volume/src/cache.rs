//! The dirty pages of one inode.
//!
//! A page is here while it is dirty or being written; once written it is dropped, for the kernel has it in
//! its own cache. Write-back takes references on pages and writes them without any lock; whoever changes a
//! page meanwhile changes a copy, so that the store never sees a page half-changed.
//!
//! | `dirty` | `writing` | the slot is |
//! |---|---|---|
//! | yes | no | to be written |
//! | no | yes | being written |
//! | yes | yes | being written, and changed since |

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

use crate::page::{PAGE, PAGE_SIZE, Page, Pool};

/// Pages in one call to the store.
const RUN_MAX: usize = 256;

/// The dirty pages of one inode; protected by the inode's state lock.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    slots: BTreeMap<u64, Slot>,
    dirty: u64,
}

#[derive(Debug)]
struct Slot {
    page: Arc<Page>,
    dirty: bool,
    writing: bool,
}

/// Neighbouring pages on their way to the store.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) first: u64,
    pub(crate) pages: Vec<Arc<Page>>,
}

impl Cache {
    /// Pages held.
    pub(crate) fn held(&self) -> u64 {
        self.slots.len() as u64
    }

    /// Pages to be written.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Whether page `index` is here.
    pub(crate) fn has(&self, index: u64) -> bool {
        self.slots.contains_key(&index)
    }

    /// Writes `data` into page `index` from byte `at` on; says whether that made a page. A page that is not
    /// here is made from `base` (a page read from the store), or from zeros.
    pub(crate) fn write(
        &mut self,
        pool: &Pool,
        index: u64,
        at: usize,
        data: &[u8],
        base: Option<Arc<Page>>,
    ) -> bool {
        let end = at + data.len();
        match self.slots.entry(index) {
            Entry::Occupied(mut slot) => {
                let slot = slot.get_mut();
                if Arc::get_mut(&mut slot.page).is_none() {
                    let mut copy = pool.page();
                    own(&mut copy).copy_from_slice(slot.page.bytes());
                    slot.page = copy;
                }
                own(&mut slot.page)[at..end].copy_from_slice(data);
                self.dirty += u64::from(!slot.dirty);
                slot.dirty = true;
                false
            }
            Entry::Vacant(slot) => {
                let mut page = base.unwrap_or_else(|| {
                    let mut page = pool.page();
                    let bytes = own(&mut page);
                    bytes[..at].fill(0);
                    bytes[end..].fill(0);
                    page
                });
                own(&mut page)[at..end].copy_from_slice(data);
                slot.insert(Slot { page, dirty: true, writing: false });
                self.dirty += 1;
                true
            }
        }
    }

    /// The pages among `first..=last` that are here.
    pub(crate) fn range(&self, first: u64, last: u64) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        self.slots.range(first..=last).map(|(index, slot)| (*index, &slot.page))
    }

    /// The next run of dirty pages in `from..=last`, marked as being written.
    pub(crate) fn take_run(&mut self, from: u64, last: u64) -> Option<Run> {
        let mut run: Option<Run> = None;
        if from > last {
            // The whole file is written; what is dirty again is so before `from`.
            return None;
        }
        for (&index, slot) in self.slots.range_mut(from..=last) {
            match &mut run {
                None if !slot.dirty => continue,
                None => run = Some(Run { first: index, pages: vec![Arc::clone(&slot.page)] }),
                Some(run) => {
                    let next = run.first + run.pages.len() as u64;
                    if !slot.dirty || index != next || run.pages.len() == RUN_MAX {
                        break;
                    }
                    run.pages.push(Arc::clone(&slot.page));
                }
            }
            slot.dirty = false;
            slot.writing = true;
            self.dirty -= 1;
        }
        run
    }

    /// Ends the write-back of a run. Written pages that were not changed meanwhile leave the cache; they are
    /// returned so that they are freed outside the lock. Unwritten ones are dirty again.
    #[must_use]
    pub(crate) fn end_run(&mut self, first: u64, pages: usize, written: bool) -> Vec<Arc<Page>> {
        let mut freed = Vec::with_capacity(pages);
        for index in first..first + pages as u64 {
            let Some(slot) = self.slots.get_mut(&index) else { continue };
            slot.writing = false;
            if !written && !slot.dirty {
                slot.dirty = true;
                self.dirty += 1;
            }
            if !slot.dirty
                && let Some(slot) = self.slots.remove(&index)
            {
                freed.push(slot.page);
            }
        }
        freed
    }

    /// Empties the cache, and returns the pages so that they are freed outside the lock.
    pub(crate) fn clear(&mut self) -> Vec<Arc<Page>> {
        self.dirty = 0;
        std::mem::take(&mut self.slots).into_values().map(|slot| slot.page).collect()
    }

    /// Drops what is beyond `size`, and zeroes the rest of the page that it falls into; the caller keeps
    /// write-back away.
    pub(crate) fn truncate(&mut self, pool: &Pool, size: u64) -> Vec<Arc<Page>> {
        let keep = size.div_ceil(PAGE);
        let gone: Vec<Arc<Page>> = self.slots.split_off(&keep).into_values().map(|slot| slot.page).collect();
        self.dirty = self.slots.values().filter(|slot| slot.dirty).count() as u64;
        let at = usize::try_from(size % PAGE).unwrap_or(0);
        if at != 0 && self.has(size / PAGE) {
            self.write(pool, size / PAGE, at, &[0; PAGE_SIZE][at..], None);
        }
        gone
    }
}

/// The bytes of a page that nobody else has.
fn own(page: &mut Arc<Page>) -> &mut [u8; PAGE_SIZE] {
    Arc::get_mut(page).expect("checked, or just taken from the pool").bytes_mut()
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
