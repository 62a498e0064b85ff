//! Those who read a volume without holding it: each keeps a mark in the bucket, and while there is
//! one, its holder removes nothing.
//!
//! A mark is an object `reader/ID/NUMBER`. Its reader makes the next and removes the last, again
//! and again, so that a holder sees by names alone that the reader is there, and no clocks are
//! compared. A mark that stays the same for long is that of a reader that has crashed, or is cut
//! off.
//!
//! The mark of one that reads a snapshot says which: what the snapshot needs stays without the
//! mark, as long as the snapshot is there.
//!
//! A reader that follows the log says in its mark's name (`reader/ID/NUMBER.SINCE`) that it needs
//! nothing that was garbage before object `SINCE` of the log was written: that is removed.

use std::collections::BTreeMap;
use std::time::Duration;

use object_store::PutPayload;
use store::Result;
use tokio_util::sync::CancellationToken;

use crate::bucket::{Bucket, Patience};
use crate::engine::Snapshot;
use crate::uuid::Uuid;

/// How often a reader makes a new mark.
const EACH: Duration = Duration::from_secs(300);
/// Looks of a holder that find the same mark after which its reader is gone.
const LOOKS: u32 = 4;
/// How long an unmount waits for the removal of a mark.
const REMOVAL: Patience = Patience::For(Duration::from_secs(5));

fn name(id: &str, number: u64, since: u64) -> String {
    let since = if since > 0 { format!(".{since:020}") } else { String::new() };
    format!("reader/{id}/{number:012}{since}")
}

/// The object of the log in a mark's name; 0: there is none.
fn since_of(mark: &str) -> u64 {
    mark.rsplit_once('.').and_then(|(_, since)| since.parse().ok()).unwrap_or(0)
}

/// How the id of a reader of a snapshot begins.
fn of_snapshot(number: u64) -> String {
    format!("{number:016x}-")
}

/// The mark of this process.
#[derive(Debug)]
pub(crate) struct Mark {
    bucket: Bucket,
    id: String,
    number: u64,
    since: u64,
}

impl Mark {
    /// Makes the first: what can be read now can be read until it is removed.
    pub(crate) async fn set(bucket: Bucket) -> Result<Self> {
        let mut mark = Self { bucket, id: Uuid::random()?.to_string(), number: 0, since: 0 };
        mark.renew().await?;
        Ok(mark)
    }

    /// Makes the first of a reader of the snapshot with this number. Only then it is looked whether
    /// the snapshot is there.
    pub(crate) async fn set_of_snapshot(bucket: Bucket, snapshot: u64) -> Result<Self> {
        let id = format!("{}{}", of_snapshot(snapshot), Uuid::random()?);
        let mut mark = Self { bucket, id, number: 0, since: 0 };
        mark.renew().await?;
        Ok(mark)
    }

    /// As one of these two; `None`: it is not there, which is logged. What is read is then there for
    /// a while only.
    pub(crate) async fn set_if_possible(bucket: &Bucket, snapshot: Option<u64>) -> Option<Self> {
        let mark = match snapshot {
            Some(snapshot) => Self::set_of_snapshot(bucket.clone(), snapshot).await,
            None => Self::set(bucket.clone()).await,
        };
        mark.inspect_err(|error| {
            let until = "what the holder replaces can be read for ten minutes from then";
            tracing::warn!(%error, until, "the volume's holder does not learn that it is read here");
        })
        .ok()
    }

    async fn renew(&mut self) -> Result<()> {
        let next = self.number + 1;
        // Its name is random: also an object that is there already was made by this process.
        let _made = self.bucket.create(&name(&self.id, next, self.since), PutPayload::new()).await?;
        let last = std::mem::replace(&mut self.number, next);
        if last > 0 {
            self.bucket.delete(&name(&self.id, last, self.since)).await?;
        }
        Ok(())
    }

    /// Makes the next, of a reader that has what it needs since this object of the log; says whether
    /// its last was still there: else what it has may have been removed.
    pub(crate) async fn renew_since(&mut self, since: u64) -> Result<bool> {
        let next = self.number + 1;
        let (mark, last) = (name(&self.id, next, since), name(&self.id, self.number, self.since));
        let _made = self.bucket.create(&mark, PutPayload::new()).await?;
        (self.number, self.since) = (next, since);
        let there = self.bucket.list(&format!("reader/{}", self.id), None).await?;
        self.bucket.delete(&last).await?;
        Ok(there.iter().any(|there| last.ends_with(&format!("/{there}"))))
    }

    /// Makes new marks until `end`, and then removes the last.
    pub(crate) async fn keep_until(mut self, end: CancellationToken) {
        let _ended = end.run_until_cancelled(self.keep()).await;
        self.remove().await;
    }

    async fn keep(&mut self) {
        loop {
            tokio::time::sleep(EACH).await;
            if let Err(error) = self.renew().await {
                tracing::warn!(%error, "the volume's holder does not learn that it is read here");
            }
        }
    }

