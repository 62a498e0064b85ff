//! `serve`: the volumes of a configuration file, each in a mount process of its own, which this one
//! starts, watches and ends.
//!
//! A process for each mountpoint is the bulkhead: no thread, lock, descriptor or byte of memory is
//! shared, and a store that hangs keeps its own process only. If this process is killed the volumes
//! go on; the next one takes them over. Volumes by the thousand are attached inside mountpoints
//! (module `nested_volumes`): they share a process, and have bounds of their own there; one that is idle
//! has no thread.
//!
//! # Events and what this process does
//! | event | action |
//! |---|---|
//! | it is in the file, and not mounted | its process is started |
//! | it is mounted already, from the same source | it is taken over as it is |
//! | none can be mounted at the start | the exit message gives the reason for each |
//! | its process fails or is killed | the dead mount is cleared, and the volume mounted again after a pause that grows to a minute |
//! | a user unmounted it | nothing, until the next reload |
//! | SIGHUP, and it is no longer in the file | unmounted with all data written |
//! | SIGHUP, and it has changed | it stays as it is, and that is reported |
//! | SIGHUP, and the limits on it have changed | they are changed while it is mounted (module `limits`) |
//! | its mountpoint is there again | the volumes of the file that belong inside are attached |
//! | SIGTERM, SIGINT | all are unmounted with all data written; the exit message names those that were not |

mod child;
pub mod config;
mod event;
mod limits;
mod nested_volumes;
mod sources;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

pub use config::{CgroupLimit, Config, VolumeConfig};

use crate::cli::ServeArgs;
use crate::control::api::Missing;
use crate::host::{notify, signals};
use crate::registry::missing::MissingList;
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;
use crate::term::{logging, units};
use child::{Child, Ending};
use event::{PAUSE, PAUSE_MAX, ServeEvent};
use limits::VolumeLimits;
use nested_volumes::NestedVolumes;

/// The documented example; the package installs it.
pub const EXAMPLE: &str = include_str!("../../../packaging/watertight.toml");

/// How often a watchdog is answered and resting volumes are checked.
const LOOK: Duration = Duration::from_secs(1);
/// How much more time a service manager is asked for while volumes are being unmounted.
const MORE: Duration = Duration::from_secs(10);

/// Runs the verb.
///
/// # Errors
/// Exit 2 for a file that is wrong, with its lines; 1 when a volume ended with data that was not
/// written.
pub fn run(args: &ServeArgs) -> Result<()> {
    if args.example {
        console().print(EXAMPLE.trim_end());
        return Ok(());
    }
    let Some(path) = &args.config else {
        return Err(Problem::usage("give a configuration file; `watertight serve --example` prints one"));
    };
    let config = read(path)?;
    if args.check {
        config.look().map_err(|wrong| Problem::usage(format!("{}:{wrong}", path.shown())))?;
        let volumes = units::count(config.volumes.len() as u64, "volume", "volumes");
        console().print(&format!("{}: {volumes}, no errors", path.shown()));
        return Ok(());
    }
    let (sender, events) = channel();
    let on_signal = sender.clone();
    signals::watch(move |name| on_signal.send(ServeEvent::Signal(name)).is_ok())
        .map_err(|error| Problem::failure(format!("cannot handle signals: {error}")))?;
    let mut served = ServeLoop {
        path: path.clone(),
        volumes: BTreeMap::new(),
        nested: NestedVolumes::new(sender.clone()),
        sender,
        stopping: false,
        failed: Vec::new(),
    };
    logging::take_all();
    served.apply(config);
    served.run(&events)
}

fn read(path: &PathBuf) -> Result<Config> {
    let shown = path.shown();
    let text = fs::read_to_string(path).map_err(|error| Problem::usage(format!("{shown}: {error}")))?;
    Config::parse(&text).map_err(|wrong| Problem::usage(format!("{shown}:{wrong}")))
}

