//! For tests: a cache's directory in memory, of a host that loses power.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use parking_lot::Mutex;
use store::Result;

use super::files::Files;
use super::{CacheDir, Calls, DiskCache};
use crate::blocks::Key;

/// The most bytes of a volume's blocks: so few that some go.
const BYTES_MAX: u64 = 1 << 20;
/// Bytes that are written to a disk together.
const SECTOR: usize = 512;

type Blocks = BTreeMap<([u8; 16], Key), Vec<u8>>;

/// See the [module](self).
#[derive(Debug, Clone, Default)]
pub(crate) struct MemoryDir(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    blocks: Blocks,
    /// Those that were removed since power was lost.
    removed: Blocks,
    hits: u64,
}

/// One volume's part of it.
#[derive(Debug)]
struct MemoryFiles {
    dir: MemoryDir,
    identity: [u8; 16],
}

impl MemoryDir {
    /// Nothing is synced: a file is there, or parts of it, or not; what was removed may come back.
    /// `below` decides.
    pub(crate) fn lose_power(&self, mut below: impl FnMut(usize) -> usize) {
        let mut inner = self.0.lock();
        let mut left = std::mem::take(&mut inner.removed);
        left.append(&mut inner.blocks);
        left.retain(|_, file| match below(4) {
            0 => false,
            1 => {
                file.truncate(below(file.len() + 1));
                true
            }
            2 => {
                file.chunks_mut(SECTOR).filter(|_| below(2) == 0).for_each(|sector| sector.fill(0));
                true
            }
            _ => true,
        });
        inner.blocks = left;
    }

    /// Blocks that were found in it.
    pub(crate) fn hits(&self) -> u64 {
        self.0.lock().hits
    }
}

impl CacheDir for MemoryDir {
    fn open(&self, identity: [u8; 16]) -> Result<DiskCache> {
        let found = {
            let inner = self.0.lock();
            let of_it = inner.blocks.iter().filter(|((of, _), _)| *of == identity);
            of_it.map(|((_, key), file)| (*key, file.len() as u64, SystemTime::UNIX_EPOCH)).collect()
        };
        let files = Box::new(MemoryFiles { dir: self.clone(), identity });
        DiskCache::with(files, found, ("memory".into(), BYTES_MAX), identity, Calls::Tasks)
    }
}

impl Files for MemoryFiles {
    fn read(&self, key: Key) -> io::Result<Option<Bytes>> {
        let mut inner = self.dir.0.lock();
        let found = inner.blocks.get(&(self.identity, key)).map(|file| Bytes::copy_from_slice(file));
        inner.hits += u64::from(found.is_some());
        Ok(found)
    }

    fn write(&self, key: Key, parts: &[&[u8]]) -> io::Result<()> {
        self.dir.0.lock().blocks.insert((self.identity, key), parts.concat());
        Ok(())
    }

    fn remove(&self, key: Key) -> io::Result<()> {
        let mut inner = self.dir.0.lock();
        if let Some(file) = inner.blocks.remove(&(self.identity, key)) {
            inner.removed.insert((self.identity, key), file);
        }
        Ok(())
    }

    fn touch(&self, _: Key) {}

    fn unlock(&self) {}
}
