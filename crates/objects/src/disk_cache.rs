//! Blocks of objects on this host's disk, for the next read: also after the next mount.
//!
//! ```text
//! DIR/                      0700; `watertight-cache` in it says that it is a cache's
//! DIR/IDENTITY/             one volume's; `lock` is locked by the process that uses it
//! DIR/IDENTITY/OBJECT-BLOCK one block, as it is in the bucket
//! ```
//!
//! A volume works the same without it: what is damaged or gone is read from the bucket, and the
//! first call of the host's that fails, as on a full disk, switches it off ([`DiskCache::fail`]). A
//! file is written under a temporary name and renamed, never synced: after a crash of the host its
//! checksum ([`entry`]) finds what is not whole.
//!
//! One thread writes, from a queue of [`QUEUE`] blocks: a reader whose block finds it full does not
//! wait, and its block is not kept. What was not used for longest goes when the bound is reached;
//! across a mount the order is that of the files' times.
//!
//! The identity is made of the volume's and of its URL ([`identity`]): a copy of a bucket has
//! objects of the same names that differ. So has a bucket that was put back to an earlier state:
//! blocks of segments of an epoch that its log does not know are removed with all others
//! ([`DiskCache::empty_if_later_than`]).
//!
//! A disk that hangs holds nobody up for longer than [`PATIENCE`]: then the cache is switched off,
//! too.
//!
//! Lock order: `index` is a leaf, and not held across a call of the host's.

mod dir;
mod entry;
mod files;
#[cfg(test)]
pub(crate) mod memory_dir;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use store::{DiskCacheStats, Result};
use tokio::sync::{Semaphore, mpsc};

use crate::awaitable::Awaitable;
use crate::blocks::Key;
use crate::counter::StatCounter;
use crate::rows::Object;
use dir::{Found, VolumeDir};
use files::Files;

/// Blocks that wait to be written.
const QUEUE: usize = 64;
/// How long what is in the queue may take to be written.
const SETTLED_AFTER: Duration = Duration::from_secs(60);
/// The smallest cache.
pub(crate) const DISK_CACHE_MIN: u64 = 16 << 20;
/// The most files, whatever their size: what is known of each takes memory.
const FILES_MAX: usize = 200_000;
/// Reads of the disk at a time; a reader that finds them all under way reads from the bucket.
const READS: usize = 32;
/// How long the disk is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// How old a file's time may become while the file is used.
const TOUCH_AFTER: Duration = Duration::from_secs(600);
/// What a file takes on disk beside its bytes is rounded up to this.
const UNIT: u64 = 4096;

/// Where it is, and how large it may become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskCacheOptions {
    /// Its directory: an absolute path.
    pub dir: PathBuf,
    /// The most bytes that one volume's blocks take.
    pub bytes_max: u64,
}

#[derive(Debug, Clone, Copy)]
struct File {
    on_disk: u64,
    time: SystemTime,
}

#[derive(Debug)]
struct Index {
    files: LruCache<Key, File>,
    bytes: u64,
}

impl Index {
    fn remove(&mut self, key: Key) {
        if let Some(file) = self.files.pop(&key) {
            self.bytes -= file.on_disk;
        }
    }

    fn put(&mut self, key: Key, file: File) {
        self.remove(key);
        self.bytes += file.on_disk;
        self.files.put(key, file);
    }
}

/// The blocks of one volume on this host's disk, for the next read: also after the next mount.
#[derive(Debug)]
pub struct DiskCache {
    shared: Arc<Shared>,
    queue: Mutex<Option<Writer>>,
    calls: Calls,
}

/// What makes the calls that may wait for the disk.
#[derive(Debug, Clone, Copy)]
enum Calls {
    /// Threads.
    Threads,
    /// The tasks themselves, which never wait.
    #[cfg(test)]
    Tasks,
}

#[derive(Debug)]
struct Writer {
    queue: mpsc::Sender<(Key, Bytes)>,
    /// Disconnected when its thread has ended; none: it is a task, which ends with its runtime.
    ended: Option<std::sync::mpsc::Receiver<()>>,
}

#[derive(Debug)]
struct Shared {
    dir: Box<dyn Files>,
    path: PathBuf,
    uuid: [u8; 16],
    bytes_max: u64,
    index: Mutex<Index>,
    is_off: AtomicBool,
    /// Blocks that were given to the queue, or are about to be, and those that have left it.
    queued: AtomicU64,
    written: Awaitable,
    reads: Arc<Semaphore>,
    hits: StatCounter,
    misses: StatCounter,
    damaged: StatCounter,
    skipped: StatCounter,
}

