//! A volume that goes on in the next program of its process.
//!
//! The front end has no request under way, and sends none until the next program serves. Everything
//! is written and durable ([`Volume::prepare_handover`]), so that the cache is empty and no list of
//! the write-back has to be handed over. What is left is what the kernel and callers refer to: the nodes with
//! their look-ups, the open files and directories under their numbers, the errors that not every opening
//! has reported yet, the limits.
//!
//! Not handed over: the cgroups of threads, figures, events.

use std::collections::{HashMap, HashSet};
use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Instant;

use ::handover::{Incoming, Kept};
use serde::{Deserialize, Serialize};
use store::{Access, ErrorKind, OpenDirState, Store, StoreState, Timestamp};
use sync::Mutex;
use throttle::{Amounts, Debts};
use writeback::{Cgroup, Cursor, ErrSeq};

use crate::core::Core;
use crate::handles::{DirHandle, FileHandle};
use crate::inode::Inode;
use crate::{
    CgroupPath, Error, HandleId, LimitChange, NodeId, OpenFlags, Options, Result, Volume, VolumeState,
};

/// A volume, written down.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VolumeHandover {
    /// Its store.
    pub store: StoreState,
    nodes: Vec<NodeState>,
    files: Vec<FileState>,
    dirs: Vec<DirHandleState>,
    /// The numbers that the next open file and directory get.
    next: (u64, u64),
    /// Cgroups, and their limits as a [`LimitChange`].
    limits: Vec<(String, String)>,
    /// What was done ahead of these. Not there before version 6.
    #[serde(default)]
    debts: Vec<DebtsState>,
}

/// What was done ahead of a cgroup's limits, as in [`Debts`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DebtsState {
    cgroup: String,
    ahead: Amounts,
    owed: Vec<(Option<String>, Amounts)>,
}

impl From<Debts> for DebtsState {
    fn from(debts: Debts) -> Self {
        let owed = debts.owed.into_iter();
        Self {
            cgroup: debts.cgroup.to_string(),
            ahead: debts.ahead,
            owed: owed.map(|(owner, amounts)| (owner.map(|owner| owner.to_string()), amounts)).collect(),
        }
    }
}

impl DebtsState {
    fn read(&self) -> Result<Debts> {
        let path = |text: &str| text.parse().map_err(|_| Error::Invalid("the state has a bad cgroup"));
        let owed = |(owner, amounts): &(Option<String>, Amounts)| {
            Ok((owner.as_deref().map(path).transpose()?, *amounts))
        };
        let owed = self.owed.iter().map(owed).collect::<Result<_>>()?;
        Ok(Debts { cgroup: path(&self.cgroup)?, ahead: self.ahead, owed })
    }
}

/// Requests come to their ends as fast as the store can, whichever limits their callers are under,
/// until this is dropped: no caller is to wait for a neighbour that is held up by a limit. What
/// they write ahead of a limit is not charged.
#[derive(Debug)]
pub struct Hurry(Arc<Core>);

impl Drop for Hurry {
    fn drop(&mut self) {
        self.0.bdi.throttle().suspend(false);
        self.0.bdi.limits_changed();
    }
}

/// What it means that an open file cannot be opened again on the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reopening {
    /// The volume is not taken over, where the program before could open it: that takes it back.
    Required,
    /// It is tried again when the file is used: no other program could take the volume back.
    Tried,
}

/// A node that the front end knows: its look-ups; what its users see of its ctime where the store
/// has a later one; its last write-back error, with the error's number and whether an opening has
/// reported it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct NodeState(NodeId, u64, Option<(Timestamp, Timestamp)>, Option<(ErrorKind, u64, bool)>);

/// An open file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct FileState {
    handle: u64,
    node: NodeId,
    flags: u32,
    is_foreign_mapper: bool,
    opener_pid: u32,
    /// For which writes without a caller count.
    cgroup: String,
    /// Up to which write-back error it has reported them.
    seen: u64,
}

/// An open directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct DirHandleState {
    handle: u64,
    node: NodeId,
    opener_pid: u32,
    /// So it was called when it was a descriptor alone.
    #[serde(rename = "fd")]
    opening: OpenDirState,
}

impl VolumeHandover {
    /// Cgroups, and their limits as a [`LimitChange`].
    #[must_use]
    pub fn limits(&self) -> &[(String, String)] {
        &self.limits
    }

    /// How many nodes, open files and open directories it has.
    #[must_use]
    pub fn counts(&self) -> (usize, usize, usize) {
        (self.nodes.len(), self.files.len(), self.dirs.len())
    }
}

impl Volume {
    /// Writes everything and makes it durable; to be called while requests are served, so that
    /// little is left when they are not, and once more then.
    ///
    /// # Errors
    /// The first failure.
    pub fn prepare_handover(&self) -> Result<()> {
        self.sync_all()
    }

