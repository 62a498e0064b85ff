//! Garbage collection: the holder removes objects that nobody needs, behind everybody's work.
//!
//! | objects | are garbage when |
//! |---|---|
//! | segments, and the log's objects with data | no extent refers to them: their row `G` says 0; and no snapshot needs them ([`held`]) |
//! | the log's objects | and their rows are in the engine's tables |
//! | the engine's tables | neither its newest manifest, nor that of a snapshot, nor a merge names them |
//!
//! # Why nothing is removed that somebody needs
//! - **After a crash.** An object is removed after the log's object is durable that took its last
//!   extent away. Every later holder replays that, too.
//! - **Here.** What is under way may use what it found before ([`crate::work`]): the pass that
//!   removes an object reads its row after everything has ended that began before it was found.
//!   Nothing that begins later finds the object, for no row names it; and what no row names yet is
//!   of something under way that began before it was written.
//! - **By an earlier holder that does not know yet.** It may read what is gone, which fails. It
//!   never acknowledges: that rests on the fence, and fences are never collected.
//! - **By a later holder.** What this one finds to be garbage is garbage in every state that
//!   follows. One that was taken over and does not know it removes nothing else.
//! - **By readers elsewhere.** They have marks ([`crate::readers`]), and while there is one nothing
//!   is removed, but what was garbage before all that the readers show ([`crate::follow`]); one
//!   that has just begun finds what was found to be garbage [`Timing::passes`] ago no more than
//!   others do. One that reads a snapshot needs what the snapshot needs: it holds up removals only
//!   when that has been deleted.
//!
//! Time is counted in passes, which a process that is stopped does not make.
//!
//! Objects that are mostly dead are repacked ([`crate::repacking`]), and go when they are not in
//! use any more. While a reader elsewhere keeps everything, that would only take more space.

mod choice;
mod found;
mod held;
mod repacked;
mod repacker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::time::MissedTickBehavior;

use crate::bucket::Bucket;
use crate::engine::{Batch, Engine as _, Records, SlateEngine};
use crate::log::CommitLog;
use crate::log::object::{HEADER, Header, LogKind};
use crate::object_names::{log_name, number_of, segment_of};
use crate::readers::Readers;
use crate::rows::{self, Object, Usage};
use crate::tree::Tree;
use choice::Choice;
use found::{DuringMerge, Found, Garbage, Removal};
use held::Holders;
use repacker::Repacker;

/// Rows that are read at a time.
const BATCH: usize = 1024;
/// Objects that wait for being removed at a time; more are found when those are gone.
const WAITING_MAX: usize = 64 << 10;

/// Dead bytes that are not worth repacking: a volume with less than that is small all the same.
const LEFT_ALONE: u64 = 1 << 20;

/// When garbage is looked for, and how long it stays.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timing {
    pub(crate) every: Duration,
    /// Passes that find an object to be garbage before it is removed.
    pub(crate) passes: u32,
    /// Dead bytes in objects that are in use, for which none is repacked.
    pub(crate) left_alone: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Self { every: Duration::from_secs(300), passes: 3, left_alone: LEFT_ALONE }
    }
}

/// What a collection did, or would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Collected {
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// The marks of readers elsewhere, for whose sake nothing was removed.
    pub(crate) readers: Vec<String>,
}

/// Looks for garbage in one volume, and removes it.
#[derive(Debug)]
pub(crate) struct Collector {
    tree: Arc<Tree>,
    log: Arc<CommitLog>,
    engine: Arc<SlateEngine>,
    bucket: Bucket,
    timing: Timing,
    found: BTreeMap<Garbage, Found>,
    readers: Readers,
    repacker: Repacker,
    /// The log was searched up to here: what is left there are fences, and objects with data.
    searched: Option<u64>,
    fences: BTreeSet<u64>,
    /// The log's last number when there was no garbage.
    clean_at: Option<u64>,
    /// The newest manifest when the tables were listed.
    listed_at: Option<u64>,
}

impl Collector {
    pub(crate) fn new(
        (tree, log, engine): (Arc<Tree>, Arc<CommitLog>, Arc<SlateEngine>),
        bucket: Bucket,
        timing: Timing,
    ) -> Self {
        let repacker = Repacker::new(Arc::clone(&tree), Arc::clone(&log), Arc::clone(&engine));
        Self {
            tree,
            log,
            engine,
            bucket,
            timing,
            found: BTreeMap::new(),
            readers: Readers::default(),
            repacker,
            searched: None,
            fences: BTreeSet::new(),
            clean_at: None,
            listed_at: None,
        }
    }

