//! What the lease object says.

use std::fmt;

use chrono::DateTime;
use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

/// The only version of the object that this program knows.
const VERSION: u32 = 1;
/// An object is not longer than this.
pub(super) const BYTES_MAX: usize = 16 << 10;
const HOST_CHARS: usize = 255;
const MOUNTPOINT_CHARS: usize = 1024;
const BOOT_ID_CHARS: usize = 64;

/// The contents of the lease object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseInfo {
    version: u32,
    /// Grows by one with each holder.
    pub epoch: u64,
    /// New with each holder. A free lease has its last holder's.
    pub nonce: Nonce,
    /// Whether a process holds the volume.
    pub state: State,
    /// Which one.
    pub holder: Option<Holder>,
    /// The engine's epoch that the holder saw before it took the volume.
    pub engine_epoch: u64,
    /// The last process that asked whether the holder is alive.
    pub claim: Option<Claim>,
    /// The nonce of the claim that the holder answered.
    pub answered: Option<Nonce>,
    /// The journal that may have data that the bucket has not.
    pub journal: Option<JournalMark>,
    /// From whom the holder took the volume.
    pub took: Option<Took>,
}

/// Whether a process holds the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// None does.
    Free,
    /// One does.
    Held,
}

/// A process that holds the volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Holder {
    /// The name of its host.
    pub host: String,
    /// The process itself.
    pub process: Process,
    /// Where it mounted the volume.
    pub mountpoint: String,
    /// When, in seconds of the Unix epoch by its host's clock: for people only.
    pub since: u64,
}

/// A process, so that its end can be told for sure on the same host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Process {
    /// Of the host's running kernel.
    pub boot_id: String,
    /// Its number in its pid namespace.
    pub pid: u32,
    /// When it started, as the kernel counts it.
    pub start_time: u64,
    /// The inode of its pid namespace.
    pub pid_namespace: u64,
    /// The inode of its time namespace, by whose offset the start time is shown.
    pub time_namespace: Option<u64>,
}

/// A process that asks whether the holder is alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// What the holder is to repeat.
    pub nonce: Nonce,
    /// The name of the host that asks.
    pub host: String,
    /// The process that asks.
    pub pid: u32,
}

/// A journal on a disk of a host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalMark {
    /// The name of the host.
    pub host: String,
    /// The directory that was given there: for people only.
    pub directory: String,
    /// What tells it from all others, also from those of hosts with the same name.
    pub id: Nonce,
}

/// The holder before this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Took {
    /// The nonce of the earlier holder.
    pub from: Nonce,
    /// Why the volume could be taken.
    pub how: How,
}

/// Why a volume could be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum How {
    /// It was free.
    Free,
    /// The holder's process had ended, on the taker's own host.
    Dead,
    /// The holder did not answer a claim.
    Unanswered,
}

/// A random number that is used once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Nonce(u128);

impl Nonce {
    /// A new one.
    pub(super) fn new() -> Result<Self> {
        let mut bytes = [0; 16];
        let flags = rustix::rand::GetRandomFlags::empty();
        // The kernel gives up to 256 bytes whole.
        match rustix::rand::getrandom(&mut bytes, flags) {
            Ok(16) => Ok(Self(u128::from_be_bytes(bytes))),
            Ok(_) => Err(Error::with(ErrorKind::Io, "lease", "the kernel gave too few random bytes")),
            Err(error) => Err(Error::with(ErrorKind::Io, "lease", format!("random bytes: {error}"))),
        }
    }

    /// The number with these bytes.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(u128::from_be_bytes(bytes))
    }

    /// Its bytes.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }
}

impl TryFrom<String> for Nonce {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let is_hex = text.len() == 32 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let nonce = is_hex.then(|| u128::from_str_radix(&text, 16).ok()).flatten();
        nonce.map(Self).ok_or("a nonce is not 32 hexadecimal digits")
    }
}

