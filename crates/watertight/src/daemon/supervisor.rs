//! A mount process's main thread: it waits for signals and for the end, shows the state, and makes
//! the end orderly.
//!
//! # How a volume comes to its end
//! | event | action of the supervisor |
//! |---|---|
//! | a user unmounts (the session ends) | drains the volume (on `fuseblk` the front end did, before it answered DESTROY) |
//! | first SIGINT, SIGTERM or SIGHUP | unmounts; if held, prints the holders, detaches, and drains |
//! | second signal | prints that it is still writing, and how much |
//! | third signal, or `umount --force` | gives up: the connection is aborted, unwritten files are named |
//!
//! Everything that blocks (unmounting, draining) runs on threads of its own and comes back as an
//! [`SupervisorEvent`], so that the supervisor always receives the next signal.
//!
//! # The end, in this order
//! The volume is drained, its store is free; the kernel mount is gone, by DESTROY or the
//! connection's end; the record says how it ended; clients that wait at the control socket get
//! their answer; the process leaves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

use volume::abort::CALLS;
use volume::{DrainReport, VolumeState};

use super::event::SupervisorEvent;
use super::figures::ended_with;
use super::mounted_volume::MountedVolume;
use super::stalls::Stalls;
use super::upgrade::replace;
use super::upgrade::upgrader::PreparedUpgrade;
use crate::control::api::{Ended, State, Status};
use crate::control::progress::{Progress, REDRAW, Rate};
use crate::control::server::Server;
use crate::control::service::Service;
use crate::host::mount_agent::{self, AgentRequest, call};
use crate::host::unmount::Outcome;
use crate::host::{notify, spawn_for_result};
use crate::registry::Registration;
use crate::term::console::{Colour, console};
use crate::term::problem::{Problem, Result};
use crate::term::shown::{Name, Show as _, Shown};
use crate::term::units;

/// How often the store's signs of life are checked where there is no status line.
const LOOK: Duration = Duration::from_secs(1);
/// How long the session may take to answer the kernel after the drain.
const ANSWER: Duration = Duration::from_secs(5);
/// How long giving up may take.
const GIVE_UP: Duration = Duration::from_secs(2);
/// How often the supervisor meanwhile checks whether a store hangs.
const GIVE_UP_LOOK: Duration = Duration::from_millis(5);
/// How often the supervisor checks whether a store hangs while the kernel hands over dirty pages.
const FLUSH_LOOK: Duration = Duration::from_millis(20);
/// How many lost files are listed.
const LOST_NAMED_MAX: usize = 100;
/// How many attached volumes that were lost are named.
const LOST_VOLUMES_MAX: usize = 20;

/// Supervises one mounted volume.
#[derive(Debug)]
pub struct Supervisor {
    mounted: Arc<MountedVolume>,
    events: Receiver<SupervisorEvent>,
    sender: Sender<SupervisorEvent>,
    /// Events that the first syncfs(2), or an upgrade that looked for them, took from the channel: they
    /// are handled next.
    put_back: VecDeque<SupervisorEvent>,
    signals: u32,
    draining: bool,
    detaching: bool,
    session_ended: bool,
    /// The volume may still be held when it has ended.
    held: bool,
    /// Since when nothing was written, while the volume ends.
    idle_since: Option<(u64, Instant)>,
    rates: Rates,
    progress: Option<Progress>,
    stalls: Stalls,
}

#[derive(Debug, Default)]
struct Rates {
    out: Rate,
    into: Rate,
}

impl Supervisor {
    /// A supervisor that receives `events`, which `sender` sends.
    #[must_use]
    pub fn new(
        mounted: Arc<MountedVolume>,
        events: Receiver<SupervisorEvent>,
        sender: Sender<SupervisorEvent>,
    ) -> Self {
        Self {
            mounted,
            events,
            sender,
            put_back: VecDeque::new(),
            signals: 0,
            draining: false,
            detaching: false,
            session_ended: false,
            held: false,
            idle_since: None,
            rates: Rates::default(),
            progress: None,
            stalls: Stalls::default(),
        }
    }

    /// Calls syncfs(2) on the mount for the first time: the session sees whether the kernel passes it
    /// on. An event ends the wait for that call, which does not return while the store hangs: a user
    /// can end the volume all the same.
    pub fn try_syncfs(&mut self) {
        let mounted = Arc::clone(&self.mounted);
        let has_seen = || mounted.attachments.session.has_seen_syncfs();
        mount_agent::try_syncfs(&mounted.info.mount, has_seen, || {
            self.put_back.extend(self.events.try_iter());
            !self.put_back.is_empty()
        });
    }

