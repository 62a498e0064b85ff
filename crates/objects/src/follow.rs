//! A reader that follows the volume's writer: it looks for the log's next object again and again,
//! and shows what that says as a whole.
//!
//! What it shows is what a next holder would find if the log ended there: tables, and the log's
//! objects behind them, in order, each whole. It goes by the log alone ([`crate::log`]): an object
//! that is there with all before it is part of the volume for good, of whichever holder, and behind a
//! fence the log goes on where the fence says. So a volume that changes its holder needs nothing.
//!
//! # What holders keep for it
//! Its mark ([`crate::readers`]) says since which object of the log it has its tables. Every view
//! that it shows is newer. What was garbage before that object was written, no view of it refers to;
//! so a holder removes that. The reader opens the newest tables each time that it renews its mark,
//! and whenever it has too many rows over them.
//!
//! A reader that was stopped for long loses its mark, and what it shows. It finds out by the mark,
//! and begins anew.
//!
//! # What it keeps of states that it has left
//! Blocks of objects, in memory and on disk: their keys are the objects' names, objects do not
//! change, and a name is not used again, behind a fence neither. So a block is right in each view
//! that refers to it, and none finds it that does not. Rows it keeps in views alone: each call
//! reads an inode anew ([`Pin::lock`](crate::node::Pin::lock)), and the extents that
//! [`crate::extent_cache`] has are those that a holder changes, so here none. Read-ahead takes the
//! newest view, which may be later than its reader's, and brings blocks only.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use slatedb::ValueDeletable;
use slatedb::wal::WalRows;
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::bucket::Bucket;
use crate::codec::Codec;
use crate::engine::{FollowEngine, Tables, TablesOf, View};
use crate::log::{Read, Replay};
use crate::newest_manifest::{newest_manifest, older_metadata};
use crate::object_names::{log_name, number_of};
use crate::readers::Mark;
use crate::rows;
use crate::tree::Tree;

/// Memory of rows over the tables from which on newer tables are looked for.
const ROWS_BYTES: usize = 32 << 20;
/// Openings that find tables newer than the log that was read, before that is an error.
const OPENINGS: usize = 8;

/// Where a volume is read from.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) bucket: Bucket,
    pub(crate) codec: Codec,
    pub(crate) window: u64,
    tables: TablesOf,
}

impl Source {
    pub(crate) fn new(bucket: &Bucket, codec: &Codec, window: u64) -> Self {
        let tables = TablesOf::new(bucket.raw(), codec.clone());
        Self { bucket: bucket.clone(), codec: codec.clone(), window, tables }
    }

    /// The newest state, and the log behind it.
    pub(crate) async fn open(&self) -> Result<(View, Replay)> {
        for _ in 0..OPENINGS {
            let Some(last) = newest_manifest(&self.bucket).await? else { break };
            let mut log =
                Replay::new(self.bucket.clone(), self.codec.clone(), self.window, last.replay_after);
            let Read::Whole = log.read_to_end(u64::MAX).await? else { break };
            // No row of these tables is of an object that is not in the log by now.
            let tables = self.tables.open(position(&log)).await?;
            let (mut view, replay_after) = (View::new(Arc::clone(&tables)), tables.replay_after);
            while let Some(WalRows { rows, .. }) = log.try_next().await? {
                view = view.with(&rows, log.epoch());
            }
            if position(&log) >= replay_after {
                return Ok((view, log));
            }
            // The tables are newer, and the objects between are gone.
            tables.close().await;
        }
        Err(older_metadata(&self.bucket, "its tables and its log do not fit together"))
    }
}

