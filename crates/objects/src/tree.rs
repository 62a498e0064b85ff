//! The tree: names, attributes, extended attributes.
//!
//! Each change is one batch of rows: it is made whole or not at all. The engine shows it to later
//! calls at once; it is durable with the next commit.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use store::{
    Attr, Creator, Entry, Error, ErrorKind, FileType, Name, NewNode, NumberedState, ObjectId, Result,
    SetAttr, TimeSet, Timestamp,
};
use sync::mutant::is_on;
use tokio::sync::Mutex as AsyncMutex;

use crate::engine::{Batch, Engine};
use crate::extent_cache::{ExtentCache, FileExtents, Known};
use crate::listing::{ListingRoom, NameChange};
use crate::node::{LockedNodes, Nodes, Pin, State};
use crate::pending::Pending;
use crate::quotas::Quotas;
use crate::rows::{self, EntryRow, InodeRow, Kind, Totals, entry_key, inode_key, orphan_key, to_bytes};
use crate::segment_queue::SegmentQueue;
use crate::segments::Segments;
use crate::work::Work;

const SET_UID: u32 = 0o4000;
const SET_GID: u32 = 0o2000;
const GROUP_EXEC: u32 = 0o010;
const ROOT: u64 = ObjectId::ROOT.0;
/// The most names of one inode.
const NLINK_MAX: u32 = 1 << 31;
/// Directories in one another that a path for a person goes through.
const DEPTH_MAX: usize = 4096;
/// Names that are searched for that of a directory.
const SEARCHED_MAX: usize = 4096;
/// Rows that are removed at a time.
const REAP_BATCH: usize = 1024;
/// Inode numbers that a holder has for itself. The numbers of the first two million holders stay
/// below 2^53, which a floating-point number holds exactly.
const INODES_PER_EPOCH: u64 = 1 << 32;

/// The tree of a volume.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) segments: Segments,
    pub(crate) extent_cache: ExtentCache,
    pub(crate) nodes: Nodes,
    pub(crate) pending: Pending,
    pub(crate) segment_queue: SegmentQueue,
    pub(crate) work: Work,
    pub(crate) runtime: tokio::runtime::Handle,
    /// Renames of directories, one at a time: none puts a directory below itself.
    pub(crate) renames: AsyncMutex<()>,
    pub(crate) totals: Mutex<Totals>,
    pub(crate) size_max: Option<u64>,
    pub(crate) quotas: Quotas,
    pub(crate) listing_room: Arc<ListingRoom>,
    /// Inodes that are being removed.
    reaping: Mutex<HashSet<u64>>,
    next_ino: AtomicU64,
}

/// The removal of an inode, until it is dropped.
struct Reaping<'a> {
    all: &'a Mutex<HashSet<u64>>,
    ino: u64,
}

impl<'a> Reaping<'a> {
    /// `None`: another call removes it.
    fn begin(all: &'a Mutex<HashSet<u64>>, ino: u64) -> Option<Self> {
        let is_first = all.lock().insert(ino);
        is_first.then(|| Self { all, ino })
    }
}

impl Drop for Reaping<'_> {
    fn drop(&mut self) {
        self.all.lock().remove(&self.ino);
    }
}

pub(crate) fn now() -> rows::Time {
    Timestamp::now().into()
}

pub(crate) fn fail<T>(kind: ErrorKind, op: &'static str) -> Result<T> {
    Err(Error::new(kind, op))
}

impl Tree {
    /// The tree over an engine, whose holder has this epoch.
    pub(crate) async fn open(
        engine: Arc<dyn Engine>,
        segments: Segments,
        epoch: u64,
        size_max: Option<u64>,
        quotas: Quotas,
    ) -> Result<Arc<Self>> {
        let totals = engine.totals().await?;
        let epoch = if is_on("inodes-epoch-not-raised") { 1 } else { epoch };
        let first = epoch.checked_mul(INODES_PER_EPOCH).ok_or_else(|| rows::corrupted("the epoch"))?;
        Ok(Arc::new(Self {
            engine,
            segments,
            extent_cache: ExtentCache::default(),
            nodes: Nodes::default(),
            pending: Pending::default(),
            segment_queue: SegmentQueue::default(),
            work: Work::default(),
            runtime: tokio::runtime::Handle::current(),
            renames: AsyncMutex::new(()),
            totals: Mutex::new(totals),
            size_max,
            quotas,
            listing_room: Arc::default(),
            reaping: Mutex::default(),
            next_ino: AtomicU64::new(first.max(2)),
        }))
    }