    /// Nothing is read any more.
    pub(crate) async fn remove(self) {
        let (last, bucket) = (name(&self.id, self.number, self.since), self.bucket.with_patience(REMOVAL));
        if let Err(error) = bucket.delete(&last).await {
            tracing::debug!(%error, "the mark of a reader stays until the volume's holder removes it");
        }
    }
}

/// Readers that there are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// Their marks.
    pub(crate) marks: Vec<String>,
    /// What was garbage before this object of the log was written none of them needs; none: there is
    /// no reader.
    pub(crate) since: Option<u64>,
}

/// What a holder knows of readers.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// The last mark of each, and how often it was found.
    known: BTreeMap<String, (String, u32)>,
    looks: u64,
    /// Whether the last look found one for whose sake everything stays.
    keep_all: bool,
}

impl Readers {
    /// How often it was looked for them.
    pub(crate) const fn looks(&self) -> u64 {
        self.looks
    }

    /// Whether everything stays for the sake of one that the last look found: not for one that
    /// follows the log, or reads a snapshot.
    pub(crate) const fn keep_all(&self) -> bool {
        self.keep_all
    }

    /// Looks for readers, and removes marks of those that are gone; returns the others, but for
    /// those who read one of these snapshots.
    pub(crate) async fn look(&mut self, bucket: &Bucket, snapshots: &[Snapshot]) -> Result<Found> {
        self.looks += 1;
        let mut found = BTreeMap::new();
        for mark in bucket.list("reader", None).await? {
            let Some((id, number)) = mark.split_once('/') else { continue };
            // In order: of two the newer one counts.
            found.insert(id.to_owned(), number.to_owned());
        }
        let mut gone = Vec::new();
        let before = std::mem::take(&mut self.known);
        for (id, number) in found {
            let looks = before.get(&id).filter(|(last, _)| *last == number).map_or(0, |(_, looks)| looks + 1);
            if looks >= LOOKS {
                gone.push(format!("reader/{id}/{number}"));
            } else {
                self.known.insert(id, (number, looks));
            }
        }
        bucket.delete_many(&gone).await?;
        let snapshots: Vec<_> = snapshots.iter().map(|snapshot| of_snapshot(snapshot.number)).collect();
        let others = self.known.iter().filter(|(id, _)| !snapshots.iter().any(|of| id.starts_with(of)));
        let mut readers = Found::default();
        for (id, (number, _)) in others {
            let since = since_of(number);
            readers.marks.push(format!("reader/{id}/{number}"));
            readers.since = Some(readers.since.map_or(since, |before: u64| before.min(since)));
        }
        self.keep_all = readers.since == Some(0);
        Ok(readers)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;

    use super::*;

    #[tokio::test]
    async fn a_reader_is_there_until_it_ends_or_makes_no_marks_any_more() {
        let bucket = Bucket::new(Arc::new(InMemory::new()), "v".into());
        let mut readers = Readers::default();
        assert!(readers.look(&bucket, &[]).await.unwrap().marks.is_empty());
        let mark = Mark::set(bucket.clone()).await.unwrap();
        let mut crashed = Mark::set(bucket.clone()).await.unwrap();
        for _ in 0..LOOKS - 1 {
            assert_eq!(readers.look(&bucket, &[]).await.unwrap().marks.len(), 2);
        }
        crashed.renew().await.unwrap();
        mark.remove().await;
        for _ in 0..LOOKS {
            assert_eq!(readers.look(&bucket, &[]).await.unwrap().marks.len(), 1, "it made a mark since");
        }
        assert!(readers.look(&bucket, &[]).await.unwrap().marks.is_empty(), "it is gone");
        assert!(bucket.list("reader", None).await.unwrap().is_empty(), "and its mark, too");
    }

    #[tokio::test]
    async fn marks_say_what_their_readers_need() {
        let bucket = Bucket::new(Arc::new(InMemory::new()), "v".into());
        let mut readers = Readers::default();
        let mut first = Mark::set(bucket.clone()).await.unwrap();
        assert_eq!(readers.look(&bucket, &[]).await.unwrap().since, Some(0));
        assert!(readers.keep_all());
        assert!(first.renew_since(7).await.unwrap(), "its last is there");
        assert_eq!(readers.look(&bucket, &[]).await.unwrap().since, Some(7));
        assert!(!readers.keep_all(), "one that follows keeps some");
        let mut second = Mark::set(bucket.clone()).await.unwrap();
        assert!(second.renew_since(5).await.unwrap());
        assert_eq!(readers.look(&bucket, &[]).await.unwrap().since, Some(5));
        // The snapshot that it reads is not there: it needs all.
        let third = Mark::set_of_snapshot(bucket.clone(), 3).await.unwrap();
        assert_eq!(readers.look(&bucket, &[]).await.unwrap().since, Some(0));
        assert!(readers.keep_all());
        for mark in [first, second, third] {
            mark.remove().await;
        }
        assert_eq!(readers.look(&bucket, &[]).await.unwrap().since, None);
        assert!(!readers.keep_all());
    }
}
