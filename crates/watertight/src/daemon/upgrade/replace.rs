//! The steps of an upgrade while requests wait, up to execve(2): see the module [above](super).

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use handover::Kept;
use volume::{Volume, VolumeHandover};

use super::prepare::{can_be_handed_over, make_durable, result_of, shares};
use super::state::{State, now_ns};
use super::upgrader::{Handed, PreparedUpgrade, with_state};
use crate::daemon::attachments::handover::AttachedState;
use crate::daemon::recovery::serve;
use crate::host::mount_agent::{self, AgentRequest};
use crate::host::mountinfo::Mount;
use crate::host::{notify, spawn_for_result};

/// Descriptors that the next program needs for itself.
const NEXT_RESERVE: u64 = 128;
/// How often what is dirty is written while requests come to their ends.
const ROUND: Duration = Duration::from_millis(1);
/// How long after a first error it is tried again; after each further one twice as long as before.
const AFTER_ERROR: Duration = Duration::from_millis(100);
/// How often a watchdog is answered meanwhile.
const ALIVE: Duration = Duration::from_secs(1);
/// Why it is refused when the supervisor has something else to do.
const ENDS: &str = "it is being unmounted, or a signal has come";
/// Longer than an attempt can last.
const ATTEMPT_MAX: Duration = Duration::from_secs(90);

/// Requests come to their ends as fast as the store can; until this is dropped.
#[derive(Debug)]
struct Hurry {
    _limits: Vec<volume::Hurry>,
    _writers_end_when_dropped: Vec<Sender<()>>,
}

/// Replaces the program. Returns if that failed, with the reason: requests are served again then.
/// `may_go` is asked while it waits, and last.
pub(crate) fn replace_program(
    mounted: Handed<'_>,
    upgrade: &PreparedUpgrade,
    mut may_go: impl FnMut() -> bool,
) -> String {
    match try_replace(mounted, upgrade, &mut may_go) {
        Ok(error) => format!("the new program cannot be executed: {error}"),
        Err(_) if !may_go() => ENDS.to_owned(),
        Err(why) => why,
    }
}

fn try_replace(
    mounted: Handed<'_>,
    upgrade: &PreparedUpgrade,
    may_go: &mut dyn FnMut() -> bool,
) -> Result<std::io::Error, String> {
    let io = |error: std::io::Error| format!("it cannot be handed over: {error}");
    let (upgrader, info) = (mounted.upgrader, mounted.info);
    can_be_handed_over(mounted)?;
    let _alive = KeepAlive::start();
    let until = Instant::now() + upgrade.max_pause;
    let _no_change = upgrader
        .changes
        .close(until, &mut *may_go)
        .map_err(|calls| format!("{calls} calls of its control socket did not come to an end in time"))?;
    if let Some(recovery) = mounted.volume.recovery() {
        if !may_go() {
            return Err(ENDS.to_owned());
        }
        return serve::leave_to(recovery, mounted, &upgrade.program).map(|never| match never {});
    }
    let paused_ns = now_ns();
    let _no_limit = hurry(mounted.volumes());
    tracing::info!(volume = mounted.volume.name(), "requests wait for another program");
    let paused = mounted
        .session
        .pause(until, |readers| wake(readers, &info.mount), &mut *may_go)
        .map_err(|error| error.to_string())?;
    make_durable(mounted, until, may_go)?;
    let WrittenDown { volume, attached, mut kept } = write_down(mounted, until, may_go)?;
    let all = || attached.iter().map(|one| &one.volume).chain([&volume]);
    let objects = all().map(|one| one.store.objects()).sum::<usize>();
    let by_handle = all().map(|one| one.store.by_handle()).sum::<usize>();
    let session = paused.hand_over(&mut kept).map_err(io)?;
    let program = File::open("/proc/self/exe").map_err(io)?;
    let reason = rustix::fs::memfd_create("watertight-reason", rustix::fs::MemfdFlags::CLOEXEC);
    let reason = reason.map_err(|error| io(error.into()))?;
    let (program, reason) = (kept.copy(program.as_fd()).map_err(io)?, kept.copy(reason.as_fd()).map_err(io)?);
    let listener = kept.copy(upgrader.listener.as_fd()).map_err(io)?;
    let state = State {
        kept: kept.numbers(),
        program,
        reason,
        agent: mount_agent::pid(),
        paused_ns,
        attached,
        clones: mounted.attachments.hand_over_clones(),
        failed_attached: mounted.attachments.failed(),
        ..mounted.state(listener, session, volume)
    };
    let bytes = serde_json::to_vec(&state).map_err(|error| io(error.into()))?;
    let sealed = Arc::new(handover::seal("watertight-state", &bytes).map_err(io)?);
    let number = kept.share(&sealed);
    if !may_go() {
        return Err(ENDS.to_owned());
    }
    let kept_numbers = kept.numbers();
    has_room(kept_numbers.len())?;
    let arguments = with_state(&upgrader.arguments, number);
    tracing::info!(volume = mounted.volume.name(), objects, by_handle, "another program takes over");
    Ok(handover::replace_program(upgrade.program.as_fd(), &arguments, &kept_numbers))
}

