//! How the engine adds changes of numbers: of the totals, of what is used of quotas, and of what is
//! alive in each object.

use bytes::Bytes;
use serde::Serialize;
use slatedb::{MergeOperator, MergeOperatorError};
use store::Result;

use crate::rows::{self, TOTALS, Totals, Usage};

/// Adds changes.
pub(super) struct Sums;

fn add<T: Default + Serialize>(
    existing: Option<&Bytes>,
    change: &Bytes,
    read: impl Fn(&Bytes) -> Result<T>,
    sum: impl FnOnce(T, T) -> T,
) -> Result<Bytes> {
    let before = existing.map_or_else(|| Ok(T::default()), &read)?;
    Ok(rows::to_bytes(&sum(before, read(change)?)))
}

impl MergeOperator for Sums {
    fn merge(
        &self,
        key: &Bytes,
        existing: Option<Bytes>,
        change: Bytes,
    ) -> Result<Bytes, MergeOperatorError> {
        let sum = if key == TOTALS || key.first() == Some(&b'U') {
            let read = |bytes: &Bytes| rows::from_bytes(bytes, "the totals");
            add(existing.as_ref(), &change, read, Totals::plus)
        } else {
            add(existing.as_ref(), &change, |bytes| Usage::from_bytes(bytes), Usage::plus)
        };
        sum.map_err(|error| MergeOperatorError::Callback { message: error.to_string() })
    }
}
