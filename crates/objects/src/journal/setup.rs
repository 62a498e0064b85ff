//! The journal of a mount: opened and locked before the lease is taken, emptied before the log is
//! fenced, and written from then on.

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use store::{Error, ErrorKind, Result};

use super::dir::{DirDisk, blocking};
use super::disk::Disk;
use super::targets::Targets;
use super::{Identity, Journal, SIZE, SIZE_MIN, upload};
use crate::bucket::Bucket;
use crate::codec::Codec;
use crate::engine::LastManifest;
use crate::log::CommitLog;
use crate::log::journaled::context;
use crate::uuid::Uuid;

/// The journal that a mount is given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JournalOptions {
    /// A directory of this host, below which each volume has one.
    pub directory: PathBuf,
    /// The most bytes of its files.
    pub size_max: Option<u64>,
    /// An fsync returns when the journal has it. Otherwise only what an earlier mount has left
    /// there is brought to the bucket.
    pub is_fsync_target: bool,
    /// A change returns when the journal's files have it, so that it outlives this process.
    pub is_accept_target: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct MountJournal {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) identity: Identity,
    pub(crate) size_max: u64,
    pub(crate) targets: Targets,
    /// Nothing of an earlier mount is in it any more.
    is_empty: AtomicBool,
}

impl MountJournal {
    pub(crate) fn new(disk: Arc<dyn Disk>, identity: Identity, size_max: u64, targets: Targets) -> Self {
        Self { disk, identity, size_max, targets, is_empty: AtomicBool::new(false) }
    }

    /// Opens the journal of a volume. `held`: as for [`DirDisk::open`].
    ///
    /// # Errors
    /// As [`DirDisk::open`]; `Invalid`: the bound is too low.
    pub(crate) async fn open(
        options: &JournalOptions,
        volume: Uuid,
        held: Option<Arc<OwnedFd>>,
    ) -> Result<Self> {
        let size_max = options.size_max.unwrap_or(SIZE);
        if size_max < SIZE_MIN {
            let why = format!("journal_size={size_max}: a journal needs {SIZE_MIN} bytes at least");
            return Err(Error::with(ErrorKind::Invalid, "journal", why));
        }
        let directory = options.directory.clone();
        let (disk, identity) = blocking(move || DirDisk::open(&directory, volume, held)).await?;
        let targets = Targets { fsync: options.is_fsync_target, accept: options.is_accept_target };
        Ok(Self::new(disk, identity, size_max, targets))
    }

    /// Puts what an earlier mount has left out of the way, which its user gives up. The lease is
    /// taken.
    ///
    /// # Errors
    /// The disk's.
    pub(crate) async fn give_up(&self) -> Result<()> {
        if !self.disk.files().await?.is_empty() {
            let aside = self.disk.set_aside("abandoned").await?;
            tracing::warn!("the journal of this host is given up by `abandon`: it is kept as {aside}");
        }
        Ok(())
    }

    /// Brings what an earlier mount has left to the bucket.
    ///
    /// # Errors
    /// As [`upload::upload`].
    pub(crate) async fn upload_left(
        &self,
        (bucket, codec): (&Bucket, &Codec),
        last: Option<LastManifest>,
    ) -> Result<()> {
        let uploaded = upload::upload(&self.disk, self.identity, (bucket, codec), last).await;
        if uploaded.as_ref().err().is_none_or(|error| error.kind() == ErrorKind::Stale) {
            // ORDERING: Relaxed, a flag that the task which sets it reads later.
            self.is_empty.store(true, Ordering::Relaxed);
        }
        uploaded
    }

    /// Whether the bucket has what earlier mounts have left, or it is known to be lost.
    pub(crate) fn is_empty(&self) -> bool {
        // ORDERING: as above.
        self.is_empty.load(Ordering::Relaxed)
    }

    /// Begins the journal of a holder.
    pub(crate) fn begin(&self, log: &Arc<CommitLog>, nonce: [u8; 16]) {
        if self.targets.fsync || self.targets.accept {
            let context = context(log.epoch(), nonce);
            let journal = Journal::new(Arc::clone(&self.disk), self.identity, context, self.size_max);
            log.attach_journal(journal, self.targets);
        }
    }
}