    /// Serves until the volume has ended, and returns how.
    pub fn run(&mut self) -> Ended {
        let ended = loop {
            notify::alive();
            match self.next(self.poll_interval()) {
                None => {
                    if let Some(ended) = self.poll() {
                        break ended;
                    }
                }
                Some(event) => {
                    if let Some(ended) = self.handle(event) {
                        break ended;
                    }
                }
            }
        };
        self.progress = None;
        console().clear_status();
        ended
    }

    /// The last steps: the record, the waiting clients, the socket.
    pub fn finish(self, ended: &Ended, mut registration: Registration, server: Server) {
        if let Err(problem) = registration.finish(ended.clone()) {
            let volume = self.mounted.volume.name();
            tracing::error!(volume, %problem, "cannot record how the volume ended");
        }
        self.mounted.end(ended.clone());
        server.finish();
        notify::notify("STOPPING=1");
    }

    /// The deadline of an end is checked when it comes.
    fn poll_interval(&self) -> Duration {
        let often = if console().is_terminal() { REDRAW } else { LOOK };
        let Some((_, since)) = self.idle_since else { return often };
        let deadline = since + self.mounted.info.drain_timeout;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() { often } else { often.min(left) }
    }

    fn next(&mut self, timeout: Duration) -> Option<SupervisorEvent> {
        if let Some(event) = self.put_back.pop_front() {
            return Some(event);
        }
        // Never disconnected: a sender is here.
        self.events.recv_timeout(timeout).ok()
    }

    fn handle(&mut self, event: SupervisorEvent) -> Option<Ended> {
        match event {
            SupervisorEvent::Signal(name) => return self.on_signal(name),
            SupervisorEvent::SessionEnded => {
                self.session_ended = true;
                self.drain();
            }
            SupervisorEvent::Upgrade(upgrade) => self.upgrade(upgrade),
            SupervisorEvent::Unmounted(result) => self.on_unmounted(result),
            SupervisorEvent::Detached => {
                self.detaching = false;
                self.drain();
            }
            SupervisorEvent::Drained(report) => return Some(self.on_drained(&report)),
            SupervisorEvent::GiveUp(why) => return Some(self.give_up(&why)),
        }
        None
    }

    /// Has another program take this one's place. Goes on where that is refused.
    fn upgrade(&mut self, upgrade: PreparedUpgrade) {
        if self.signals > 0 || self.draining || self.detaching {
            return upgrade.refuse("it is being unmounted".to_owned());
        }
        self.progress = None;
        console().clear_status();
        let mounted = Arc::clone(&self.mounted);
        let why = replace::replace_program(mounted.handed(), &upgrade, || {
            self.put_back.extend(self.events.try_iter());
            self.put_back.is_empty()
        });
        tracing::warn!(volume = mounted.volume.name(), "not upgraded, and nothing has changed: {why}");
        upgrade.refuse(why);
    }

    fn on_signal(&mut self, name: &str) -> Option<Ended> {
        self.signals += 1;
        let left = self.mounted.status();
        match self.signals {
            1 => {
                let path = left.mountpoint.clone();
                say(
                    self.mounted.volume.name(),
                    Colour::Yellow,
                    &format!("{name}: unmounting {path}, {} to be written", left.unwritten()),
                );
                notify::notify("STOPPING=1");
                self.idle_since.get_or_insert((self.written(), Instant::now()));
                self.unmount();
                None
            }
            2 => {
                let still = format!(
                    "{name}: still writing, {} left; send it once more to give that data up",
                    left.unwritten()
                );
                say(self.mounted.volume.name(), Colour::Yellow, &still);
                None
            }
            _ => Some(self.give_up(&format!("after {} signals", self.signals))),
        }
    }

    /// Takes the kernel mount away.
    fn unmount(&self) {
        let mounted = Arc::clone(&self.mounted);
        self.spawn("unmount", move || {
            let _step = tracing::info_span!("unmount", volume = mounted.volume.name(), id = %mounted.info.id)
                .entered();
            if let Err(error) = mounted.attachments.leave_all() {
                tracing::error!("a second mountpoint cannot be unmounted: {error}");
            }
            let gone = mounted.mounts().is_empty();
            SupervisorEvent::Unmounted(if gone {
                Ok(Outcome::Gone)
            } else {
                call(AgentRequest::Umount, &mounted.mount_now())
            })
        });
    }

