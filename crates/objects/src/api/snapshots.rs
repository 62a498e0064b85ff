//! Snapshots of a volume that this process has not opened.

use std::path::Path;

use serde::Serialize;
use store::{Error, ErrorKind, Result, Snapshot};

use super::{OpenOptions, open_held};
use crate::bucket::Bucket;
use crate::clone_volume::make;
use crate::find_snapshot::{check_name, list};
use crate::format;
use crate::key_file;
use crate::mount::Mounted;
use crate::open::open_shared;
use crate::parents::Parents;
use crate::url::Url;
use crate::wait::wait;

/// A snapshot, as its volume's bucket describes it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotInfo {
    /// Its name.
    pub name: String,
    /// When it was made, in UTC by RFC 3339.
    pub created: String,
    /// Bytes of the files that it shows.
    pub bytes: u64,
    /// Its files, directories and links.
    pub files: u64,
}

impl From<Snapshot> for SnapshotInfo {
    fn from(snapshot: Snapshot) -> Self {
        let Snapshot { name, created, bytes, files } = snapshot;
        Self { name, created, bytes, files }
    }
}

/// Makes a snapshot of a volume, which is held meanwhile.
///
/// # Errors
/// As [`open`](super::open); `Exists`: there is one of that name.
pub fn create_snapshot(url: &str, key_file: Option<&Path>, name: &str) -> Result<SnapshotInfo> {
    check_name(name)?;
    let made = held(url, key_file, async |mounted| mounted.create_snapshot(name).await)?;
    Ok(Snapshot::from(made).into())
}

/// Deletes a snapshot of a volume, which is held meanwhile.
///
/// # Errors
/// As [`open`](super::open); `NotFound`: there is none of that name.
pub fn delete_snapshot(url: &str, key_file: Option<&Path>, name: &str) -> Result<()> {
    check_name(name)?;
    held(url, key_file, async |mounted| mounted.delete_snapshot(name).await)
}

/// The snapshots of a volume, the oldest first; it is not held for that.
///
/// # Errors
/// The bucket's; `NotFound`: there is no volume.
pub fn snapshots(url: &str) -> Result<Vec<SnapshotInfo>> {
    let bucket = open_shared(&url.parse::<Url>()?)?;
    let runtime = crate::runtime::handle()?;
    let found = wait(&runtime, async {
        let format = format::read(&bucket).await?;
        list(&bucket.with_parents(Parents::new(&format.parents))).await
    })?;
    Ok(found.into_iter().map(|snapshot| Snapshot::from(snapshot).into()).collect())
}

/// A volume that was cloned.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cloned {
    /// Its canonical name.
    pub url: String,
    /// Its identity.
    pub uuid: String,
    /// The snapshot that it begins as.
    pub snapshot: SnapshotInfo,
}

/// Makes a new volume that begins as the snapshot `name` of another in the same bucket; nothing of
/// its data is copied, and nobody holds either volume for that.
///
/// # Errors
/// `NotFound`: there is no such volume or snapshot; `Exists`: there is a volume already at `new`;
/// `Invalid`: the two are not in one bucket, or one lies in the other.
pub fn clone_volume(url: &str, name: &str, new: &str) -> Result<Cloned> {
    check_name(name)?;
    let (from, to): (Url, Url) = (url.parse()?, new.parse()?);
    let parent_of = |url: &Url| url.directory().and_then(|dir| dir.parent().map(Path::to_owned));
    let why = if from.to_string() == to.to_string() {
        "it is the volume itself; give the clone a prefix of its own"
    } else if (from.scheme(), from.bucket()) != (to.scheme(), to.bucket())
        || parent_of(&from) != parent_of(&to)
    {
        "a clone reads the data of its volume, and has to be in the same bucket; of `file://`, in the same directory"
    } else if from.prefix().prefix_matches(to.prefix()) || to.prefix().prefix_matches(from.prefix()) {
        "one of the two prefixes lies in the other"
    } else {
        ""
    };
    if !why.is_empty() {
        return Err(Error::with(ErrorKind::Invalid, "clone", format!("{to}: {why}")));
    }
    let (from, bucket) = (open_shared(&from)?, open_shared(&to)?);
    let runtime = crate::runtime::handle()?;
    let (format, snapshot) = wait(&runtime, make(&from, name, &bucket))?;
    let (url, uuid) = (to.to_string(), format.uuid.to_string());
    Ok(Cloned { url, uuid, snapshot: Snapshot::from(snapshot).into() })
}

fn held<T>(url: &str, key_file: Option<&Path>, work: impl AsyncFnOnce(&Mounted) -> Result<T>) -> Result<T> {
    let url: Url = url.parse()?;
    let key = key_file.map(key_file::read).transpose()?;
    let bucket: Bucket = open_shared(&url)?;
    let runtime = crate::runtime::handle()?;
    let worked = async {
        let options = OpenOptions { mountpoint: "snapshot".to_owned(), ..OpenOptions::default() };
        let mounted = open_held(&bucket, key.as_ref(), &options).await?;
        let worked = work(&mounted).await;
        mounted.close().await;
        worked
    };
    wait(&runtime, worked)
}
