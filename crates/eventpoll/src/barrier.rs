//! Memory barriers; some cost nothing where the processor does not need them.
//!
//! The protocols here are all of one form: each side writes one word and then reads the other's,
//! and one of them must see the other's write. That takes a full barrier between the write and the
//! read.

use sync::atomic::{Ordering, fence};

/// Orders everything before with everything after.
#[inline]
pub(crate) fn full() {
    // ORDERING: SeqCst, each caller names its partner.
    fence(Ordering::SeqCst);
}

/// A full barrier where the preceding write was a read-modify-write: on x86 those are full barriers
/// themselves, and only the compiler needs one.
#[inline]
pub(crate) fn after_rmw() {
    of_processor_or_full();
}

/// Orders loads among each other for all processors alike: after a load that sees another thread's
/// write, later loads see all that the writer saw before it wrote. On x86 loads are so by
/// themselves.
#[inline]
pub(crate) fn between_loads() {
    of_processor_or_full();
}

#[cfg(all(target_arch = "x86_64", not(any(loom, shuttle))))]
#[inline]
fn of_processor_or_full() {
    // ORDERING: SeqCst for the compiler; see the callers.
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
}

#[cfg(not(all(target_arch = "x86_64", not(any(loom, shuttle)))))]
#[inline]
fn of_processor_or_full() {
    full();
}
