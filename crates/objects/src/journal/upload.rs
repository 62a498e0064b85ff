//! What a process that was killed has left in the journal goes to the bucket: segments first, then
//! the log's objects in their order. This comes before the log is read and fenced.
//!
//! Each is made with if-none-match, and one that is there by this journal's holder is done: this
//! may be repeated after a crash at any step. Where another holder has fenced the log, the numbers
//! from its fence on are lost, and those before it are in the bucket.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use object_store::PutPayload;
use store::{Error, ErrorKind, Result};

use super::disk::Disk;
use super::{Identity, Place, contents};
use crate::bucket::{Bucket, Condition};
use crate::codec::Codec;
use crate::engine::LastManifest;
use crate::log::journaled::{About, PART, PAYLOAD_MAX, REST, SEGMENT, holder_of, segment_of};
use crate::log::object::{HEADER, Header, LogKind};
use crate::object_names::{log_name, number_of, object_name};
use crate::rows::Object;

/// What is left.
#[derive(Debug, Default)]
struct Left {
    /// The last object of the log that was durable for sure.
    durable: u64,
    /// The records of those behind it.
    objects: BTreeMap<u64, Vec<(About, Place, bool)>>,
    segments: Vec<(Object, Place)>,
}

/// Brings what is left into the bucket, and removes the files.
///
/// # Errors
/// `Stale`: another holder has fenced the log, and something is lost: the words say what, and where
/// the files are kept. The bucket's and the disk's, and damage, after which the files are as they
/// were.
pub(crate) async fn upload(
    disk: &Arc<dyn Disk>,
    identity: Identity,
    (bucket, codec): (&Bucket, &Codec),
    last: Option<LastManifest>,
) -> Result<()> {
    let mut left = Left::default();
    let mut add = |kind, about: &[u8; 32], place| left.add(kind, about, place);
    if let Some(context) = contents::read(&**disk, identity, &mut add).await? {
        let (epoch, nonce) = holder_of(&context);
        left.check()?;
        let upload = Upload { disk: &**disk, bucket, codec, epoch, nonce };
        if let Some(lost) = upload.run(&left, last).await? {
            let aside = disk.set_aside("lost").await?;
            return Err(left.lost(lost, &aside));
        }
        let (objects, segments) = (left.objects.len(), left.segments.len());
        if objects + segments > 0 {
            tracing::info!(objects, segments, "what the journal had is in the bucket");
        }
    }
    // From behind: what a crash leaves is the beginning of a journal, which can be read.
    for file in disk.files().await?.into_iter().rev() {
        disk.remove(file).await?;
    }
    Ok(())
}

impl Left {
    fn add(&mut self, kind: u16, about: &[u8; 32], place: Place) -> Result<()> {
        if u64::from(place.len) > PAYLOAD_MAX {
            return Err(damaged("a record is longer than any that is written"));
        }
        match kind {
            SEGMENT => {
                self.segments.push((segment_of(about), place));
            }
            PART | REST => {
                let about = About::read(about);
                if about.durable > self.durable {
                    self.durable = about.durable;
                    self.objects = self.objects.split_off(&self.durable.saturating_add(1));
                }
                if about.number > self.durable {
                    self.objects.entry(about.number).or_default().push((about, place, kind == REST));
                }
            }
            _ => {
                let why = "a newer version of the program wrote the journal: use that one";
                return Err(Error::with(ErrorKind::Unsupported, "journal", why));
            }
        }
        Ok(())
    }

    /// Whether the objects are a part of a log: each behind the one before it, all but the last
    /// whole.
    fn check(&self) -> Result<()> {
        let last = self.objects.last_key_value().map(|(number, _)| *number);
        let mut before = None;
        for (&number, records) in &self.objects {
            if before.is_some_and(|before| number - before != 1) {
                return Err(damaged("an object of the log is missing in it"));
            }
            before = Some(number);
            let is_whole = records.last().is_some_and(|(_, _, is_rest)| *is_rest);
            if !is_whole && Some(number) != last {
                return Err(damaged("the end of an object of the log is missing in it"));
            }
        }
        Ok(())
    }

    /// The object that has to be in the bucket, because a file with it was removed: the one before
    /// the first, or the first one, if its beginning is gone. None: nothing was removed that
    /// the records do not say to be durable.
    fn removed(&self) -> Option<u64> {
        let (&first, records) = self.objects.first_key_value()?;
        let is_cut = records.first().is_some_and(|(about, ..)| (about.data_from, about.rows_from) != (0, 0));
        let before = first - 1;
        if is_cut { Some(first) } else { (before > self.durable).then_some(before) }
    }

