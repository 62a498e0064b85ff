//! Volumes on object storage: made, cloned, listed, enlarged and deleted. No node is asked, and
//! nothing is kept: a volume's bucket is all that is known of it.

use csi_proto::tonic::{Request, async_trait};
use csi_proto::v1::controller_server::Controller;
use csi_proto::v1::controller_service_capability::{self, Rpc, rpc};
use csi_proto::v1::list_volumes_response::Entry as VolumeEntry;
use csi_proto::v1::validate_volume_capabilities_response::Confirmed;
use csi_proto::v1::volume_content_source::Type as SourceType;
use csi_proto::v1::{self, *};
use std::sync::Arc;

use super::bucket::{Bucket, Made, unexpected};
use super::capability::Access;
use super::deadline::Deadline;
use super::failure::{Answered, Failure, Result, answered};
use super::ids::{Prefixes, SnapshotId, check_id, new_volume};
use super::locks::Locks;
use super::pages::Page;
use super::pod_limits::{POD_LIMITS, PodLimits};
use super::step::{Answer, Step};
use crate::containers::credentials::Credentials;

/// The parameters of a class of volumes.
pub const PARAMETERS: [&str; 2] = ["url", "compress"];
/// What sidecars add to them.
pub(super) const OF_SIDECARS: &str = "csi.storage.k8s.io/";

/// The service `csi.v1.Controller`.
#[derive(Debug)]
pub(super) struct ControllerService {
    pub(super) prefixes: Prefixes,
    pub(super) locks: Arc<Locks>,
}

/// Bytes that a volume takes: at least, and at most.
fn size(range: Option<&CapacityRange>) -> Result<(Option<u64>, Option<u64>)> {
    let Some(range) = range else { return Ok((None, None)) };
    let one = |bytes: i64| match u64::try_from(bytes) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(Failure::invalid("capacity_range: a number of bytes is negative")),
    };
    let (required, limit) = (one(range.required_bytes)?, one(range.limit_bytes)?);
    if let (Some(required), Some(limit)) = (required, limit)
        && limit < required
    {
        return Err(Failure::invalid("capacity_range: limit_bytes is less than required_bytes"));
    }
    Ok((required.or(limit), limit))
}

/// The credentials among a call's secrets.
///
/// # Errors
/// There is a secret that is none.
pub(super) fn credentials(secrets: &std::collections::HashMap<String, String>) -> Result<Credentials> {
    Credentials::parse(secrets).map_err(Failure::invalid)
}

/// A number of bytes for an answer.
pub(super) fn signed(bytes: Option<u64>) -> i64 {
    bytes.map_or(0, |bytes| i64::try_from(bytes).unwrap_or(i64::MAX))
}