    /// Makes the root of a new volume, and removes files that had no name any more when their last
    /// holder ended, but for those in use.
    pub(crate) async fn set_up(self: &Arc<Self>) -> Result<()> {
        self.make_root().await?;
        self.reap_all().await
    }

    /// What the next program of this process needs; everything is durable.
    ///
    /// # Errors
    /// `Busy`: something goes on.
    pub(crate) fn hand_over(&self) -> Result<NumberedState> {
        let busy = |why: &'static str| Error::with(ErrorKind::Busy, "hand the store over", why);
        if !self.pending.is_empty() {
            return Err(busy("something is not durable yet"));
        }
        let mut handed = NumberedState::default();
        for (node, references) in self.nodes.kept() {
            let id = ObjectId(node.ino);
            handed.references.push((id, references));
            let state = node.state.try_lock().map_err(|_| busy("a file is being changed"))?;
            if state.as_ref().is_some_and(|state| state.is_cut_in_part) {
                return Err(busy("a truncation has not ended"));
            }
            if state.as_ref().is_some_and(|state| state.is_tmpfile) {
                handed.tmpfiles.push(id);
            }
        }
        Ok(handed)
    }

    /// Takes over what the program before has handed over: before anything is reaped.
    pub(crate) async fn take_over(self: &Arc<Self>, handed: &NumberedState) -> Result<()> {
        let references = if is_on("handed-over-without-references") { &[] } else { &*handed.references };
        for (id, references) in references {
            self.nodes.take_over(id.0, *references);
        }
        for id in &handed.tmpfiles {
            self.pin(id.0).lock().await?.is_tmpfile = true;
        }
        Ok(())
    }

    /// Makes the root of a new volume: it belongs to this process.
    async fn make_root(&self) -> Result<()> {
        if self.engine.get(&inode_key(ROOT)).await?.is_some() {
            return Ok(());
        }
        let creator = Creator {
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            umask: 0,
        };
        let row = InodeRow { nlink: 2, parent: ROOT, ..new_row(Kind::Directory, 0o755, creator) };
        let mut batch = Batch::default();
        batch.put(inode_key(ROOT), to_bytes(&row));
        batch.put(rows::COUNTED.to_vec(), bytes::Bytes::new());
        batch.totals.inodes = 1;
        self.write(batch).await
    }

    /// The row of an inode.
    pub(crate) async fn load(&self, ino: u64) -> Result<(InodeRow, Option<u64>)> {
        let row = self.engine.get(&inode_key(ino)).await?;
        rows::inode_from_bytes(&row.ok_or_else(|| Error::new(ErrorKind::Stale, "find inode"))?)
    }

    pub(crate) async fn write(&self, batch: Batch) -> Result<()> {
        let (change, usage) = (batch.totals, batch.quota_usage.clone());
        self.engine.write(batch).await?;
        self.quotas.written(&usage);
        let mut totals = self.totals.lock();
        totals.bytes += change.bytes;
        totals.inodes += change.inodes;
        Ok(())
    }

    /// Whether the journal's files have a change before its caller is answered.
    pub(crate) fn accepts_on_host(&self) -> bool {
        self.segments.accepts_on_host()
    }

    /// A change, which outlives this process when this returns, if that was asked for.
    ///
    /// # Errors
    /// Its own; and the log's, which has failed.
    pub(crate) async fn accept<T>(&self, change: impl Future<Output = Result<T>> + Send) -> Result<T> {
        let done = change.await?;
        if self.accepts_on_host() && !is_on("journal-accepted-unwritten") {
            self.engine.accept_on_host().await?;
        }
        Ok(done)
    }

    pub(crate) fn new_ino(&self) -> u64 {
        // ORDERING: Relaxed, a number that is given once; nothing else is published with it.
        self.next_ino.fetch_add(1, Ordering::Relaxed)
    }

    /// What `name` names in a directory.
    pub(crate) async fn entry(&self, dir: u64, name: &OsStr) -> Result<Option<EntryRow>> {
        let row = self.engine.get(&entry_key(dir, name)).await?;
        row.map(|row| rows::from_bytes(&row, "a directory entry")).transpose()
    }

    /// What `name` names in a directory, with a reference.
    pub(crate) async fn child(self: &Arc<Self>, dir: u64, name: &OsStr, op: &'static str) -> Result<Pin> {
        let entry = self.entry(dir, name).await?.ok_or_else(|| Error::new(ErrorKind::NotFound, op))?;
        Ok(self.pin(entry.ino))
    }

