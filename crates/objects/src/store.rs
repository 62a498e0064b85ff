//! The store trait over a volume in a bucket: each call waits on its own thread until it has ended.

use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use recovery::{NodeKey, Place};
use store::{
    Access, AllocateMode, Attr, Created, Creator, Dir, Entry, Error, ErrorKind, File, FileType, Incoming,
    Kept, Name, NewNode, NumberedState, ObjectId, OnChange, OpenDirState, RenameFlags, RequestStats, Result,
    Seek, SetAttr, SetXattr, Snapshot, Snapshots, StatFs, Store, StoreState,
};
use tokio::runtime::Handle;

use crate::data::WRITE_BEHIND_BYTES;
use crate::mount::Mounted;
use crate::node::Pin;
use crate::open_dir::{BucketDir, Names};
use crate::quota_attribute::QuotaAttribute;
use crate::quotas::VOLUME;
use crate::read_ahead::Streams;
use crate::rows::Kind;
use crate::tree::Tree;
use crate::wait::{read, wait, wait_for_task};

/// Unit of the sizes that [`Store::statfs`] returns.
const FRAGMENT: u32 = 4096;
/// The size of a bucket, which has none.
const SIZE_SHOWN: u64 = 1 << 50;
/// How long what others may change is remembered at most.
const KEPT_MAX: Duration = Duration::from_secs(1);

/// A store in a bucket.
#[derive(Debug)]
pub(crate) struct BucketStore {
    url: String,
    mounted: Arc<Mounted>,
    tree: Arc<Tree>,
    runtime: Handle,
}

impl BucketStore {
    pub(crate) fn new(url: String, mounted: Arc<Mounted>, runtime: Handle) -> Arc<Self> {
        Arc::new(Self { url, tree: Arc::clone(mounted.tree()), mounted, runtime })
    }

    fn wait<F: Future>(&self, future: F) -> F::Output {
        wait(&self.runtime, future)
    }

    /// Waits for a call that is seldom made, and may be deep.
    fn on_mounted<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        call: impl FnOnce(Arc<Mounted>) -> F,
    ) -> T {
        wait_for_task(&self.runtime, call(Arc::clone(&self.mounted)))
    }

    fn read<F: Future>(&self, id: ObjectId, future: F) -> F::Output {
        read(&self.tree, &self.runtime, id.0, future)
    }

    /// The tree, for a change. Of a volume that is only read nothing is changed, in memory neither.
    fn changing(&self, op: &'static str) -> Result<&Arc<Tree>> {
        if self.mounted.is_read_only() {
            return Err(Error::new(ErrorKind::ReadOnly, op));
        }
        Ok(&self.tree)
    }

    /// Waits for a change, which outlives this process then, if that was asked for.
    fn wait_accepted<T>(&self, change: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.wait(self.tree.accept(change))
    }

    fn file(&self, pin: Pin) -> Arc<BucketFile> {
        let (tree, runtime, streams) = (Arc::clone(&self.tree), self.runtime.clone(), Streams::default());
        Arc::new(BucketFile { tree, pin, runtime, streams })
    }

    /// A directory that is to be opened.
    fn dir(&self, id: ObjectId) -> Result<Pin> {
        let op = "open dir";
        let pin = self.tree.pin_used(id.0, op)?;
        if !self.read(id, pin.lock())?.row.is_dir() {
            return Err(Error::new(ErrorKind::NotDirectory, op));
        }
        Ok(pin)
    }

    fn open_dir_again(&self, pin: Pin, names: Option<Names>) -> Arc<dyn Dir> {
        Arc::new(BucketDir::with(Arc::clone(&self.tree), pin, self.runtime.clone(), names))
    }

    fn created(&self, entry: Entry) -> Result<Created> {
        let file = self.file(self.tree.pin_used(entry.id.0, "create")?);
        Ok(Created { entry, file })
    }
}

impl Store for BucketStore {
    fn describe(&self) -> String {
        self.url.clone()
    }

    fn is_read_only(&self) -> bool {
        self.mounted.is_read_only()
    }

    fn promise_size(&self, id: ObjectId, size: u64) -> Result<u64> {
        let op = "write";
        let pin = self.changing(op)?.pin_used(id.0, op)?;
        self.wait(self.tree.promise_size(&pin, size)).map(|()| size)
    }

    fn may_be_kept(&self) -> Option<Duration> {
        self.tree.engine.followed().map(|followed| followed.every().min(KEPT_MAX))
    }

    fn on_change(&self, tell: OnChange) {
        if let Some(followed) = self.tree.engine.followed() {
            followed.on_change(tell);
        }
    }

    fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.read(parent, self.tree.lookup(parent, name))
    }

    fn recall(&self, id: ObjectId) -> Result<Entry> {
        self.read(id, self.tree.recall(id.0))
    }

    fn recall_parent(&self, id: ObjectId) -> Result<Entry> {
        self.read(id, self.tree.recall_parent(id.0))
    }

    fn forget(&self, id: ObjectId, n: u64) {
        self.tree.forget(id.0, n);
    }

    fn attr(&self, id: ObjectId) -> Result<Attr> {
        self.read(id, self.tree.attr(id))
    }

    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        self.wait_accepted(self.changing("set attr")?.set_attr(id, set))
    }

    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created> {
        let what = NewNode::Special { kind: FileType::Regular, rdev: 0 };
        self.created(self.wait_accepted(self.changing("make")?.make(parent, name, what, perm, creator))?)
    }

    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created> {
        self.created(self.wait_accepted(self.changing("tmpfile")?.tmpfile(parent, perm, creator))?)
    }

    fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        self.wait_accepted(self.changing("make")?.make(parent, name, what, perm, creator))
    }

    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.wait_accepted(self.changing("link")?.link(id, parent, name))
    }

    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.wait_accepted(self.changing("unlink")?.remove(parent, name, false))
    }

    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.wait_accepted(self.changing("rmdir")?.remove(parent, name, true))
    }

    fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.wait_accepted(self.changing("rename")?.rename(parent, name, new_parent, new_name, flags))
    }

    fn read_link(&self, id: ObjectId) -> Result<OsString> {
        self.read(id, self.tree.read_link(id))
    }

    fn open(&self, id: ObjectId, _access: Access) -> Result<Arc<dyn File>> {
        let op = "open";
        let pin = self.tree.pin_used(id.0, op)?;
        let kind = self.read(id, pin.lock())?.row.kind;
        let kind = match kind {
            Kind::Regular => return Ok(self.file(pin)),
            Kind::Directory => ErrorKind::IsDirectory,
            Kind::Symlink => ErrorKind::Loop,
            _ => ErrorKind::Invalid,
        };
        Err(Error::new(kind, op))
    }

    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>> {
        let dir = BucketDir::open(Arc::clone(&self.tree), self.dir(id)?, self.runtime.clone())?;
        Ok(Arc::new(dir))
    }

    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        self.dir(id)?;
        self.wait(self.tree.engine.commit_to_host())
    }

    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64> {
        let op = "copy range";
        let (src, dst) = (self.tree.pin_used(src.0, op)?, self.tree.pin_used(dst.0, op)?);
        self.wait_accepted(self.changing(op)?.copy_range((&src, src_off), (&dst, dst_off), len))
    }

    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        if let Some(what) = QuotaAttribute::of(name) {
            return self.wait(what.get(&self.tree, id));
        }
        self.read(id, self.tree.get_xattr(id, name))
    }

    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        if let Some(what) = QuotaAttribute::of(name) {
            return self.wait_accepted(what.set(&self.mounted, id, value));
        }
        self.wait_accepted(self.changing("set xattr")?.set_xattr(id, name, value, how))
    }

    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        self.read(id, self.tree.list_xattr(id))
    }

    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        if let Some(what) = QuotaAttribute::of(name) {
            return self.wait_accepted(what.remove(self.changing("quota")?, id));
        }
        self.wait_accepted(self.changing("remove xattr")?.remove_xattr(id, name))
    }

    fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        self.read(id, self.tree.path_of(id))
    }

    fn statfs(&self) -> Result<StatFs> {
        let totals = *self.tree.totals.lock();
        let unit = u64::from(FRAGMENT);
        let used = u64::try_from(totals.bytes).unwrap_or(0).saturating_add(self.tree.pending.bytes());
        let size = self.tree.size_max.unwrap_or(SIZE_SHOWN);
        let (mut size, mut free) = (size, size.saturating_sub(used));
        let files = u64::try_from(totals.inodes).unwrap_or(0);
        let mut ffree = u64::from(u32::MAX);
        if let Some(quota) = self.tree.quotas.get(VOLUME) {
            let charged = quota.charged();
            if let Some(limit) = quota.row.limits.bytes {
                let left = limit.saturating_sub(u64::try_from(charged.bytes).unwrap_or(0));
                (size, free) = (size.min(limit), free.min(left));
            }
            if let Some(limit) = quota.row.limits.inodes {
                ffree = limit.saturating_sub(u64::try_from(charged.inodes).unwrap_or(0));
            }
        }
        let free = free / unit;
        Ok(StatFs {
            frsize: FRAGMENT,
            bsize: FRAGMENT,
            blocks: size / unit,
            bfree: free,
            bavail: free,
            files: files + ffree,
            ffree,
            namelen: 255,
        })
    }

    fn warm(&self, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        self.read(id, self.tree.warm(id.0, offset, len))
    }

    fn is_warm(&self, id: ObjectId, offset: u64, len: u64) -> Result<bool> {
        self.read(id, self.tree.is_warm(id.0, offset, len))
    }

    fn requests(&self) -> Option<RequestStats> {
        Some(self.mounted.requests())
    }

    fn snapshots(&self) -> Option<&dyn Snapshots> {
        Some(self)
    }

    fn sync(&self) -> Result<()> {
        self.wait(self.tree.sync_all())
    }

    fn key(&self, id: ObjectId) -> Result<NodeKey> {
        let op = "key";
        let pin = self.changing(op)?.pin_used(id.0, op)?;
        Ok(NumberedState::key(id, self.wait(pin.lock())?.is_tmpfile))
    }

    fn keeps_nameless(&self) -> bool {
        true
    }

    fn write_behind_bytes(&self) -> Option<u64> {
        Some(WRITE_BEHIND_BYTES)
    }

    fn lists_by_order(&self) -> bool {
        true
    }

    fn open_dir_behind(&self, id: ObjectId, places: Vec<Place>) -> Result<Arc<dyn Dir>> {
        Ok(self.open_dir_again(self.dir(id)?, Names::behind(places)))
    }

    fn recoverable(&self, _lock: RawFd) -> Option<(StoreState, Arc<OwnedFd>)> {
        // It is its journal's.
        let (state, lock) = self.mounted.recoverable()?;
        Some((StoreState::Numbered(state), lock))
    }

    fn hand_over(&self, _kept: &mut Kept, _until: Instant) -> Result<StoreState> {
        let op = "hand the store over";
        self.changing(op)?;
        self.mounted.hand_over().map(StoreState::Numbered)
    }

    fn take_over_dir(
        &self,
        id: ObjectId,
        state: &OpenDirState,
        _incoming: &Incoming,
    ) -> Result<Arc<dyn Dir>> {
        let op = "take over a directory";
        let names = match state {
            OpenDirState::Listed(listed) if listed.is_empty() => None,
            OpenDirState::Listed(listed) => Some(Names::from_text(listed)?),
            OpenDirState::ListedBytes(listed) => Some(Names::from_bytes(listed)?),
            OpenDirState::Fd(_) => return Err(Error::new(ErrorKind::Invalid, op)),
        };
        Ok(self.open_dir_again(self.tree.pin_used(id.0, op)?, names))
    }

    fn abort(&self) {
        self.mounted.abort();
    }

    fn close(&self) {
        self.on_mounted(|mounted| async move { mounted.close().await });
    }
}

