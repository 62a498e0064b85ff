//! Waits for the runtime's futures on a thread that is not the runtime's.

use tokio::runtime::Handle;

use crate::tree::Tree;

/// Waits for a future on this thread, with the runtime's timers and tasks at hand.
pub(crate) fn wait<F: Future>(runtime: &Handle, future: F) -> F::Output {
    let _runtime = runtime.enter();
    futures_executor::block_on(future)
}

/// Waits for a call that reads an inode: of a volume that others write it finds one state.
pub(crate) fn read<F: Future>(tree: &Tree, runtime: &Handle, ino: u64, future: F) -> F::Output {
    match tree.engine.followed() {
        Some(followed) => wait(runtime, followed.within(ino, future)),
        None => wait(runtime, future),
    }
}
