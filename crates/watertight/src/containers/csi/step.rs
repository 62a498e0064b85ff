//! `csi-step`: what the controller does with a bucket, in a process of its own: it has the call's
//! credentials in its environment, and one whose store does not answer can be ended.
//!
//! The question is JSON on standard input, the answer JSON on standard output. Each step may be
//! repeated, also one that was killed at any point.

use std::io::Read as _;

use objects::{FormatOptions, QuotaCall, QuotaLimits};
use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind};

use super::ids::OF_A_CLONE;
use crate::object_volumes;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};

/// Bytes of a question.
const QUESTION_BYTES_MAX: u64 = 64 << 10;
/// Volumes whose snapshots one step looks at.
const VOLUMES_AT_ONCE: usize = 64;
/// From so many snapshots on, a step looks at no further volume. With those of one volume more, which
/// are a thousand at most, they are an answer that is read whole.
const SNAPSHOTS_AT_ONCE: usize = 1000;

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// A volume with this many bytes at least is to be there.
    Create {
        url: String,
        /// URLs above it, none of which may be a volume.
        above: Vec<String>,
        compress: Option<String>,
        /// Bytes that it takes: at least, and at most.
        size: Option<u64>,
        limit: Option<u64>,
        /// What it begins as: a volume, and one of its snapshots.
        source: Option<(String, String)>,
    },
    Delete {
        url: String,
    },
    /// Fails where there is none.
    Look {
        url: String,
    },
    /// Fails where the volume has no such snapshot.
    LookForSnapshot {
        url: String,
        name: String,
    },
    /// A larger quota, if nobody holds the volume.
    Expand {
        url: String,
        bytes: u64,
    },
    /// The volumes below a prefix, behind one.
    Volumes {
        prefix: String,
        after: Option<String>,
        most: usize,
    },
    /// The snapshots of a volume.
    Snapshots {
        url: String,
    },
    /// The snapshots of the volumes below a prefix, behind a volume.
    AllSnapshots {
        prefix: String,
        after: Option<String>,
    },
}

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Snapshot {
    pub(super) volume: String,
    pub(super) name: String,
    /// In UTC by RFC 3339.
    pub(super) created: String,
    pub(super) bytes: u64,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    /// The volume is there, with a quota of so many bytes; none: no quota.
    Volume {
        bytes: Option<u64>,
    },
    /// A process holds it, which has to do that itself.
    Held,
    Volumes {
        names: Vec<String>,
        /// The volume behind which more may be.
        next: Option<String>,
    },
    Snapshots {
        all: Vec<Snapshot>,
        /// The volume behind which more may be.
        next: Option<String>,
    },
    Failed {
        kind: Kind,
        words: String,
    },
}

/// Which failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Kind {
    NotFound,
    /// There is one already that is not what is asked for.
    Other,
    Busy,
    /// A volume lies within another.
    Nested,
    Invalid,
    TooBig,
    Unavailable,
}

impl Answer {
    fn failed(kind: Kind, words: impl Into<String>) -> Self {
        Self::Failed { kind, words: words.into() }
    }
}

impl From<Error> for Answer {
    fn from(error: Error) -> Self {
        let kind = match error.kind() {
            ErrorKind::NotFound => Kind::NotFound,
            ErrorKind::Exists | ErrorKind::NotEmpty => Kind::Other,
            ErrorKind::Busy | ErrorKind::Stale => Kind::Busy,
            ErrorKind::Invalid | ErrorKind::Unsupported => Kind::Invalid,
            ErrorKind::TooBig => Kind::TooBig,
            _ => Kind::Unavailable,
        };
        Self::failed(kind, object_volumes::words(&error))
    }
}

/// Runs the verb.
///
/// # Errors
/// The question is none.
pub fn run() -> Result<()> {
    let mut question = Vec::new();
    let read = std::io::stdin().lock().take(QUESTION_BYTES_MAX).read_to_end(&mut question);
    read.map_err(|error| Problem::failure(format!("standard input: {error}")))?;
    let step: Step = serde_json::from_slice(&question).map_err(|error| Problem::usage(error.to_string()))?;
    let answer = step.carry_out().unwrap_or_else(Answer::from);
    console().print_value(&answer)
}

