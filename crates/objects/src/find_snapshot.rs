//! Snapshots by their names.

use store::{Error, ErrorKind, Result};

use crate::bucket::Bucket;
use crate::engine::{Snapshot, snapshots};

/// The longest name.
const NAME_BYTES_MAX: usize = 100;

const OP: &str = "snapshot";

/// Refuses what no snapshot may be called.
///
/// # Errors
/// `Invalid`, with the reason.
pub fn check_name(name: &str) -> Result<()> {
    let why = if name.is_empty() {
        "it is empty"
    } else if name.len() > NAME_BYTES_MAX {
        "it has more than 100 bytes"
    } else if name.chars().any(|c| matches!(c, '/' | ',') || c.is_control()) {
        "it has a slash, a comma or a control character"
    } else if name.trim() != name {
        "it begins or ends with a space"
    } else {
        return Ok(());
    };
    let shown: String = name.chars().filter(|c| !c.is_control()).take(NAME_BYTES_MAX).collect();
    Err(Error::with(ErrorKind::Invalid, OP, format!("`{shown}` is no name of a snapshot: {why}")))
}

/// An error: there is no snapshot of this name.
pub(crate) fn not_there(bucket: &Bucket, name: &str, there: &[Snapshot]) -> Error {
    let url = bucket.url();
    let detail = match there.last() {
        Some(last) => {
            format!(
                "{url}: there is no snapshot `{name}`; `watertight snapshot list` lists them, the last is `{}`",
                last.name
            )
        }
        None => format!("{url}: there is no snapshot `{name}`, and no other"),
    };
    Error::with(ErrorKind::NotFound, OP, detail)
}

/// The snapshots of a volume, the oldest first. The volume need not be held for that.
pub(crate) async fn list(bucket: &Bucket) -> Result<Vec<Snapshot>> {
    let (store, root) = bucket.raw();
    snapshots((store, &root), bucket.parents().manifest()).await
}

/// The snapshot `name` of a volume, which need not be held for that.
pub(crate) async fn find(bucket: &Bucket, name: &str) -> Result<Snapshot> {
    check_name(name)?;
    let mut there = list(bucket).await?;
    match there.iter().position(|snapshot| snapshot.name == name) {
        Some(at) => Ok(there.swap_remove(at)),
        None => Err(not_there(bucket, name, &there)),
    }
}
