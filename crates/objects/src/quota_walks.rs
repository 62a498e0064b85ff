//! Quotas that come and go: the inodes that were there before are counted, one by one, while the
//! volume is in use.
//!
//! # Why none is missed
//! - **A tree that gets a quota, or loses it.** A directory is moved to the other project before its
//!   names are read, and what is made in it from then on is in its project. Nothing is renamed or
//!   linked from one project to another: what was not counted yet can be renamed to directories
//!   alone that the walk has not come to, and is found there, or has left the tree. So the walk moves
//!   an inode only while the directory still has it by that name. A rename inside a directory that
//!   was moved may be refused (EXDEV) meanwhile.
//!   Removed files that are in use have no name to be found by: those of a quota that goes are found
//!   by their own rows, after the walk, when no directory is in the project any more.
//! - **All inodes, when the volume gets its first quota.** An inode counts when its row is written
//!   from then on. A change that began before has its directory locked until its rows are there. The
//!   first pass locks each directory, so that all those have ended; the second finds what they made.
//!
//! What was interrupted is done again at the next opening: what was counted is not counted twice, for
//! an inode's row says it.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};
use store::{Error, ErrorKind, Name, ObjectId, Result};

use crate::engine::Batch;
use crate::node::{LockedNodes, Pin, State};
use crate::quotas::{Progress, Quota, QuotaLimits, QuotaRow, VOLUME};
use crate::rows::{self, EntryRow, to_bytes};
use crate::tree::{Tree, fail};

/// Rows that are read at a time.
const BATCH: usize = 512;
const ROOT: u64 = ObjectId::ROOT.0;
const OP: &str = "quota";

/// A quota, as people and programs see it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaInfo {
    /// Its directory, from the volume's root; `/` is the volume. In JSON what is not UTF-8 of it is
    /// replaced.
    #[serde(serialize_with = "as_text")]
    pub path: PathBuf,
    /// The most bytes; none: any.
    pub bytes: Option<u64>,
    /// The most files, directories and links; none: any.
    pub inodes: Option<u64>,
    /// Bytes of the files that count for it.
    pub used_bytes: u64,
    /// How many count for it, the directory itself among them.
    pub used_inodes: u64,
    /// Whether all that were there before are counted.
    pub is_counted: bool,
}

fn as_text<S: Serializer>(path: &Path, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&path.to_string_lossy())
}

/// The number by which a directory's quota is known.
fn number_of(dir: u64) -> u64 {
    if dir == ROOT { VOLUME } else { dir }
}

/// Whether a user has set it, and not deleted it since.
fn is_shown(number: u64, quota: &Quota) -> bool {
    (number != VOLUME || quota.row.limits != QuotaLimits::default())
        && quota.row.progress != Progress::Leaving
}

fn no_quota() -> Error {
    Error::with(ErrorKind::NoAttribute, OP, "the directory has no quota of its own")
}

impl Tree {
    /// Sets the limits of a directory, or of the volume: its root. Returns when all is counted.
    ///
    /// # Errors
    /// `NotDirectory`; `TooBig`: there are too many quotas; the engine's.
    pub(crate) async fn set_quota(self: &Arc<Self>, dir: u64, limits: QuotaLimits) -> Result<()> {
        let _one_at_a_time = self.quotas.changes.lock().await;
        if !self.quotas.are_on() {
            self.put_quota(VOLUME, QuotaLimits::default(), Progress::Counting).await?;
        }
        self.finish_counting().await?;
        let number = number_of(dir);
        // What is left of one that is being deleted goes first.
        self.finish_walk(number).await?;
        let progress = match self.quotas.get(number) {
            Some(quota) => quota.row.progress,
            None if self.quotas.has_room() => Progress::Counting,
            None => {
                let why = "the volume has as many quotas as it can have: delete one first";
                return Err(Error::with(ErrorKind::TooBig, OP, why));
            }
        };
        let pin = self.pin(dir);
        {
            // Locked until its quota is there: it is not removed in between.
            let state = pin.lock().await?;
            if !state.row.is_dir() {
                return fail(ErrorKind::NotDirectory, OP);
            }
            if state.row.nlink == 0 {
                return fail(ErrorKind::NotFound, OP);
            }
            self.put_quota(number, limits, progress).await?;
        }
        self.finish_walk(number).await?;
        self.engine.commit().await
    }

