//! `snapshot`: makes, lists and deletes snapshots of a volume on object storage.
//!
//! The process that holds the volume makes and deletes them. Where one of this host does, it is
//! asked; else the bucket is: the volume is held for that, if nobody does.

use std::fmt::Write as _;

use objects::SnapshotInfo;
use serde_json::json;

use super::sync;
use crate::cli::{SnapshotAction, SnapshotArgs};
use crate::control::api::{Snapshot, SnapshotsRequest};
use crate::control::client::Client;
use crate::control::progress;
use crate::host::mount_agent;
use crate::host::mountinfo::Mount;
use crate::object_volumes::{canonical, looks_like, problem};
use crate::registry::target::RegisteredVolume;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::term::units;

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a name, a URL, a path or a key file that cannot be; 1 where there is such a snapshot
/// already, or none, where another process holds the volume, and where the bucket cannot be used.
pub fn run(args: &SnapshotArgs) -> Result<()> {
    let request = request(args)?;
    let found = match args.volume.to_str().filter(|volume| looks_like(volume)) {
        Some(url) => {
            let url = canonical(url)?;
            match of_this_host(&url) {
                Some((volume, mount)) => by_its_process(&volume, mount.as_ref(), &request)?,
                None => by_its_bucket(&url, args, &request)?,
            }
        }
        None => {
            let (volume, mount) = sync::find(&args.volume)?;
            by_its_process(&volume, mount.as_ref(), &request)?
        }
    };
    let volume = args.volume.shown();
    if args.json {
        return match &request {
            SnapshotsRequest::Create { .. } => console().print_value(&found.first()),
            SnapshotsRequest::Delete { name } => console().print_value(&json!({ "deleted": name })),
            SnapshotsRequest::List => console().print_value(&json!({ "snapshots": found })),
        };
    }
    console().print(&match &request {
        SnapshotsRequest::Create { name } => format!(
            "{volume}: the snapshot {} is made; `watertight mount -o snapshot={} URL DIRECTORY` shows it",
            name.shown(),
            name.shown()
        ),
        SnapshotsRequest::Delete { name } => format!("{volume}: the snapshot {} is deleted", name.shown()),
        SnapshotsRequest::List if found.is_empty() => format!("{volume}: it has no snapshots"),
        SnapshotsRequest::List => page(&found),
    });
    Ok(())
}

fn request(args: &SnapshotArgs) -> Result<SnapshotsRequest> {
    if let Some(name) = &args.name {
        // A process that is asked could only say that it failed.
        objects::check_snapshot_name(name)
            .map_err(|error| problem(&args.volume.shown().to_string(), &error))?;
    }
    match (args.action, args.name.clone()) {
        (SnapshotAction::Create, Some(name)) => Ok(SnapshotsRequest::Create { name }),
        (SnapshotAction::Delete, Some(name)) => Ok(SnapshotsRequest::Delete { name }),
        (SnapshotAction::List, None) => Ok(SnapshotsRequest::List),
        (SnapshotAction::List, Some(_)) => Err(Problem::usage("`snapshot list` takes no name: it shows all")),
        (SnapshotAction::Create | SnapshotAction::Delete, None) => {
            Err(Problem::usage("give the name of the snapshot behind the volume"))
        }
    }
}

/// One line each.
pub(super) fn page(snapshots: &[Snapshot]) -> String {
    let mut page = String::new();
    for snapshot in snapshots {
        let (bytes, files) = (units::bytes(snapshot.bytes), units::count(snapshot.files, "file", "files"));
        let line_end = if page.is_empty() { "" } else { "\n" };
        // Of a string, which takes everything.
        let _written = write!(page, "{line_end}{}  {}  {bytes} in {files}", snapshot.created, snapshot.name);
    }
    page
}

/// The process of this host that has the volume mounted or attached for writing.
fn of_this_host(url: &str) -> Option<(RegisteredVolume, Option<Mount>)> {
    let (volume, mount) = sync::find(url.as_ref()).ok()?;
    let status = volume.client().ok()?.status().ok()?;
    (!status.read_only).then_some((volume, mount))
}

fn by_its_process(
    volume: &RegisteredVolume,
    mount: Option<&Mount>,
    request: &SnapshotsRequest,
) -> Result<Vec<Snapshot>> {
    let client: &Client = volume.client()?;
    let shown = &volume.record().mountpoint;
    let what = match request {
        SnapshotsRequest::Create { .. } => {
            let what = format!("making a snapshot of {shown}");
            // What rests in the kernel goes to the volume before.
            if let Some(mount) = mount {
                progress::during(&what, client, || mount_agent::flush(mount))?;
            }
            what
        }
        SnapshotsRequest::Delete { .. } => format!("deleting a snapshot of {shown}"),
        SnapshotsRequest::List => format!("looking at the snapshots of {shown}"),
    };
    progress::say_if_silent(&what, client);
    let done = progress::during(&what, client, || client.snapshots(request));
    done.map(|reply| reply.snapshots).map_err(|error| Problem::failure(format!("{shown}: {error}")))
}

fn by_its_bucket(url: &str, args: &SnapshotArgs, request: &SnapshotsRequest) -> Result<Vec<Snapshot>> {
    let key_file = args.encrypt_key_file.as_deref();
    let work = || match request {
        SnapshotsRequest::Create { name } => {
            objects::create_snapshot(url, key_file, name).map(|one| vec![one])
        }
        SnapshotsRequest::Delete { name } => {
            objects::delete_snapshot(url, key_file, name).map(|()| Vec::new())
        }
        SnapshotsRequest::List => objects::snapshots(url),
    };
    let what = format!("looking after the snapshots of {}", url.shown());
    let found = progress::waiting_for(&what, "the bucket", || work().map_err(|error| problem(url, &error)))?;
    Ok(found.into_iter().map(of_bucket).collect())
}

/// A snapshot as its volume's process would tell of it.
pub(super) fn of_bucket(snapshot: SnapshotInfo) -> Snapshot {
    let SnapshotInfo { name, created, bytes, files } = snapshot;
    Snapshot { name: name.into(), created: created.into(), bytes, files }
}
