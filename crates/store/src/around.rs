//! A store around another one, for code that has to see each call: the delegation, written once.

use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::os::fd::{BorrowedFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use handover::{Incoming, Kept};
use recovery::{NodeKey, Place};

use crate::{
    Access, AllocateMode, Attr, Created, Creator, Dir, DirEntry, Entry, File, Name, NewNode, ObjectId,
    OnChange, OpenDirState, RenameFlags, RequestStats, Result, Seek, SetAttr, SetXattr, Snapshots, StatFs,
    Store, StoreState,
};

/// The code around each call.
pub trait Around: Send + Sync + 'static {
    /// The name of the store, `inner` being that of the store inside.
    fn describe(&self, inner: String) -> String {
        inner
    }

    /// Makes the call `op`.
    fn call<T>(&self, op: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T>;

    /// Makes the call `write` of a file.
    fn write(&self, file: &dyn File, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.call("write", || file.write_at(bufs, offset))
    }

    /// Makes a call without a result: `forget` and `close`.
    fn tell<T>(&self, op: &'static str, work: impl FnOnce() -> T) -> T;

    /// Ends an open file or directory, `op` being `close_file` or `close_dir`.
    fn end(&self, op: &'static str, work: impl FnOnce()) {
        let _ = op;
        work();
    }
}

/// The store. [`Store::path_of`], [`Store::generation`], [`Store::promise_size`], [`File::charge_to`]
/// and what a store knows of itself are passed on as they are.
pub struct AroundStore<A> {
    pub(crate) inner: Arc<dyn Store>,
    pub(crate) around: Arc<A>,
}

impl<A> std::fmt::Debug for AroundStore<A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AroundStore").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<A: Around> AroundStore<A> {
    fn wrap(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(AroundOpen { inner: Some(inner), around: Arc::clone(&self.around), end: "close_file" })
    }
    fn wrap_dir(&self, inner: Arc<dyn Dir>) -> Arc<dyn Dir> {
        Arc::new(AroundOpen { inner: Some(inner), around: Arc::clone(&self.around), end: "close_dir" })
    }
}

impl<A: Around> Store for AroundStore<A> {
    fn describe(&self) -> String {
        self.around.describe(self.inner.describe())
    }
    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }
    fn promise_size(&self, id: ObjectId, size: u64) -> Result<u64> {
        self.inner.promise_size(id, size)
    }
    fn may_be_kept(&self) -> Option<Duration> {
        self.inner.may_be_kept()
    }
    fn on_change(&self, tell: OnChange) {
        self.inner.on_change(tell);
    }
    fn file_size_max(&self) -> u64 {
        self.inner.file_size_max()
    }
    fn idle_files_max(&self) -> usize {
        self.inner.idle_files_max()
    }
    fn requests(&self) -> Option<RequestStats> {
        self.inner.requests()
    }
    fn snapshots(&self) -> Option<&dyn Snapshots> {
        self.inner.snapshots()
    }
    fn warm(&self, id: ObjectId, offset: u64, len: u64) -> Result<()> {
        self.around.call("warm", || self.inner.warm(id, offset, len))
    }
    fn is_warm(&self, id: ObjectId, offset: u64, len: u64) -> Result<bool> {
        self.inner.is_warm(id, offset, len)
    }
    fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.around.call("lookup", || self.inner.lookup(parent, name))
    }
    fn recall(&self, id: ObjectId) -> Result<Entry> {
        self.around.call("recall", || self.inner.recall(id))
    }
    fn recall_parent(&self, id: ObjectId) -> Result<Entry> {
        self.around.call("recall_parent", || self.inner.recall_parent(id))
    }
    fn generation(&self, id: ObjectId) -> u32 {
        self.inner.generation(id)
    }
    fn forget(&self, id: ObjectId, n: u64) {
        self.around.tell("forget", || self.inner.forget(id, n));
    }
    fn attr(&self, id: ObjectId) -> Result<Attr> {
        self.around.call("attr", || self.inner.attr(id))
    }
    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        self.around.call("set_attr", || self.inner.set_attr(id, set))
    }
    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created> {
        let created = self.around.call("create", || self.inner.create(parent, name, perm, creator))?;
        Ok(Created { file: self.wrap(created.file), ..created })
    }
    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created> {
        let created = self.around.call("tmpfile", || self.inner.tmpfile(parent, perm, creator))?;
        Ok(Created { file: self.wrap(created.file), ..created })
    }
    fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        self.around.call("make", || self.inner.make(parent, name, what, perm, creator))
    }
    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.around.call("link", || self.inner.link(id, parent, name))
    }
    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.around.call("unlink", || self.inner.unlink(parent, name))
    }
    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.around.call("rmdir", || self.inner.rmdir(parent, name))
    }
    fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        self.around.call("rename", || self.inner.rename(parent, name, new_parent, new_name, flags))
    }
    fn read_link(&self, id: ObjectId) -> Result<OsString> {
        self.around.call("read_link", || self.inner.read_link(id))
    }
    fn open(&self, id: ObjectId, access: Access) -> Result<Arc<dyn File>> {
        Ok(self.wrap(self.around.call("open", || self.inner.open(id, access))?))
    }
    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>> {
        let inner = self.around.call("open_dir", || self.inner.open_dir(id))?;
        Ok(self.wrap_dir(inner))
    }
    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        self.around.call("sync_dir", || self.inner.sync_dir(id))
    }
    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64> {
        self.around.call("copy_range", || self.inner.copy_range(src, src_off, dst, dst_off, len))
    }
    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        self.around.call("get_xattr", || self.inner.get_xattr(id, name))
    }
    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        self.around.call("set_xattr", || self.inner.set_xattr(id, name, value, how))
    }
    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        self.around.call("list_xattr", || self.inner.list_xattr(id))
    }
    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        self.around.call("remove_xattr", || self.inner.remove_xattr(id, name))
    }
    fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        self.inner.path_of(id)
    }
    fn statfs(&self) -> Result<StatFs> {
        self.around.call("statfs", || self.inner.statfs())
    }
    fn sync(&self) -> Result<()> {
        self.around.call("sync", || self.inner.sync())
    }
    fn abort(&self) {
        self.inner.abort();
    }
    fn hand_over(&self, kept: &mut Kept, until: Instant) -> Result<StoreState> {
        self.around.call("hand_over", || self.inner.hand_over(kept, until))
    }
    fn sync_everything(&self) -> Result<()> {
        self.around.call("sync_everything", || self.inner.sync_everything())
    }
    fn recoverable(&self, lock: RawFd) -> Option<(StoreState, Arc<OwnedFd>)> {
        self.inner.recoverable(lock)
    }
    fn keeps_nameless(&self) -> bool {
        self.inner.keeps_nameless()
    }
    fn write_behind_bytes(&self) -> Option<u64> {
        self.inner.write_behind_bytes()
    }
    fn lists_by_order(&self) -> bool {
        self.inner.lists_by_order()
    }
    fn open_dir_behind(&self, id: ObjectId, places: Vec<Place>) -> Result<Arc<dyn Dir>> {
        let inner = self.around.call("open_dir", || self.inner.open_dir_behind(id, places))?;
        Ok(self.wrap_dir(inner))
    }
    fn key(&self, id: ObjectId) -> Result<NodeKey> {
        self.inner.key(id)
    }
    fn take_over_dir(&self, id: ObjectId, state: &OpenDirState, incoming: &Incoming) -> Result<Arc<dyn Dir>> {
        let inner = self.inner.take_over_dir(id, state, incoming)?;
        Ok(self.wrap_dir(inner))
    }
    fn close(&self) {
        self.around.tell("close", || self.inner.close());
    }
}

