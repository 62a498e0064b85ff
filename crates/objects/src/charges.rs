//! What an inode counts for quotas, and what is charged for it: see [`crate::quotas`].

use std::sync::Arc;
use std::sync::atomic::Ordering;

use store::Result;
use sync::mutant::is_on;

use crate::engine::Batch;
use crate::node::State;
use crate::quotas::{INODE, PromisedInode, Quotas, VOLUME, bytes};
use crate::rows::{self, InodeRow, Kind, Totals};
use crate::tree::Tree;

impl State {
    /// That of a new inode, which has no row yet.
    pub(crate) fn made(row: InodeRow, project: Option<u64>) -> Self {
        Self { counted: 0, charge: 0, ..Self::new(row, project, Arc::default()) }
    }

    /// The project that it is in.
    pub(crate) fn project(&self) -> u64 {
        self.project.unwrap_or(VOLUME)
    }

    /// What of a size counts.
    pub(crate) fn counts(&self, size: u64) -> u64 {
        if self.row.kind == Kind::Regular { size } else { 0 }
    }

    /// What its user was promised while inodes did not count.
    fn accepted(&self) -> u64 {
        // ORDERING: Relaxed. The lock of the quotas orders it, see `Tree::promise_size`.
        let accepted = self.accepted.load(Ordering::Relaxed);
        if is_on("quota-forgets-accepted") { 0 } else { accepted }
    }

    /// From now on this size is charged.
    ///
    /// # Errors
    /// There is no room for more: the charge is what it was.
    pub(crate) fn charge_to(&mut self, quotas: &Quotas, size: u64, op: &'static str) -> Result<()> {
        // One that does not count yet is counted as it is when its row is written.
        if self.charge != size && self.project.is_some() {
            quotas.promise(self.project(), bytes(self.charge, size), op)?;
        }
        self.charge = size;
        Ok(())
    }

    /// Nothing is promised to its users any more that is not there.
    pub(crate) fn take_back(&mut self, quotas: &Quotas) {
        if self.charge != self.counted && self.project.is_some() {
            quotas.promise_unchecked(self.project(), bytes(self.charge, self.counted));
        }
        self.charge = self.counted;
    }

    /// Puts the row, and the change of what it uses, into a batch.
    pub(crate) fn put(&mut self, ino: u64, quotas: &Quotas, batch: &mut Batch) {
        if quotas.are_on() {
            let size = self.counts(self.stored_size);
            match self.project {
                Some(project) if size != self.counted => {
                    let change = bytes(self.counted, size);
                    batch.add_usage(project, change, change);
                }
                Some(_) => {}
                None => {
                    batch.add_usage(VOLUME, INODE.plus(bytes(0, size)), Totals::default());
                    let charge = self.charge.max(self.counts(self.row.size)).max(self.accepted());
                    quotas.promise_unchecked(VOLUME, bytes(size, charge));
                    (self.project, self.charge) = (Some(VOLUME), charge);
                }
            }
            self.counted = size;
        }
        batch.put(rows::inode_key(ino), self.stored());
    }

    /// Puts a new inode, which was promised, into a batch.
    pub(crate) fn put_new(&mut self, ino: u64, quotas: &Quotas, batch: &mut Batch) {
        if let Some(project) = self.project {
            batch.add_usage(project, INODE, INODE);
        }
        self.put(ino, quotas, batch);
    }

    /// Moves it to another project, whatever that has room for.
    pub(crate) fn move_to(&mut self, project: u64, (ino, quotas): (u64, &Quotas), batch: &mut Batch) {
        self.put(ino, quotas, batch);
        let from = self.project();
        if from == project {
            return;
        }
        let (counted, charged) = (INODE.plus(bytes(0, self.counted)), bytes(self.counted, self.charge));
        for (dir, is_more) in [(from, false), (project, true)] {
            if dir != VOLUME {
                let signed = |what| if is_more { what } else { Totals::default().minus(what) };
                batch.add_usage_of(dir, signed(counted), Totals::default());
                quotas.promise_of_quota(dir, signed(charged));
            }
        }
        self.project = Some(project);
        batch.put(rows::inode_key(ino), self.stored());
    }
}

impl Tree {
    /// Promises a new inode in a directory.
    ///
    /// # Errors
    /// `Quota`, `NoSpace`: there may be no more.
    pub(crate) fn promise_inode(&self, dir: &State, op: &'static str) -> Result<PromisedInode<'_>> {
        let project = self.quotas.are_on().then(|| dir.project());
        if let Some(project) = project {
            self.quotas.promise(project, INODE, op)?;
        }
        Ok(PromisedInode::new(&self.quotas, project))
    }

    /// An inode goes; nobody uses it.
    pub(crate) fn no_more_counted(&self, mut state: State, batch: &mut Batch) {
        state.take_back(&self.quotas);
        if let Some(project) = state.project.filter(|_| !is_on("quota-removed-counts")) {
            let gone = Totals::default().minus(INODE.plus(bytes(0, state.counted)));
            batch.add_usage(project, gone, Totals::default());
        }
    }
}
