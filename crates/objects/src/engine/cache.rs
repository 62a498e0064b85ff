//! Blocks, indices and filters of the engine's tables that were read last, in memory.

use async_trait::async_trait;
use lru::LruCache;
use parking_lot::Mutex;
use slatedb::Error;
use slatedb::db_cache::{CachedEntry, CachedKey, DbCache};

/// Bytes of one volume.
const BYTES_MAX: usize = 64 << 20;

/// See the [module](self).
pub(super) struct TableCache(Mutex<Cached>);

struct Cached {
    entries: LruCache<CachedKey, CachedEntry>,
    bytes: usize,
}

impl Default for TableCache {
    fn default() -> Self {
        Self(Mutex::new(Cached { entries: LruCache::unbounded(), bytes: 0 }))
    }
}

impl TableCache {
    fn get(&self, key: &CachedKey) -> Option<CachedEntry> {
        self.0.lock().entries.get(key).cloned()
    }
}

#[async_trait]
impl DbCache for TableCache {
    async fn get_block(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_index(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_filter(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn get_stats(&self, key: &CachedKey) -> Result<Option<CachedEntry>, Error> {
        Ok(self.get(key))
    }

    async fn insert(&self, key: CachedKey, value: CachedEntry) {
        let mut cached = self.0.lock();
        cached.bytes += value.size();
        if let Some((_, before)) = cached.entries.push(key, value) {
            cached.bytes -= before.size();
        }
        while cached.bytes > BYTES_MAX
            && let Some((_, oldest)) = cached.entries.pop_lru()
        {
            cached.bytes -= oldest.size();
        }
    }

    async fn remove(&self, key: &CachedKey) {
        let mut cached = self.0.lock();
        if let Some(gone) = cached.entries.pop(key) {
            cached.bytes -= gone.size();
        }
    }

    fn entry_count(&self) -> u64 {
        self.0.lock().entries.len() as u64
    }
}
