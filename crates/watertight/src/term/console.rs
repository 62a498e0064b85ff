//! The terminal: one status line that is redrawn in place, and lines that scroll above it.
//!
//! Everything that a mount process prints while it runs goes through the one [`Console`], the log
//! too, so that a log line never lands in the middle of the status line. On anything but a terminal
//! there is no status line and there are no colours.
//!
//! Locks: `Console::shown` is a leaf.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::sync::{LazyLock, OnceLock};

use rustix::termios::tcgetwinsize;
use serde::Serialize;
use sync::Mutex;

use crate::term::columns;
use crate::term::problem::{Problem, Result};
use crate::term::shown::{in_json, in_one_line, is_printable};

static CONSOLE: LazyLock<Console> = LazyLock::new(Console::new);

/// The process's console.
pub fn console() -> &'static Console {
    &CONSOLE
}

/// A colour of the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Colour {
    /// Good.
    Green,
    /// Wants attention.
    Yellow,
    /// Bad.
    Red,
    /// Less important.
    Dim,
    /// Headings.
    Bold,
}

/// Standard output and standard error of this process.
#[derive(Debug)]
pub struct Console {
    /// The status line as drawn, if any.
    shown: Mutex<Option<String>>,
    /// Set once: reports of success are not printed.
    is_quiet: OnceLock<()>,
    terminal: bool,
    colours_out: bool,
    colours_err: bool,
}

impl Console {
    fn new() -> Self {
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self {
            shown: Mutex::new(None),
            is_quiet: OnceLock::new(),
            terminal: io::stderr().is_terminal(),
            colours_out: io::stdout().is_terminal() && !plain,
            colours_err: io::stderr().is_terminal() && !plain,
        }
    }

    /// From now on [`print`](Self::print) prints nothing, as mount(8) and umount(8) say nothing
    /// where nothing is wrong.
    pub fn be_quiet(&self) {
        self.is_quiet.get_or_init(|| ());
    }

    /// Whether a status line can be shown.
    #[must_use]
    pub const fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Whether the log may use colours.
    #[must_use]
    pub const fn has_colours(&self) -> bool {
        self.colours_err
    }

    /// `text` in `colour` for standard output, if that is a terminal.
    #[must_use]
    pub fn paint(&self, colour: Colour, text: &str) -> String {
        paint(self.colours_out, colour, text)
    }

    /// `text` in `colour` for standard error, if that is a terminal.
    #[must_use]
    pub fn paint_err(&self, colour: Colour, text: &str) -> String {
        paint(self.colours_err, colour, text)
    }

    /// Prints lines of the verb's result on standard output.
    ///
    /// Names in them have to be [shown](crate::term::shown), so that each is in one line; where one
    /// was forgotten, its escape sequences still do nothing on a terminal.
    pub fn print(&self, line: &str) {
        if self.is_quiet.get().is_some() {
            return;
        }
        let line = harmless(line, self.colours_out);
        let mut out = io::stdout().lock();
        self.above_status(|| writeln!(out, "{line}").and_then(|()| out.flush()));
    }

    /// Prints a line for a person on standard error, as [`print`](Self::print) does.
    pub fn say(&self, line: &str) {
        self.write_err(format!("{}\n", harmless(line, self.colours_err)).as_bytes());
    }

