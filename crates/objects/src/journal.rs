//! The journal: what an fsync with `fsync_to=host` is acknowledged by, on a disk of this host.
//!
//! It has a copy of what is on its way to the bucket, and nothing else: the log's objects as they
//! grow, and the segments that they refer to. What is in it is decided by [`crate::log`]; here it
//! is records of a kind, in files one behind the other.
//!
//! ```text
//!  setup     the journal of a mount
//!   |
//!  upload    what a process that was killed has left goes to the bucket, before the log is fenced
//!   |
//!  journal   appends, with one fdatasync for all that wait; gives space back in order
//!   |   \
//!   |    contents   reads the files of an earlier process: a torn tail is cut, damage is an error
//!   |   /
//!  format    a file's and a record's header
//!   |
//!  disk      where the files are; `dir`: a directory of this host that one process has locked
//! ```
//!
//! # Why nothing is lost that was acknowledged here
//! - An fsync returns when fdatasync has ended for the record that has its change, and for all
//!   records before it. They are in the order of the log: what a crash leaves is a prefix of the
//!   changes.
//! - A record stays until the bucket has what it is a copy of, with everything before it. Files go
//!   from the front, so that what is left may begin behind what its records say to be durable: its
//!   reader then asks the bucket for the object in between.
//! - An object of the log of which the journal has a part is the last one that is sent, until the
//!   journal has all of it or it is durable. So an object that is made from the journal after a
//!   crash is never followed by one that was sealed after changes which it does not have.
//! - The lease names this journal from before the first record until everything is in the bucket.
//!   No other host, and no mount without this journal, takes the volume unless its user gives the
//!   journal up by name.
//! - The next mount with this journal makes its objects **before** it fences the log. Each is made
//!   with if-none-match: one that is there is this journal's, by its nonce, or the journal has lost
//!   against a holder that was told to give it up, which is said, and the files are kept.
//!
//! What is fenced elsewhere is as it is without a journal: the log's conditional PUT decides. A
//! holder that was taken over with `abandon` acknowledges by its journal until it learns of that:
//! what it acknowledges then is what its user has given up.
//!
//! A full or broken disk delays an fsync and fails none: it waits for the bucket then.
//!
//! Lock order: the tail, then `state`, which is not held across a call of the disk.

pub(crate) mod contents;
pub(crate) mod dir;
pub(crate) mod disk;
pub(crate) mod format;
#[cfg(test)]
pub(crate) mod memory_disk;
pub(crate) mod setup;
pub(crate) mod targets;
#[cfg(test)]
mod tests;
pub(crate) mod upload;

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;
use store::{Error, ErrorKind, JournalStats, Result};
use sync::mutant::is_on;
use tokio::sync::Mutex as AsyncMutex;

use disk::Disk;
pub(crate) use format::Identity;
use format::{FILE_HEADER, FileHeader, RECORD_HEADER, RecordHeader, padded};

/// The smallest bound of a journal: it has room for a segment beside what is on its way.
pub(crate) const SIZE_MIN: u64 = 16 << 20;
/// Its bound, if none is given.
pub(crate) const SIZE: u64 = 1 << 30;
/// The length of a file, unless the journal is small.
const FILE_BYTES: u64 = 32 << 20;
/// What is copied to be written at once.
const COPIED_MAX: usize = 256 << 10;

/// What is to be kept.
#[derive(Debug, Clone)]
pub(crate) struct Record {
    /// What it is, and more about it: the journal only repeats them.
    pub(crate) kind: u16,
    pub(crate) about: [u8; 32],
    pub(crate) payload: Vec<Bytes>,
}

/// Where a record's payload is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    file: u64,
    at: u64,
    len: u32,
    sum: u32,
}

/// A journal that one process writes.
#[derive(Debug)]
pub(crate) struct Journal {
    disk: Arc<dyn Disk>,
    header: FileHeader,
    size_max: u64,
    tail: AsyncMutex<Tail>,
    state: Mutex<State>,
}

/// The end of the last file.
#[derive(Debug, Default)]
struct Tail {
    /// The last file; 0: there is none.
    file: u64,
    at: u64,
    /// Everything before this is on the disk.
    synced: u64,
    /// A write has begun and not ended.
    is_writing: bool,
}

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<u64, Live>,
    passed_by: u64,
    failed: Option<Error>,
}

