//! `top`: the volumes of this host and their cgroups, live.
//!
//! One thread: it asks every mount process for its status, draws, and waits for a key until the next look. What a screen
//! shows is made by `screen::lines`, which needs no terminal.

mod rows;
mod screen;

use std::io::{IsTerminal, Write, stdin, stdout};
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};

use crate::cli::TopArgs;
use crate::problem::{Problem, Result};
use rows::Rates;
use screen::View;

/// Runs the verb.
///
/// # Errors
/// Exit 2 without a terminal.
pub fn run(args: &TopArgs) -> Result<()> {
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Problem::usage("top needs a terminal; for programs there is `watertight status --json`"));
    }
    let failed = |error: std::io::Error| Problem::failure(format!("the terminal: {error}"));
    let _terminal = Terminal::take().map_err(failed)?;
    let mut rates = Rates::default();
    let mut view = View::default();
    let mut table = rates.look();
    loop {
        draw(&screen::lines(&table, &mut view, size().map_err(failed)?)).map_err(failed)?;
        let until = Instant::now() + args.interval;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !event::poll(left.max(Duration::from_millis(1))).map_err(failed)? {
                table = rates.look();
                break;
            }
            match event::read().map_err(failed)? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if is_end(key, &view) {
                        return Ok(());
                    }
                    view.key(key.code);
                    break;
                }
                Event::Resize(..) => break,
                _ => {}
            }
        }
    }
}

fn is_end(key: KeyEvent, view: &View) -> bool {
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    control_c || (key.code == KeyCode::Char('q') && !view.is_typing())
}

/// The terminal in raw mode with a screen of its own, until this is dropped.
struct Terminal;

impl Terminal {
    fn take() -> std::io::Result<Self> {
        enable_raw_mode()?;
        let terminal = Self;
        execute!(stdout(), EnterAlternateScreen, Hide)?;
        Ok(terminal)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _gone = execute!(stdout(), Show, LeaveAlternateScreen);
        let _gone = disable_raw_mode();
    }
}

fn draw(lines: &[String]) -> std::io::Result<()> {
    let mut out = stdout().lock();
    for (row, line) in lines.iter().enumerate() {
        let row = u16::try_from(row).unwrap_or(u16::MAX);
        queue!(out, MoveTo(0, row), Print(line), Clear(ClearType::UntilNewLine))?;
    }
    queue!(out, Clear(ClearType::FromCursorDown))?;
    out.flush()
}
