//! How a volume is cloned: a new volume begins as a snapshot of another, its parent, in the same
//! bucket. Nothing of what the snapshot shows is copied.
//!
//! The new `format` names the parents, and is the clone. It begins with the snapshot's manifest,
//! which is copied, and its lease is made last: without that no process takes it. An object
//! `clone/NUMBER-UUID` of the parent, the **pin**, says that the snapshot with this number is
//! needed by a clone, and where that is.
//!
//! # Why no snapshot is deleted that a clone needs
//! - A deletion first makes the object `clone/NUMBER-deleted`, which stays, and then looks for
//!   pins. A clone first makes its pin, then its `format`, and then looks for both. So one of the
//!   two sees the other, and gives up.
//! - A pin without its clone is that of one that was removed, or never came to be. A deletion
//!   removes it, and then looks for the clone again. A clone that finds its pin gone is not there.
//! - The object is one for all deletions, and one that finds a clone removes it. So an earlier one,
//!   of a process that was stopped and taken over since, deletes nothing when it goes on: it writes
//!   the manifest that follows the one which was the newest before it looked for pins, or none.
//! - A clone whose making was interrupted, or whose `format` came late, has no lease: a mount of it
//!   looks for its pin and for a deletion again, and makes the rest or is refused.
//!
//! A user who removes a clone's objects by other means than this program may remove its `format`
//! first: then the clone needs nothing any more.

use object_store::PutPayload;
use object_store::path::Path;
use serde::{Deserialize, Serialize};
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;

use crate::bucket::{Bucket, Condition};
use crate::engine::Snapshot;
use crate::find_snapshot::find;
use crate::format::{self, Format, Uuid};
use crate::lease::Lease;
use crate::parents::{PARENTS_MAX, Parent, Parents};

const OP: &str = "clone";
/// Where pins and deletions are.
const DIR: &str = "clone";
/// The largest pin.
const PIN_BYTES_MAX: u64 = 16 << 10;
/// What a deletion is called instead of a clone's identity.
const DELETED: &str = "deleted";
/// Names that are looked at before a clone has its lease.
const LOOKED_AT: usize = 100;

/// The clone that needs a snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Pin {
    /// Where it is in the bucket.
    prefix: String,
    uuid: Uuid,
}

fn name_of(number: u64, of: &str) -> String {
    format!("{number:016x}-{of}")
}

/// Makes a clone at `to` of the snapshot `name` of the volume at `from`.
///
/// # Errors
/// `NotFound`: there is no such volume, or snapshot; `Exists`: there is a volume at `to`.
pub(crate) async fn make(from: &Bucket, name: &str, to: &Bucket) -> Result<(Format, Snapshot)> {
    make_as(Uuid::random()?, from, name, to).await
}

/// As [`make`], with this identity, which no volume has.
pub(crate) async fn make_as(
    uuid: Uuid,
    from: &Bucket,
    name: &str,
    to: &Bucket,
) -> Result<(Format, Snapshot)> {
    let parent = format::read(from).await?;
    let snapshot = find(&from.with_parents(Parents::new(&parent.parents)), name).await?;
    if parent.parents.len() >= PARENTS_MAX {
        let why =
            format!("{}: it is a clone itself, of {PARENTS_MAX} generations: copy it instead", from.url());
        return Err(Error::with(ErrorKind::TooBig, OP, why));
    }
    let ((_, prefix), (_, own)) = (from.raw(), to.raw());
    let of_snapshot = Parent {
        prefix: prefix.to_string(),
        uuid: parent.uuid,
        manifest: snapshot.number,
        epoch: snapshot.then.epoch,
        log: snapshot.then.log,
    };
    let clone = parent.cloned(uuid, of_snapshot);
    let pin = Pin { prefix: own.to_string(), uuid };
    let pin_name = format!("{DIR}/{}", name_of(snapshot.number, &uuid.to_string()));
    let json =
        serde_json::to_vec(&pin).map_err(|error| Error::with(ErrorKind::Invalid, OP, error.to_string()))?;
    // Its name is random: also one that is there already was made by this call.
    let _made = from.create(&pin_name, PutPayload::from(json)).await?;
    let made = async {
        let there = || {
            let why = format!("{}: there is a volume already; write another prefix", to.url());
            Error::with(ErrorKind::Exists, OP, why)
        };
        if let Condition::Failed { .. } =
            to.create(format::NAME, PutPayload::from(clone.to_json(to)?)).await?
            && format::read(to).await?.uuid != uuid
        {
            return Err(there());
        }
        finish(to, &clone).await
    };
    let Err(error) = made.await else { return Ok((clone, snapshot)) };
    match error.kind() {
        // Its first mount has ended what this call began.
        ErrorKind::NotFound | ErrorKind::NotEmpty if Lease::is_there(to).await? => {
            return Ok((clone, snapshot));
        }
        // The `format` is this call's own.
        ErrorKind::NotFound | ErrorKind::NotEmpty => to.delete(format::NAME).await?,
        ErrorKind::Exists => {}
        _ => return Err(error),
    }
    from.delete(&pin_name).await?;
    Err(error)
}

