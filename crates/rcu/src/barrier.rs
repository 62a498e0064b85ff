//! Asymmetric fences: one heavy one for many light ones.
//!
//! P1. A [`light`] fence of one thread and a [`heavy`] one of another order a store before each against a load
//! after the other: at least one of the loads sees the other's store. The heavy one makes every running
//! thread of the process pass a full fence (`membarrier(2)`, private expedited), so that the light one needs
//! to keep only the compiler from reordering. Where the call is missing both are full fences.
//!
//! Under the model checkers and miri both are full fences: they know nothing of membarrier.

use sync::atomic::{Ordering, fence};

#[cfg(not(any(loom, shuttle, miri)))]
pub(crate) use real::{heavy, is_asymmetric, light};

#[cfg(any(loom, shuttle, miri))]
pub(crate) use checked::{heavy, is_asymmetric, light};

#[cfg(not(any(loom, shuttle, miri)))]
mod real {
    use std::sync::LazyLock;
    use std::sync::atomic::compiler_fence;

    use rustix::thread::{MembarrierCommand, membarrier};

    use super::{Ordering, fence};

    /// Registers the process at the first use. Never changes afterwards: a light fence that was only the
    /// compiler's needs every later heavy one to be the real one.
    static IS_ASYMMETRIC: LazyLock<bool> =
        LazyLock::new(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok());

    pub(crate) fn is_asymmetric() -> bool {
        *IS_ASYMMETRIC
    }

    /// `is_asymmetric` as the domain remembers it: the static costs a check of its own.
    #[inline]
    pub(crate) fn light(is_asymmetric: bool) {
        if is_asymmetric {
            // ORDERING: P1, the other side's `membarrier` does what is missing here.
            compiler_fence(Ordering::SeqCst);
        } else {
            // ORDERING: P1, as `smp_mb`.
            fence(Ordering::SeqCst);
        }
    }

    pub(crate) fn heavy(is_asymmetric: bool) {
        if is_asymmetric && membarrier(MembarrierCommand::PrivateExpedited).is_err() {
            // It worked at registration, and readers rely on it.
            unreachable!("membarrier(2) was registered and is refused now");
        }
        // ORDERING: P1, and for the caller's own store: membarrier(2) of a process with one thread returns at once.
        fence(Ordering::SeqCst);
    }
}

#[cfg(any(loom, shuttle, miri))]
mod checked {
    use super::{Ordering, fence};

    pub(crate) fn is_asymmetric() -> bool {
        false
    }

    pub(crate) fn light(_: bool) {
        // ORDERING: P1.
        fence(Ordering::SeqCst);
    }

    pub(crate) fn heavy(_: bool) {
        // ORDERING: P1.
        fence(Ordering::SeqCst);
    }
}
