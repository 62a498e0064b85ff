//! A volume that this process holds.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex as SyncMutex;
use store::{Error, ErrorKind, Result};
use tokio::sync::{Mutex, watch};
use tokio::time::{Instant, sleep_until, timeout};

use super::host::Host;
use super::info::{LeaseInfo, Nonce, State};
use super::live::LiveNonce;
use super::swap::{Seen, Swapped, is_released, read_if_changed, swap};
use crate::bucket::{Bucket, Patience};

/// The time between two polls of a holder. Three fit into a taker's patience.
pub const POLL: Duration = Duration::from_secs(5);
/// A poll that hangs is asked again after this time, early enough for a claim to be answered.
const HUNG: Duration = Duration::from_secs(7);
/// The pause after a poll that failed; it doubles with each further one, up to [`POLL`].
const PAUSE: Duration = Duration::from_secs(1);
/// Changes by others that one call follows.
const ROUNDS: u32 = 8;

/// The lease of a volume that this process holds, until [`Held::release`], or until another process
/// takes it over.
///
/// A holder that is dropped without a release leaves the volume held, by the lease; a later mount
/// by the same process knows better.
#[derive(Debug)]
pub struct Held {
    bucket: Bucket,
    /// For polls: one attempt each, and the next poll comes soon.
    polled: Bucket,
    host: Arc<dyn Host>,
    epoch: u64,
    nonce: Nonce,
    words: String,
    /// The version that this process knows. The lock makes requests follow each other.
    seen: Mutex<Seen>,
    polls: watch::Sender<Polls>,
    /// Until this process gives the volume up.
    live: SyncMutex<Option<LiveNonce>>,
    ended: watch::Sender<Option<Ended>>,
}

#[derive(Debug, Clone, Copy)]
struct Polls {
    /// When the last poll began.
    began: Instant,
    /// When the last request began that found the lease to be this holder's, by [`Host::boottime`].
    validated: Duration,
}

/// Why this process holds the volume no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It released the volume.
    Released,
    /// Another process took the volume over.
    Lost(Box<Lost>),
}

/// The loss of a volume to another process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// The lease as it was found: it names the process that holds the volume now.
    pub info: LeaseInfo,
    /// When this process found that out, in seconds of the Unix epoch: for people only.
    pub found: u64,
}

/// What a poll leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Polled {
    Quiet,
    /// A claim that could not be answered yet.
    Unanswered,
}

impl Held {
    /// `validated`: the time before the request that took the lease.
    pub(super) fn new(
        bucket: Bucket,
        host: Arc<dyn Host>,
        (seen, live): (Seen, LiveNonce),
        validated: Duration,
    ) -> Self {
        let info = &seen.info;
        let holder = info.holder.as_ref().map(ToString::to_string).unwrap_or_default();
        Self {
            polled: bucket.with_patience(Patience::Once),
            bucket,
            host,
            epoch: info.epoch,
            nonce: info.nonce,
            words: format!("epoch {}, {holder}", info.epoch),
            seen: Mutex::new(seen),
            polls: watch::Sender::new(Polls { began: Instant::now(), validated }),
            live: SyncMutex::new(Some(live)),
            ended: watch::Sender::new(None),
        }
    }

    /// The holder's number: it grows with each holder.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The holder's random number, by which it knows what it wrote itself.
    #[must_use]
    pub const fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// The epoch, this host, this process and its mountpoint.
    #[must_use]
    pub fn describe(&self) -> &str {
        &self.words
    }

    /// When the lease was known to be this holder's, by [`Host::boottime`]. The time before the
    /// request counts, not that of its answer.
    #[must_use]
    pub fn last_validated(&self) -> Duration {
        self.polls.borrow().validated
    }

    /// Whether that was longer than `max_age` ago, the time included that the host was suspended.
    #[must_use]
    pub fn needs_validation(&self, max_age: Duration) -> bool {
        let age = self.host.boottime().checked_sub(self.last_validated());
        age.is_none_or(|age| age > max_age)
    }

    /// Shows why this process holds the volume no more, as soon as it knows.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }

    /// Asks whether the lease is still this holder's, and answers a claim.
    ///
    /// # Errors
    /// `Stale`: it is not; the words say who took over. The bucket's: it could not be asked.
    pub async fn validate(&self) -> Result<()> {
        self.poll().await.map(drop)
    }

    /// Polls until this process holds the volume no more: a task for as long as it is mounted.
    ///
    /// An idle volume sends a conditional GET each [`POLL`]; another call's poll counts as well.
    pub async fn keep(self: Arc<Self>) {
        let mut ended = self.watch();
        let mut wait = POLL;
        let mut failures = 0;
        loop {
            let due = self.polls.borrow().began + wait;
            if due > Instant::now() {
                tokio::select! {
                    // The sender is in `self`.
                    _ = ended.wait_for(Option::is_some) => return,
                    () = sleep_until(due) => continue,
                }
            }
            let polled = timeout(HUNG, self.poll()).await;
            let polled = polled.unwrap_or_else(|_| {
                Err(Error::with(ErrorKind::TimedOut, "lease", "the bucket does not answer"))
            });
            if ended.borrow().is_some() {
                return;
            }
            wait = match polled {
                Ok(Polled::Quiet) => POLL,
                Ok(Polled::Unanswered) => PAUSE,
                Err(_) => (PAUSE * (1 << failures.min(3))).min(POLL),
            };
            failures = self.count(failures, polled.err().as_ref());
        }
    }

