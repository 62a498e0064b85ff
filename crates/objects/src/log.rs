//! The commit log: what is durable is decided here.
//!
//! Rows and small data are gathered in the **open** object. A flush seals it and sends it with one
//! conditional PUT; the next object is open at once, so that several are on their way. An object is
//! **durable** when it and all objects before it are in the bucket: what a caller waits for is
//! acknowledged in the log's order, and a crash leaves a prefix.
//!
//! # Why a fenced holder never acknowledges
//! * Each object is made with if-none-match. Of two holders one makes number *n*; the other sees
//!   that the nonce in it is not its own, and fails for good.
//! * A holder sends number *n* only when *n* - window is durable. A new holder's fence at number
//!   *t* + 1, the first that is not there, thus leaves numbers that the old holder can still make
//!   only below *t* + 1 + window. The fence says that the log goes on at that number; what lies
//!   between is void, and none of it was acknowledged, for *t* + 1 was not the old holder's.
//! * An answer that was lost is found out by reading the object back.
//!
//! # What is missing
//! An object names the last one that was durable when it was sealed. So a gap that a crash left is
//! told from an object that was acknowledged and is gone: that one makes the volume fail to open,
//! with its name, and no fence takes its place.
//!
//! # A journal
//! With one ([`crate::journal`]) a caller may wait for a disk of this host instead: `journaled`.
//! What is said above is said of the bucket all the same.
//!
//! Lock order: `state`, then the journal's or `listeners`; none is held across a request.

mod init;
pub(crate) mod journaled;
pub(crate) mod object;
mod places;
mod replay;
mod uploads;
mod writer;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use object_store::PutPayload;
use parking_lot::Mutex;
use slatedb::RowEntry;
use slatedb::wal::{WalError, WalEvent, WalStatus, WalStatusListener};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::blocks::{BLOCK_LEN, Blocks};
use crate::bucket::{Bucket, Condition};
use crate::codec::Codec;
use crate::engine::BATCH_BYTES_MAX;
use crate::journal::Journal;
use crate::journal::targets::Targets;
use crate::object_names::log_name;
use crate::parents::Parents;
use crate::rows::Object;
use crate::turns::Turns;
pub(crate) use init::LogInit;
use object::{HEADER, Header, LogKind};
pub(crate) use replay::{Read, Replay, Rows};
use uploads::Uploads;

/// Bytes of an open object from which on it is sealed without a flush.
const SEAL_BYTES: usize = 8 << 20;
/// What an object may hold in the end: less than [`SEAL_BYTES`], the encoded data of one extent
/// that goes into the log, one batch, and as much again for their encoding.
const _: () = assert!((SEAL_BYTES + BATCH_BYTES_MAX + SEAL_BYTES) as u64 <= object::OBJECT_BYTES_MAX);
/// Bytes that are sealed and not durable from which on callers wait.
const QUEUED_BYTES_MAX: usize = 64 << 20;
/// The part of the time of a commit that another waits for company.
const PAUSE_PART: u32 = 6;
/// Also where the store is very slow.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// A shorter pause is none: timers are coarser.
const PAUSE_MIN: Duration = Duration::from_millis(1);

/// The log of a volume.
#[derive(Debug)]
pub(crate) struct CommitLog {
    bucket: Bucket,
    codec: Codec,
    /// How many numbers beyond the durable ones may be on their way.
    window: u64,
    state: Mutex<State>,
    /// Something became durable, or the log failed.
    changed: Notify,
    /// Something comes into the open object, which was empty.
    opened: Notify,
    journal: OnceLock<(Arc<Journal>, Targets)>,
    /// The blocks in memory, which get small objects that were sent.
    blocks: OnceLock<Arc<Blocks>>,
    /// A caller waits for the journal.
    journal_wanted: Notify,
    /// What writes the journal.
    writing_journal: Mutex<Option<tokio::task::JoinHandle<()>>>,
    /// Segments take turns with each other, so that its objects are fast.
    pub(crate) turns: Arc<Turns>,
    listeners: Mutex<Listeners>,
}

#[derive(Default)]
struct Listeners(Vec<WalStatusListener>);

impl std::fmt::Debug for Listeners {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Listeners").field(&self.0.len()).finish()
    }
}

#[derive(Debug, Default)]
struct State {
    epoch: u64,
    nonce: [u8; 16],
    /// The number of this holder's first object.
    first: u64,
    /// The number of the open object.
    open: u64,
    data: BytesMut,
    rows: BytesMut,
    last_seq: Option<u64>,
    /// Sealed, and not durable.
    sealed: BTreeMap<u64, Sealed>,
    sealed_bytes: usize,
    durable: u64,
    durable_seq: Option<u64>,
    failed: Option<WalError>,
    journaled: journaled::Progress,
    uploads: Uploads,
}

