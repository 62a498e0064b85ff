//! Reads objects: from memory, from a GET that is under way already, from the disk cache, or by
//! GETs of its own.
//!
//! A call that reads collects what it needs of all objects first ([`Reader::load`]), so that
//! neighbours come with one GET, and GETs of different places are on their way together.
//!
//! # Who waits for whom
//! Of the volume's permits for bulk requests, read-ahead has [`AHEAD`] at most: the others are left
//! to calls that somebody waits for. Read-ahead takes its permit first and claims blocks then: what
//! it has not begun to fetch, a reader that needs it fetches itself. It tries once; a reader that
//! waited for it in vain tries as long as the volume is mounted.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::join_all;
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::sync::Semaphore;

use crate::blocks::{BLOCK, BLOCK_LEN, Blocks, Claim, Key, Lookup, Reserved, blocks_of, bytes_of, split};
use crate::bucket::{Asked, Bucket, Patience};
use crate::disk_cache::DiskCache;
use crate::object_names::object_name;
use crate::rows::Object;

/// GETs of read-ahead that are under way at a time.
const AHEAD: usize = 16;
/// Blocks that one GET of a reader fetches at most.
pub(crate) const RUN_MAX: u32 = 16;
/// Blocks of a segment's beginning that are asked for without a range: they are hardly less than all of
/// it. Servers send a whole object from their files; to send a part, some copy it, which takes them
/// several times as long.
const WHOLE_MIN: usize = 32;
/// A segment has fewer bytes: 8 MiB of data, checksums and a footer.
const SEGMENT_MAX: u64 = 16 << 20;
/// Blocks between two that are wanted, which are fetched with them.
const GAP_MAX: u32 = 1;

const NO_DISK_CACHE: &str = "the volume has no disk cache: mount it with -o disk_cache=DIR";
const SWITCHED_OFF: &str = "the volume's disk cache was switched off: the log says why";

/// Reads the objects of a volume.
#[derive(Debug)]
pub(crate) struct Reader {
    bucket: Bucket,
    ahead_bucket: Bucket,
    blocks: Arc<Blocks>,
    ahead: Semaphore,
    disk: Option<DiskCache>,
}

/// Bytes of objects, in blocks.
#[derive(Debug, Default)]
pub(crate) struct Loaded(HashMap<Key, Bytes>);

impl Reader {
    /// Reads from a bucket for bulk data, and from a disk cache.
    pub(crate) fn new(bucket: Bucket, disk: Option<DiskCache>) -> Self {
        let ahead_bucket = bucket.with_patience(Patience::Once);
        Self { bucket, ahead_bucket, blocks: Arc::default(), ahead: Semaphore::new(AHEAD), disk }
    }

    /// The blocks that are in memory.
    pub(crate) fn blocks(&self) -> &Arc<Blocks> {
        &self.blocks
    }

    /// Loads ranges of objects. Of a range behind an object's end nothing is loaded.
    ///
    /// # Errors
    /// Those of the first GET that failed.
    pub(crate) async fn load(&self, ranges: impl Iterator<Item = (Object, Range<u64>)>) -> Result<Loaded> {
        let keys =
            |(object, range): (Object, Range<u64>)| blocks_of(&range).map(move |number| (object, number));
        let mut wanted: Vec<Key> = ranges.flat_map(keys).collect();
        wanted.sort_unstable();
        wanted.dedup();
        let mut loaded = Loaded::default();
        while !wanted.is_empty() {
            let Lookup { here, awaited, claims } = self.blocks.look_up(&wanted, RUN_MAX, GAP_MAX);
            loaded.0.extend(here);
            let own: Vec<_> = claims.iter().map(|claim| (claim.object(), claim.run())).collect();
            for fetched in join_all(claims.into_iter().map(|claim| self.fetch(claim, &self.bucket))).await {
                loaded.0.extend(fetched?);
            }
            // The last first: blocks come in order, and one that is here wakes only who waits for it.
            for mut claimed in awaited.into_iter().rev() {
                // Its only end is that of the claim.
                while claimed.changed().await.is_ok() {}
            }
            // What was fetched here and is not there is behind the object's end.
            let was_own =
                |key: &Key| own.iter().any(|(object, run)| *object == key.0 && run.contains(&key.1));
            wanted.retain(|key| !loaded.0.contains_key(key) && !was_own(key));
        }
        Ok(loaded)
    }

