//! The beginning of a holder's log: what earlier holders left is read, and they are fenced.

use std::collections::VecDeque;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use object_store::PutPayload;
use slatedb::wal::{WalError, WalIterator, WalRows, WriterInit, WriterInitResult, WriterManifest};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use super::object::{self, Header, LogKind, OBJECT_BYTES_MAX};
use super::{CommitLog, State, writer::Writer};
use crate::bucket::Condition;
use crate::engine::Clock;

/// Fences earlier holders, and starts the log.
pub(crate) struct LogInit {
    pub(crate) log: Arc<CommitLog>,
    pub(crate) nonce: [u8; 16],
    pub(crate) clock: Arc<Clock>,
}

#[async_trait]
impl WriterInit for LogInit {
    async fn fence_and_init(&self, manifest: &mut WriterManifest) -> Result<WriterInitResult, WalError> {
        let (epoch, after) = (manifest.epoch(), manifest.replay_after_wal_id());
        let mut replay = Replay { log: &self.log, next: after + 1, epoch: 0, rows: VecDeque::new() };
        let next = match replay.fence(epoch, self.nonce).await {
            Ok(Some(next)) => next,
            Ok(None) => return Err(WalError::Fenced),
            Err(error) => return Err(WalError::Unavailable(Arc::new(error))),
        };
        let rows = replay.rows;
        self.clock.raise(manifest.manifest().last_l0_clock_tick());
        let stamps = rows.iter().flat_map(|rows| rows.rows.iter().filter_map(|row| row.create_ts));
        stamps.for_each(|stamp| self.clock.raise(stamp));
        *self.log.state.lock() =
            State { epoch, nonce: self.nonce, open: next, durable: next - 1, ..State::default() };
        Ok(WriterInitResult {
            replay_iterator: Box::new(Rows(rows)),
            wal_writer: Box::new(Writer(Arc::clone(&self.log))),
        })
    }
}

/// Reads the log from its first number that is not in the engine's tables.
struct Replay<'a> {
    log: &'a CommitLog,
    /// The number that the log goes on with.
    next: u64,
    /// The epoch of the last object.
    epoch: u64,
    rows: VecDeque<WalRows>,
}

impl Replay<'_> {
    /// Puts a fence behind the last object, and returns the number that the log goes on with.
    /// `None`: a newer holder has fenced this one.
    async fn fence(&mut self, epoch: u64, nonce: [u8; 16]) -> Result<Option<u64>> {
        loop {
            let number = self.next;
            let next = number + 1 + self.left_out();
            let fence = Header::new(LogKind::Fence, epoch, nonce, number, next).write(&[], &[]);
            let name = object::name(number);
            if is_on("log-fence-not-written") && self.log.bucket.get(&name).await?.is_none() {
                return Ok(Some(next));
            }
            let made = self.log.bucket.create(&name, PutPayload::from_bytes(fence.clone())).await?;
            if matches!(made, Condition::Met(_)) {
                return Ok(Some(next));
            }
            let object = self.read(number).await?;
            // The answer to an earlier attempt was lost.
            if object == fence {
                return Ok(Some(next));
            }
            if !self.take(number, object, epoch)? {
                return Ok(None);
            }
            // One after the other from here on is the rare case; most of the log is read at once.
            self.read_ahead(epoch).await?;
        }
    }

    /// Numbers behind a fence that the holder before it may still make.
    fn left_out(&self) -> u64 {
        if is_on("log-fence-leaves-nothing-out") { 0 } else { self.log.window }
    }

    async fn read(&self, number: u64) -> Result<Bytes> {
        let got = self.log.bucket.get_at_most(&object::name(number), OBJECT_BYTES_MAX).await?;
        let (object, _) = got.ok_or_else(|| object::damaged(number, "it is gone"))?;
        Ok(object)
    }

    /// Reads the objects that are there.
    async fn read_ahead(&mut self, epoch: u64) -> Result<()> {
        let after = object::name(self.next - 1);
        let after = after.trim_start_matches("log/");
        let listed = self.log.bucket.list("log", Some(after)).await?;
        for number in listed.iter().filter_map(|name| object::number_of(name)) {
            // A number that was left out ends the log; a fence left some out.
            if number < self.next {
                continue;
            }
            if number > self.next {
                return Ok(());
            }
            let object = self.read(number).await?;
            if !self.take(number, object, epoch)? {
                return Err(Error::with(ErrorKind::Io, "read log", "another host takes the volume over"));
            }
        }
        Ok(())
    }

    /// Takes the rows of the object `number`, which is the next; says whether it is of no newer
    /// holder.
    fn take(&mut self, number: u64, object: Bytes, epoch: u64) -> Result<bool> {
        let header = Header::read(&object, number)?;
        if header.epoch >= epoch && !is_on("log-epoch-not-compared") {
            return Ok(false);
        }
        if header.epoch < self.epoch {
            return Err(object::damaged(number, "an earlier holder wrote it behind a fence"));
        }
        self.epoch = header.epoch;
        if header.kind == LogKind::Fence {
            if Some(header.next) != number.checked_add(1 + self.left_out()) {
                return Err(object::damaged(number, "its fence leaves out other numbers than the window"));
            }
            self.next = header.next;
            return Ok(true);
        }
        let sealed = object.get(header.rows()).ok_or_else(|| object::damaged(number, "it is cut off"))?;
        let rows = self.log.codec.open(&header.context(), sealed)?;
        let rows = object::read_rows(rows, number)?;
        self.next = number + 1;
        if !rows.is_empty() {
            self.rows.push_back(WalRows { rows, last_consumed_wal_file_id: number });
        }
        Ok(true)
    }
}

/// Rows that were read.
struct Rows(VecDeque<WalRows>);

#[async_trait]
impl WalIterator for Rows {
    async fn next(&mut self) -> Result<Option<WalRows>, WalError> {
        Ok(self.0.pop_front())
    }
}
