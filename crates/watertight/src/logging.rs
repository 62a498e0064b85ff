//! The log: text on standard error, above the status line.

use std::io::{self, Write};

use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;

use crate::console::console;
use crate::problem::{Problem, Result};

/// Starts logging at `level`, or as `RUST_LOG` says, or `default`.
///
/// # Errors
/// A level that is none.
pub fn start(level: Option<&str>, default: &str) -> Result<()> {
    let filter = match (level, std::env::var("RUST_LOG")) {
        (Some(level), _) => EnvFilter::try_new(level).map_err(|error| {
            Problem::usage(format!("--log-level {level}: {error}; give error, warn, info, debug or trace"))
        })?,
        (None, Ok(filter)) => EnvFilter::try_new(&filter).map_err(|error| {
            Problem::usage(format!("RUST_LOG={filter}: {error}; give error, warn, info, debug or trace"))
        })?,
        (None, Err(_)) => EnvFilter::new(default),
    };
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(console().has_colours())
        .with_writer(AboveStatus)
        .try_init()
        .map_err(|error| Problem::failure(format!("the log cannot be started: {error}")))
}

#[derive(Debug, Clone, Copy)]
struct AboveStatus;

/// Gathers one event's text, so that it is written in one piece.
#[derive(Debug, Default)]
struct Event(Vec<u8>);

impl<'a> MakeWriter<'a> for AboveStatus {
    type Writer = Event;

    fn make_writer(&'a self) -> Event {
        Event::default()
    }
}

impl Write for Event {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        console().write_err(&self.0);
    }
}