    /// Whether a directory has a name.
    pub(crate) async fn has_entries(&self, dir: u64) -> Result<bool> {
        Ok(!self.engine.scan(rows::keys_of(b'D', dir), 1).await?.is_empty())
    }

    pub(crate) async fn lookup(self: &Arc<Self>, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        let op = "lookup";
        let dir = self.pin_used(parent.0, op)?;
        if !dir.lock().await?.row.is_dir() {
            return fail(ErrorKind::NotDirectory, op);
        }
        let child = self.child(parent.0, name.as_os_str(), op).await?;
        child.named(parent.0, name.as_os_str());
        self.refer(child).await.map_err(|error| match error.kind() {
            // Removed since its name was found.
            ErrorKind::Stale => Error::new(ErrorKind::NotFound, op),
            _ => error,
        })
    }

    /// The entry of an inode, with the reference.
    pub(crate) async fn refer(&self, pin: Pin) -> Result<Entry> {
        let attr = pin.lock().await?.row.attr(pin.ino);
        let id = ObjectId(pin.ino);
        pin.keep();
        Ok(Entry { id, attr, generation: 0 })
    }

    pub(crate) async fn recall(self: &Arc<Self>, ino: u64) -> Result<Entry> {
        if let Ok(pin) = self.pin_used(ino, "recall") {
            return self.refer(pin).await;
        }
        let pin = self.pin(ino);
        if pin.lock().await?.row.nlink == 0 {
            return fail(ErrorKind::Stale, "recall");
        }
        self.refer(pin).await
    }

    pub(crate) async fn recall_parent(self: &Arc<Self>, ino: u64) -> Result<Entry> {
        let op = "recall parent";
        let pin = self.pin(ino);
        let row = pin.lock().await?.row.clone();
        if !row.is_dir() || row.nlink == 0 || ino == ROOT {
            return fail(ErrorKind::Stale, op);
        }
        self.refer(self.pin(row.parent)).await
    }

    pub(crate) async fn attr(self: &Arc<Self>, id: ObjectId) -> Result<Attr> {
        Ok(self.pin_used(id.0, "attr")?.lock().await?.row.attr(id.0))
    }

    /// Makes `name` in `parent`; its caller has a reference.
    pub(crate) async fn make(
        self: &Arc<Self>,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        let op = "make";
        let name = name.as_os_str();
        let dir = self.pin_used(parent.0, op)?;
        let mut dir_state = dir.lock().await?;
        if !dir_state.row.is_dir() {
            return fail(ErrorKind::NotDirectory, op);
        }
        // A removed directory gets no entries.
        if dir_state.row.nlink == 0 {
            return fail(ErrorKind::NotFound, op);
        }
        if self.entry(parent.0, name).await?.is_some() {
            return fail(ErrorKind::Exists, op);
        }
        let mut row = inherit(&dir_state.row, what, perm, creator)?;
        let promised = self.promise_inode(&dir_state, op)?;
        let ino = self.new_ino();
        let mut batch = Batch::default();
        if row.is_dir() {
            row.nlink = 2;
            row.parent = parent.0;
            dir_state.row.nlink += 1;
        }
        self.inherit_acl((parent.0, ino), &mut row, perm, &mut batch).await?;
        (dir_state.row.mtime, dir_state.row.ctime) = (row.ctime, row.ctime);
        let kind = row.kind;
        let (pin, mut state) = self.pin_new(ino, State::made(row, promised.project)).await;
        state.put_new(ino, &self.quotas, &mut batch);
        let entry = EntryRow { ino, kind };
        batch.put(entry_key(parent.0, name), to_bytes(&entry));
        dir_state.put(parent.0, &self.quotas, &mut batch);
        batch.totals.inodes = 1;
        let changing = dir.names.changing();
        self.write(batch).await?;
        changing.end(&NameChange::made(name, entry));
        promised.keep();
        if kind == Kind::Directory {
            pin.names.none_yet();
        }
        if kind == Kind::Regular {
            self.extent_cache.give(ino, Known::All(FileExtents::default()));
        }
        drop((state, dir_state));
        pin.named(parent.0, name);
        self.refer(pin).await
    }

