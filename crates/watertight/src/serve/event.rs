//! The events of `serve`, and what its threads send with them.

use std::path::PathBuf;
use std::time::Duration;

use super::child::Ending;
use super::config::CgroupLimit;
use crate::control::volume_id::VolumeId;
use crate::term::problem::Result;

/// The pause before a volume that failed is mounted again, at first and at most.
pub(super) const PAUSE: Duration = Duration::from_secs(1);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Something that happened.
#[derive(Debug)]
pub(super) enum ServeEvent {
    Signal(&'static str),
    /// The volume at this mountpoint is mounted.
    Ready(PathBuf),
    /// Its process is gone.
    Ended(PathBuf, Ending),
    /// A call for the volume that is attached at this path has ended.
    CallEnded(PathBuf, CallResult),
}

/// How a call ended.
#[derive(Debug)]
pub(super) enum CallResult {
    Attached(Result<AttachedRecord>),
    Detached(Result<()>),
}

/// A volume that is attached.
#[derive(Debug)]
pub(super) struct AttachedRecord {
    /// None where it was moved: it is looked for with each reload.
    pub(super) id: Option<VolumeId>,
    /// The limits that it was attached with; a volume that was there already may have others.
    pub(super) limits: Option<Vec<CgroupLimit>>,
}
