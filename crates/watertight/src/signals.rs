//! Signals as events: a thread of its own takes them; the handlers only write to a pipe.

use std::io;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `on_signal` with the name of every SIGINT, SIGTERM and SIGHUP that comes, from a thread of its own,
/// until it answers `false`.
///
/// # Errors
/// Those of installing the handlers and making the thread.
pub fn watch(mut on_signal: impl FnMut(&'static str) -> bool + Send + 'static) -> io::Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("signals".to_owned()).spawn(move || {
        for signal in signals.forever() {
            let name = match signal {
                SIGINT => "SIGINT",
                SIGTERM => "SIGTERM",
                _ => "SIGHUP",
            };
            if !on_signal(name) {
                break;
            }
        }
    })?;
    Ok(())
}
