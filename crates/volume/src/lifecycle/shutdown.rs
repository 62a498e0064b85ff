//! The end of a volume, from `active` to `released`.
//!
//! The first caller that asks for the end drains: it writes every dirty inode, makes everything
//! durable, and releases the store. A caller that asks while that goes on waits for the same end.
//!
//! Lock order: `Lifecycle::state` is a leaf; nothing is written under it.

use std::time::{Duration, Instant};

use crate::events::Life;
use crate::lifecycle::state::{DrainReport, VolumeState};
use crate::volume::Volume;

impl Volume {
    /// A path leads to the volume again.
    pub fn set_attached(&self) {
        let mut state = self.lifecycle.state.lock();
        if state.0 == VolumeState::Detached {
            state.0 = VolumeState::Active;
        }
    }

    /// No path leads to the volume any more.
    pub fn set_detached(&self) {
        let mut state = self.lifecycle.state.lock();
        if state.0 == VolumeState::Active {
            state.0 = VolumeState::Detached;
            self.core.events.life(Life::Detached, None);
        }
    }

    /// Writes everything, makes it durable and gives the store free; says what could not be
    /// written.
    ///
    /// Tries again while attempts fail, until
    /// [`Options::drain_deadline`](crate::Options::drain_deadline) has passed since the last byte
    /// could be written, or until [`abort`](Self::abort). No other call may follow but `status`.
    /// Later callers get the first one's report when it is there.
    pub fn shutdown(&self) -> DrainReport {
        self.end(None::<fn()>)
    }

    /// [`shutdown`](Self::shutdown) where requests may still be in hand: dirty data is written
    /// while they are, once, and `wait` returns when they are over.
    pub fn shutdown_beside_requests(&self, wait: impl FnOnce()) -> DrainReport {
        self.end(Some(wait))
    }

    /// Writes what is dirty now, once, so that the end does not have to. Errors are kept with the
    /// files; the end tries these again.
    pub fn write_back(&self) {
        let _told_by_the_end = self.write_all();
    }

    fn end(&self, wait: Option<impl FnOnce()>) -> DrainReport {
        {
            let mut state = self.lifecycle.state.lock();
            if !matches!(state.0, VolumeState::Active | VolumeState::Detached) {
                while state.1.is_none() {
                    self.lifecycle.ended.wait(&mut state);
                }
                return state.1.clone().unwrap_or_default();
            }
            state.0 = VolumeState::Draining;
            self.core.events.life(Life::Draining, None);
        }
        let begun = Instant::now();
        let _drain = tracing::info_span!("drain", volume = %self.core.options.name).entered();
        if let Some(wait) = wait {
            tracing::info_span!("flush").in_scope(|| self.write_back());
            tracing::info_span!("wait_for_requests").in_scope(wait);
        }
        tracing::info_span!("write_back").in_scope(|| self.drain());
        let sync_error = tracing::info_span!("sync_store").in_scope(|| self.make_durable().err());
        let unwritten = self.unwritten();
        *self.lifecycle.final_report.lock() = Some(DrainReport {
            unwritten: unwritten.clone(),
            sync_error: sync_error.clone(),
            ..DrainReport::default()
        });
        tracing::info_span!("close_files")
            .in_scope(|| self.core.deferred_close.wait(|| self.core.is_aborted()));
        self.core.bdi.stop(
            Instant::now() + if self.core.is_aborted() { Duration::ZERO } else { Duration::from_secs(1) },
        );
        // From here on no other thread has one of the volume's inodes.
        let switch_drain = tracing::info_span!("wait_for_switches").in_scope(|| self.core.bdi.drain());
        tracing::info_span!("release").in_scope(|| {
            if self.core.is_aborted() { self.close_aborted() } else { self.take_resources().close() }
        });
        let switched = self.core.bdi.status().switched;
        let report = DrainReport { unwritten, sync_error, took: begun.elapsed(), switch_drain, switched };
        let end = if report.is_complete() { VolumeState::Released } else { VolumeState::Failed };
        self.core.events.end(report.error());
        *self.lifecycle.state.lock() = (end, Some(report.clone()));
        self.lifecycle.ended.notify_all();
        report
    }

    /// How the volume's end went, once it is there.
    #[must_use]
    pub fn report(&self) -> Option<DrainReport> {
        self.lifecycle.state.lock().1.clone()
    }

    fn drain(&self) {
        let mut last_progress = Instant::now();
        let mut written = self.core.counters.bytes_written_back.get();
        loop {
            let failed = self.write_all();
            let clean = self.dirty_inodes().iter().all(|inode| inode.pending().is_none());
            if (clean && failed.is_empty()) || self.core.is_aborted() {
                return;
            }
            let now = self.core.counters.bytes_written_back.get();
            if now > written {
                (written, last_progress) = (now, Instant::now());
            } else if last_progress.elapsed() >= self.core.options.drain_deadline {
                return;
            }
            if !failed.is_empty() {
                // Not in place of a wake-up: nothing reports when a store that failed will work
                // again.
                self.core.wait_aborted(self.core.options.retry_pause.min(Duration::from_secs(1)));
            }
        }
    }
}

impl mounts::Superblock for Volume {
    fn flush(&self) {
        self.write_back();
    }

    fn shutdown(&self) {
        Volume::shutdown(self);
    }
}
