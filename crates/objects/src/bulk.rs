//! Bulk data of rounds on its way into segments.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use store::Result;
use tokio::time::sleep;
use tokio::{pin, select};

use crate::pending::given_up;
use crate::rows::Stored;
use crate::segment_queue::{Extents, Queued, len_of_pieces};
use crate::segments::EXTENT_BYTES_MAX;
use crate::tree::Tree;
use crate::turns::Turn;

/// How long less than a segment waits for others to share one with, while nobody waits for it.
const ALONE_MAX: Duration = Duration::from_secs(1);

impl Tree {
    /// Writes extents of one inode to segments, when it is their tenant's turn, and returns where each
    /// begins in the file, and where it is: it is durable then, or, if somebody waits for it, in the
    /// journal. `awaited` gives a future that ends when somebody waits for it.
    pub(crate) async fn put_bulk<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        (tenant, ino): (u64, u64),
        extents: Extents,
        is_awaited: bool,
        awaited: impl Fn() -> F,
    ) -> Result<Vec<(u64, Stored)>> {
        let mut groups = in_segments(extents);
        // What somebody waits for goes at once, and by itself into a journal.
        if !is_awaited
            && !self.segments.has_journal()
            && groups.len() == 1
            && let Some(extents) = groups.pop()
        {
            return self.put_with_others((tenant, ino), extents, awaited).await;
        }
        // Its data is in memory twice until it is encoded, and then encoded until it is there.
        // The turn ends before the caller waits for an earlier round, which may need one.
        let _turn = self.turn(tenant, is_awaited, awaited()).await;
        let mut stored = Vec::new();
        for extents in groups {
            stored.extend(self.segments.put_bulk(ino, extents, awaited()).await?);
        }
        Ok(stored)
    }

    /// As [`put_bulk`](Self::put_bulk), of what is no more than a segment and nobody waits for: it shares
    /// one with what else waits then, unless somebody waits for it first.
    async fn put_with_others<F: Future<Output = ()> + Send>(
        self: &Arc<Self>,
        (tenant, ino): (u64, u64),
        extents: Extents,
        awaited: impl Fn() -> F,
    ) -> Result<Vec<(u64, Stored)>> {
        let starts: Vec<u64> = extents.iter().map(|(start, _)| *start).collect();
        let (queued, received) = self.segment_queue.add(tenant, ino, extents);
        let others = async { received.await.map_err(|_| given_up()) };
        pin!(others);
        let turn = async {
            if !queued.fills_segment() {
                select! {
                    () = awaited() => {}
                    () = self.pending.room_wanted() => {}
                    () = sleep(ALONE_MAX) => {}
                }
            }
            self.turn(tenant, false, awaited()).await
        };
        let turn = select! {
            biased;
            done = &mut others => return Ok(starts.into_iter().zip(done??).collect()),
            turn = turn => turn,
        };
        let done = if let Some(own) = queued.take() {
            let is_awaited = awaited().now_or_never().is_some();
            let beside = queued.take_others(&own, is_awaited);
            self.put_shared(own, beside).await
        } else {
            drop(turn);
            others.await?
        };
        Ok(starts.into_iter().zip(done?).collect())
    }

    /// Writes `own` and others to one segment; where the extents of `own` are.
    async fn put_shared(&self, own: Queued, others: Vec<Queued>) -> Result<Vec<Stored>> {
        let (mut extents, mut receivers) = (Vec::new(), Vec::new());
        let len = own.extents.len();
        extents.extend(own.extents.into_iter().map(|(start, data)| (own.ino, start, data)));
        for other in others {
            receivers.push((other.done, other.extents.len()));
            extents.extend(other.extents.into_iter().map(|(start, data)| (other.ino, start, data)));
        }
        let mut stored = match self.segments.put_segment(extents).await {
            Ok(stored) => stored.into_iter(),
            Err(error) => {
                for (done, _) in receivers {
                    let _gone = done.send(Err(error.clone()));
                }
                return Err(error);
            }
        };
        let own = stored.by_ref().take(len).collect();
        for (done, len) in receivers {
            // One that was given up leaves garbage.
            let _gone = done.send(Ok(stored.by_ref().take(len).collect()));
        }
        Ok(own)
    }

    /// Waits for the turn of a tenant's segments. `None`: somebody waits for them, and a journal takes
    /// them at once.
    async fn turn(&self, tenant: u64, is_awaited: bool, awaited: impl Future<Output = ()>) -> Option<Turn> {
        let turns = self.segments.turns();
        if !is_awaited {
            select! {
                biased;
                () = awaited => {}
                turn = turns.turn(tenant, false) => return Some(turn),
            }
        }
        if self.segments.has_journal() {
            return None;
        }
        Some(turns.turn(tenant, true).await)
    }
}

/// Extents in groups, each for one segment.
fn in_segments(extents: Extents) -> Vec<Extents> {
    let (mut groups, mut bytes) = (Vec::new(), usize::MAX);
    for (start, pieces) in extents {
        let len = len_of_pieces(&pieces);
        if bytes.saturating_add(len) > EXTENT_BYTES_MAX {
            groups.push(Vec::new());
            bytes = 0;
        }
        bytes += len;
        groups.last_mut().expect("the first extent begins one").push((start, pieces));
    }
    groups
}
