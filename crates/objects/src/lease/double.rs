//! Test doubles: a bucket whose requests fail as a test says, and machines with processes.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use tokio::time::{Instant, sleep};

use super::host::Host;
use super::info::{LeaseInfo, Process};
use super::take::Request;
use crate::bucket::{Bucket, Patience};

/// Runs a test on one thread, in time that passes when all tasks wait.
pub(super) fn run<T>(test: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap().block_on(test)
}

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// It fails, and is not performed.
    Before,
    /// It is performed, and its answer is lost.
    After,
    /// It is performed, its answer is lost, and it is performed once more so much later.
    Again(Duration),
    /// It is performed so much later.
    Slow(Duration),
    /// Its answer never comes.
    Hang,
}

/// Numbers that a seed decides.
#[derive(Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// A number below `end`.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    pub(super) fn millis(&mut self, end: u64) -> Duration {
        Duration::from_millis(self.below(end))
    }
}

#[derive(Debug, Default)]
struct Plan {
    gets: VecDeque<Fault>,
    puts: VecDeque<Fault>,
    /// Decides when the lists are empty.
    random: Option<Random>,
    is_down: bool,
}

/// A store in memory, whose requests fail as a test says. It keeps the history of the lease.
#[derive(Debug, Default)]
pub(super) struct FaultyStore {
    memory: Arc<InMemory>,
    plan: Mutex<Plan>,
    counts: Mutex<(u64, u64)>,
    history: Arc<Mutex<Vec<LeaseInfo>>>,
}

impl FaultyStore {
    pub(super) fn bucket(self: &Arc<Self>) -> Bucket {
        // One attempt each: the tests decide what becomes of it.
        Bucket::new(Arc::clone(self) as Arc<dyn ObjectStore>, Path::from("volume"))
            .with_patience(Patience::Once)
    }

    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap()
    }

    /// What becomes of the next GETs.
    pub(super) fn fail_gets(&self, faults: &[Fault]) {
        self.plan().gets.extend(faults);
    }

    /// What becomes of the next PUTs.
    pub(super) fn fail_puts(&self, faults: &[Fault]) {
        self.plan().puts.extend(faults);
    }

    /// Each tenth request or so fails in one way or another, or none does any more.
    pub(super) fn set_random(&self, random: Option<Random>) {
        self.plan().random = random;
    }

    /// Whether all requests fail.
    pub(super) fn set_down(&self, is_down: bool) {
        self.plan().is_down = is_down;
    }

    /// The requests since the last call: GETs and PUTs.
    pub(super) fn take_counts(&self) -> (u64, u64) {
        std::mem::take(&mut *self.counts.lock().unwrap())
    }

    /// All versions of the lease.
    pub(super) fn history(&self) -> Vec<LeaseInfo> {
        self.history.lock().unwrap().clone()
    }

    /// The version that is there.
    pub(super) fn current(&self) -> LeaseInfo {
        self.history.lock().unwrap().last().unwrap().clone()
    }

    fn fault(&self, is_put: bool) -> Fault {
        let mut plan = self.plan();
        if plan.is_down {
            return Fault::Before;
        }
        let planned = if is_put { plan.puts.pop_front() } else { plan.gets.pop_front() };
        let Plan { random: Some(random), .. } = &mut *plan else { return planned.unwrap_or(Fault::None) };
        planned.unwrap_or_else(|| match random.below(20) {
            0 => Fault::Before,
            1 => Fault::After,
            2 if is_put => Fault::Again(random.millis(20_000)),
            3..8 => Fault::Slow(random.millis(3000)),
            _ => Fault::None,
        })
    }
}

/// Performs a PUT, and writes the lease's history.
async fn put(
    memory: &InMemory,
    history: &Mutex<Vec<LeaseInfo>>,
    (location, payload, options): (&Path, PutPayload, PutOptions),
) -> Result<PutResult> {
    let bytes = Bytes::from(payload.clone());
    let put = memory.put_opts(location, payload, options).await?;
    if let Ok(info) = LeaseInfo::parse(&bytes) {
        history.lock().unwrap().push(info);
    }
    Ok(put)
}