#[derive(Debug)]
struct Sealed {
    content: Content,
    last_seq: Option<u64>,
    is_sent: bool,
    is_there: bool,
    /// Its rows may name the segments with lower numbers of [`Uploads`].
    uploads: u64,
}

/// What an object is made of: as it is sealed, nothing of it changes any more.
#[derive(Debug, Clone)]
struct Content {
    header: Header,
    data: Bytes,
    /// Not encoded yet: that is done without the lock.
    rows: Bytes,
}

impl Content {
    fn len(&self) -> usize {
        HEADER + self.data.len() + self.rows.len()
    }
}

impl State {
    fn is_open_empty(&self) -> bool {
        self.data.is_empty() && self.rows.is_empty()
    }

    fn status(&self) -> WalStatus {
        WalStatus {
            closed_reason: self.failed.clone(),
            estimated_bytes: self.rows.len() + self.sealed_bytes,
            last_flushed_wal_id: self.durable,
            last_flushed_seq: self.durable_seq,
            buffered_wal_entries_count: usize::from(!self.rows.is_empty()) + self.sealed.len(),
        }
    }

    /// Takes numbers off `sealed` that are there together with all before them.
    fn advance(&mut self) -> bool {
        let before = self.durable;
        let is_behind = |number: u64, sealed: &BTreeMap<u64, Sealed>| {
            is_on("log-acknowledged-out-of-order") && sealed.range(number..).any(|(_, s)| s.is_there)
        };
        while let Some((&number, first)) = self.sealed.first_key_value() {
            if !first.is_there && !is_behind(number, &self.sealed) {
                break;
            }
            let Some(done) = self.sealed.remove(&number) else { break };
            self.durable = number;
            self.durable_seq = done.last_seq.or(self.durable_seq);
            self.sealed_bytes -= done.content.len();
        }
        self.durable > before
    }
}

impl CommitLog {
    pub(crate) fn new(bucket: Bucket, codec: Codec, window: u64) -> Arc<Self> {
        Arc::new(Self {
            bucket,
            codec,
            window,
            state: Mutex::new(State::default()),
            changed: Notify::new(),
            opened: Notify::new(),
            journal: OnceLock::new(),
            blocks: OnceLock::new(),
            journal_wanted: Notify::new(),
            writing_journal: Mutex::default(),
            turns: Turns::new(),
            listeners: Mutex::new(Listeners::default()),
        })
    }

    /// From now on keeps small objects with data in these blocks: a database reads and changes again
    /// what it has just synced, and would fetch it for that.
    pub(crate) fn keep_in(&self, blocks: &Arc<Blocks>) {
        self.blocks.get_or_init(|| Arc::clone(blocks));
    }

    fn keep(&self, number: u64, [header, data, rows]: [Bytes; 3]) {
        let len = header.len() + data.len() + rows.len();
        if let Some(blocks) = self.blocks.get()
            && !data.is_empty()
            && len <= BLOCK_LEN
        {
            // In memory of its own: what the parts lie in is larger.
            blocks.keep((Object::Log(number), 0), [header, data, rows].concat().into());
        }
    }

    /// Reads what is behind the object `after`.
    fn replay(&self, after: u64) -> Replay {
        Replay::new(self.bucket.clone(), self.codec.clone(), self.window, after)
    }

    /// Puts data into the open object, and says where: the object's number and the offset in it.
    ///
    /// # Errors
    /// The log has failed.
    pub(crate) async fn put(self: &Arc<Self>, encoded: &[Bytes]) -> Result<(u64, u32)> {
        self.wait_for_room().await?;
        let mut state = self.state.lock();
        let at = HEADER + state.data.len();
        self.open_gets_more(&state);
        encoded.iter().for_each(|part| state.data.extend_from_slice(part));
        let number = state.open;
        self.seal_if_large(&mut state);
        Ok((number, u32::try_from(at).expect("an object is small")))
    }

    /// A part of an object that may not be durable yet; `None`: it is, and has to be read.
    pub(crate) fn get(&self, number: u64, range: Range<u64>) -> Option<Bytes> {
        let state = self.state.lock();
        let range = usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?;
        if number == state.open {
            let range = range.start.checked_sub(HEADER)?..range.end.checked_sub(HEADER)?;
            return Some(Bytes::copy_from_slice(state.data.get(range)?));
        }
        let data = &state.sealed.get(&number)?.content.data;
        let range = range.start.checked_sub(HEADER)?..range.end.checked_sub(HEADER)?;
        (range.end <= data.len()).then(|| data.slice(range))
    }

