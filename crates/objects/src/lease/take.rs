//! How a process takes a volume.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::time::{Instant, sleep, timeout};

use super::held::Held;
use super::host::Host;
use super::info::{Claim, Holder, How, JournalMark, LeaseInfo, Nonce, State};
use super::live::{LiveNonce, is_live};
use super::swap::{Seen, Swapped, read_existing, read_if_changed, swap};
use crate::bucket::Bucket;

/// A holder that does not answer for so long is taken over, by the taker's own monotonic clock.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// The time between two looks for the answer.
const LOOK: Duration = Duration::from_secs(1);
/// A look that hangs is given up after this time.
const HUNG: Duration = Duration::from_secs(5);
/// Changes by others that a taker follows before it gives up.
const ROUNDS: u32 = 8;

/// What a process that mounts a volume asks for.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Where the volume is to be mounted.
    pub mountpoint: PathBuf,
    /// Whether a holder that does not answer is taken over.
    pub takeover: bool,
    /// The host whose journal is given up, with what is in it alone.
    pub abandon: Option<String>,
    /// The journal of this host that this process has open: its directory, and what tells it from
    /// others.
    pub journal: Option<(String, Nonce)>,
    /// The engine's epoch that the caller saw. The lease repeats it, and does not know what it
    /// means.
    pub engine_epoch: u64,
    /// The lease is this process's, by the program before this one, which had this number.
    pub resumed: Option<Nonce>,
}

#[derive(Debug)]
struct Taker<'a> {
    bucket: &'a Bucket,
    request: &'a Request,
    host: Arc<dyn Host>,
    nonce: LiveNonce,
    /// The holder, or the last one, that this taker found first.
    found: Nonce,
    /// The claim whose answer this taker waits for, or waited for.
    awaited: Option<Nonce>,
    /// The time before the lease was taken.
    before: Duration,
}

/// What came of a claim.
enum Challenge {
    Answered(LeaseInfo),
    Unanswered(Seen),
    /// The lease was taken or released meanwhile.
    Overtaken(Seen),
}

/// Takes it as it was `seen`; `None`: it is read first.
pub(super) async fn take(
    bucket: &Bucket,
    request: &Request,
    host: Arc<dyn Host>,
    seen: Option<Seen>,
) -> Result<Held> {
    let mut seen = match seen {
        Some(seen) => seen,
        None => read_existing(bucket).await?,
    };
    let (nonce, found, before) = (LiveNonce::new()?, seen.info.nonce, host.boottime());
    let mut taker = Taker { bucket, request, host, nonce, found, awaited: None, before };
    for _ in 0..ROUNDS {
        match taker.round(seen).await? {
            Swapped::Done(seen) => {
                return Ok(Held::new(bucket.clone(), taker.host, (seen, taker.nonce), taker.before));
            }
            Swapped::Other(now) => seen = now,
        }
    }
    Err(busy("many processes take and release the volume at the same time: try again"))
}

