//! The store trait over a volume in a bucket: each call waits on its own thread until it has ended.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io::IoSlice;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use recovery::{NodeKey, Place};
use store::{
    Access, AllocateMode, Attr, Created, Creator, Dir, DirEntry, Entry, Error, ErrorKind, File, FileType,
    Incoming, Kept, Name, NewNode, NumberedState, ObjectId, OnChange, OpenDirState, RenameFlags,
    RequestStats, Result, Seek, SetAttr, SetXattr, Snapshot, Snapshots, StatFs, Store, StoreState,
};
use tokio::runtime::Handle;

use crate::data::WRITE_BEHIND_BYTES;
use crate::hex;
use crate::mount::Mounted;
use crate::node::Pin;
use crate::quota_attribute::QuotaAttribute;
use crate::quotas::VOLUME;
use crate::read_ahead::Streams;
use crate::rows::{self, EntryRow, Kind, entry_key};
use crate::tree::Tree;

/// Unit of the sizes that [`Store::statfs`] returns.
const FRAGMENT: u32 = 4096;
/// The size of a bucket, which has none.
const SIZE_SHOWN: u64 = 1 << 50;
/// Names that are read at a time.
const LIST_BATCH: usize = 512;
/// How long what others may change is remembered at most.
const KEPT_MAX: Duration = Duration::from_secs(1);
/// Batches that an open directory keeps.
const LIST_BATCHES: usize = 128;
/// Those of them that the next program of the process gets: one may have been read to its end.
const HANDED_BATCHES: usize = 2;
/// The cookie behind `.` and `..`.
const DOTS: u64 = 2;

/// Waits for a future on this thread, with the runtime's timers and tasks at hand.
pub(crate) fn wait<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _runtime = runtime.enter();
    futures_executor::block_on(future)
}

/// Waits for a call that reads an inode: of a volume that others write it finds one state.
fn read<F: Future>(tree: &Tree, runtime: &Handle, ino: u64, future: F) -> F::Output {
    match tree.engine.followed() {
        Some(followed) => wait(runtime, followed.within(ino, future)),
        None => wait(runtime, future),
    }
}

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

    fn dir(&self, id: ObjectId, names: Names) -> Result<Arc<dyn Dir>> {
        let op = "open dir";
        let pin = self.tree.pin_used(id.0, op)?;
        if !self.read(id, pin.lock())?.row.is_dir() {
            return Err(Error::new(ErrorKind::NotDirectory, op));
        }
        let (tree, runtime, names) = (Arc::clone(&self.tree), self.runtime.clone(), Mutex::new(names));
        Ok(Arc::new(BucketDir { tree, pin, runtime, names }))
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
        self.dir(id, Names::default())
    }

    fn sync_dir(&self, id: ObjectId) -> Result<()> {
        self.open_dir(id)?;
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
        self.dir(id, Names::behind(places))
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
            OpenDirState::Listed(listed) => Names::from_text(listed)?,
            OpenDirState::ListedBytes(listed) => Names::from_bytes(listed)?,
            OpenDirState::Fd(_) => return Err(Error::new(ErrorKind::Invalid, op)),
        };
        let names = Mutex::new(names);
        let (tree, runtime) = (Arc::clone(&self.tree), self.runtime.clone());
        Ok(Arc::new(BucketDir { pin: tree.pin_used(id.0, op)?, tree, runtime, names }))
    }

    fn abort(&self) {
        self.mounted.abort();
    }

    fn close(&self) {
        self.wait(self.mounted.close());
    }
}

impl Snapshots for BucketStore {
    fn create(&self, name: &str) -> Result<Snapshot> {
        self.wait(self.mounted.create_snapshot(name)).map(Snapshot::from)
    }

    fn delete(&self, name: &str) -> Result<()> {
        self.wait(self.mounted.delete_snapshot(name))
    }

