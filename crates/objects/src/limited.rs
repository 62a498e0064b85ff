//! The store as the engine gets it: one attempt a request, since the engine retries by itself.
//!
//! Requests take bulk permits, have time limits, are counted, and end when the bucket is stopped;
//! the engine does not retry after that.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt as _, StreamExt as _};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use slatedb_common::retry::NonRetryable;
use tokio::time::Instant;

use crate::object_names::engine_path;
use crate::parents::Parents;
use crate::problem::is_range_error;
use crate::requests::{Class, Requests, STEP, limit, over_limit};
use crate::runtime::BulkThreads;
use crate::stats::Kind;

/// The largest transfer that a request's limit reckons with, if its length is not known.
const UNKNOWN_LENGTH: u64 = 8 << 20;
/// What is larger is bulk data.
const SMALL: u64 = 256 << 10;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Limited {
    inner: Arc<dyn ObjectStore>,
    requests: Arc<Requests>,
    bulk_threads: BulkThreads,
    /// The volume's root, and whose tables it may read.
    root: Path,
    parents: Arc<Parents>,
}

impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

fn given_up() -> Error {
    let why = NonRetryable("the volume was given up".into());
    Error::Generic { store: "bucket", source: Box::new(why) }
}

/// What the error says of an object in which what is asked for cannot be.
pub(crate) const TOO_SHORT: &str = "is too short";

/// What is asked for lies behind the object's end, and will next time.
fn too_short(location: &Path) -> Error {
    let why = NonRetryable(format!("{location} {TOO_SHORT}").into());
    Error::Generic { store: "bucket", source: Box::new(why) }
}

/// Sends one request.
async fn once<T>(
    requests: &Arc<Requests>,
    kind: Kind,
    time: Duration,
    request: impl Future<Output = Result<T>>,
) -> Result<T> {
    let _under_way = requests.counters.begin();
    let Some(_permit) = requests.permit(Class::Bulk).await else { return Err(given_up()) };
    requests.counters.sent(kind);
    let begun = Instant::now();
    let outcome = tokio::select! {
        biased;
        () = requests.stopped() => return Err(given_up()),
        outcome = tokio::time::timeout(time, request) => outcome.unwrap_or_else(|_| Err(over_limit(time))),
    };
    // The problem is counted; the engine reads the error itself.
    if let Err(error) = &outcome
        && let Some(problem) = crate::problem::Problem::of(error)
    {
        requests.counters.failed(kind, &problem);
    } else {
        requests.counters.answered(kind, begun.elapsed());
    }
    outcome
}

/// A stream each step of which has a time limit, and which ends when the bucket is stopped.
fn stepped<T: Send + 'static>(
    requests: &Arc<Requests>,
    inner: BoxStream<'static, Result<T>>,
    on_item: impl Fn(&Requests, &T) + Send + Sync + 'static,
) -> BoxStream<'static, Result<T>> {
    let state = (Arc::clone(requests), inner, requests.counters.begin(), Arc::new(on_item));
    stream::unfold(Some(state), |state| async move {
        let (requests, mut inner, under_way, on_item) = state?;
        let step = tokio::select! {
            biased;
            () = requests.stopped() => return Some((Err(given_up()), None)),
            step = tokio::time::timeout(STEP, inner.next()) => step,
        };
        let Ok(step) = step else { return Some((Err(over_limit(STEP)), None)) };
        let item = step?;
        if let Ok(item) = &item {
            on_item(&requests, item);
        }
        Some((item, Some((requests, inner, under_way, on_item))))
    })
    .boxed()
}

impl Limited {
    pub(crate) fn new(
        inner: Arc<dyn ObjectStore>,
        (requests, bulk_threads): (Arc<Requests>, BulkThreads),
        (root, parents): (Path, Arc<Parents>),
    ) -> Self {
        Self { inner, requests, bulk_threads, root, parents }
    }

    fn list_stream(
        &self,
        listed: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.requests.counters.sent(Kind::List);
        stepped(&self.requests, listed, |_, _| {})
    }
}

#[async_trait]
impl ObjectStore for Limited {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let len = payload.content_length() as u64;
        let (inner, place) = (Arc::clone(&self.inner), location.clone());
        let put = async move { inner.put_opts(&place, payload, options).await };
        let put = async {
            // To sign a table takes as long as a segment.
            if len > SMALL { self.bulk_threads.run(put).await } else { put.await }
        };
        let put = once(&self.requests, Kind::Put, limit(len), put).await?;
        self.requests.counters.up(len);
        Ok(put)
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        let inner = self.inner.put_multipart_opts(location, options);
        let inner = once(&self.requests, Kind::Put, limit(0), inner).await?;
        Ok(Box::new(Upload { inner, requests: Arc::clone(&self.requests) }))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        // The engine looks there after each manifest how far its own collection of garbage went, which
        // no holder runs.
        if location.prefix_matches(&engine_path(&self.root).join("gc")) {
            let source = "nothing collects garbage by the engine's own rules".into();
            return Err(Error::NotFound { path: location.to_string(), source });
        }
        let location = self.parents.table_at(&self.root, location).unwrap_or(location);
        let got = self.inner.get_opts(location, options);
        let got = once(&self.requests, Kind::Get, limit(UNKNOWN_LENGTH), got).await;
        let got = got.map_err(|error| if is_range_error(&error) { too_short(location) } else { error })?;
        let payload = match got.payload {
            GetResultPayload::Stream(stream) => {
                GetResultPayload::Stream(stepped(&self.requests, stream, |requests, bytes: &bytes::Bytes| {
                    requests.counters.down(bytes.len() as u64)
                }))
            }
            file @ GetResultPayload::File(..) => {
                self.requests.counters.down(got.range.end.saturating_sub(got.range.start));
                file
            }
        };
        Ok(GetResult { payload, ..got })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.requests.counters.sent(Kind::Delete);
        stepped(&self.requests, self.inner.delete_stream(locations), |_, _| {})
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_stream(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.list_stream(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        once(&self.requests, Kind::List, limit(UNKNOWN_LENGTH), self.inner.list_with_delimiter(prefix)).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        once(&self.requests, Kind::Put, limit(UNKNOWN_LENGTH), self.inner.copy_opts(from, to, options)).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        once(&self.requests, Kind::Put, limit(UNKNOWN_LENGTH), self.inner.rename_opts(from, to, options))
            .await
    }
}

/// An upload in parts, each of which is a request.
#[derive(Debug)]
struct Upload {
    inner: Box<dyn MultipartUpload>,
    requests: Arc<Requests>,
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let len = data.content_length() as u64;
        let part = self.inner.put_part(data);
        let requests = Arc::clone(&self.requests);
        async move {
            once(&requests, Kind::Put, limit(len), part).await?;
            requests.counters.up(len);
            Ok(())
        }
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        once(&self.requests, Kind::Put, limit(UNKNOWN_LENGTH), self.inner.complete()).await
    }

    async fn abort(&mut self) -> Result<()> {
        once(&self.requests, Kind::Put, limit(0), self.inner.abort()).await
    }
}
