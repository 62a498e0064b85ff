//! Reports this process's state to a service manager: systemd's notification socket.

use std::env;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use recovery::Recovery;

use crate::term::shown::Show as _;

/// Where a keeper passes notifications on.
static RECOVERY: OnceLock<Arc<Recovery>> = OnceLock::new();

/// From now on the keeper notifies the service manager, which knows that process.
pub(crate) fn through(recovery: &Arc<Recovery>) {
    let _the_first_stays = RECOVERY.set(Arc::clone(recovery));
}

/// Sends `state` (lines of `KEY=VALUE`) to the service manager, if there is one.
pub fn notify(state: &str) {
    if let Some(recovery) = RECOVERY.get() {
        if let Err(error) = recovery.link.notify(state) {
            tracing::debug!(%error, "the keeper, which notifies the service manager, is gone");
        }
        return;
    }
    let Some(path) = env::var_os("NOTIFY_SOCKET") else { return };
    let bytes = path.as_bytes();
    let address = match bytes.strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name),
        None => SocketAddr::from_pathname(&path),
    };
    let sent = address.and_then(|address| UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address));
    if let Err(error) = sent {
        tracing::warn!(%error, socket = %path.shown(), "the service manager was not notified");
    }
}

/// Notifies the service manager's watchdog, if it has one for this process, that the process is
/// alive. The caller does so more often than each half of the agreed time.
pub fn alive() {
    // The service manager knows the keeper.
    let kept = RECOVERY.get().and_then(|_| rustix::process::getppid());
    let own = kept.map_or_else(std::process::id, |keeper| keeper.as_raw_nonzero().get().unsigned_abs());
    let own = own.to_string();
    if env::var_os("WATCHDOG_USEC").is_some() && env::var("WATCHDOG_PID").is_ok_and(|pid| pid == own) {
        notify("WATCHDOG=1");
    }
}

/// Asks the service manager for `time` more before it kills us.
pub fn more_time(time: Duration) {
    notify(&format!("EXTEND_TIMEOUT_USEC={}", time.as_micros()));
}