/// A volume of the file.
#[derive(Debug)]
struct ServedVolume {
    config: VolumeConfig,
    state: MountState,
    pause: Duration,
    /// Why it is not mounted, if it could not be.
    failed: Option<String>,
    limits: Arc<VolumeLimits>,
}

#[derive(Debug)]
enum MountState {
    /// Its process runs; whether it is mounted.
    Runs(Child, bool),
    /// It is tried again then.
    Rests(Instant),
    /// A user unmounted it.
    Unmounted,
    /// It is no longer in the file and is being unmounted.
    Leaves(Child),
}

struct ServeLoop {
    path: PathBuf,
    /// Those with mountpoints of their own.
    volumes: BTreeMap<PathBuf, ServedVolume>,
    /// Those that are attached inside of these.
    nested: NestedVolumes,
    sender: Sender<ServeEvent>,
    stopping: bool,
    /// Failures at the end, for the exit message.
    failed: Vec<String>,
}

impl ServeLoop {
    fn run(&mut self, events: &Receiver<ServeEvent>) -> Result<()> {
        let mut told = false;
        let (mut list, mut looked) = (MissingList::default(), None::<Instant>);
        loop {
            notify::alive();
            if looked.is_none_or(|looked| looked.elapsed() >= LOOK) {
                list.tell(self.missing());
                looked = Some(Instant::now());
            }
            if !told
                && !self.stopping
                && self.volumes.values().all(|v| !matches!(v.state, MountState::Runs(_, false)))
                && self.nested.is_settled()
            {
                self.check_any_mounted()?;
                told = true;
                console().print(&format!("ready: {}", self.summary()));
                notify::notify("READY=1");
            }
            if self.stopping {
                notify::more_time(MORE);
                self.leave_behind();
                if !self
                    .volumes
                    .values()
                    .any(|v| matches!(v.state, MountState::Runs(..) | MountState::Leaves(_)))
                {
                    break;
                }
            }
            let next = self.nested.next_due().map(|at| at.saturating_duration_since(Instant::now()));
            match events.recv_timeout(next.unwrap_or(LOOK).min(LOOK)) {
                Ok(ServeEvent::Signal("SIGHUP")) => self.reload(),
                Ok(ServeEvent::Signal(name)) => self.stop(name),
                Ok(ServeEvent::Ready(at)) => self.on_ready(&at),
                Ok(ServeEvent::Ended(at, ending)) => self.on_ended(&at, ending),
                Ok(ServeEvent::CallEnded(at, done)) => self.nested.on_call_ended(&at, done),
                Err(_) => {}
            }
            self.try_again();
            if !self.stopping {
                self.nested.start_due_calls();
            }
        }
        if self.failed.is_empty() {
            return Ok(());
        }
        Err(Problem::failure(format!("not everything is written:\n  {}", self.failed.join("\n  "))))
    }

    /// Processes that have ended, and are kept by stores that do not answer, are not waited for:
    /// they have said how they ended.
    fn leave_behind(&mut self) {
        let kept = self.volumes.iter_mut().filter_map(|(at, volume)| {
            let (MountState::Runs(child, _) | MountState::Leaves(child)) = &mut volume.state else {
                return None;
            };
            child.waits_in_the_kernel().then(|| (at.clone(), child.ending()))
        });
        for (at, ending) in kept.collect::<Vec<_>>() {
            self.on_ended(&at, ending);
        }
    }

    /// Fails, with the reason of each volume, if a service starts and none of its volumes is
    /// mounted.
    fn check_any_mounted(&self) -> Result<()> {
        let failed: Option<Vec<String>> = self
            .volumes
            .iter()
            .map(|(at, volume)| match (&volume.state, &volume.failed) {
                (MountState::Rests(_), Some(why)) => Some(format!("{}: {why}", at.shown())),
                _ => None,
            })
            .collect();
        match failed {
            Some(failed) if !failed.is_empty() => {
                let summary = self.summary();
                Err(Problem::failure(format!("{summary}, so nothing is served:\n  {}", failed.join("\n  "))))
            }
            _ => Ok(()),
        }
    }

