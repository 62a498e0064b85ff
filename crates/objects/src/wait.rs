//! Waits for the runtime's futures on a thread that is not the runtime's.

use tokio::runtime::Handle;

use crate::runtime::joined;
use crate::tree::Tree;

/// Waits for a future on this thread, with the runtime's timers and tasks at hand.
pub(crate) fn wait<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _runtime = runtime.enter();
    futures_executor::block_on(future)
}

/// Waits for what a thread of the runtime does: this thread's stack may be too small for it. A server's
/// threads have 256 KiB each, of which the end of a volume takes more.
pub(crate) fn wait_for_task<T: Send + 'static>(
    runtime: &Handle,
    task: impl Future<Output = T> + Send + 'static,
) -> T {
    wait(runtime, joined(runtime.spawn(task)))
}

/// Waits for a call that reads an inode: of a volume that others write it finds one state.
pub(crate) fn read<F: Future>(tree: &Tree, runtime: &Handle, ino: u64, future: F) -> F::Output {
    match tree.engine.followed() {
        Some(followed) => wait(runtime, followed.within(ino, future)),
        None => wait(runtime, future),
    }
}
