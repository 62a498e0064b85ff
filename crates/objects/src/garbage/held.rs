//! Objects that are dead, and that a snapshot needs.
//!
//! A dead object was alive in a snapshot only if it was there when the snapshot was made
//! ([`Born`]), and had not died before. When it died is not known; when it was found dead is: a row
//! `H` says which manifest was the newest then, and snapshots of later manifests do not need it.
//! The row is written when nothing is under way any more that could use the object, as it would be
//! removed otherwise, so that it is never alive again.
//!
//! A snapshot that is being made may have a state from before a death that was found meanwhile:
//! while one is, nothing is removed and no row is written ([`SlateEngine::making`]).

use std::collections::BTreeMap;

use store::Result;
use sync::mutant::is_on;

use crate::engine::{Engine as _, Records, SlateEngine};
use crate::rows::{self, Born, Object};

/// The snapshots, as far as they need dead objects.
#[derive(Debug)]
pub(super) struct Holders {
    /// Their numbers, and what there was when they were made; `None`: that is not known, and they
    /// may need everything.
    snapshots: Vec<(u64, Option<Born>)>,
    /// Whether there are rows `H`.
    has_rows: bool,
}

impl Holders {
    pub(super) async fn read(engine: &SlateEngine, records: &Records) -> Result<Self> {
        let mut snapshots = Vec::new();
        for snapshot in &records.snapshots {
            let row = engine.get(&rows::born_key(snapshot.number)).await?;
            let born = row.map(|row| rows::from_bytes(&row, "what a snapshot needs")).transpose()?;
            snapshots.push((snapshot.number, born));
        }
        let has_rows = !engine.scan(rows::all_keys(b'H'), 1).await?.is_empty();
        Ok(Self { snapshots, has_rows })
    }

    /// Whether a snapshot may need an object that was found dead when the manifest `died` was the
    /// newest; `None`: just now.
    pub(super) fn need(&self, object: Object, died: Option<u64>) -> bool {
        if is_on("garbage-segment-of-a-snapshot") {
            return false;
        }
        self.snapshots.iter().any(|(number, born)| {
            died.is_none_or(|died| *number <= died) && born.is_none_or(|born| born.had(object))
        })
    }

    /// When an object was found dead.
    pub(super) async fn died(&self, engine: &SlateEngine, object: Object) -> Result<Option<u64>> {
        if !self.has_rows {
            return Ok(None);
        }
        let row = engine.get(&rows::held_key(object)).await?;
        row.map(|row| rows::from_bytes(&row, "when an object died")).transpose()
    }

    /// Those of `dead`, in their keys' order, of which it is not known already that a snapshot
    /// needs them.
    pub(super) async fn without_held(
        &self,
        engine: &SlateEngine,
        mut dead: Vec<Object>,
    ) -> Result<Vec<Object>> {
        let (Some(first), Some(last)) = (dead.first(), dead.last()) else { return Ok(dead) };
        if !self.has_rows {
            return Ok(dead);
        }
        let range = rows::held_key(*first)..[&rows::held_key(*last)[..], &[0]].concat();
        // No more than there are dead objects: each has a row `G`, too.
        let mut died = BTreeMap::new();
        for (key, row) in engine.scan(range, dead.len()).await? {
            let number: u64 = rows::from_bytes(&row, "when an object died")?;
            died.insert(rows::live_object(&key)?, number);
        }
        dead.retain(|object| died.get(object).is_none_or(|died| !self.need(*object, Some(*died))));
        Ok(dead)
    }
}

#[cfg(test)]
mod tests;
