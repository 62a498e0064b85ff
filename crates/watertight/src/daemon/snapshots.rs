//! Snapshots of a volume that is mounted or attached, made by the process that holds it.

use volume::Volume;

use crate::control::api::{SnapshotsReply, SnapshotsRequest};
use crate::object_volumes::words;
use crate::term::shown::in_one_line;

/// Why a store has none.
const NONE: &str = "its store keeps no snapshots: volumes on object storage do";

/// Does what a caller asks for.
pub(super) fn snapshots(volume: &Volume, request: SnapshotsRequest) -> Result<SnapshotsReply, String> {
    let snapshots = volume.snapshots().ok_or(NONE)?;
    let why = |error: store::Error| in_one_line(words(&error));
    let snapshots = match request {
        SnapshotsRequest::Create { name } => {
            volume.sync_all().map_err(|error| error.to_string())?;
            vec![snapshots.create(&name).map_err(why)?]
        }
        SnapshotsRequest::Delete { name } => {
            snapshots.delete(&name).map_err(why)?;
            Vec::new()
        }
        SnapshotsRequest::List => snapshots.list().map_err(why)?,
    };
    Ok(SnapshotsReply { snapshots: snapshots.into_iter().map(Into::into).collect() })
}