    /// Collects until the volume fails.
    pub(crate) async fn keep(mut self) {
        let mut ticks = tokio::time::interval(self.timing.every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        loop {
            ticks.tick().await;
            match self.pass().await {
                Ok(0) => {}
                Ok(objects) => tracing::debug!(objects, "objects that nobody needs were removed"),
                Err(error) => {
                    if self.log.failure().is_some() {
                        return;
                    }
                    tracing::warn!(%error, "garbage stays in the bucket");
                }
            }
        }
    }

    /// Looks for garbage once, and removes what was found often enough; returns how many objects.
    pub(crate) async fn pass(&mut self) -> Result<usize> {
        // More may come into an object that is open.
        let written = (!self.log.has_open()).then(|| self.log.last_number());
        if self.found.is_empty() && written.is_some() && self.clean_at == written {
            return Ok(0);
        }
        if !self.is_counted().await? {
            self.clean_at = written;
            return Ok(0);
        }
        let records = self.records().await?;
        let oldest = self.tree.work.oldest();
        self.repacker.repacked.begin_pass();
        let mut choice = Choice::default();
        let mut garbage = self.garbage_but_tables(&records, &mut choice).await?;
        if self.listed_at != Some(records.newest) || self.found.keys().any(|g| matches!(g, Garbage::Table(_)))
        {
            garbage.extend(self.unused(&records).await?);
            self.listed_at = Some(records.newest);
        }
        self.find(garbage, WAITING_MAX);
        self.clean_at = written.filter(|_| self.found.is_empty());
        let looks = self.readers.looks();
        let removal = self.remove_due(oldest, DuringMerge::Leave).await?;
        let wants_tables = choice.wants_tables(self.timing.left_alone);
        let chosen = choice.chosen(self.timing.left_alone);
        if wants_tables || !chosen.is_empty() || self.repacker.repacked.waits() {
            // There is more to do, whether this pass can do it or not.
            self.clean_at = None;
        }
        if !chosen.is_empty() {
            // Once in a pass: marks grow old by it.
            if self.readers.looks() == looks {
                self.readers.look(&self.bucket, &records.snapshots).await?;
            }
            if !self.readers.keep_all() {
                self.repacker.repack(chosen).await?;
            }
        }
        if wants_tables {
            self.engine.write_tables().await?;
        }
        match removal {
            Removal::Removed(names) => Ok(names.len()),
            Removal::LeftForReaders(_) => Ok(0),
        }
    }

    /// Looks for all the garbage that there is, also for what lost hosts have left, which nobody
    /// else looks for; removes it, unless that is only `tried`. Nothing else uses the volume
    /// meanwhile.
    pub(crate) async fn collect(&mut self, is_tried: bool) -> Result<Collected> {
        if !self.is_counted().await? {
            let why = "an early build made this volume, which did not count what is in use: copy its files to a new one";
            return Err(Error::with(ErrorKind::Unsupported, "collect garbage", why));
        }
        if !is_tried {
            if self.bucket.some_names("reader", 1).await?.is_empty() {
                self.repack_all().await?;
            }
            // The log's objects are garbage when their rows are in tables.
            self.tree.sync_all().await?;
            self.engine.write_tables().await?;
        }
        let mut sizes = BTreeMap::new();
        for dir in ["seg", "log", "meta"] {
            let listed = self.bucket.list_sizes(dir, None).await?;
            sizes.extend(listed.into_iter().map(|(name, bytes)| (format!("{dir}/{name}"), bytes)));
        }
        let records = self.records().await?;
        self.searched = Some(0);
        let oldest = self.tree.work.oldest();
        let mut garbage = self.garbage_but_tables(&records, &mut Choice::default()).await?;
        garbage.extend(self.unused(&records).await?);
        garbage.extend(self.segments_without_rows(sizes.keys()).await?);
        self.find(garbage, usize::MAX);
        let removal = if is_tried {
            Removal::Removed(self.found_but_held(&records).await?)
        } else {
            // What says so is durable from here on.
            self.tree.sync_all().await?;
            self.remove_due(oldest, DuringMerge::Wait).await?
        };
        let (names, readers) = match removal {
            Removal::Removed(names) => (names, Vec::new()),
            Removal::LeftForReaders(marks) => (Vec::new(), marks),
        };
        // Of those that were there: a crash may have come between an object and its row.
        let bytes: Vec<u64> = names.iter().filter_map(|name| sizes.get(name)).copied().collect();
        Ok(Collected { objects: bytes.len() as u64, bytes: bytes.iter().sum(), readers })
    }

    /// Whether the volume's rows say what is alive.
    async fn is_counted(&self) -> Result<bool> {
        Ok(self.engine.get(rows::COUNTED).await?.is_some())
    }

    /// Takes note of what is garbage now. The rows that say so are in what is written by now, and
    /// what begins from here on finds nothing of it.
    fn find(&mut self, garbage: Vec<Garbage>, most: usize) {
        let now = Found { passes: 0, number: self.log.last_number(), work: self.tree.work.next() };
        let mut found = BTreeMap::new();
        for garbage in garbage.into_iter().take(most) {
            let before = self.found.get(&garbage).copied().unwrap_or(now);
            found.insert(garbage, Found { passes: before.passes + 1, ..before });
        }
        self.found = found;
    }

    /// The engine's state, if this process is its writer.
    async fn records(&self) -> Result<Records> {
        let records = self.engine.records().await?;
        self.check_writer(&records)?;
        Ok(records)
    }

    fn check_writer(&self, records: &Records) -> Result<()> {
        if records.epoch == self.log.epoch() {
            return Ok(());
        }
        Err(Error::with(ErrorKind::Io, "collect garbage", "another host has taken the volume over"))
    }

    /// Repacks until little is dead in objects that are in use.
    async fn repack_all(&mut self) -> Result<()> {
        loop {
            let records = self.records().await?;
            self.repacker.repacked.search_at_once();
            let mut choice = Choice::default();
            self.dead_data(&records, &mut choice).await?;
            let chosen = choice.chosen(0);
            if chosen.is_empty() {
                return Ok(());
            }
            self.repacker.repack(chosen).await?;
            self.tree.sync_all().await?;
            self.engine.write_tables().await?;
        }
    }

    async fn garbage_but_tables(&mut self, records: &Records, choice: &mut Choice) -> Result<Vec<Garbage>> {
        let mut garbage = self.dead_data(records, choice).await?;
        garbage.extend(self.log_without_data(records.replay_after).await?);
        Ok(garbage)
    }

    /// The names of what was found that no snapshot needs.
    async fn found_but_held(&self, records: &Records) -> Result<Vec<String>> {
        let holders = Holders::read(&self.engine, records).await?;
        let mut names = Vec::new();
        for garbage in self.found.keys() {
            if let Garbage::Data(object) = garbage
                && holders.need(*object, holders.died(&self.engine, *object).await?)
            {
                continue;
            }
            names.push(garbage.name());
        }
        Ok(names)
    }

    /// Objects that no extent refers to any more, and whose rows are in tables.
    async fn dead_data(&self, records: &Records, choice: &mut Choice) -> Result<Vec<Garbage>> {
        let (replay_after, holders) = (records.replay_after, Holders::read(&self.engine, records).await?);
        let (mut from, end) = ([rows::COUNTED, &[0]].concat(), rows::all_keys(b'G').end);
        let mut dead = Vec::new();
        loop {
            let counts = self.engine.scan(from.clone()..end.clone(), BATCH).await?;
            let is_last = counts.len() < BATCH;
            let mut found = Vec::new();
            for (key, usage) in counts {
                let object = rows::live_object(&key)?;
                let usage = Usage::from_bytes(&usage)?;
                let is_kept = matches!(object, Object::Log(number) if number > replay_after);
                if usage.live == 0 && !is_kept {
                    found.push(object);
                } else if holders.need(object, None) || self.log.parents().have(object) {
                    // What stays for a snapshot or another volume stays whole, whatever is written anew.
                } else if is_kept {
                    choice.see_without_tables(object, usage);
                } else {
                    choice.see(object, usage, self.repacker.repacked.is_movable(object, usage));
                }
                from = [&key[..], &[0]].concat();
            }
            dead.extend(holders.without_held(&self.engine, found).await?.into_iter().map(Garbage::Data));
            if is_last {
                return Ok(dead);
            }
        }
    }

    async fn unused(&self, records: &Records) -> Result<Vec<Garbage>> {
        let unused = self.engine.unused(&self.bucket, records).await?;
        Ok(unused.into_iter().map(Garbage::Table).collect())
    }

    /// Segments of earlier holders that no row ever named: those made them in their last moments.
    async fn segments_without_rows(&self, names: impl Iterator<Item = &String>) -> Result<Vec<Garbage>> {
        let mut found = Vec::new();
        for object in names.filter_map(|name| segment_of(name)) {
            let is_earlier = matches!(object, Object::Segment(epoch, _) if epoch < self.log.epoch());
            if is_earlier && self.engine.get(&rows::live_key(object)).await?.is_none() {
                found.push(Garbage::Data(object));
            }
        }
        Ok(found)
    }

    /// Objects of the log whose rows are in tables, and that never had data.
    async fn log_without_data(&mut self, replay_after: u64) -> Result<Vec<Garbage>> {
        let searched = match self.searched {
            Some(searched) => searched,
            None => {
                let row = self.engine.get(rows::SEARCHED).await?;
                row.map_or(Ok(0), |row| rows::from_bytes(&row, "the number of an object of the log"))?
            }
        };
        let after = log_name(searched);
        let names = self.bucket.list("log", Some(after.trim_start_matches("log/"))).await?;
        let numbers = names.iter().filter_map(|name| number_of(name));
        let mut found = Vec::new();
        let mut done = replay_after;
        for number in numbers.take_while(|number| *number <= replay_after) {
            let object = Object::Log(number);
            if self.is_fence(number).await? || self.engine.get(&rows::live_key(object)).await?.is_some() {
                continue;
            }
            done = done.min(number - 1);
            found.push(Garbage::Data(object));
        }
        self.searched = Some(searched.max(done));
        self.fences = self.fences.split_off(&searched);
        Ok(found)
    }

    /// Whether an object of the log is a fence; also where that cannot be said.
    async fn is_fence(&mut self, number: u64) -> Result<bool> {
        if is_on("garbage-fence-collected") {
            return Ok(false);
        }
        if self.fences.contains(&number) {
            return Ok(true);
        }
        if self.log.is_own(number) || self.found.contains_key(&Garbage::Data(Object::Log(number))) {
            return Ok(false);
        }
        let header = match self.bucket.get_range(&log_name(number), 0..HEADER as u64).await {
            Ok(header) => Header::read(&header, number),
            // What is no object of a log is left alone.
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Io) => return Ok(true),
            Err(error) => return Err(error),
        };
        let is_fence = header.map_or(true, |header| header.kind == LogKind::Fence);
        if is_fence {
            self.fences.insert(number);
        }
        Ok(is_fence)
    }

