//! `events`: the events of this host's volumes, as they happen.
//!
//! Each volume has a reader of its own. Readers pass events to one printer by a bounded queue, so
//! that a slow terminal slows the readers; a reader that is too slow learns from its volume how
//! many events it missed.
//!
//! With `--all-users` a user could cause endless news: scans of the directories are never closer
//! together than `LOOKS_APART`.
//!
//! Volumes that appear later are found by watching the runtime directories, *before* they are
//! listed: a volume that appears between the two is either listed or reported, mostly both.

mod changes;
mod line;

use std::collections::HashMap;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::process;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::FileType;
use tokio::io::Interest;
use tokio::sync::{Notify, mpsc};
use tokio::task::LocalSet;
use volume::events::Life;

use self::changes::Changes;
use self::line::Printer;
use crate::cli::EventsArgs;
use crate::control::api::State;
use crate::control::client::{CallError, Client};
use crate::control::events::{Event, EventKind};
use crate::control::registered;
use crate::control::volume_id::VolumeId;
use crate::host::{signals, users};
use crate::registry::Record;
use crate::registry::target::{self, RegisteredVolume};
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// Events on their way from the readers to the printer.
const QUEUED_MAX: usize = 256;
/// How soon after a scan of other users' directories the next one may follow.
const LOOKS_APART: Duration = Duration::from_millis(200);
/// How long the line that is being printed may take after a signal.
const LAST_LINE: Duration = Duration::from_millis(500);

/// How long a process takes to be gone after its connections are.
const DIES: Duration = Duration::from_secs(1);

/// A message of a reader.
enum Heard {
    Event(Event),
    /// The stream ended: with the volume's last event, or why not.
    Over {
        id: VolumeId,
        end: Result<(), String>,
    },
}

/// Runs the verb.
///
/// # Errors
/// Exit 2 when a volume was named that does not exist; exit 1 when the events of the named one, or
/// with `--once` of any, cannot be read.
pub fn run(args: &EventsArgs) -> Result<()> {
    let stop = Arc::new(Notify::new());
    let stopping = Arc::clone(&stop);
    signals::watch(move |_| {
        stopping.notify_one();
        // The printing thread may be held up by the reader of its output.
        thread::sleep(LAST_LINE);
        process::exit(0)
    })
    .map_err(|error| Problem::failure(format!("cannot handle signals: {error}")))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime =
        runtime.map_err(|error| Problem::failure(format!("cannot start the event loop: {error}")))?;
    let result = runtime.block_on(LocalSet::new().run_until(async {
        tokio::select! {
            result = listen(args) => result,
            () = stop.notified() => Ok(()),
            () = nobody_reads() => Ok(()),
        }
    }));
    match result {
        Err(End::NobodyReads) => Ok(()),
        Err(End::Problem(problem)) => Err(problem),
        Ok(()) => Ok(()),
    }
}

/// Why the verb ends early.
enum End {
    /// Standard output's other end is gone.
    NobodyReads,
    Problem(Problem),
}

impl From<Problem> for End {
    fn from(problem: Problem) -> Self {
        Self::Problem(problem)
    }
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Self::NobodyReads,
            _ => Self::Problem(Problem::failure(format!("cannot write to standard output: {error}"))),
        }
    }
}

async fn listen(args: &EventsArgs) -> Result<(), End> {
    match &args.volume {
        Some(name) => {
            let volume = named(name)?;
            let readers = Readers::new(args);
            readers.hear(volume, args.since).await
        }
        None if args.once => once(args).await,
        None => follow(args).await,
    }
}

/// The volume that was named, which runs.
fn named(name: &std::ffi::OsStr) -> Result<RegisteredVolume> {
    let shown = name.shown();
    let Some(volume) = target::resolve(name).volume else {
        return Err(Problem::usage(format!("{shown} is not a volume; `watertight status` lists them")));
    };
    if volume.is_running() {
        return Ok(volume);
    }
    Err(Problem::failure(match (&volume.record().ended, &volume.found.silent) {
        (Some(ended), _) => format!("{shown} has ended: {}; its events are gone", ended.state),
        (None, Some(why)) => format!("{shown}: its process cannot be asked: {why}"),
        (None, None) => format!("{shown}: its process died; its events are gone"),
    }))
}

/// All volumes, and those that appear.
async fn follow(args: &EventsArgs) -> Result<(), End> {
    let changes = Changes::new()?;
    let mut readers = Readers::new(args);
    let mut is_first = true;
    loop {
        changes.subscribe()?;
        readers.start(target::volumes(), is_first)?;
        is_first = false;
        let not_before = users::includes_all_users().then(|| Instant::now() + LOOKS_APART);
        loop {
            tokio::select! {
                heard = readers.next() => readers.take(heard)?,
                result = changes.wait(not_before) => {
                    result?;
                    break;
                }
            }
        }
    }
}

/// Prints the events that all volumes have kept, by time.
async fn once(args: &EventsArgs) -> Result<(), End> {
    let mut readers = Readers::new(args);
    readers.start(target::volumes(), true)?;
    let mut events = Vec::new();
    let mut is_complete = true;
    while readers.running > 0 {
        match readers.next().await {
            Heard::Event(event) => events.push(event),
            over @ Heard::Over { end: Ok(()), .. } => readers.take(over)?,
            over @ Heard::Over { .. } => {
                is_complete = false;
                readers.take(over)?;
            }
        }
    }
    events.sort_by_key(|event| event.time_ms);
    events.iter().try_for_each(|event| readers.print(event))?;
    if is_complete {
        Ok(())
    } else {
        Err(Problem::failure("the events of some volumes could not be read").into())
    }
}

