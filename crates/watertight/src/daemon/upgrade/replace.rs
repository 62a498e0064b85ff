//! The steps of an upgrade while requests wait, up to execve(2): see the module [above](super).

use std::fs::File;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use handover::Kept;
use volume::Volume;

use super::prepare::{can_be_handed_over, make_durable};
use super::state::{State, VERSION, bytes_of, now_ns};
use super::upgrader::{Handed, PreparedUpgrade, with_state};
use crate::host::mount_agent::{self, AgentRequest};
use crate::host::mountinfo::Mount;
use crate::host::{notify, spawn_for_result};

/// Descriptors that the next program needs for itself.
const NEXT_RESERVE: u64 = 128;
/// How often what is dirty is written while requests come to their ends.
const ROUND: Duration = Duration::from_millis(1);
/// How often a watchdog is answered meanwhile.
const ALIVE: Duration = Duration::from_secs(1);
/// Longer than an attempt can last.
const ATTEMPT_MAX: Duration = Duration::from_secs(90);

/// Requests come to their ends as fast as the store can; until this is dropped.
#[derive(Debug)]
struct Hurry {
    _limits: volume::Hurry,
    is_over: Arc<AtomicBool>,
}

impl Drop for Hurry {
    fn drop(&mut self) {
        // ORDERING: Relaxed, see `hurry`.
        self.is_over.store(true, Ordering::Relaxed);
    }
}

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
    let _alive = KeepAlive::start();
    let until = Instant::now() + upgrade.max_pause;
    let _no_change = upgrader
        .changes
        .close(until)
        .map_err(|calls| format!("{calls} calls of its control socket did not come to an end in time"))?;
    let paused_ns = now_ns();
    let _no_limit = hurry(mounted.volume);
    let paused = mounted
        .session
        .pause(until, |readers| wake(readers, &info.mount))
        .map_err(|error| error.to_string())?;
    make_durable(mounted, until)?;
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
    let kept_numbers = kept.numbers();
    has_room(kept_numbers.len())?;
    let arguments = with_state(&upgrader.arguments, number);
    tracing::info!(volume = mounted.volume.name(), "another program takes over");
    Ok(handover::replace_program(upgrade.program.as_fd(), &arguments, &kept_numbers))
}

/// Has requests under way come to their ends, which wait for limits and for room in the cache.
fn hurry(volume: &Arc<Volume>) -> Hurry {
    let hurry = volume.hurry();
    let is_over = Arc::new(AtomicBool::new(false));
    let (writer, writer_is_over) = (Arc::clone(volume), Arc::clone(&is_over));
    let write = move || {
        // ORDERING: Relaxed, a round more does no harm.
        while !writer_is_over.load(Ordering::Relaxed) {
            writer.write_unless_clean();
            thread::sleep(ROUND);
        }
    };
    if let Err(error) = spawn("upgrade-write", write) {
        tracing::warn!(%error, "cannot start a thread that makes room for requests that wait");
    }
    Hurry { _limits: hurry, is_over }
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
