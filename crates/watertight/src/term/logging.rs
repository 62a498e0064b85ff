//! The log, on standard error.
//!
//! | form | where it is the default | a line |
//! |---|---|---|
//! | text | a terminal (above the status line), and all verbs but `mount` | time, level, message, fields |
//! | json | all else: files, pipes | an object with `timestamp`, `level`, `message`, `target` and the event's fields |
//! | journald | where standard error is the journal's own stream | `<PRIORITY>` and the text without time and level, which the journal keeps itself |
//!
//! A verb's message to its caller (its result, its problem) is no log, and plain text. Where
//! `--log-format` was given to `mount` or `serve`, and from `serve`'s first volume on, no caller
//! reads along: all of standard error is the log then ([`take_all`]).
//!
//! An event is one line, whatever names are in it: the writer escapes all invisible characters, in
//! JSON as JSON does, elsewhere as in [`shown`](crate::term::shown).
//!
//! An event of one volume has the field `volume`, or is in a span that has it: the path where the
//! volume was mounted or attached, as in `serve`'s file. It does not change when an attached volume
//! is moved.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::OnceLock;

use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::format::{FmtSpan, Format, Full, Writer, debug_fn};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, MakeWriter};
use tracing_subscriber::registry::LookupSpan;

use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{in_json, in_one_line, is_printable};

/// How this process logs: the form, and the level if one was given.
static CHOSEN: OnceLock<(LogFormat, Option<String>)> = OnceLock::new();
/// Whether all of standard error is the log.
static ALL: OnceLock<()> = OnceLock::new();

/// The form of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// For people.
    Text,
    /// One object in each line, for programs.
    Json,
    /// Text with the priority that systemd reads from the beginning of a line.
    Journald,
}

impl LogFormat {
    /// The form for a mount process whose log goes to a file, or to standard error as it is now.
    #[must_use]
    pub fn for_mount(to_file: bool) -> Self {
        if to_file {
            Self::Json
        } else if console().is_terminal() {
            Self::Text
        } else if is_journal() {
            Self::Journald
        } else {
            Self::Json
        }
    }
}

/// From here on, everything that this process writes on standard error is logged, unless the form
/// is text.
pub fn take_all() {
    if CHOSEN.get().is_some_and(|(format, _)| *format != LogFormat::Text) {
        ALL.get_or_init(|| ());
    }
}

/// Whether all of standard error is the log.
#[must_use]
pub fn has_all() -> bool {
    ALL.get().is_some()
}

/// The arguments with which another process of ours logs as this one does.
#[must_use]
pub fn arguments() -> Vec<String> {
    let Some((format, level)) = CHOSEN.get() else { return Vec::new() };
    let name = match format {
        LogFormat::Text => "text",
        LogFormat::Json => "json",
        LogFormat::Journald => "journald",
    };
    let level = level.iter().map(|level| format!("--log-level={level}"));
    std::iter::once(format!("--log-format={name}")).chain(level).collect()
}

/// Whether standard error is the stream that the service manager connected with the journal, and
/// not one that was put in its place since.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").ok();
    let stat = rustix::fs::fstat(io::stderr().as_fd()).ok();
    matches!((stream, stat), (Some(stream), Some(stat)) if stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Starts logging in `format`, at `level`, or as `RUST_LOG` says, or `default`.
///
/// # Errors
/// An invalid level.
pub fn start(format: LogFormat, level: Option<&str>, default: &str) -> Result<()> {
    let filter = match (level, std::env::var("RUST_LOG")) {
        (Some(level), _) => {
            let refused = |why: String| {
                Problem::usage(in_one_line(&format!(
                    "--log-level {level}: {why}; give error, warn, info, debug or trace"
                )))
            };
            // Such a word would be taken for the name of a module, and nothing else would be
            // logged.
            let word = level.split(',').map(str::trim).find(|part| !part.contains('=') && !is_level(part));
            if let Some(word) = word {
                return Err(refused(format!("`{word}` is not a level")));
            }
            EnvFilter::try_new(level).map_err(|error| refused(error.to_string()))?
        }
        (None, Ok(filter)) => EnvFilter::try_new(&filter).map_err(|error| {
            Problem::usage(in_one_line(&format!(
                "RUST_LOG={filter}: {error}; give error, warn, info, debug or trace"
            )))
        })?,
        (None, Err(_)) => EnvFilter::new(default),
    };
    // Each step of a volume's life is a span, which events in it name. With `debug`, its beginning
    // and its end are logged as well, the end with the time that it took.
    let wants_steps = filter.max_level_hint().is_none_or(|level| level >= LevelFilter::DEBUG);
    let steps = if wants_steps { FmtSpan::NEW | FmtSpan::CLOSE } else { FmtSpan::NONE };
    let log =
        tracing_subscriber::fmt().with_env_filter(filter).with_span_events(steps).with_writer(AboveStatus);
    match format {
        LogFormat::Text => log.with_ansi(console().has_colours()).fmt_fields(fields()).try_init(),
        LogFormat::Json => log.json().flatten_event(true).try_init(),
        LogFormat::Journald => {
            log.with_ansi(false).event_format(ForJournal::default()).fmt_fields(fields()).try_init()
        }
    }
    .map_err(|error| Problem::failure(format!("the log cannot be started: {error}")))?;
    CHOSEN.get_or_init(|| (format, level.map(str::to_owned)));
    Ok(())
}

fn is_level(word: &str) -> bool {
    word.parse::<LevelFilter>().is_ok()
}

/// Lines as systemd takes them from a service's standard error; see sd-daemon(3).
#[derive(Debug)]
struct ForJournal(Format<Full, ()>);

impl Default for ForJournal {
    fn default() -> Self {
        Self(Format::default().without_time().with_level(false))
    }
}

impl<S, N> FormatEvent<S, N> for ForJournal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> std::fmt::Result {
        let mut text = String::new();
        self.0.format_event(context, Writer::new(&mut text), event)?;
        // A second line would be a message of its own, and a file name could have put it there.
        let priority = priority(*event.metadata().level());
        writeln!(writer, "<{priority}>{}", in_one_line(text.trim_end()))
    }
}

