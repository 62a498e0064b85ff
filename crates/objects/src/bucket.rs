//! Requests to the object store, below one prefix: bounded, retried, counted.
//!
//! A [`Bucket`] is a handle: its clones share permits, retry budget and counters, and are stopped
//! together. What one handle decides for itself is how patient it is and whether it moves bulk
//! data.

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use object_store::path::Path;
use object_store::{
    Error as StoreError, ObjectStore, PutMode, PutOptions, PutPayload, Result as StoreResult, UpdateVersion,
};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

pub(crate) use self::get::Asked;
use crate::limited::Limited;
use crate::parents::Parents;
use crate::problem::About;
pub use crate::requests::Patience;
use crate::requests::{Answer, Class, How, Requests, STEP, limit, over_limit};
use crate::runtime::BulkThreads;
use crate::stats::{Kind, Stats};

/// The most names that a listing returns.
const MAX_NAMES: usize = 4_000_000;
/// Objects that one request deletes.
const DELETED_AT_ONCE: usize = 1_000;
/// How patient a handle is that nobody told.
const PATIENCE: Patience = Patience::For(Duration::from_secs(30));

fn below(root: &Path, name: &str) -> Path {
    name.split('/').filter(|part| !part.is_empty()).fold(root.clone(), |path, part| path.join(part))
}

/// The objects of one volume.
#[derive(Clone)]
pub struct Bucket {
    store: Arc<dyn ObjectStore>,
    root: Path,
    about: Arc<About>,
    requests: Arc<Requests>,
    class: Class,
    patience: Patience,
    /// The volumes that this one was cloned from.
    parents: Arc<Parents>,
    /// Where bulk data is encoded and sent.
    bulk_threads: BulkThreads,
}

/// A version of an object, by which a conditional request names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tag(UpdateVersion);

/// How a conditional request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Condition {
    /// It was met: the object has this version now.
    Met(Tag),
    /// It was not: another version is there.
    Failed {
        /// An earlier attempt of this request had an unknown outcome: what is there may be what it
        /// wrote. The caller reads it, and knows its own by a nonce.
        after_unknown: bool,
    },
}

impl fmt::Debug for Bucket {
    /// Without the store, whose settings are nobody's business.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bucket")
            .field("url", &self.about.url)
            .field("class", &self.class)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

impl Bucket {
    /// The objects below `root`.
    #[must_use]
    pub fn new(store: Arc<dyn ObjectStore>, root: Path) -> Self {
        let about = About { url: format!("{store}/{root}"), credentials: String::new() };
        Self::opened(store, root, about)
    }

    /// The same, with what messages say about it.
    pub(crate) fn opened(store: Arc<dyn ObjectStore>, root: Path, about: About) -> Self {
        let mut seed = [0; 8];
        // An error leaves the seed as it is: chance only keeps retries apart.
        let _ = rustix::rand::getrandom(&mut seed, rustix::rand::GetRandomFlags::empty());
        let requests = Arc::new(Requests::new(u64::from_ne_bytes(seed)));
        let (class, patience, parents) = (Class::Control, PATIENCE, Arc::default());
        let bulk_threads = BulkThreads::default();
        Self { store, root, about: Arc::new(about), requests, class, patience, parents, bulk_threads }
    }

    /// A handle whose bulk data is encoded and sent by these threads.
    pub(crate) fn with_bulk_threads(self, bulk_threads: BulkThreads) -> Self {
        Self { bulk_threads, ..self }
    }

    /// What encodes and sends bulk data.
    pub(crate) const fn bulk_threads(&self) -> &BulkThreads {
        &self.bulk_threads
    }

    /// The objects of a volume with these parents: what is read of theirs by their names, is read
    /// where it is.
    pub(crate) fn with_parents(&self, parents: Parents) -> Self {
        Self { parents: Arc::new(parents), ..self.clone() }
    }

    /// The volumes that this one was cloned from.
    pub(crate) fn parents(&self) -> &Arc<Parents> {
        &self.parents
    }

    /// The objects of another volume in the same bucket.
    pub(crate) fn beside(&self, root: Path) -> Self {
        let url = format!("{root} in the bucket of {}", self.about.url);
        let about = Arc::new(About { url, credentials: self.about.credentials.clone() });
        Self { root, about, parents: Arc::default(), ..self.clone() }
    }

    /// For a simulation: permits, budget and counters of its own, and chance from `seed`.
    #[must_use]
    pub fn seeded(self, seed: u64) -> Self {
        Self { requests: Arc::new(Requests::new(seed)), ..self }
    }

    /// A handle that is as patient as this.
    #[must_use]
    pub fn with_patience(&self, patience: Patience) -> Self {
        Self { patience, ..self.clone() }
    }

    /// A handle for bulk data: it never takes the permits of the small requests that others wait
    /// for.
    #[must_use]
    pub fn bulk(&self) -> Self {
        Self { class: Class::Bulk, ..self.clone() }
    }

