//! The end of a family: nothing is left in the bucket that nobody needs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use store::Result;

use super::family::Member;
use super::host::observe;
use super::tables::alone;
use crate::find_snapshot::list;
use crate::garbage::Timing;
use crate::mount::{MountOptions, Mounted};
use crate::newest_manifest::newest_manifest;
use crate::object_names::segment_of;
use crate::rows::{self, ExtentRow, Object};
use crate::tree::Tree;

/// Collections after which all garbage is gone: marks of readers that crashed are taken for theirs
/// in the first ones.
const COLLECTIONS: usize = 8;
/// The nonce of this holder, which no other has.
const NONCE: [u8; 16] = [u8::MAX; 16];
/// The collector beside it does nothing.
const NEVER: Duration = Duration::from_secs(1 << 30);

/// Deletes the snapshots of a volume that no clone needs, and collects garbage. What is left is in
/// use by what the volume, or a snapshot that is left, shows; and that can be read.
pub(super) fn sweep(member: &Member) {
    let swept = alone(async {
        let volume = member.volume();
        let bucket = volume.bucket(u8::MAX, &Arc::default());
        let bucket = match volume.with_family(bucket).await {
            Ok(bucket) => bucket,
            Err(error) => {
                member.assert_refused(&error);
                return Ok(());
            }
        };
        let other_requests = bucket.clone().seeded(u8::MAX.into());
        let garbage = Timing { every: NEVER, passes: 1, left_alone: 0 };
        let options = MountOptions { garbage, ..MountOptions::plain(volume.window, NONCE) };
        let mounted = Mounted::open(bucket.clone(), newest_manifest(&bucket).await?, options).await?;
        let bucket = other_requests;
        let tree = mounted.tree();
        if let Some(snapshots) = &volume.snapshots {
            for snapshot in mounted.snapshots().await? {
                snapshots.delete(&mounted, Some(member), &snapshot.name).await?;
            }
        }
        let mut collector = mounted.collector(garbage).expect("it is written to");
        for _ in 0..COLLECTIONS {
            tree.sync_all().await?;
            collector.collect(false).await?;
        }
        let mut in_use = in_use(tree).await?;
        let left = list(&bucket).await?;
        for snapshot in &left {
            let options = MountOptions::plain(volume.window, [0; 16]);
            let shown = Mounted::open_snapshot(bucket.clone(), snapshot, options).await?;
            in_use.extend(self::in_use(shown.tree()).await?);
        }
        let there = bucket.list("seg", None).await?;
        let segments = there.iter().filter_map(|name| segment_of(&format!("seg/{name}")));
        let mut unused = Vec::new();
        for segment in segments.filter(|segment| !in_use.contains(segment)) {
            // Of one that was found dead after a snapshot was made it is not known whether it died before.
            let died = tree.engine.get(&rows::held_key(segment)).await?;
            let died: u64 = died.map_or(Ok(0), |row| rows::from_bytes(&row, "when an object died"))?;
            if !left.iter().any(|snapshot| snapshot.number <= died) {
                unused.push(segment);
            }
        }
        assert!(unused.is_empty(), "segments are left that nobody needs: {unused:?} of {}", volume.root);
        let last = volume.holders().last().map(|last| last.model(|model| model.now()));
        let last = last.or_else(|| member.begins_as());
        assert_eq!(Some(observe(tree).await?), last, "a collection changes what {} shows", volume.root);
        mounted.close().await;
        Ok::<_, store::Error>(())
    });
    swept.unwrap_or_else(|error| panic!("nobody takes {} over, and it fails: {error}", member.volume().root));
}

/// The objects that extents of this state refer to.
async fn in_use(tree: &Tree) -> Result<BTreeSet<Object>> {
    let mut in_use = BTreeSet::new();
    for (_, row) in tree.engine.scan(rows::all_keys(b'E'), usize::MAX).await? {
        let extent: ExtentRow = rows::from_bytes(&row, "an extent")?;
        in_use.extend(extent.data.map(|(stored, _)| stored.object));
    }
    Ok(in_use)
}