/// The level as syslog(3) has it.
fn priority(level: Level) -> u8 {
    match level {
        Level::ERROR => 3,
        Level::WARN => 4,
        Level::INFO => 6,
        _ => 7,
    }
}

#[derive(Debug, Clone, Copy)]
struct AboveStatus;

/// Gathers one event's text, so that it is written in one piece.
#[derive(Debug, Default)]
struct Lines(Vec<u8>);

impl<'a> MakeWriter<'a> for AboveStatus {
    type Writer = Lines;

    fn make_writer(&'a self) -> Lines {
        Lines::default()
    }
}

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let is_json = CHOSEN.get().is_some_and(|(format, _)| *format == LogFormat::Json);
        console().write_err(line(&self.0, is_json, console().has_colours()).as_bytes());
    }
}

/// Writes a message, and fields with their names, each in one line without control sequences: the
/// only sequences for a terminal are then the formatter's colours.
fn fields() -> impl for<'a> FormatFields<'a> + Send + Sync + 'static {
    debug_fn(|writer, field, value| {
        let value = in_one_line(&format!("{value:?}"));
        match field.name() {
            "message" => write!(writer, "{value}"),
            name => write!(writer, "{name}={value}"),
        }
    })
    .delimited(" ")
}

/// One event's text as one line without control sequences, except the formatter's own colours, see
/// [`fields`].
fn line(text: &[u8], is_json: bool, colours: bool) -> String {
    let text = String::from_utf8_lossy(text);
    let text = text.trim_end_matches('\n');
    if is_json {
        return format!("{}\n", in_json(text));
    }
    let mut line = String::with_capacity(text.len() + 1);
    for c in text.chars() {
        if is_printable(c) || (c == '\x1b' && colours) { line.push(c) } else { line.extend(c.escape_debug()) }
    }
    line + "\n"
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::*;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_journal_gets_a_priority_in_each_line() {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt()
            .with_ansi(false)
            .with_max_level(Level::TRACE)
            .event_format(ForJournal::default())
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(log, || {
            tracing::error!(target: "t", file = "/a", "not written");
            tracing::warn!(target: "t", "held by\none\ntwo");
            tracing::info!(target: "t", "up");
            tracing::debug!(target: "t", "x");
            tracing::trace!(target: "t", "y");
        });
        let text = String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text,
            "<3>t: not written file=\"/a\"\n<4>t: held by\\none\\ntwo\n<6>t: up\n<7>t: x\n<7>t: y\n"
        );
    }

    /// Logs hostile names in every way in which something is logged.
    fn logged(is_json: bool, colours: bool) -> String {
        let kept = Kept::default();
        let writer = kept.clone();
        let log = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_ansi(colours);
        let log = log.with_writer(move || writer.clone()).fmt_fields(fields());
        let hostile = "a\n<2>forged\x1b[2J\x1b[31m\u{9b}2J\u{7f}\u{202e}\r\u{2028}";
        let say = || {
            let span = tracing::info_span!("step", hostile, path = %hostile, seen = ?hostile);
            let _within = span.enter();
            tracing::error!(hostile, path = %hostile, seen = ?hostile, "{hostile}");
        };
        if is_json {
            let log = tracing_subscriber::fmt().with_max_level(Level::TRACE).with_writer({
                let writer = kept.clone();
                move || writer.clone()
            });
            tracing::subscriber::with_default(log.json().flatten_event(true).finish(), say);
        } else {
            tracing::subscriber::with_default(log.finish(), say);
        }
        line(&kept.0.lock().unwrap(), is_json, colours)
    }

    #[test]
    fn an_event_is_one_line_that_does_nothing() {
        let text = logged(false, false);
        let is_plain = |text: &str| text.trim_end_matches('\n').chars().all(is_printable);
        assert!(is_plain(&text) && text.lines().count() == 1, "{text:?}");
        assert!(text.contains(r"a\n<2>forged"), "{text}");
        // With colours, only those that the formatter has of its own.
        let mut coloured = logged(false, true);
        assert!(coloured.contains("\x1b[31mERROR\x1b[0m"), "{coloured:?}");
        coloured = coloured.replace("\x1b[31mERROR", "");
        for own in ["\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[3m"] {
            coloured = coloured.replace(own, "");
        }
        assert!(is_plain(&coloured), "{coloured:?}");
        // JSON has the same values.
        let json = logged(true, false);
        assert!(is_plain(&json), "{json:?}");
        let value: serde_json::Value = serde_json::from_str(&json).unwrap();
        let hostile = "a\n<2>forged\x1b[2J\x1b[31m\u{9b}2J\u{7f}\u{202e}\r\u{2028}";
        assert_eq!((&value["path"], &value["hostile"]), (&hostile.into(), &hostile.into()));
    }
}
