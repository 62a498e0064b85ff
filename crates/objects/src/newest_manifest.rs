//! The newest manifest of a volume's tables, from which each opening begins.

use std::sync::Arc;

use store::{Error, ErrorKind, Result};

use crate::bucket::Bucket;
use crate::engine::{LastManifest, last_manifest};

/// The newest manifest.
///
/// # Errors
/// The bucket's; `Io`: there is none any more.
pub(crate) async fn newest_manifest(bucket: &Bucket) -> Result<Option<LastManifest>> {
    Ok(manifest_of(bucket).await?.map(|last| last.behind(bucket.parents())))
}

async fn manifest_of(bucket: &Bucket) -> Result<Option<LastManifest>> {
    let (store, root) = bucket.raw();
    let last = last_manifest(Arc::clone(&store), &root).await?;
    if last.is_some() {
        return Ok(last);
    }
    let Some(object) = bucket.some_names("log", 1).await?.pop() else { return Ok(None) };
    // Another host may just have mounted the new volume: its manifest comes before its log.
    let last = last_manifest(store, &root).await?;
    if last.is_none() {
        let why = format!("there is no manifest, though log/{object} is there");
        return Err(older_metadata(bucket, &why));
    }
    Ok(last)
}

/// An error: what is below `meta/` is not what the last holder left there.
pub(crate) fn older_metadata(bucket: &Bucket, why: &str) -> Error {
    let detail = format!(
        "{}/meta: {why}; put the objects below meta/ back that are missing, and everything is there",
        bucket.url()
    );
    Error::with(ErrorKind::Io, "open", detail)
}
