//! The figures of a volume, in the words of the control API.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use fuse::{RequestView, SessionView, Transport};
use sync::accounting::Part;
use volume::events::Limit;
use volume::{DrainReport, Volume, VolumeState, WbStatus};

use super::volume_info::VolumeInfo;
use crate::control::api::{
    CGROUPS_NAMED_MAX, Cgroup, CgroupLimits, Ended, FILES_NAMED_MAX, FileError, LimitAhead, LimitRequest,
    Limits, Operation, REQUESTS_NAMED_MAX, RequestPart, RequestUnderWay, Stalled, State, Stats, Status,
    UnderWay, Unwritten, WarmFailure, WarmReply, WarmRequest, millis, now_ms,
};
use crate::control::volume_id::VolumeId;
use crate::host::mountinfo;
use crate::term::shown::{Name, Words};

impl Status {
    /// The figures of the volume itself; the rest is that of no mount.
    #[must_use]
    pub fn of_volume(of: &Volume, volume: &volume::Status) -> Self {
        Self {
            pid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            dirty_bytes: volume.dirty_bytes,
            to_write_bytes: volume.dirty_bytes - volume.writeback_bytes,
            writeback_bytes: volume.writeback_bytes,
            lost_if_killed_bytes: volume.dirty_bytes
                + volume.store_requests.as_ref().map_or(0, |requests| requests.unsaved_bytes),
            dirty_files: volume.dirty_files,
            cached_bytes: volume.cached_bytes,
            cache_bytes_max: volume.cache_bytes_max,
            written_bytes: volume.bytes_written_back,
            nodes: volume.nodes,
            open_files: volume.open_files,
            openers: volume.openers.clone(),
            writeback_errors: volume.writeback_errors,
            read_errors: volume.read_errors,
            writer_waits: volume.writer_waits,
            stalls: volume.stalls,
            stalled: volume.stalled.as_ref().map(stalled),
            failing_files: volume.failing.len() as u64,
            failing_bytes: volume.failing.iter().map(|file| file.bytes).sum(),
            errors: volume.failing.iter().take(FILES_NAMED_MAX).map(file_error).collect(),
            cgroup_tree: of.tenants().tree().map_or_else(|| "off".into(), |tree| tree.to_string().into()),
            switches_in_flight: volume.switching.switches_in_flight,
            switched_inodes: volume.switching.switched,
            store_requests: volume.store_requests.as_ref().map(Into::into),
            drains: volume.switching.drains,
            drain_us: micros(volume.switching.drain_time),
            cgroups: cgroups(&volume.switching.wbs),
            operations: operations(of),
            limits: of.limits().into_iter().take(CGROUPS_NAMED_MAX).map(cgroup_limits).collect(),
            ..Self::default()
        }
    }
}

/// How long a volume's operations take.
#[must_use]
pub fn stats(of: &Volume, id: VolumeId, mountpoint: Name) -> Stats {
    let mut limit_waits = of.limit_waits();
    limit_waits.sort_by_key(|wait| std::cmp::Reverse(wait.waited));
    Stats {
        id,
        mountpoint,
        counted_ms: millis(of.latencies().counted_for()),
        operations: operations(of),
        limit_waits: limit_waits.into_iter().take(CGROUPS_NAMED_MAX).map(Into::into).collect(),
    }
}

fn operations(of: &Volume) -> BTreeMap<String, Operation> {
    let by_class = of.latencies().by_class();
    by_class.iter().map(|(class, latency)| (class.name().to_owned(), latency.into())).collect()
}

/// The requests of `session` that `mountpoint_of` finds a volume for, by its number.
#[must_use]
pub fn under_way(
    id: VolumeId,
    session: &SessionView,
    mountpoint_of: impl Fn(u64) -> Option<Name>,
) -> UnderWay {
    let mut requests = session.requests();
    requests.sort_by_key(|request| std::cmp::Reverse(request.elapsed()));
    let known = requests.iter().filter_map(|one| Some(request(one, mountpoint_of(one.volume)?)));
    UnderWay { id, requests: known.take(REQUESTS_NAMED_MAX).collect() }
}

