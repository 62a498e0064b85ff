//! How the engine adds changes of the totals.

use bytes::Bytes;
use slatedb::{MergeOperator, MergeOperatorError};

use crate::rows::{self, Totals};

/// Adds changes of the totals.
pub(super) struct AddTotals;

impl MergeOperator for AddTotals {
    fn merge(
        &self,
        _key: &Bytes,
        existing: Option<Bytes>,
        change: Bytes,
    ) -> Result<Bytes, MergeOperatorError> {
        let read = |bytes: &Bytes| {
            rows::from_bytes::<Totals>(bytes, "the totals")
                .map_err(|error| MergeOperatorError::Callback { message: error.to_string() })
        };
        let change = read(&change)?;
        let before = existing.as_ref().map_or(Ok(Totals::default()), read)?;
        let sum = Totals {
            bytes: before.bytes.saturating_add(change.bytes),
            inodes: before.inodes.saturating_add(change.inodes),
        };
        Ok(rows::to_bytes(&sum))
    }
}