impl ControllerService {
    pub(super) fn bucket(&self, key: &str, deadline: Deadline, credentials: Credentials) -> Bucket<'_> {
        Bucket { locks: &self.locks, key: key.to_owned(), deadline, credentials }
    }

    fn check_parameters(parameters: &std::collections::HashMap<String, String>) -> Result<()> {
        let is_known = |key: &str| {
            PARAMETERS.contains(&key) || POD_LIMITS.contains(&key) || key.starts_with(OF_SIDECARS)
        };
        if let Some(key) = parameters.keys().find(|key| !is_known(key)) {
            return Err(Failure::invalid(format!(
                "there is no parameter {key:?}; there are: {}, {}",
                PARAMETERS.join(", "),
                POD_LIMITS.join(", ")
            )));
        }
        let _checked = PodLimits::parse(parameters)?;
        match parameters.get("compress").map(String::as_str) {
            None | Some("zstd" | "lz4" | "none") => Ok(()),
            Some(other) => {
                Err(Failure::invalid(format!("parameter compress: {other:?}: give zstd, lz4 or none")))
            }
        }
    }

    async fn create(&self, deadline: Deadline, request: CreateVolumeRequest) -> Result<v1::Volume> {
        Self::check_parameters(&request.parameters)?;
        if !request.mutable_parameters.is_empty() {
            return Err(Failure::invalid("a volume has no parameters that can be changed"));
        }
        if request.name.is_empty() {
            return Err(Failure::invalid("the volume's name is missing"));
        }
        Access::parse_all(&request.volume_capabilities)?;
        let (size, limit) = size(request.capacity_range.as_ref())?;
        let prefix = self.prefixes.of_class(request.parameters.get("url").map(String::as_str))?;
        let url = new_volume(&prefix, &request.name)?;
        let source = self.source(request.volume_content_source.as_ref())?;
        let compress = request.parameters.get("compress").cloned();
        let bucket = self.bucket(&url, deadline, credentials(&request.secrets)?);
        let above = self.prefixes.above(&url);
        let bytes = bucket.create(Made { url: url.clone(), above, compress, size, limit, source }).await?;
        Ok(v1::Volume {
            capacity_bytes: signed(bytes),
            volume_id: url,
            content_source: request.volume_content_source,
            // The node has them with each call.
            volume_context: POD_LIMITS
                .into_iter()
                .filter_map(|key| Some((key.to_owned(), request.parameters.get(key)?.clone())))
                .collect(),
            ..Default::default()
        })
    }

    /// The volume that a new one begins as, and which of its snapshots.
    fn source(&self, source: Option<&VolumeContentSource>) -> Result<Option<(String, Option<String>)>> {
        let Some(source) = source else { return Ok(None) };
        match &source.r#type {
            None => Err(Failure::invalid("volume_content_source: it names neither a snapshot nor a volume")),
            Some(SourceType::Snapshot(of)) => {
                let id = SnapshotId::parse(&of.snapshot_id, &self.prefixes);
                let id = id.ok_or_else(|| SnapshotId::missing(&of.snapshot_id))?;
                Ok(Some((id.volume, Some(id.name))))
            }
            Some(SourceType::Volume(of)) => Ok(Some((self.prefixes.volume(&of.volume_id)?, None))),
        }
    }

    async fn delete(&self, deadline: Deadline, request: DeleteVolumeRequest) -> Result<()> {
        // An id that is no URL names no volume: there is nothing to delete.
        let Some(url) = self.prefixes.to_delete(&request.volume_id)? else { return Ok(()) };
        let bucket = self.bucket(&url, deadline, credentials(&request.secrets)?);
        bucket.ask("deleting it", Step::Delete { url: url.clone() }).await.map(drop)
    }

    /// The credentials are those of this driver: the call has none.
    async fn look(&self, deadline: Deadline, id: &str, credentials: Credentials) -> Result<String> {
        let url = self.prefixes.volume(id)?;
        let bucket = self.bucket(&format!("look {url}"), deadline, credentials);
        bucket.ask("looking at it", Step::Look { url: url.clone() }).await?;
        Ok(url)
    }

    async fn expand(
        &self,
        deadline: Deadline,
        request: ControllerExpandVolumeRequest,
    ) -> Result<ControllerExpandVolumeResponse> {
        let url = self.prefixes.volume(&request.volume_id)?;
        let (Some(bytes), limit) = size(request.capacity_range.as_ref())? else {
            return Err(Failure::invalid("capacity_range is missing"));
        };
        let bucket = self.bucket(&url, deadline, credentials(&request.secrets)?);
        let answer = bucket.ask("enlarging it", Step::Expand { url: url.clone(), bytes }).await?;
        match answer {
            // The node does it, where the volume is mounted.
            Answer::Held => Ok(ControllerExpandVolumeResponse {
                capacity_bytes: signed(Some(bytes)),
                node_expansion_required: true,
            }),
            Answer::Volume { bytes } if limit.is_some_and(|limit| bytes.is_some_and(|has| has > limit)) => {
                let code = csi_proto::tonic::Code::OutOfRange;
                Err(Failure::new(code, format!("{url}: it has {} bytes already", bytes.unwrap_or_default())))
            }
            Answer::Volume { bytes } => Ok(ControllerExpandVolumeResponse {
                capacity_bytes: signed(bytes),
                node_expansion_required: false,
            }),
            other => Err(unexpected(&other)),
        }
    }

    async fn list_some_volumes(
        &self,
        deadline: Deadline,
        request: ListVolumesRequest,
    ) -> Result<ListVolumesResponse> {
        let mut page = Page::parse(request.max_entries, &request.starting_token, self.prefixes.all().len())?;
        let mut entries = Vec::new();
        while let Some(prefix) = self.prefixes.all().get(page.prefix).filter(|_| entries.len() < page.most) {
            let most = page.most - entries.len();
            let step = Step::Volumes { prefix: prefix.clone(), after: page.after.clone(), most };
            // Another bucket's call does not wait for this one's.
            let bucket = self.bucket(&format!("list {prefix}"), deadline, Credentials::default());
            let answer = bucket.ask("listing", step).await?;
            let Answer::Volumes { names, next } = answer else { return Err(unexpected(&answer)) };
            entries.extend(names.iter().map(|name| volume_entry(format!("{prefix}/{name}"))));
            page.go_on(next);
            if deadline.is_half_over() {
                break;
            }
        }
        let next_token = page.token(self.prefixes.all().len());
        Ok(ListVolumesResponse { entries, next_token })
    }
}