fn lost() -> object_store::Error {
    object_store::Error::Generic { store: "faulty", source: "the connection was reset".into() }
}

impl fmt::Display for FaultyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("faulty")
    }
}

#[async_trait]
impl ObjectStore for FaultyStore {
    async fn put_opts(&self, location: &Path, payload: PutPayload, opts: PutOptions) -> Result<PutResult> {
        self.counts.lock().unwrap().1 += 1;
        let fault = self.fault(true);
        match fault {
            Fault::Before => return Err(lost()),
            Fault::Slow(by) => sleep(by).await,
            _ => {}
        }
        let put_now = put(&self.memory, &self.history, (location, payload.clone(), opts.clone())).await;
        match fault {
            Fault::After => Err(lost()),
            Fault::Hang => std::future::pending().await,
            Fault::Again(by) => {
                let (memory, history) = (Arc::clone(&self.memory), Arc::clone(&self.history));
                let location = location.clone();
                tokio::spawn(async move {
                    sleep(by).await;
                    let _ = put(&memory, &history, (&location, payload, opts)).await;
                });
                Err(lost())
            }
            _ => put_now,
        }
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.counts.lock().unwrap().0 += 1;
        match self.fault(false) {
            Fault::Before | Fault::After | Fault::Again(_) => return Err(lost()),
            Fault::Slow(by) => sleep(by).await,
            Fault::Hang => std::future::pending().await,
            Fault::None => {}
        }
        self.memory.get_opts(location, options).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.memory.put_multipart_opts(location, opts).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.memory.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        self.memory.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.memory.list(prefix)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.memory.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.memory.copy_opts(from, to, options).await
    }
}

/// A machine: its name, how often it was booted, and the processes that run on it.
#[derive(Debug)]
pub(super) struct Machine {
    name: String,
    state: Mutex<(u32, u32, BTreeSet<u32>)>,
    /// How long it was suspended.
    suspended: Mutex<Duration>,
    since: Instant,
    /// What its clock on the wall shows too much.
    pub(super) ahead: Mutex<u64>,
}

/// A process on a machine.
#[derive(Debug)]
pub(super) struct Running {
    machine: Arc<Machine>,
    process: Process,
}

impl Machine {
    pub(super) fn new(name: &str) -> Arc<Self> {
        let (name, state) = (name.to_owned(), Mutex::default());
        let (suspended, ahead) = (Mutex::default(), Mutex::default());
        Arc::new(Self { name, state, suspended, since: Instant::now(), ahead })
    }

    pub(super) fn start(self: &Arc<Self>) -> Arc<Running> {
        let mut state = self.state.lock().unwrap();
        state.1 += 1;
        let pid = state.1;
        state.2.insert(pid);
        let process = Process {
            boot_id: format!("{}, boot {}", self.name, state.0),
            pid,
            start_time: u64::from(pid),
            pid_namespace: 1,
            time_namespace: None,
        };
        Arc::new(Running { machine: Arc::clone(self), process })
    }

    pub(super) fn reboot(&self) {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        state.2.clear();
    }

    pub(super) fn suspend(&self, time: Duration) {
        *self.suspended.lock().unwrap() += time;
    }
}

impl Running {
    pub(super) fn kill(&self) {
        self.machine.state.lock().unwrap().2.remove(&self.process.pid);
    }

    pub(super) fn request(&self) -> Request {
        Request { mountpoint: "/mnt/data".into(), ..Request::default() }
    }

    pub(super) fn takeover(&self) -> Request {
        Request { takeover: true, ..self.request() }
    }
}

impl Host for Running {
    fn name(&self) -> String {
        self.machine.name.clone()
    }

    fn process(&self) -> Process {
        self.process.clone()
    }

    fn has_ended(&self, process: &Process) -> bool {
        process.boot_id == self.process.boot_id
            && !self.machine.state.lock().unwrap().2.contains(&process.pid)
    }

    fn boottime(&self) -> Duration {
        self.machine.since.elapsed() + *self.machine.suspended.lock().unwrap()
    }

    fn unix_time(&self) -> u64 {
        1_800_000_000 + self.machine.since.elapsed().as_secs() + *self.machine.ahead.lock().unwrap()
    }
}
