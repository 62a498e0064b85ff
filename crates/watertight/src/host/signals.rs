//! Signals as events: a thread of its own takes them; the handlers only write to a pipe.

use std::io;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sync::Mutex;

use crate::term::console::console;

/// On one of these signals, drops the value in `held`, prints `farewell` and ends the process with
/// exit code 1.
///
/// # Errors
/// Those of installing the handlers and making the thread.
pub fn clean_up<T: Send + 'static>(held: Arc<Mutex<Option<T>>>, farewell: &'static str) -> io::Result<()> {
    watch(move |_| {
        drop(held.lock().take());
        end(farewell)
    })
}

fn end(farewell: &str) -> ! {
    console().clear_status();
    console().say(farewell);
    std::process::exit(1)
}

/// The time in which a process has made nothing that outlives it: a signal ends it, even while it
/// waits.
#[derive(Debug, Clone, Default)]
pub struct StartupPhase {
    is_finished: Arc<Mutex<bool>>,
}

impl StartupPhase {
    /// Something is about to be made: signals are events from now on.
    pub fn finish(&self) {
        *self.is_finished.lock() = true;
    }

    /// On a signal: prints `farewell` and ends the process with exit code 1, if the phase is not finished.
    pub fn end_process(&self, farewell: &str) {
        // Held to the end: the next step cannot begin.
        let is_finished = self.is_finished.lock();
        if !*is_finished {
            end(farewell)
        }
    }
}

/// Calls `on_signal` with the name of every SIGINT, SIGTERM and SIGHUP that comes, from a thread of
/// its own, until it answers `false`.
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
