//! The store as the engine gets it: at its opening what is known is not asked for again, and at its
//! end nothing is sent that says nothing new.
//!
//! Each request of an opening waits for the one before, so that each costs the distance to the
//! bucket. The engine asks for the newest manifest, which was read before the lease was taken, and
//! for each part of a small table. Here the manifest is given as it was read, and a small table is
//! fetched whole.
//!
//! # Why that is safe
//! - **The newest manifest** may not be the newest any more. Then the engine's own has the number
//!   of one that is there, which the bucket refuses, and the engine asks again: it is given once.
//! - **Tables and manifests** never change.
//! - **At the end** all rows are in tables, and the manifest that names these is there. The engine
//!   would write another with the same content, and look for a newer one before: these are refused
//!   ([`EngineStore::close`]). A next opening finds what it would find after a crash in between.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetRange, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    RenameOptions, Result,
};
use parking_lot::Mutex;
use slatedb_common::retry::NonRetryable;
use tokio::sync::watch;

/// A table is fetched whole if it is not larger.
const WHOLE: u64 = 256 << 10;
/// Tables that are kept whole at a time.
const TABLES: usize = 4;
/// How long they are kept after the opening: the first reads find them.
const KEPT: Duration = Duration::from_secs(10);

/// The newest manifest, as it was read.
#[derive(Debug, Clone)]
pub(crate) struct Found {
    meta: ObjectMeta,
    bytes: Bytes,
    /// The tables that it names, each with its length.
    tables: Vec<(Path, u64)>,
}

impl Found {
    pub(crate) fn new(location: Path, bytes: Bytes) -> Self {
        let last_modified = std::time::SystemTime::now().into();
        let meta =
            ObjectMeta { location, last_modified, size: bytes.len() as u64, e_tag: None, version: None };
        Self { meta, bytes, tables: Vec::new() }
    }

    /// A manifest that names these tables, each with its length.
    pub(crate) fn with_tables(self, tables: Vec<(Path, u64)>) -> Self {
        Self { tables, ..self }
    }

    fn part(&self, range: Range<u64>) -> GetResult {
        let bytes = self.bytes.slice(index(range.start)..index(range.end));
        GetResult {
            payload: GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed()),
            meta: self.meta.clone(),
            range,
            attributes: object_store::Attributes::default(),
            extensions: Default::default(),
        }
    }
}