impl Step {
    fn carry_out(self) -> store::Result<Answer> {
        match self {
            Self::Create { url, above, compress, size, limit, source } => {
                create((&url, &above), compress.as_deref(), (size, limit), source)
            }
            Self::Delete { url } => delete(&url),
            Self::Look { url } => {
                objects::info(&url, None)?;
                Ok(Answer::Volume { bytes: None })
            }
            Self::LookForSnapshot { url, name } => {
                let is_there = objects::snapshots(&url)?.iter().any(|snapshot| snapshot.name == name);
                let missing = || Answer::failed(Kind::NotFound, format!("{url}: it has no snapshot {name}"));
                Ok(if is_there { Answer::Done } else { missing() })
            }
            Self::Expand { url, bytes } => expand(&url, bytes),
            Self::Volumes { prefix, after, most } => {
                let (names, next) = objects::volumes(&prefix, after.as_deref(), most)?;
                Ok(Answer::Volumes { names, next })
            }
            Self::Snapshots { url } => Ok(Answer::Snapshots { all: snapshots(&url)?, next: None }),
            Self::AllSnapshots { prefix, after } => {
                let (names, next) = objects::volumes(&prefix, after.as_deref(), VOLUMES_AT_ONCE)?;
                let of = |name: &str| match snapshots(&format!("{prefix}/{name}")) {
                    // Deleted meanwhile.
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(Vec::new()),
                    found => found,
                };
                let (all, next) = collected(names, next, SNAPSHOTS_AT_ONCE, of)?;
                Ok(Answer::Snapshots { all, next })
            }
        }
    }
}

/// The snapshots of these volumes, and the volume behind which more may be: of further volumes, or of
/// those that were left out because there are enough.
fn collected(
    names: Vec<String>,
    next: Option<String>,
    enough: usize,
    of: impl Fn(&str) -> store::Result<Vec<Snapshot>>,
) -> store::Result<(Vec<Snapshot>, Option<String>)> {
    let mut all = Vec::new();
    let mut names = names.into_iter().peekable();
    while let Some(name) = names.next() {
        all.extend(of(&name)?);
        if all.len() >= enough && names.peek().is_some() {
            return Ok((all, Some(name)));
        }
    }
    Ok((all, next))
}

fn snapshots(url: &str) -> store::Result<Vec<Snapshot>> {
    let all = objects::snapshots(url)?.into_iter().filter(|snapshot| !snapshot.name.starts_with(OF_A_CLONE));
    Ok(all
        .map(|found| Snapshot {
            volume: url.to_owned(),
            name: found.name,
            created: found.created,
            bytes: found.bytes,
        })
        .collect())
}

fn create(
    (url, above): (&str, &[String]),
    compress: Option<&str>,
    (size, limit): (Option<u64>, Option<u64>),
    source: Option<(String, String)>,
) -> store::Result<Answer> {
    let is_clone = source.is_some();
    let is_there = is_volume(url)?;
    if !is_there {
        for above in above {
            if is_volume(above)? {
                let why = format!("{url}: it would lie within a volume, {above}, and be deleted with it");
                return Ok(Answer::failed(Kind::Nested, why));
            }
        }
        if let Some(nested) = objects::nested_volume(url)? {
            let why = format!("{url}: another volume would lie within it, {url}/{nested}");
            return Ok(Answer::failed(Kind::Nested, why));
        }
        match source {
            None => make(url, compress)?,
            Some((from, snapshot)) => objects::clone_volume(&from, &snapshot, url).map(drop)?,
        }
    }
    let Some(size) = size else { return Ok(Answer::Volume { bytes: None }) };
    let root = || std::path::PathBuf::from("/");
    let set = || {
        let limits = QuotaLimits { bytes: Some(size), inodes: None };
        objects::quotas(url, None, &QuotaCall::Set(root(), limits))?;
        Ok(Answer::Volume { bytes: Some(size) })
    };
    let bytes = match objects::quotas(url, None, &QuotaCall::Get(root())) {
        Ok(quotas) => quotas.first().and_then(|quota| quota.bytes),
        Err(error) if error.kind() == ErrorKind::NoAttribute => None,
        // It is mounted: so an earlier call has made it.
        Err(error) if error.kind() == ErrorKind::Busy && is_there => {
            return Ok(Answer::Volume { bytes: Some(size) });
        }
        Err(error) => return Err(error),
    };
    match bytes {
        // An earlier call ended in between; or a clone has the quota of what it was made of.
        None => set(),
        Some(bytes) if is_clone && bytes < size => set(),
        Some(bytes) if bytes < size || limit.is_some_and(|limit| bytes > limit) => {
            let why = format!("{url}: there is a volume already, with a quota of {bytes} bytes");
            Ok(Answer::failed(Kind::Other, why))
        }
        Some(bytes) => Ok(Answer::Volume { bytes: Some(bytes) }),
    }
}