impl From<Nonce> for String {
    fn from(nonce: Nonce) -> Self {
        nonce.to_string()
    }
}

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl LeaseInfo {
    /// The lease of a volume that no process held yet.
    pub(super) const fn free(nonce: Nonce) -> Self {
        Self {
            version: VERSION,
            epoch: 0,
            nonce,
            state: State::Free,
            holder: None,
            engine_epoch: 0,
            claim: None,
            answered: None,
            journal: None,
            took: None,
        }
    }

    /// The lease of a volume of which it is only known that its last writer had this epoch.
    pub(super) fn free_behind(nonce: Nonce, epoch: u64) -> Self {
        Self { epoch, engine_epoch: epoch, ..Self::free(nonce) }
    }

    /// Whether an object that cannot be parsed may be of a volume that has a journal.
    pub(crate) fn may_name_a_journal(bytes: &[u8]) -> bool {
        let name = b"\"journal\":{";
        bytes.windows(name.len()).any(|part| part == name)
    }

    /// The object's bytes, parsed and held to their bounds.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let damaged = |why: &dyn fmt::Display| {
            let why = why.to_string().escape_debug().take(200).collect::<String>();
            let detail = format!(
                "the lease (object `lease`) is damaged ({why}): put it back as it was; or, if no host has the \
                 volume mounted, delete it: the volume's `watertight format` again makes a new one, and changes \
                 nothing else"
            );
            Error::with(ErrorKind::Io, "lease", detail)
        };
        if bytes.len() > BYTES_MAX {
            return Err(damaged(&format_args!("{} bytes long", bytes.len())));
        }
        let Versioned { version } = serde_json::from_slice(bytes).map_err(|error| damaged(&error))?;
        if version > VERSION {
            let detail = format!("the lease has version {version}: this program knows {VERSION}, update it");
            return Err(Error::with(ErrorKind::Unsupported, "lease", detail));
        }
        let info: Self = serde_json::from_slice(bytes).map_err(|error| damaged(&error))?;
        match info.check() {
            Ok(()) => Ok(info),
            Err(why) => Err(damaged(&why)),
        }
    }

    fn check(&self) -> Result<(), &'static str> {
        let is_short = |text: &str, max: usize| text.chars().nth(max).is_none();
        let is_pid = |pid: u32| i32::try_from(pid).is_ok_and(|pid| pid > 0);
        if self.version == 0 {
            return Err("its version is 0");
        }
        if self.holder.is_some() != (self.state == State::Held) {
            return Err("its state and its holder contradict each other");
        }
        if let Some(holder) = &self.holder {
            let is_bounded = is_short(&holder.host, HOST_CHARS)
                && is_short(&holder.mountpoint, MOUNTPOINT_CHARS)
                && is_short(&holder.process.boot_id, BOOT_ID_CHARS);
            if !is_bounded || !is_pid(holder.process.pid) {
                return Err("its holder is out of bounds");
            }
        }
        if self.claim.as_ref().is_some_and(|claim| !is_short(&claim.host, HOST_CHARS) || !is_pid(claim.pid)) {
            return Err("its claim is out of bounds");
        }
        if self.journal.as_ref().is_some_and(|journal| {
            !is_short(&journal.host, HOST_CHARS) || !is_short(&journal.directory, MOUNTPOINT_CHARS)
        }) {
            return Err("its journal is out of bounds");
        }
        Ok(())
    }

    /// The object's bytes.
    pub(super) fn bytes(&self) -> Result<Vec<u8>> {
        let bytes = serde_json::to_vec(self).map_err(|error| {
            Error::with(ErrorKind::Io, "lease", format!("the lease cannot be written: {error}"))
        })?;
        match Self::parse(&bytes) {
            Ok(_) => Ok(bytes),
            Err(_) => Err(Error::with(ErrorKind::Invalid, "lease", "host name or mountpoint too long")),
        }
    }

    /// The claim that the holder did not answer yet.
    #[must_use]
    pub fn open_claim(&self) -> Option<&Claim> {
        self.claim.as_ref().filter(|claim| self.answered != Some(claim.nonce))
    }

    /// The lease of the next holder.
    pub(super) fn taken(&self, nonce: Nonce, holder: Holder, how: How) -> Result<Self> {
        let epoch =
            if is_on("lease-epoch-not-raised") { Some(self.epoch) } else { self.epoch.checked_add(1) };
        let Some(epoch) = epoch else {
            let detail =
                "the lease's epochs are used up: delete the object `lease`, and repeat `watertight format`";
            return Err(Error::with(ErrorKind::Io, "lease", detail));
        };
        let free = Self::free(nonce);
        let took = Some(Took { from: self.nonce, how });
        Ok(Self { epoch, state: State::Held, holder: Some(holder), took, ..free })
    }

    /// This lease, asked for by `claim`.
    pub(super) fn claimed(&self, claim: Claim) -> Self {
        Self { claim: Some(claim), answered: None, ..self.clone() }
    }

    /// This lease, its claim answered.
    pub(super) fn answered(&self) -> Self {
        Self { answered: self.claim.as_ref().map(|claim| claim.nonce), ..self.clone() }
    }

    /// This lease, released by its holder: all of it is in the bucket, and nothing in a journal.
    pub(super) fn released(&self) -> Self {
        Self { state: State::Free, holder: None, claim: None, answered: None, journal: None, ..self.clone() }
    }

    /// This lease, given back by its holder, which could not bring its journal to the bucket.
    pub(super) fn left(&self) -> Self {
        Self { journal: self.journal.clone(), ..self.released() }
    }

    /// Who holds the volume and since when, for people; `now` as in [`Holder::since`].
    #[must_use]
    pub fn describe(&self, now: u64) -> String {
        let Some(holder) = &self.holder else { return format!("free (epoch {})", self.epoch) };
        let answered = match &self.claim {
            Some(claim) if self.answered == Some(claim.nonce) => format!("; it answered {claim}"),
            Some(claim) => format!("; it did not answer {claim} yet"),
            None => String::new(),
        };
        format!("held by {}{answered}", holder.describe(now))
    }
}

