//! A bucket whose requests are slow, fail, are carried out without an answer, or later.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use futures_util::stream::{self, BoxStream};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    ObjectStoreExt as _, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

/// Numbers by a seed (splitmix64).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Other numbers, which follow from these.
    pub(super) fn fork(&mut self) -> Self {
        Self(self.next())
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, n: usize) -> usize {
        usize::try_from(self.next() % n as u64).expect("below a usize")
    }
}

/// A PUT that was sent and not carried out yet.
type Late = (Path, PutPayload, PutOptions);

/// The bucket of all hosts.
#[derive(Debug)]
pub(super) struct World {
    objects: InMemory,
    random: Mutex<Random>,
    late: Mutex<Vec<Late>>,
    is_healed: AtomicBool,
    bytes: AtomicUsize,
    requests: AtomicUsize,
    /// PUTs whose names have one of these in them wait.
    held: Mutex<Vec<String>>,
    /// Those that wait.
    waiting: Mutex<BTreeSet<String>>,
    let_go: Notify,
}

impl World {
    pub(super) fn new(seed: u64) -> Arc<Self> {
        let random = Mutex::new(Random::new(!seed));
        let (objects, late) = (InMemory::new(), Mutex::default());
        let (is_healed, bytes, requests) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
        let (held, waiting, let_go) = (Mutex::default(), Mutex::default(), Notify::new());
        Arc::new(Self { objects, random, late, is_healed, bytes, requests, held, waiting, let_go })
    }

    /// Another bucket with the objects of this one.
    pub(super) fn copied(&self, seed: u64) -> Arc<Self> {
        let copy = Self { objects: self.objects.fork(), ..Arc::into_inner(Self::new(seed)).expect("new") };
        Arc::new(copy)
    }

    /// From now on PUTs wait whose names have one of `parts` in them, and no others.
    pub(super) fn hold(&self, parts: &[&str]) {
        *self.held.lock() = parts.iter().map(|part| (*part).to_owned()).collect();
        self.let_go.notify_waiters();
    }

    /// The names of PUTs that wait, in their order.
    pub(super) fn waiting(&self) -> Vec<String> {
        self.waiting.lock().iter().cloned().collect()
    }

    async fn wait_while_held(&self, path: &Path) {
        loop {
            let let_go = self.let_go.notified();
            if !self.held.lock().iter().any(|part| path.as_ref().contains(part)) {
                self.waiting.lock().remove(path.as_ref());
                return;
            }
            self.waiting.lock().insert(path.to_string());
            let_go.await;
        }
    }

    /// No request fails from now on.
    pub(super) fn heal(&self) {
        // ORDERING: Relaxed, the simulation is one thread.
        self.is_healed.store(true, Ordering::Relaxed);
    }

    /// Whether an object is there.
    pub(super) async fn has(&self, name: &str) -> bool {
        self.objects.head(&Path::from(name)).await.is_ok()
    }

    /// Bytes that were written to it so far.
    pub(super) fn bytes(&self) -> usize {
        // ORDERING: as above.
        self.bytes.load(Ordering::Relaxed)
    }

    /// Requests that were sent to it so far, but for listings.
    pub(super) fn requests(&self) -> usize {
        // ORDERING: as above.
        self.requests.load(Ordering::Relaxed)
    }

    fn below(&self, n: usize) -> usize {
        self.random.lock().below(n)
    }

    /// What becomes of a request.
    fn fate(&self) -> Fate {
        // ORDERING: as above.
        self.requests.fetch_add(1, Ordering::Relaxed);
        // ORDERING: as above.
        if self.is_healed.load(Ordering::Relaxed) {
            return Fate::Answered;
        }
        match self.below(100) {
            0..3 => Fate::NotSent,
            3..6 => Fate::AnswerLost,
            6..8 => Fate::Late,
            8..10 => Fate::Stalled,
            _ => Fate::Answered,
        }
    }

    async fn delay(&self, is_stalled: bool) {
        let range = if is_stalled { 20_000 } else { 120 };
        let millis = self.below(range) as u64;
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }

    /// Carries out, now and then, one of the requests that are late.
    async fn carry_out_late(&self) {
        if self.late.lock().is_empty() || self.below(4) != 0 {
            return;
        }
        let number = self.below(self.late.lock().len());
        let late = self.late.lock().remove(number);
        self.carry_out(late).await;
    }

    /// Carries out all requests that are late.
    pub(super) async fn carry_out_all(&self) {
        let late = std::mem::take(&mut *self.late.lock());
        for late in late {
            self.carry_out(late).await;
        }
    }

    async fn carry_out(&self, (path, payload, options): Late) {
        let _its_sender_does_not_wait = self.objects.put_opts(&path, payload, options).await;
    }
}

enum Fate {
    Answered,
    NotSent,
    AnswerLost,
    Late,
    Stalled,
}

fn lost() -> Error {
    Error::Generic { store: "simulated", source: "the connection was lost".into() }
}

/// One host's way to the bucket.
#[derive(Debug)]
pub(super) struct FaultyObjects {
    world: Arc<World>,
    is_cut: Arc<AtomicBool>,
}

impl FaultyObjects {
    /// While `is_cut`, no answer comes, and what is to be written comes late.
    pub(super) fn new(world: &Arc<World>, is_cut: Arc<AtomicBool>) -> Self {
        Self { world: Arc::clone(world), is_cut }
    }

    fn fate(&self) -> Fate {
        // ORDERING: Relaxed, the simulation is one thread.
        if self.is_cut.load(Ordering::Relaxed) { Fate::Late } else { self.world.fate() }
    }

    /// Waits as a request does; fails if its answer does.
    async fn request(&self) -> Result<()> {
        self.world.carry_out_late().await;
        let fate = self.fate();
        self.world.delay(matches!(fate, Fate::Stalled)).await;
        match fate {
            Fate::NotSent | Fate::AnswerLost | Fate::Late => Err(lost()),
            Fate::Answered | Fate::Stalled => Ok(()),
        }
    }
}

impl fmt::Display for FaultyObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

#[async_trait]
impl ObjectStore for FaultyObjects {
    async fn put_opts(&self, path: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        let world = &self.world;
        world.wait_while_held(path).await;
        world.carry_out_late().await;
        let fate = self.fate();
        world.delay(matches!(fate, Fate::Stalled)).await;
        match fate {
            Fate::NotSent => return Err(lost()),
            Fate::Late => {
                world.late.lock().push((path.clone(), payload, options));
                return Err(lost());
            }
            _ => {}
        }
        // ORDERING: Relaxed, a number only.
        world.bytes.fetch_add(payload.content_length(), Ordering::Relaxed);
        let put = world.objects.put_opts(path, payload, options).await;
        world.delay(false).await;
        if matches!(fate, Fate::AnswerLost) { Err(lost()) } else { put }
    }

    async fn put_multipart_opts(
        &self,
        path: &Path,
        options: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.request().await?;
        self.world.objects.put_multipart_opts(path, options).await
    }

    async fn get_opts(&self, path: &Path, options: GetOptions) -> Result<GetResult> {
        self.request().await?;
        self.world.objects.get_opts(path, options).await
    }

    async fn get_ranges(&self, path: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.request().await?;
        self.world.objects.get_ranges(path, ranges).await
    }

    fn delete_stream(&self, paths: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        let this = Self { world: Arc::clone(&self.world), is_cut: Arc::clone(&self.is_cut) };
        let deleted = async move {
            let sent = this.request().await;
            // Whether its answer is lost after it was carried out, or it was not.
            if sent.is_ok() || this.world.below(2) == 0 {
                let deleted: Vec<_> = this.world.objects.delete_stream(paths).collect().await;
                if sent.is_ok() {
                    return stream::iter(deleted);
                }
            }
            stream::iter(vec![Err(lost())])
        };
        stream::once(deleted).flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.world.objects.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.request().await?;
        self.world.objects.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.request().await?;
        self.world.objects.copy_opts(from, to, options).await
    }
}
