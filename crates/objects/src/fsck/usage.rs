//! How much of each object is in use: what rows say, and what extents refer to.

use std::collections::BTreeMap;

use store::Result;

use super::cursor::Cursor;
use super::damage::{Damage, Findings};
use super::record::signed;
use crate::engine::Engine;
use crate::rows::{self, ExtentRow, Object, Usage};

/// Objects that are compared in one walk over the extents.
pub(super) const WINDOW: usize = 1 << 20;

/// What is known of an object.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    /// What its row says; `None`: it has none, or it cannot be read.
    is: Option<i64>,
    right: i64,
}

/// Compares the rows of objects with the extents, `window` objects at a time.
///
/// # Errors
/// The engine's.
pub(super) async fn check(engine: &dyn Engine, window: usize, found: &mut Findings) -> Result<()> {
    if engine.get(rows::COUNTED).await?.is_none() {
        // Volumes of early builds do not count.
        return Ok(());
    }
    let (mut from, end) = ([rows::COUNTED, &[0]].concat(), rows::all_keys(b'G').end);
    let mut first = None;
    loop {
        let counts = engine.scan(from.clone()..end.clone(), window).await?;
        let is_last = counts.len() < window;
        let mut known: BTreeMap<Object, Known> = BTreeMap::new();
        for (key, usage) in &counts {
            match rows::live_object(key) {
                Ok(object) => {
                    let is = Usage::from_bytes(usage).ok().map(|usage| usage.live);
                    known.insert(object, Known { is, right: 0 });
                }
                Err(_) => found.add(Damage::Row { key: key.to_vec() }),
            }
            from = [&key[..], &[0]].concat();
        }
        if known.is_empty() && !is_last {
            continue;
        }
        let last = if is_last { None } else { known.last_key_value().map(|(object, _)| *object) };
        count(engine, (first, last), &mut known).await?;
        for (object, Known { is, right }) in known {
            if is != Some(right) {
                found.add(Damage::Usage { object, is, right });
            }
        }
        if is_last {
            return Ok(());
        }
        first = last.or(first);
    }
}

/// Counts what extents refer to, of the objects behind the first and up to the last.
async fn count(
    engine: &dyn Engine,
    (first, last): (Option<Object>, Option<Object>),
    known: &mut BTreeMap<Object, Known>,
) -> Result<()> {
    let mut extents = Cursor::new(engine, b'E');
    while let Some(row) = extents.next().await? {
        let Ok(extent) = rows::from_bytes::<ExtentRow>(&row.value, "an extent") else { continue };
        let Some((stored, _)) = extent.data else { continue };
        let object = stored.object;
        if first.is_some_and(|first| object <= first) || last.is_some_and(|last| object > last) {
            continue;
        }
        let right = &mut known.entry(object).or_default().right;
        *right = right.saturating_add(signed(extent.len));
    }
    Ok(())
}
