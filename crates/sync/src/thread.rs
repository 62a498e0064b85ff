//! Threads of the chosen build.

#[cfg(loom)]
pub use loom::thread::{Builder, JoinHandle, spawn, yield_now};
#[cfg(shuttle)]
pub use shuttle::thread::{Builder, JoinHandle, spawn, yield_now};
#[cfg(not(any(loom, shuttle)))]
pub use std::thread::{Builder, JoinHandle, spawn, yield_now};

/// Whether a thread has ended.
///
/// Models cannot tell: there the answer is yes, and the join that follows waits.
#[must_use]
pub fn is_finished<T>(thread: &JoinHandle<T>) -> bool {
    #[cfg(any(loom, shuttle))]
    let is_finished = {
        let _ = thread;
        true
    };
    #[cfg(not(any(loom, shuttle)))]
    let is_finished = thread.is_finished();
    is_finished
}

#[cfg(not(any(loom, shuttle)))]
std::thread_local! {
    static BEFORE: std::cell::RefCell<Option<Box<dyn Fn()>>> = const { std::cell::RefCell::new(None) };
}

/// Calls `before` on this thread each time before it makes others: there the thread can reset what
/// they would inherit. It may be called under any lock, and takes none. It is not called any more
/// once the thread's own data are being dropped.
pub fn before_making_threads(before: impl Fn() + 'static) {
    #[cfg(not(any(loom, shuttle)))]
    BEFORE.set(Some(Box::new(before)));
    // Threads of models inherit nothing.
    #[cfg(any(loom, shuttle))]
    let _ = before;
}

/// A call that may come from any thread and makes threads calls this first; [`run_scoped`] does.
pub fn will_make_threads() {
    #[cfg(not(any(loom, shuttle)))]
    {
        // Gone while the thread ends: so is its purpose.
        let _ = BEFORE.try_with(|before| before.borrow().iter().for_each(|before| before()));
    }
}

/// Calls `work` on this thread and on up to `others` more with stacks of `stack_size` bytes, fewer
/// if the host gives no more; returns when all calls have.
///
/// Loom has no threads that borrow: it makes the one call.
pub fn run_scoped(others: usize, stack_size: usize, work: impl Fn() + Sync) {
    if others == 0 {
        return work();
    }
    will_make_threads();
    #[cfg(loom)]
    let _ = (others, stack_size);
    #[cfg(loom)]
    work();
    #[cfg(shuttle)]
    shuttle::thread::scope(|scope| {
        let _ = stack_size;
        for _ in 0..others {
            scope.spawn(&work);
        }
        work();
    });
    #[cfg(not(any(loom, shuttle)))]
    std::thread::scope(|scope| {
        for _ in 0..others {
            if Builder::new().stack_size(stack_size).spawn_scoped(scope, &work).is_err() {
                break;
            }
        }
        work();
    });
}