    fn list(&self) -> Result<Vec<Snapshot>> {
        let snapshots = self.wait(self.mounted.snapshots())?;
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

/// An open directory.
#[derive(Debug)]
struct BucketDir {
    tree: Arc<Tree>,
    pin: Pin,
    runtime: Handle,
    names: Mutex<Names>,
}

/// Names that were read together.
type NameBatch = Arc<Vec<(OsString, EntryRow)>>;

/// Names that were read, in batches. A cookie is a name's place in the order in which they were
/// read, behind `.` and `..`.
#[derive(Debug, Default)]
struct Names {
    /// Where they were begun to be read: so many names come before, the last of which is this one.
    begin: Begin,
    /// The same of an earlier place, where the listing may be continued.
    earlier: Option<Begin>,
    /// The last name of each batch: the next begins behind it.
    lasts: Vec<OsString>,
    /// The latest batches, by number.
    kept: VecDeque<(usize, NameBatch)>,
}

/// How many names come before, and the last of them.
type Begin = (usize, Option<OsString>);

/// [`Names`] to be written down: the last name of each batch; of the newest ones their numbers, their
/// names and what these name.
type ListedNames = (Vec<Vec<u8>>, Vec<(usize, Vec<(Vec<u8>, EntryRow)>)>);

impl Names {
    /// Those of a listing that another process has continued up to these places, the newest first.
    fn behind(places: Vec<Place>) -> Self {
        let begin = |place: Place| {
            let before = usize::try_from(place.next.checked_sub(DOTS)?).ok()?;
            Some(if before == 0 { Begin::default() } else { (before, Some(place.name)) })
        };
        let mut places = places.into_iter().filter_map(begin);
        Self { begin: places.next().unwrap_or_default(), earlier: places.next(), ..Self::default() }
    }

    /// Begins anew where the listing can be continued behind so many names.
    fn begin_for(&mut self, before: usize) {
        if before < self.begin.0 {
            let earlier = self.earlier.take().filter(|earlier| earlier.0 <= before);
            *self = Self { begin: earlier.unwrap_or_default(), ..Self::default() };
        }
    }

    /// Of the batches that are kept the newest: a reader that reads on is there. Others are read again.
    fn to_text(&self) -> Result<String> {
        if self.begin.0 > 0 {
            // A server that follows another one hands nothing over: yet another one follows it.
            return Err(Error::new(ErrorKind::Unsupported, "hand a directory over"));
        }
        let bytes = |name: &OsString| name.as_bytes().to_vec();
        let older = self.kept.len().saturating_sub(HANDED_BATCHES);
        let kept =
            self.kept.iter().skip(older).map(|(number, batch)| {
                (*number, batch.iter().map(|(name, row)| (bytes(name), *row)).collect())
            });
        let listed: ListedNames = (self.lasts.iter().map(bytes).collect(), kept.collect());
        let bytes = postcard::to_allocvec(&listed);
        bytes
            .map(|bytes| hex::encode(&bytes))
            .map_err(|_| Error::new(ErrorKind::TooBig, "hand a directory over"))
    }

    fn from_text(text: &str) -> Result<Self> {
        let mut bytes = vec![0; text.len() / 2];
        if !hex::decode(text.as_bytes(), &mut bytes) {
            return Err(Error::new(ErrorKind::Invalid, "take over a directory"));
        }
        Self::from_bytes(&bytes)
    }

    fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let listed = postcard::from_bytes(bytes);
        let (lasts, kept): ListedNames =
            listed.map_err(|_| Error::new(ErrorKind::Invalid, "take over a directory"))?;
        let lasts = lasts.into_iter().map(OsString::from_vec).collect();
        let batch = |batch: Vec<(Vec<u8>, EntryRow)>| {
            Arc::new(batch.into_iter().map(|(name, row)| (OsString::from_vec(name), row)).collect())
        };
        let kept = kept.into_iter().map(|(number, names)| (number, batch(names))).collect();
        Ok(Self { lasts, kept, ..Self::default() })
    }

    fn kept(&self, number: usize) -> Option<NameBatch> {
        self.kept.iter().find(|(kept, _)| *kept == number).map(|(_, batch)| Arc::clone(batch))
    }

    fn keep(&mut self, number: usize, batch: &NameBatch) {
        if let Some((last, _)) = batch.last()
            && number == self.lasts.len()
            && batch.len() == LIST_BATCH
        {
            self.lasts.push(last.clone());
        }
        self.kept.push_back((number, Arc::clone(batch)));
        if self.kept.len() > LIST_BATCHES {
            self.kept.pop_front();
        }
    }
}

impl BucketDir {
    fn batch(&self, number: usize) -> Result<NameBatch> {
        let after = {
            let names = self.names.lock();
            if let Some(batch) = names.kept(number) {
                return Ok(batch);
            }
            match number.checked_sub(1) {
                None => names.begin.1.clone(),
                Some(before) => match names.lasts.get(before) {
                    Some(last) => Some(last.clone()),
                    // A short batch is the last.
                    None => return Ok(Arc::default()),
                },
            }
        };
        let mut range = rows::keys_of(b'D', self.pin.ino);
        if let Some(after) = after {
            range.start = entry_key(self.pin.ino, &after);
            range.start.push(0);
        }
        let scan = self.tree.engine.scan(range, LIST_BATCH);
        let rows = read(&self.tree, &self.runtime, self.pin.ino, scan)?;
        let batch: Result<Vec<_>> = rows
            .iter()
            .map(|(key, row)| {
                let name = OsString::from_vec(rows::rest_of(key).to_vec());
                Ok((name, rows::from_bytes(row, "a directory entry")?))
            })
            .collect();
        let batch = Arc::new(batch?);
        self.names.lock().keep(number, &batch);
        Ok(batch)
    }
}

impl Dir for BucketDir {
    fn hand_over(&self, _kept: &mut Kept) -> Result<OpenDirState> {
        self.names.lock().to_text().map(OpenDirState::Listed)
    }

