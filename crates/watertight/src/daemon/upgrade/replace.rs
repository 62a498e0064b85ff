//! The steps of an upgrade while requests wait, up to execve(2): see the module [above](super).

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::time::Instant;

use handover::Kept;

use super::prepare::{can_be_handed_over, make_durable};
use super::state::{State, VERSION, bytes_of, now_ns};
use super::upgrader::{Handed, PreparedUpgrade, with_state};
use crate::host::mount_agent::{self, AgentRequest};
use crate::host::mountinfo::Mount;
use crate::host::spawn_for_result;

/// Replaces the program. Returns if that failed, with the reason: requests are served again then.
/// `may_go` is asked last.
pub(crate) fn replace_program(
    mounted: Handed<'_>,
    upgrade: &PreparedUpgrade,
    may_go: impl FnOnce() -> bool,
) -> String {
    match try_replace(mounted, upgrade, may_go) {
        Ok(error) => format!("the new program cannot be executed: {error}"),
        Err(why) => why,
    }
}

fn try_replace(
    mounted: Handed<'_>,
    upgrade: &PreparedUpgrade,
    may_go: impl FnOnce() -> bool,
) -> Result<std::io::Error, String> {
    let io = |error: std::io::Error| format!("it cannot be handed over: {error}");
    let (upgrader, info) = (mounted.upgrader, mounted.info);
    can_be_handed_over(mounted)?;
    let paused_ns = now_ns();
    let until = Instant::now() + upgrade.max_pause;
    let paused = mounted
        .session
        .pause(until, |readers| wake(readers, &info.mount))
        .map_err(|error| error.to_string())?;
    make_durable(mounted, until)?;
    let _no_change = upgrader.changing();
    let mut kept = Kept::default();
    let volume = mounted.volume.hand_over(&mut kept).map_err(|error| error.to_string())?;
    let session = paused.hand_over(&mut kept).map_err(io)?;
    let program = File::open("/proc/self/exe").map_err(io)?;
    let reason = rustix::fs::memfd_create("watertight-reason", rustix::fs::MemfdFlags::CLOEXEC);
    let reason = reason.map_err(|error| io(error.into()))?;
    let (program, reason) = (kept.copy(program.as_fd()).map_err(io)?, kept.copy(reason.as_fd()).map_err(io)?);
    let listener = kept.copy(upgrader.listener.as_fd()).map_err(io)?;
    let state = State {
        version: VERSION,
        kept: kept.numbers(),
        program,
        reason,
        listener,
        arguments: bytes_of(&upgrader.arguments),
        agent: mount_agent::pid(),
        id: info.id.clone(),
        source: info.source.clone(),
        mount: info.mount.clone(),
        unique_id: info.unique_id,
        read_only: info.read_only,
        started_ms: info.started_ms,
        mounted: upgrader.mounted.clone(),
        session,
        volume,
        paused_ns,
        upgrades: upgrader.past.count,
        failed: upgrader.past.failed,
    };
    let bytes = serde_json::to_vec(&state).map_err(|error| io(error.into()))?;
    let sealed = Arc::new(handover::seal("watertight-state", &bytes).map_err(io)?);
    let number = kept.share(&sealed);
    if !may_go() {
        return Err("it is being unmounted, or a signal has come".to_owned());
    }
    let arguments = with_state(&upgrader.arguments, number);
    tracing::info!(volume = mounted.volume.name(), "another program takes over");
    Ok(handover::replace_program(upgrade.program.as_fd(), &arguments, &kept.numbers()))
}

/// Has so many requests made by the umount helper process. They end when they are answered, maybe
/// by the next program: none is waited for.
fn wake(readers: usize, mount: &Mount) {
    for _ in 0..readers {
        let mount = mount.clone();
        let asked = spawn_for_result("wake", move || mount_agent::call(AgentRequest::Wake, &mount));
        if let Err(error) = asked {
            tracing::warn!(%error, "cannot start a thread that has a reader woken");
        }
    }
}
