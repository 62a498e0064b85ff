//! Requests for the lease object. An answer that was lost is found out by reading back.

use std::time::Duration;

use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::time::sleep;

use super::info::{BYTES_MAX, How, LeaseInfo, State};
use crate::bucket::{Bucket, Condition, Tag};

/// The object's name below the volume's prefix.
pub(super) const OBJECT: &str = "lease";
/// Requests until a conditional change is given up; the bucket retries each of them itself.
const TRIES: u32 = 4;
/// The pause before the second of them; each further pause is twice as long.
const PAUSE: Duration = Duration::from_millis(200);

/// A version of the lease.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) info: LeaseInfo,
    pub(super) tag: Tag,
}

/// How a conditional change ended.
#[derive(Debug)]
#[must_use]
pub(super) enum Swapped {
    /// The change was made. This is the version that it made, or a later one that followed it.
    Done(Seen),
    /// Another change was first. This is the version that is there.
    Other(Seen),
}

/// How a first version was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Created {
    /// It was made by this call.
    New,
    /// The object was there.
    Exists,
}

/// The lease; `None`: there is none.
pub(super) async fn read(bucket: &Bucket) -> Result<Option<Seen>> {
    let Some((bytes, tag)) = bucket.get_at_most(OBJECT, BYTES_MAX as u64).await? else { return Ok(None) };
    Ok(Some(Seen { info: LeaseInfo::parse(&bytes)?, tag }))
}

/// The lease of a volume that was formatted.
pub(super) async fn read_existing(bucket: &Bucket) -> Result<Seen> {
    read(bucket).await?.ok_or_else(missing)
}

/// The lease, if it is not the version `tag` any more.
pub(super) async fn read_if_changed(bucket: &Bucket, tag: &Tag) -> Result<Option<Seen>> {
    let got = bucket.get_if_changed_at_most(OBJECT, tag, BYTES_MAX as u64).await;
    let got = got.map_err(|error| if error.kind() == ErrorKind::NotFound { missing() } else { error })?;
    let Some((bytes, tag)) = got else { return Ok(None) };
    Ok(Some(Seen { info: LeaseInfo::parse(&bytes)?, tag }))
}

/// Replaces the version `tag` by `new`. After a request whose answer was lost, or that its own
/// retry overtook, `is_done` tells from what is there whether the change was made.
pub(super) async fn swap(
    bucket: &Bucket,
    new: &LeaseInfo,
    tag: &Tag,
    is_done: impl Fn(&LeaseInfo) -> bool,
) -> Result<Swapped> {
    let bytes = new.bytes()?;
    let mut last = None;
    for attempt in 0..TRIES {
        pause(attempt).await;
        let failed = match bucket.replace(OBJECT, bytes.clone().into(), tag).await {
            Ok(Condition::Met(tag)) => return Ok(Swapped::Done(Seen { info: new.clone(), tag })),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        if is_on("lease-nonce-not-read-back") {
            return match failed {
                Some(error) => Err(error),
                None => read_existing(bucket).await.map(Swapped::Other),
            };
        }
        match read_existing(bucket).await {
            Ok(seen) if is_done(&seen.info) => return Ok(Swapped::Done(seen)),
            Ok(seen) if seen.tag != *tag => return Ok(Swapped::Other(seen)),
            Ok(_) => last = failed,
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        Error::with(ErrorKind::Io, "lease", "the bucket refuses to replace the version that it has")
    }))
}

/// Makes the object, unless there is one.
pub(super) async fn create(bucket: &Bucket, new: &LeaseInfo) -> Result<Created> {
    let bytes = new.bytes()?;
    let mut last = None;
    for attempt in 0..TRIES {
        pause(attempt).await;
        let failed = match bucket.create(OBJECT, bytes.clone().into()).await {
            Ok(Condition::Met(_)) => return Ok(Created::New),
            Ok(_) => None,
            Err(error) => Some(error),
        };
        match read(bucket).await {
            // Another process may have taken it since.
            Ok(Some(Seen { info, .. })) if info.nonce == new.nonce || is_released(&info, new) => {
                return Ok(Created::New);
            }
            Ok(Some(_)) => return Ok(Created::Exists),
            Ok(None) => last = failed,
            Err(error) if is_final(&error) => return Err(error),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| {
        Error::with(ErrorKind::Io, "lease", "the bucket refuses to create an object that it has not")
    }))
}

/// Whether `info` shows that the holder of `old` released the volume: it is free, or its next
/// holder found it so.
pub(super) fn is_released(info: &LeaseInfo, old: &LeaseInfo) -> bool {
    let is_free = info.nonce == old.nonce && info.state == State::Free;
    is_free || info.took.is_some_and(|took| took.from == old.nonce && took.how == How::Free)
}

async fn pause(attempt: u32) {
    if attempt > 0 {
        sleep(PAUSE * (1 << (attempt - 1))).await;
    }
}

/// Whether the same request would fail again.
fn is_final(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Stale | ErrorKind::Unsupported)
}

fn missing() -> Error {
    let detail = "the lease is missing: the volume's `watertight format` has not ended, or somebody deleted it: the \
         same command again makes it, and changes nothing else";
    Error::with(ErrorKind::Stale, "lease", detail)
}
