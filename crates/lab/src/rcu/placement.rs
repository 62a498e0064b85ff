//! Where a measured loop lies in memory.
//!
//! A section of a few instructions costs up to half as much again where its loop, or a branch in
//! it, happens to lie badly in the processor's lines of instructions. The linker decides that, and
//! each change of the program changes it. So every subject has its loop of sections several times,
//! each copy one step further from the beginning of a line, and the reported figure is the mean of
//! them: the cost where the position of the code is not known. Compilers begin loops at multiples
//! of a step, so that there are no other positions.

/// Copies of each loop. One step is 16 bytes, and so many are a line of 64. (As many as `COPY` in
/// `liburcu.c`.)
pub(crate) const PLACEMENTS: usize = 4;

/// So many are a step.
pub(crate) const NOPS: usize = if cfg!(any(target_arch = "x86", target_arch = "x86_64")) { 16 } else { 4 };

/// Places the code that follows in the function `$at` steps after the beginning of a line.
macro_rules! place {
    ($at:expr) => {
        #[cfg(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"))]
        // SAFETY: does nothing.
        unsafe {
            std::arch::asm!(".p2align 6", ".rept {n}", "nop", ".endr",
                n = const $at * $crate::rcu::placement::NOPS, options(nomem, nostack, preserves_flags));
        }
    };
}

/// Calls the copy of a method that lies at `$placement`.
macro_rules! placed {
    ($placement:expr, $this:ident.$method:ident($($argument:expr),*)) => {
        match $placement % $crate::rcu::placement::PLACEMENTS {
            0 => $this.$method::<0>($($argument),*),
            1 => $this.$method::<1>($($argument),*),
            2 => $this.$method::<2>($($argument),*),
            _ => $this.$method::<3>($($argument),*),
        }
    };
}

pub(crate) use {place, placed};