fn is_volume(url: &str) -> store::Result<bool> {
    match objects::info(url, None) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn make(url: &str, compress: Option<&str>) -> store::Result<()> {
    let compression = match compress {
        Some("lz4") => objects::Compression::Lz4,
        Some("none") => objects::Compression::None,
        _ => objects::Compression::Zstd,
    };
    objects::format(url, &FormatOptions { compression, ..FormatOptions::default() }).map(drop)
}

fn delete(url: &str) -> store::Result<Answer> {
    if let Some(name) = objects::nested_volume(url)? {
        let why = format!("{url}: another volume lies within it, {url}/{name}; delete that first");
        return Ok(Answer::failed(Kind::Nested, why));
    }
    match objects::snapshots(url) {
        Ok(all) => {
            for snapshot in all.iter().filter(|snapshot| snapshot.name.starts_with(OF_A_CLONE)) {
                // Where the clone is there, that is the error.
                objects::delete_snapshot(url, None, &snapshot.name)?;
            }
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    objects::delete_volume(url)?;
    Ok(Answer::Done)
}

fn expand(url: &str, bytes: u64) -> store::Result<Answer> {
    let root = || std::path::PathBuf::from("/");
    let now = match objects::quotas(url, None, &QuotaCall::Get(root())) {
        Ok(quotas) => quotas.first().and_then(|quota| quota.bytes),
        Err(error) if error.kind() == ErrorKind::NoAttribute => None,
        Err(error) if error.kind() == ErrorKind::Busy => return Ok(Answer::Held),
        Err(error) => return Err(error),
    };
    if let Some(now) = now.filter(|&now| now >= bytes) {
        return Ok(Answer::Volume { bytes: Some(now) });
    }
    let limits = QuotaLimits { bytes: Some(bytes), inodes: None };
    match objects::quotas(url, None, &QuotaCall::Set(root(), limits)) {
        Ok(_) => Ok(Answer::Volume { bytes: Some(bytes) }),
        Err(error) if error.kind() == ErrorKind::Busy => Ok(Answer::Held),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_ends_with_the_volume_that_makes_its_snapshots_enough() {
        let of = |volume: &str| {
            let one = |n: usize| Snapshot {
                volume: volume.to_owned(),
                name: n.to_string(),
                created: String::new(),
                bytes: 0,
            };
            Ok((0..3).map(one).collect())
        };
        let names = || ["a", "b", "c"].map(str::to_owned).to_vec();
        let end = |next: Option<&str>, enough| {
            let (all, next) = collected(names(), next.map(str::to_owned), enough, of).unwrap();
            (all.len(), next)
        };
        assert_eq!(end(Some("x"), 100), (9, Some("x".to_owned())));
        assert_eq!(end(None, 100), (9, None));
        for enough in [4, 6] {
            assert_eq!(end(Some("x"), enough), (6, Some("b".to_owned())), "{enough}");
        }
        assert_eq!(end(None, 7), (9, None));
    }
}
