//! Who holds a volume: the object `VOL/lease`, changed by conditional requests only.
//!
//! ```text
//!  take   a free lease, a dead holder's, or one whose holder does not answer
//!   |  \
//!   |   held   polls, answers claims, notices that another holder took over, releases
//!   |  /
//!  swap   a conditional replacement, whose lost answer is found out by reading back
//!   |
//!  info   what the object says; `host` is this machine and this process, `live` what it holds
//! ```
//!
//! - The holder writes when it takes and when it releases, and in between only to answer a claim:
//!   an idle volume sends one conditional GET each [`POLL`], and no PUT.
//! - Takeover is challenge and response. A taker posts a claim, and takes the lease if it sees no
//!   answer for [`PATIENCE`] of its own monotonic clock. Clocks of two hosts are never compared.
//! - A holder on the same boot of the same host whose process has ended is taken over at once; so
//!   is one that this process itself has given up.
//! - The epoch grows with each holder. The nonce is new for each holder, and so is that of each
//!   claim: no two versions of the object have the same content, and stores whose tag is a hash of
//!   the content are as good as others.
//!
//! - It names the journal of a host from before that acknowledges something until everything of it
//!   is in the bucket. A process that has another journal, or none, is refused, unless its user
//!   gives the journal up by its host's name. Hosts' names may be the same: a journal has a number
//!   of its own.
//!
//! The lease is for people and for order: it keeps two hosts from working against each other. What
//! is durable in the bucket is decided by the log's conditional PUT alone, and a holder that is
//! wrong about its lease (its clock stood still, its host was suspended, a copy of its virtual
//! machine was started) finds its fence there.

mod anew;
mod held;
mod host;
mod info;
mod live;
mod swap;
mod take;

#[cfg(test)]
mod double;
#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod world;

pub use held::{Ended, Held, Lost, POLL};
pub use host::{Host, ThisHost};
pub use info::{Claim, Holder, How, JournalMark, LeaseInfo, Nonce, Process, State, Took};
pub use swap::Created;
pub use take::{PATIENCE, Request};

use std::sync::Arc;

use store::{ErrorKind, Result};

use crate::bucket::{Bucket, Tag};
use swap::Seen;

/// The lease of a volume.
#[derive(Debug)]
pub struct Lease;

impl Lease {
    /// Makes the object, free: the last step of a format.
    ///
    /// # Errors
    /// The bucket's.
    pub async fn create_free(bucket: &Bucket) -> Result<Created> {
        swap::create(bucket, &LeaseInfo::free(Nonce::new()?)).await
    }

    /// The object's name below the volume's prefix.
    pub const OBJECT: &str = swap::OBJECT;

    /// Makes the object, free, where it is missing or `damaged`, for a volume whose last writer had
    /// this `epoch`.
    ///
    /// # Errors
    /// The bucket's.
    pub async fn make_anew(bucket: &Bucket, epoch: u64, damaged: Option<&Tag>) -> Result<Created> {
        anew::make(bucket, epoch, damaged).await
    }

    /// Takes the volume for this process, if it is free, or if the request allows it.
    ///
    /// A future that is dropped before it ends may leave the volume held by this process.
    ///
    /// # Errors
    /// `Busy`: another process holds the volume; the words name it, and say what to do.
    /// `Stale`: the object is missing. `Io`: it is damaged, or the bucket does not answer.
    pub async fn take(bucket: &Bucket, request: &Request, host: Arc<dyn Host>) -> Result<Held> {
        take::take(bucket, request, host, None).await
    }

    /// As [`take`](Self::take), if nobody has changed it since it was `seen`; else as it is then.
    pub(crate) async fn take_as_seen(
        bucket: &Bucket,
        request: &Request,
        host: Arc<dyn Host>,
        seen: Option<Seen>,
    ) -> Result<Held> {
        take::take(bucket, request, host, seen).await
    }

    /// The version of the lease that is there; `None`: the object is missing.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub(crate) async fn see(bucket: &Bucket) -> Result<Option<Seen>> {
        swap::read(bucket).await
    }

    /// Whether the object is there, be it damaged or not.
    ///
    /// # Errors
    /// The bucket's.
    pub async fn is_there(bucket: &Bucket) -> Result<bool> {
        match bucket.get_range(swap::OBJECT, 0..1).await {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Who holds the volume, without taking it; `None`: the object is missing.
    ///
    /// # Errors
    /// `Io`: the object is damaged, or the bucket does not answer.
    pub async fn read(bucket: &Bucket) -> Result<Option<LeaseInfo>> {
        Ok(swap::read(bucket).await?.map(|seen| seen.info))
    }
}