/// Makes sure that no clone needs a snapshot, and that none is made of it from here on: it may be
/// deleted then.
///
/// # Errors
/// `Busy`: a clone needs it; the words name that.
pub(crate) async fn forbid_clones(bucket: &Bucket, snapshot: &Snapshot) -> Result<()> {
    let mark = format!("{DIR}/{}", name_of(snapshot.number, DELETED));
    let _made = bucket.create(&mark, PutPayload::new()).await?;
    let start = name_of(snapshot.number, "");
    for name in bucket.list(DIR, None).await? {
        if !name.starts_with(&start) || name.ends_with(DELETED) || is_on("snapshot-of-a-clone-deleted") {
            continue;
        }
        if let Some(clone) = find_clone_or_unpin(bucket, &format!("{DIR}/{name}")).await? {
            bucket.delete(&mark).await?;
            let why = format!(
                "{}: the volume at {clone} in the same bucket is a clone of the snapshot `{}`, and needs it: delete its \
                 objects first",
                bucket.url(),
                snapshot.name
            );
            return Err(Error::with(ErrorKind::Busy, "snapshot", why));
        }
    }
    Ok(())
}

/// Finds the clone that this pin names; if there is none, removes the pin.
async fn find_clone_or_unpin(bucket: &Bucket, pin_name: &str) -> Result<Option<String>> {
    let Some((bytes, _)) = bucket.get_at_most(pin_name, PIN_BYTES_MAX).await? else { return Ok(None) };
    let pin: Pin = serde_json::from_slice(&bytes).map_err(|_| {
        let why = format!("{}/{pin_name} is damaged: it should name a clone; put it back", bucket.url());
        Error::with(ErrorKind::Io, "snapshot", why)
    })?;
    let place =
        Path::parse(&pin.prefix).map_err(|error| Error::with(ErrorKind::Io, OP, error.to_string()))?;
    let is_there = async || match format::read(&bucket.beside(place.clone())).await {
        Ok(format) => Ok(format.uuid == pin.uuid),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    };
    if is_there().await? {
        return Ok(Some(pin.prefix));
    }
    bucket.delete(pin_name).await?;
    if is_there().await? {
        // It came in between, and looks for its pin now or has found it.
        let _made = bucket.create(pin_name, PutPayload::from_bytes(bytes)).await?;
        return Ok(Some(pin.prefix));
    }
    Ok(None)
}

/// Ends the making of a clone that has no lease: makes sure that its snapshot stays, copies the
/// manifest that it begins with, and makes the lease.
///
/// # Errors
/// `NotFound`: the snapshot is being deleted, or was; `NotEmpty`: there are objects that no such
/// clone has.
pub(crate) async fn finish(bucket: &Bucket, format: &Format) -> Result<()> {
    let Some(parent) = format.parents.first() else { return Ok(()) };
    let manifest = format!("meta/manifest/{:020}.manifest", parent.manifest);
    let names = bucket.some_names("", LOOKED_AT).await?;
    let others = names.iter().find(|name| **name != format::NAME && **name != manifest);
    if let Some(other) = others {
        if Lease::is_there(bucket).await? {
            // Another host was quicker.
            return Ok(());
        }
        // It was mounted: then a lease that is missing is damage.
        let shown: String = other.chars().filter(|c| !c.is_control()).take(80).collect();
        let why = format!(
            "{}: the clone was never mounted, or its lease is missing, and other objects are here ({shown}, …)",
            bucket.url()
        );
        return Err(Error::with(ErrorKind::NotEmpty, OP, why));
    }
    let place = bucket.beside(Path::from(parent.prefix.as_str()));
    let names = place.list(DIR, None).await?;
    let has = |of: &str| names.contains(&name_of(parent.manifest, of));
    let is_deleted = has(DELETED) && !is_on("clone-of-a-snapshot-that-is-deleted");
    let is_pinned = has(&format.uuid.to_string()) || is_on("clone-without-its-pin");
    if is_deleted || !is_pinned {
        let why = format!(
            "{}: it never came to be a clone of {}: the snapshot is being deleted, or was",
            bucket.url(),
            place.url()
        );
        return Err(Error::with(ErrorKind::NotFound, OP, why));
    }
    let Some((bytes, _)) = place.get(&manifest).await? else {
        let why = format!(
            "{}/{manifest}: the object is missing, from which the clone begins: put it back",
            place.url()
        );
        return Err(Error::with(ErrorKind::Io, OP, why));
    };
    let _made = bucket.create(&manifest, PutPayload::from_bytes(bytes)).await?;
    // Another host may make it as well.
    let _made = Lease::create_free(bucket).await?;
    Ok(())
}

#[cfg(test)]
mod schedules;
#[cfg(test)]
mod tests;
