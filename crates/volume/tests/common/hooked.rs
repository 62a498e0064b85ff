//! A store that calls the test before and after chosen calls, so that a race can be made to happen.

use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use store::{
    Access, AllocateMode, Attr, Created, Creator, Dir, Entry, File, Name, NewNode, ObjectId, RenameFlags,
    Result, Seek, SetAttr, SetXattr, StatFs, Store,
};

/// When the hook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum At {
    /// Nothing was done yet; an error is the call's.
    Before,
    /// It was done; an error is the call's all the same.
    After,
}

type Hook = Box<dyn Fn(At, &'static str) -> Result<()> + Send + Sync>;
type Hooks = Arc<RwLock<Option<Arc<Hook>>>>;

/// See the module.
pub(crate) struct Hooked {
    inner: Arc<dyn Store>,
    hooks: Hooks,
}

impl std::fmt::Debug for Hooked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooked").field("inner", &self.inner).finish_non_exhaustive()
    }
}

fn call<T>(hooks: &Hooks, op: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    // Cloned, so that a hook may wait for other calls.
    let hook = hooks.read().expect("no panic under the lock").clone();
    let Some(hook) = hook else { return work() };
    hook(At::Before, op)?;
    let result = work();
    hook(At::After, op)?;
    result
}

impl Hooked {
    pub(crate) fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, hooks: Hooks::default() })
    }

    /// Calls `hook` from now on at lookup, set_attr, write and allocate.
    pub(crate) fn hook(&self, hook: impl Fn(At, &'static str) -> Result<()> + Send + Sync + 'static) {
        *self.hooks.write().expect("no panic under the lock") = Some(Arc::new(Box::new(hook)));
    }

    fn wrap(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookedFile { inner, hooks: Arc::clone(&self.hooks) })
    }
}

impl Store for Hooked {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        call(&self.hooks, "lookup", || self.inner.lookup(parent, name))
    }
    fn forget(&self, id: ObjectId, n: u64) {
        self.inner.forget(id, n);
    }
    fn attr(&self, id: ObjectId) -> Result<Attr> {
        self.inner.attr(id)
    }
    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        call(&self.hooks, "set_attr", || self.inner.set_attr(id, set))
    }
    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created> {
        let created = self.inner.create(parent, name, perm, creator)?;
        Ok(Created { file: self.wrap(created.file), ..created })
    }
    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created> {
        let created = self.inner.tmpfile(parent, perm, creator)?;
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
        self.inner.make(parent, name, what, perm, creator)
    }
    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.inner.link(id, parent, name)
    }
    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.inner.unlink(parent, name)
    }
    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
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
        self.inner.rename(parent, name, new_parent, new_name, flags)
    }
    fn read_link(&self, id: ObjectId) -> Result<OsString> {
        self.inner.read_link(id)
    }
    fn open(&self, id: ObjectId, access: Access) -> Result<Arc<dyn File>> {
        Ok(self.wrap(self.inner.open(id, access)?))
    }
    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>> {
        self.inner.open_dir(id)
    }
    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        self.inner.sync_dir(id)
    }
    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64> {
        self.inner.copy_range(src, src_off, dst, dst_off, len)
    }
    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        self.inner.get_xattr(id, name)
    }
    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        self.inner.set_xattr(id, name, value, how)
    }
    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        self.inner.list_xattr(id)
    }
    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        self.inner.remove_xattr(id, name)
    }
    fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        self.inner.path_of(id)
    }
    fn statfs(&self) -> Result<StatFs> {
        self.inner.statfs()
    }
    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
    fn close(&self) {
        self.inner.close();
    }
}

struct HookedFile {
    inner: Arc<dyn File>,
    hooks: Hooks,
}

impl std::fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HookedFile").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl File for HookedFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        self.inner.read_at(buf, offset)
    }
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        call(&self.hooks, "write", || self.inner.write_at(bufs, offset))
    }
    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        call(&self.hooks, "allocate", || self.inner.allocate(mode, offset, len))
    }
    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        self.inner.seek(what, offset)
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        self.inner.sync(data_only)
    }
}