    /// The failures in a row; the log has the first one, and their end.
    fn count(&self, failures: u32, error: Option<&Error>) -> u32 {
        match error {
            Some(error) if failures == 0 => {
                tracing::warn!(lease = self.words, %error, "the lease cannot be asked for");
            }
            None if failures > 0 => tracing::info!(lease = self.words, "the lease was asked for again"),
            _ => {}
        }
        if error.is_some() { failures.saturating_add(1) } else { 0 }
    }

    /// Gives the volume up without a request: this process writes nothing more, and another mount
    /// by it may take the volume at once.
    pub fn give_up(&self) {
        drop(self.live.lock().take());
    }

    /// Gives the volume back: afterwards any host may take it. A second call finds that done.
    ///
    /// A call that fails may be repeated.
    ///
    /// # Errors
    /// `Stale`: another process took the volume over. The bucket's: whether the volume is released
    /// is not known.
    pub async fn release(&self) -> Result<()> {
        self.release_as(LeaseInfo::released).await
    }

    /// Gives the volume back, of which a journal has something that could not be brought to the
    /// bucket: any process with that journal may take it.
    ///
    /// # Errors
    /// As [`Held::release`].
    pub async fn release_but_journal(&self) -> Result<()> {
        self.release_as(LeaseInfo::left).await
    }

    async fn release_as(&self, new: fn(&LeaseInfo) -> LeaseInfo) -> Result<()> {
        let mut seen = self.seen.lock().await;
        for _ in 0..ROUNDS {
            match &*self.ended.borrow() {
                Some(Ended::Released) => return Ok(()),
                Some(Ended::Lost(lost)) => return Err(lost.error()),
                None => {}
            }
            let (old, new) = (seen.info.clone(), new(&seen.info));
            match swap(&self.bucket, &new, &seen.tag, |info| is_released(info, &old)).await? {
                Swapped::Done(_) => self.end(Ended::Released),
                Swapped::Other(now) => self.follow(&mut seen, now),
            }
        }
        Err(Error::with(ErrorKind::Busy, "lease", "the lease changes without end"))
    }

    async fn poll(&self) -> Result<Polled> {
        let mut seen = self.seen.lock().await;
        self.check()?;
        let before = self.host.boottime();
        self.polls.send_modify(|polls| polls.began = Instant::now());
        if let Some(now) = read_if_changed(&self.polled, &seen.tag).await? {
            self.follow(&mut seen, now);
            self.check()?;
        }
        self.polls.send_modify(|polls| polls.validated = before);
        for _ in 0..ROUNDS {
            let Some(claim) = seen.info.open_claim().cloned() else { return Ok(Polled::Quiet) };
            let is_done = |info: &LeaseInfo| self.is_ours(info) && info.answered == Some(claim.nonce);
            match swap(&self.polled, &seen.info.answered(), &seen.tag, is_done).await {
                Ok(Swapped::Done(now)) => {
                    tracing::info!(lease = self.words, "the holder answered {claim}");
                    *seen = now;
                }
                Ok(Swapped::Other(now)) => self.follow(&mut seen, now),
                Err(error) => {
                    tracing::warn!(lease = self.words, %error, "the holder could not answer {claim}");
                    break;
                }
            }
            self.check()?;
        }
        Ok(Polled::Unanswered)
    }

    fn is_ours(&self, info: &LeaseInfo) -> bool {
        (info.epoch, info.nonce, info.state) == (self.epoch, self.nonce, State::Held)
    }

    /// Takes note of a version that another request made.
    fn follow(&self, seen: &mut Seen, now: Seen) {
        if self.is_ours(&now.info) {
            *seen = now;
        } else if is_released(&now.info, &seen.info) {
            // By a release whose caller went away before its answer.
            self.end(Ended::Released);
        } else {
            let lost = Lost { info: now.info, found: self.host.unix_time() };
            self.end(Ended::Lost(Box::new(lost)));
        }
    }

    fn end(&self, ended: Ended) {
        match &ended {
            Ended::Released => tracing::info!(lease = self.words, "the volume is released"),
            Ended::Lost(lost) => tracing::error!(lease = self.words, "the volume is lost: {lost}"),
        }
        self.ended.send_replace(Some(ended));
    }

    fn check(&self) -> Result<()> {
        match &*self.ended.borrow() {
            None => Ok(()),
            Some(Ended::Released) => {
                Err(Error::with(ErrorKind::Stale, "lease", "this process released the volume"))
            }
            Some(Ended::Lost(lost)) => Err(lost.error()),
        }
    }
}

impl Lost {
    fn error(&self) -> Error {
        Error::with(ErrorKind::Stale, "lease", self.to_string())
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { info, found } = self;
        match &info.holder {
            Some(holder) => write!(f, "{} took it over (epoch {})", holder.describe(*found), info.epoch),
            None => write!(f, "another process took it over, and released it (epoch {})", info.epoch),
        }
    }
}