fn request(of: &RequestView, mountpoint: Name) -> RequestUnderWay {
    let part = match of.activity.part {
        _ if of.is_queued => RequestPart::Queue,
        Some(Part::Limit) => RequestPart::Limit,
        Some(Part::Cache) => RequestPart::Cache,
        Some(Part::Store) => RequestPart::Store,
        None => RequestPart::Rest,
    };
    let limit = of.activity.limit.as_ref().map(|ahead| LimitAhead {
        cgroup: ahead.cgroup.clone().into(),
        limit: if ahead.limit == Limit::IoMax.name() { Limit::IoMax } else { Limit::DirtyMax },
        left_us: ahead.until.map(|until| micros(until.saturating_duration_since(Instant::now()))),
        bytes: ahead.bytes,
    });
    RequestUnderWay {
        caller: of.caller,
        op: of.opcode.name().to_ascii_lowercase(),
        mountpoint,
        for_us: micros(of.activity.elapsed),
        part,
        part_us: micros(of.activity.part_elapsed),
        limit,
    }
}

/// Sets limits of a cgroup in one volume.
///
/// # Errors
/// The words that cannot be parsed.
pub fn limit(volume: &Volume, request: &LimitRequest) -> Result<Limits, String> {
    let cgroup = request.cgroup.parse().map_err(|error: volume::LimitError| error.to_string())?;
    let change = request.limits.parse().map_err(|error: volume::LimitError| error.to_string())?;
    volume.limit(&cgroup, &change);
    Ok(limits(volume))
}