/// A file, and what the bucket has not of it.
#[derive(Debug, Default)]
struct Live {
    /// With the room that it was given.
    len: u64,
    records: u64,
    bytes: u64,
}

impl Journal {
    /// A journal without records, of a disk without files. `context` is repeated to its reader.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        identity: Identity,
        context: [u8; 32],
        size_max: u64,
    ) -> Arc<Self> {
        let mut salt = [0; 16];
        crate::crypto::random(&mut salt);
        let header = FileHeader { identity, salt, context, number: 0, previous: 0 };
        let (tail, state) = (AsyncMutex::default(), Mutex::default());
        Arc::new(Self { disk, header, size_max, tail, state })
    }

    /// Appends records; with `is_synced` they and all before them are on the disk when this
    /// returns.
    ///
    /// # Errors
    /// `NoSpace`: there is no room for them now. Others: the journal takes nothing any more.
    pub(crate) async fn append(&self, records: &[Record], is_synced: bool) -> Result<Vec<Place>> {
        let mut tail = self.tail.lock().await;
        if let Some(error) = &self.state.lock().failed {
            return Err(error.clone());
        }
        if std::mem::replace(&mut tail.is_writing, true) {
            // Its caller went away, and the disk may still write there.
            return Err(self.fail(Error::with(ErrorKind::Io, "journal", "a write was given up")));
        }
        let appended = self.append_to(&mut tail, records, is_synced).await;
        tail.is_writing = false;
        match appended {
            Err(error) if error.kind() != ErrorKind::NoSpace => Err(self.fail(error)),
            appended => appended,
        }
    }

    async fn append_to(&self, tail: &mut Tail, records: &[Record], is_synced: bool) -> Result<Vec<Place>> {
        let len: u64 = records.iter().map(|record| (RECORD_HEADER + padded(record.len())) as u64).sum();
        if tail.file == 0 || tail.at + len > self.file_max() && tail.at > FILE_HEADER as u64 {
            let room = self.file_max().max(FILE_HEADER as u64 + len);
            if self.stats().disk_bytes + room > self.size_max {
                return Err(full());
            }
            self.begin_file(tail, room).await?;
        }
        let header = FileHeader { number: tail.file, ..self.header };
        let (mut parts, mut copied, mut places) = (Vec::new(), BytesMut::new(), Vec::new());
        let mut at = tail.at;
        for record in records {
            let (len, sum) = (record.len(), format::sum_of(&record.payload));
            let payload = u32::try_from(len).map_err(|_| full())?;
            let (kind, about, synced) = (record.kind, record.about, tail.synced);
            copied.put_slice(&RecordHeader { kind, about, synced, len: payload, sum }.write(&header));
            for part in &record.payload {
                if copied.len() + part.len() <= COPIED_MAX {
                    copied.put_slice(part);
                } else {
                    parts.extend([copied.split().freeze(), part.clone()]);
                }
            }
            copied.put_bytes(0, padded(len) - len);
            places.push(Place { file: tail.file, at: at + RECORD_HEADER as u64, len: payload, sum });
            at += (RECORD_HEADER + padded(len)) as u64;
        }
        parts.push(copied.freeze());
        let is_synced = is_synced && !is_on("journal-acknowledged-before-fdatasync");
        self.write(tail, parts, is_synced).await?;
        tail.at = at;
        if is_synced {
            tail.synced = at;
        }
        let mut state = self.state.lock();
        let file = state.files.entry(tail.file).or_default();
        file.len = file.len.max(at);
        file.records += places.len() as u64;
        file.bytes += places.iter().map(|place| u64::from(place.len)).sum::<u64>();
        Ok(places)
    }

    /// Ends the last file, and begins the next.
    async fn begin_file(&self, tail: &mut Tail, room: u64) -> Result<()> {
        if tail.file > 0 && tail.synced < tail.at {
            // A torn tail is that of the last file.
            self.write(tail, Vec::new(), true).await?;
            tail.synced = tail.at;
        }
        let number = tail.file + 1;
        let header = FileHeader { number, previous: tail.at, ..self.header }.write();
        self.disk.create(number, header, room).await?;
        let at = FILE_HEADER as u64;
        (tail.file, tail.at, tail.synced) = (number, at, at);
        self.state.lock().files.insert(number, Live { len: room, ..Live::default() });
        Ok(())
    }

    /// A file that is as long is not written any more.
    fn file_max(&self) -> u64 {
        FILE_BYTES.min(self.size_max / 8)
    }

    /// Writes at the tail. A disk that is full here leaves a part of it, and is one that is broken.
    async fn write(&self, tail: &Tail, parts: Vec<Bytes>, is_synced: bool) -> Result<()> {
        self.disk.write(tail.file, tail.at, parts, is_synced).await.map_err(|error| match error.kind() {
            ErrorKind::NoSpace => Error::with(ErrorKind::Io, "journal", error.to_string()),
            _ => error,
        })
    }

    fn fail(&self, error: Error) -> Error {
        let mut state = self.state.lock();
        if state.failed.is_none() {
            tracing::error!(%error, "the journal takes nothing any more: each fsync waits for the bucket");
        }
        state.failed.get_or_insert(error).clone()
    }

    /// Whether it takes nothing any more.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().failed.is_some()
    }

    /// An fsync waits for the bucket, because nothing could be appended.
    pub(crate) fn pass_by(&self) {
        let mut state = self.state.lock();
        if state.passed_by == 0 && state.failed.is_none() {
            let size = self.size_max;
            tracing::warn!(
                size,
                "the journal is full: until the bucket has some of it, an fsync waits for the bucket"
            );
        }
        state.passed_by += 1;
    }

    /// Reads a record's payload.
    pub(crate) async fn read(&self, place: &Place) -> Result<Bytes> {
        read(&*self.disk, place).await
    }

    /// Reads a part of a record's payload. What uses it has checksums of its own.
    pub(crate) async fn read_part(&self, place: &Place, range: std::ops::Range<u64>) -> Result<Bytes> {
        let len = range.end - range.start;
        let part = self.disk.read(place.file, place.at + range.start, len).await?;
        if part.len() as u64 == len { Ok(part) } else { Err(damaged(place, "it is too short")) }
    }

    /// The bucket has what these records are a copy of.
    pub(crate) fn release(&self, places: &[Place]) {
        let mut state = self.state.lock();
        for place in places {
            if let Some(file) = state.files.get_mut(&place.file) {
                file.records -= 1;
                file.bytes -= u64::from(place.len);
            }
        }
    }

    /// Removes files of which the bucket has everything: those at the front, but for the last.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn trim(&self) -> Result<()> {
        let tail = self.tail.lock().await;
        self.trim_until(tail.file).await
    }

    async fn trim_until(&self, end: u64) -> Result<()> {
        loop {
            let first = self.state.lock().files.iter().next().map(|(number, file)| (*number, file.records));
            let Some((number, 0)) = first.filter(|(number, _)| *number < end) else { return Ok(()) };
            self.disk.remove(number).await?;
            self.state.lock().files.remove(&number);
        }
    }

    /// Takes nothing any more. Whether the bucket has everything, and the files are gone.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn end(&self) -> Result<bool> {
        let tail = self.tail.lock().await;
        let ended = Error::with(ErrorKind::Io, "journal", "the volume is closed");
        self.state.lock().failed.get_or_insert(ended);
        self.trim_until(tail.file + 1).await?;
        Ok(self.state.lock().files.is_empty())
    }

    pub(crate) fn stats(&self) -> JournalStats {
        let state = self.state.lock();
        JournalStats {
            bytes: state.files.values().map(|file| file.bytes).sum(),
            disk_bytes: state.files.values().map(|file| file.len).sum(),
            disk_bytes_max: self.size_max,
            passed_by: state.passed_by,
            failed: state.failed.as_ref().map(ToString::to_string),
        }
    }
}

impl Record {
    fn len(&self) -> usize {
        self.payload.iter().map(Bytes::len).sum()
    }
}

/// Reads a record's payload, and checks it.
pub(crate) async fn read(disk: &dyn Disk, place: &Place) -> Result<Bytes> {
    let payload = disk.read(place.file, place.at, place.len.into()).await?;
    if payload.len() != place.len as usize || format::sum_of(std::slice::from_ref(&payload)) != place.sum {
        return Err(damaged(place, "its checksum is wrong"));
    }
    Ok(payload)
}

fn damaged(place: &Place, why: &str) -> Error {
    let detail = format!("the journal's file {}, byte {}: a record is damaged: {why}", place.file, place.at);
    Error::with(ErrorKind::Io, "journal", detail)
}

fn full() -> Error {
    Error::with(ErrorKind::NoSpace, "journal", "the journal is full")
}
