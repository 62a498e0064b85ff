//! The runtime of the process: all volumes share it. A task of one volume that waits for its bucket
//! holds no thread.

use std::sync::OnceLock;

use store::{Error, ErrorKind, Result};
use tokio::runtime::{Builder, Handle, Runtime};

/// Threads that run tasks; requests and encoding of all volumes of the process.
const THREADS: usize = 4;

/// The runtime, which begins with the first call.
///
/// # Errors
/// No threads can be made.
pub(crate) fn handle() -> Result<Handle> {
    static RUNTIME: OnceLock<std::io::Result<Runtime>> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        Builder::new_multi_thread().worker_threads(THREADS).thread_name("wt-objects").enable_all().build()
    });
    match runtime {
        Ok(runtime) => Ok(runtime.handle().clone()),
        Err(error) => Err(Error::with(ErrorKind::NoMemory, "start", format!("no threads: {error}"))),
    }
}