    fn summary(&self) -> String {
        self.summary_without(0)
    }

    /// A summary; so many volumes inside others' mountpoints are no longer there.
    fn summary_without(&self, gone: usize) -> String {
        let mounted = self.volumes.values().filter(|v| matches!(v.state, MountState::Runs(_, true))).count();
        let (nested, attached) = self.nested.counts();
        let all = units::count((self.volumes.len() + nested) as u64, "volume", "volumes");
        if nested == 0 {
            return format!("{mounted} of {all} mounted");
        }
        let attached = attached - gone;
        format!("{} of {all} mounted, {attached} of them inside others' mountpoints", mounted + attached)
    }

    /// Volumes of the file that are not mounted.
    fn missing(&self) -> Vec<Missing> {
        let own = self.volumes.values().filter_map(|volume| {
            let why = match &volume.state {
                MountState::Runs(_, true) | MountState::Leaves(_) => return None,
                MountState::Runs(_, false) => "is being mounted",
                MountState::Unmounted => "was unmounted; a reload mounts it again",
                MountState::Rests(_) => volume.failed.as_deref().unwrap_or("is mounted again soon"),
            };
            Some(volume.config.missing(why))
        });
        own.chain(self.nested.missing()).collect()
    }

    fn reload(&mut self) {
        if self.stopping {
            return;
        }
        match read(&self.path) {
            Ok(config) => {
                tracing::info!("reading {} again", self.path.shown());
                self.apply(config);
            }
            Err(problem) => tracing::error!("nothing is changed: {problem}"),
        }
    }

    /// Makes the running volumes match the file.
    fn apply(&mut self, config: Config) {
        let mut wanted = BTreeMap::new();
        let mut nested = BTreeMap::new();
        for volume in config.volumes {
            match volume.attach.clone() {
                Some(path) => drop(nested.insert(path, volume)),
                None => drop(wanted.insert(volume.mountpoint.clone(), volume)),
            }
        }
        let mountpoints: BTreeSet<PathBuf> = wanted.keys().cloned().collect();
        self.nested.apply(nested, &mountpoints);
        for (at, volume) in &mut self.volumes {
            let shown = at.shown();
            match (wanted.remove(at), &volume.state) {
                (Some(new), MountState::Runs(_, is_mounted)) => {
                    if !new.mounts_like(&volume.config) {
                        tracing::warn!(
                            volume = %shown.exact(),
                            "{shown} has changed in the file, and cannot be changed while it is mounted: it goes on with {}; \
                             `watertight umount {shown}` and another reload mount it with {}",
                            volume.config.describe(),
                            new.describe(),
                        );
                    }
                    let limits = std::mem::replace(&mut volume.config.limits, new.limits);
                    // Else its process gets them when it is mounted.
                    if *is_mounted && limits != volume.config.limits {
                        tracing::info!(volume = %shown.exact(), "{shown}: its limits have changed");
                        volume.limits.tell(&volume.config);
                    }
                }
                (Some(new), MountState::Rests(_) | MountState::Unmounted) => {
                    volume.config = new;
                    volume.pause = PAUSE;
                    volume.state = MountState::Rests(Instant::now());
                }
                (Some(new), MountState::Leaves(_)) => volume.config = new,
                (None, MountState::Runs(child, _)) => {
                    tracing::info!(volume = %shown.exact(), "{shown} is no longer in the file: unmounting");
                    child.signal(rustix::process::Signal::TERM);
                    let state = std::mem::replace(&mut volume.state, MountState::Unmounted);
                    if let MountState::Runs(child, _) = state {
                        volume.state = MountState::Leaves(child);
                    }
                }
                (None, MountState::Rests(_)) => volume.state = MountState::Unmounted,
                (None, MountState::Unmounted | MountState::Leaves(_)) => {}
            }
        }
        let gone = |volume: &ServedVolume| matches!(volume.state, MountState::Unmounted);
        self.volumes.retain(|_, volume| !gone(volume));
        for (at, config) in wanted {
            let rests = MountState::Rests(Instant::now());
            let (pause, failed, limits) = (PAUSE, None, Arc::default());
            self.volumes.insert(at, ServedVolume { config, state: rests, pause, failed, limits });
        }
        self.try_again();
    }