    /// Removes what was garbage for long enough, in the log as it is durable, and was used by
    /// nobody when its row was read: nothing older was under way than `oldest`.
    async fn remove_due(&mut self, oldest: u64, during_merge: DuringMerge) -> Result<Removal> {
        let is_due = |found: &Found| {
            (found.passes >= self.timing.passes && self.log.is_durable(found.number)
                || is_on("garbage-not-durable"))
                && (oldest >= found.work || is_on("garbage-in-use"))
        };
        let mut due: BTreeMap<_, _> = self
            .found
            .iter()
            .filter(|(_, found)| is_due(found))
            .map(|(garbage, found)| (garbage.clone(), found.number))
            .collect();
        if due.is_empty() {
            return Ok(Removal::Removed(Vec::new()));
        }
        if self.engine.making.try_lock().is_err() {
            // What a snapshot needs is known when it has been made: the next pass comes again.
            return Ok(Removal::Removed(Vec::new()));
        }
        // Before anything goes: it is still this process that holds the volume.
        let has_tables = due.keys().any(|garbage| matches!(garbage, Garbage::Table(_)));
        let settled = match during_merge {
            _ if !has_tables => None,
            DuringMerge::Leave => self.engine.settled_records().await?,
            DuringMerge::Wait => Some(self.engine.records_after_merge().await?),
        };
        let records = if let Some(settled) = settled {
            self.check_writer(&settled)?;
            settled
        } else {
            due.retain(|garbage, _| !matches!(garbage, Garbage::Table(_)));
            if due.is_empty() {
                return Ok(Removal::Removed(Vec::new()));
            }
            self.records().await?
        };
        // After the snapshots: one that was deleted by then is not what holds objects for its readers.
        let readers = self.readers.look(&self.bucket, &records.snapshots).await?;
        if let Some(since) = readers.since {
            // It was found before the next object of the log was begun, and they have read that one.
            due.retain(|_, number| *number < since || is_on("garbage-of-a-follower"));
            if due.is_empty() {
                return Ok(Removal::LeftForReaders(readers.marks));
            }
        }
        let holders = Holders::read(&self.engine, &records).await?;
        let (mut names, mut batch) = (Vec::new(), Batch::default());
        for garbage in due.keys() {
            match garbage {
                Garbage::Data(object) => {
                    let died = holders.died(&self.engine, *object).await?;
                    if !holders.need(*object, died) {
                        self.repacker.repacked.forget(*object);
                        names.push(garbage.name());
                        batch.delete(rows::live_key(*object));
                        if died.is_some() {
                            batch.delete(rows::held_key(*object));
                        }
                    } else if died.is_none() {
                        batch.put(rows::held_key(*object), rows::to_bytes(&records.newest));
                    }
                }
                Garbage::Table(name) if records.has(name) => {}
                Garbage::Table(name) => names.push(name.clone()),
            }
        }
        self.bucket.delete_many(&names).await?;
        if let Some(searched) = self.searched.filter(|_| !batch.is_empty()) {
            batch.put(rows::SEARCHED.to_vec(), rows::to_bytes(&searched));
        }
        self.tree.write(batch).await?;
        self.found.retain(|garbage, _| !due.contains_key(garbage));
        Ok(Removal::Removed(names))
    }
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
pub(crate) mod tests;
