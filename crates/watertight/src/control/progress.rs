//! How far writing back has come: a bar on a terminal, a log line now and then elsewhere.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use crate::control::api::Status;
use crate::control::client::{CallError, Client};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::{logging, units};

/// How often a terminal's line is drawn.
pub const REDRAW: Duration = Duration::from_millis(200);
/// How often a line is logged elsewhere.
const LOG_EVERY: Duration = Duration::from_secs(5);
/// Waits shorter than this show nothing.
const QUIET: Duration = Duration::from_secs(2);
/// Characters of the bar.
const BAR: u64 = 24;

/// A rate over about the last two seconds, from a counter that only grows.
#[derive(Debug, Clone, Default)]
pub struct Rate {
    seen: std::collections::VecDeque<(Instant, u64)>,
}

impl Rate {
    /// Takes the counter's present value and returns units a second.
    pub fn update(&mut self, now: Instant, count: u64) -> u64 {
        self.seen.push_back((now, count));
        while self.seen.len() > 2 && self.seen.get(1).is_some_and(|(at, _)| now.duration_since(*at) > QUIET) {
            self.seen.pop_front();
        }
        let Some(&(since, from)) = self.seen.front() else { return 0 };
        let ms = now.duration_since(since).as_millis();
        if ms == 0 {
            return 0;
        }
        u64::try_from(u128::from(count.saturating_sub(from)) * 1000 / ms).unwrap_or(u64::MAX)
    }
}

/// Shows how a drain comes along.
#[derive(Debug)]
pub struct Progress {
    what: String,
    volume: Option<String>,
    most: u64,
    rate: Rate,
    logged: Instant,
}

impl Progress {
    /// Nothing is shown before the first [`update`](Self::update). `volume` is the log's name for
    /// the volume, if it has one.
    #[must_use]
    pub fn new(what: impl Into<String>, volume: Option<String>) -> Self {
        Self { what: what.into(), volume, most: 0, rate: Rate::default(), logged: Instant::now() }
    }

    /// Shows how much is left, and returns whether the store has taken anything of late.
    pub fn update(&mut self, now: Instant, status: &Status) -> bool {
        let rate = self.rate.update(now, status.written_bytes);
        let left = status.dirty_bytes;
        self.most = self.most.max(left);
        let text = format!("{}: {} left, {}/s", self.what, status.unwritten(), units::bytes(rate));
        if console().is_terminal() {
            console().status(&format!("{} {text}", bar(self.most - left, self.most)));
        } else if now.duration_since(self.logged) >= LOG_EVERY {
            self.logged = now;
            tracing::info!(volume = self.volume.as_deref(), "{text}");
        }
        rate > 0
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        console().clear_status();
    }
}

fn bar(done: u64, all: u64) -> String {
    let full = u64::try_from(u128::from(done) * u128::from(BAR) / u128::from(all.max(1))).unwrap_or(BAR);
    let cells: String = (0..BAR).map(|cell| if cell < full { '#' } else { '-' }).collect();
    format!("[{cells}]")
}

/// Prints a notice where the process has not answered after two seconds: the caller's next step
/// waits for it, however long. Returns its answer.
pub fn say_if_silent(what: &str, client: &Client) -> Option<Status> {
    let answer = client.status_within(QUIET);
    match &answer {
        Ok(_) | Err(CallError::Gone) => {}
        Err(error) => console().say(&format!(
            "{what}: waiting for its process {}, which does not answer ({error}); `watertight umount --force` ends it",
            client.pid()
        )),
    }
    answer.ok()
}

/// Runs `call`, which may take long, and shows meanwhile how much `client`'s volume has still to
/// write once two seconds have passed. Each time that its store stops answering is reported, on a
/// terminal or not.
pub fn during<T: Send>(what: &str, client: &Client, call: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| {
        let (done, finished) = channel::<()>();
        scope.spawn(move || {
            let mut wait = QUIET;
            let mut progress: Option<Progress> = None;
            let mut was_stalled = false;
            while finished.recv_timeout(wait) == Err(RecvTimeoutError::Timeout) {
                wait = REDRAW;
                let Ok(status) = client.status() else { continue };
                if let Some(stalled) = status.stalled.as_ref().filter(|_| !was_stalled) {
                    console().say(&format!(
                        "{what}: waiting: {stalled}; {} to be written; `watertight umount --force` gives that data up",
                        status.unwritten()
                    ));
                }
                was_stalled = status.stalled.is_some();
                progress.get_or_insert_with(|| Progress::new(what, None)).update(Instant::now(), &status);
            }
        });
        let value = call();
        drop(done);
        value
    })
}

/// Runs `call`, and once two seconds have passed reports that it waits for `whom`, which is a store
/// or a directory. The call runs on another thread: a signal that the kernel delivers to this one
/// is handled even while the call hangs.
///
/// # Errors
/// Those of `call`; when the host gives no thread.
pub fn waiting_for<T: Send>(what: &str, whom: &str, call: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let (done, finished) = channel::<()>();
        let span = tracing::Span::current();
        let caller = thread::Builder::new().name("store".to_owned()).spawn_scoped(scope, move || {
            let _done_when_dropped = done;
            span.in_scope(call)
        });
        let caller =
            caller.map_err(|error| Problem::failure(format!("{what}: cannot start a thread: {error}")))?;
        if finished.recv_timeout(QUIET) == Err(RecvTimeoutError::Timeout) {
            let text = format!("{what}: waiting for {whom}, which does not answer");
            if logging::has_all() {
                tracing::warn!("{text}");
            } else {
                console().say(&text);
            }
        }
        caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_forgets_what_is_long_ago() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut rate = Rate::default();
        assert_eq!(rate.update(at(0), 0), 0);
        assert_eq!(rate.update(at(1000), 5000), 5000);
        assert_eq!(rate.update(at(2000), 5000), 2500);
        assert_eq!(rate.update(at(10_000), 5000), 0);
    }

    #[test]
    fn the_bar_fills() {
        assert_eq!(bar(0, 0), format!("[{}]", "-".repeat(24)));
        assert_eq!(bar(50, 100), format!("[{}{}]", "#".repeat(12), "-".repeat(12)));
        assert_eq!(bar(100, 100), format!("[{}]", "#".repeat(24)));
    }
}
