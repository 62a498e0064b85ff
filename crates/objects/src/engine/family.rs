//! Which tables a clone and each of its parents began with.

use std::sync::Arc;

use object_store::path::Path;
use store::Result;

use super::slate::tables_of;
use crate::bucket::Bucket;
use crate::parents::{Parent, Parents};

/// The objects of a volume with these parents, the nearest first, and the tables that it began
/// with, where they are.
///
/// # Errors
/// The bucket's; `Io`: a manifest is missing or damaged.
pub(crate) async fn with_parents(bucket: &Bucket, parents: &[Parent]) -> Result<Bucket> {
    let (store, root) = bucket.raw();
    let above = parents.iter().map(|parent| Path::from(parent.prefix.as_str()));
    let mut begun_with = Vec::new();
    for (place, parent) in std::iter::once(root).chain(above).zip(parents) {
        let tables = tables_of(Arc::clone(&store), &place, parent.manifest).await?;
        begun_with.push(tables.into_iter().collect());
    }
    Ok(bucket.with_parents(Parents::with_tables(parents, &begun_with)))
}
