//! A lease for a volume whose own is missing or damaged.

use store::Result;

use super::info::{LeaseInfo, Nonce};
use super::swap::{self, Created, OBJECT};
use crate::bucket::{Bucket, Condition, Tag};

/// Makes a free lease: where there is none, or in the place of the version `damaged`. Its epoch is
/// not below that of any writer that is known.
///
/// A holder that nobody can know of finds another nonce in it, and gives the volume up; what it
/// would have acknowledged meanwhile, the log's fence decides.
pub(super) async fn make(bucket: &Bucket, epoch: u64, damaged: Option<&Tag>) -> Result<Created> {
    let new = LeaseInfo::free_behind(Nonce::new()?, epoch);
    let Some(damaged) = damaged else { return swap::create(bucket, &new).await };
    if let Condition::Met(_) = bucket.replace(OBJECT, new.bytes()?.into(), damaged).await? {
        return Ok(Created::New);
    }
    // The answer to an earlier attempt may have been lost.
    let there = swap::read(bucket).await?;
    Ok(if there.is_some_and(|seen| seen.info.nonce == new.nonce) { Created::New } else { Created::Exists })
}
