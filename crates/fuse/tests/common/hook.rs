//! A store that calls a function before each of its operations: to hang, to panic, to count.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::IoSlice;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use store::{
    Access, AllocateMode, Attr, Created, Creator, Dir, Entry, File, Name, NewNode, ObjectId, RenameFlags,
    Result, Seek, SetAttr, SetXattr, StatFs, Store,
};

type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

/// See the module.
pub struct HookStore {
    inner: Arc<dyn Store>,
    hook: Hook,
}

struct HookFile {
    inner: Arc<dyn File>,
    hook: Hook,
}

impl HookStore {
    pub fn new(inner: Arc<dyn Store>, hook: impl Fn(&'static str) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { inner, hook: Arc::new(hook) })
    }

    fn file(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookFile { inner, hook: Arc::clone(&self.hook) })
    }

    fn created(&self, created: Created) -> Created {
        Created { entry: created.entry, file: self.file(created.file) }
    }
}

impl fmt::Debug for HookStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl fmt::Debug for HookFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl Store for HookStore {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        (self.hook)("lookup");
        self.inner.lookup(parent, name)
    }
    fn forget(&self, id: ObjectId, n: u64) {
        (self.hook)("forget");
        self.inner.forget(id, n);
    }
    fn attr(&self, id: ObjectId) -> Result<Attr> {
        (self.hook)("attr");
        self.inner.attr(id)
    }
    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        (self.hook)("set_attr");
        self.inner.set_attr(id, set)
    }
    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created> {
        (self.hook)("create");
        self.inner.create(parent, name, perm, creator).map(|created| self.created(created))
    }
    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created> {
        (self.hook)("tmpfile");
        self.inner.tmpfile(parent, perm, creator).map(|created| self.created(created))
    }
    fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        (self.hook)("make");
        self.inner.make(parent, name, what, perm, creator)
    }
    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        (self.hook)("link");
        self.inner.link(id, parent, name)
    }
    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        (self.hook)("unlink");
        self.inner.unlink(parent, name)
    }
    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        (self.hook)("rmdir");
        self.inner.rmdir(parent, name)
    }
    fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        (self.hook)("rename");
        self.inner.rename(parent, name, new_parent, new_name, flags)
    }
    fn read_link(&self, id: ObjectId) -> Result<OsString> {
        (self.hook)("read_link");
        self.inner.read_link(id)
    }
    fn open(&self, id: ObjectId, access: Access) -> Result<Arc<dyn File>> {
        (self.hook)("open");
        self.inner.open(id, access).map(|file| self.file(file))
    }
    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>> {
        (self.hook)("open_dir");
        self.inner.open_dir(id)
    }
    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        (self.hook)("sync_dir");
        self.inner.sync_dir(id)
    }
    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64> {
        (self.hook)("copy_range");
        self.inner.copy_range(src, src_off, dst, dst_off, len)
    }
    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        (self.hook)("get_xattr");
        self.inner.get_xattr(id, name)
    }
    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        (self.hook)("set_xattr");
        self.inner.set_xattr(id, name, value, how)
    }
    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        (self.hook)("list_xattr");
        self.inner.list_xattr(id)
    }
    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        (self.hook)("remove_xattr");
        self.inner.remove_xattr(id, name)
    }
    fn statfs(&self) -> Result<StatFs> {
        (self.hook)("statfs");
        self.inner.statfs()
    }
    fn sync(&self) -> Result<()> {
        (self.hook)("sync");
        self.inner.sync()
    }
    fn close(&self) {
        (self.hook)("close");
        self.inner.close();
    }
}

impl File for HookFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        (self.hook)("read_at");
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        (self.hook)("write_at");
        self.inner.write_at(bufs, offset)
    }
    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        (self.hook)("allocate");
        self.inner.allocate(mode, offset, len)
    }
    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        (self.hook)("seek");
        self.inner.seek(what, offset)
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        (self.hook)("file_sync");
        self.inner.sync(data_only)
    }
}

/// Somewhere to wait until a test says so.
#[derive(Default)]
pub struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    pub fn shut(&self) {
        *self.is_shut.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.is_shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        // ORDERING: SeqCst throughout this file: a test's count of waiters; the gate itself is under its lock.
        self.waiting.load(Ordering::SeqCst)
    }

    /// Waits while the gate is shut.
    pub fn pass(&self) {
        let mut is_shut = self.is_shut.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while *is_shut {
            is_shut = self.opened.wait(is_shut).unwrap();
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Opens the gate when a test ends, however it does: nothing can be unmounted while a store hangs.
pub struct OpenAtEnd(pub Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}