fn volume_entry(volume_id: String) -> VolumeEntry {
    VolumeEntry { volume: Some(v1::Volume { volume_id, ..Default::default() }), status: None }
}

#[async_trait]
impl Controller for ControllerService {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Answered<ControllerGetCapabilitiesResponse> {
        use rpc::Type;
        let mut all = vec![
            Type::CreateDeleteVolume,
            Type::CreateDeleteSnapshot,
            Type::CloneVolume,
            Type::ExpandVolume,
            Type::GetVolume,
            Type::GetSnapshot,
        ];
        if !self.prefixes.all().is_empty() {
            all.extend([Type::ListVolumes, Type::ListSnapshots]);
        }
        let one = |one: Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: one.into() })),
        };
        answered(Ok(ControllerGetCapabilitiesResponse { capabilities: all.into_iter().map(one).collect() }))
    }

    async fn create_volume(&self, request: Request<CreateVolumeRequest>) -> Answered<CreateVolumeResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        let volume = self.create(deadline, request).await;
        answered(volume.map(|volume| CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(&self, request: Request<DeleteVolumeRequest>) -> Answered<DeleteVolumeResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        answered(self.delete(deadline, request).await.map(|()| DeleteVolumeResponse {}))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Answered<ValidateVolumeCapabilitiesResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        let validated = async {
            check_id(&request.volume_id)?;
            let possible = Access::parse_all(&request.volume_capabilities);
            if request.volume_capabilities.is_empty() {
                return possible.map(|_| ValidateVolumeCapabilitiesResponse::default());
            }
            let credentials = credentials(&request.secrets)?;
            self.look(deadline, &request.volume_id, credentials).await?;
            Ok(match possible.and_then(|_| Self::check_parameters(&request.parameters)) {
                Ok(()) => ValidateVolumeCapabilitiesResponse {
                    confirmed: Some(Confirmed {
                        volume_context: request.volume_context,
                        volume_capabilities: request.volume_capabilities,
                        parameters: request.parameters,
                        mutable_parameters: request.mutable_parameters,
                    }),
                    ..Default::default()
                },
                Err(why) => ValidateVolumeCapabilitiesResponse {
                    message: why.words().to_owned(),
                    ..Default::default()
                },
            })
        };
        answered(validated.await)
    }

    async fn list_volumes(&self, request: Request<ListVolumesRequest>) -> Answered<ListVolumesResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        answered(self.list_some_volumes(deadline, request).await)
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Answered<ControllerGetVolumeResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        let url = self.look(deadline, &request.volume_id, Credentials::default()).await;
        answered(url.map(|volume_id| ControllerGetVolumeResponse {
            volume: Some(v1::Volume { volume_id, ..Default::default() }),
            status: Some(controller_get_volume_response::VolumeStatus::default()),
        }))
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Answered<ControllerExpandVolumeResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        answered(self.expand(deadline, request).await)
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Answered<CreateSnapshotResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        let made = self.create_one_snapshot(deadline, request).await;
        answered(made.map(|snapshot| CreateSnapshotResponse { snapshot: Some(snapshot) }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Answered<DeleteSnapshotResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        let deleted = self.delete_one_snapshot(deadline, request).await;
        answered(deleted.map(|()| DeleteSnapshotResponse {}))
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Answered<ListSnapshotsResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        answered(self.list_some_snapshots(deadline, request).await)
    }

    async fn get_snapshot(&self, request: Request<GetSnapshotRequest>) -> Answered<GetSnapshotResponse> {
        let (deadline, request) = (Deadline::of(request.metadata()), request.into_inner());
        let found = self.get_one_snapshot(deadline, request).await;
        answered(found.map(|snapshot| GetSnapshotResponse { snapshot: Some(snapshot) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_checked() {
        let of = |required_bytes, limit_bytes| size(Some(&CapacityRange { required_bytes, limit_bytes }));
        assert_eq!(of(1, 0), Ok((Some(1), None)));
        assert_eq!(of(0, 2), Ok((Some(2), Some(2))));
        assert_eq!(of(1, 2), Ok((Some(1), Some(2))));
        assert_eq!(size(None), Ok((None, None)));
        assert!(of(2, 1).is_err() && of(-1, 0).is_err() && of(0, i64::MIN).is_err());
    }
}
