//! A store for tests that calls a function before and after each call: to hang, to fail, to panic, to count, and to make a
//! race happen.

use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::{Arc, RwLock};

use crate::{
    Access, AllocateMode, Attr, Created, Creator, Dir, Entry, File, Name, NewNode, ObjectId, RenameFlags,
    Result, Seek, SetAttr, SetXattr, StatFs, Store,
};

/// When the hook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Nothing was done yet; an error is the call's.
    Before,
    /// It was done; an error is the call's all the same.
    After,
}

type Hook = Box<dyn Fn(At, &'static str) -> Result<()> + Send + Sync>;
type Hooks = Arc<RwLock<Option<Arc<Hook>>>>;

/// Another store, and a function that is called with each of its calls, by name.
pub struct HookStore {
    inner: Arc<dyn Store>,
    hooks: Hooks,
}

impl std::fmt::Debug for HookStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HookStore").field("inner", &self.inner).finish_non_exhaustive()
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

/// The same for what gives no result: an error of the hook has no meaning there.
fn tell<T>(hooks: &Hooks, op: &'static str, work: impl FnOnce() -> T) -> T {
    let hook = hooks.read().expect("no panic under the lock").clone();
    let tell = |at| {
        if let Some(hook) = &hook {
            let _no_result = hook(at, op);
        }
    };
    tell(At::Before);
    let result = work();
    tell(At::After);
    result
}

impl HookStore {
    /// Calls nobody yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, hooks: Hooks::default() })
    }

    /// Calls `hook` from now on. An error that it gives is the call's.
    ///
    /// # Panics
    /// If a thread panicked while it set a hook.
    pub fn hook(&self, hook: impl Fn(At, &'static str) -> Result<()> + Send + Sync + 'static) {
        *self.hooks.write().expect("no panic under the lock") = Some(Arc::new(Box::new(hook)));
    }

    fn wrap(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookFile { inner, hooks: Arc::clone(&self.hooks) })
    }
}

impl Store for HookStore {
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }
    fn file_size_max(&self) -> u64 {
        self.inner.file_size_max()
    }
    fn idle_files_max(&self) -> usize {
        self.inner.idle_files_max()
    }
    fn lookup(&self, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        call(&self.hooks, "lookup", || self.inner.lookup(parent, name))
    }
    fn forget(&self, id: ObjectId, n: u64) {
        tell(&self.hooks, "forget", || self.inner.forget(id, n));
    }
    fn attr(&self, id: ObjectId) -> Result<Attr> {
        call(&self.hooks, "attr", || self.inner.attr(id))
    }
    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        call(&self.hooks, "set_attr", || self.inner.set_attr(id, set))
    }
    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created> {
        let created = call(&self.hooks, "create", || self.inner.create(parent, name, perm, creator))?;
        Ok(Created { file: self.wrap(created.file), ..created })
    }
    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created> {
        let created = call(&self.hooks, "tmpfile", || self.inner.tmpfile(parent, perm, creator))?;
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
        call(&self.hooks, "make", || self.inner.make(parent, name, what, perm, creator))
    }
    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        call(&self.hooks, "link", || self.inner.link(id, parent, name))
    }
    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        call(&self.hooks, "unlink", || self.inner.unlink(parent, name))
    }
    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        call(&self.hooks, "rmdir", || self.inner.rmdir(parent, name))
    }
    fn rename(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        new_parent: ObjectId,
        new_name: Name<'_>,
        flags: RenameFlags,
    ) -> Result<()> {
        call(&self.hooks, "rename", || self.inner.rename(parent, name, new_parent, new_name, flags))
    }
    fn read_link(&self, id: ObjectId) -> Result<OsString> {
        call(&self.hooks, "read_link", || self.inner.read_link(id))
    }
    fn open(&self, id: ObjectId, access: Access) -> Result<Arc<dyn File>> {
        Ok(self.wrap(call(&self.hooks, "open", || self.inner.open(id, access))?))
    }
    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>> {
        call(&self.hooks, "open_dir", || self.inner.open_dir(id))
    }
    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        call(&self.hooks, "sync_dir", || self.inner.sync_dir(id))
    }
    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64> {
        call(&self.hooks, "copy_range", || self.inner.copy_range(src, src_off, dst, dst_off, len))
    }
    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        call(&self.hooks, "get_xattr", || self.inner.get_xattr(id, name))
    }
    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        call(&self.hooks, "set_xattr", || self.inner.set_xattr(id, name, value, how))
    }
    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        call(&self.hooks, "list_xattr", || self.inner.list_xattr(id))
    }
    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        call(&self.hooks, "remove_xattr", || self.inner.remove_xattr(id, name))
    }
    fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        self.inner.path_of(id)
    }
    fn statfs(&self) -> Result<StatFs> {
        call(&self.hooks, "statfs", || self.inner.statfs())
    }
    fn sync(&self) -> Result<()> {
        call(&self.hooks, "sync", || self.inner.sync())
    }
    fn close(&self) {
        tell(&self.hooks, "close", || self.inner.close());
    }
}

struct HookFile {
    inner: Arc<dyn File>,
    hooks: Hooks,
}

impl std::fmt::Debug for HookFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HookFile").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl File for HookFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        call(&self.hooks, "read_at", || self.inner.read_at(buf, offset))
    }
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        call(&self.hooks, "write", || self.inner.write_at(bufs, offset))
    }
    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        call(&self.hooks, "allocate", || self.inner.allocate(mode, offset, len))
    }
    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        call(&self.hooks, "seek", || self.inner.seek(what, offset))
    }
    fn sync(&self, data_only: bool) -> Result<()> {
        call(&self.hooks, "file_sync", || self.inner.sync(data_only))
    }
}