/// What a volume's blocks are known by: its own identity, and its URL.
pub(crate) fn identity(uuid: [u8; 16], url: &str) -> [u8; 16] {
    let place = crc_fast::checksum(crc_fast::CrcAlgorithm::Crc64Nvme, url.as_bytes());
    (u128::from_be_bytes(uuid) ^ u128::from(place)).to_be_bytes()
}

/// What a file of so many bytes takes.
fn on_disk(len: u64) -> u64 {
    len.next_multiple_of(UNIT)
}

impl DiskCache {
    /// Opens the cache of a volume, and finds what is there.
    ///
    /// # Errors
    /// `Invalid`, in plain words: the directory is not one that may be used.
    pub fn open(options: &DiskCacheOptions, uuid: [u8; 16]) -> Result<Self> {
        let (dir, found) = VolumeDir::open(&options.dir, uuid)?;
        let place = (options.dir.clone(), options.bytes_max.max(DISK_CACHE_MIN));
        Self::with(Box::new(dir), found, place, uuid, Calls::Threads)
    }

    fn with(
        dir: Box<dyn Files>,
        found: Vec<Found>,
        (path, bytes_max): (PathBuf, u64),
        uuid: [u8; 16],
        calls: Calls,
    ) -> Result<Self> {
        let (mut all, mut index) = (found, Index { files: LruCache::unbounded(), bytes: 0 });
        all.sort_unstable_by_key(|(_, _, time)| *time);
        for (key, len, time) in all {
            index.put(key, File { on_disk: on_disk(len), time });
        }
        let shared = Arc::new(Shared {
            dir,
            path,
            uuid,
            bytes_max,
            index: Mutex::new(index),
            is_off: AtomicBool::new(false),
            queued: AtomicU64::new(0),
            written: Awaitable::default(),
            reads: Arc::new(Semaphore::new(READS)),
            hits: StatCounter::default(),
            misses: StatCounter::default(),
            damaged: StatCounter::default(),
            skipped: StatCounter::default(),
        });
        shared.shrink();
        let (queue, blocks) = mpsc::channel(QUEUE);
        let ended = match calls {
            Calls::Threads => Some(shared.start_writer(blocks)?),
            #[cfg(test)]
            Calls::Tasks => {
                let (writer, mut blocks) = (Arc::clone(&shared), blocks);
                tokio::spawn(async move {
                    while let Some((key, bytes)) = blocks.recv().await {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        writer.write(key, &bytes);
                        writer.written.add_one();
                    }
                });
                None
            }
        };
        Ok(Self { shared, queue: Mutex::new(Some(Writer { queue, ended })), calls })
    }

    /// Removes everything if there is a segment of a later epoch than this, which is the epoch of
    /// the volume's last holder: such a segment belongs to a state that the bucket does not
    /// have any more, and of the other blocks it is not known which state they belong to.
    pub(crate) fn empty_if_later_than(&self, epoch: u64) {
        let all: Vec<Key> = self.shared.index.lock().files.iter().map(|(key, _)| *key).collect();
        let is_later = |(object, _): &Key| matches!(object, Object::Segment(of, _) if *of > epoch);
        if all.iter().any(is_later) {
            tracing::warn!(path = %self.shared.path.display(), "the bucket was put back to an earlier state: the disk cache is emptied");
            all.into_iter().for_each(|key| self.shared.discard(key));
        }
    }

    /// Whether it has a block. It may be gone when it is read.
    pub fn has(&self, key: Key) -> bool {
        !self.shared.is_off() && self.shared.index.lock().files.contains(&key)
    }