    /// Makes a regular file without a name; its caller has a reference.
    pub(crate) async fn tmpfile(
        self: &Arc<Self>,
        parent: ObjectId,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        let op = "tmpfile";
        let dir = self.pin_used(parent.0, op)?;
        // Locked until the file is there, so that a walk that counts inodes finds it.
        let dir_state = dir.lock().await?;
        if !dir_state.row.is_dir() {
            return fail(ErrorKind::NotDirectory, op);
        }
        let what = NewNode::Special { kind: FileType::Regular, rdev: 0 };
        let mut row = inherit(&dir_state.row, what, perm, creator)?;
        let promised = self.promise_inode(&dir_state, op)?;
        row.nlink = 0;
        let ino = self.new_ino();
        let mut batch = Batch::default();
        self.inherit_acl((parent.0, ino), &mut row, perm, &mut batch).await?;
        let (pin, mut state) = self.pin_new(ino, State::made(row, promised.project)).await;
        state.is_tmpfile = true;
        state.put_new(ino, &self.quotas, &mut batch);
        batch.put(orphan_key(ino), bytes::Bytes::new());
        batch.totals.inodes = 1;
        self.write(batch).await?;
        promised.keep();
        self.extent_cache.give(ino, Known::All(FileExtents::default()));
        drop((state, dir_state));
        self.refer(pin).await
    }

    pub(crate) async fn link(
        self: &Arc<Self>,
        id: ObjectId,
        parent: ObjectId,
        name: Name<'_>,
    ) -> Result<Entry> {
        let op = "link";
        let name = name.as_os_str();
        let (node, dir) = (self.pin_used(id.0, op)?, self.pin_used(parent.0, op)?);
        let mut locked = LockedNodes::lock(&[&node, &dir]).await?;
        let dir_row = &locked.of(parent.0).row;
        if !dir_row.is_dir() {
            return fail(ErrorKind::NotDirectory, op);
        }
        if dir_row.nlink == 0 {
            return fail(ErrorKind::NotFound, op);
        }
        if self.entry(parent.0, name).await?.is_some() {
            return fail(ErrorKind::Exists, op);
        }
        let project = locked.of(parent.0).project();
        let state = locked.of(id.0);
        if state.row.is_dir() {
            return fail(ErrorKind::NotPermitted, op);
        }
        if state.row.nlink == 0 && !state.is_tmpfile {
            return fail(ErrorKind::NotFound, op);
        }
        if state.row.nlink >= NLINK_MAX {
            return fail(ErrorKind::TooManyLinks, op);
        }
        if state.project() != project {
            return fail(ErrorKind::CrossDevice, op);
        }
        let mut batch = Batch::default();
        if state.row.nlink == 0 {
            batch.delete(orphan_key(id.0));
        }
        state.is_tmpfile = false;
        state.row.nlink += 1;
        state.row.ctime = now();
        let kind = state.row.kind;
        state.put(id.0, &self.quotas, &mut batch);
        let entry = EntryRow { ino: id.0, kind };
        batch.put(entry_key(parent.0, name), to_bytes(&entry));
        touch(locked.of(parent.0));
        locked.of(parent.0).put(parent.0, &self.quotas, &mut batch);
        let changing = dir.names.changing();
        self.write(batch).await?;
        changing.end(&NameChange::made(name, entry));
        drop(locked);
        node.named(parent.0, name);
        self.refer(node).await
    }

    pub(crate) async fn remove(
        self: &Arc<Self>,
        parent: ObjectId,
        name: Name<'_>,
        is_dir: bool,
    ) -> Result<()> {
        let op = if is_dir { "rmdir" } else { "unlink" };
        let name = name.as_os_str();
        let dir = self.pin_used(parent.0, op)?;
        let (node, mut locked) = loop {
            let node = self.child(parent.0, name, op).await?;
            let locked = LockedNodes::lock(&[&dir, &node]).await;
            // Another call may have changed the name since.
            if self.entry(parent.0, name).await?.is_some_and(|entry| entry.ino == node.ino) {
                break (node, locked?);
            }
        };
        let row = &locked.of(node.ino).row;
        match (row.is_dir(), is_dir) {
            (true, false) => return fail(ErrorKind::IsDirectory, op),
            (false, true) => return fail(ErrorKind::NotDirectory, op),
            _ => {}
        }
        if is_dir && self.has_entries(node.ino).await? {
            return fail(ErrorKind::NotEmpty, op);
        }
        let mut batch = Batch::default();
        batch.delete(entry_key(parent.0, name));
        self.unlinked(node.ino, locked.of(node.ino), &mut batch);
        let dir_state = locked.of(parent.0);
        if is_dir {
            dir_state.row.nlink = dir_state.row.nlink.saturating_sub(1);
        }
        touch(dir_state);
        dir_state.put(parent.0, &self.quotas, &mut batch);
        let changing = dir.names.changing();
        self.write(batch).await?;
        changing.end(&NameChange::removed(name));
        Ok(())
    }

