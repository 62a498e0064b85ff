//! What earlier holders left in the log, from the first object that is not in the engine's tables.
//!
//! Nothing is written here: a holder reads the log before it opens the engine, so that a log that
//! cannot be read leaves the bucket as it is.

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _, stream};
use slatedb::wal::{WalError, WalIterator, WalRows};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::sync::Semaphore;

use super::object::{self, HEADER, Header, LogKind, OBJECT_BYTES_MAX};
use crate::bucket::Bucket;
use crate::codec::Codec;
use crate::object_names::{log_name, number_of};

/// Objects that are fetched at once: after a crash there is one for each fsync of the last seconds, and
/// one by one each took a round trip. As bulk data: the lease is answered beside them.
const READ_TOGETHER: usize = 32;
/// Bytes of them that are fetched at once: as many as the largest object has.
const READ_BYTES: u32 = 64 << 20;
const _: () = assert!(READ_BYTES as u64 == OBJECT_BYTES_MAX);

/// Reads the log, in its order.
#[derive(Debug, Clone)]
pub(crate) struct Replay {
    bucket: Bucket,
    codec: Codec,
    window: u64,
    /// The number of the object that it began behind.
    after: u64,
    /// The number that the log goes on with.
    next: u64,
    /// The epoch of the last object.
    epoch: u64,
    rows: Rows,
}

/// Rows that were read, for the engine.
#[derive(Clone, Default)]
pub(crate) struct Rows(pub(crate) VecDeque<WalRows>);

impl std::fmt::Debug for Rows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Rows").field(&self.0.len()).finish()
    }
}

#[async_trait]
impl WalIterator for Rows {
    async fn next(&mut self) -> Result<Option<WalRows>, WalError> {
        Ok(self.0.pop_front())
    }
}

/// How far the log was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(crate) enum Read {
    /// To its end.
    Whole,
    /// To the object of a holder with this epoch or a later one, which was not asked for.
    Newer { number: u64 },
}

/// Numbers behind a fence that the holder before it may still make.
pub(super) fn left_out(window: u64) -> u64 {
    if is_on("log-fence-leaves-nothing-out") { 0 } else { window }
}

impl Replay {
    /// Begins behind the object `after`.
    pub(crate) fn new(bucket: Bucket, codec: Codec, window: u64, after: u64) -> Self {
        Self { bucket, codec, window, after, next: after.saturating_add(1), epoch: 0, rows: Rows::default() }
    }

    pub(crate) const fn after(&self) -> u64 {
        self.after
    }

    /// The number that the log goes on with.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// The epoch of the last object that was read; 0: none was.
    pub(crate) const fn epoch(&self) -> u64 {
        self.epoch
    }

    pub(crate) fn into_rows(self) -> Rows {
        self.rows
    }

    /// Reads what holders before `epoch` wrote, to the log's end as a listing shows it.
    ///
    /// # Errors
    /// The bucket's; `Io`: an object is damaged or missing, with its name.
    pub(crate) async fn read_to_end(&mut self, epoch: u64) -> Result<Read> {
        let after = log_name(self.next - 1);
        let listed = self.bucket.list_sizes("log", Some(after.trim_start_matches("log/"))).await?;
        let mut listed: Vec<_> =
            listed.iter().filter_map(|(name, size)| Some((number_of(name)?, *size))).collect();
        listed.sort_unstable();
        let numbers: Vec<_> = listed.iter().map(|(number, _)| *number).collect();
        let (bucket, room) = (self.bucket.bulk(), Arc::new(Semaphore::new(READ_BYTES as usize)));
        // In their order: those that have room are taken before it, and give theirs back.
        let with_room = stream::iter(listed).then(move |(number, bytes)| {
            let bytes = u32::try_from(bytes).map_or(READ_BYTES, |bytes| bytes.min(READ_BYTES));
            Arc::clone(&room).acquire_many_owned(bytes).map(move |room| (number, room))
        });
        let reads = with_room.map(move |(number, room)| {
            let bucket = bucket.clone();
            async move { Ok::<_, Error>((read(bucket, number).await?, room)) }
        });
        let mut objects = pin!(reads.buffered(READ_TOGETHER).enumerate());
        while let Some((index, object)) = objects.next().await {
            let number = numbers[index];
            // What a fence left out.
            if number < self.next {
                continue;
            }
            if number > self.next {
                self.check_gap(&numbers[index..]).await?;
                break;
            }
            let (object, _room) = object?;
            if !self.take(number, object, epoch)? {
                return Ok(Read::Newer { number });
            }
        }
        Ok(Read::Whole)
    }

