//! For tests: memory that behaves as servers do that are ill, or that ignore conditions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult,
    Result,
};
use parking_lot::Mutex;

use crate::bucket::Bucket;
use crate::counter::StatCounter;
use crate::requests::over_limit;

/// What a request meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// It is carried out, and no answer comes.
    LostAnswer,
    /// Status 500, and nothing is done.
    Server,
    /// Status 503 `SlowDown`, and nothing is done.
    SlowDown,
    /// Status 403, and nothing is done.
    Denied,
    /// It never ends.
    Hangs,
    /// Its answer comes in pieces of 64 KiB, each 10 ms after the one before.
    Trickles,
    /// A create overwrites.
    IgnoresCreate,
    /// A replace overwrites.
    IgnoresReplace,
    /// A create looks, and writes a moment later.
    RacyCreate,
    /// A listing is empty.
    HidesListed,
    /// The log's objects and the engine's manifests are there a second later.
    LateCommits,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Scripted {
    inner: InMemory,
    /// Each with its share of the requests in percent.
    faults: Mutex<Vec<(Fault, u64)>>,
    random: Mutex<u64>,
    pub(crate) requests: StatCounter,
}

impl Scripted {
    pub(crate) fn new(seed: u64) -> Self {
        Self {
            inner: InMemory::new(),
            faults: Mutex::default(),
            random: Mutex::new(seed.wrapping_mul(2) + 1),
            requests: StatCounter::default(),
        }
    }

    pub(crate) fn with(self, fault: Fault, percent: u64) -> Self {
        self.faults.lock().push((fault, percent));
        self
    }

    /// From now on these instead.
    pub(crate) fn set(&self, faults: &[(Fault, u64)]) {
        *self.faults.lock() = faults.to_vec();
    }

    pub(crate) fn bucket(self) -> Bucket {
        Bucket::new(Arc::new(self), Path::from("volume")).seeded(0)
    }

    fn meets(&self, fault: Fault) -> bool {
        let faults = self.faults.lock();
        let Some((_, percent)) = faults.iter().find(|(meant, _)| *meant == fault) else { return false };
        let mut random = self.random.lock();
        *random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*random >> 33) % 100 < *percent
    }

    async fn before(&self) -> Result<()> {
        self.requests.add(1);
        if self.meets(Fault::Hangs) {
            std::future::pending::<()>().await;
        }
        for (fault, status) in [
            (Fault::Server, "500 Internal Server Error: "),
            (Fault::SlowDown, "503 Service Unavailable: <Error><Code>SlowDown</Code></Error>"),
            (Fault::Denied, "403 Forbidden: <Error><Code>AccessDenied</Code></Error>"),
        ] {
            if self.meets(fault) {
                let text = format!("Server returned non-2xx status code: {status}");
                return Err(Error::Generic { store: "scripted", source: text.into() });
            }
        }
        Ok(())
    }

    fn after<T>(&self, answer: Result<T>) -> Result<T> {
        if self.meets(Fault::LostAnswer) { Err(over_limit(Duration::from_secs(30))) } else { answer }
    }
}

impl fmt::Display for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("scripted:/")
    }
}

#[async_trait]
impl ObjectStore for Scripted {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        mut options: PutOptions,
    ) -> Result<PutResult> {
        self.before().await?;
        let is_commit = ["/log/", "/manifest/"].iter().any(|part| location.as_ref().contains(part));
        if is_commit && self.meets(Fault::LateCommits) {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        if options.mode == PutMode::Create {
            if self.meets(Fault::RacyCreate) && self.inner.head(location).await.is_err() {
                tokio::task::yield_now().await;
                options.mode = PutMode::Overwrite;
            }
            if self.meets(Fault::IgnoresCreate) {
                options.mode = PutMode::Overwrite;
            }
        }
        if matches!(options.mode, PutMode::Update(_)) && self.meets(Fault::IgnoresReplace) {
            options.mode = PutMode::Overwrite;
        }
        self.after(self.inner.put_opts(location, payload, options).await)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, options).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.before().await?;
        let got = self.after(self.inner.get_opts(location, options).await)?;
        if !self.meets(Fault::Trickles) {
            return Ok(got);
        }
        let (meta, range, attributes) = (got.meta.clone(), got.range.clone(), got.attributes.clone());
        let whole = got.bytes().await?;
        let pieces: Vec<_> = (0..whole.len()).step_by(64 << 10).collect();
        let pieces = stream::iter(pieces).then(move |at| {
            let piece = whole.slice(at..whole.len().min(at + (64 << 10)));
            async move {
                tokio::time::sleep(Duration::from_millis(10)).await;
                Ok(piece)
            }
        });
        let payload = GetResultPayload::Stream(pieces.boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions: Default::default() })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.meets(Fault::HidesListed) {
            return stream::empty().boxed();
        }
        self.inner.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }
}