    /// Writes what is dirty now, at full speed: requests may wait for room in the cache. Errors are
    /// kept for the files' own fsync and close.
    ///
    /// # Errors
    /// The first failure.
    pub fn write_unless_clean(&self) -> Result<()> {
        if self.core.budget.used() == 0 {
            return Ok(());
        }
        self.write_all().into_iter().next().map_or(Ok(()), Err)
    }

    /// Has requests under way come to their ends.
    #[must_use]
    pub fn hurry(&self) -> Hurry {
        let core = Arc::clone(&self.core);
        core.bdi.throttle().suspend(true);
        core.bdi.limits_changed();
        Hurry(core)
    }

    /// What a server that follows needs beside the journal, and the descriptor that holds the store's
    /// lock, which that server finds under the number `lock`; none if the store is closed.
    #[must_use]
    pub fn recoverable(&self, lock: RawFd) -> Option<(VolumeHandover, Arc<OwnedFd>)> {
        let (store, held) = self.core.store.recoverable(lock)?;
        let limits = self.limits().iter().map(|one| (one.cgroup.to_string(), one.as_change())).collect();
        let (nodes, files, dirs, next, debts) = Default::default();
        Some((VolumeHandover { store, nodes, files, dirs, next, limits, debts }, held))
    }

    /// Writes the volume down, until `until`. No request may be under way.
    ///
    /// # Errors
    /// [`Error::Invalid`] with what keeps it from being handed over; the store's.
    pub fn hand_over(&self, kept: &mut Kept, until: Instant) -> Result<VolumeHandover> {
        let core = &self.core;
        if !matches!(self.lifecycle.state.lock().0, VolumeState::Active | VolumeState::Detached) {
            return Err(Error::Invalid("it is being unmounted"));
        }
        if core.deferred_close.is_busy() {
            return Err(Error::Invalid("files are still being closed"));
        }
        let mut nodes = Vec::new();
        for inode in core.table.all() {
            let state = inode.state();
            if state.overlay.is_some() || state.cache.held() > 0 {
                return Err(Error::Invalid("data was written that is not on the store"));
            }
            nodes.push(NodeState(inode.id, state.lookups, state.shown_ctime(), inode.errors.parts()));
        }
        let files = self.files.all().into_iter().map(|(handle, file)| FileState {
            handle,
            node: file.inode.id,
            flags: file.flags.bits(),
            is_foreign_mapper: file.is_foreign_mapper,
            opener_pid: file.opener_pid,
            cgroup: CgroupPath::from(&*file.opener.path()).to_string(),
            seen: file.seen.lock().number(),
        });
        let files = files.collect();
        let mut dirs = Vec::new();
        for (handle, dir) in self.dirs.all() {
            let opening = dir.dir.hand_over(kept)?;
            dirs.push(DirHandleState { handle, node: dir.id, opener_pid: dir.opener_pid, opening });
        }
        let limits = self.limits().iter().map(|one| (one.cgroup.to_string(), one.as_change())).collect();
        let next = (self.files.next_number(), self.dirs.next_number());
        let debts = core.bdi.throttle().debts().into_iter().map(DebtsState::from).collect();
        let store = core.store.hand_over(kept, until)?;
        Ok(VolumeHandover { store, nodes, files, dirs, next, limits, debts })
    }

    /// The volume that the program before has written down, over the store that was handed over.
    ///
    /// # Errors
    /// When the state is not what it should be, and as `reopening` says.
    pub fn take_over(
        store: Arc<dyn Store>,
        options: Options,
        state: &VolumeHandover,
        incoming: &Incoming,
        reopening: Reopening,
    ) -> Result<Arc<Self>> {
        let volume = Self::new(store, options)?;
        let core = &volume.core;
        for NodeState(id, lookups, shown_ctime, error) in &state.nodes {
            let mut inode = Inode::new(*id, core);
            inode.errors = ErrSeq::of_parts(*error);
            inode.state().resume(*lookups, *shown_ctime);
            if !core.table.restore(inode) {
                return Err(Error::Invalid("the state has a node twice"));
            }
        }
        let mut openers: HashMap<NodeId, bool> = HashMap::new();
        for file in &state.files {
            let flags = OpenFlags::from_bits_retain(file.flags);
            *openers.entry(file.node).or_default() |=
                flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        }
        // Before the files that the store has kept open for this are closed.
        let open: HashMap<NodeId, Access> = state.store.open_data().into_iter().collect();
        for (id, writes) in openers {
            volume.reopen(id, writes, open.get(&id).copied(), reopening)?;
        }
        // Each is looked for once: there may be thousands of open files.
        let mut owners: HashMap<&str, Arc<Cgroup>> = HashMap::new();
        for file in &state.files {
            let opener = match owners.get(file.cgroup.as_str()) {
                Some(opener) => Arc::clone(opener),
                None => {
                    let cgroup =
                        file.cgroup.parse().map_err(|_| Error::Invalid("the state has a bad cgroup"))?;
                    let opener = volume.core.options.tenants.cgroup_at(&cgroup);
                    owners.insert(&file.cgroup, Arc::clone(&opener));
                    opener
                }
            };
            volume.resume_file(file, opener)?;
        }
        for dir in &state.dirs {
            let opened = core.store.take_over_dir(dir.node, &dir.opening, incoming)?;
            let handle = DirHandle { id: dir.node, dir: opened, opener_pid: dir.opener_pid, noted: None };
            volume.dirs.restore(HandleId(dir.handle), handle)?;
        }
        volume.files.resume_at(state.next.0);
        volume.dirs.resume_at(state.next.1);
        let open: HashSet<NodeId> = state.files.iter().map(|file| file.node).collect();
        for NodeState(id, lookups, ..) in &state.nodes {
            // It was only kept until a flusher had looked at it.
            if *lookups == 0
                && !open.contains(id)
                && let Some(inode) = core.table.get(*id)
            {
                core.drop_unused(&inode);
            }
        }
        for (cgroup, change) in &state.limits {
            let change: LimitChange =
                change.parse().map_err(|_| Error::Invalid("the state has a bad limit"))?;
            volume.limit(&cgroup.parse().map_err(|_| Error::Invalid("the state has a bad cgroup"))?, &change);
        }
        let debts = state.debts.iter().map(DebtsState::read).collect::<Result<Vec<_>>>()?;
        core.bdi.throttle().owe(&debts);
        Ok(volume)
    }

