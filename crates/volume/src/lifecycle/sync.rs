//! Syncs of a volume: what is dirty is written, then the store makes it durable.

use std::sync::Arc;

use sync::mutant::is_on;
use sync::{Mutex, thread};
use throttle::CgroupPath;
use writeback::SyncPolicy;

use crate::cancel::Cancel;
use crate::inode::Inode;
use crate::volume::Volume;
use crate::{Caller, Ctx, Error, Result};

/// Threads that write a volume beside its flushers: the round trips of a distant store are not
/// waited for file by file.
const DRAINERS: usize = 8;

impl Volume {
    /// Makes durable what was dirty when the call began, and what the store had not made durable
    /// yet: all of it, or with isolation what the caller's cgroup owns and changed. Waits for the
    /// limits that the caller is under, and no others.
    ///
    /// # Errors
    /// The first failure; every file's own is reported to its open files as well.
    /// [`Error::Interrupted`] when the wait was cancelled.
    pub fn sync(&self, ctx: &Ctx<'_>) -> Result<()> {
        (ctx.before_wait)();
        self.sync_as(&self.core.options.tenants.path_of(&ctx.caller), Some(ctx.cancel))
    }

    /// Syncs for a process of the host, without a request.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_for(&self, pid: u32) -> Result<()> {
        let caller = Caller { pid, ..Caller::default() };
        self.sync_as(&self.core.options.tenants.path_of(&caller), None)
    }

    /// Syncs for a cgroup.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_by(&self, who: &CgroupPath, cancel: &Cancel) -> Result<()> {
        self.sync_as(who, Some(cancel))
    }

    /// Syncs all data, at full speed: bytes ahead of a limit are owed.
    ///
    /// # Errors
    /// As [`sync`](Self::sync).
    pub fn sync_all(&self) -> Result<()> {
        let failed = self.write_all();
        self.end_sync(failed)
    }

    /// The snapshots of its store; `None`: it keeps none. One that is made shows what a sync before
    /// has written.
    #[must_use]
    pub fn snapshots(&self) -> Option<&dyn store::Snapshots> {
        self.core.store.snapshots()
    }

    fn sync_as(&self, who: &CgroupPath, cancel: Option<&Cancel>) -> Result<()> {
        let core = &self.core;
        let scope = core.bdi.throttle().isolation_of(who);
        let policy = if scope.is_some() { SyncPolicy::Isolated } else { core.options.sync_policy };
        let syncing = core.bdi.begin_sync(who, policy);
        let write = |inode: &Arc<Inode>| inode.write_for_sync(&syncing.throttled_write(inode), cancel);
        let failed = self.write_each(syncing.inodes(), write);
        if core.is_aborted() {
            return Err(Error::Released);
        }
        if cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Error::Interrupted);
        }
        if policy == SyncPolicy::Isolated
            && syncing.inodes().is_empty()
            && !self.may_have_changed(scope.as_ref().unwrap_or(who))
        {
            return Ok(());
        }
        // The store's own sync is under no limit.
        drop(syncing);
        self.end_sync(failed)
    }

    /// Whether something that a cgroup or one below it owns may not be durable: dirty data, data on
    /// its way to the store, and changes that the store has not made durable yet. A change of
    /// unknown owner counts for every cgroup. Where an isolated cgroup above covers this cgroup's
    /// syncs, that one is meant. The owners of changes from before
    /// [`note_owners`](Self::note_owners) are not known.
    ///
    /// Never asks the store, and takes no lock that is held while it is asked.
    #[must_use]
    pub fn has_unsynced_of(&self, who: &CgroupPath) -> bool {
        let isolated = self.core.bdi.throttle().isolation_of(who);
        let scope = isolated.as_ref().unwrap_or(who);
        if is_on("undurable-asked-first") {
            return self.may_have_changed(scope) || self.core.bdi.has_unwritten_of(scope);
        }
        // In this order: written data is noted as changed before it is taken off the dirty data.
        self.core.bdi.has_unwritten_of(scope) || self.may_have_changed(scope)
    }

    /// Whether the store has something that a cgroup or one below it changed and that is not
    /// durable yet.
    fn may_have_changed(&self, who: &CgroupPath) -> bool {
        // The owner of a change is not known any more when its cgroup was removed since.
        let path = |owner| self.core.options.tenants.path_of_living(owner);
        self.core.unsynced.is_any(|owner| path(owner).is_none_or(|path| path.is_within(who)))
    }

    fn end_sync(&self, failed: Vec<Error>) -> Result<()> {
        let epoch = self.core.begin_sync();
        self.core.settle_inherited()?;
        self.core.store.sync()?;
        self.core.unsynced.end(epoch);
        match failed.into_iter().next() {
            Some(Error::Store(error)) => Err(Error::Writeback(error.kind())),
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Writes what is dirty now, at once; returns the errors.
    pub(crate) fn write_all(&self) -> Vec<Error> {
        self.write_each(&self.dirty_inodes(), |inode| inode.write_for_sync(&inode.unthrottled_write(), None))
    }

    /// Writes these inodes, with several threads; returns the errors.
    fn write_each(
        &self,
        inodes: &[Arc<Inode>],
        write: impl Fn(&Arc<Inode>) -> Result<()> + Sync,
    ) -> Vec<Error> {
        let queue = Mutex::new(inodes.iter());
        let failed = Mutex::new(Vec::new());
        let work = || {
            let _of_the_volume = self.core.span.enter();
            loop {
                let next = queue.lock().next();
                let Some(inode) = next else { return };
                if self.core.is_aborted() {
                    return;
                }
                if let Err(error) = write(inode) {
                    failed.lock().push(error);
                }
            }
        };
        let others = DRAINERS.min(inodes.len()).saturating_sub(1);
        thread::run_scoped(others, 256 * 1024, work);
        failed.into_inner()
    }

    pub(crate) fn dirty_inodes(&self) -> Vec<Arc<Inode>> {
        self.core.bdi.snapshot()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[path = "sync_tests.rs"]
mod tests;