    /// Reads the next object that has rows, if it is there: fences are passed over. What an earlier
    /// holder made behind a fence is no part of the log, and not looked at.
    pub(crate) async fn try_next(&mut self) -> Result<Option<WalRows>> {
        loop {
            if let Some(rows) = self.rows.0.pop_front() {
                return Ok(Some(rows));
            }
            let number = self.next;
            let name = log_name(number);
            let Some((object, _)) = self.bucket.get_at_most(&name, OBJECT_BYTES_MAX).await? else {
                return Ok(None);
            };
            if !self.take(number, object, u64::MAX)? {
                return Ok(None);
            }
        }
    }

    /// A crash leaves out objects that were not acknowledged, never one that was. Those `beyond` the
    /// missing one say which it is: each names the last one that was durable when it was sealed.
    async fn check_gap(&self, beyond: &[u64]) -> Result<()> {
        let Some(witness) = self.witness(beyond).await? else { return Ok(()) };
        let name = log_name(self.next);
        match self.bucket.get_range(&name, 0..HEADER as u64).await {
            // A holder that is alive made it meanwhile.
            Ok(_) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => Err(Error::with(
                ErrorKind::Io,
                "read log",
                format!(
                    "{}/{name}: this object of the log is missing, and {} was written after it; put the \
                     object back, and everything is there",
                    self.bucket.url(),
                    log_name(witness)
                ),
            )),
            Err(error) => Err(error),
        }
    }

    /// The object that shows that the next number was durable once.
    async fn witness(&self, beyond: &[u64]) -> Result<Option<u64>> {
        // No holder sends what is so far beyond the durable ones.
        if let Some(&last) = beyond.last().filter(|last| **last >= self.next.saturating_add(self.window)) {
            return Ok(Some(last));
        }
        for &number in beyond {
            let header = self.bucket.get_range(&log_name(number), 0..HEADER as u64).await?;
            let header = Header::read(&header, number).map_err(|error| self.named(error))?;
            // A fence stands where the first object is missing.
            if header.kind == LogKind::Fence || header.durable() >= Some(self.next) {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The object `number`, which is there.
    pub(super) async fn read(&self, number: u64) -> Result<Bytes> {
        read(self.bucket.clone(), number).await
    }

    /// Takes the rows of the object `number`, which is the next; says whether its holder's epoch is
    /// below `epoch`.
    pub(super) fn take(&mut self, number: u64, object: Bytes, epoch: u64) -> Result<bool> {
        match self.try_take(number, object, epoch) {
            Err(error) => Err(self.named(error)),
            taken => taken,
        }
    }

    fn try_take(&mut self, number: u64, object: Bytes, epoch: u64) -> Result<bool> {
        let header = Header::read(&object, number)?;
        if header.epoch >= epoch && !is_on("log-epoch-not-compared") {
            return Ok(false);
        }
        if header.epoch < self.epoch {
            return Err(object::damaged(number, "an earlier holder wrote it behind a fence"));
        }
        if header.rows().end != object.len() {
            return Err(object::damaged(number, "it is cut off, or something was added"));
        }
        if header.kind == LogKind::Fence {
            if Some(header.next) != number.checked_add(1 + left_out(self.window)) {
                return Err(object::damaged(number, "its fence leaves out other numbers than the window"));
            }
            (self.epoch, self.next) = (header.epoch, header.next);
            return Ok(true);
        }
        let sealed = &object[header.rows()];
        let rows = self.codec.open(&header.context(), sealed).map_err(|error| {
            let why = error.detail().unwrap_or("corrupted").to_owned();
            Error::with(ErrorKind::Io, "read log", format!("{}: {why}", log_name(number)))
        })?;
        let rows = object::read_rows(rows, number)?;
        (self.epoch, self.next) = (header.epoch, number.saturating_add(1));
        if !rows.is_empty() {
            self.rows.0.push_back(WalRows { rows, last_consumed_wal_file_id: number });
        }
        Ok(true)
    }

    fn named(&self, error: Error) -> Error {
        named(&self.bucket, error)
    }
}

async fn read(bucket: Bucket, number: u64) -> Result<Bytes> {
    let got = bucket.get_at_most(&log_name(number), OBJECT_BYTES_MAX).await?;
    got.map(|(object, _)| object).ok_or_else(|| named(&bucket, object::damaged(number, "it is gone")))
}

/// An error about an object of the log, with the volume's URL.
fn named(bucket: &Bucket, error: Error) -> Error {
    let why = error.detail().unwrap_or("it is damaged");
    let detail = format!("{}/{why}; put the object back as it was, and everything is there", bucket.url());
    Error::with(error.kind(), "read log", detail)
}