    /// Every request of every handle that is under way, and every later one, fails: "the volume was
    /// given up". What was sent before may still be carried out.
    pub fn stop(&self) {
        self.requests.stop();
    }

    /// Logs what all handles have sent; what is sent later is not logged any more.
    pub(crate) fn log_requests(&self) {
        self.requests.log();
    }

    /// Whether [`stop`](Self::stop) was called.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.requests.is_stopped()
    }

    /// What the requests of all handles did, and are doing.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.requests.counters.stats()
    }

    /// The volume's URL, for messages.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.about.url
    }

    /// The store and the path, for the engine, which retries by itself: requests are bounded,
    /// counted and stopped with the others.
    #[must_use]
    pub fn raw(&self) -> (Arc<dyn ObjectStore>, Path) {
        let family = (self.root.clone(), Arc::clone(&self.parents));
        let requests = (Arc::clone(&self.requests), self.bulk_threads.clone());
        let limited = Limited::new(Arc::clone(&self.store), requests, family);
        (Arc::new(limited), self.root.clone())
    }

    /// Where an object is, that is written or removed: always the volume's own.
    fn path(&self, name: &str) -> Path {
        below(&self.root, name)
    }

    /// Where an object is, that is read: it may be a parent's.
    fn place(&self, name: &str) -> Path {
        below(self.parents.place_of(name).unwrap_or(&self.root), name)
    }

    fn how(&self, kind: Kind, limit: Option<Duration>) -> How {
        How { kind, class: self.class, patience: self.patience, limit }
    }

    async fn send<T, F: Future<Output = StoreResult<T>>>(
        &self,
        op: &'static str,
        name: &str,
        how: How,
        attempt: impl FnMut() -> F,
    ) -> Result<Answer<T>> {
        let sent = self.requests.send(how, attempt).await;
        sent.map_err(|unanswered| unanswered.error(op, name, &self.about))
    }

    fn corrupted(&self, name: &str, how: &str) -> Error {
        Error::with(
            ErrorKind::Io,
            "get",
            format!("{}/{name}: the object is corrupted: {how}", self.about.url),
        )
    }

    /// Makes an object that must not exist.
    pub async fn create(&self, name: &str, payload: PutPayload) -> Result<Condition> {
        self.put(name, payload, PutMode::Create).await
    }

    /// Replaces the version `tag` of an object.
    pub async fn replace(&self, name: &str, payload: PutPayload, tag: &Tag) -> Result<Condition> {
        self.put(name, payload, PutMode::Update(tag.0.clone())).await
    }

    async fn put(&self, name: &str, payload: PutPayload, mode: PutMode) -> Result<Condition> {
        let path = self.path(name);
        let len = payload.content_length() as u64;
        let attempt = || {
            let options = PutOptions { mode: mode.clone(), ..PutOptions::default() };
            let (store, path, payload) = (Arc::clone(&self.store), path.clone(), payload.clone());
            let put = async move { store.put_opts(&path, payload, options).await };
            async move {
                match self.class {
                    Class::Bulk => self.bulk_threads.run(put).await,
                    Class::Control => put.await,
                }
            }
        };
        let answer = self.send("put", name, self.how(Kind::Put, Some(limit(len))), attempt).await?;
        match answer.result {
            Ok(put) => {
                self.requests.counters.up(len);
                Ok(Condition::Met(Tag(put.into())))
            }
            Err(StoreError::AlreadyExists { .. } | StoreError::Precondition { .. }) => {
                Ok(Condition::Failed { after_unknown: answer.after_unknown })
            }
            Err(error) => Err(self.unexpected("put", name, &error)),
        }
    }

    /// The names of the objects below `dir`, relative to it, in order, behind `after`.
    pub async fn list(&self, dir: &str, after: Option<&str>) -> Result<Vec<String>> {
        let mut names: Vec<_> =
            self.list_sizes(dir, after).await?.into_iter().map(|(name, _)| name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// As [`list`](Self::list), in no order, each with its bytes.
    pub async fn list_sizes(&self, dir: &str, after: Option<&str>) -> Result<Vec<(String, u64)>> {
        let names = self.list_some(dir, after, MAX_NAMES).await?;
        if names.len() > MAX_NAMES {
            let detail = format!("{}/{dir}: more than {MAX_NAMES} objects", self.about.url);
            return Err(Error::with(ErrorKind::TooBig, "list", detail));
        }
        Ok(names)
    }

    /// Up to `most` of the names below `dir`, whichever the store lists first.
    pub async fn some_names(&self, dir: &str, most: usize) -> Result<Vec<String>> {
        let names = self.list_some(dir, None, most).await?;
        Ok(names.into_iter().take(most).map(|(name, _)| name).collect())
    }

    /// Stops a listing behind `most` names.
    async fn list_some(&self, dir: &str, after: Option<&str>, most: usize) -> Result<Vec<(String, u64)>> {
        let prefix = self.path(dir);
        let attempt = || async {
            let mut listed = match after {
                Some(after) => {
                    let after = after.split('/').fold(prefix.clone(), |path, part| path.join(part));
                    self.store.list_with_offset(Some(&prefix), &after)
                }
                None => self.store.list(Some(&prefix)),
            };
            let mut names = Vec::new();
            while names.len() <= most
                && let Some(meta) = stepped(listed.next()).await?.transpose()?
            {
                let Some(parts) = meta.location.prefix_match(&prefix) else { continue };
                let name = parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
                names.push((name, meta.size));
            }
            Ok(names)
        };
        let answer = self.send("list", dir, self.how(Kind::List, None), attempt).await?;
        answer.result.map_err(|error| self.unexpected("list", dir, &error))
    }

    /// One of the names at which `is_wanted`, if there is one, however many objects there are: `page` of
    /// them at a time, each with a patience of its own. A store that lists in no order has one page.
    pub(crate) async fn find(&self, page: usize, is_wanted: impl Fn(&str) -> bool) -> Result<Option<String>> {
        let mut after: Option<Path> = None;
        loop {
            let attempt = || async {
                let mut listed = match &after {
                    Some(after) => self.store.list_with_offset(Some(&self.root), after),
                    None => self.store.list(Some(&self.root)),
                };
                let mut last = None;
                for _ in 0..page {
                    let Some(meta) = stepped(listed.next()).await?.transpose()? else {
                        return Ok(ControlFlow::Break(None));
                    };
                    if let Some(parts) = meta.location.prefix_match(&self.root) {
                        let name = parts.map(|part| part.as_ref().to_owned()).collect::<Vec<_>>().join("/");
                        if is_wanted(&name) {
                            return Ok(ControlFlow::Break(Some(name)));
                        }
                    }
                    last = Some(meta.location);
                }
                Ok(ControlFlow::Continue(last))
            };
            let answer = self.send("list", "", self.how(Kind::List, None), attempt).await?;
            match answer.result.map_err(|error| self.unexpected("list", "", &error))? {
                ControlFlow::Break(found) => return Ok(found),
                ControlFlow::Continue(last) => after = last,
            }
        }
    }

    /// The names of what looks like directories at the top: the first parts of longer names. In no
    /// order.
    pub(crate) async fn directories(&self) -> Result<Vec<String>> {
        let attempt = || self.store.list_with_delimiter(Some(&self.root));
        let answer = self.send("list", "", self.how(Kind::List, None), attempt).await?;
        let listed = answer.result.map_err(|error| self.unexpected("list", "", &error))?;
        if listed.common_prefixes.len() > MAX_NAMES {
            let detail = format!("{}: more than {MAX_NAMES} directories", self.about.url);
            return Err(Error::with(ErrorKind::TooBig, "list", detail));
        }
        Ok(listed.common_prefixes.iter().filter_map(|path| path.filename().map(str::to_owned)).collect())
    }

    /// Deletes an object, if it is there.
    pub async fn delete(&self, name: &str) -> Result<()> {
        self.delete_many(&[name]).await
    }

    /// Deletes objects, those that are there.
    pub async fn delete_many<T: AsRef<str> + Sync>(&self, names: &[T]) -> Result<()> {
        for chunk in names.chunks(DELETED_AT_ONCE) {
            let path = |name: &str| {
                if is_on("parents-objects-removed") { self.place(name) } else { self.path(name) }
            };
            let paths: Vec<_> = chunk.iter().map(|name| path(name.as_ref())).collect();
            let attempt = || async {
                let paths: Vec<_> = paths.iter().cloned().map(Ok).collect();
                let mut deleted = self.store.delete_stream(stream::iter(paths).boxed());
                while let Some(result) = stepped(deleted.next()).await? {
                    match result {
                        Ok(_) | Err(StoreError::NotFound { .. }) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(())
            };
            let first = chunk.first().map(AsRef::as_ref).unwrap_or_default();
            let answer = self.send("delete", first, self.how(Kind::Delete, None), attempt).await?;
            answer.result.map_err(|error| self.unexpected("delete", first, &error))?;
        }
        Ok(())
    }

    /// An answer that is none to this request, or that an object is not there.
    fn unexpected(&self, op: &'static str, name: &str, error: &StoreError) -> Error {
        let place = format!("{}/{name}", self.about.url);
        match error {
            StoreError::NotFound { .. } => {
                Error::with(ErrorKind::NotFound, op, format!("{place}: there is no such object"))
            }
            _ => Error::with(
                ErrorKind::Io,
                op,
                format!("{place}: the server's answer does not fit the request"),
            ),
        }
    }
}

/// Waits for one step of an attempt that has many.
async fn stepped<T>(step: impl Future<Output = T>) -> StoreResult<T> {
    tokio::time::timeout(STEP, step).await.map_err(|_| over_limit(STEP))
}

mod get;
mod read;

#[cfg(test)]
mod http;
#[cfg(test)]
mod real;
#[cfg(test)]
mod server;
#[cfg(test)]
mod tests;