    /// Opens the data of a file that programs have open. What came `open` with the object is shared,
    /// whatever the file's mode is by now; an access that goes beyond it is asked for by the first
    /// write, as it would have been before.
    fn reopen(&self, id: NodeId, writes: bool, open: Option<Access>, reopening: Reopening) -> Result<()> {
        let wanted = if writes { Access::ReadWrite } else { Access::Read };
        let Err(error) = self.inode(id)?.file(open.unwrap_or(wanted)) else { return Ok(()) };
        let volume = self.core.options.name.as_str();
        let path = self.core.store.path_of(id);
        let path = path.as_ref().map(|path| path.to_string_lossy());
        let is_this_programs = matches!(&error, Error::Store(error)
            if matches!(error.kind(), ErrorKind::TooManyFiles | ErrorKind::AccessDenied));
        if reopening == Reopening::Required && (open.is_some() || is_this_programs) {
            tracing::error!(volume, node = id.0, path = path.as_deref(), %error, "an open file cannot be opened again");
            return Err(error);
        }
        tracing::warn!(
            volume, node = id.0, path = path.as_deref(), %error,
            "an open file cannot be opened again now; it is tried again when it is used"
        );
        Ok(())
    }

    fn resume_file(&self, file: &FileState, opener: Arc<Cgroup>) -> Result<()> {
        let inode = self.inode(file.node)?;
        {
            let mut state = inode.state();
            state.opens += 1;
            state.foreign_mappers += u64::from(file.is_foreign_mapper);
        }
        let flags = OpenFlags::from_bits_retain(file.flags);
        let handle = FileHandle {
            flags,
            is_foreign_mapper: file.is_foreign_mapper,
            opener_pid: file.opener_pid,
            opener,
            seen: Mutex::new(Cursor::of_number(file.seen)),
            inode,
            noted: None,
        };
        self.files.restore(HandleId(file.handle), handle)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::ffi::OsStr;

    use store::{FaultStore, MemStore};

    use super::*;
    use crate::{Caller, Cancel, Ctx};

    #[test]
    fn a_file_that_only_the_program_before_can_open_is_left_to_it() {
        let faults = FaultStore::new(MemStore::new(1 << 20), "").expect("no rules");
        let options = Options { flushers: 0, ..Options::default() };
        let volume = Volume::new(Arc::clone(&faults) as _, options).expect("a volume");
        let cancel = Cancel::default();
        let ctx = Ctx { caller: Caller::default(), cancel: &cancel, before_wait: &|| {} };
        let flags = OpenFlags::READ | OpenFlags::WRITE;
        let made = volume.create(&ctx, NodeId::ROOT, OsStr::new("file"), 0o644, flags).expect("a file");
        let id = made.0.id;
        let inode = volume.inode(id).expect("it is known");
        let (here, none) = (Some(Access::ReadWrite), None);
        for (errno, open, can_go_on) in [
            ("EACCES", none, false),
            ("EMFILE", none, false),
            ("ESTALE", none, true),
            ("EIO", none, true),
            ("EIO", here, false),
        ] {
            faults.set_rules(&format!("open:fail={errno}")).expect("rules");
            for (reopening, is_ok) in [(Reopening::Required, can_go_on), (Reopening::Tried, true)] {
                drop(inode.take_file());
                let reopened = volume.reopen(id, true, open, reopening);
                assert_eq!(reopened.is_ok(), is_ok, "{errno}, {open:?}, {reopening:?}: {reopened:?}");
            }
        }
        faults.set_rules("").expect("no rules");
        assert_eq!(volume.reopen(id, true, None, Reopening::Required), Ok(()));
    }
}