    /// Fetches what was claimed: from the disk cache what is there, and from the bucket the rest.
    async fn fetch(&self, claim: Claim, bucket: &Bucket) -> Result<Vec<(Key, Bytes)>> {
        let object = claim.object();
        let disk = self.disk.as_ref().filter(|disk| disk.is_on());
        let mut blocks = match disk {
            Some(disk) => disk.read(claim.run().map(|number| (object, number)).collect()).await,
            None => Vec::new(),
        };
        claim.fill(&blocks);
        let mut rest = vec![claim.run()];
        for ((_, number), _) in &blocks {
            let Some(last) = rest.pop() else { break };
            rest.extend([last.start..*number, number + 1..last.end]);
        }
        rest.retain(|run| !run.is_empty() && claim.is_wanted(run));
        let is_kept = disk.is_some() || !claim.is_ahead();
        let fill = |block: &(Key, Bytes)| {
            claim.fill(std::slice::from_ref(block));
            is_kept
        };
        let gets = rest.into_iter().map(|run| self.get(object, run, bucket, fill));
        for fetched in join_all(gets).await {
            let fetched = fetched?;
            if let Some(disk) = disk {
                disk.missed(fetched.len());
                fetched.iter().for_each(|(key, bytes)| disk.offer(*key, bytes));
            }
            blocks.extend(fetched);
        }
        Ok(blocks)
    }

    /// Fetches a run of blocks; passes each on as soon as it has come. Returns those for which `pass_on`
    /// says so.
    async fn get(
        &self,
        object: Object,
        run: Range<u32>,
        bucket: &Bucket,
        pass_on: impl Fn(&(Key, Bytes)) -> bool + Send + Sync,
    ) -> Result<Vec<(Key, Bytes)>> {
        let name = object_name(object);
        let mut blocks = Vec::with_capacity(run.len());
        let mut numbers = run.clone();
        let pass_on = |bytes| {
            if let Some(number) = numbers.next() {
                let block = ((object, number), bytes);
                if pass_on(&block) {
                    blocks.push(block);
                }
            }
        };
        let is_whole = is_whole(object, &run);
        let asked = if is_whole { Asked::Whole(SEGMENT_MAX) } else { Asked::UpTo(bytes_of(&run)) };
        let got = bucket.get_pieces(&name, &asked, BLOCK_LEN, pass_on).await.map(|()| blocks);
        got.map_err(|error| match error.kind() {
            // To a reader the file is there, and its data is lost.
            ErrorKind::NotFound => {
                let detail = format!("{}/{name}: the object is missing", self.bucket.url());
                Error::with(ErrorKind::Io, "read data", detail)
            }
            _ => error,
        })
    }

    /// Bytes that may be read ahead: `bytes` at most.
    pub(crate) fn reserve(&self, bytes: u64) -> Reserved {
        self.blocks.reserve(bytes)
    }

    /// Reads blocks of an object ahead, for which there is a reservation. That it fails says
    /// nothing: a reader that needs them fetches them.
    pub(crate) async fn fetch_ahead(&self, object: Object, run: Range<u32>, reserved: Reserved) {
        if !self.blocks.is_missing(object, run.clone()) {
            return;
        }
        let Ok(_permit) = self.ahead.acquire().await else { return };
        for claim in self.blocks.claim_ahead(object, run, reserved) {
            if let Err(error) = self.fetch(claim, &self.ahead_bucket).await {
                tracing::debug!(%error, "a part is not read ahead");
                break;
            }
        }
    }

