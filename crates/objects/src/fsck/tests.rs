//! Volumes that are whole, and what all tests of damages need.

mod log;
mod objects;
pub(super) mod rows;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore as _, ObjectStoreExt as _};
use store::{Creator, Name, NewNode, ObjectId};

use super::*;
use crate::bucket::Bucket;
use crate::format::{Options, Uuid};
use crate::garbage::tests::{LARGE, make as make_file, write};
use crate::make::make;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::rows::{EntryRow, Kind};
use crate::tree::Tree;

pub(super) use log::crashed;

const ROOT: ObjectId = ObjectId::ROOT;

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_ref()).unwrap()
}

/// A volume in memory, with its lease.
pub(super) struct World {
    objects: Arc<InMemory>,
}

impl World {
    async fn empty() -> Self {
        let world = Self { objects: Arc::default() };
        make(&world.bucket(), Options::default(), None).await.unwrap();
        world
    }

    /// A volume with files, whose rows are in tables, and whose log has nothing to replay.
    pub(super) async fn new() -> Self {
        let world = Self::empty().await;
        let mounted = world.open().await;
        fill(mounted.tree()).await;
        mounted.close().await;
        world
    }

    fn bucket(&self) -> Bucket {
        Bucket::new(Arc::clone(&self.objects) as _, "v".into())
    }

    async fn volume(&self, reads_data: bool) -> Volume {
        let bucket = self.bucket();
        let format = format::read(&bucket).await.unwrap();
        let codec = codec_of(&format, None).unwrap();
        let bucket = of_family(&bucket, &format).await.unwrap();
        Volume { bucket, format, codec, reads_data, steps: Steps(Arc::new(|_, _| {})) }
    }

    /// Opens it for writing, but does not take its lease.
    pub(super) async fn open(&self) -> Arc<Mounted> {
        self.open_as(false).await
    }

    async fn open_as(&self, is_repair: bool) -> Arc<Mounted> {
        let Volume { bucket, format, codec, .. } = self.volume(false).await;
        let last = newest_manifest(&bucket).await.unwrap();
        let nonce = Uuid::random().unwrap().to_bytes();
        let options = MountOptions { nonce, is_repair, ..MountOptions::new(&format, codec) };
        Mounted::open(bucket, last, options).await.unwrap()
    }

    async fn check(&self) -> Checked {
        run(&self.volume(false).await, false).await.unwrap()
    }

    async fn check_data(&self) -> Checked {
        run(&self.volume(true).await, false).await.unwrap()
    }

    pub(super) async fn repair(&self) -> Checked {
        run(&self.volume(true).await, true).await.unwrap()
    }

    /// Repairs, and checks that nothing is left to do.
    async fn assert_mended(&self) -> Checked {
        let repaired = self.repair().await;
        assert!(repaired.whole && repaired.repair.as_ref().unwrap().mended > 0, "{repaired:#?}");
        assert!(repaired.findings.iter().all(|finding| finding.mended), "{repaired:#?}");
        let again = self.check_data().await;
        assert!(again.whole && again.findings.is_empty(), "{again:#?}");
        let once_more = self.repair().await;
        assert_eq!(once_more.repair.unwrap().mended, 0);
        repaired
    }

    fn path(name: &str) -> Path {
        Path::from(format!("v/{name}"))
    }

    pub(super) async fn get(&self, name: &str) -> Bytes {
        self.objects.get(&Self::path(name)).await.unwrap().bytes().await.unwrap()
    }

    pub(super) async fn put(&self, name: &str, bytes: impl Into<Bytes>) {
        self.objects.put(&Self::path(name), bytes.into().into()).await.unwrap();
    }

    async fn delete(&self, name: &str) {
        self.objects.delete(&Self::path(name)).await.unwrap();
    }

    /// Flips a bit of an object.
    pub(super) async fn flip(&self, name: &str, at: usize) {
        let mut bytes = self.get(name).await.to_vec();
        bytes[at] ^= 1;
        self.put(name, bytes).await;
    }

    async fn names(&self, dir: &str) -> Vec<String> {
        let names = self.bucket().list(dir, None).await.unwrap();
        names.into_iter().map(|name| format!("{dir}/{name}")).collect()
    }