/// Brings files to the disk cache of one volume.
///
/// # Errors
/// It has none.
pub fn warm(volume: &Volume, request: &WarmRequest) -> Result<WarmReply, String> {
    let mut reply = WarmReply::default();
    for piece in &request.pieces {
        let (file, offset, len) = (store::ObjectId(piece.file), piece.offset, piece.len);
        let is_there = if request.check {
            volume.is_warm(file, offset, len)
        } else {
            volume.warm(file, offset, len).map(|()| true)
        };
        match is_there {
            Ok(false) => {}
            Ok(true) => reply.bytes = reply.bytes.saturating_add(piece.len),
            Err(volume::Error::Store(error)) => match error.kind() {
                store::ErrorKind::Unsupported => return Err(error.detail().unwrap_or("no").to_owned()),
                // Removed meanwhile.
                store::ErrorKind::Stale | store::ErrorKind::NotFound => {}
                _ => reply.failed.push(WarmFailure { file: piece.file, error: error.to_string().into() }),
            },
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(reply)
}

/// The limits of cgroups in one volume.
#[must_use]
pub fn limits(volume: &Volume) -> Limits {
    Limits { limits: volume.limits().into_iter().map(cgroup_limits).collect() }
}

/// The same figures with those of the kernel's mount and of its connection.
#[must_use]
pub fn with_mount(of_volume: Status, info: &VolumeInfo, session: &SessionView) -> Status {
    let (transport, reason) = match session.transport() {
        Transport::Uring => ("io_uring", None),
        Transport::Readers { reason } => ("dev-fuse", Some(reason.into())),
    };
    Status {
        device: info.device(),
        mount_type: mountinfo::kind(&info.mount).into(),
        mount_type_reason: info.type_reason.clone().map(Words::from),
        syncfs: Some(session.has_seen_syncfs()),
        syncfs_callers: Some(session.knows_who_syncs()),
        transport: transport.into(),
        transport_reason: reason,
        mode: info.mode.into(),
        ..of_volume
    }
}

/// Emits the last event of a volume, which has emitted it itself unless it was given up.
pub fn emit_end(volume: &Volume, ended: &Ended) {
    let given_up = || ended.error.as_ref().map_or("not everything was written", Words::as_str).to_owned();
    volume.events().end((ended.state != State::Released).then(given_up));
}

/// How a volume ended, from its own report.
#[must_use]
pub fn ended_with(report: &DrainReport) -> Ended {
    Ended {
        state: if report.is_complete() { State::Released } else { State::Failed },
        ended_ms: now_ms(),
        unwritten: unwritten(&report.unwritten),
        error: report.sync_error.as_ref().map(|error| error.to_string().into()),
        switch_drain_us: micros(report.switch_drain),
        switched_inodes: report.switched,
    }
}

/// A call that the store has not answered in time.
#[must_use]
pub fn stalled(call: &store::UnderWay) -> Stalled {
    Stalled { call: call.call.into(), for_ms: millis(call.since.elapsed()) }
}

pub(crate) fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Those with most inodes; one without any may still have other figures.
fn cgroups(wbs: &[WbStatus]) -> Vec<Cgroup> {
    let mut wbs: Vec<&WbStatus> = wbs.iter().collect();
    wbs.sort_by_key(|wb| (std::cmp::Reverse(wb.owned), &wb.path));
    let shown = wbs.into_iter().take(CGROUPS_NAMED_MAX).map(|wb| Cgroup {
        path: Name::of(&wb.path),
        removed: wb.is_dying,
        owned_inodes: wb.owned as u64,
        dirty_bytes: wb.dirty,
        to_write_bytes: wb.dirty,
        writeback_bytes: wb.writeback,
        switches_in_flight: wb.switches_in_flight as u64,
        switched_inodes: wb.switched,
    });
    shown.collect()
}

/// The data that was not written, for people and programs.
#[must_use]
pub fn unwritten(files: &[volume::Unwritten]) -> Unwritten {
    Unwritten {
        bytes: files.iter().map(|file| file.bytes).sum(),
        files: files.len() as u64,
        named: files.iter().take(FILES_NAMED_MAX).map(file_error).collect(),
    }
}

/// The state of `volume`, whose figures are `figures`. Informs the volume whether it has a path.
pub(crate) fn state_of(volume: &Volume, figures: &volume::Status, has_a_path: impl Fn() -> bool) -> State {
    match figures.state {
        VolumeState::Active | VolumeState::Detached | VolumeState::Draining if figures.stalled.is_some() => {
            State::Stalled
        }
        VolumeState::Active | VolumeState::Detached if has_a_path() => {
            volume.set_attached();
            State::Active
        }
        VolumeState::Active | VolumeState::Detached => {
            volume.set_detached();
            State::Detached
        }
        VolumeState::Draining => State::Draining,
        VolumeState::Released => State::Released,
        VolumeState::Failed => State::Failed,
    }
}

fn cgroup_limits(of: volume::CgroupLimits) -> CgroupLimits {
    let number = |limit: Option<std::num::NonZeroU64>| limit.map(std::num::NonZeroU64::get);
    CgroupLimits {
        cgroup: of.cgroup.to_string().into(),
        rbps: number(of.limits.rbps),
        wbps: number(of.limits.wbps),
        riops: number(of.limits.riops),
        wiops: number(of.limits.wiops),
        dirty_bytes_max: of.dirty_bytes_max,
        sync_isolation: of.sync_isolation,
        owed_bytes: of.owed_bytes,
    }
}

fn file_error(file: &volume::Unwritten) -> FileError {
    let path = file.path.as_ref().map(Name::of);
    FileError {
        file: path.unwrap_or_else(|| format!("inode {}", file.node).into()),
        bytes: file.bytes,
        error: file.error.map_or_else(Words::default, |kind| kind.to_string().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_many_cgroups_those_with_most_inodes_are_told_of() {
        let wb = |number: usize| WbStatus {
            owner: volume::CgroupId::ROOT,
            path: format!("/{number}").into(),
            is_dying: false,
            owned: number,
            dirty: 0,
            writeback: 0,
            switches_in_flight: 0,
            switched: 0,
        };
        let all: Vec<WbStatus> = (0..CGROUPS_NAMED_MAX + 7).map(wb).collect();
        let shown = cgroups(&all);
        assert_eq!(shown.len(), 1000);
        assert_eq!(shown[0].path, format!("/{}", CGROUPS_NAMED_MAX + 6));
        assert_eq!(shown[999].path, "/7");
    }
}