/// The readers, by volume.
struct Readers {
    printer: Printer,
    follow: bool,
    /// Volumes whose events are or were read, as long as they are in the registry.
    known: HashMap<VolumeId, Record>,
    running: usize,
    sender: mpsc::Sender<Heard>,
    heard: mpsc::Receiver<Heard>,
}

impl Readers {
    fn new(args: &EventsArgs) -> Self {
        let (sender, heard) = mpsc::channel(QUEUED_MAX);
        let printer = Printer::new(args.json);
        Self { printer, follow: !args.once, known: HashMap::new(), running: 0, sender, heard }
    }

    /// Hears one volume until its end.
    async fn hear(mut self, volume: RegisteredVolume, since: u64) -> Result<(), End> {
        let id = volume.record().id.clone();
        self.spawn(volume, since);
        loop {
            match self.next().await {
                Heard::Over { end: Err(why), .. } => {
                    let at = &self.known[&id].mountpoint;
                    return Err(Problem::failure(format!("{at}: {why}")).into());
                }
                Heard::Over { end: Ok(()), .. } => return Ok(()),
                Heard::Event(event) => self.print(&event)?,
            }
        }
    }

    /// Starts a reader for each volume that has none. Of volumes without a process, only those that
    /// appear later are news.
    fn start(&mut self, volumes: Vec<RegisteredVolume>, is_first: bool) -> Result<(), End> {
        self.known.retain(|id, _| volumes.iter().any(|volume| volume.record().id == *id));
        for volume in volumes {
            let record = volume.record();
            if self.known.contains_key(&record.id) {
                continue;
            }
            if volume.is_running() {
                self.spawn(volume, 0);
            } else {
                self.known.insert(record.id.clone(), record.clone());
                if !is_first && record.ended.is_none() {
                    self.printer.unheard(record, "its process is gone, or cannot be reached")?;
                }
            }
        }
        Ok(())
    }

    fn spawn(&mut self, mut volume: RegisteredVolume, since: u64) {
        let Some(client) = volume.found.client.take() else { return };
        self.running += 1;
        self.known.insert(volume.record().id.clone(), volume.record().clone());
        tokio::task::spawn_local(read(client, volume, since, self.follow, self.sender.clone()));
    }

    async fn next(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            // A sender is here.
            None => std::future::pending().await,
        }
    }

    fn take(&mut self, heard: Heard) -> Result<(), End> {
        match heard {
            Heard::Event(event) => return self.print(&event),
            Heard::Over { id, end } => {
                self.running -= 1;
                if let (Err(why), Some(record)) = (end, self.known.get(&id)) {
                    self.printer.unheard(record, &why)?;
                }
            }
        }
        Ok(())
    }

    fn print(&self, event: &Event) -> Result<(), End> {
        let mountpoint =
            self.known.get(&event.volume).map(|record| record.mountpoint.clone()).unwrap_or_default();
        Ok(self.printer.print(event, &mountpoint)?)
    }
}

/// Hears one volume.
async fn read(
    client: Client,
    volume: RegisteredVolume,
    since: u64,
    follow: bool,
    sender: mpsc::Sender<Heard>,
) {
    let (mut has_ended, mut speaks_of_another) = (false, false);
    let id = volume.record().id.clone();
    let result = client
        .events(since, follow, async |event| {
            // Another user's process could speak of root's volumes.
            speaks_of_another = volume.dir.is_foreign() && event.volume != id;
            if speaks_of_another {
                return false;
            }
            has_ended = matches!(event.what, EventKind::Life { state: Life::Released | Life::Failed, .. });
            sender.send(Heard::Event(event)).await.is_ok()
        })
        .await;
    let record = volume.record();
    let end = match result {
        _ if speaks_of_another => Err("its process answers for another volume".to_owned()),
        _ if has_ended => Ok(()),
        Ok(()) if !follow => Ok(()),
        Ok(()) | Err(CallError::Gone) => match volume.dir.read_record(&record.id).and_then(|now| now.ended) {
            Some(ended) if ended.state == State::Released => Ok(()),
            Some(ended) => Err(format!("{}, and its last events were not read", ended.state)),
            None if !client.ends_within(DIES).await => {
                Err("another program has taken it over, whose events begin anew: listen again".to_owned())
            }
            None => Err(format!("its process {} died", record.pid)),
        },
        Err(error) => Err(format!("its events cannot be read: {error}")),
    };
    let _nobody_listens = sender.send(Heard::Over { id: record.id.clone(), end }).await;
}

/// Waits until standard output's other end is gone; for ever if it is none that can go.
async fn nobody_reads() {
    let watch = || {
        let out = io::stdout();
        let kind = FileType::from_raw_mode(rustix::fs::fstat(&out).ok()?.st_mode);
        let can_go = matches!(kind, FileType::Fifo | FileType::Socket) && !out.is_terminal();
        let fd = out.as_fd().try_clone_to_owned().ok()?;
        can_go.then(|| registered(fd, Interest::ERROR).ok()).flatten()
    };
    match watch() {
        Some(out) => drop(out.ready(Interest::ERROR).await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_pipe_is_no_problem() {
        assert!(matches!(End::from(io::Error::from(io::ErrorKind::BrokenPipe)), End::NobodyReads));
        let full = End::from(io::Error::from(io::ErrorKind::StorageFull));
        assert!(matches!(full, End::Problem(problem) if problem.to_string().contains("standard output")));
    }
}