impl Taker<'_> {
    /// Takes the lease, or refuses, or finds that another process was first.
    async fn round(&mut self, seen: Seen) -> Result<Swapped> {
        let is_given_up =
            |holder: &Holder| holder.process == self.host.process() && !is_live(seen.info.nonce);
        if let Some(nonce) = self.request.resumed {
            // That program's, or a later one's that has given the volume back.
            let is_given_back = seen.info.holder.as_ref().is_some_and(is_given_up);
            let is_that_ones = (seen.info.nonce, seen.info.state) == (nonce, State::Held);
            // A server's that came after that one and died before it could say its number: its keeper has
            // had the lock of the journal all the time, so that nobody else has held the volume with it.
            let own = self.request.journal.as_ref().map(|(_, id)| *id);
            let has_own_journal = own.is_some() && seen.info.journal.as_ref().map(|left| left.id) == own;
            let has_ended =
                seen.info.holder.as_ref().is_some_and(|holder| self.host.has_ended(&holder.process));
            let is_dead_servers = has_own_journal && has_ended && !is_on("lease-of-a-dead-server-refused");
            if is_given_back || is_that_ones || is_dead_servers || is_on("lease-resumed-of-others") {
                return self.swap(&seen, How::Dead).await;
            }
            return Err(self.refusal(&seen.info, "it was taken from this process, whose program is replaced"));
        }
        let Some(holder) = &seen.info.holder else { return self.swap(&seen, How::Free).await };
        let is_given_up = is_given_up(holder);
        if is_given_up || self.host.has_ended(&holder.process) {
            tracing::warn!("{holder} has ended without a release: the volume is taken over at once");
            return self.swap(&seen, How::Dead).await;
        }
        if seen.info.nonce != self.found {
            return Err(self.refusal(&seen.info, "it was faster"));
        }
        if !self.request.takeover {
            let advice = "unmount it there, or mount with `-o takeover`, which takes the volume over \
                          if that process does not answer for 15 s";
            return Err(self.refusal(&seen.info, advice));
        }
        // Before the holder is asked: what is refused anyway bothers nobody.
        self.journal(&seen.info)?;
        match self.challenge(seen).await? {
            Challenge::Answered(info) => {
                Err(self.refusal(&info, "it is alive, and keeps the volume: unmount it there"))
            }
            Challenge::Overtaken(seen) => Ok(Swapped::Other(seen)),
            Challenge::Unanswered(seen) => {
                let swapped = self.swap(&seen, How::Unanswered).await?;
                if let Swapped::Done(_) = &swapped {
                    let holder = seen.info.holder.as_ref().map(ToString::to_string).unwrap_or_default();
                    tracing::warn!("{holder} did not answer for {PATIENCE:?}: the volume is taken over");
                }
                Ok(swapped)
            }
        }
    }

    async fn swap(&mut self, seen: &Seen, how: How) -> Result<Swapped> {
        let mountpoint = self.request.mountpoint.to_string_lossy();
        let host = self.host.name();
        let holder = Holder::new(&host, self.host.process(), &mountpoint, self.host.unix_time());
        let nonce = self.nonce.get();
        let mut new = seen.info.taken(nonce, holder, how)?;
        new.journal = self.journal(&seen.info)?;
        new.engine_epoch = self.request.engine_epoch;
        let is_done = |info: &LeaseInfo| info.nonce == nonce && info.state == State::Held;
        self.before = self.host.boottime();
        swap(self.bucket, &new, &seen.tag, is_done).await
    }

    /// The journal that the next lease names: this process's. Another one has to be given up by
    /// name.
    fn journal(&self, info: &LeaseInfo) -> Result<Option<JournalMark>> {
        let own = self.request.journal.as_ref();
        let own = own.map(|(directory, id)| JournalMark::new(&self.host.name(), directory, *id));
        let Some(left) = &info.journal else { return Ok(own) };
        if is_on("takeover-ignores-the-journal") || own.as_ref().is_some_and(|own| own.id == left.id) {
            return Ok(own);
        }
        let (host, directory) = (left.host.escape_debug(), left.directory.escape_debug());
        if self.request.abandon.as_ref() == Some(&left.host) {
            tracing::warn!(
                "the journal of host {host} is given up: what was acknowledged there and is not in the bucket is lost"
            );
            return Ok(own);
        }
        let there = if left.host == self.host.name() { "this host" } else { "there" };
        Err(busy(format!(
            "host {host} has a journal ({directory}) with data that may not be in the bucket: mount the volume on \
             {there} with `-o journal={directory}`, or give that data up with `-o abandon={host}`"
        )))
    }

    /// Asks the holder whether it is alive. A claim that another taker posted does as well: this
    /// one waits for its answer, by its own clock from now on.
    async fn challenge(&mut self, mut seen: Seen) -> Result<Challenge> {
        if seen.info.open_claim().is_none() {
            if self.awaited.is_some() && seen.info.answered == self.awaited {
                return Ok(Challenge::Answered(seen.info));
            }
            let claim = Claim::new(Nonce::new()?, &self.host.name(), self.host.process().pid);
            let is_done = |info: &LeaseInfo| info.claim.as_ref() == Some(&claim);
            match swap(self.bucket, &seen.info.claimed(claim.clone()), &seen.tag, is_done).await? {
                Swapped::Done(now) => seen = now,
                Swapped::Other(now) => return Ok(Challenge::Overtaken(now)),
            }
        }
        self.awaited = seen.info.claim.as_ref().map(|claim| claim.nonce);
        let asked = seen.info.clone();
        let until = Instant::now() + PATIENCE;
        loop {
            if (asked.nonce, asked.state) != (seen.info.nonce, seen.info.state) {
                return Ok(Challenge::Overtaken(seen));
            }
            // Takers replace a claim only after its answer.
            if seen.info.claim != asked.claim || seen.info.open_claim().is_none() {
                return Ok(Challenge::Answered(seen.info));
            }
            // The end is waited for without another look, which the swap would wait for: an answer that this
            // taker does not see makes the swap fail.
            let left = until.saturating_duration_since(Instant::now());
            if is_on("lease-claim-not-waited-for") {
                return Ok(Challenge::Unanswered(seen));
            }
            if left < 2 * LOOK {
                sleep(left).await;
                return Ok(Challenge::Unanswered(seen));
            }
            sleep(LOOK).await;
            match timeout(HUNG, read_if_changed(self.bucket, &seen.tag)).await {
                Ok(Ok(Some(now))) => seen = now,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => tracing::debug!(%error, "a look for the holder's answer failed"),
                Err(_) => tracing::debug!("a look for the holder's answer hangs"),
            }
        }
    }

    fn refusal(&self, info: &LeaseInfo, advice: &str) -> Error {
        busy(format!("the volume is {}: {advice}", info.describe(self.host.unix_time())))
    }
}

fn busy(detail: impl Into<std::borrow::Cow<'static, str>>) -> Error {
    Error::with(ErrorKind::Busy, "lease", detail)
}
