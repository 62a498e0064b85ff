//! The newest manifest of a volume's tables, from which each opening begins.

use store::{Error, ErrorKind, Result};

use crate::bucket::Bucket;
use crate::engine::{LastManifest, last_manifest};
use crate::engine_store::{EngineStore, Found};
use crate::object_names::engine_path;

/// The largest manifest: one names some hundred tables and snapshots, in 100 bytes each.
const BYTES_MAX: u64 = 16 << 20;
/// How often it is looked for: a newer one may replace it, and it may be removed, in between.
const LOOKS: usize = 8;

/// The newest manifest.
///
/// # Errors
/// The bucket's; `Io`: there is none any more.
pub(crate) async fn newest_manifest(bucket: &Bucket) -> Result<Option<LastManifest>> {
    Ok(find_newest(bucket).await?.map(|(last, _)| last))
}

/// The newest manifest, and what the engine is opened with.
///
/// # Errors
/// As [`newest_manifest`].
pub(crate) async fn find_newest(bucket: &Bucket) -> Result<Option<(LastManifest, Found)>> {
    let found = find_some(bucket).await?;
    Ok(found.map(|(last, found)| (last.behind(bucket.parents()), found)))
}

async fn find_some(bucket: &Bucket) -> Result<Option<(LastManifest, Found)>> {
    let found = look(bucket).await?;
    if found.is_some() {
        return Ok(found);
    }
    let Some(object) = bucket.some_names("log", 1).await?.pop() else { return Ok(None) };
    // Another host may just have mounted the new volume: its manifest comes before its log.
    let found = look(bucket).await?;
    if found.is_none() {
        let why = format!("there is no manifest, though log/{object} is there");
        return Err(older_metadata(bucket, &why));
    }
    Ok(found)
}

async fn look(bucket: &Bucket) -> Result<Option<(LastManifest, Found)>> {
    let number = |name: &str| name.strip_suffix(".manifest").and_then(|number| number.parse::<u64>().ok());
    for _ in 0..LOOKS {
        let names = bucket.list("meta/manifest", None).await?;
        let numbered = names.iter().filter_map(|name| Some((number(name)?, name)));
        let Some((_, newest)) = numbered.max() else { return Ok(None) };
        let Some((bytes, _)) = bucket.get_at_most(&format!("meta/manifest/{newest}"), BYTES_MAX).await?
        else {
            continue;
        };
        let (store, root) = bucket.raw();
        let engine = engine_path(&root);
        let found = Found::new(engine.clone().join("manifest").join(newest.as_str()), bytes);
        let read = EngineStore::new(store, &engine, Some(found.clone()), Vec::new());
        return Ok(last_manifest(read, &root).await?.map(|(last, tables)| (last, found.with_tables(tables))));
    }
    Err(Error::with(ErrorKind::Busy, "open", "the newest manifest is replaced again and again"))
}

/// An error: what is below `meta/` is not what the last holder left there.
pub(crate) fn older_metadata(bucket: &Bucket, why: &str) -> Error {
    let detail = format!(
        "{}/meta: {why}; put the objects below meta/ back that are missing, and everything is there",
        bucket.url()
    );
    Error::with(ErrorKind::Io, "open", detail)
}
