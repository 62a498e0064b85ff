//! Objects of the log that are missing or damaged: found, kept as copies, and replaced by what lets
//! the replay go on.
//!
//! # Why a repair leaves the log no worse
//! - The copy below `damaged/` is there before anything is replaced, and a request replaces the
//!   version that was copied, or none.
//! - What takes an object's place has no rows and no data: what later objects have is replayed as
//!   before, and rows that do not fit any more are found by the check that follows.
//! - A process that does not know that it was taken over finds an object that is not its own, and
//!   acknowledges nothing. Where the damaged one may have been a fence, it is a fence again.

use bytes::Bytes;
use object_store::PutPayload;
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use super::steps::OP;
use crate::bucket::{Bucket, Condition, Tag};
use crate::codec::Codec;
use crate::log::object::{self, HEADER, Header, LogKind, OBJECT_BYTES_MAX};
use crate::object_names::{log_name, number_of};

/// Where copies of what is replaced are.
pub(super) const DAMAGED: &str = "damaged";
/// Copies of one object, of repairs of different times.
const COPIES_MAX: u32 = 100;

/// The state of an object of the log.
#[derive(Debug)]
pub(super) enum State {
    Missing,
    Whole,
    Damaged { bytes: Bytes, tag: Tag, why: String },
}

/// Looks at an object of the log.
///
/// # Errors
/// The bucket's.
pub(super) async fn examine(bucket: &Bucket, codec: &Codec, number: u64) -> Result<State> {
    let Some((bytes, tag)) = bucket.get_at_most(&log_name(number), OBJECT_BYTES_MAX).await? else {
        return Ok(State::Missing);
    };
    match read(codec, number, &bytes) {
        Ok(()) => Ok(State::Whole),
        Err(error) => {
            let name = format!("{}: ", log_name(number));
            let why = error.detail().unwrap_or("it is damaged");
            let why = why.strip_prefix(&name).unwrap_or(why).to_owned();
            Ok(State::Damaged { bytes, tag, why })
        }
    }
}

/// Reads an object as a replay does.
fn read(codec: &Codec, number: u64, bytes: &Bytes) -> Result<()> {
    let header = Header::read(bytes, number)?;
    if header.rows().end != bytes.len() {
        return Err(object::damaged(number, "it is cut off, or something was added"));
    }
    if header.kind == LogKind::Commit {
        object::read_rows(codec.open(&header.context(), &bytes[header.rows()])?, number)?;
    }
    Ok(())
}

/// Where the log cannot be replayed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Stop {
    /// The number of the object.
    pub(super) number: u64,
    /// The epoch of the object before it.
    pub(super) before: u64,
    /// The epoch of the newest manifest.
    pub(super) newest: u64,
    pub(super) window: u64,
}

/// Replaces what a replay stops at; says in plain words what was done and lost.
///
/// # Errors
/// The bucket's; `Io`: nothing can be done here.
pub(super) async fn mend(bucket: &Bucket, codec: &Codec, stop: Stop) -> Result<String> {
    let number = stop.number;
    match examine(bucket, codec, number).await? {
        State::Damaged { bytes, tag, .. } => {
            let copy = keep(bucket, &log_name(number), &bytes).await?;
            let payload = sealed(codec, stand_in(bucket, stop, Header::read(&bytes, number).ok()).await?);
            let Condition::Met(_) = bucket.replace(&log_name(number), payload, &tag).await? else {
                return Err(changed(bucket, number));
            };
            Ok(format!(
                "{}: a copy is kept as {copy}; what was committed with it and is in no later object is lost",
                log_name(number)
            ))
        }
        State::Missing => match damaged_witness(bucket, codec, number).await? {
            Some((witness, bytes)) => {
                let copy = keep(bucket, &log_name(witness), &bytes).await?;
                bucket.delete(&log_name(witness)).await?;
                Ok(format!(
                    "{}: a copy is kept as {copy}; it came behind a gap, and was not replayed",
                    log_name(witness)
                ))
            }
            None => {
                let payload = sealed(codec, stand_in(bucket, stop, None).await?);
                // Also one that is there by now is looked at again.
                let _made = bucket.create(&log_name(number), payload).await?;
                Ok(format!("{}: it is missing: what was committed with it is lost", log_name(number)))
            }
        },
        State::Whole => {
            let why = format!("{}/{} does not fit to the log before it", bucket.url(), log_name(number));
            Err(Error::with(ErrorKind::Io, OP, why))
        }
    }
}

