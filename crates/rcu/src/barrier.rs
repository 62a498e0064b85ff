//! Asymmetric fences: one heavy one for many light ones.
//!
//! P1. A [`light`] fence of one thread and a [`heavy`] one of another order a store before each
//! against a load after the other: at least one of the loads sees the other's store. The heavy one
//! makes every running thread of the process pass a full fence (`membarrier(2)`, private
//! expedited), so that the light one needs to keep only the compiler from reordering. Where the
//! call is missing ([`is_asymmetric`]), readers and callers use full fences instead of light ones.
//!
//! The thread that unpublished may be a third one, beside the reader and the one that runs the
//! grace period. Some processors (POWER) make a store visible to some processors earlier than to
//! others; that light fences suffice there has not been checked. Those processors therefore use
//! full fences, and so do all of which this crate does not know.
//!
//! Under the model checkers, which know nothing of membarrier, light fences are full ones. Miri has
//! no such call.

use sync::atomic::{Ordering, fence};

#[cfg(not(any(loom, shuttle)))]
pub(crate) use real::{heavy, is_asymmetric, light};

#[cfg(any(loom, shuttle))]
pub(crate) use checked::{heavy, is_asymmetric, light};

#[cfg(not(any(loom, shuttle)))]
mod real {
    use std::sync::LazyLock;
    use std::sync::atomic::compiler_fence;

    use rustix::io::Errno;
    use rustix::thread::{MembarrierCommand, membarrier};

    use super::{Ordering, fence};

    /// Registers the process at the first use. Never changes afterwards: a light fence that was
    /// only the compiler's needs every later heavy one to be the real one.
    static IS_ASYMMETRIC: LazyLock<bool> = LazyLock::new(|| {
        IS_MULTI_COPY_ATOMIC && !cfg!(miri) && membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok()
    });

    /// Whether a store that one other processor sees is seen by all others.
    const IS_MULTI_COPY_ATOMIC: bool = cfg!(any(
        target_arch = "x86",
        target_arch = "x86_64",
        target_arch = "aarch64",
        target_arch = "riscv64",
        target_arch = "s390x"
    ));

    /// Whether light fences are as good as full ones.
    pub(crate) fn is_asymmetric() -> bool {
        *IS_ASYMMETRIC
    }

    #[inline]
    pub(crate) fn light() {
        // ORDERING: P1, the other side's `membarrier` does what is missing here.
        compiler_fence(Ordering::SeqCst);
    }

    /// Makes every running thread of the process pass a full fence. Ends the process where that
    /// becomes impossible: readers rely on it, and a thread that went on would free memory that
    /// they read.
    fn pass_everybody() {
        while let Err(error) = membarrier(MembarrierCommand::PrivateExpedited) {
            if error != Errno::NOMEM {
                eprintln!(
                    "membarrier(2) was registered and is refused now ({error}): readers are not safe without it"
                );
                std::process::abort();
            }
            // The kernel had no memory for the list of processors.
            std::thread::yield_now();
        }
    }

    pub(crate) fn heavy(is_asymmetric: bool) {
        if is_asymmetric {
            pass_everybody();
        }
        // ORDERING: P1, and for the caller's own store: membarrier(2) of a process with one thread
        // returns at once.
        fence(Ordering::SeqCst);
    }
}

#[cfg(any(loom, shuttle))]
mod checked {
    use super::{Ordering, fence};

    pub(crate) fn is_asymmetric() -> bool {
        true
    }

    pub(crate) fn light() {
        // ORDERING: P1.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy(_: bool) {
        // ORDERING: P1.
        fence(Ordering::SeqCst);
    }
}