    /// All objects, but for marks of readers.
    pub(super) async fn everything(&self) -> BTreeMap<String, Bytes> {
        let listed: Vec<_> = self.objects.list(None).try_collect().await.unwrap();
        let mut all = BTreeMap::new();
        for object in listed.into_iter().filter(|object| !object.location.as_ref().contains("/reader/")) {
            let bytes = self.objects.get(&object.location).await.unwrap().bytes().await.unwrap();
            all.insert(object.location.to_string(), bytes);
        }
        all
    }

    /// What files hold, by their paths; an error is none.
    pub(super) async fn files(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mounted = self.open().await;
        let files = files(mounted.tree()).await;
        mounted.close().await;
        files
    }
}

/// Files of each kind: in the log, in a segment, with two names, in a directory.
async fn fill(tree: &Arc<Tree>) {
    let small = make_file(tree, "small").await;
    write(tree, &small, 1, 5000).await;
    write(tree, &make_file(tree, "large").await, 2, LARGE).await;
    let dir = make_dir(tree, ROOT, "dir").await;
    make_dir(tree, dir, "below").await;
    tree.lookup(ROOT, name("small")).await.unwrap();
    tree.link(ObjectId(small.ino), dir, name("second")).await.unwrap();
    tree.forget(small.ino, 2);
    tree.sync_all().await.unwrap();
}

async fn make_dir(tree: &Arc<Tree>, parent: ObjectId, called: &str) -> ObjectId {
    let creator = Creator { uid: 0, gid: 0, umask: 0 };
    tree.make(parent, name(called), NewNode::Directory, 0o755, creator).await.unwrap().id
}

/// The inode at a path.
pub(super) async fn ino_at(tree: &Arc<Tree>, path: &str) -> u64 {
    let mut at = ROOT.0;
    for part in path.split('/') {
        at = tree.entry(at, OsStr::new(part)).await.unwrap().unwrap_or_else(|| panic!("no {path}")).ino;
    }
    at
}

async fn files(tree: &Arc<Tree>) -> BTreeMap<String, Option<Vec<u8>>> {
    let (mut files, mut dirs) = (BTreeMap::new(), vec![(String::new(), ROOT.0)]);
    while let Some((path, dir)) = dirs.pop() {
        for (key, entry) in tree.engine.scan(crate::rows::keys_of(b'D', dir), 1000).await.unwrap() {
            let entry: EntryRow = crate::rows::from_bytes(&entry, "an entry").unwrap();
            let called = String::from_utf8(crate::rows::rest_of(&key).to_vec()).unwrap();
            let path = format!("{path}/{called}");
            if entry.kind == Kind::Directory {
                files.insert(format!("{path}/"), None);
                dirs.push((path, entry.ino));
                continue;
            }
            let pin = tree.pin(entry.ino);
            let size = pin.lock().await.unwrap().row.size;
            let mut data = vec![0; usize::try_from(size).unwrap()];
            let read = tree.read_at(&pin, &mut data, 0).await;
            files.insert(path, read.ok().map(|_| data));
        }
    }
    files
}

fn whats(checked: &Checked) -> Vec<&str> {
    checked.findings.iter().map(|finding| &*finding.what).collect()
}

#[tokio::test]
async fn a_whole_volume_is_whole_and_a_check_changes_nothing() {
    let world = World::empty().await;
    for repairs in [false, true] {
        let checked = run(&world.volume(true).await, repairs).await.unwrap();
        assert!(checked.whole && checked.inodes == 0, "it was never mounted: {checked:#?}");
    }
    let mounted = world.open().await;
    fill(mounted.tree()).await;
    mounted.create_snapshot("base").await.unwrap();
    // Beside its holder, whose last commits are in the log alone.
    write(mounted.tree(), &make_file(mounted.tree(), "late").await, 3, LARGE).await;
    let before = world.everything().await;
    let checked = world.check_data().await;
    assert!(checked.whole && checked.findings.is_empty(), "{checked:#?}");
    let (bytes, read) = (checked.bytes, checked.bytes_read.unwrap());
    assert_eq!((checked.inodes, checked.names, checked.snapshots), (6, 6, 1), "{checked:#?}");
    assert_eq!((bytes, read), (2 * LARGE as u64 + 5000, bytes));
    assert_eq!(world.everything().await, before);
    mounted.close().await;
    let repaired = world.repair().await;
    assert!(repaired.whole && repaired.repair.unwrap().mended == 0);
}

