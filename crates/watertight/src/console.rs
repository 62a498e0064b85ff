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
use sync::Mutex;

use crate::columns;

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
    /// Set once: what went well is not printed.
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

    /// From now on [`print`](Self::print) prints nothing, as mount(8) and umount(8) say nothing where nothing is wrong.
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

    /// Prints a line of the verb's result on standard output.
    ///
    /// Control characters in it, which may come from the name of anybody's file, are shown and not obeyed.
    pub fn print(&self, line: &str) {
        if self.is_quiet.get().is_some() {
            return;
        }
        let line = harmless(line);
        let mut out = io::stdout().lock();
        self.above_status(|| writeln!(out, "{line}").and_then(|()| out.flush()));
    }

    /// Prints a line for a person on standard error, as [`print`](Self::print) does.
    pub fn say(&self, line: &str) {
        self.write_err(format!("{}\n", harmless(line)).as_bytes());
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
        let line = columns::beginning(line, width - 1).to_owned();
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

    /// Runs `write` with the status line out of the way. What cannot be written has no reader.
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

/// `text` with its control characters escaped, but for ends of lines and for the colours of [`Console::paint`].
#[must_use]
pub fn harmless(text: &str) -> Cow<'_, str> {
    if !text.contains(|c: char| c.is_control() && c != '\n') {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if let Some(colour) = BEGIN.into_iter().chain([END]).find(|colour| rest.starts_with(colour)) {
            shown.push_str(colour);
            rest = &rest[colour.len()..];
            continue;
        }
        if c.is_control() && c != '\n' {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
        rest = &rest[c.len_utf8()..];
    }
    Cow::Owned(shown)
}

/// What [`paint`] writes before a text, in the order of [`Colour`].
const BEGIN: [&str; 5] = ["\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[2m", "\x1b[1m"];
/// What [`paint`] writes behind a text.
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
        assert_eq!(harmless("a\x1b[2Jb\r\u{9b}c\td\n"), "a\\u{1b}[2Jb\\r\\u{9b}c\\td\n");
        let all = [Colour::Green, Colour::Yellow, Colour::Red, Colour::Dim, Colour::Bold];
        for painted in all.map(|colour| paint(true, colour, "x")) {
            assert_eq!(harmless(&painted), painted);
        }
    }
}
