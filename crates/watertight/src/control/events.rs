//! `GET /v1/events`: the events of a volume, one JSON object in each line, as long as the caller
//! listens.
//!
//! A caller has no queue of its own: it reads the volume's journal, which keeps the newest events
//! for all, at its own pace. The server reads on when the caller's socket takes more; a caller that
//! is too slow finds a gap.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::UNIX_EPOCH;

use eventpoll::{EventPoll, Interest, PollFd, Read, Reader};
use hyper::body::{Body, Bytes, Frame};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;
use volume::events::{Edge, Events, Life, Limit, What};

use super::api::{millis, now_ms};
use super::registered;
use crate::control::volume_id::VolumeId;
use crate::term::shown::{Name, Words};

/// Events in one piece of the answer.
const BATCH: usize = 64;

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Its number; of a gap, that of the last event that is missing. Numbers only grow, and now and
    /// then one is left out.
    pub seq: u64,
    /// When, in milliseconds since the epoch.
    pub time_ms: u64,
    /// The volume's id.
    pub volume: VolumeId,
    /// The event.
    #[serde(flatten)]
    pub what: EventKind,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum EventKind {
    /// The volume's life went on.
    Life {
        /// Where it is now.
        state: Life,
        /// Where it was mounted or attached.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        path: Option<Name>,
        /// Why it failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        error: Option<Words>,
    },
    /// A limit of a cgroup begins or ceases to hold its writers up.
    Limit {
        /// The cgroup, as a path below the root of the hierarchy.
        cgroup: Name,
        /// Which limit.
        limit: Limit,
        /// Which end.
        edge: Edge,
    },
    /// The store does not answer, or answers again.
    Stall {
        /// Which end.
        edge: Edge,
    },
    /// Writers wait for room in the cache, or no more.
    CacheFull {
        /// Which end.
        edge: Edge,
    },
    /// Data could not be written. It stays in the cache, and is tried again.
    Error {
        /// The file's path in the volume, or `inode NUMBER`.
        file: Name,
        /// Why.
        error: Words,
    },
    /// The reader was too slow.
    Gap {
        /// So many numbers are missing.
        lost: u64,
    },
}

impl From<&What> for EventKind {
    fn from(what: &What) -> Self {
        let text = |path: &std::path::PathBuf| Name::of(path);
        match what {
            What::Life { state, path, error } => Self::Life {
                state: *state,
                path: path.as_ref().map(text),
                error: error.clone().map(Words::from),
            },
            What::Limit { cgroup, limit, edge } => {
                Self::Limit { cgroup: text(cgroup), limit: *limit, edge: *edge }
            }
            What::Stall(edge) => Self::Stall { edge: *edge },
            What::CacheFull(edge) => Self::CacheFull { edge: *edge },
            What::Error { node, path, error } => Self::Error {
                file: path.as_ref().map_or_else(|| format!("inode {node}").into(), text),
                error: error.to_string().into(),
            },
        }
    }
}

/// A caller's request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Wish {
    /// Only events after this number.
    since: u64,
    /// Go on after the existing events.
    follow: bool,
}

impl Wish {
    /// Reads a query: `since=NUMBER` and `follow=true` or `false`, separated by `&`.
    pub(super) fn parse(query: Option<&str>) -> Result<Self, String> {
        let mut wish = Self { since: 0, follow: true };
        for pair in query.into_iter().flat_map(|query| query.split('&')) {
            let known = match pair.split_once('=') {
                Some(("since", number)) => number.parse().map(|number| wish.since = number).is_ok(),
                Some(("follow", yes)) => yes.parse().map(|yes| wish.follow = yes).is_ok(),
                _ => false,
            };
            if !known {
                return Err(format!("events takes since=NUMBER and follow=true or false, not {pair}"));
            }
        }
        Ok(wish)
    }
}

/// The body of an answer.
#[derive(Debug)]
pub(super) struct Stream {
    volume: VolumeId,
    reader: Reader<volume::events::Event>,
    /// Becomes ready when there is more; none if the caller does not want to wait.
    more: Option<AsyncFd<PollFd>>,
}

impl Stream {
    pub(super) fn new(volume: VolumeId, events: &Events, wish: Wish) -> io::Result<Self> {
        let journal = events.journal();
        let more = if wish.follow {
            let poll = EventPoll::new();
            let interest = Interest::edge(eventpoll::Events::IN);
            poll.add(&**journal, interest, 0).map_err(io::Error::other)?;
            Some(registered(PollFd::new(Arc::new(poll))?, tokio::io::Interest::READABLE)?)
        } else {
            None
        };
        Ok(Self { volume, reader: journal.reader(wish.since), more })
    }

    /// Lines for existing entries, up to a batch; and whether there will never be more.
    fn lines(&mut self) -> (Vec<u8>, bool) {
        let mut lines = Vec::new();
        for _ in 0..BATCH {
            let (seq, time_ms, what) = match self.reader.read() {
                Read::Entry { number, value } => {
                    let since = value.at.duration_since(UNIX_EPOCH).unwrap_or_default();
                    (number, millis(since), EventKind::from(&value.what))
                }
                Read::Lost(lost) => (self.reader.seen(), now_ms(), EventKind::Gap { lost }),
                Read::Nothing => return (lines, self.more.is_none()),
                Read::End => return (lines, true),
            };
            let event = Event { seq, time_ms, volume: self.volume.clone(), what };
            // Strings and numbers: there is nothing in it that JSON has not.
            let _cannot_fail = serde_json::to_writer(&mut lines, &event);
            lines.extend(b"\n");
        }
        (lines, false)
    }
}

impl Body for Stream {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        loop {
            let (lines, is_over) = self.lines();
            if !lines.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(lines.into()))));
            }
            let Some(more) = self.more.as_ref().filter(|_| !is_over) else { return Poll::Ready(None) };
            let mut told = ready!(more.poll_read_ready(context))?;
            // Signals that came before are done with; a later one makes it ready again.
            if told.get_inner().take(&mut Vec::new(), 1) == Ok(0) {
                told.clear_ready();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_what_the_query_says() {
        assert_eq!(Wish::parse(None), Ok(Wish { since: 0, follow: true }));
        assert_eq!(Wish::parse(Some("since=7&follow=false")), Ok(Wish { since: 7, follow: false }));
        for wrong in ["", "since", "since=-1", "follow=no", "since=1&since=x", "until=3"] {
            assert!(Wish::parse(Some(wrong)).unwrap_err().contains("events takes since=NUMBER"), "{wrong}");
        }
    }
}