/// Inodes without a name that are used, holes, copies, reserved space: none of it is damage.
#[tokio::test]
async fn what_a_volume_in_use_has_is_no_damage() {
    use store::AllocateMode;
    let world = World::new().await;
    let mounted = world.open().await;
    let tree = mounted.tree();
    let (open, copy) = (make_file(tree, "open").await, make_file(tree, "copy").await);
    write(tree, &open, 4, LARGE).await;
    tree.copy_range((&open, 100), (&copy, 7), 200_000).await.unwrap();
    let mode = AllocateMode::KEEP_SIZE;
    tree.allocate(&copy, mode, 1 << 20, 1 << 20).await.unwrap();
    tree.allocate(&open, mode | AllocateMode::PUNCH_HOLE, 5000, 5000).await.unwrap();
    tree.remove(ROOT, name("open"), false).await.unwrap();
    let dir = tree.lookup(ROOT, name("dir")).await.unwrap().id;
    tree.rename(ROOT, name("copy"), dir, name("moved"), store::RenameFlags::empty()).await.unwrap();
    tree.rename(dir, name("below"), ROOT, name("above"), store::RenameFlags::empty()).await.unwrap();
    tree.sync_all().await.unwrap();
    let checked = world.check_data().await;
    assert!(checked.whole, "{checked:#?}");
    drop((open, copy));
    mounted.close().await;
    assert!(world.check_data().await.whole);
}

#[tokio::test]
async fn a_clone_is_checked_with_what_its_parents_have() {
    let world = World::new().await;
    let mounted = world.open().await;
    mounted.create_snapshot("base").await.unwrap();
    mounted.close().await;
    let clone = Bucket::new(Arc::clone(&world.objects) as _, "clone".into());
    crate::clone_volume::make(&world.bucket(), "base", &clone).await.unwrap();
    let format = format::read(&clone).await.unwrap();
    let volume = async || {
        let codec = codec_of(&format, None).unwrap();
        let bucket = Bucket::new(Arc::clone(&world.objects) as _, "clone".into());
        let bucket = of_family(&bucket, &format).await.unwrap();
        let steps = Steps(Arc::new(|_, _| {}));
        Volume { bucket, format: format.clone(), codec, reads_data: true, steps }
    };
    let checked = run(&volume().await, false).await.unwrap();
    assert!(checked.whole && checked.inodes == 5 && checked.objects > 0, "{checked:#?}");
    let segment = &world.names("seg").await[0];
    let kept = world.get(segment).await;
    world.delete(segment).await;
    let checked = run(&volume().await, false).await.unwrap();
    assert_eq!(checked.findings[0].path.as_deref(), Some("/large"), "{checked:#?}");
    world.put(segment, kept).await;
    let table = &world.names("meta/compacted").await[0];
    world.delete(table).await;
    let checked = run(&volume().await, false).await.unwrap();
    assert_eq!(checked.findings[0].what, "metadata", "{checked:#?}");
}

#[tokio::test]
async fn a_volume_that_is_held_is_checked_and_not_repaired() {
    use crate::lease::{Held, Lease, Request, ThisHost};
    let world = World::new().await;
    let request = Request { mountpoint: "/mnt/there".into(), ..Request::default() };
    let host = Arc::new(ThisHost::new().unwrap());
    let held: Held = Lease::take(&world.bucket(), &request, host).await.unwrap();
    // A name of nothing.
    let mounted = world.open().await;
    rows::damage(&mounted, |batch| rows::put_name(batch, "gone", 99, Kind::Regular)).await;
    mounted.close().await;
    let checked = world.check().await;
    assert!(checked.holder.as_ref().unwrap().contains("/mnt/there") && !checked.whole, "{checked:#?}");
    let before = world.everything().await;
    let error = run(&world.volume(false).await, true).await.unwrap_err();
    assert!(error.kind() == store::ErrorKind::Busy && error.to_string().contains("/mnt/there"), "{error}");
    assert_eq!(world.everything().await, before);
    held.release().await.unwrap();
    world.assert_mended().await;
}