/// The last number of the log that was read, or left out by a fence.
fn position(log: &Replay) -> u64 {
    log.next().saturating_sub(1)
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Follower {
    source: Source,
    renewal: Duration,
    log: Replay,
    engine: Arc<FollowEngine>,
    tree: Arc<Tree>,
    /// Earlier tables, of which views may be in use.
    earlier: Vec<Arc<Tables>>,
    /// Inodes that have changed, and their user was not told yet.
    changed: BTreeSet<u64>,
    /// The memory of rows from which on newer tables are looked for.
    rows_bytes: usize,
    is_failing: bool,
}

impl Follower {
    /// Shows `tree` by way of `engine`; its mark is renewed each `renewal`.
    pub(crate) fn new(
        source: Source,
        log: Replay,
        (engine, tree): (Arc<FollowEngine>, Arc<Tree>),
        renewal: Duration,
    ) -> Self {
        Self {
            source,
            renewal,
            log,
            engine,
            tree,
            earlier: Vec::new(),
            changed: BTreeSet::new(),
            rows_bytes: ROWS_BYTES,
            is_failing: false,
        }
    }

    /// Follows until `end`, and then removes the mark.
    pub(crate) async fn keep(mut self, mut mark: Option<Mark>, end: CancellationToken) {
        let _ended = end.run_until_cancelled(self.follow(&mut mark)).await;
        if let Some(mark) = mark {
            mark.remove().await;
        }
        for tables in &self.earlier {
            tables.close().await;
        }
    }

    async fn follow(&mut self, mark: &mut Option<Mark>) {
        // A mark that is not renewed for long does not count any more.
        let mut ticks = tokio::time::interval(self.engine.every().min(self.renewal));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut renewed = Instant::now();
        loop {
            ticks.tick().await;
            let begun = Instant::now();
            let mut done = self.step().await;
            if done.is_ok() {
                self.engine.note_newest_at(begun);
            }
            if renewed.elapsed() >= self.renewal {
                done = done.and(self.renew(mark).await);
                renewed = Instant::now();
            }
            self.report(done);
            self.tidy().await;
        }
    }

    fn report(&mut self, done: Result<()>) {
        match done {
            Ok(()) if std::mem::take(&mut self.is_failing) => {
                tracing::info!("the volume is followed again");
            }
            Ok(()) => {}
            Err(error) if !std::mem::replace(&mut self.is_failing, true) => {
                tracing::warn!(%error, "the volume cannot be followed: what is shown stays as it is until then");
            }
            Err(error) => tracing::debug!(%error, "the volume cannot be followed"),
        }
    }

    /// Shows what the log says by now.
    pub(crate) async fn step(&mut self) -> Result<()> {
        while let Some(WalRows { rows, .. }) = self.log.try_next().await? {
            if is_on("follow-half-an-object") {
                self.apply(&rows[..rows.len() / 2]);
                tokio::time::sleep(self.engine.every()).await;
            }
            self.apply(&rows);
            if self.engine.current().bytes() >= self.rows_bytes {
                self.renew_tables().await?;
                // Until the holder writes the next ones.
                self.rows_bytes = self.engine.current().bytes() + ROWS_BYTES;
            }
        }
        self.tell();
        Ok(())
    }

    /// Shows the state after these rows.
    fn apply(&mut self, log: &[slatedb::RowEntry]) {
        for row in log {
            let (Some(tag), Ok(ino)) = (row.key.first(), rows::ino_of(&row.key)) else { continue };
            if !matches!(tag, b'I' | b'D' | b'E' | b'X') || !self.tree.nodes.is_used(ino) {
                continue;
            }
            self.changed.insert(ino);
            let is_gone = match &row.value {
                ValueDeletable::Tombstone => true,
                ValueDeletable::Value(row) => {
                    rows::inode_from_bytes(row).is_ok_and(|(row, _)| row.nlink == 0)
                }
                ValueDeletable::Merge(_) => false,
            };
            if *tag == b'I' && is_gone {
                self.engine.keep_gone(ino);
            }
        }
        self.show(self.engine.current().with(log, self.log.epoch()));
    }

    fn show(&self, view: View) {
        *self.tree.totals.lock() = view.totals();
        self.engine.show(view);
    }

    /// Tells the user which of the inodes that it has in use have changed.
    fn tell(&mut self) {
        let (engine, nodes) = (&self.engine, &self.tree.nodes);
        self.changed.retain(|ino| nodes.is_used(*ino) && !engine.tell(*ino));
    }

    /// Closes tables of which no view is in use any more.
    async fn tidy(&mut self) {
        self.engine.drop_gone(|ino| self.tree.nodes.is_used(ino));
        for tables in std::mem::take(&mut self.earlier) {
            if Arc::strong_count(&tables) == 1 {
                tables.close().await;
            } else {
                self.earlier.push(tables);
            }
        }
    }

    /// Puts the newest tables below what is shown.
    async fn renew_tables(&mut self) -> Result<()> {
        let tables = self.source.tables.open(position(&self.log)).await?;
        // What these tables have may be newer than what is shown: the log says all of it.
        let mut rows = Vec::new();
        loop {
            match self.log.try_next().await {
                Ok(Some(next)) => rows.push(next),
                Ok(None) => break,
                Err(error) => {
                    tables.close().await;
                    rows.iter().for_each(|rows| self.apply(&rows.rows));
                    return Err(error);
                }
            }
        }
        rows.iter().for_each(|rows| self.apply(&rows.rows));
        if position(&self.log) < tables.replay_after {
            tables.close().await;
            return self.begin_anew().await;
        }
        let before = self.engine.current();
        self.show(before.over(tables));
        self.earlier.push(Arc::clone(&before.tables));
        self.rows_bytes = ROWS_BYTES;
        Ok(())
    }

    /// Shows the newest state, however it came about.
    async fn begin_anew(&mut self) -> Result<()> {
        let (view, log) = self.source.open().await?;
        self.log = log;
        let before = self.engine.current();
        self.show(view);
        self.earlier.push(Arc::clone(&before.tables));
        self.changed = self.tree.nodes.used();
        self.tell();
        Ok(())
    }

    /// Makes the next mark, and lets holders remove what is not needed any more.
    async fn renew(&mut self, mark: &mut Option<Mark>) -> Result<()> {
        if position(&self.log) != self.engine.current().tables.since {
            self.renew_tables().await?;
        }
        self.tidy().await;
        let earlier = self.earlier.iter().map(|tables| tables.since);
        let since = earlier.chain([self.engine.current().tables.since]).min().unwrap_or(0);
        let was_there = match mark {
            Some(mark) => mark.renew_since(since).await?,
            None => {
                *mark = Some(Mark::set(self.source.bucket.clone()).await?);
                false
            }
        };
        if !was_there || self.is_cut_off().await? {
            // Some of what is shown may be gone.
            self.begin_anew().await?;
        }
        Ok(())
    }

    /// Whether the log goes on behind an object that is not there.
    async fn is_cut_off(&self) -> Result<bool> {
        let after = log_name(position(&self.log));
        let listed = self.source.bucket.list("log", Some(after.trim_start_matches("log/"))).await?;
        let numbers = listed.iter().filter_map(|name| number_of(name));
        Ok(numbers.min().is_some_and(|first| first > self.log.next()))
    }
}

/// An error: the reader of such a volume has nothing to follow.
pub(crate) fn nobody_else_writes() -> Error {
    let why = "follow is for a mount with `ro` of a volume that others write";
    Error::with(ErrorKind::Invalid, "open", why)
}

#[cfg(test)]
mod schedules;
