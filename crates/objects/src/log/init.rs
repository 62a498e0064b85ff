//! The beginning of a holder's log: what earlier holders left is read, and they are fenced.

use std::sync::Arc;

use async_trait::async_trait;
use object_store::PutPayload;
use parking_lot::Mutex;
use slatedb::wal::{WalError, WriterInit, WriterInitResult, WriterManifest};
use store::Result;
use sync::mutant::is_on;

use super::object::{Header, LogKind};
use super::replay::{Read, Replay, left_out};
use super::{CommitLog, State, writer::Writer};
use crate::bucket::Condition;
use crate::engine::Clock;
use crate::object_names::log_name;

/// Fences earlier holders, and starts the log.
pub(crate) struct LogInit {
    pub(crate) log: Arc<CommitLog>,
    pub(crate) nonce: [u8; 16],
    pub(crate) clock: Arc<Clock>,
    /// What was read of the log before the engine was opened.
    pub(crate) earlier: Mutex<Option<Replay>>,
}

#[async_trait]
impl WriterInit for LogInit {
    async fn fence_and_init(&self, manifest: &mut WriterManifest) -> Result<WriterInitResult, WalError> {
        let (epoch, after) = (manifest.epoch(), manifest.replay_after_wal_id().max(self.log.parents().log()));
        let earlier = self.earlier.lock().take().filter(|earlier| earlier.after() == after);
        let is_read = earlier.is_some();
        let mut replay = earlier.unwrap_or_else(|| self.log.replay(after));
        let next = match self.fence(&mut replay, epoch, is_read).await {
            Ok(Some(next)) => next,
            Ok(None) => return Err(WalError::Fenced),
            Err(error) => return Err(WalError::Unavailable(Arc::new(error))),
        };
        let rows = replay.into_rows();
        self.clock.raise(manifest.manifest().last_l0_clock_tick());
        let stamps = rows.0.iter().flat_map(|rows| rows.rows.iter().filter_map(|row| row.create_ts));
        stamps.for_each(|stamp| self.clock.raise(stamp));
        *self.log.state.lock() = State {
            epoch,
            nonce: self.nonce,
            first: next,
            open: next,
            durable: next - 1,
            ..State::default()
        };
        Ok(WriterInitResult {
            replay_iterator: Box::new(rows),
            wal_writer: Box::new(Writer(Arc::clone(&self.log))),
        })
    }
}

impl LogInit {
    /// Puts a fence behind the last object, and returns the number that the log goes on with.
    /// `None`: a newer holder has fenced this one.
    async fn fence(&self, replay: &mut Replay, epoch: u64, mut is_read: bool) -> Result<Option<u64>> {
        loop {
            // Before the fence, which would stand where an object is missing.
            if !std::mem::take(&mut is_read)
                && let Read::Newer { .. } = replay.read_to_end(epoch).await?
            {
                return Ok(None);
            }
            let number = replay.next();
            let next = number.saturating_add(1 + left_out(self.log.window));
            let fence = Header::new(LogKind::Fence, epoch, self.nonce, number, next).write(0, 0);
            if is_on("log-fence-not-written") && self.log.bucket.get(&log_name(number)).await?.is_none() {
                return Ok(Some(next));
            }
            let payload = PutPayload::from_bytes(fence.clone());
            let made = self.log.bucket.create(&log_name(number), payload).await?;
            if matches!(made, Condition::Met(_)) {
                return Ok(Some(next));
            }
            let object = replay.read(number).await?;
            // The answer to an earlier attempt was lost.
            if object == fence {
                return Ok(Some(next));
            }
            if !replay.take(number, object, epoch)? {
                return Ok(None);
            }
        }
    }
}
