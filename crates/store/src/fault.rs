//! For tests: a store around another one that fails, delays, hangs or tears chosen calls.

mod control;
mod rules;

use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub use rules::FaultOp;

use crate::{
    Access, AllocateMode, Attr, Created, Creator, Dir, DirEntry, Entry, Error, File, Name, NewNode, ObjectId,
    RenameFlags, Result, Seek, SetAttr, SetXattr, StatFs, Store,
};
use control::{Control, Verdict};

/// A store around another one that fails, delays, hangs or tears chosen calls.
///
/// # Rules
/// `CALL:WHAT:WHAT…`, several joined by `;`. `CALL` is a method's name (`create`, `read`, `write`,
/// `file.sync`, `store.sync`, `sync` for both of these, …) or `*`; `file.close` and `dir.close`,
/// the end of an open file or directory, are not included in `*`, and cannot fail.
///
/// | what | meaning |
/// |---|---|
/// | `nth=N` | only the N-th call that the rule matches, from 1; without it every call |
/// | `from=N` | the N-th and all later ones |
/// | `fail=ENOSPC` | fails so, and does nothing |
/// | `delay=20ms` | takes that much longer (`us`, `ms`, `s`); delays of several rules add up |
/// | `hang` | waits until [`FaultStore::release`] or the store's close |
/// | `panic` | panics, as a defect of the store's would |
/// | `torn` | writes the first half of the bytes, then fails (`EIO`, or what `fail=` says) |
///
/// A delay comes first, then a hang, then the failure. [`Store::forget`], [`Store::path_of`],
/// [`Store::describe`] and [`Store::close`] always pass. Calls are counted whether they fail or
/// not.
#[derive(Debug)]
pub struct FaultStore {
    inner: Arc<dyn Store>,
    control: Arc<Control>,
}

impl FaultStore {
    /// Wraps `inner` under `rules`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a rule that is not understood.
    pub fn new(inner: Arc<dyn Store>, rules: &str) -> Result<Arc<Self>> {
        let control = Arc::new(Control::new(rules::parse(rules)?));
        Ok(Arc::new(Self { inner, control }))
    }

    /// Puts other rules in the place of the present ones. Calls that hang go on hanging.
    ///
    /// # Errors
    /// As [`new`](Self::new); the old rules stay then.
    pub fn set_rules(&self, rules: &str) -> Result<()> {
        self.control.set_rules(rules::parse(rules)?);
        Ok(())
    }

    /// Lets all calls that hang go on, and no call hang again until new rules are set.
    pub fn release(&self) {
        self.control.release();
    }

    /// How many calls hang now.
    #[must_use]
    pub fn hanging(&self) -> usize {
        self.control.hanging()
    }

    /// Waits until `n` calls hang; `false` if `timeout` came first.
    #[must_use]
    pub fn wait_hanging(&self, n: usize, timeout: Duration) -> bool {
        self.control.wait_hanging(n, timeout)
    }

    /// How many calls of `op` came in.
    #[must_use]
    pub fn calls(&self, op: FaultOp) -> u64 {
        self.control.calls(op)
    }

    /// The store inside.
    #[must_use]
    pub fn inner(&self) -> &Arc<dyn Store> {
        &self.inner
    }

    fn pass(&self, op: FaultOp) -> Result<()> {
        pass(&self.control, op)
    }

    fn wrap(&self, created: Created) -> Created {
        Created { file: self.wrap_file(created.file), ..created }
    }

    fn wrap_file(&self, inner: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(FaultFile { inner, control: Arc::clone(&self.control) })
    }
}

fn pass(control: &Control, op: FaultOp) -> Result<()> {
    match control.enter(op)? {
        Verdict::Pass => Ok(()),
        Verdict::Tear(kind) => Err(Error::with(kind, op.name(), "on purpose")),
    }
}

impl Store for FaultStore {
    fn describe(&self) -> String {
        format!("fault:{}", self.inner.describe())
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
        self.pass(FaultOp::Lookup)?;
        self.inner.lookup(parent, name)
    }

    fn recall(&self, id: ObjectId) -> Result<Entry> {
        self.pass(FaultOp::Lookup)?;
        self.inner.recall(id)
    }

    fn recall_parent(&self, id: ObjectId) -> Result<Entry> {
        self.pass(FaultOp::Lookup)?;
        self.inner.recall_parent(id)
    }

    fn generation(&self, id: ObjectId) -> u32 {
        self.inner.generation(id)
    }

    fn forget(&self, id: ObjectId, n: u64) {
        self.inner.forget(id, n);
    }

    fn attr(&self, id: ObjectId) -> Result<Attr> {
        self.pass(FaultOp::Attr)?;
        self.inner.attr(id)
    }

    fn set_attr(&self, id: ObjectId, set: &SetAttr) -> Result<Attr> {
        self.pass(FaultOp::SetAttr)?;
        self.inner.set_attr(id, set)
    }

    fn create(&self, parent: ObjectId, name: Name<'_>, perm: u32, creator: Creator) -> Result<Created> {
        self.pass(FaultOp::Create)?;
        self.inner.create(parent, name, perm, creator).map(|created| self.wrap(created))
    }

    fn tmpfile(&self, parent: ObjectId, perm: u32, creator: Creator) -> Result<Created> {
        self.pass(FaultOp::Tmpfile)?;
        self.inner.tmpfile(parent, perm, creator).map(|created| self.wrap(created))
    }

