//! A node's volumes: staged once, shown to pods by bind mounts, given back when the last is gone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use csi_proto::tonic::{Code, Request, async_trait};
use csi_proto::v1::node_server::Node;
use csi_proto::v1::node_service_capability::{self, Rpc, rpc};
use csi_proto::v1::volume_health::VolumeHealthEntry;
use csi_proto::v1::volume_usage::Unit;
use csi_proto::v1::*;
use rustix::fs::statvfs;

use super::capability::Access;
use super::controller::credentials;
use super::deadline::{Deadline, patience};
use super::failure::{Answered, Failure, Result, answered};
use super::ids::check_id;
use super::locks::Locks;
use super::pod_limits::{CgroupLimits, PodLimits};
use super::staged::{Host, Shown, Source};
use crate::containers::credentials::Credentials;
use crate::term::shown::exact;

/// What a pod's own volume says of itself.
const EPHEMERAL: &str = "csi.storage.k8s.io/ephemeral";
/// How long a volume is shown at most in the turn of its target, the wait for the staging path's turn
/// in it.
const SHOW: Duration = Duration::from_secs(10);
/// How often a base is mounted that others release before it is shown.
const ATTEMPTS: usize = 3;
/// How long a base without pods may take to be released.
const RELEASE: Duration = Duration::from_secs(24 * 3600);
/// How long it waits until it tries that again.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The service `csi.v1.Node`.
#[derive(Debug)]
pub(super) struct NodeService {
    pub(super) node_id: String,
    pub(super) locks: Arc<Locks>,
    pub(super) host: Arc<Host>,
}

fn staging_key(path: &Path) -> String {
    format!("staging {}", exact(path))
}

fn target_key(path: &Path) -> String {
    format!("target {}", exact(path))
}

impl NodeService {
    /// Unmounts what an earlier driver left of ephemeral volumes whose pods are gone.
    pub(super) fn release_unused(&self) {
        self.host.forget_gone();
        for base in self.host.all_bases() {
            self.release_later(base);
        }
    }

