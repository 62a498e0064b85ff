//! Where the processor's single step is not made use of.

/// Reports that nothing was stopped.
pub(crate) fn at_each_step(_before: impl Fn() + Sync, _work: impl Fn() + Sync, _meanwhile: impl FnMut(u64)) {
    testing::skipped("one instruction at a time: on Linux on x86-64 only");
}
