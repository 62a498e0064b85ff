//! The running step, and its remaining time: a bar on a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::time::Duration;

/// The bar of one experiment. Its length is the time that the experiment expects to take.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// A bar on standard error; `indicatif` draws nothing if that is not a terminal.
    pub(crate) fn new() -> Self {
        let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template(
            "{bar:24} {percent:>3} %, {elapsed} of about {duration}  {wide_msg}",
        );
        if let Ok(style) = style {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(250));
        Self { bar }
    }

    /// Prints how long everything is expected to take: once, in words, where there is no terminal.
    pub(crate) fn expect(&self, experiment: &str, whole: Duration) {
        self.bar.set_length(millis(whole));
        if self.bar.is_hidden() {
            eprintln!("lab: {experiment}: about {} s", whole.as_secs().max(1));
        }
    }

    /// Shows the running step.
    pub(crate) fn now(&self, what: &str) {
        self.bar.set_message(what.to_owned());
    }

    /// Shows the running step, and prints a line where there is no terminal: for steps that take
    /// long.
    pub(crate) fn step(&self, what: &str) {
        self.now(what);
        if self.bar.is_hidden() {
            eprintln!("lab: {what}");
        }
    }

    /// A step that was expected to take `expected` is over.
    pub(crate) fn done(&self, expected: Duration) {
        self.bar.inc(millis(expected));
    }

    /// Prints a line above the bar.
    pub(crate) fn say(&self, line: &str) {
        self.bar.suspend(|| eprintln!("lab: {line}"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
