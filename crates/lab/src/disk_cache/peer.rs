//! foyer's hybrid cache with its block engine on files in a directory, as far as it can be set up
//! for what our cache does: as good as no memory part, one writer, its files through the page cache.

use std::ops::Range;
use std::path::Path;

use anyhow::Context as _;
use bytes::Bytes;
use foyer::{BlockEngineConfig, DeviceBuilder as _, FsDeviceBuilder, HybridCache, HybridCacheBuilder};

use super::content::{BLOCK, CAPACITY, block};

/// Blocks that are given to it before it is asked to write them. It drops what its buffers of 16 MiB
/// have no room for; of two such batches at a time it drops none.
const BATCH: u64 = 32;

/// See the [module](self).
pub(super) struct Peer(HybridCache<u64, Bytes>);

impl Peer {
    /// Opens the cache in `dir`.
    pub(super) async fn open(dir: &Path) -> anyhow::Result<Self> {
        let capacity = usize::try_from(CAPACITY)?;
        let device = FsDeviceBuilder::new(dir).with_capacity(capacity).build()?;
        let builder = HybridCacheBuilder::new()
            .memory(BLOCK)
            .with_shards(1)
            .with_weighter(|_: &u64, bytes: &Bytes| bytes.len())
            .storage()
            .with_engine_config(BlockEngineConfig::new(device));
        Ok(Self(builder.build().await?))
    }

    /// Keeps blocks on disk alone, and returns when each is written.
    pub(super) async fn fill(&self, numbers: Range<u64>) -> anyhow::Result<()> {
        let mut before = tokio::spawn(async {});
        let mut next = numbers.start;
        while next < numbers.end {
            let end = numbers.end.min(next + BATCH);
            for number in next..end {
                let kept = self.0.storage_writer(number).force().insert(block(number));
                drop(kept.context("foyer refuses a block")?);
            }
            next = end;
            let store = self.0.storage().clone();
            let written = tokio::spawn(async move { store.wait().await });
            std::mem::replace(&mut before, written).await?;
        }
        Ok(before.await?)
    }

    /// Reads a block; none: it is not there.
    pub(super) async fn read(&self, number: u64) -> anyhow::Result<Option<Bytes>> {
        Ok(self.0.get(&number).await?.map(|entry| entry.value().clone()))
    }

    /// Writes what is not written yet.
    pub(super) async fn close(&self) -> anyhow::Result<()> {
        Ok(self.0.close().await?)
    }
}