    /// Removes an inode that has no name and no reference any more.
    pub(crate) async fn reap(self: Arc<Self>, ino: u64) {
        if let Err(error) = self.try_reap(ino).await {
            // Its orphan row is there: the next mount removes it.
            tracing::debug!(ino, %error, "a removed file's space is given back later");
        }
    }

    async fn try_reap(self: &Arc<Self>, ino: u64) -> Result<()> {
        // A lookup by number may have had it meanwhile, and given it back: it is removed once.
        let Some(_reaping) = Reaping::begin(&self.reaping, ino) else { return Ok(()) };
        if self.engine.get(&inode_key(ino)).await?.is_none() {
            return Ok(());
        }
        drop(self.extent_cache.take(ino));
        loop {
            let extents = self.engine.scan(rows::keys_of(b'E', ino), REAP_BATCH).await?;
            let xattrs = self.engine.scan(rows::keys_of(b'X', ino), REAP_BATCH).await?;
            let is_last = extents.len() < REAP_BATCH && xattrs.len() < REAP_BATCH;
            let mut batch = Batch::default();
            for (key, row) in extents {
                let extent: rows::ExtentRow = rows::from_bytes(&row, "an extent")?;
                batch.totals.bytes -= i64::try_from(extent.len).unwrap_or(i64::MAX);
                batch.unrefer(&extent);
                batch.delete(key.to_vec());
            }
            xattrs.into_iter().for_each(|(key, _)| batch.delete(key.to_vec()));
            if is_last {
                // Locked until it is gone: a walk that counts inodes finds it before, or not at all.
                let pin = self.pin(ino);
                let (state, _lock) = pin.lock().await?.take();
                batch.delete(inode_key(ino));
                batch.delete(orphan_key(ino));
                batch.totals.inodes = -1;
                self.no_more_counted(state, &mut batch);
                return self.write(batch).await;
            }
            self.write(batch).await?;
        }
    }

    /// Removes what earlier holders left without a name, and ends what they have begun to truncate.
    async fn reap_all(self: &Arc<Self>) -> Result<()> {
        let mut keys = rows::all_keys(b'O');
        loop {
            let orphans = self.engine.scan(keys.clone(), REAP_BATCH).await?;
            let Some((last, _)) = orphans.last() else { return Ok(()) };
            keys.start = last.to_vec();
            keys.start.push(0);
            for (key, size) in orphans {
                let ino = rows::ino_of(&key)?;
                let is_used = self.nodes.is_used(ino) && !is_on("handed-over-and-reaped");
                if size.is_empty() && is_used {
                    // Whoever gives the last reference back finds in the state that it has no name.
                    self.pin(ino).lock().await?;
                } else if size.is_empty() {
                    self.try_reap(ino).await?;
                } else {
                    self.finish_truncation(ino, &size).await?;
                }
            }
        }
    }

    /// One name of an inode is taken away.
    pub(crate) fn unlinked(&self, ino: u64, state: &mut State, batch: &mut Batch) {
        state.row.ctime = now();
        state.row.nlink = if state.row.is_dir() { 0 } else { state.row.nlink.saturating_sub(1) };
        if state.row.nlink == 0 {
            batch.put(orphan_key(ino), bytes::Bytes::new());
            if state.project == Some(ino) {
                // A quota goes with its directory.
                batch.delete(rows::quota_key(ino));
                self.quotas.remove(ino);
            }
        }
        state.put(ino, &self.quotas, batch);
    }

    pub(crate) async fn read_link(self: &Arc<Self>, id: ObjectId) -> Result<OsString> {
        let op = "read link";
        let pin = self.pin_used(id.0, op)?;
        let state = pin.lock().await?;
        if state.row.kind != Kind::Symlink {
            return fail(ErrorKind::Invalid, op);
        }
        Ok(OsString::from_vec(state.row.target.clone()))
    }

