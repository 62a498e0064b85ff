//! Segments on their way to the bucket: a round waits for one, or for the journal to have it.
//!
//! Only a segment that an fsync waits for goes into the journal, so that an fsync of a small file
//! does not wait for everybody's bulk data there either. Once the journal has it, rows may name it;
//! its upload goes on by itself, and it is read from the journal until it has ended. The log sends
//! no object that may name it before ([`crate::log`], `uploads`).

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use object_store::PutPayload;
use parking_lot::Mutex;
use slatedb::wal::WalError;
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

use crate::bucket::{Bucket, Condition};
use crate::journal::{Journal, Place, Record};
use crate::log::CommitLog;
use crate::log::journaled::{SEGMENT, about_segment};
use crate::object_names::object_name;
use crate::reading::Reader;
use crate::rows::Object;

/// Segments that the journal has, and that are in memory to be uploaded, at a time.
const IN_MEMORY: usize = 4;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Uploads {
    bucket: Bucket,
    log: Arc<CommitLog>,
    /// It keeps what was written for the next read.
    reader: Arc<Reader>,
    /// Where the journal has those that the bucket may not have.
    journaled: Mutex<HashMap<Object, Place>>,
    turns: Arc<Semaphore>,
}

/// A segment that the journal has, on its way to the bucket.
struct Uploading {
    segment: Object,
    /// Its number among those that hold the log up.
    ticket: u64,
    journal: Arc<Journal>,
    place: Place,
}

impl Uploads {
    pub(super) fn new(bucket: Bucket, log: Arc<CommitLog>, reader: Arc<Reader>) -> Arc<Self> {
        Arc::new(Self {
            bucket,
            log,
            reader,
            journaled: Mutex::default(),
            turns: Arc::new(Semaphore::new(IN_MEMORY)),
        })
    }

    /// Returns when the segment is in the bucket; if its round is `awaited` before that, when the
    /// journal has it, and it will be on the disk with the log's next record.
    pub(super) async fn put(
        self: &Arc<Self>,
        segment: Object,
        parts: Vec<Bytes>,
        awaited: impl Future<Output = ()> + Send,
    ) -> Result<()> {
        let Some(journal) = self.log.journal().cloned() else { return self.make(segment, parts).await };
        let (this, sent) = (Arc::clone(self), parts.clone());
        let mut upload = tokio::spawn(async move { this.make(segment, sent).await });
        tokio::select! {
            biased;
            made = &mut upload => return ended(made),
            () = awaited => {}
        }
        let Object::Segment(epoch, number) = segment else { return ended(upload.await) };
        let record = Record { kind: SEGMENT, about: about_segment(epoch, number), payload: parts };
        let places = journal.append(&[record], false).await.unwrap_or_default();
        // One for each record.
        let Some(&place) = places.first() else {
            journal.pass_by();
            return ended(upload.await);
        };
        self.journaled.lock().insert(segment, place);
        let uploading = Uploading { segment, ticket: self.log.upload_begins(), journal, place };
        if is_on("journal-released-before-the-bucket-has-it") {
            uploading.journal.release(&[uploading.place]);
        }
        let this = Arc::clone(self);
        tokio::spawn(async move { this.finish(uploading, upload).await });
        Ok(())
    }

    /// Waits for an upload that no caller waits for. Only a few of them stay in memory.
    async fn finish(&self, uploading: Uploading, upload: JoinHandle<Result<()>>) {
        let made = match Arc::clone(&self.turns).try_acquire_owned() {
            Ok(_turn) => ended(upload.await),
            Err(_) => {
                upload.abort();
                let _it_ended = upload.await;
                self.make_again(&uploading).await
            }
        };
        match made {
            Ok(()) => {
                self.journaled.lock().remove(&uploading.segment);
                if !is_on("journal-released-before-the-bucket-has-it") {
                    uploading.journal.release(&[uploading.place]);
                }
                self.log.upload_ends(uploading.ticket);
            }
            Err(error) => self.log.fail(WalError::Unavailable(Arc::new(error))),
        }
    }

    /// Reads a segment back, and uploads it.
    async fn make_again(&self, uploading: &Uploading) -> Result<()> {
        // It is never closed.
        let _turn = self.turns.acquire().await.ok();
        let bytes = uploading.journal.read(&uploading.place).await?;
        // No other holder has its epoch: one that is there is of the attempt that was given up.
        let name = object_name(uploading.segment);
        let _made_or_there = self.bucket.create(&name, PutPayload::from_bytes(bytes)).await?;
        Ok(())
    }

    async fn make(&self, segment: Object, parts: Vec<Bytes>) -> Result<()> {
        let name = object_name(segment);
        match self.bucket.create(&name, PutPayload::from_iter(parts.clone())).await? {
            // No other holder has this epoch: an attempt whose answer was lost made it.
            Condition::Met(_) | Condition::Failed { after_unknown: true } => {
                self.reader.wrote(segment, &parts);
                Ok(())
            }
            Condition::Failed { after_unknown: false } => {
                Err(Error::with(ErrorKind::Io, "write data", format!("{name}: another process made it")))
            }
        }
    }

    /// Whether the journal has a segment, and the bucket may not have it.
    pub(super) fn has(&self, segment: Object) -> bool {
        self.journaled.lock().contains_key(&segment)
    }

    /// A part of a segment that the journal has, and the bucket may not have.
    pub(super) async fn read(&self, segment: Object, range: Range<u64>) -> Option<Result<Bytes>> {
        let place = *self.journaled.lock().get(&segment)?;
        let read = self.log.journal()?.read_part(&place, range).await;
        // Its upload may have ended meanwhile, and the journal's file may be gone.
        (read.is_ok() || self.journaled.lock().contains_key(&segment)).then_some(read)
    }
}

fn ended(made: Result<Result<()>, tokio::task::JoinError>) -> Result<()> {
    match made {
        Ok(made) => made,
        Err(error) => Err(Error::with(ErrorKind::Io, "write data", error.to_string())),
    }
}