impl Snapshots for BucketStore {
    fn create(&self, name: &str) -> Result<Snapshot> {
        let name = name.to_owned();
        self.on_mounted(|mounted| async move { mounted.create_snapshot(&name).await }).map(Snapshot::from)
    }

    fn delete(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        self.on_mounted(|mounted| async move { mounted.delete_snapshot(&name).await })
    }

    fn list(&self) -> Result<Vec<Snapshot>> {
        let snapshots = self.on_mounted(|mounted| async move { mounted.snapshots().await })?;
        Ok(snapshots.into_iter().map(Snapshot::from).collect())
    }
}

/// An open file.
#[derive(Debug)]
struct BucketFile {
    tree: Arc<Tree>,
    pin: Pin,
    runtime: Handle,
    streams: Streams,
}

impl File for BucketFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        let streamed = self.tree.read_stream(&self.pin, &self.streams, buf, offset);
        read(&self.tree, &self.runtime, self.pin.ino, streamed)
    }

    fn charge_to(&self, tenant: u64) {
        // ORDERING: Relaxed, a figure alone. Of two writes to a file at the same time each may count
        // for the tenant of the other.
        self.pin.tenant.store(tenant, Ordering::Relaxed);
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        wait(&self.runtime, self.tree.accept_write(&self.pin, bufs, offset))
    }

    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        wait(&self.runtime, self.tree.accept(self.tree.allocate(&self.pin, mode, offset, len)))
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        read(&self.tree, &self.runtime, self.pin.ino, self.tree.seek(&self.pin, what, offset))
    }

    fn sync(&self, _data_only: bool) -> Result<()> {
        wait(&self.runtime, self.tree.sync_file(&self.pin))
    }
}

impl Drop for BucketFile {
    fn drop(&mut self) {
        self.tree.on_close(&self.pin);
    }
}