    fn on_unmounted(&mut self, result: Result<Outcome>) {
        match result {
            Ok(Outcome::Gone) => self.drain(),
            Ok(Outcome::Held(holders)) => {
                let path = self.mounted.info.mount.mountpoint.shown();
                let holders = holders.lines().join("\n  ");
                let then = "its path is removed now; when its data is written, these processes lose it too";
                let text = format!("{path} is held by\n  {holders}\n{then}");
                say(self.mounted.volume.name(), Colour::Yellow, &text);
                self.held = true;
                self.detach(true);
            }
            Err(problem) => {
                tracing::error!(volume = self.mounted.volume.name(), "{problem}");
                self.held = true;
                self.drain();
            }
        }
    }

    /// Takes all paths to the volume away; before that, if `flush`, the kernel hands over dirty
    /// pages of files that are still open.
    fn detach(&mut self, flush: bool) {
        if std::mem::replace(&mut self.detaching, true) {
            return;
        }
        let mounted = Arc::clone(&self.mounted);
        // If the holder lets go meanwhile, this waits for the drain.
        self.spawn("detach", move || {
            let (volume, id) = (mounted.volume.name(), &mounted.info.id);
            let _step = tracing::info_span!("detach", volume, %id, flush).entered();
            if flush && let Err(problem) = flush_unless_stalled(&mounted) {
                tracing::warn!(%problem, "data of open files that only the kernel has may be lost");
            }
            for mount in mounted.mounts() {
                if let Err(problem) = call(AgentRequest::Detach, &mount) {
                    tracing::error!("{problem}");
                }
            }
            SupervisorEvent::Detached
        });
    }

    /// Writes everything and ends the volume; once.
    fn drain(&mut self) {
        if !std::mem::replace(&mut self.draining, true) {
            let mounted = Arc::clone(&self.mounted);
            self.spawn("drain", move || {
                // Beside each other: one store that hangs holds up its own volume only.
                thread::scope(|scope| {
                    scope.spawn(|| mounted.attachments.end());
                    mounted.volume.shutdown();
                });
                SupervisorEvent::Drained(mounted.volume.shutdown())
            });
        }
    }

    fn on_drained(&mut self, report: &DrainReport) -> Ended {
        let (volume, id) = (self.mounted.volume.name(), &self.mounted.info.id);
        let _step = tracing::info_span!("end", volume, %id).entered();
        let ended = self.with_attached(ended_with(report));
        let Ended { switch_drain_us, switched_inodes, .. } = ended;
        tracing::info!(took = ?report.took, switch_drain_us, switched_inodes, "drained");
        if !self.mounted.mounts().is_empty() {
            // Aborted from outside, or mounted in several places: no path may lead to a dead
            // server.
            self.detach(false);
        }
        // The kernel's last requests come before this process closes the device.
        let until = Instant::now() + ANSWER;
        while self.detaching || !(self.session_ended || self.held) {
            match self.next(until.saturating_duration_since(Instant::now())) {
                Some(SupervisorEvent::SessionEnded) => self.session_ended = true,
                Some(SupervisorEvent::Detached) => self.detaching = false,
                Some(_) => {}
                None => break,
            }
        }
        ended
    }

    /// Attached volumes have ended, too; their lost data is part of this end.
    fn with_attached(&self, mut ended: Ended) -> Ended {
        let failed = self.mounted.attachments.failed();
        let mut whys = Vec::new();
        for (path, other) in failed {
            ended.state = State::Failed;
            let why = other.error.map_or_else(String::new, |error| format!(": {error}"));
            whys.push(if other.unwritten.is_empty() {
                format!("{}{why}", path.shown())
            } else {
                format!("not everything of {} was written{why}", path.shown())
            });
            ended.unwritten.add(&path, other.unwritten);
        }
        if whys.is_empty() {
            return ended;
        }
        let more = whys.len().saturating_sub(LOST_VOLUMES_MAX);
        whys.truncate(LOST_VOLUMES_MAX);
        if more > 0 {
            whys.push(format!("and of {more} more"));
        }
        let own = ended.error.iter().map(|error| error.as_str().to_owned());
        ended.error = Some(own.chain(whys).collect::<Vec<_>>().join("; ").into());
        ended
    }

