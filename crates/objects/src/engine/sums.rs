//! How the engine adds changes of numbers: of the totals, and of what is alive in each object.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;
use slatedb::{MergeOperator, MergeOperatorError};
use store::Result;

use crate::rows::{self, TOTALS, Totals};

/// Adds changes.
pub(super) struct Sums;

fn add<T: Default + Serialize + DeserializeOwned>(
    existing: Option<&Bytes>,
    change: &Bytes,
    sum: impl FnOnce(T, T) -> T,
) -> Result<Bytes> {
    let read = |bytes: &Bytes| rows::from_bytes::<T>(bytes, "a sum");
    let before = existing.map_or_else(|| Ok(T::default()), read)?;
    Ok(rows::to_bytes(&sum(before, read(change)?)))
}

impl MergeOperator for Sums {
    fn merge(
        &self,
        key: &Bytes,
        existing: Option<Bytes>,
        change: Bytes,
    ) -> Result<Bytes, MergeOperatorError> {
        let sum = if key == TOTALS {
            add(existing.as_ref(), &change, |before: Totals, change: Totals| Totals {
                bytes: before.bytes.saturating_add(change.bytes),
                inodes: before.inodes.saturating_add(change.inodes),
            })
        } else {
            add(existing.as_ref(), &change, i64::saturating_add)
        };
        sum.map_err(|error| MergeOperatorError::Callback { message: error.to_string() })
    }
}
