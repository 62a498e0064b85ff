//! The dirty pages of one inode.
//!
//! A page is here while it is dirty or being written; once written it is dropped, for the kernel
//! has it in its own cache. Write-back takes references on pages and writes them without any lock;
//! a thread that changes a page meanwhile changes a copy, so that the store never sees a page
//! half-changed.
//!
//! | `dirty` | `writing` | the slot is |
//! |---|---|---|
//! | yes | no | to be written |
//! | no | yes | being written |
//! | yes | yes | being written, and changed since |
//!
//! Neighbouring pages share an entry of the tree: a sequential write would otherwise spend more
//! time in the tree than anywhere but in copying. Entries are small enough that a page on its own
//! costs little more.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::io::page::{PAGE, PAGE_SIZE, Page, Pool};

/// Pages in one call to the store.
const RUN_MAX: usize = 256;
/// Pages in one entry of the tree.
const GROUP_SIZE: usize = 16;
/// [`GROUP_SIZE`], as indexes count.
const GROUP: u64 = 16;

/// The dirty pages of one inode; protected by the inode's state lock.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    /// By index / [`GROUP`]; no group is empty.
    groups: BTreeMap<u64, Box<Group>>,
    held: u64,
    dirty: Epochs,
}

/// Counts of dirty pages, by the epoch since when they are dirty: the oldest first. A sync covers
/// its own and older ones.
#[derive(Debug, Default)]
struct Epochs(Vec<(u64, u64)>);

impl Epochs {
    fn count(&self) -> u64 {
        self.0.iter().map(|(_, pages)| pages).sum()
    }

    fn add(&mut self, epoch: u64) {
        // Nearly always the last.
        let at = self.0.iter().rposition(|(known, _)| *known <= epoch);
        match at {
            Some(at) if self.0[at].0 == epoch => self.0[at].1 += 1,
            at => self.0.insert(at.map_or(0, |at| at + 1), (epoch, 1)),
        }
    }

    fn remove(&mut self, epoch: u64) {
        let Some(at) = self.0.iter().position(|(known, _)| *known == epoch) else { return };
        self.0[at].1 -= 1;
        if self.0[at].1 == 0 {
            self.0.remove(at);
        }
    }
}

#[derive(Debug, Default)]
struct Group([Option<Slot>; GROUP_SIZE]);