/// Fetches the smallest tables of a manifest whole, as many as are kept. Of one that cannot be fetched
/// the engine's own request says why.
pub(crate) async fn fetch_tables(store: &dyn ObjectStore, manifest: &Found) -> Vec<Found> {
    let mut tables = manifest.tables.clone();
    tables.retain(|(_, len)| *len <= WHOLE);
    tables.sort_by_key(|(_, len)| *len);
    tables.truncate(TABLES);
    let fetched = tables.into_iter().map(|(location, len)| async move {
        let bytes = store.get_range(&location, 0..len).await.ok()?;
        (bytes.len() as u64 == len).then(|| Found::new(location, bytes))
    });
    futures_util::future::join_all(fetched).await.into_iter().flatten().collect()
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct EngineStore {
    inner: Arc<dyn ObjectStore>,
    manifests: Path,
    tables: Path,
    known: Mutex<Option<Known>>,
    is_closed: AtomicBool,
    /// The only manifest that may be written; `None`: all.
    only: Option<Path>,
    /// A manifest is on its way.
    sends_manifest: watch::Sender<bool>,
}

#[derive(Debug)]
struct Known {
    newest: Option<Found>,
    is_listed: bool,
    /// How many tables were to be fetched whole.
    wholes: usize,
    /// Tables that were read; `None`: it is not small, or is not here yet.
    tables: Vec<(Path, Option<Found>)>,
}

impl fmt::Display for EngineStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

impl EngineStore {
    /// The engine's objects are below `engine`.
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        engine: &Path,
        newest: Option<Found>,
        tables: Vec<Found>,
    ) -> Arc<Self> {
        Arc::new(Self::with((inner, engine), None, newest, tables))
    }

    /// Writes no manifest but the one with this number: what changes the state that was read with the
    /// manifest before it, and no later state.
    pub(crate) fn writing_only(inner: Arc<dyn ObjectStore>, engine: &Path, number: u64) -> Arc<Self> {
        let only = engine.clone().join("manifest").join(format!("{number:020}.manifest"));
        let this = Self::with((inner, engine), Some(only), None, Vec::new());
        *this.known.lock() = None;
        Arc::new(this)
    }

    fn with(
        (inner, engine): (Arc<dyn ObjectStore>, &Path),
        only: Option<Path>,
        newest: Option<Found>,
        tables: Vec<Found>,
    ) -> Self {
        let wholes = tables.len();
        let tables = tables.into_iter().map(|table| (table.meta.location.clone(), Some(table))).collect();
        let known = Known { newest, is_listed: false, wholes, tables };
        Self {
            inner,
            manifests: engine.clone().join("manifest"),
            tables: engine.clone().join("compacted"),
            known: Mutex::new(Some(known)),
            is_closed: AtomicBool::new(false),
            only,
            sends_manifest: watch::Sender::new(false),
        }
    }

    /// The engine is open: all is asked for from here on, small tables from a while later on.
    pub(crate) fn end(self: &Arc<Self>) {
        if let Some(known) = &mut *self.known.lock() {
            known.newest = None;
        }
        let this = Arc::downgrade(self);
        tokio::spawn(async move {
            tokio::time::sleep(KEPT).await;
            if let Some(this) = this.upgrade() {
                *this.known.lock() = None;
            }
        });
    }

    /// From here on what the engine sends at its end is refused: it puts and gets manifests.
    pub(crate) fn close(&self) {
        // ORDERING: Relaxed. The engine's tasks are told to end after this, by a lock of theirs; one
        // request of theirs more or less changes nothing.
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Waits until a manifest is on its way that was not when this was called.
    pub(crate) async fn sends_manifest(&self) {
        self.sends_manifest.send_replace(false);
        let mut sends = self.sends_manifest.subscribe();
        // The sender is in `self`.
        let _it_sends = sends.wait_for(|sends| *sends).await;
    }

    fn check_open(&self) -> Result<()> {
        // ORDERING: Relaxed, as above.
        if !self.is_closed.load(Ordering::Relaxed) {
            return Ok(());
        }
        let why = NonRetryable("the engine is closed".into());
        Err(Error::Generic { store: "bucket", source: Box::new(why) })
    }

    /// What is known of an object.
    fn known(&self, location: &Path, range: Option<&GetRange>) -> Option<GetResult> {
        let known = self.known.lock();
        let known = known.as_ref()?;
        let newest = known.newest.as_ref().filter(|found| found.meta.location == *location);
        let table =
            known.tables.iter().find(|(path, _)| path == location).and_then(|(_, table)| table.as_ref());
        let found = newest.or(table)?;
        let range = match range {
            None => 0..found.meta.size,
            Some(GetRange::Bounded(range)) => range.clone(),
            Some(GetRange::Offset(_) | GetRange::Suffix(_)) => return None,
        };
        (range.start < range.end && range.end <= found.meta.size).then(|| found.part(range))
    }

    /// The first bytes of a table of which a part is asked for, if these are to be fetched: the first
    /// part that the engine reads is the last of the table, so that they are all.
    fn whole(&self, location: &Path, range: Option<&GetRange>) -> Option<Range<u64>> {
        let Some(GetRange::Bounded(range)) = range else { return None };
        if !location.prefix_matches(&self.tables) {
            return None;
        }
        let mut known = self.known.lock();
        let known = known.as_mut()?;
        let tables = &mut known.tables;
        if tables.iter().any(|(path, _)| path == location) {
            return None;
        }
        // Bounded by the tables that an opening reads.
        tables.push((location.clone(), None));
        known.wholes += usize::from(range.end <= WHOLE);
        (range.end <= WHOLE && known.wholes <= TABLES).then_some(0..range.end)
    }

    async fn fetch(
        &self,
        location: &Path,
        range: Range<u64>,
        asked: Option<&GetRange>,
    ) -> Result<Option<GetResult>> {
        let options = GetOptions { range: Some(GetRange::Bounded(range.clone())), ..GetOptions::default() };
        let got = self.inner.get_opts(location, options).await?;
        let mut meta = got.meta.clone();
        let bytes = got.bytes().await?;
        if bytes.len() as u64 != range.end {
            return Ok(None);
        }
        meta.location = location.clone();
        meta.size = range.end;
        if let Some(known) = &mut *self.known.lock()
            && let Some((_, table)) = known.tables.iter_mut().find(|(path, _)| path == location)
        {
            *table = Some(Found { meta, bytes, tables: Vec::new() });
        }
        Ok(self.known(location, asked))
    }
}

/// Whether nothing but a part is asked for.
fn is_plain(options: &GetOptions) -> bool {
    let GetOptions { if_match, if_none_match, if_modified_since, if_unmodified_since, version, head, .. } =
        options;
    if_match.is_none()
        && if_none_match.is_none()
        && if_modified_since.is_none()
        && if_unmodified_since.is_none()
        && version.is_none()
        && !head
}

fn index(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}

#[async_trait]
impl ObjectStore for EngineStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.check_open()?;
        if location.prefix_matches(&self.manifests) {
            if self.only.as_ref().is_some_and(|only| only != location) {
                let why = NonRetryable("another manifest was written meanwhile".into());
                return Err(Error::Generic { store: "bucket", source: Box::new(why) });
            }
            self.sends_manifest.send_replace(true);
        }
        self.inner.put_opts(location, payload, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.check_open()?;
        if is_plain(&options) {
            if let Some(known) = self.known(location, options.range.as_ref()) {
                return Ok(known);
            }
            if let Some(range) = self.whole(location, options.range.as_ref())
                && let Some(got) = self.fetch(location, range, options.range.as_ref()).await?
            {
                return Ok(got);
            }
        }
        self.inner.get_opts(location, options).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if prefix == Some(&self.manifests)
            && let Some(known) = &mut *self.known.lock()
            && !known.is_listed
            && let Some(newest) = &known.newest
        {
            known.is_listed = true;
            return stream::iter([Ok(newest.meta.clone())]).boxed();
        }
        self.inner.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod schedules {
    use object_store::memory::InMemory;

    use super::*;
    use crate::garbage::tests::{LARGE, bucket, make, open, read, write};
    use crate::mount::{MountOptions, Mounted};
    use crate::newest_manifest::find_newest;

    /// The holder writes another manifest after it was looked for, and leaves.
    #[tokio::test(start_paused = true)]
    async fn an_opening_finds_what_came_after_its_manifest() {
        let objects: Arc<InMemory> = Arc::default();
        let holder = open(&objects, 1).await;
        let (last, found) = find_newest(&bucket(&objects)).await.unwrap().unzip();
        let file = make(holder.tree(), "file").await;
        write(holder.tree(), &file, 1, LARGE).await;
        let ino = file.ino;
        drop(file);
        holder.close().await;
        let options = MountOptions { found, ..MountOptions::plain(4, [2; 16]) };
        let opened = Mounted::open(bucket(&objects), last, options).await;
        let mounted = opened.expect("an opening asks again");
        assert_eq!(read(mounted.tree(), &mounted.tree().pin(ino), LARGE).await, vec![1; LARGE]);
        mounted.close().await;
    }
}
