//! Snapshots that the controller makes, finds and deletes.

use csi_proto::tonic::Code;
use csi_proto::v1::list_snapshots_response::Entry;
use csi_proto::v1::{
    self, CreateSnapshotRequest, DeleteSnapshotRequest, GetSnapshotRequest, ListSnapshotsRequest,
    ListSnapshotsResponse,
};

use super::bucket::{Bucket, unexpected};
use super::controller::{ControllerService, OF_SIDECARS, credentials, signed};
use super::deadline::Deadline;
use super::failure::{Failure, Result};
use super::ids::SnapshotId;
use super::pages::Page;
use super::step::{self, Answer, Step};
use super::time::timestamp;

impl ControllerService {
    pub(super) async fn create_one_snapshot(
        &self,
        deadline: Deadline,
        request: CreateSnapshotRequest,
    ) -> Result<v1::Snapshot> {
        let name = SnapshotId::new_name(&request.name)?;
        if let Some(key) = request.parameters.keys().find(|key| !key.starts_with(OF_SIDECARS)) {
            return Err(Failure::invalid(format!("a class of snapshots has no parameter {key:?}")));
        }
        let url = self.prefixes.volume(&request.source_volume_id)?;
        let bucket = self.bucket(&url, deadline, credentials(&request.secrets)?);
        if let Some(elsewhere) = self.snapshot_elsewhere(&bucket, &url, &name).await? {
            let code = Code::AlreadyExists;
            return Err(Failure::new(code, format!("there is a snapshot {name} of {elsewhere}")));
        }
        let made = bucket.create_snapshot(url, name).await?;
        Ok(snapshot(made))
    }

    /// Another volume that has a snapshot of this name, as far as this driver knows its volumes.
    async fn snapshot_elsewhere(&self, bucket: &Bucket<'_>, url: &str, name: &str) -> Result<Option<String>> {
        let Some((prefix, _)) = url.rsplit_once('/') else { return Ok(None) };
        // Kubernetes' names have a UUID, and need no look at every volume.
        if ends_with_uuid(name) || !self.prefixes.all().iter().any(|known| known == prefix) {
            return Ok(None);
        }
        let mut after = None;
        loop {
            let step = Step::AllSnapshots { prefix: prefix.to_owned(), after };
            let answer = bucket.ask("looking at snapshots", step).await?;
            let Answer::Snapshots { all, next } = answer else { return Err(unexpected(&answer)) };
            let found = all.into_iter().find(|one| one.name == name && one.volume != url);
            if found.is_some() || next.is_none() {
                return Ok(found.map(|one| one.volume));
            }
            after = next;
        }
    }

    pub(super) async fn delete_one_snapshot(
        &self,
        deadline: Deadline,
        request: DeleteSnapshotRequest,
    ) -> Result<()> {
        if request.snapshot_id.is_empty() {
            return Err(Failure::invalid("the snapshot's id is missing"));
        }
        // An id that names nothing of any bucket: there is nothing to delete.
        let Some(id) = SnapshotId::to_delete(&request.snapshot_id, &self.prefixes)? else { return Ok(()) };
        let bucket = self.bucket(&id.volume.clone(), deadline, credentials(&request.secrets)?);
        bucket.delete_snapshot(id).await
    }

    pub(super) async fn list_some_snapshots(
        &self,
        deadline: Deadline,
        request: ListSnapshotsRequest,
    ) -> Result<ListSnapshotsResponse> {
        let mut page = Page::parse(request.max_entries, &request.starting_token, self.prefixes.all().len())?;
        let credentials = credentials(&request.secrets)?;
        let list = |of: &str| self.bucket(&format!("list {of}"), deadline, credentials.clone());
        let none = || Ok(ListSnapshotsResponse::default());
        let (volume, name) = if request.snapshot_id.is_empty() {
            (request.source_volume_id.clone(), None)
        } else {
            let Some(id) = SnapshotId::parse(&request.snapshot_id, &self.prefixes) else { return none() };
            (id.volume, Some(id.name))
        };
        let mut found = Vec::new();
        if volume.is_empty() {
            while let Some(prefix) = self.prefixes.all().get(page.prefix).filter(|_| found.len() < page.most)
            {
                let step = Step::AllSnapshots { prefix: prefix.clone(), after: page.after.clone() };
                let answer = list(prefix).ask("listing", step).await?;
                let Answer::Snapshots { all, next } = answer else { return Err(unexpected(&answer)) };
                page.take(all, next, &mut found);
                if deadline.is_half_over() {
                    break;
                }
            }
            let next_token = page.token(self.prefixes.all().len());
            return Ok(ListSnapshotsResponse { entries: entries(found), next_token });
        }
        let Ok(url) = self.prefixes.volume(&volume) else { return none() };
        let all = match list(&url).ask("listing", Step::Snapshots { url: url.clone() }).await {
            Ok(Answer::Snapshots { all, .. }) => all,
            Ok(other) => return Err(unexpected(&other)),
            Err(failure) if failure.code == Code::NotFound => return none(),
            Err(failure) => return Err(failure),
        };
        let all = all.into_iter().filter(|one| name.as_ref().is_none_or(|name| *name == one.name)).collect();
        page.take(all, None, &mut found);
        let next_token = page.token(1);
        Ok(ListSnapshotsResponse { entries: entries(found), next_token })
    }

    pub(super) async fn get_one_snapshot(
        &self,
        deadline: Deadline,
        request: GetSnapshotRequest,
    ) -> Result<v1::Snapshot> {
        if request.snapshot_id.is_empty() {
            return Err(Failure::invalid("the snapshot's id is missing"));
        }
        let missing = || SnapshotId::missing(&request.snapshot_id);
        let id = SnapshotId::parse(&request.snapshot_id, &self.prefixes).ok_or_else(missing)?;
        let key = format!("list {}", id.volume);
        let bucket = self.bucket(&key, deadline, credentials(&request.secrets)?);
        let answer = bucket.ask("listing", Step::Snapshots { url: id.volume }).await?;
        let Answer::Snapshots { all, .. } = answer else { return Err(unexpected(&answer)) };
        all.into_iter().find(|one| one.name == id.name).map(snapshot).ok_or_else(missing)
    }
}

fn entries(found: Vec<step::Snapshot>) -> Vec<Entry> {
    found.into_iter().map(|one| Entry { snapshot: Some(snapshot(one)) }).collect()
}

fn snapshot(found: step::Snapshot) -> v1::Snapshot {
    let step::Snapshot { volume, name, created, bytes } = found;
    v1::Snapshot {
        size_bytes: signed(Some(bytes)),
        snapshot_id: SnapshotId { volume: volume.clone(), name }.to_string(),
        source_volume_id: volume,
        creation_time: Some(timestamp(&created)),
        ready_to_use: true,
        ..Default::default()
    }
}

/// Whether a name ends as those do that Kubernetes' sidecars make.
fn ends_with_uuid(name: &str) -> bool {
    let Some(start) = name.len().checked_sub(36) else { return false };
    name.bytes().skip(start).enumerate().all(|(at, byte)| match at {
        8 | 13 | 18 | 23 => byte == b'-',
        _ => byte.is_ascii_hexdigit(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_sidecars_are_told_from_others() {
        assert!(ends_with_uuid("snapshot-0c1b2a3d-4e5f-6789-abcd-ef0123456789"));
        for name in [
            "",
            "s1",
            "snapshot-0c1b2a3d-4e5f-6789-abcd-ef012345678g",
            "0c1b2a3d4e5f-6789-abcd-ef0123456789-",
        ] {
            assert!(!ends_with_uuid(name), "{name}");
        }
    }
}