    /// The volumes that this one was cloned from.
    pub(crate) fn parents(&self) -> &Parents {
        self.bucket.parents()
    }

    /// The epoch of its holder.
    pub(crate) fn epoch(&self) -> u64 {
        self.state.lock().epoch
    }

    /// The number of the object that what was put and appended last is in.
    pub(crate) fn last_number(&self) -> u64 {
        let state = self.state.lock();
        if state.is_open_empty() { state.open - 1 } else { state.open }
    }

    /// Whether the object `number` and all before it are in the bucket.
    pub(crate) fn is_durable(&self, number: u64) -> bool {
        self.state.lock().durable >= number
    }

    /// Whether the object `number` is one that this holder has sealed.
    pub(crate) fn is_own(&self, number: u64) -> bool {
        let state = self.state.lock();
        (state.first..state.open).contains(&number)
    }

    /// Whether something was put or appended that no flush has sealed.
    pub(crate) fn has_open(&self) -> bool {
        !self.state.lock().is_open_empty()
    }

    /// Waits until there is such a thing.
    pub(crate) async fn wait_until_open(&self) {
        loop {
            let opened = self.opened.notified();
            if self.has_open() {
                return;
            }
            opened.await;
        }
    }

    /// Waits until a flush is worth its request: fewer than `max` objects are on their way, or
    /// there is nothing to send.
    pub(crate) async fn wait_for_turn(&self, max: usize) {
        let has_come =
            |state: &State| state.failed.is_some() || state.is_open_empty() || state.sealed.len() < max;
        self.wait_until(|state| has_come(state).then_some(())).await;
    }

    /// How long a commit waits for others that come beside it: a part of what it takes, and only if
    /// others are on their way, whose callers will come again.
    pub(crate) fn pause_before_commit(&self) -> Option<Duration> {
        let state = self.state.lock();
        if state.sealed.is_empty() || state.is_open_empty() || state.failed.is_some() {
            return None;
        }
        drop(state);
        self.turns
            .fastest()
            .map(|took| (took / PAUSE_PART).min(PAUSE_MAX))
            .filter(|pause| *pause >= PAUSE_MIN)
    }

    /// Waits until `look` finds something; it looks again whenever something has changed.
    async fn wait_until<T>(&self, look: impl Fn(&mut State) -> Option<T>) -> T {
        loop {
            // Before the look, so that no change is missed after it.
            let changed = self.changed.notified();
            let found = look(&mut self.state.lock());
            if let Some(found) = found {
                return found;
            }
            changed.await;
        }
    }