/// A file or a directory that is open.
struct AroundOpen<T: ?Sized, A: Around> {
    /// There until this is dropped.
    inner: Option<Arc<T>>,
    around: Arc<A>,
    /// The name of its end.
    end: &'static str,
}

impl<T: ?Sized, A: Around> AroundOpen<T, A> {
    fn inner(&self) -> &T {
        self.inner.as_deref().expect("there until this is dropped")
    }
}

impl<T: ?Sized, A: Around> Drop for AroundOpen<T, A> {
    fn drop(&mut self) {
        let inner = self.inner.take();
        self.around.end(self.end, || drop(inner));
    }
}

impl<T: ?Sized + std::fmt::Debug, A: Around> std::fmt::Debug for AroundOpen<T, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AroundOpen").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<A: Around> File for AroundOpen<dyn File, A> {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner().descriptor()
    }
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.around.call("read_at", || self.inner().read_at(buf, offset))
    }
    fn charge_to(&self, tenant: u64) {
        self.inner().charge_to(tenant);
    }
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        self.around.write(self.inner(), bufs, offset)
    }
    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        self.around.call("allocate", || self.inner().allocate(mode, offset, len))
    }
    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        self.around.call("seek", || self.inner().seek(what, offset))
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        self.around.call("file_sync", || self.inner().sync(data_only))
    }
}

impl<A: Around> Dir for AroundOpen<dyn Dir, A> {
    fn list(&self, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        self.around.call("list", || self.inner().list(offset, sink))
    }
    fn shares_places(&self) -> bool {
        self.inner().shares_places()
    }
    fn hand_over(&self, kept: &mut Kept) -> Result<OpenDirState> {
        self.inner().hand_over(kept)
    }
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.inner().descriptor()
    }
}
