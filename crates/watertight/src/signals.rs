//! Signals as events: a thread of its own takes them; the handlers only write to a pipe.

use std::io;
use std::sync::Arc;
use std::thread;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sync::Mutex;

use crate::console::console;

/// Where one of these signals comes, drops what is in `held`, says `farewell` and ends the process with exit code 1.
///
/// # Errors
/// Those of installing the handlers and making the thread.
pub fn clean_up<T: Send + 'static>(held: Arc<Mutex<Option<T>>>, farewell: &'static str) -> io::Result<()> {
    watch(move |_| {
        drop(held.lock().take());
        console().clear_status();
        console().say(farewell);
        std::process::exit(1)
    })
}

/// The time in which a process has made nothing that outlives it: a signal ends it, whatever it waits for.
#[derive(Debug, Clone)]
pub struct Beginning(Arc<Mutex<bool>>);

impl Beginning {
    /// It begins.
    #[must_use]
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(true)))
    }

    /// Something is about to be made: signals are events from now on.
    pub fn is_over(&self) {
        *self.0.lock() = false;
    }

    /// On a signal: says `farewell` and ends the process with exit code 1, if it is not over.
    pub fn end_process(&self, farewell: &str) {
        // Held to the end: what is about to be made is not begun.
        let lasts = self.0.lock();
        if *lasts {
            console().clear_status();
            console().say(farewell);
            std::process::exit(1)
        }
    }
}

impl Default for Beginning {
    fn default() -> Self {
        Self::new()
    }
}

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