    /// `line`, for standard output, as [`print`](Self::print) would print it.
    #[must_use]
    pub fn harmless<'a>(&self, line: &'a str) -> Cow<'a, str> {
        harmless(line, self.colours_out)
    }

    /// Prints JSON on standard output: exact, and nothing that a terminal obeys.
    pub fn print_json(&self, json: &str) {
        let json = in_json(json);
        let mut out = io::stdout().lock();
        self.above_status(|| writeln!(out, "{json}").and_then(|()| out.flush()));
    }

    /// Prints a value as JSON of several lines on standard output.
    ///
    /// # Errors
    /// The value cannot be written as JSON.
    pub fn print_value(&self, value: &impl Serialize) -> Result<()> {
        let json = serde_json::to_string_pretty(value);
        self.print_json(&json.map_err(|error| Problem::failure(error.to_string()))?);
        Ok(())
    }

    /// Prints a page in a format of its own, whose names are exact: as it is, except on a terminal.
    pub fn print_page(&self, page: &str) {
        let page = if io::stdout().is_terminal() { harmless(page, false) } else { Cow::Borrowed(page) };
        let mut out = io::stdout().lock();
        self.above_status(|| writeln!(out, "{page}").and_then(|()| out.flush()));
    }

    /// Writes whole lines to standard error, above the status line.
    pub fn write_err(&self, lines: &[u8]) {
        self.above_status(|| io::stderr().lock().write_all(lines));
    }

    /// Draws the status line, in place of the last; does nothing on anything but a terminal.
    pub fn status(&self, line: &str) {
        if !self.terminal {
            return;
        }
        let width = tcgetwinsize(io::stderr()).map_or(80, |size| usize::from(size.ws_col)).max(20);
        let line = columns::beginning(&in_one_line(line), width - 1).to_owned();
        let mut shown = self.shown.lock();
        if shown.as_ref() != Some(&line) {
            draw(&line);
            *shown = Some(line);
        }
    }

    /// Takes the status line away.
    pub fn clear_status(&self) {
        if self.shown.lock().take().is_some() {
            draw("");
        }
    }

    /// Runs `write` with the status line out of the way. A failed write has no reader.
    fn above_status(&self, write: impl FnOnce() -> io::Result<()>) {
        let shown = self.shown.lock();
        if shown.is_some() {
            draw("");
        }
        let _no_reader = write();
        if let Some(line) = &*shown {
            draw(line);
        }
    }
}

/// Puts `line` in place of the terminal's present line.
fn draw(line: &str) {
    let mut err = io::stderr().lock();
    let _no_reader = write!(err, "\r\x1b[K{line}").and_then(|()| err.flush());
}

/// `text` with invisible characters escaped, except ends of lines and, where there are colours,
/// those of [`Console::paint`].
#[must_use]
pub fn harmless(text: &str, colours: bool) -> Cow<'_, str> {
    if text.chars().all(|c| is_printable(c) || c == '\n') {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let mut known = BEGIN.into_iter().chain([END]).filter(|_| colours);
        if let Some(colour) = known.find(|colour| rest.starts_with(colour)) {
            shown.push_str(colour);
            rest = &rest[colour.len()..];
            continue;
        }
        if is_printable(c) || c == '\n' {
            shown.push(c);
        } else {
            shown.extend(c.escape_debug());
        }
        rest = &rest[c.len_utf8()..];
    }
    Cow::Owned(shown)
}

/// The sequences that [`paint`] writes before a text, in the order of [`Colour`].
const BEGIN: [&str; 5] = ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[1m"];
/// The sequence that [`paint`] writes behind a text.
const END: &str = "\x1b[0m";

fn paint(colours: bool, colour: Colour, text: &str) -> String {
    if !colours {
        return text.to_owned();
    }
    format!("{}{text}{END}", BEGIN[colour as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_only() {
        assert_eq!(paint(false, Colour::Red, "x"), "x");
        assert_eq!(paint(true, Colour::Red, "x"), "\x1b[31mx\x1b[0m");
    }

    #[test]
    fn names_of_files_do_nothing_to_the_terminal() {
        assert_eq!(
            harmless("a\x1b[2Jb\r\u{9b}c\td\u{202e}\n", true),
            "a\\u{1b}[2Jb\\r\\u{9b}c\\td\\u{202e}\n"
        );
        assert_eq!(harmless("\x1b[31mx\x1b[0m", false), "\\u{1b}[31mx\\u{1b}[0m");
        let all = [Colour::Green, Colour::Yellow, Colour::Red, Colour::Dim, Colour::Bold];
        for painted in all.map(|colour| paint(true, colour, "x")) {
            assert_eq!(harmless(&painted, true), painted);
        }
    }
}
