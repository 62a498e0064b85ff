//! The calls of the control socket, as the mount process answers them.

use std::sync::Arc;

use tokio::sync::watch;

use super::api::{
    AttachReply, AttachRequest, CloneReply, CloneRequest, DetachReply, DetachRequest, Ended, LeaveReply,
    LeaveRequest, LimitRequest, Limits, MoveReply, MoveRequest, SnapshotsReply, SnapshotsRequest, Stats,
    Status, Synced, UmountReply, UmountRequest, UnderWay, UpgradeReply, UpgradeRequest, WarmReply,
    WarmRequest,
};
use super::volume_id::VolumeId;

/// The answer of a volume without a mountpoint of its own.
const NO_MOUNTPOINT: &str =
    "this volume is attached inside another volume's mountpoint: call that volume's socket";

/// The thing that is served: a mounted volume.
pub trait Service: Send + Sync + 'static {
    /// The volume now. Never blocks on the store.
    fn status(&self) -> Status;
    /// The volumes of this mountpoint whose ids come after this one, in the order of their ids; not
    /// too many at a time.
    fn volumes(&self, _after: Option<&VolumeId>) -> Vec<Status> {
        Vec::new()
    }
    /// Makes dirty data durable: by the policy of a process's cgroup, or all.
    ///
    /// # Errors
    /// The reason, in words.
    fn sync(&self, by: Option<u32>) -> Result<Synced, String>;
    /// Brings files to the disk cache.
    ///
    /// # Errors
    /// Why not, in words: there is none.
    fn warm(&self, _request: WarmRequest) -> Result<WarmReply, String> {
        Err("this volume has no disk cache".to_owned())
    }
    /// How long operations take. Never blocks on the store.
    fn stats(&self) -> Stats;
    /// The requests under way. Never blocks on the store.
    fn under_way(&self) -> UnderWay;
    /// The limits of cgroups.
    fn limits(&self) -> Limits;
    /// Changes them; returns the new ones.
    ///
    /// # Errors
    /// The mistake in the request.
    fn limit(&self, request: LimitRequest) -> Result<Limits, String>;
    /// Unmounts.
    ///
    /// # Errors
    /// Why not, in words.
    fn umount(&self, request: UmountRequest) -> Result<UmountReply, String>;
    /// Its events. They end before the server is [finished](super::server::Server::finish).
    fn events(&self) -> Arc<volume::events::Events>;
    /// Attaches a volume to a directory of the mountpoint.
    ///
    /// # Errors
    /// Why not, in words.
    fn attach(&self, _request: AttachRequest) -> Result<AttachReply, String> {
        Err(NO_MOUNTPOINT.to_owned())
    }
    /// Detaches one.
    ///
    /// # Errors
    /// Why not, in words.
    fn detach(&self, _request: DetachRequest) -> Result<DetachReply, String> {
        Err(NO_MOUNTPOINT.to_owned())
    }
    /// Moves one.
    ///
    /// # Errors
    /// Why not, in words.
    fn move_to(&self, _request: MoveRequest) -> Result<MoveReply, String> {
        Err(NO_MOUNTPOINT.to_owned())
    }
    /// Shows a clone of the namespace at a second mountpoint.
    ///
    /// # Errors
    /// Why not, in words.
    fn clone_to(&self, _request: CloneRequest) -> Result<CloneReply, String> {
        Err(NO_MOUNTPOINT.to_owned())
    }
    /// Unmounts one of several mountpoints.
    ///
    /// # Errors
    /// Why not, in words.
    fn leave(&self, _request: LeaveRequest) -> Result<LeaveReply, String> {
        Err(NO_MOUNTPOINT.to_owned())
    }
    /// Makes, deletes or lists snapshots of its store.
    ///
    /// # Errors
    /// Why not, in words.
    fn snapshots(&self, _request: SnapshotsRequest) -> Result<SnapshotsReply, String> {
        Err("its store keeps no snapshots".to_owned())
    }
    /// Has another program take the place of the process's. Returns if that is refused.
    ///
    /// # Errors
    /// Why, in words.
    fn upgrade(&self, _request: UpgradeRequest) -> Result<UpgradeReply, String> {
        Err(NO_MOUNTPOINT.to_owned())
    }
    /// Receives how the volume ended, when it has.
    fn ended(&self) -> watch::Receiver<Option<Ended>>;
}