    /// Changes attributes other than the size.
    pub(crate) async fn set_attr(self: &Arc<Self>, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        let op = "set attr";
        if set.uid == Some(u32::MAX) || set.gid == Some(u32::MAX) {
            return fail(ErrorKind::Invalid, op);
        }
        let pin = self.pin_used(id.0, op)?;
        if let Some(size) = set.size {
            self.set_size(&pin, size).await?;
        }
        let mut state = pin.lock().await?;
        if set.perm.is_some() && state.row.kind == Kind::Symlink {
            return fail(ErrorKind::Unsupported, op);
        }
        if *set == SetAttr::default() {
            return Ok(state.row.attr(id.0));
        }
        let mut batch = Batch::default();
        let row = &mut state.row;
        row.ctime = now();
        if set.uid.is_some() || set.gid.is_some() {
            row.uid = set.uid.unwrap_or(row.uid);
            row.gid = set.gid.unwrap_or(row.gid);
            if !row.is_dir() {
                row.perm &= !SET_UID;
                if row.perm & GROUP_EXEC != 0 {
                    row.perm &= !SET_GID;
                }
            }
        }
        if let Some(perm) = set.perm {
            row.perm = perm & 0o7777;
            self.chmod_acl(id.0, row.perm, &mut batch).await?;
        }
        let changed = row.ctime;
        let time = |set: Option<TimeSet>, old| match set {
            None => old,
            Some(TimeSet::Now) => changed,
            Some(TimeSet::At(at)) => at.into(),
        };
        row.atime = time(set.atime, row.atime);
        row.mtime = time(set.mtime, row.mtime);
        state.put(id.0, &self.quotas, &mut batch);
        let attr = state.row.attr(id.0);
        self.write(batch).await?;
        Ok(attr)
    }

    /// A path of an inode, for a person to read: of a file, the name by which it was found last, if
    /// it has it still.
    pub(crate) async fn path_of(self: &Arc<Self>, id: ObjectId) -> Option<PathBuf> {
        let mut parts = Vec::new();
        let mut at = id.0;
        while at != ROOT && parts.len() < DEPTH_MAX {
            let (dir, name) = self.name_of(at).await?;
            parts.push(name);
            at = dir;
        }
        (at == ROOT).then(|| parts.iter().rev().collect())
    }

    async fn name_of(self: &Arc<Self>, ino: u64) -> Option<(u64, OsString)> {
        let pin = self.pin(ino);
        if let Some((dir, name)) = pin.last_name()
            && self.entry(dir, &name).await.ok()?.is_some_and(|entry| entry.ino == ino)
        {
            return Some((dir, name));
        }
        // Only directories know where they are; another file's name would take a search.
        let row = pin.lock().await.ok()?.row.clone();
        if !row.is_dir() {
            return None;
        }
        let rows = self.engine.scan(rows::keys_of(b'D', row.parent), SEARCHED_MAX).await.ok()?;
        let (key, _) = rows.iter().find(|(_, entry)| {
            rows::from_bytes::<EntryRow>(entry, "a directory entry").is_ok_and(|entry| entry.ino == ino)
        })?;
        Some((row.parent, OsString::from_vec(rows::rest_of(key).to_vec())))
    }
}

/// Moves the times of a directory's last change.
pub(crate) fn touch(dir: &mut State) {
    let now = now();
    (dir.row.mtime, dir.row.ctime) = (now, now);
}

pub(crate) fn new_row(kind: Kind, perm: u32, creator: Creator) -> InodeRow {
    let now = now();
    InodeRow {
        kind,
        perm: perm & 0o7777,
        nlink: 1,
        uid: creator.uid,
        gid: creator.gid,
        rdev: 0,
        size: 0,
        allocated: 0,
        atime: now,
        mtime: now,
        ctime: now,
        parent: 0,
        target: Vec::new(),
    }
}

/// The row of a new inode in a directory.
fn inherit(dir: &InodeRow, what: NewNode<'_>, perm: u32, mut creator: Creator) -> Result<InodeRow> {
    let mut perm = perm & !(creator.umask & 0o777);
    if dir.perm & SET_GID != 0 {
        creator.gid = dir.gid;
        if matches!(what, NewNode::Directory) {
            perm |= SET_GID;
        }
    }
    Ok(match what {
        NewNode::Directory => new_row(Kind::Directory, perm, creator),
        NewNode::Symlink(target) => {
            let target = target.as_bytes().to_vec();
            InodeRow { size: target.len() as u64, target, ..new_row(Kind::Symlink, 0o777, creator) }
        }
        NewNode::Special { kind: FileType::Directory | FileType::Symlink, .. } => {
            return fail(ErrorKind::Invalid, "make");
        }
        NewNode::Special { kind: kind @ (FileType::CharDevice | FileType::BlockDevice), rdev } => {
            InodeRow { rdev, ..new_row(kind.into(), perm, creator) }
        }
        NewNode::Special { kind, .. } => new_row(kind.into(), perm, creator),
    })
}