    /// Reads blocks, those that are there and whole.
    pub async fn read(&self, keys: Vec<Key>) -> Vec<(Key, Bytes)> {
        let keys: Vec<Key> = keys.into_iter().filter(|key| self.has(*key)).collect();
        if keys.is_empty() {
            return Vec::new();
        }
        let Ok(permit) = Arc::clone(&self.shared.reads).try_acquire_owned() else { return Vec::new() };
        let shared = Arc::clone(&self.shared);
        let read = move || -> Vec<(Key, Bytes)> {
            // A read that is given up goes on, and keeps its permit.
            let _permit = permit;
            keys.into_iter().filter_map(|key| Some((key, shared.read(key)?))).collect()
        };
        let reading = async {
            match self.calls {
                Calls::Threads => tokio::task::spawn_blocking(read).await.unwrap_or_default(),
                #[cfg(test)]
                Calls::Tasks => read(),
            }
        };
        let found: Vec<_> = match tokio::time::timeout(PATIENCE, reading).await {
            Ok(found) => found,
            Err(_) => {
                self.shared.fail(std::io::ErrorKind::TimedOut.into());
                return Vec::new();
            }
        };
        self.shared.hits.add(found.len() as u64);
        found
    }

    /// Blocks came from the bucket.
    pub(crate) fn missed(&self, blocks: usize) {
        self.shared.misses.add(blocks as u64);
    }

    /// Whether the queue has room.
    pub(crate) fn has_room(&self) -> bool {
        self.queue().is_some_and(|queue| queue.capacity() > 0)
    }

    /// Keeps a block, if the queue has room.
    pub(crate) fn offer(&self, key: Key, bytes: &Bytes) {
        let Some(queue) = self.queue() else { return };
        if self.has(key) {
            return;
        }
        self.shared.one_queued();
        if queue.try_send((key, bytes.clone())).is_err() {
            self.shared.written.add_one();
            self.shared.skipped.add(1);
        }
    }

    /// Keeps a block, when the queue has room.
    pub async fn keep(&self, key: Key, bytes: Bytes) {
        if let Some(queue) = self.queue()
            && !self.has(key)
        {
            self.shared.one_queued();
            match tokio::time::timeout(PATIENCE, queue.send((key, bytes))).await {
                Ok(Ok(())) => {}
                // The thread has ended.
                Ok(Err(_)) => self.shared.written.add_one(),
                Err(_) => {
                    self.shared.written.add_one();
                    self.shared.fail(std::io::ErrorKind::TimedOut.into());
                }
            }
        }
    }

    /// Waits until all blocks that were kept by now are in it; where the disk takes too long, no longer.
    pub async fn settle(&self) {
        // ORDERING: Relaxed: the calls that kept the blocks have ended before this one began.
        let queued = self.shared.queued.load(Ordering::Relaxed);
        let written = self.shared.written.wait_for(queued);
        // One that was switched off still empties its queue, for nothing.
        if self.is_on() {
            let _too_late = tokio::time::timeout(SETTLED_AFTER, written).await;
        }
    }

    fn queue(&self) -> Option<mpsc::Sender<(Key, Bytes)>> {
        if self.shared.is_off() {
            return None;
        }
        self.queue.lock().as_ref().map(|writer| writer.queue.clone())
    }

    /// Gives up a block that is not what was written.
    pub(crate) fn forget(&self, key: Key) {
        if self.has(key) {
            self.shared.damaged.add(1);
            self.shared.discard(key);
        }
    }

    /// Whether it is used still.
    pub fn is_on(&self) -> bool {
        !self.shared.is_off()
    }

    /// Writes what is in the queue, and uses the directory no more. Where the disk hangs, the
    /// thread that writes keeps it locked until it ends.
    pub fn close(&self) {
        let writer = self.queue.lock().take();
        let has_ended = match writer {
            Some(Writer { ended: None, .. }) => true,
            Some(Writer { queue, ended: Some(ended) }) => {
                drop(queue);
                let ended = ended.recv_timeout(2 * PATIENCE);
                ended == Err(std::sync::mpsc::RecvTimeoutError::Disconnected)
            }
            None => false,
        };
        self.shared.turn_off();
        if has_ended {
            self.shared.dir.unlock();
        }
    }

    /// Its figures.
    pub(crate) fn stats(&self) -> DiskCacheStats {
        let shared = &self.shared;
        let (bytes, blocks) = {
            let index = shared.index.lock();
            (index.bytes, index.files.len() as u64)
        };
        DiskCacheStats {
            is_on: self.is_on(),
            bytes,
            bytes_max: shared.bytes_max,
            blocks,
            hits: shared.hits.get(),
            misses: shared.misses.get(),
            damaged: shared.damaged.get(),
            skipped: shared.skipped.get(),
        }
    }
}

