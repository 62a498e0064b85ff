//! The steps of an upgrade while requests are served: see the module [above](super).

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use volume::Volume;

use super::upgrader::{Handed, PreparedUpgrade};
use super::{check, program};
use crate::control::api::{UpgradeReply, UpgradeRequest};
use crate::daemon::attachments::handover::{check_reopening, check_store};
use crate::daemon::change_gate::LOOK;
use crate::daemon::event::SupervisorEvent;
use crate::host::spawn_for_result;
use crate::term::units;

/// The longest times that a caller may ask for.
const TIMEOUT_MAX: Duration = Duration::from_secs(3600);
const PAUSE_MAX: Duration = Duration::from_secs(60);
/// Volumes that are named in one answer.
const NAMED_MAX: usize = 8;
/// Threads that write the data of volumes, of which many may be attached.
const THREADS_MAX: usize = 16;

/// Serves `POST /v1/upgrade`: returns if it is refused.
///
/// # Errors
/// Why, in words.
pub(crate) fn request(
    mounted: Handed<'_>,
    request: &UpgradeRequest,
    supervisor: &Sender<SupervisorEvent>,
) -> Result<UpgradeReply, String> {
    let upgrader = mounted.upgrader;
    let Some(_one_at_a_time) = upgrader.running.try_lock() else {
        return Err("another upgrade of it goes on".to_owned());
    };
    let timeout = Duration::from_millis(request.timeout_ms).min(TIMEOUT_MAX);
    let max_pause = Duration::from_millis(request.max_pause_ms).min(PAUSE_MAX);
    let until = Instant::now() + timeout;
    can_be_handed_over(mounted)?;
    check_reopening(&mounted.info.source, &check::options_of(&upgrader.arguments)?)?;
    mounted.attachments.check_reopening()?;
    let file = program::open(Path::new(&request.program))?;
    // A child that is started while the store does not answer never begins: it has copies of the
    // store's files, whose closing asks the store.
    make_durable(mounted, until, &mut || true)?;
    check::ask(&file, &upgrader.arguments)?;
    settle(mounted, until, max_pause)?;
    let (refused, why) = std::sync::mpsc::channel();
    supervisor
        .send(SupervisorEvent::Upgrade(PreparedUpgrade { program: file, max_pause, refused }))
        .map_err(|_| "it has ended already".to_owned())?;
    Err(why.recv().unwrap_or_else(|_| "it is being unmounted".to_owned()))
}

pub(super) fn can_be_handed_over(mounted: Handed<'_>) -> Result<(), String> {
    check_store(&mounted.info.source, mounted.info.read_only)?;
    mounted.attachments.check_handover()?;
    if mounted.volume.recovery().is_some_and(|recovery| !recovery.is_on()) {
        return Err(
            "no other process follows this one any more (`recovery` in `status --json` says why); unmount it, and \
             mount it with the new program"
                .to_owned(),
        );
    }
    if !mounted.info.mount.is_present() {
        return Err("its mount was taken away, or moved to another namespace".to_owned());
    }
    mounted.session.can_pause().map_err(|error| error.to_string())
}

/// Makes durable what was written meanwhile, until that takes so little time that the rest can be
/// written while requests wait.
///
/// # Errors
/// When that does not come about: nobody has waited for it.
fn settle(mounted: Handed<'_>, until: Instant, max_pause: Duration) -> Result<(), String> {
    loop {
        let (begun, dirty) = (Instant::now(), mounted.dirty_bytes());
        make_durable(mounted, until, &mut || true)?;
        let took = begun.elapsed();
        if took <= max_pause {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(format!(
                "its dirty data cannot be written while requests wait: {} took {}, and they may wait {}",
                units::bytes(dirty),
                units::duration(took),
                units::duration(max_pause)
            ));
        }
    }
}

/// Makes everything durable, as long as it does not take longer, and `go_on` agrees.
pub(super) fn make_durable(
    mounted: Handed<'_>,
    until: Instant,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), String> {
    let volumes = mounted.volumes();
    let failed = |error| format!("cannot start a thread: {error}");
    let shares = shares(volumes).into_iter().map(|share| {
        let each = move || {
            let durable = |volume: &Arc<Volume>| {
                if volume.report().is_some() {
                    // It was detached meanwhile.
                    return Ok(());
                }
                let named = |error| format!("dirty data of {} cannot be written: {error}", volume.name());
                volume.prepare_handover().map_err(named)
            };
            share.iter().try_for_each(durable)
        };
        spawn_for_result("upgrade-sync", each).map_err(failed)
    });
    for share in shares.collect::<Result<Vec<_>, String>>()? {
        result_of(&share, until, go_on).unwrap_or_else(|| {
            let volumes = mounted.volumes();
            let is_late = |one: &&Arc<Volume>| one.stalled().is_some() || one.status().dirty_bytes > 0;
            let late: Vec<&str> =
                volumes.iter().filter(is_late).map(|one| one.name()).take(NAMED_MAX).collect();
            Err(format!(
                "its dirty data could not be written in time: {} are left{}{}",
                units::bytes(mounted.dirty_bytes()),
                if late.is_empty() { "" } else { ", of " },
                late.join(", ")
            ))
        })?;
    }
    Ok(())
}

/// Volumes in so many shares as threads are made for them.
pub(super) fn shares(volumes: Vec<Arc<Volume>>) -> Vec<Vec<Arc<Volume>>> {
    let of_each = volumes.len().div_ceil(THREADS_MAX).max(1);
    volumes.chunks(of_each).map(<[_]>::to_vec).collect()
}

/// What a thread sends; `None` if it does not by `until`, if `go_on` does not agree to wait any more,
/// and if the thread has ended.
pub(super) fn result_of<T>(done: &Receiver<T>, until: Instant, go_on: &mut dyn FnMut() -> bool) -> Option<T> {
    loop {
        match done.recv_timeout(LOOK.min(until.saturating_duration_since(Instant::now()))) {
            Ok(result) => return Some(result),
            Err(RecvTimeoutError::Disconnected) => return None,
            Err(RecvTimeoutError::Timeout) if Instant::now() >= until || !go_on() => return None,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