    /// Mounts volumes that have rested long enough.
    fn try_again(&mut self) {
        if self.stopping {
            return;
        }
        let now = Instant::now();
        for (at, volume) in &mut self.volumes {
            let MountState::Rests(until) = volume.state else { continue };
            if until > now {
                continue;
            }
            let (ready, ended) = (self.sender.clone(), self.sender.clone());
            let (here, there) = (at.clone(), at.clone());
            let started = Child::start(
                &volume.config,
                move || drop(ready.send(ServeEvent::Ready(here))),
                move |ending| drop(ended.send(ServeEvent::Ended(there, ending))),
            );
            match started {
                Ok(child) => {
                    volume.limits.started_with(&volume.config.limits);
                    volume.state = MountState::Runs(child, false);
                }
                Err(problem) => {
                    tracing::error!(volume = %at.shown().exact(), "{}: {problem}", at.shown());
                    volume.rest(problem.to_string());
                }
            }
        }
    }

    fn on_ready(&mut self, at: &PathBuf) {
        let volume = self.volumes.get_mut(at);
        if let Some(ServedVolume { state: MountState::Runs(_, is_mounted), pause, failed, config, limits }) =
            volume
        {
            *is_mounted = true;
            *failed = None;
            *pause = PAUSE;
            // The file may have changed meanwhile, and a process that was taken over may have been
            // started with another one.
            limits.tell(config);
            tracing::info!(volume = %at.shown().exact(), "{} is mounted", at.shown());
            self.nested.on_mounted(at);
        }
        notify::notify(&format!("STATUS={}", self.summary()));
    }

    fn on_ended(&mut self, at: &PathBuf, ending: Ending) {
        let shown = at.shown();
        self.nested.on_unmounted(at);
        let Some(volume) = self.volumes.get_mut(at) else { return };
        let leaves = matches!(volume.state, MountState::Leaves(_));
        match ending {
            Ending::Unmounted => {
                tracing::info!(volume = %shown.exact(), "{shown}: unmounted, everything is on {}", volume.config.source.shown());
                volume.state = MountState::Unmounted;
            }
            Ending::Failed(why) => {
                tracing::error!(volume = %shown.exact(), "{shown}: {why}");
                child::clear(at);
                if self.stopping || leaves {
                    self.failed.push(format!("{shown}: {why}"));
                    volume.state = MountState::Unmounted;
                } else {
                    volume.rest(why);
                }
            }
        }
        if leaves {
            self.volumes.remove(at);
        }
        notify::notify(&format!("STATUS={}", self.summary()));
    }

    /// The first signal unmounts, later ones are handed on.
    fn stop(&mut self, name: &'static str) {
        self.stopping = true;
        tracing::info!("{name}: unmounting {}", self.summary_without(self.nested.detached_by_hand()));
        notify::notify("STOPPING=1");
        for volume in self.volumes.values() {
            if let MountState::Runs(child, _) | MountState::Leaves(child) = &volume.state {
                child.signal(rustix::process::Signal::TERM);
            }
        }
    }
}

impl ServedVolume {
    fn rest(&mut self, why: String) {
        self.failed = Some(why);
        self.state = MountState::Rests(Instant::now() + self.pause);
        self.pause = (self.pause * 2).min(PAUSE_MAX);
    }
}