impl Drop for DiskCache {
    /// Another mount may use the directory when this has returned.
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    /// Starts the thread that writes; what is returned is disconnected when it has ended.
    fn start_writer(
        self: &Arc<Self>,
        mut blocks: mpsc::Receiver<(Key, Bytes)>,
    ) -> Result<std::sync::mpsc::Receiver<()>> {
        let writer = Arc::clone(self);
        let (at_end, ended) = std::sync::mpsc::channel::<()>();
        let write = move || {
            let _at_end = at_end;
            while let Some((key, bytes)) = blocks.blocking_recv() {
                writer.write(key, &bytes);
                writer.written.add_one();
            }
        };
        let thread = std::thread::Builder::new().name("wt-disk-cache".to_owned()).spawn(write);
        thread.map_err(|error| dir::refused(&self.path, &format!("no thread: {error}")))?;
        Ok(ended)
    }

    fn one_queued(&self) {
        // ORDERING: Relaxed, as in `settle`.
        self.queued.fetch_add(1, Ordering::Relaxed);
    }

    fn is_off(&self) -> bool {
        // ORDERING: Relaxed, a hint that ends use; what a late caller reads is checked all the same.
        self.is_off.load(Ordering::Relaxed)
    }

    /// Returns whether this call did it.
    fn turn_off(&self) -> bool {
        // ORDERING: Relaxed, as in `is_off`; the index has its lock.
        let is_first = !self.is_off.swap(true, Ordering::Relaxed);
        let mut index = self.index.lock();
        index.files.clear();
        index.bytes = 0;
        is_first
    }

    /// The host does not do what is asked of it: reads go to the bucket from here on.
    fn fail(&self, error: std::io::Error) {
        if self.turn_off() {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the disk cache is switched off: reads go to the bucket");
        }
    }

    fn read(&self, key: Key) -> Option<Bytes> {
        let file = *self.index.lock().files.get(&key)?;
        match self.dir.read(key) {
            Ok(Some(content)) => match entry::open(&self.uuid, key, content) {
                Some(bytes) => {
                    self.touch(key, file);
                    Some(bytes)
                }
                None => {
                    self.damaged.add(1);
                    self.discard(key);
                    None
                }
            },
            Ok(None) => {
                // Somebody removed it.
                self.index.lock().remove(key);
                None
            }
            Err(error) => {
                self.fail(error);
                None
            }
        }
    }

    /// Notes that a file is used, for the order across a mount.
    fn touch(&self, key: Key, file: File) {
        let now = SystemTime::now();
        if now.duration_since(file.time).is_ok_and(|age| age > TOUCH_AFTER) {
            if let Some(file) = self.index.lock().files.peek_mut(&key) {
                file.time = now;
            }
            self.dir.touch(key);
        }
    }

    fn discard(&self, key: Key) {
        self.index.lock().remove(key);
        if let Err(error) = self.dir.remove(key) {
            self.fail(error);
        }
    }

    fn write(&self, key: Key, bytes: &Bytes) {
        if self.is_off() || self.index.lock().files.contains(&key) {
            return;
        }
        let header = entry::header(&self.uuid, key, bytes);
        match self.dir.write(key, &[&header, bytes]) {
            Ok(()) => {
                let len = (header.len() + bytes.len()) as u64;
                let file = File { on_disk: on_disk(len), time: SystemTime::now() };
                self.index.lock().put(key, file);
                self.shrink();
            }
            Err(error) => self.fail(error),
        }
    }

    /// Removes what was not used for longest until the bound is kept.
    fn shrink(&self) {
        loop {
            let oldest = {
                let mut index = self.index.lock();
                if index.bytes <= self.bytes_max && index.files.len() <= FILES_MAX {
                    return;
                }
                let Some((oldest, file)) = index.files.pop_lru() else { return };
                index.bytes -= file.on_disk;
                oldest
            };
            if let Err(error) = self.dir.remove(oldest) {
                return self.fail(error);
            }
        }
    }
}

/// Where the caches of volumes are.
pub(crate) trait CacheDir: std::fmt::Debug + Send + Sync + 'static {
    /// Opens the cache of a volume.
    ///
    /// # Errors
    /// `Invalid`, in plain words: it may not be used.
    fn open(&self, identity: [u8; 16]) -> Result<DiskCache>;
}

impl CacheDir for DiskCacheOptions {
    fn open(&self, identity: [u8; 16]) -> Result<DiskCache> {
        DiskCache::open(self, identity)
    }
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