fn changed(bucket: &Bucket, number: u64) -> Error {
    let why = format!("{}/{} changes: another process is at work", bucket.url(), log_name(number));
    Error::with(ErrorKind::Busy, OP, why)
}

/// An object behind a gap whose header cannot be read, so that it does not say whether the gap is
/// one that a crash left.
async fn damaged_witness(bucket: &Bucket, codec: &Codec, gap: u64) -> Result<Option<(u64, Bytes)>> {
    for number in behind(bucket, gap).await? {
        if header_of(bucket, number).await?.is_none()
            && let State::Damaged { bytes, .. } = examine(bucket, codec, number).await?
        {
            return Ok(Some((number, bytes)));
        }
    }
    Ok(None)
}

async fn behind(bucket: &Bucket, number: u64) -> Result<Vec<u64>> {
    let after = log_name(number);
    let listed = bucket.list("log", Some(after.trim_start_matches("log/"))).await?;
    Ok(listed.iter().filter_map(|name| number_of(name)).filter(|found| *found > number).collect())
}

/// The header of an object, if it can be read.
async fn header_of(bucket: &Bucket, number: u64) -> Result<Option<Header>> {
    let header = bucket.get_up_to(&log_name(number), 0..HEADER as u64).await?;
    Ok(Header::read(&header, number).ok())
}

/// What takes the place of an object, of whose header `known` can be read.
async fn stand_in(bucket: &Bucket, stop: Stop, known: Option<Header>) -> Result<Header> {
    let Stop { number, before, newest, window } = stop;
    let nonce = known.map_or([0; 16], |header| header.nonce);
    let next = number.saturating_add(1 + window);
    let fence = |epoch| Header::new(LogKind::Fence, epoch, nonce, number, next);
    let commit = |epoch| Header::new(LogKind::Commit, epoch, nonce, number, number - 1);
    if let Some(header) = known {
        return Ok(if header.kind == LogKind::Fence { fence(header.epoch) } else { commit(header.epoch) });
    }
    for later in behind(bucket, number).await? {
        // What it left out is void.
        if let Some(header) = header_of(bucket, later).await?
            && (later == number + 1 || later >= next)
        {
            return Ok(if header.epoch > before && later >= next {
                fence(header.epoch)
            } else {
                commit(header.epoch.max(before))
            });
        }
    }
    // It was the last: the fence of the last writer, unless that wrote before it already.
    Ok(if newest > before { fence(newest) } else { commit(before) })
}

fn sealed(codec: &Codec, header: Header) -> PutPayload {
    if header.kind == LogKind::Fence {
        return PutPayload::from_bytes(header.write(0, 0));
    }
    let rows = codec.seal(&header.context(), &[]);
    PutPayload::from_iter([header.write(0, rows.len()), rows])
}

/// Keeps a copy of an object; returns its name.
pub(super) async fn keep(bucket: &Bucket, name: &str, bytes: &Bytes) -> Result<String> {
    if is_on("fsck-log-not-kept") {
        return Ok(name.to_owned());
    }
    for n in 0..COPIES_MAX {
        let copy = if n == 0 { format!("{DAMAGED}/{name}") } else { format!("{DAMAGED}/{name}.{n}") };
        if let Condition::Met(_) = bucket.create(&copy, PutPayload::from_bytes(bytes.clone())).await? {
            return Ok(copy);
        }
        // An earlier repair may have come as far as this.
        if bucket.get_at_most(&copy, OBJECT_BYTES_MAX).await?.is_some_and(|(there, _)| there == *bytes) {
            return Ok(copy);
        }
    }
    let why = format!("{}/{DAMAGED}/{name}: there are {COPIES_MAX} copies already", bucket.url());
    Err(Error::with(ErrorKind::Exists, OP, why))
}
