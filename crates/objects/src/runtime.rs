//! The runtime of the process: all volumes share it. A task of one volume that waits for its bucket
//! holds no thread.
//!
//! Bulk data has threads of its own. To encode a segment, and to sign the request that sends it, takes
//! a thread for some 10 ms, and a task that such a thread has woken cannot be taken over by another: on
//! the same threads a commit would wait for segments that have nothing to do with it.

use std::cell::Cell;
use std::sync::OnceLock;

use store::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinError;
use tokio_util::task::AbortOnDropHandle;

/// Threads that run tasks and requests of all volumes of the process.
const THREADS: usize = 4;
/// Threads that encode and send bulk data.
const BULK_THREADS: usize = 2;

/// The runtimes of the process, each from the first call that needs it.
static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
static BULK_RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();

thread_local! {
    static IS_BULK: Cell<bool> = const { Cell::new(false) };
}

/// Whether the caller runs on a thread for bulk data.
pub(crate) fn is_bulk_thread() -> bool {
    IS_BULK.get()
}

/// The runtime, which begins with the first call.
///
/// # Errors
/// No threads can be made.
pub(crate) fn handle() -> Result<Handle> {
    let runtime = RUNTIME.get_or_init(|| {
        Builder::new_multi_thread().worker_threads(THREADS).thread_name("wt-objects").enable_all().build()
    });
    started(runtime)
}

/// Tasks of all volumes of the process that have not ended: what runs in the background of a volume,
/// and its requests.
#[must_use]
pub fn tasks() -> u64 {
    let alive = |runtime: &OnceLock<std::io::Result<Runtime>>| {
        let runtime = runtime.get().and_then(|runtime| runtime.as_ref().ok());
        runtime.map_or(0, |runtime| runtime.metrics().num_alive_tasks() as u64)
    };
    alive(&RUNTIME) + alive(&BULK_RUNTIME)
}

fn started(runtime: &std::io::Result<Runtime>) -> Result<Handle> {
    match runtime {
        Ok(runtime) => Ok(runtime.handle().clone()),
        Err(error) => Err(Error::with(ErrorKind::NoMemory, "start", format!("no threads: {error}"))),
    }
}

/// Where work with bulk data runs.
#[derive(Debug, Clone, Default)]
pub(crate) struct BulkThreads(Option<Handle>);

impl BulkThreads {
    /// The process's threads for it, which begin with the first call. Without these ([`Default`]) it
    /// runs where its caller does, as tests on paused time need it.
    ///
    /// # Errors
    /// No threads can be made.
    pub(crate) fn of_process() -> Result<Self> {
        let runtime = BULK_RUNTIME.get_or_init(|| {
            Builder::new_multi_thread()
                .worker_threads(BULK_THREADS)
                .thread_name("wt-bulk")
                .on_thread_start(|| IS_BULK.set(true))
                .enable_all()
                .build()
        });
        Ok(Self(Some(started(runtime)?)))
    }

    /// Runs what takes a thread for long. It ends where it is if nobody waits for it any more.
    pub(crate) async fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> T {
        let Some(threads) = &self.0 else { return work.await };
        joined(AbortOnDropHandle::new(threads.spawn(work))).await
    }
}

/// What a task returns that nobody gives up; its panic is the caller's.
pub(crate) async fn joined<T>(task: impl Future<Output = std::result::Result<T, JoinError>>) -> T {
    match task.await {
        Ok(done) => done,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            // The runtime ends, with the process.
            Err(_) => std::future::pending().await,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn bulk_data_has_threads_of_its_own() {
        assert!(!BulkThreads::default().run(async { is_bulk_thread() }).await);
        let threads = BulkThreads::of_process().unwrap();
        assert!(threads.run(async { is_bulk_thread() }).await);
        assert!(!handle().unwrap().spawn(async { is_bulk_thread() }).await.unwrap());
        assert!(!is_bulk_thread());
    }

    #[tokio::test]
    async fn tasks_count_until_they_end() {
        // Far more than tests that run beside this one begin and end.
        const MANY: u64 = 10_000;
        let before = tasks();
        let waiting: Vec<_> = (0..MANY)
            .map(|_| AbortOnDropHandle::new(handle().unwrap().spawn(std::future::pending::<()>())))
            .collect();
        assert!(tasks() >= before + MANY / 2, "{} after {before}", tasks());
        drop(waiting);
        while tasks() >= before + MANY / 2 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn work_that_nobody_waits_for_ends() {
        let threads = BulkThreads::of_process().unwrap();
        let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
        let work = threads.run(async move {
            std::future::pending::<()>().await;
            drop(sender);
        });
        let given_up = tokio::time::timeout(std::time::Duration::from_millis(10), work).await;
        assert!(given_up.is_err());
        assert!(receiver.await.is_err(), "what it had is dropped");
    }
}