    fn make(
        &self,
        parent: ObjectId,
        name: Name<'_>,
        what: NewNode<'_>,
        perm: u32,
        creator: Creator,
    ) -> Result<Entry> {
        self.pass(FaultOp::Make)?;
        self.inner.make(parent, name, what, perm, creator)
    }

    fn link(&self, id: ObjectId, parent: ObjectId, name: Name<'_>) -> Result<Entry> {
        self.pass(FaultOp::Link)?;
        self.inner.link(id, parent, name)
    }

    fn unlink(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.pass(FaultOp::Unlink)?;
        self.inner.unlink(parent, name)
    }

    fn rmdir(&self, parent: ObjectId, name: Name<'_>) -> Result<()> {
        self.pass(FaultOp::Rmdir)?;
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
        self.pass(FaultOp::Rename)?;
        self.inner.rename(parent, name, new_parent, new_name, flags)
    }

    fn read_link(&self, id: ObjectId) -> Result<OsString> {
        self.pass(FaultOp::ReadLink)?;
        self.inner.read_link(id)
    }

    fn open(&self, id: ObjectId, access: Access) -> Result<Arc<dyn File>> {
        self.pass(FaultOp::Open)?;
        self.inner.open(id, access).map(|file| self.wrap_file(file))
    }

    fn open_dir(&self, id: ObjectId) -> Result<Arc<dyn Dir>> {
        self.pass(FaultOp::OpenDir)?;
        let inner = self.inner.open_dir(id)?;
        Ok(Arc::new(FaultDir { inner, control: Arc::clone(&self.control) }))
    }

    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        self.pass(FaultOp::SyncDir)?;
        self.inner.sync_dir(id)
    }

    fn copy_range(&self, src: ObjectId, src_off: u64, dst: ObjectId, dst_off: u64, len: u64) -> Result<u64> {
        self.pass(FaultOp::CopyRange)?;
        self.inner.copy_range(src, src_off, dst, dst_off, len)
    }

    fn get_xattr(&self, id: ObjectId, name: &OsStr) -> Result<Vec<u8>> {
        self.pass(FaultOp::GetXattr)?;
        self.inner.get_xattr(id, name)
    }

    fn set_xattr(&self, id: ObjectId, name: &OsStr, value: &[u8], how: SetXattr) -> Result<()> {
        self.pass(FaultOp::SetXattr)?;
        self.inner.set_xattr(id, name, value, how)
    }

    fn list_xattr(&self, id: ObjectId) -> Result<Vec<u8>> {
        self.pass(FaultOp::ListXattr)?;
        self.inner.list_xattr(id)
    }

    fn remove_xattr(&self, id: ObjectId, name: &OsStr) -> Result<()> {
        self.pass(FaultOp::RemoveXattr)?;
        self.inner.remove_xattr(id, name)
    }

    fn path_of(&self, id: ObjectId) -> Option<PathBuf> {
        self.inner.path_of(id)
    }

    fn statfs(&self) -> Result<StatFs> {
        self.pass(FaultOp::Statfs)?;
        self.inner.statfs()
    }

    fn sync(&self) -> Result<()> {
        self.pass(FaultOp::StoreSync)?;
        self.inner.sync()
    }

    fn close(&self) {
        self.control.close();
        self.inner.close();
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Arc<dyn File>,
    control: Arc<Control>,
}

impl Drop for FaultFile {
    fn drop(&mut self) {
        let _cannot_fail = self.control.enter(FaultOp::FileClose);
    }
}

/// Writes the first half of `bufs`.
fn write_half(file: &dyn File, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
    let all: usize = bufs.iter().map(|b| b.len()).sum();
    let mut left = all / 2;
    let mut half = Vec::new();
    for buf in bufs {
        let n = buf.len().min(left);
        half.push(IoSlice::new(&buf[..n]));
        left -= n;
    }
    file.write_at(&half, offset)
}

impl File for FaultFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> Result<usize> {
        pass(&self.control, FaultOp::Read)?;
        self.inner.read_at(buf, offset)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> Result<()> {
        match self.control.enter(FaultOp::Write)? {
            Verdict::Pass => self.inner.write_at(bufs, offset),
            Verdict::Tear(kind) => {
                write_half(&*self.inner, bufs, offset)?;
                Err(Error::with(kind, FaultOp::Write.name(), "torn on purpose"))
            }
        }
    }

    fn allocate(&self, mode: AllocateMode, offset: u64, len: u64) -> Result<()> {
        pass(&self.control, FaultOp::Allocate)?;
        self.inner.allocate(mode, offset, len)
    }

    fn seek(&self, what: Seek, offset: u64) -> Result<u64> {
        pass(&self.control, FaultOp::Seek)?;
        self.inner.seek(what, offset)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        pass(&self.control, FaultOp::FileSync)?;
        self.inner.sync(data_only)
    }
}

#[derive(Debug)]
struct FaultDir {
    inner: Arc<dyn Dir>,
    control: Arc<Control>,
}

impl Drop for FaultDir {
    fn drop(&mut self) {
        let _cannot_fail = self.control.enter(FaultOp::DirClose);
    }
}

impl Dir for FaultDir {
    fn list(&self, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        pass(&self.control, FaultOp::List)?;
        self.inner.list(offset, sink)
    }
}
