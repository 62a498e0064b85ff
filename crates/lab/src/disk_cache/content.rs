//! The blocks that the caches keep: of random bytes, each another, and none takes memory of its own.

use std::sync::OnceLock;

use bytes::Bytes;

use crate::random::Random;

/// The bytes of a block, as volumes have them.
pub(super) const BLOCK: usize = 128 << 10;
/// The most bytes that a cache may take: more than is ever kept.
pub(super) const CAPACITY: u64 = 1 << 30;
/// A block begins so many bytes behind the one before it.
const STEP: usize = size_of::<u64>();
/// The most blocks.
const BLOCKS_MAX: usize = 8 << 10;

/// The block of a number.
pub(super) fn block(number: u64) -> Bytes {
    static ALL: OnceLock<Bytes> = OnceLock::new();
    let all = ALL.get_or_init(|| {
        let mut bytes = vec![0; BLOCK + BLOCKS_MAX * STEP];
        Random::new(1).fill(&mut bytes);
        bytes.into()
    });
    let number = usize::try_from(number).unwrap_or(BLOCKS_MAX);
    assert!(number < BLOCKS_MAX, "so many blocks are not used");
    all.slice(number * STEP..number * STEP + BLOCK)
}
