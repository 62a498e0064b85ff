//! Numbers that look random, the same in every run.

use std::num::NonZeroU64;

/// A fast generator (xorshift64).
#[derive(Debug)]
pub(crate) struct Random(NonZeroU64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15)))
    }

    pub(crate) fn next(&mut self) -> u64 {
        let mut x = self.0.get();
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        self.0 = NonZeroU64::new(x).unwrap_or(NonZeroU64::MIN);
        x
    }

    /// Fills `bytes` with what does not compress.
    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(size_of::<u64>()) {
            word.copy_from_slice(&self.next().to_le_bytes()[..word.len()]);
        }
    }
}
