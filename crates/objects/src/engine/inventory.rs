//! What the newest manifest names, and what of it is there: for a check of a volume.

use std::collections::HashSet;
use std::sync::Arc;

use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt as _};
use slatedb::admin::AdminBuilder;
use slatedb::{PathResolver, VersionedManifest};
use store::{Error, ErrorKind, Result};

use super::clock::Clock;
use super::slate::{newest_manifest, plain, tables_of};
use super::snapshots::Snapshot;
use crate::bucket::Bucket;
use crate::object_names::engine_path;

/// What the newest manifest names.
#[derive(Debug)]
pub(crate) struct Inventory {
    /// The epoch of the last writer.
    pub(crate) epoch: u64,
    /// The last object of the log whose rows are in tables.
    pub(crate) replay_after: u64,
    /// The names of its tables.
    pub(crate) tables: Vec<String>,
    /// The oldest first.
    pub(crate) snapshots: Vec<Snapshot>,
}

impl Inventory {
    /// Reads the newest manifest; `None`: there is none.
    ///
    /// # Errors
    /// The bucket's; `Io`: it is damaged.
    pub(crate) async fn read(bucket: &Bucket) -> Result<Option<Self>> {
        let (store, root) = bucket.raw();
        let Some(manifest) = newest_manifest(Arc::clone(&store), &root).await? else { return Ok(None) };
        if let Some(before) = manifest_before(store, &root, &manifest).await?
            && (before.writer_epoch() > manifest.writer_epoch()
                || before.replay_after_wal_id() > manifest.replay_after_wal_id())
        {
            let why = "the newest object below meta/manifest/ contradicts the one before it: one of them is damaged";
            return Err(Error::with(ErrorKind::Io, "check", why));
        }
        let names = PathResolver::new(engine_path(&root), &manifest);
        let views = manifest.all_sst_views().map(|view| names.sst_path(&view.sst.id));
        let begun_with = bucket.parents().manifest();
        Ok(Some(Self {
            epoch: manifest.writer_epoch(),
            replay_after: manifest.replay_after_wal_id().max(bucket.parents().log()),
            tables: views.map(|path| path.filename().unwrap_or_default().to_owned()).collect(),
            snapshots: Snapshot::all(manifest.checkpoints(), begun_with),
        }))
    }

    /// The names of the tables of a snapshot.
    ///
    /// # Errors
    /// The bucket's; `Io`: its manifest is missing or damaged.
    pub(crate) async fn tables_of(bucket: &Bucket, snapshot: &Snapshot) -> Result<Vec<String>> {
        let (store, root) = bucket.raw();
        tables_of(store, &root, snapshot.number).await
    }
}

/// The manifest before another, if it is there and can be read. Manifests have no checksum: what is
/// known to grow from one to the next is compared.
async fn manifest_before(
    store: Arc<dyn ObjectStore>,
    root: &Path,
    manifest: &VersionedManifest,
) -> Result<Option<VersionedManifest>> {
    let Some(number) = manifest.id().checked_sub(1).filter(|number| *number > 0) else { return Ok(None) };
    let admin =
        AdminBuilder::new(engine_path(root), store).with_system_clock(Arc::new(Clock::default())).build();
    match admin.read_manifest(Some(number)).await {
        Ok(before) => Ok(before),
        Err(error) if matches!(error.kind(), slatedb::ErrorKind::Internal | slatedb::ErrorKind::Data) => {
            Ok(None)
        }
        Err(error) => Err(plain(&error)),
    }
}

/// Those of `tables` that are not `listed`, nor where a parent of the volume has them: these are
/// `listed` from then on, for most are of many snapshots.
///
/// # Errors
/// The bucket's.
pub(crate) async fn missing_tables(
    bucket: &Bucket,
    listed: &mut HashSet<String>,
    tables: &[String],
) -> Result<Vec<String>> {
    let (store, root) = bucket.raw();
    let mut missing = Vec::new();
    for table in tables {
        if listed.contains(table) {
            continue;
        }
        let path = engine_path(&root).join("compacted").join(table.as_str());
        let is_there = match bucket.parents().table_at(&root, &path) {
            None => false,
            // The store leads to where it is.
            Some(_) => match Arc::clone(&store).head(&path).await {
                Ok(_) => true,
                Err(object_store::Error::NotFound { .. }) => false,
                Err(error) => return Err(Error::with(ErrorKind::Io, "check", error.to_string())),
            },
        };
        if is_there {
            listed.insert(table.clone());
        } else {
            missing.push(table.clone());
        }
    }
    Ok(missing)
}