    /// Aborts everything; returns how it ended, with the data not written by now.
    fn give_up(&mut self, why: &str) -> Ended {
        let volume = Arc::clone(&self.mounted.volume);
        let _step =
            tracing::info_span!("force", volume = volume.name(), id = %self.mounted.info.id, why).entered();
        volume.abort();
        self.mounted.attachments.force();
        let mounted = Arc::clone(&self.mounted);
        let step = tracing::Span::current();
        self.spawn("give up", move || {
            let _step = step.entered();
            for mount in mounted.mounts() {
                if let Err(problem) = call(AgentRequest::Force, &mount) {
                    tracing::error!("{problem}");
                }
            }
            SupervisorEvent::Detached
        });
        self.drain();
        let begun = Instant::now();
        let mut report = None;
        let mut detached = false;
        while report.is_none() || !detached {
            // A store that hangs keeps the drain; this process ends all the same.
            let limit = if detached { self.patience(begun) } else { GIVE_UP };
            let left = (begun + limit).saturating_duration_since(Instant::now());
            if left.is_zero() || detached && self.is_left_to_its_stores(begun) {
                break;
            }
            // Whether a store hangs is checked again meanwhile.
            match self.next(left.min(GIVE_UP_LOOK)) {
                Some(SupervisorEvent::Drained(drained)) => report = Some(drained),
                Some(SupervisorEvent::Detached) => detached = true,
                Some(_) | None => {}
            }
        }
        if !detached {
            tracing::warn!("the kernel has not removed the mount yet");
        }
        let mut ended = match report {
            Some(report) => ended_with(&report),
            None => {
                self.mounted.attachments.give_up_hanging();
                ended_with(&volume.report().unwrap_or_else(|| volume.abort_report()))
            }
        };
        ended = self.with_attached(ended);
        if ended.state != State::Released {
            let known = ended.error.take().map_or_else(String::new, |error| format!("; {}", error.as_str()));
            ended.error = Some(format!("given up {why}{known}").into());
        }
        ended
    }

    /// Whether every volume that has not ended hangs, since before it was given up: none of them is
    /// to be waited for.
    fn is_left_to_its_stores(&self, begun: Instant) -> bool {
        let own = &self.mounted.volume;
        (own.report().is_some() || own.is_left_to_its_store(begun))
            && self.mounted.attachments.are_left_to_their_stores(begun)
    }

    /// How long after `begun` the supervisor waits for volumes that were given up then. Calls under
    /// way get a moment: their written data is not lost.
    fn patience(&self, begun: Instant) -> Duration {
        let hangs =
            self.mounted.volume.has_call_since(begun) || self.mounted.attachments.has_call_since(begun);
        if hangs { CALLS } else { GIVE_UP }
    }

    /// How long nothing may be written: less where nothing is left but stores that have not
    /// answered for half of that time.
    fn deadline(&self, now: Instant) -> Duration {
        let timeout = self.mounted.info.drain_timeout;
        let is_any_at_work = now.checked_sub(timeout / 2).is_none_or(|then| self.is_any_at_work(then));
        if is_any_at_work { timeout + ANSWER } else { timeout }
    }

    /// Whether a volume that has not ended is at work: its store has answered a call since `then`,
    /// or has had none. The mountpoint's own volume may have nothing left to do: it ends after the
    /// attached ones.
    fn is_any_at_work(&self, then: Instant) -> bool {
        let own = &self.mounted.volume;
        let has_work = || own.has_call_since(Instant::now()) || own.status().dirty_bytes > 0;
        let is_own = own.report().is_none() && !own.has_call_since(then) && has_work();
        is_own || self.mounted.attachments.is_any_at_work(then)
    }

    /// Bytes that all volumes have written so far.
    fn written(&self) -> u64 {
        let own = self.mounted.volume.status().bytes_written_back;
        own.saturating_add(self.mounted.attachments.written_bytes())
    }