#[derive(Debug)]
struct Slot {
    page: Arc<Page>,
    dirty: bool,
    writing: bool,
    /// The epoch since when it is dirty, or was before it was taken out to be written.
    epoch: u64,
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
        self.held
    }

    /// Pages to be written.
    pub(crate) fn dirty(&self) -> u64 {
        self.dirty.count()
    }

    /// Pages to be written that are dirty since `epoch` or before.
    pub(crate) fn dirty_since(&self, epoch: u64) -> u64 {
        self.dirty.0.iter().take_while(|(since, _)| *since <= epoch).map(|(_, pages)| pages).sum()
    }

    /// Whether a page is to be written that is dirty since `epoch` or before.
    pub(crate) fn is_dirty_since(&self, epoch: u64) -> bool {
        self.dirty.0.first().is_some_and(|(oldest, _)| *oldest <= epoch)
    }

    /// Whether page `index` is here.
    pub(crate) fn has(&self, index: u64) -> bool {
        self.groups.get(&(index / GROUP)).is_some_and(|group| group.0[place(index)].is_some())
    }

    /// Writes `data` into page `index` from byte `at` on; says whether that made a page. A page
    /// that is not here is made from `base` (a page read from the store), or from zeros.
    pub(crate) fn write(
        &mut self,
        pool: &Pool,
        index: u64,
        at: usize,
        data: &[u8],
        base: Option<Arc<Page>>,
        epoch: u64,
    ) -> bool {
        let end = at + data.len();
        let group = self.groups.entry(index / GROUP).or_default();
        match &mut group.0[place(index)] {
            Some(slot) => {
                if Arc::get_mut(&mut slot.page).is_none() {
                    let mut copy = pool.page();
                    own(&mut copy).copy_from_slice(slot.page.bytes());
                    slot.page = copy;
                }
                own(&mut slot.page)[at..end].copy_from_slice(data);
                if !slot.dirty {
                    slot.dirty = true;
                    slot.epoch = epoch;
                    self.dirty.add(epoch);
                }
                false
            }
            vacant => {
                let mut page = base.unwrap_or_else(|| {
                    let mut page = pool.page();
                    let bytes = own(&mut page);
                    bytes[..at].fill(0);
                    bytes[end..].fill(0);
                    page
                });
                own(&mut page)[at..end].copy_from_slice(data);
                *vacant = Some(Slot { page, dirty: true, writing: false, epoch });
                self.held += 1;
                self.dirty.add(epoch);
                true
            }
        }
    }

    /// The pages among `first..=last` that are here.
    pub(crate) fn range(&self, first: u64, last: u64) -> impl Iterator<Item = (u64, &Arc<Page>)> {
        let groups = self.groups.range(first / GROUP..=last / GROUP);
        let slots = groups.flat_map(|(number, group)| (number * GROUP..).zip(&group.0));
        slots
            .filter(move |(index, _)| (first..=last).contains(index))
            .filter_map(|(index, slot)| slot.as_ref().map(|slot| (index, &slot.page)))
    }

    /// The next run of pages in `from..=last`, `pages` at most, that are dirty since `epoch` or
    /// before, marked as being written.
    pub(crate) fn take_run(&mut self, from: u64, last: u64, pages: usize, epoch: u64) -> Option<Run> {
        let mut run: Option<Run> = None;
        if from > last {
            // The whole file is written; pages that are dirty again are before `from`.
            return None;
        }
        let groups = self.groups.range_mut(from / GROUP..=last / GROUP);
        let slots = groups.flat_map(|(number, group)| (number * GROUP..).zip(&mut group.0));
        let slots = slots.filter_map(|(index, slot)| slot.as_mut().map(|slot| (index, slot)));
        for (index, slot) in slots.filter(|(index, _)| (from..=last).contains(index)) {
            match &mut run {
                None if !slot.dirty || slot.epoch > epoch => continue,
                None => run = Some(Run { first: index, pages: vec![Arc::clone(&slot.page)] }),
                Some(run) => {
                    let next = run.first + run.pages.len() as u64;
                    let is_full = run.pages.len() == pages.min(RUN_MAX);
                    if !slot.dirty || slot.epoch > epoch || index != next || is_full {
                        break;
                    }
                    run.pages.push(Arc::clone(&slot.page));
                }
            }
            slot.dirty = false;
            slot.writing = true;
            self.dirty.remove(slot.epoch);
        }
        run
    }

    /// Ends the write-back of a run. Written pages that were not changed meanwhile leave the cache;
    /// they are returned so that they are freed outside the lock. Unwritten ones are dirty again.
    #[must_use]
    pub(crate) fn end_run(&mut self, first: u64, pages: usize, written: bool) -> Vec<Arc<Page>> {
        let mut freed = Vec::with_capacity(pages);
        let end = first + pages as u64;
        let mut index = first;
        while index < end {
            let number = index / GROUP;
            let indexes = index..end.min((number + 1) * GROUP);
            index = indexes.end;
            let Some(group) = self.groups.get_mut(&number) else { continue };
            for slot in indexes.map(place) {
                freed.extend(group.end_write(slot, written, &mut self.dirty));
            }
            if group.is_empty() {
                self.groups.remove(&number);
            }
        }
        self.held -= freed.len() as u64;
        freed
    }

    /// Empties the cache, and returns the pages so that they are freed outside the lock.
    pub(crate) fn clear(&mut self) -> Vec<Arc<Page>> {
        std::mem::take(self).groups.into_values().flat_map(|group| group.into_pages()).collect()
    }

    /// Drops the data beyond `size`, and zeroes the rest of the page that it falls into; the caller
    /// keeps write-back away.
    pub(crate) fn truncate(&mut self, pool: &Pool, size: u64) -> Vec<Arc<Page>> {
        let keep = size.div_ceil(PAGE);
        let mut gone = Vec::new();
        let mut beyond = self.groups.split_off(&(keep / GROUP));
        if let Some(mut first) = beyond.remove(&(keep / GROUP)) {
            gone.extend(
                first.0[place(keep)..].iter_mut().filter_map(|slot| slot.take()).map(|slot| slot.page),
            );
            if !first.is_empty() {
                self.groups.insert(keep / GROUP, first);
            }
        }
        gone.extend(beyond.into_values().flat_map(|group| group.into_pages()));
        self.held -= gone.len() as u64;
        let left = self.groups.values().flat_map(|group| group.0.iter().flatten());
        let mut dirty = Epochs::default();
        left.filter(|slot| slot.dirty).for_each(|slot| dirty.add(slot.epoch));
        self.dirty = dirty;
        let at = usize::try_from(size % PAGE).unwrap_or(0);
        if at != 0 && self.has(size / PAGE) {
            // A page that is dirty keeps its epoch; one that is not is being written: its epoch is
            // not known.
            self.write(pool, size / PAGE, at, &[0; PAGE_SIZE][at..], None, 0);
        }
        gone
    }
}

impl Group {
    fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }

    fn into_pages(self) -> impl Iterator<Item = Arc<Page>> {
        self.0.into_iter().flatten().map(|slot| slot.page)
    }

    /// The page of slot `place`, if it leaves the cache now that it is not being written any more.
    fn end_write(&mut self, place: usize, written: bool, dirty: &mut Epochs) -> Option<Arc<Page>> {
        let slot = self.0[place].as_mut()?;
        slot.writing = false;
        if !written && !slot.dirty {
            slot.dirty = true;
            dirty.add(slot.epoch);
        }
        if slot.dirty {
            return None;
        }
        self.0[place].take().map(|slot| slot.page)
    }
}

/// Where in its group a page is.
fn place(index: u64) -> usize {
    // Less than GROUP.
    usize::try_from(index % GROUP).unwrap_or(0)
}

/// The bytes of a page that has no other reference.
fn own(page: &mut Arc<Page>) -> &mut [u8; PAGE_SIZE] {
    Arc::get_mut(page).expect("checked, or just taken from the pool").bytes_mut()
}

#[cfg(test)]
#[path = "cache_tests.rs"]
mod tests;
