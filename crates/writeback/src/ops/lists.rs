//! Inodes on the lists of a device's wbs: how they come there, how their bytes are counted, and how
//! they leave.
//!
//! Lock order: as in `bdi`.

use std::sync::Arc;
use std::time::Duration;

use sync::atomic::Ordering;
use sync::mutant::is_on;

use cgroups::CgroupId;

use crate::device::bdi::Bdi;
use crate::device::inode::{Device, Inode, InodeWb, NONE, OnList, Outcome};
use crate::device::wb::{Entry, Listed, Lists, Wb};

impl<I: Inode> Bdi<I> {
    /// Inodes that are dirty or being written.
    pub(crate) fn unwritten(&self) -> usize {
        // ORDERING: Relaxed: a thread that made an inode dirty before a sync began counted it
        // before that; the count falls only when the inode is clean.
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Counts an inode that became dirty, or clean.
    fn note_unwritten(&self, change: isize) {
        // ORDERING: Relaxed, see `unwritten`.
        self.unwritten.fetch_add(change.cast_unsigned(), Ordering::Relaxed);
    }

    /// Locks the lists of the wb that owns the inode; `None` before it has one.
    fn with_lists<R>(
        &self,
        inode_wb: &InodeWb<I>,
        run: impl FnOnce(&Arc<Wb<I>>, &mut Lists<I>) -> R,
    ) -> Option<R> {
        loop {
            let index = inode_wb.index();
            if index == NONE {
                return None;
            }
            // None there: the inode has moved and its wb was given back.
            let Some(wb) = self.wb_at(index) else { continue };
            if let Some(mut lists) = wb.lists_of(inode_wb, index) {
                let result = run(&wb, &mut lists);
                let is_new = wb.note_lists(&mut lists);
                drop(lists);
                if is_new {
                    self.ensure_flusher();
                }
                return Some(result);
            }
        }
    }

    /// Gives an inode that was never dirty to the wb of `owner`, or of its nearest ancestor that
    /// lives.
    pub fn attach(self: &Arc<Self>, inode: &Arc<I>, owner: CgroupId) {
        let inode_wb = inode.inode_wb();
        while inode_wb.index() == NONE {
            let wb = {
                let known = self.wbs.find(&self.switcher.domain().read(), owner);
                known.unwrap_or_else(|| Arc::clone(&self.target(owner).wb))
            };
            let mut lists = wb.lists();
            if lists.dying {
                continue;
            }
            let mut state = inode_wb.state();
            if inode_wb.index() == NONE {
                inode_wb.attach_to(Arc::downgrade(self) as _);
                // ORDERING: Release, as in a switch: a thread that finds the index finds the wb.
                inode_wb.wb.store(wb.index, Ordering::Release);
                lists.insert(inode_wb, &mut state, Entry::Attached(Arc::downgrade(inode)));
            }
            drop(state);
            wb.note_lists(&mut lists);
        }
    }

    fn next_key(&self, since: Duration) -> (Duration, u64) {
        // ORDERING: Relaxed, only a number.
        (since, self.sequence.fetch_add(1, Ordering::Relaxed))
    }

    /// Lists an inode that has just become dirty; it is `owner`'s if it has none yet. The caller
    /// may hold the lock under which it became dirty.
    pub fn mark_dirty(self: &Arc<Self>, inode: Arc<I>, owner: CgroupId) {
        self.attach(&inode, owner);
        let now = self.options.clock.now();
        let inode_wb = inode.inode_wb();
        self.with_lists(inode_wb, |_, lists| {
            let mut state = inode_wb.state();
            match state.on_list {
                OnList::Io => state.redirtied = Some(now),
                OnList::Attached if !state.freeing => {
                    let clean = lists.remove(inode_wb, &mut state);
                    let listed = Listed { inode: Arc::clone(&inode), failures: 0 };
                    lists.insert(inode_wb, &mut state, Entry::Dirty(self.next_key(now), listed));
                    self.note_unwritten(1);
                    drop(clean);
                }
                // Listed already, or taken off for good.
                _ => {}
            }
        });
    }

    /// Takes an inode off the list of dirty ones; `false` if it is not there, because it is being
    /// written or waits for another attempt. The caller may hold the inode's lock, and has a
    /// reference on it.
    pub fn del_dirty(&self, inode: &Arc<I>) -> bool {
        let inode_wb = inode.inode_wb();
        let removed = self.with_lists(inode_wb, |_, lists| {
            let mut state = inode_wb.state();
            if !matches!(state.on_list, OnList::Dirty(_)) {
                return None;
            }
            let removed = lists.remove(inode_wb, &mut state);
            lists.insert(inode_wb, &mut state, Entry::Attached(Arc::downgrade(inode)));
            self.note_unwritten(-1);
            removed
        });
        removed.flatten().is_some()
    }

    /// After an inode's write-back: lists it again, or puts it among the clean ones.
    pub(crate) fn requeue_inode(self: &Arc<Self>, listed: Listed<I>, outcome: Outcome) {
        let now = self.options.clock.now();
        let pause = self.options.retry_pause * (1 << listed.failures.min(5));
        let inode = Arc::clone(&listed.inode);
        let inode_wb = inode.inode_wb();
        let cleans = self.with_lists(inode_wb, |wb, lists| {
            let mut state = inode_wb.state();
            let redirtied = state.redirtied.take();
            if state.freeing {
                return None;
            }
            lists.remove(inode_wb, &mut state)?;
            let entry = match (outcome, redirtied) {
                (Outcome::Clean, None) => {
                    self.note_unwritten(-1);
                    Entry::Attached(Arc::downgrade(&inode))
                }
                // It is due already; only the limits of its owner hold it.
                (Outcome::Throttled, _) => {
                    Entry::Dirty(self.next_key(now.saturating_sub(self.options.dirty_after)), listed)
                }
                (Outcome::Clean | Outcome::Dirty, since) => {
                    let key = self.next_key(since.unwrap_or(now));
                    Entry::Dirty(key, Listed { failures: 0, ..listed })
                }
                (Outcome::Failed, _) => {
                    let failures = listed.failures + 1;
                    Entry::Retry(self.next_key(now + pause), Listed { failures, ..listed })
                }
            };
            lists.insert(inode_wb, &mut state, entry);
            (lists.dying && outcome == Outcome::Clean).then_some(wb.index)
        });
        if let Some(wb) = cleans.flatten().and_then(|index| self.wb_at(index)) {
            self.clean_up(&wb);
        }
    }

    /// Records how many bytes of an inode are dirty and under writeback now; its wb is charged the
    /// difference. One call at a time for each inode.
    pub fn account(&self, inode: &I, dirty: u64, writeback: u64) {
        let inode_wb = inode.inode_wb();
        let mut section = self.switcher.domain().read();
        // With the flag set the inode may move during this call (P1 of `inode_wb`).
        let _pages =
            (inode_wb.is_switching() && !is_on("account-no-page-lock")).then(|| inode_wb.pages.lock());
        if is_on("account-two-sections") {
            drop(section);
            section = self.switcher.domain().read();
        }
        self.wbs.with(&section, inode_wb.index(), |wb| {
            for (bytes, now, sum) in
                [(&inode_wb.dirty, dirty, &wb.dirty), (&inode_wb.writeback, writeback, &wb.writeback)]
            {
                // ORDERING: Relaxed; P1 of `inode_wb` keeps a transfer away, callers come one at a
                // time.
                let before = bytes.swap(now, Ordering::Relaxed);
                sum.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
            }
            self.recount(wb);
        });
    }

    /// Counts bytes that the cgroup `by` dirtied, to decide which cgroup the inode should belong
    /// to.
    pub fn note_write(&self, inode: &I, by: CgroupId, bytes: u64) {
        let inode_wb = inode.inode_wb();
        let section = self.switcher.domain().read();
        let owner = self.wbs.with(&section, inode_wb.index(), |wb| (wb.owner(), wb.cgroup().is_living()));
        drop(section);
        let Some((owner, is_living)) = owner else { return };
        // Bytes of a removed cgroup do not count, not even the owner's: it cannot win what it
        // cannot have.
        if !(by == owner && is_living) && self.switcher.cgroups().get(by).is_none() {
            return;
        }
        let mut state = inode_wb.state();
        let begun = state.foreign.begin(owner);
        state.round.get_or_insert(begun).count(by, bytes);
    }

    /// The owner of the inode.
    pub fn owner_of(&self, inode: &I) -> Option<CgroupId> {
        self.wbs.with(&self.switcher.domain().read(), inode.inode_wb().index(), |wb| wb.owner())
    }

    /// The data counted since the last call was written back: `bytes` in the time `took`. Begins a
    /// switch if the inode should belong to another cgroup.
    pub fn end_round(self: &Arc<Self>, inode: &Arc<I>, bytes: u64, took: Duration) {
        let inode_wb = inode.inode_wb();
        let Some(wb) = self.wb_at(inode_wb.index()) else { return };
        if bytes > 0 {
            wb.note_written(bytes, took);
        }
        let winner = {
            let mut state = inode_wb.state();
            let round = state.round.take();
            round.and_then(|round| state.foreign.end(&round, wb.bandwidth()))
        };
        let cgroups = self.switcher.cgroups();
        // The number was used again, or the removal was reported too early: the living cgroup has a
        // wb of its own.
        let again = || (!wb.cgroup().is_living() && cgroups.get(wb.owner()).is_some()).then_some(wb.owner());
        if let Some(owner) = winner.or_else(again) {
            self.switch_to(inode, owner);
        } else if !wb.cgroup().is_living() && inode_wb.bytes() == (0, 0) {
            self.switch_to_ancestor(inode, &wb);
        }
    }
}

impl<I: Inode> Device<I> for Bdi<I> {
    /// Its wb goes with the last inode, if its cgroup was removed: no other thread comes back to
    /// check.
    fn detach(&self, inode_wb: &InodeWb<I>) {
        let left = self.with_lists(inode_wb, |wb, lists| {
            for (bytes, sum) in [(&inode_wb.dirty, &wb.dirty), (&inode_wb.writeback, &wb.writeback)] {
                // ORDERING: Relaxed, no other thread has the inode.
                sum.fetch_sub(bytes.swap(0, Ordering::Relaxed), Ordering::Relaxed);
            }
            self.recount(wb);
            let entry = lists.remove(inode_wb, &mut inode_wb.state());
            (entry, lists.is_abandoned().then(|| Arc::clone(wb)))
        });
        let Some((entry, left)) = left else { return };
        drop(entry);
        if let Some(wb) = left {
            self.wbs.wb_put(&wb);
        }
    }
}
