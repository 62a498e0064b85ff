//! `top`: the volumes of this host and their cgroups, live.
//!
//! One thread asks the mount processes; a process that does not answer holds up the next check, but
//! no key. Another draws, and waits for keys. `screen::lines` makes the contents of a screen, and
//! needs no terminal.

mod rows;
mod screen;

use std::io::{IsTerminal, Write, stdin, stdout};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use crossterm::cursor::{Hide, MoveTo, Show};
use crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use crossterm::style::Print;
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode, size,
};
use crossterm::{execute, queue};

use crate::cli::TopArgs;
use crate::term::problem::{Problem, Result};
use rows::{Rates, Table};
use screen::View;

/// How long a process may take to answer before it is shown as one that does not.
const PATIENCE: Duration = Duration::from_secs(1);

/// Looks that follow each other faster only keep the mount processes from their work.
const INTERVAL_MIN: Duration = Duration::from_millis(10);

/// Runs the verb.
///
/// # Errors
/// Exit 2 without a terminal, or with an interval that is none.
pub fn run(args: &TopArgs) -> Result<()> {
    if args.interval < INTERVAL_MIN {
        return Err(Problem::usage("--interval takes 10ms or more"));
    }
    if !stdin().is_terminal() || !stdout().is_terminal() {
        return Err(Problem::usage("top needs a terminal; for programs there is `watertight status --json`"));
    }
    let failed = |error: std::io::Error| Problem::failure(format!("the terminal: {error}"));
    let _terminal = Terminal::take().map_err(failed)?;
    let mut looks = Looks::start().map_err(failed)?;
    let mut view = View::default();
    let mut table = Table::default();
    loop {
        draw(&screen::lines(&table, &mut view, size().map_err(failed)?)).map_err(failed)?;
        loop {
            if let Some(new) = looks.take(args.interval) {
                table = new;
                break;
            }
            if !event::poll(looks.rest()).map_err(failed)? {
                continue;
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

/// Looks at all volumes, one after the other, each by the thread that asks.
struct Looks {
    ask: Sender<()>,
    told: Receiver<Table>,
    /// When the next is due; none while one is under way.
    due: Option<Instant>,
}

impl Looks {
    fn start() -> std::io::Result<Self> {
        let (ask, asked) = channel();
        let (tell, told) = channel();
        // Not waited for at the end: it may be waiting for a process.
        thread::Builder::new().name("looks".to_owned()).spawn(move || {
            let mut rates = Rates::default();
            while asked.recv().is_ok() && tell.send(rates.look(PATIENCE)).is_ok() {}
        })?;
        Ok(Self { ask, told, due: Some(Instant::now()) })
    }

    /// The result of the last check, once; begins the next one where it is due.
    fn take(&mut self, interval: Duration) -> Option<Table> {
        if self.due.is_some_and(|due| due <= Instant::now()) && self.ask.send(()).is_ok() {
            self.due = None;
        }
        let table = self.told.try_recv().ok()?;
        self.due = Some(Instant::now() + interval);
        Some(table)
    }

    /// How long to wait for a key meanwhile. A channel wakes no thread that waits for the terminal:
    /// a pending answer is polled for.
    fn rest(&self) -> Duration {
        const UNDER_WAY: Duration = Duration::from_millis(20);
        self.due.map_or(UNDER_WAY, |due| {
            due.saturating_duration_since(Instant::now()).max(Duration::from_millis(1))
        })
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