    /// A reader in sequence has passed a range of an object, in which `its` bytes are the file's alone:
    /// those blocks that end with it, or before.
    pub(crate) fn pass(&self, object: Object, its: Range<u64>, range: &Range<u64>) {
        let number = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
        let first = (range.start / BLOCK).max(its.start.div_ceil(BLOCK));
        self.blocks.pass(object, number(first)..number(its.end / BLOCK));
    }

    /// Gives up what is here of a range, which is damaged.
    pub(crate) fn forget(&self, object: Object, range: &Range<u64>) {
        self.blocks.forget(object, blocks_of(range));
        if let Some(disk) = self.disk.as_ref().filter(|_| !is_on("disk-cache-unchecked")) {
            blocks_of(range).for_each(|number| disk.forget((object, number)));
        }
    }

    /// Brings blocks of an object to the disk cache, those that it has not.
    ///
    /// # Errors
    /// `Unsupported`: there is no disk cache, or it was switched off. The bucket's.
    pub(crate) async fn warm(&self, object: Object, run: Range<u32>) -> Result<()> {
        let disk = self.disk.as_ref().ok_or_else(|| no_cache(NO_DISK_CACHE))?;
        let missing = |number: &u32| !disk.has((object, *number));
        let (Some(first), Some(last)) = (run.clone().find(missing), run.rev().find(missing)) else {
            return Ok(());
        };
        let fetched = {
            // Its error: it was closed, which it never is.
            let _permit = self.ahead.acquire().await.ok();
            self.get(object, first..last + 1, &self.bucket, |_| true).await?
        };
        for (key, bytes) in fetched {
            disk.keep(key, bytes).await;
        }
        if !disk.is_on() {
            return Err(no_cache(SWITCHED_OFF));
        }
        Ok(())
    }

    /// The disk cache, with all that was kept by now; an error where there is none, or none any more.
    ///
    /// # Errors
    /// `Unsupported`, as [`warm`](Self::warm).
    pub(crate) async fn settled_disk_cache(&self) -> Result<&DiskCache> {
        let disk = self.disk.as_ref().ok_or_else(|| no_cache(NO_DISK_CACHE))?;
        disk.settle().await;
        if disk.is_on() { Ok(disk) } else { Err(no_cache(SWITCHED_OFF)) }
    }

    /// An object was written: it goes to the disk cache, if that has time for it.
    pub(crate) fn wrote(&self, object: Object, parts: &[Bytes]) {
        let Some(disk) = self.disk.as_ref().filter(|disk| disk.has_room()) else { return };
        let whole = parts.concat();
        split(object, 0, &whole).iter().for_each(|(key, bytes)| disk.offer(*key, bytes));
    }

    /// The disk cache, if there is one.
    pub(crate) fn disk_cache(&self) -> Option<&DiskCache> {
        self.disk.as_ref()
    }
}

fn no_cache(why: &'static str) -> Error {
    Error::with(ErrorKind::Unsupported, "warm", why)
}

/// Whether a run is fetched with its whole object.
pub(crate) fn is_whole(object: Object, run: &Range<u32>) -> bool {
    matches!(object, Object::Segment(..)) && run.start == 0 && run.len() >= WHOLE_MIN
}

impl Loaded {
    /// The bytes of a range that was loaded, in order; fewer where the object ends.
    pub(crate) fn get(&self, object: Object, range: &Range<u64>) -> Vec<Bytes> {
        let place = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
        let parts = blocks_of(range).filter_map(|number| {
            let begin = u64::from(number) * BLOCK;
            let block = self.0.get(&(object, number))?;
            let from = place(range.start.saturating_sub(begin)).min(block.len());
            let to = place(range.end - begin).min(block.len());
            Some(block.slice(from..to))
        });
        parts.collect()
    }
}

#[cfg(test)]
mod tests;