    /// Unmounts a base, unless a pod shows it, while this driver goes on with other calls.
    fn release_later(&self, base: PathBuf) {
        let (locks, host) = (Arc::clone(&self.locks), Arc::clone(&self.host));
        tokio::spawn(async move {
            let (key, deadline) = (staging_key(&base), Deadline::within(RELEASE));
            let mut pause = PAUSE;
            loop {
                let (host, at) = (Arc::clone(&host), base.clone());
                let work = move || host.release(&at);
                let Err(failure) = locks.call(&key, "unmounting it", deadline.left(), work).await else {
                    return;
                };
                // The note keeps what was lost, and the answer to the next unpublishing names it.
                if failure.code != Code::Aborted || deadline.left().is_zero() {
                    tracing::warn!("{}", failure.words());
                    return;
                }
                // An unmount that an earlier driver began goes on.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    async fn stage(&self, patience: Duration, request: NodeStageVolumeRequest) -> Result<()> {
        check_id(&request.volume_id)?;
        let path = self.host.path("staging_target_path", &request.staging_target_path)?;
        let access = Access::parse(request.volume_capability.as_ref())?;
        let source = self.host.source(&request.volume_id, &request.volume_context)?;
        let credentials = credentials(&request.secrets)?;
        let (host, key) = (Arc::clone(&self.host), staging_key(&path));
        let at = path.clone();
        let work = move || host.stage(&source, &access, &at, credentials);
        let done = self.locks.call(&key, "mounting it", patience, work).await;
        self.note_told(&done, path).await;
        done
    }

    async fn unstage(&self, patience: Duration, request: NodeUnstageVolumeRequest) -> Result<()> {
        check_id(&request.volume_id)?;
        let path = self.host.path("staging_target_path", &request.staging_target_path)?;
        let (host, key) = (Arc::clone(&self.host), staging_key(&path));
        let at = path.clone();
        let work = move || host.unstage(&request.volume_id, &at);
        let done = self.locks.call(&key, "unmounting it", patience, work).await;
        self.note_told(&done, path).await;
        done
    }

    async fn publish(&self, patience: Duration, request: NodePublishVolumeRequest) -> Result<()> {
        check_id(&request.volume_id)?;
        let target = self.host.path("target_path", &request.target_path)?;
        let access = Access::parse(request.volume_capability.as_ref())?;
        let limits = PodLimits::parse(&request.volume_context)?;
        let source = self.host.source(&request.volume_id, &request.volume_context)?;
        let is_ephemeral = request.volume_context.get(EPHEMERAL).is_some_and(|value| value == "true");
        if !is_ephemeral && request.staging_target_path.is_empty() {
            return Err(Failure::not_ready("staging_target_path is missing: a volume is staged first"));
        }
        let deadline = Deadline::within(patience);
        let limits = Self::of_pod(limits, deadline).await?;
        let shown = Shown { read_only: request.readonly || access.read_only, limits };
        if is_ephemeral {
            let base = self.host.base(&source)?;
            let done = self.publish_ephemeral(deadline, (source, access), (&base, target), shown).await;
            self.note_told(&done, base).await;
            return done;
        }
        let staged = self.host.path("staging_target_path", &request.staging_target_path)?;
        let of_volume = (source, access, credentials(&request.secrets)?);
        let done = self.publish_staged(deadline, of_volume, (&staged, target), shown).await;
        self.note_told(&done, staged).await;
        done
    }

    /// A pod's limits with its cgroup, which may have to be waited for: before any turn is taken.
    async fn of_pod(limits: Option<PodLimits>, deadline: Deadline) -> Result<Option<CgroupLimits>> {
        let Some(limits) = limits else { return Ok(None) };
        let found = tokio::task::spawn_blocking(move || limits.find(deadline.left())).await;
        found.map_err(|error| Failure::internal(error.to_string()))?.map(Some)
    }

    /// Shows a staged volume. A store that does not answer holds up who stages it anew, and not the
    /// target's turn: its pod can go.
    async fn publish_staged(
        &self,
        deadline: Deadline,
        (source, access, credentials): (Source, Access, Credentials),
        (staged, target): (&Path, PathBuf),
        shown: Shown,
    ) -> Result<()> {
        let key = staging_key(staged);
        let (host, of, at) = (Arc::clone(&self.host), source.clone(), staged.to_owned());
        let served = move || host.serve_again(&of, &access, &at, credentials);
        self.locks.call(&key, "mounting it", deadline.left(), served).await?;
        let turn = self.locks.take(&target_key(&target), "mounting it", deadline.left()).await?;
        let (host, at) = (Arc::clone(&self.host), staged.to_owned());
        let work = move || host.publish(&source, (&at, &target), &shown);
        self.locks.call_too(turn.within(SHOW), &key, work).await
    }

    /// Mounts a directory at its base and shows it there, in turns as a staged volume.
    async fn publish_ephemeral(
        &self,
        deadline: Deadline,
        (source, access): (Source, Access),
        (base, target): (&Path, PathBuf),
        shown: Shown,
    ) -> Result<()> {
        let (key, of_target) = (staging_key(base), target_key(&target));
        // The last of its other pods may give it back in between.
        for _ in 0..ATTEMPTS {
            let (host, of, at) = (Arc::clone(&self.host), (source.clone(), access.clone()), base.to_owned());
            let served = move || host.serve_base(&of.0, &of.1, &at);
            self.locks.call(&key, "mounting it", deadline.left(), served).await?;
            let turn = self.locks.take(&of_target, "mounting it", deadline.left()).await?;
            let (host, at) = (Arc::clone(&self.host), base.to_owned());
            let (target, shown) = (target.clone(), shown.clone());
            let work = move || host.show_base(&at, &target, &shown);
            match self.locks.call_too(turn.within(SHOW), &key, work).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(failure) => {
                    self.release_later(base.to_owned());
                    return Err(failure);
                }
            }
        }
        Err(Failure::new(Code::Aborted, "other pods give the directory back meanwhile; ask again"))
    }

    async fn unpublish(&self, patience: Duration, request: NodeUnpublishVolumeRequest) -> Result<()> {
        check_id(&request.volume_id)?;
        let target = self.host.path("target_path", &request.target_path)?;
        let host = Arc::clone(&self.host);
        let turn = self.locks.take(&target_key(&target), "unmounting it", patience).await?;
        // What is mounted there changes in this turn alone.
        let Some(base) = host.base_of(&target) else {
            // It waits for no staging path: a volume that is not unmounted yet keeps no pod.
            let key = format!("unpublish {}", exact(&target));
            let work = move || host.unpublish(&request.volume_id, &target);
            return self.locks.call_too(turn, &key, work).await;
        };
        let (key, at) = (staging_key(&base), base.clone());
        let work = move || host.unpublish_ephemeral(&request.volume_id, &target, &at);
        let done = self.locks.call_too(turn, &key, work).await;
        self.note_told(&done, base).await;
        done
    }

    /// A loss is answered once to a caller that waits for the answer, whichever driver unmounted.
    async fn note_told(&self, done: &Result<()>, path: PathBuf) {
        if done.as_ref().is_err_and(|failure| failure.code == Code::DataLoss) {
            let host = Arc::clone(&self.host);
            let _answered_again = tokio::task::spawn_blocking(move || host.told(&path)).await;
        }
    }

    /// The path of a volume that a call asks about, which need not be below the root.
    fn asked_path(volume_id: &str, path: &str) -> Result<PathBuf> {
        check_id(volume_id)?;
        let asked = super::ids::host_path("volume_path", path, Path::new("/"));
        // A path that cannot be one has no volume.
        asked.map_err(|failure| if path.is_empty() { failure } else { Failure::not_found(failure.words()) })
    }

    async fn stats(
        &self,
        patience: Duration,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse> {
        let path = Self::asked_path(&request.volume_id, &request.volume_path)?;
        let work = move || {
            let condition = |abnormal, message| Some(VolumeCondition { abnormal, message });
            if let Err(why) = Host::look(&path)? {
                let volume_condition = condition(true, why);
                return Ok(NodeGetVolumeStatsResponse { volume_condition, ..Default::default() });
            }
            let found = statvfs(&path).map_err(|error| Failure::new(Code::Unavailable, error.to_string()))?;
            let number = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
            let bytes = |blocks: u64| number(blocks.saturating_mul(found.f_frsize));
            let usage = |unit: Unit, total, available, used| VolumeUsage {
                unit: unit.into(),
                total,
                available,
                used,
            };
            let used = bytes(found.f_blocks.saturating_sub(found.f_bfree));
            let inodes = number(found.f_files.saturating_sub(found.f_ffree));
            Ok(NodeGetVolumeStatsResponse {
                usage: vec![
                    usage(Unit::Bytes, bytes(found.f_blocks), bytes(found.f_bavail), used),
                    usage(Unit::Inodes, number(found.f_files), number(found.f_favail), inodes),
                ],
                volume_condition: condition(false, "the volume is served".to_owned()),
            })
        };
        let key = format!("stats {}", request.volume_path);
        self.locks.call(&key, "asking the volume", patience, work).await
    }

    async fn health(&self, patience: Duration, request: NodeGetVolumeHealthRequest) -> Result<VolumeHealth> {
        let path = match (&request.volume_publish_path, &request.staging_target_path) {
            (published, _) if !published.is_empty() => published.clone(),
            (_, staged) => staged.clone(),
        };
        let id = request.volume_id.clone();
        let at = if path.is_empty() {
            check_id(&id)?;
            None
        } else {
            Some(Self::asked_path(&id, &path)?)
        };
        let looked = move || {
            let at = at.map_or_else(|| Host::staged_at(&id), Ok)?;
            Host::look(&at).map(std::result::Result::err)
        };
        let key = format!("health {path}");
        let wrong = self.locks.call(&key, "asking the volume", patience, looked).await?;
        let entry = |message| VolumeHealthEntry {
            status: VolumeHealthErrorType::Inaccessible.into(),
            reason: "NotServed".to_owned(),
            message,
        };
        let health_statuses = wrong.into_iter().map(entry).collect();
        Ok(VolumeHealth { volume_id: request.volume_id, health_statuses })
    }

    async fn expand(
        &self,
        patience: Duration,
        request: NodeExpandVolumeRequest,
    ) -> Result<NodeExpandVolumeResponse> {
        // A pod's own mount may be read-only.
        let path = match &request.staging_target_path {
            staged if !staged.is_empty() && !request.volume_path.is_empty() => staged,
            _ => &request.volume_path,
        };
        let path = Self::asked_path(&request.volume_id, path)?;
        let range = request.capacity_range.unwrap_or_default();
        let bytes = u64::try_from(range.required_bytes);
        let bytes = bytes.map_err(|_| Failure::invalid("capacity_range: a number of bytes is negative"))?;
        let key = staging_key(&path);
        let work = move || {
            Host::look(&path)?.map_err(Failure::not_ready)?;
            if bytes > 0 { Host::enlarge(&path, bytes) } else { Ok(()) }
        };
        self.locks.call(&key, "enlarging it", patience, work).await?;
        Ok(NodeExpandVolumeResponse { capacity_bytes: range.required_bytes })
    }
}

#[async_trait]
impl Node for NodeService {
    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Answered<NodeStageVolumeResponse> {
        let patience = patience(request.metadata());
        answered(self.stage(patience, request.into_inner()).await.map(|()| NodeStageVolumeResponse {}))
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Answered<NodeUnstageVolumeResponse> {
        let patience = patience(request.metadata());
        answered(self.unstage(patience, request.into_inner()).await.map(|()| NodeUnstageVolumeResponse {}))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Answered<NodePublishVolumeResponse> {
        let patience = patience(request.metadata());
        answered(self.publish(patience, request.into_inner()).await.map(|()| NodePublishVolumeResponse {}))
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Answered<NodeUnpublishVolumeResponse> {
        let patience = patience(request.metadata());
        let done = self.unpublish(patience, request.into_inner()).await;
        answered(done.map(|()| NodeUnpublishVolumeResponse {}))
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Answered<NodeGetVolumeStatsResponse> {
        let patience = patience(request.metadata());
        answered(self.stats(patience, request.into_inner()).await)
    }

    async fn node_get_volume_health(
        &self,
        request: Request<NodeGetVolumeHealthRequest>,
    ) -> Answered<NodeGetVolumeHealthResponse> {
        let patience = patience(request.metadata());
        let health = self.health(patience, request.into_inner()).await;
        answered(health.map(|health| NodeGetVolumeHealthResponse { volume_health: Some(health) }))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Answered<NodeExpandVolumeResponse> {
        let patience = patience(request.metadata());
        answered(self.expand(patience, request.into_inner()).await)
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Answered<NodeGetCapabilitiesResponse> {
        use rpc::Type;
        let all = [
            Type::StageUnstageVolume,
            Type::GetVolumeStats,
            Type::ExpandVolume,
            Type::VolumeCondition,
            Type::GetVolumeHealth,
        ];
        let one = |one: Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: one.into() })),
        };
        answered(Ok(NodeGetCapabilitiesResponse { capabilities: all.into_iter().map(one).collect() }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Answered<NodeGetInfoResponse> {
        answered(Ok(NodeGetInfoResponse { node_id: self.node_id.clone(), ..Default::default() }))
    }
}
