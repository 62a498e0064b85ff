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

fn name(id: &str, number: u64) -> String {
    format!("reader/{id}/{number:012}")
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
}

impl Mark {
    /// Makes the first: what can be read now can be read until it is removed.
    pub(crate) async fn set(bucket: Bucket) -> Result<Self> {
        let mut mark = Self { bucket, id: Uuid::random()?.to_string(), number: 0 };
        mark.renew().await?;
        Ok(mark)
    }

    /// Makes the first of a reader of the snapshot with this number. Only then it is looked whether
    /// the snapshot is there.
    pub(crate) async fn set_of_snapshot(bucket: Bucket, snapshot: u64) -> Result<Self> {
        let id = format!("{}{}", of_snapshot(snapshot), Uuid::random()?);
        let mut mark = Self { bucket, id, number: 0 };
        mark.renew().await?;
        Ok(mark)
    }

    async fn renew(&mut self) -> Result<()> {
        let next = self.number + 1;
        // Its name is random: also an object that is there already was made by this process.
        let _made = self.bucket.create(&name(&self.id, next), PutPayload::new()).await?;
        let last = std::mem::replace(&mut self.number, next);
        if last > 0 {
            self.bucket.delete(&name(&self.id, last)).await?;
        }
        Ok(())
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
        let (last, bucket) = (name(&self.id, self.number), self.bucket.with_patience(REMOVAL));
        if let Err(error) = bucket.delete(&last).await {
            tracing::debug!(%error, "the mark of a reader stays until the volume's holder removes it");
        }
    }
}

/// What a holder knows of readers.
#[derive(Debug, Default)]
pub(crate) struct Readers {
    /// The last mark of each, and how often it was found.
    known: BTreeMap<String, (String, u32)>,
    looks: u64,
    /// Whether the last look found none for whose sake something stays.
    are_none: bool,
}

impl Readers {
    /// How often it was looked for them.
    pub(crate) const fn looks(&self) -> u64 {
        self.looks
    }

    /// Whether the last look found none, but for those who read a snapshot.
    pub(crate) const fn are_none(&self) -> bool {
        self.are_none
    }

    /// Looks for readers, and removes marks of those that are gone; returns the marks of the
    /// others, but for those who read one of these snapshots.
    pub(crate) async fn look(&mut self, bucket: &Bucket, snapshots: &[Snapshot]) -> Result<Vec<String>> {
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
        let others: Vec<_> = others.map(|(id, (number, _))| format!("reader/{id}/{number}")).collect();
        self.are_none = others.is_empty();
        Ok(others)
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
        assert!(readers.look(&bucket, &[]).await.unwrap().is_empty());
        let mark = Mark::set(bucket.clone()).await.unwrap();
        let mut crashed = Mark::set(bucket.clone()).await.unwrap();
        for _ in 0..LOOKS - 1 {
            assert_eq!(readers.look(&bucket, &[]).await.unwrap().len(), 2);
        }
        crashed.renew().await.unwrap();
        mark.remove().await;
        for _ in 0..LOOKS {
            assert_eq!(readers.look(&bucket, &[]).await.unwrap().len(), 1, "it made a mark since");
        }
        assert!(readers.look(&bucket, &[]).await.unwrap().is_empty(), "it is gone");
        assert!(bucket.list("reader", None).await.unwrap().is_empty(), "and its mark, too");
    }
}