    /// The error about what is lost: the objects from the number `from` on.
    fn lost(&self, from: u64, aside: &str) -> Error {
        let lost = self.objects.range(from..);
        let records: Vec<_> = lost.clone().flat_map(|(_, records)| records).collect();
        let bytes: u64 = records.iter().map(|(_, place, _)| u64::from(place.len)).sum();
        let data: u64 = self.segments.iter().map(|(_, place)| u64::from(place.len)).sum();
        let detail = format!(
            "another host has taken the volume over, with this host's journal given up: {} commits of {} bytes (objects \
             of the log from {from} on), which were acknowledged here and are not in the bucket, are lost, with up to \
             {data} bytes of data that they name; the journal is kept as {aside}; mount again to go on without them",
            records.len(),
            bytes
        );
        Error::with(ErrorKind::Stale, "journal", detail)
    }
}

struct Upload<'a> {
    disk: &'a dyn Disk,
    bucket: &'a Bucket,
    codec: &'a Codec,
    /// The holder's whose journal it is.
    epoch: u64,
    nonce: [u8; 16],
}

impl Upload<'_> {
    /// Returns the first object of the log that is lost, if one is.
    async fn run(&self, left: &Left, last: Option<LastManifest>) -> Result<Option<u64>> {
        let Some((&first, _)) = left.objects.first_key_value() else { return Ok(None) };
        let is_last = last.is_none_or(|last| last.epoch <= self.epoch);
        // Rows up to here are in tables, and the objects may have been removed since.
        let mut done = last.map_or(0, |last| last.replay_after);
        if !is_last {
            let fence = self.fence(first).await?;
            for &number in left.objects.keys() {
                // Tables may have the later holder's rows, and its fence may be removed: what is not
                // there is taken to be lost.
                let is_behind = fence.is_some_and(|fence| fence <= number);
                if is_behind || number <= done && !self.is_there(number).await? {
                    return Ok(Some(number));
                }
            }
            if fence.is_some() {
                // What is before it was there when it was made.
                return Ok(None);
            }
        }
        if let Some(removed) = left.removed().filter(|number| *number > done) {
            if !self.is_there(removed).await? {
                return Err(damaged("an object of the log is missing in it, and in the bucket"));
            }
            done = removed;
        }
        for (segment, place) in &left.segments {
            self.make_segment(*segment, place).await?;
        }
        for (&number, records) in left.objects.range(done.saturating_add(1)..) {
            if !self.make(number, records).await? {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    /// The first fence of a later holder, from the number `first` on.
    async fn fence(&self, first: u64) -> Result<Option<u64>> {
        let after = log_name(first.saturating_sub(1));
        for name in self.bucket.list("log", Some(after.trim_start_matches("log/"))).await? {
            let Some(number) = number_of(&name) else { continue };
            let header = self.bucket.get_range(&log_name(number), 0..HEADER as u64).await?;
            if Header::read(&header, number)?.epoch > self.epoch {
                return Ok(Some(number));
            }
        }
        Ok(None)
    }

    async fn make_segment(&self, segment: Object, place: &Place) -> Result<()> {
        let bytes = super::read(self.disk, place).await?;
        // No other holder has its epoch: one that is there is this journal's.
        let _made_or_there = self.bucket.create(&object_name(segment), PutPayload::from_bytes(bytes)).await?;
        Ok(())
    }

    /// Makes an object of the log; whether it is there, and this journal's.
    async fn make(&self, number: u64, records: &[(About, Place, bool)]) -> Result<bool> {
        let (mut data, mut rows) = (BytesMut::new(), BytesMut::new());
        for (about, place, _) in records {
            if (about.data_from as usize, about.rows_from as usize) != (data.len(), rows.len()) {
                return Err(damaged("a part of an object of the log is missing in it"));
            }
            let mut payload = super::read(self.disk, place).await?;
            if payload.len() < about.data_len as usize {
                return Err(damaged("a record is too short"));
            }
            data.extend_from_slice(&payload.split_to(about.data_len as usize));
            rows.extend_from_slice(&self.codec.open(&about.seal_context(self.epoch), &payload)?);
        }
        let header = Header::new(LogKind::Commit, self.epoch, self.nonce, number, number - 1);
        let rows = self.codec.seal(&header.context(), &rows);
        let header = header.write(data.len(), rows.len());
        let parts = [header, data.freeze(), rows].into_iter().filter(|part: &Bytes| !part.is_empty());
        let made = self.bucket.create(&log_name(number), PutPayload::from_iter(parts)).await?;
        if matches!(made, Condition::Met(_)) {
            return Ok(true);
        }
        self.is_there(number).await
    }

    /// Whether an object of the log is in the bucket, and this journal's.
    async fn is_there(&self, number: u64) -> Result<bool> {
        match self.bucket.get_range(&log_name(number), 0..HEADER as u64).await {
            Ok(there) => {
                let there = Header::read(&there, number)?;
                Ok((there.epoch, there.nonce) == (self.epoch, self.nonce))
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

fn damaged(why: &str) -> Error {
    let detail = format!(
        "the journal is damaged: {why}; give up what only this journal has with `-o abandon=HOST`, which names this host"
    );
    Error::with(ErrorKind::Io, "journal", detail)
}