/// All volumes, written down, and the descriptors that the next program gets.
struct WrittenDown {
    volume: VolumeHandover,
    attached: Vec<AttachedState>,
    kept: Kept,
}

/// Writes the volumes down, on a thread of its own: a store may not answer.
fn write_down(
    mounted: Handed<'_>,
    until: Instant,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<WrittenDown, String> {
    let (volume, attachments) = (Arc::clone(mounted.volume), Arc::clone(mounted.attachments));
    let write = move || {
        let mut kept = Kept::default();
        let volume = volume.hand_over(&mut kept, until).map_err(|error| error.to_string())?;
        let attached = attachments.hand_over(&mut kept, until)?;
        Ok(WrittenDown { volume, attached, kept })
    };
    let done = spawn_for_result("upgrade-state", write)
        .map_err(|error| format!("cannot start a thread: {error}"))?;
    match result_of(&done, until, go_on) {
        Some(written) => written,
        None => Err("it could not be written down in time: a store does not answer".to_owned()),
    }
}

/// Has requests under way come to their ends, which wait for limits and for room in the cache.
fn hurry(volumes: Vec<Arc<Volume>>) -> Hurry {
    let limits = volumes.iter().map(|volume| volume.hurry()).collect();
    let writers = shares(volumes).into_iter().map(|share| {
        let (sender, ended) = channel();
        let write = move || {
            let mut wait = Duration::ZERO;
            loop {
                // All of them, also after an error.
                let failed = share.iter().filter(|one| one.write_unless_clean().is_err()).count();
                wait = until_next(failed == 0, wait);
                if ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
            }
        };
        if let Err(error) = spawn("upgrade-write", write) {
            tracing::warn!(%error, "cannot start a thread that makes room for requests that wait");
        }
        sender
    });
    Hurry { _writers_end_when_dropped: writers.collect(), _limits: limits }
}

/// How long the writer waits after a round that came after `before`. Each error is logged, and
/// reported to the openings of its file.
fn until_next(has_written: bool, before: Duration) -> Duration {
    if has_written { ROUND } else { AFTER_ERROR.max(before.saturating_mul(2)) }
}

/// Whether the next program has room for a copy of each descriptor: the originals stay open until
/// it serves.
fn has_room(count: usize) -> Result<(), String> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let Some(limit) = limit else { return Ok(()) };
    let need = 2 * count as u64 + NEXT_RESERVE;
    if need <= limit {
        return Ok(());
    }
    Err(format!(
        "{count} descriptors are to be handed over, for which the next program needs {need} at first, and the \
         process may have {limit}: close files, or raise the limit (LimitNOFILE= of its unit, `ulimit -Hn`)"
    ))
}

/// Answers the service manager's watchdog in place of the supervisor, until this is dropped or the
/// program replaced; never for longer than an attempt lasts.
#[derive(Debug)]
struct KeepAlive {
    _ends_when_dropped: Option<Sender<()>>,
}

impl KeepAlive {
    fn start() -> Self {
        let (sender, ended) = channel();
        let until = Instant::now() + ATTEMPT_MAX;
        let answer = move || {
            notify::alive();
            while ended.recv_timeout(ALIVE) == Err(RecvTimeoutError::Timeout) && Instant::now() < until {
                notify::alive();
            }
        };
        match spawn("upgrade-alive", answer) {
            Ok(()) => Self { _ends_when_dropped: Some(sender) },
            Err(error) => {
                tracing::warn!(%error, "cannot start a thread that answers the watchdog");
                Self { _ends_when_dropped: None }
            }
        }
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_fails_is_asked_less_and_less_often() {
        let mut wait = until_next(true, Duration::ZERO);
        assert_eq!(wait, ROUND);
        for times in [1, 2, 4, 8] {
            wait = until_next(false, wait);
            assert_eq!(wait, AFTER_ERROR * times);
        }
        assert_eq!(until_next(true, wait), ROUND);
    }
}