impl JournalMark {
    pub(super) fn new(host: &str, directory: &str, id: Nonce) -> Self {
        Self { host: bounded(host, HOST_CHARS), directory: bounded(directory, MOUNTPOINT_CHARS), id }
    }
}

impl Claim {
    pub(super) fn new(nonce: Nonce, host: &str, pid: u32) -> Self {
        Self { nonce, host: bounded(host, HOST_CHARS), pid }
    }
}

impl Holder {
    pub(super) fn new(host: &str, process: Process, mountpoint: &str, since: u64) -> Self {
        let mountpoint = bounded(mountpoint, MOUNTPOINT_CHARS);
        Self { host: bounded(host, HOST_CHARS), process, mountpoint, since }
    }

    /// The process and where it mounted the volume, and since when.
    #[must_use]
    pub fn describe(&self, now: u64) -> String {
        let since = i64::try_from(self.since).ok().and_then(|since| DateTime::from_timestamp(since, 0));
        let since = since.map_or_else(String::new, |since| format!(", since {}", since.format("%F %R UTC")));
        match now.checked_sub(self.since) {
            Some(seconds) => format!("{self}{since} ({} ago)", age(seconds)),
            None => format!("{self}{since}"),
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, process, mountpoint, .. } = self;
        // Control characters of a stranger's host do not reach the terminal.
        write!(f, "host {}, process {}, at {}", host.escape_debug(), process.pid, mountpoint.escape_debug())
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a claim by host {}, process {}", self.host.escape_debug(), self.pid)
    }
}

/// The largest unit that there is at least one of.
fn age(seconds: u64) -> String {
    let (count, unit) = match seconds {
        0..60 => (seconds, "second"),
        60..3600 => (seconds / 60, "minute"),
        3600..86400 => (seconds / 3600, "hour"),
        _ => (seconds / 86400, "day"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

/// The front of a text, as long as the object may have it.
fn bounded(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}