    fn spawn(&self, name: &str, work: impl FnOnce() -> SupervisorEvent + Send + 'static) {
        let sender = self.sender.clone();
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let _supervisor_has_left = sender.send(work());
        });
        if let Err(error) = spawned {
            tracing::error!(volume = self.mounted.volume.name(), %error, name, "cannot start a thread");
            let _own_queue = self
                .sender
                .send(SupervisorEvent::GiveUp(format!("because no thread could be started: {error}")));
        }
    }

    /// Shows the state, and ends the volume where its store hangs: the supervisor does not wait for
    /// that for ever.
    fn poll(&mut self) -> Option<Ended> {
        let status = self.mounted.status();
        let (own, attachments) = (&self.mounted.volume, &self.mounted.attachments);
        let place = |volume: &Arc<_>| {
            attachments.place_of(volume).unwrap_or_else(|| status.mountpoint.as_str().to_owned())
        };
        self.stalls.look(std::iter::once(Arc::clone(own)).chain(attachments.volumes()), place);
        // A volume whose store does not answer holds up no other.
        attachments.tree.apply_stall_quota();
        let now = Instant::now();
        let ending =
            self.signals > 0 || self.draining || self.mounted.volume.status().state == VolumeState::Draining;
        if !ending {
            if console().is_terminal() {
                console().status(&self.rates.line(now, &status));
            }
            return None;
        }
        let volume = || Some(self.mounted.volume.name().to_owned());
        let what = || Progress::new(format!("unmounting {}", status.mountpoint), volume());
        if self.progress.get_or_insert_with(what).update(now, &status) {
            notify::more_time(ANSWER + LOOK);
        }
        let so_far = self.written();
        let (written, since) = *self.idle_since.get_or_insert((so_far, now));
        if written != so_far {
            self.idle_since = Some((so_far, now));
        } else if now.duration_since(since) >= self.deadline(now) {
            // The volume's own deadline is for a store that fails; this one is for stores that
            // hang, of all volumes together.
            return Some(self.give_up(&format!(
                "after {} in which nothing could be written",
                units::duration(self.mounted.info.drain_timeout)
            )));
        }
        None
    }
}

/// Makes the kernel hand over its dirty pages of all volumes of the mountpoint. The call waits for
/// all of them at once: where the store of one has not answered for half of the drain's deadline,
/// the others are ended without it.
fn flush_unless_stalled(mounted: &Arc<MountedVolume>) -> Result<()> {
    let mount = mounted.mount_now();
    let done = spawn_for_result("flush", move || call(AgentRequest::Flush, &mount))
        .map_err(|error| Problem::failure(format!("cannot start a thread: {error}")))?;
    let half = mounted.info.drain_timeout / 2;
    loop {
        match done.recv_timeout(FLUSH_LOOK) {
            // The error may be that of a volume that a sync leaves out. The kernel has handed its
            // data over, and its own end reports that data.
            Ok(Err(_)) if mounted.attachments.is_any_stalled() => return Ok(()),
            Ok(flushed) => return flushed.map(drop),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Problem::failure("the call ended without a result"));
            }
        }
        let hangs = |then| mounted.volume.has_call_since(then) || mounted.attachments.has_call_since(then);
        if Instant::now().checked_sub(half).is_some_and(hangs) {
            return Err(Problem::failure("the store of one volume does not answer"));
        }
    }
}

/// Writes to a person's terminal, or to the log.
fn say(volume: &str, colour: Colour, text: &str) {
    if console().is_terminal() {
        console().say(&console().paint_err(colour, text));
    } else {
        tracing::info!(volume, "{text}");
    }
}

impl Rates {
    fn line(&mut self, now: Instant, status: &Status) -> String {
        let out = self.out.update(now, status.written_bytes);
        let into = self.into.update(now, status.written_bytes.saturating_add(status.dirty_bytes));
        format!(
            "{}  {} dirty {}  in {}/s  to store {}/s  cache {}/{}  open {}  errors {}",
            status.state,
            status.mountpoint,
            units::bytes(status.dirty_bytes),
            units::bytes(into),
            units::bytes(out),
            units::bytes(status.cached_bytes),
            units::bytes(status.cache_bytes_max),
            status.open_files,
            status.errors.len(),
        )
    }
}

/// Turns how a volume ended into the process's own end.
///
/// # Errors
/// Exit 1 with the files that were not written.
pub fn outcome(source: Shown<'_>, mountpoint: &Name, ended: &Ended) -> Result<()> {
    if ended.state == State::Released {
        say(
            mountpoint.as_str(),
            Colour::Green,
            &format!("{mountpoint}: unmounted; everything is on {source}"),
        );
        return Ok(());
    }
    let lost = ended.lost(format!("{mountpoint}: failed, not everything is on {source}"), LOST_NAMED_MAX);
    Err(Problem::failure(lost.join("\n")))
}
