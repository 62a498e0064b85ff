//! The log as the engine's write-ahead log.

use std::sync::Arc;

use async_trait::async_trait;
use slatedb::RowEntry;
use slatedb::wal::{WalError, WalFlushResult, WalObserver, WalStatus, WalStatusListener, WalWriter};

use super::CommitLog;

/// Objects of the log that a restart may have to read, beyond which the engine writes its tables.
const REPLAY_MAX: u64 = 256;

/// The writing end.
pub(super) struct Writer(pub(super) Arc<CommitLog>);

#[async_trait]
impl WalWriter for Writer {
    async fn append(&mut self, rows: &[RowEntry]) -> Result<(), WalError> {
        self.0.append(rows).await
    }

    async fn flush(&mut self) -> Result<WalFlushResult, WalError> {
        let log = Arc::clone(&self.0);
        let wal_id = {
            let mut state = log.state.lock();
            if let Some(error) = &state.failed {
                return Err(error.clone());
            }
            log.seal(&mut state)
        };
        Ok(WalFlushResult { wal_id, completion: Box::pin(async move { log.durable(wal_id).await }) })
    }

    fn should_flush_memtable(&self, replay_after: u64) -> bool {
        self.0.state.lock().open.saturating_sub(replay_after) > REPLAY_MAX
    }

    fn observer(&self) -> Box<dyn WalObserver> {
        Box::new(Observer(Arc::clone(&self.0)))
    }

    fn status(&self) -> Result<WalStatus, WalStatus> {
        status(&self.0)
    }

    async fn close(&mut self) -> Result<(), WalError> {
        self.0.fail(WalError::Closed);
        Ok(())
    }
}

struct Observer(Arc<CommitLog>);

#[async_trait]
impl WalObserver for Observer {
    fn status(&self) -> Result<WalStatus, WalStatus> {
        status(&self.0)
    }

    fn subscribe(&self, listener: WalStatusListener) -> Result<(), WalError> {
        self.0.listeners.lock().0.push(listener);
        Ok(())
    }
}

fn status(log: &CommitLog) -> Result<WalStatus, WalStatus> {
    let status = log.state.lock().status();
    if status.closed_reason.is_some() { Err(status) } else { Ok(status) }
}