    fn list(&self, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let dir = |name: &str, ino: u64, next: u64| DirEntry {
            name: name.into(),
            ino,
            kind: Some(FileType::Directory),
            next,
        };
        if offset == 0 {
            *self.names.lock() = Names::default();
        }
        if offset < 1 && !sink(dir(".", self.pin.ino, 1)) {
            return Ok(());
        }
        if offset < DOTS {
            let parent = read(&self.tree, &self.runtime, self.pin.ino, self.pin.lock())?.row.parent;
            if !sink(dir("..", parent, DOTS)) {
                return Ok(());
            }
        }
        let at = usize::try_from(offset.max(DOTS) - DOTS).unwrap_or(usize::MAX);
        let (begin, known) = {
            let mut names = self.names.lock();
            names.begin_for(at);
            (names.begin.0, names.lasts.len())
        };
        let mut at = at - begin;
        // Batches before it: this opening may be asked for a place of another one's, or of another
        // server's.
        for number in known..at / LIST_BATCH {
            if self.batch(number)?.len() < LIST_BATCH {
                return Ok(());
            }
        }
        loop {
            let batch = self.batch(at / LIST_BATCH)?;
            let rest = batch.get(at % LIST_BATCH..).unwrap_or_default();
            if rest.is_empty() {
                return Ok(());
            }
            for (name, entry) in rest {
                at += 1;
                let (name, kind) = (name.clone(), Some(entry.kind.into()));
                if !sink(DirEntry { name, ino: entry.ino, kind, next: (begin + at) as u64 + DOTS }) {
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program whose state has version 2 has left the bytes themselves.
    #[test]
    fn a_listing_is_read_as_either_version_has_it() {
        let names = Names { lasts: vec!["a".into(), "b".into()], ..Names::default() };
        let text = names.to_text().unwrap();
        let mut bytes = vec![0; text.len() / 2];
        assert!(hex::decode(text.as_bytes(), &mut bytes));
        for read in [Names::from_text(&text), Names::from_bytes(&bytes)] {
            assert_eq!(read.unwrap().lasts, names.lasts);
        }
        assert!(Names::from_bytes(&[0xff]).is_err());
    }
}