    /// Takes a directory's quota away, or the volume's limits: what counted for it counts for the
    /// quota above.
    ///
    /// # Errors
    /// `NoAttribute`: it has none; the engine's.
    pub(crate) async fn delete_quota(self: &Arc<Self>, dir: u64) -> Result<()> {
        let _one_at_a_time = self.quotas.changes.lock().await;
        let number = number_of(dir);
        let quota = self.quotas.get(number).ok_or_else(no_quota)?;
        if number == VOLUME {
            if quota.row.limits == QuotaLimits::default() {
                return Err(no_quota());
            }
            self.put_quota(VOLUME, QuotaLimits::default(), quota.row.progress).await?;
        } else {
            self.finish_counting().await?;
            self.put_quota(number, QuotaLimits::default(), Progress::Leaving).await?;
            self.finish_walk(number).await?;
        }
        self.engine.commit().await
    }

    /// Goes on with what was interrupted.
    pub(crate) async fn finish_quotas(self: Arc<Self>) {
        let _one_at_a_time = self.quotas.changes.lock().await;
        let finished = async {
            self.finish_counting().await?;
            for number in self.quotas.all().into_keys() {
                self.finish_walk(number).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = finished.await {
            tracing::warn!(%error, "inodes are not all counted for their quotas: the next mount goes on");
        }
    }

    /// The quota of a directory, or of the volume.
    ///
    /// # Errors
    /// `NoAttribute`: it has none.
    pub(crate) async fn quota(self: &Arc<Self>, dir: u64) -> Result<QuotaInfo> {
        let number = number_of(dir);
        let quota = self.quotas.get(number).filter(|quota| is_shown(number, quota)).ok_or_else(no_quota)?;
        Ok(self.quota_info(number, quota).await)
    }

    /// Up to `max` quotas behind the number `after`, and the number of the last.
    pub(crate) async fn some_quotas(
        self: &Arc<Self>,
        after: Option<u64>,
        max: usize,
    ) -> (Vec<QuotaInfo>, u64) {
        let (mut infos, mut last) = (Vec::new(), after.unwrap_or(0));
        for (number, quota) in self.quotas.all() {
            if after.is_some_and(|after| number <= after) || infos.len() >= max {
                continue;
            }
            last = number;
            if is_shown(number, &quota) {
                infos.push(self.quota_info(number, quota).await);
            }
        }
        (infos, last)
    }

    async fn quota_info(self: &Arc<Self>, number: u64, quota: Quota) -> QuotaInfo {
        let path = if number == VOLUME { Some(PathBuf::new()) } else { self.path_of(ObjectId(number)).await };
        let charged = quota.charged();
        QuotaInfo {
            path: Path::new("/").join(path.unwrap_or_else(|| PathBuf::from(format!("?{number}")))),
            bytes: quota.row.limits.bytes,
            inodes: quota.row.limits.inodes,
            used_bytes: u64::try_from(charged.bytes).unwrap_or(0),
            used_inodes: u64::try_from(charged.inodes).unwrap_or(0),
            is_counted: quota.row.progress == Progress::Counted,
        }
    }

    /// The directory at this path from the root; no link is followed.
    ///
    /// # Errors
    /// `NotFound`, `NotDirectory`; `Invalid`: it goes up.
    pub(crate) async fn directory_at(self: &Arc<Self>, path: &Path) -> Result<Pin> {
        let mut at = self.pin(ROOT);
        for part in path.components() {
            match part {
                Component::RootDir | Component::CurDir => {}
                Component::Normal(name) => {
                    let child = self.child(at.ino, Name::new(name)?.as_os_str(), OP).await?;
                    if !child.lock().await?.row.is_dir() {
                        return fail(ErrorKind::NotDirectory, OP);
                    }
                    child.named(at.ino, name);
                    at = child;
                }
                _ => return fail(ErrorKind::Invalid, OP),
            }
        }
        Ok(at)
    }

    async fn put_quota(&self, number: u64, limits: QuotaLimits, progress: Progress) -> Result<()> {
        let row = QuotaRow { limits, progress };
        let mut batch = Batch::default();
        batch.put(rows::quota_key(number), to_bytes(&row));
        self.write(batch).await?;
        self.quotas.put(number, row);
        Ok(())
    }

    /// Counts all inodes that do not count yet, if that has not been done.
    async fn finish_counting(self: &Arc<Self>) -> Result<()> {
        let Some(quota) = self.quotas.get(VOLUME) else { return Ok(()) };
        if quota.row.progress == Progress::Counted {
            return Ok(());
        }
        self.count_all(true).await?;
        self.count_all(false).await?;
        self.put_quota(VOLUME, quota.row.limits, Progress::Counted).await
    }

    async fn count_all(self: &Arc<Self>, waits_for_changes: bool) -> Result<()> {
        let mut range = rows::all_keys(b'I');
        loop {
            let inodes = self.engine.scan(range.clone(), BATCH).await?;
            let is_last = inodes.len() < BATCH;
            for (key, row) in inodes {
                range.start = [&key[..], &[0]].concat();
                let (row, project) = rows::inode_from_bytes(&row)?;
                if project.is_some() && !(waits_for_changes && row.is_dir()) {
                    continue;
                }
                let pin = self.pin(rows::ino_of(&key)?);
                let mut state = match pin.lock().await {
                    Ok(state) => state,
                    // It was removed since.
                    Err(error) if error.kind() == ErrorKind::Stale => continue,
                    Err(error) => return Err(error),
                };
                if state.project.is_none() {
                    let mut batch = Batch::default();
                    state.put(pin.ino, &self.quotas, &mut batch);
                    self.write(batch).await?;
                }
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Moves the inodes of a tree to its project, or away from it, if that has not been done.
    async fn finish_walk(self: &Arc<Self>, number: u64) -> Result<()> {
        let Some(quota) = self.quotas.get(number).filter(|_| number != VOLUME) else { return Ok(()) };
        match quota.row.progress {
            Progress::Counted => Ok(()),
            Progress::Counting => {
                self.walk(number, number).await?;
                let pin = self.pin(number);
                // Locked: it is not removed, and its quota with it, in between.
                let _lock = match pin.lock().await {
                    Err(error) if error.kind() == ErrorKind::Stale => return Ok(()),
                    locked => locked?,
                };
                let Some(quota) = self.quotas.get(number) else { return Ok(()) };
                self.put_quota(number, quota.row.limits, Progress::Counted).await
            }
            Progress::Leaving => {
                let above = self.leave(number).await?;
                self.walk(number, above).await?;
                self.move_orphans(number, above).await?;
                let mut batch = Batch::default();
                batch.delete(rows::quota_key(number));
                batch.delete(rows::usage_key(number));
                self.write(batch).await?;
                self.quotas.remove(number);
                Ok(())
            }
        }
    }

    /// Moves the inodes of a tree to a project, but for trees in it that have their own.
    async fn walk(self: &Arc<Self>, top: u64, project: u64) -> Result<()> {
        if !self.move_top(top, project).await? {
            return Ok(());
        }
        // Directories, and the key of the name with which each goes on.
        let mut left = vec![(top, Vec::new())];
        while let Some((dir, from)) = left.pop() {
            let mut range = rows::keys_of(b'D', dir);
            if !from.is_empty() {
                range.start = from;
            }
            let names = self.engine.scan(range, BATCH).await?;
            if let Some((last, _)) = names.last().filter(|_| names.len() == BATCH) {
                left.push((dir, [last, &[0][..]].concat()));
            }
            for (key, row) in names {
                let entry: EntryRow = rows::from_bytes(&row, "a directory entry")?;
                let name = OsStr::from_bytes(rows::rest_of(&key));
                if self.move_child((dir, name), entry.ino, (project, top)).await? {
                    left.push((entry.ino, Vec::new()));
                }
            }
        }
        Ok(())
    }

    /// Moves a directory to the project of the one above, which is returned; it is not renamed in
    /// between, and from then on only within that project.
    async fn leave(self: &Arc<Self>, dir: u64) -> Result<u64> {
        let top = self.pin(dir);
        loop {
            let parent = self.pin(top.lock().await?.row.parent);
            let mut locked = LockedNodes::lock(&[&parent, &top]).await?;
            if locked.of(dir).row.parent != parent.ino {
                continue;
            }
            let above = locked.of(parent.ino).project();
            let mut batch = Batch::default();
            locked.of(dir).move_to(above, (dir, &self.quotas), &mut batch);
            self.write(batch).await?;
            return Ok(above);
        }
    }

    /// Moves inodes without a name, which are still in use, from one project to another. No more of
    /// them come: no directory is in the first any more.
    async fn move_orphans(self: &Arc<Self>, from: u64, project: u64) -> Result<()> {
        let mut range = rows::all_keys(b'O');
        loop {
            let orphans = self.engine.scan(range.clone(), BATCH).await?;
            let is_last = orphans.len() < BATCH;
            for (key, _) in orphans {
                range.start = [&key[..], &[0]].concat();
                let pin = self.pin(rows::ino_of(&key)?);
                let mut state = match pin.lock().await {
                    Ok(state) if state.project == Some(from) => state,
                    Err(error) if error.kind() != ErrorKind::Stale => return Err(error),
                    _ => continue,
                };
                let mut batch = Batch::default();
                state.move_to(project, (pin.ino, &self.quotas), &mut batch);
                self.write(batch).await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// Moves the directory of a tree to a project; `false`: it is gone.
    async fn move_top(self: &Arc<Self>, top: u64, project: u64) -> Result<bool> {
        let pin = self.pin(top);
        let mut state = match pin.lock().await {
            Ok(state) if state.row.nlink > 0 => state,
            Ok(_) => return Ok(false),
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(false),
            Err(error) => return Err(error),
        };
        self.move_locked(&mut state, top, project).await?;
        Ok(true)
    }

    /// Moves an inode that a directory of the tree `top` has by this name to a project, if it has
    /// it still: both are locked, so that it is not renamed out of the tree in between. Says whether
    /// it is a directory that goes with what is in it; one that says that it is elsewhere does not,
    /// so that the walk comes to each once, whatever rows are damaged.
    async fn move_child(
        self: &Arc<Self>,
        (dir, name): (u64, &OsStr),
        ino: u64,
        (project, top): (u64, u64),
    ) -> Result<bool> {
        let (above, pin) = (self.pin(dir), self.pin(ino));
        let mut locked = match LockedNodes::lock(&[&above, &pin]).await {
            Err(error) if error.kind() == ErrorKind::Stale => return Ok(false),
            locked => locked?,
        };
        let state = locked.of(ino);
        let has_own = state.project == Some(ino) && self.quotas.get(ino).is_some();
        if ino == top || has_own || self.entry(dir, name).await?.is_none_or(|entry| entry.ino != ino) {
            return Ok(false);
        }
        self.move_locked(state, ino, project).await?;
        Ok(state.row.is_dir() && state.row.parent == dir)
    }

    async fn move_locked(&self, state: &mut State, ino: u64, project: u64) -> Result<()> {
        if state.project == Some(project) {
            return Ok(());
        }
        let mut batch = Batch::default();
        state.move_to(project, (ino, &self.quotas), &mut batch);
        self.write(batch).await
    }
}

/// What rows say is used, by a walk over all of them: for tests.
#[cfg(test)]
pub(crate) async fn counted(tree: &Tree) -> Result<std::collections::BTreeMap<u64, rows::Totals>> {
    let mut found = std::collections::BTreeMap::<u64, rows::Totals>::new();
    for (_, row) in tree.engine.scan(rows::all_keys(b'I'), usize::MAX).await? {
        let (row, project) = rows::inode_from_bytes(&row)?;
        let Some(project) = project else { continue };
        let size = if row.kind == crate::rows::Kind::Regular { row.size } else { 0 };
        for number in std::collections::BTreeSet::from([project, VOLUME]) {
            let sum = found.entry(number).or_default();
            sum.inodes += 1;
            sum.bytes += i64::try_from(size).unwrap_or(i64::MAX);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod schedules;