    /// Why the log takes nothing any more.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state.lock().failed.as_ref().map(plain)
    }

    /// Gives the log up: those who wait get an error.
    pub(crate) fn fail(&self, error: WalError) {
        let status = {
            let mut state = self.state.lock();
            if state.failed.is_some() {
                return;
            }
            state.failed = Some(error);
            state.status()
        };
        self.changed.notify_waiters();
        self.journal_wanted.notify_one();
        self.tell(&WalEvent::WalClosed(status));
    }

    async fn wait_for_room(&self) -> Result<()> {
        self.wait_until(|state| match &state.failed {
            Some(error) => Some(Err(plain(error))),
            None => (state.sealed_bytes < QUEUED_BYTES_MAX).then_some(Ok(())),
        })
        .await
    }

    /// Appends rows, which have one sequence number.
    async fn append(self: &Arc<Self>, rows: &[RowEntry]) -> Result<(), WalError> {
        // Its only error is the log's own.
        let _failed_below = self.wait_for_room().await;
        let mut state = self.state.lock();
        if let Some(error) = &state.failed {
            return Err(error.clone());
        }
        self.open_gets_more(&state);
        object::put_rows(&mut state.rows, rows);
        state.last_seq = rows.last().map(|row| row.seq).or(state.last_seq);
        self.seal_if_large(&mut state);
        // Also what nobody waits for, such as the removal of what has no name any more.
        self.journal_soon(&mut state, false);
        Ok(())
    }

    /// Wakes a caller that waits for something in the open object; it looks once the lock is released.
    fn open_gets_more(&self, state: &State) {
        if state.is_open_empty() {
            self.opened.notify_waiters();
        }
    }

    fn seal_if_large(self: &Arc<Self>, state: &mut State) {
        if state.data.len() + state.rows.len() >= SEAL_BYTES {
            self.seal(state);
        }
    }

    /// Seals the open object, if there is something in it, and returns the number of the last one.
    fn seal(self: &Arc<Self>, state: &mut State) -> u64 {
        if state.is_open_empty() {
            return state.open - 1;
        }
        let number = state.open;
        let header = Header::new(LogKind::Commit, state.epoch, state.nonce, number, state.durable);
        let (data, rows) = (state.data.split().freeze(), state.rows.split().freeze());
        let content = Content { header, data, rows };
        state.sealed_bytes += content.len();
        let last_seq = state.last_seq.take();
        let sealed =
            Sealed { content, last_seq, is_sent: false, is_there: false, uploads: state.uploads.next };
        state.sealed.insert(number, sealed);
        state.open += 1;
        self.journal_soon(state, true);
        self.send(state);
        number
    }

    /// Sends what the window lets go.
    fn send(self: &Arc<Self>, state: &mut State) {
        let last = if is_on("log-window-not-kept") { u64::MAX } else { state.sendable(self.window) };
        let uploaded = state.uploads.first();
        for (&number, sealed) in state.sealed.iter_mut().take_while(|(number, _)| **number <= last) {
            if sealed.uploads > uploaded {
                break;
            }
            if !sealed.is_sent {
                sealed.is_sent = true;
                let (log, content) = (Arc::clone(self), sealed.content.clone());
                tokio::spawn(async move { log.make(number, content).await });
            }
        }
    }

    /// Makes an object of the log.
    async fn make(self: Arc<Self>, number: u64, content: Content) {
        match self.try_make(number, content).await {
            Ok(true) => self.made(number),
            Ok(false) => self.fail(WalError::Fenced),
            Err(error) => self.fail(WalError::Unavailable(Arc::new(error))),
        }
    }

    /// Whether it is there, and this holder's.
    async fn try_make(&self, number: u64, content: Content) -> Result<bool> {
        let name = log_name(number);
        let Content { header, data, rows } = content;
        let rows = self.codec.seal(&header.context(), &rows);
        let header = header.write(data.len(), rows.len());
        let parts = [header.clone(), data, rows];
        let object = PutPayload::from_iter(parts.iter().filter(|part| !part.is_empty()).cloned());
        let (len, begun) = (object.content_length(), Instant::now());
        let made = self.bucket.create(&name, object).await?;
        // Where an fsync waits for a journal, nobody waits for it.
        if self.journal.get().is_none_or(|(_, targets)| !targets.fsync) {
            self.turns.committed(len, begun.elapsed());
        }
        if matches!(made, Condition::Met(_)) {
            self.keep(number, parts);
            return Ok(true);
        }
        if is_on("log-nonce-not-compared") || is_on("log-nonce-not-read-back") {
            return Ok(is_on("log-nonce-not-compared"));
        }
        // An attempt whose answer was lost may have made it.
        let there = self.bucket.get_range(&name, 0..HEADER as u64).await?;
        Ok(there == header)
    }

    fn made(self: &Arc<Self>, number: u64) {
        let status = {
            let mut state = self.state.lock();
            if let Some(sealed) = state.sealed.get_mut(&number) {
                sealed.is_there = true;
            }
            if !state.advance() || state.failed.is_some() {
                return;
            }
            self.release(&mut state);
            self.send_journaled(&mut state);
            self.send(&mut state);
            state.status()
        };
        // The engine's waiters before our own, which read from the engine.
        self.tell(&WalEvent::WalFlushed(status));
        self.changed.notify_waiters();
    }

    fn tell(&self, event: &WalEvent) {
        let listeners = self.listeners.lock();
        listeners.0.iter().for_each(|listener| listener(event.clone()));
    }

    /// Waits until number `number` is durable.
    async fn durable(&self, number: u64) -> Result<(), WalError> {
        self.wait_until(|state| match &state.failed {
            _ if state.durable >= number => Some(Ok(())),
            failed => failed.clone().map(Err),
        })
        .await
    }
}

/// A failure of the log in plain words.
pub(crate) fn plain(error: &WalError) -> Error {
    let detail = match error {
        WalError::Fenced => "another host has taken the volume over".to_owned(),
        WalError::Closed => "the volume was closed".to_owned(),
        WalError::Unavailable(error) => match error.downcast_ref::<Error>() {
            Some(error) => return error.clone(),
            None => error.to_string(),
        },
        other => other.to_string(),
    };
    Error::with(ErrorKind::Io, "commit", detail)
}
