//! Renaming, with the kernel's order of checks.

use std::ffi::OsStr;
use std::sync::Arc;

use store::{Creator, ErrorKind, Name, ObjectId, RenameFlags, Result};

use crate::engine::Batch;
use crate::listing::NameChange;
use crate::node::{LockedNodes, Pin, State};
use crate::quotas::PromisedInode;
use crate::rows::{EntryRow, InodeRow, Kind, entry_key, to_bytes};
use crate::tree::{Tree, fail, now, touch};

const OP: &str = "rename";

/// One rename, whose inodes are known and referenced.
struct Rename<'a> {
    from: (Pin, &'a OsStr),
    to: (Pin, &'a OsStr),
    node: Pin,
    target: Option<Pin>,
    flags: RenameFlags,
}

impl Tree {
    pub(crate) async fn rename(
        self: &Arc<Self>,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if exchanges && flags.intersects(RenameFlags::NOREPLACE | RenameFlags::WHITEOUT) {
            return fail(ErrorKind::Invalid, OP);
        }
        let (name, new_name) = (name.as_os_str(), new_name.as_os_str());
        let mut one_at_a_time = None;
        loop {
            let from = (self.pin_used(parent.0, OP)?, name);
            let to = (self.pin_used(new_parent.0, OP)?, new_name);
            for dir in [&from.0, &to.0] {
                if !dir.lock().await?.row.is_dir() {
                    return fail(ErrorKind::NotDirectory, OP);
                }
            }
            let node = self.child(parent.0, name, OP).await?;
            let target = match self.child(new_parent.0, new_name, OP).await {
                Ok(target) => Some(target),
                Err(error) if error.kind() == ErrorKind::NotFound => None,
                Err(error) => return Err(error),
            };
            let mut moves_dir = node.lock().await?.row.is_dir();
            if let Some(target) = target.as_ref().filter(|_| exchanges) {
                moves_dir |= target.lock().await?.row.is_dir();
            }
            if moves_dir && parent != new_parent && one_at_a_time.is_none() {
                one_at_a_time = Some(self.renames.lock().await);
                continue;
            }
            let moved = Rename { from, to, node, target, flags };
            if self.try_rename(&moved).await? {
                return Ok(());
            }
        }
    }

    /// Renames, unless another call has changed one of the names; says whether it has renamed.
    async fn try_rename(self: &Arc<Self>, moved: &Rename<'_>) -> Result<bool> {
        let Rename { from, to, node, target, flags } = moved;
        if target.is_some() && flags.contains(RenameFlags::NOREPLACE) {
            return fail(ErrorKind::Exists, OP);
        }
        let exchanges = flags.contains(RenameFlags::EXCHANGE);
        if target.is_none() && exchanges {
            return fail(ErrorKind::NotFound, OP);
        }
        // What lies above changes only with `renames` held, or not at all.
        if self.is_at_or_above(node.ino, to.0.ino).await? {
            return fail(ErrorKind::Invalid, OP);
        }
        if let Some(target) = target
            && self.is_at_or_above(target.ino, from.0.ino).await?
        {
            return fail(if exchanges { ErrorKind::Invalid } else { ErrorKind::NotEmpty }, OP);
        }
        let mut pins = vec![&from.0, &to.0, node];
        pins.extend(target);
        let locked = LockedNodes::lock(&pins).await;
        let is_still =
            |entry: Option<EntryRow>, pin: Option<&Pin>| entry.map(|e| e.ino) == pin.map(|p| p.ino);
        if !is_still(self.entry(from.0.ino, from.1).await?, Some(node))
            || !is_still(self.entry(to.0.ino, to.1).await?, target.as_ref())
        {
            return Ok(false);
        }
        let mut locked = locked?;
        if locked.of(to.0.ino).row.nlink == 0 {
            return fail(ErrorKind::NotFound, OP);
        }
        if target.as_ref().is_some_and(|target| target.ino == node.ino) {
            return Ok(true);
        }
        let exchanged = target.as_ref().filter(|_| exchanges);
        for (moved, to) in
            [Some((node, &to.0)), exchanged.map(|target| (target, &from.0))].into_iter().flatten()
        {
            let (project, is_top) =
                (locked.of(moved.ino).project(), locked.of(moved.ino).project == Some(moved.ino));
            // What counts for its own quota does so wherever it is.
            if !is_top && project != locked.of(to.ino).project() {
                return fail(ErrorKind::CrossDevice, OP);
            }
        }
        // Before anything is changed.
        let whiteout = if flags.contains(RenameFlags::WHITEOUT) {
            Some(self.promise_inode(locked.of(from.0.ino), OP)?)
        } else {
            None
        };
        let mut batch = Batch::default();
        let mut left = None;
        match target {
            Some(target) if exchanges => {
                self.exchange(moved, target, &mut locked, &mut batch);
                left = Some(EntryRow { ino: target.ino, kind: locked.of(target.ino).row.kind });
            }
            _ => self.replace(moved, &mut locked, &mut batch).await?,
        }
        if let Some(promised) = whiteout {
            left = Some(self.leave_whiteout(from, promised, &mut batch));
        }
        let arrived = EntryRow { ino: node.ino, kind: locked.of(node.ino).row.kind };
        touch(locked.of(from.0.ino));
        touch(locked.of(to.0.ino));
        locked.of(node.ino).row.ctime = now();
        let mut changed = vec![from.0.ino, to.0.ino, node.ino];
        changed.dedup();
        for ino in changed {
            locked.of(ino).put(ino, &self.quotas, &mut batch);
        }
        let (from_names, to_names) = (from.0.names.changing(), to.0.names.changing());
        self.write(batch).await?;
        from_names.end(&NameChange { name: from.1, was_there: true, now: left });
        to_names.end(&NameChange { name: to.1, was_there: target.is_some(), now: Some(arrived) });
        node.named(to.0.ino, to.1);
        Ok(true)
    }

    fn exchange(&self, moved: &Rename<'_>, target: &Pin, locked: &mut LockedNodes, batch: &mut Batch) {
        let Rename { from, to, node, .. } = moved;
        for (pin, dir, old_dir) in [(node, to, from), (target, from, to)] {
            let kind = locked.of(pin.ino).row.kind;
            batch.put(entry_key(dir.0.ino, dir.1), to_bytes(&EntryRow { ino: pin.ino, kind }));
            adopt(locked, pin.ino, old_dir.0.ino, dir.0.ino);
        }
        locked.of(target.ino).row.ctime = now();
        locked.of(target.ino).put(target.ino, &self.quotas, batch);
    }

    async fn replace(
        self: &Arc<Self>,
        moved: &Rename<'_>,
        locked: &mut LockedNodes,
        batch: &mut Batch,
    ) -> Result<()> {
        let Rename { from, to, node, target, .. } = moved;
        let kind = locked.of(node.ino).row.kind;
        if let Some(target) = target {
            let is_dir = locked.of(target.ino).row.is_dir();
            match (kind == Kind::Directory, is_dir) {
                (true, false) => return fail(ErrorKind::NotDirectory, OP),
                (false, true) => return fail(ErrorKind::IsDirectory, OP),
                _ => {}
            }
            if is_dir {
                if self.has_entries(target.ino).await? {
                    return fail(ErrorKind::NotEmpty, OP);
                }
                add_links(locked.of(to.0.ino), -1);
            }
            self.unlinked(target.ino, locked.of(target.ino), batch);
        }
        batch.delete(entry_key(from.0.ino, from.1));
        batch.put(entry_key(to.0.ino, to.1), to_bytes(&EntryRow { ino: node.ino, kind }));
        adopt(locked, node.ino, from.0.ino, to.0.ino);
        Ok(())
    }

    /// A character device 0:0, with which overlay file systems mark a removed name.
    fn leave_whiteout(
        &self,
        (dir, name): &(Pin, &OsStr),
        promised: PromisedInode<'_>,
        batch: &mut Batch,
    ) -> EntryRow {
        let creator = Creator { uid: 0, gid: 0, umask: 0 };
        let (kind, ino) = (Kind::CharDevice, self.new_ino());
        let row = InodeRow { kind, ..crate::tree::new_row(kind, 0, creator) };
        State::made(row, promised.project).put_new(ino, &self.quotas, batch);
        promised.keep();
        let entry = EntryRow { ino, kind };
        batch.put(entry_key(dir.ino, name), to_bytes(&entry));
        batch.totals.inodes += 1;
        entry
    }

    /// Whether `ino` is the directory `dir` or one above it.
    async fn is_at_or_above(self: &Arc<Self>, ino: u64, dir: u64) -> Result<bool> {
        let mut at = dir;
        loop {
            if at == ino {
                return Ok(true);
            }
            if at == ObjectId::ROOT.0 {
                return Ok(false);
            }
            at = self.pin(at).lock().await?.row.parent;
        }
    }
}

/// A directory that moves has another parent.
fn adopt(locked: &mut LockedNodes, ino: u64, from: u64, to: u64) {
    let state = locked.of(ino);
    if from == to || !state.row.is_dir() {
        return;
    }
    state.row.parent = to;
    add_links(locked.of(from), -1);
    add_links(locked.of(to), 1);
}

fn add_links(state: &mut State, by: i32) {
    state.row.nlink = state.row.nlink.saturating_add_signed(by);
}
