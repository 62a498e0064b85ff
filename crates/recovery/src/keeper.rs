//! The process that keeps a mount: it holds what the next server needs, and starts that one when a
//! server dies.
//!
//! The keeper is the server's parent. It opens no store and reads nobody's input but the messages of its
//! own child, so that little can go wrong in it. It passes on how the server ended if that was by its
//! own will.
//!
//! A server that dies is followed by another one. Where that is in vain (it dies before it serves,
//! or again and again), the keeper gives up, and the mount ends as without it. Where the host lacks what a
//! process needs, the keeper tries again until it has it: callers of the mount wait meanwhile.
//!
//! A server may leave its place to one of another program. If that one ends before it serves, however,
//! the program before is started again. The keeper itself stays the program that it is.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use sync::Mutex;

use crate::LastEnd;
use crate::link::{self, HELD_MAX, Held, HoldId, Message};
use crate::sys;

/// Under these numbers a server finds: the state, the journal, the kernel's connection, the lock on the
/// store, the control socket; and its end of the link.
pub const NUMBERS: std::ops::Range<RawFd> = 900..905;
/// The server's end of the link.
pub const LINK: RawFd = 905;
/// From here on: objects that have no name.
pub const HELD: RawFd = 906;

/// The argument that says to a program that it is kept: `first`, or how many servers died before,
/// how the last one ended, and which objects are held, as `NODE:HOLD:NUMBER`.
pub const ARGUMENT: &str = "--kept=";

/// A server that has lived so long has not died at once.
const LONG: Duration = Duration::from_secs(10);
/// How many servers may die at once, one after the other; before one serves, and in all.
const STARTS_MAX: u32 = 3;
const DEATHS_MAX: u32 = 10;
/// The exit code of a program whose first thread has panicked.
const PANICKED: i32 = 101;
/// That of a server that cannot take its mount over, and that another one may follow: the host may lack
/// something for now.
pub const CANNOT_YET: i32 = 75;
/// How often such servers are followed by another one; some three minutes.
const TRIES_MAX: u32 = 100;
/// The pause before another one, by how many died at once.
const PAUSE: Duration = Duration::from_millis(20);
/// The longest pause before another try to start one: nothing tells when the host has what that needs.
const RETRY_MAX: Duration = Duration::from_secs(2);

/// The server that runs now, to be signalled.
#[derive(Debug, Clone, Default)]
pub struct Server(Arc<Mutex<Signalled>>);

#[derive(Debug, Default)]
struct Signalled {
    process: Option<OwnedFd>,
    /// It may be one that has not yet said what it does with a signal.
    is_starting: bool,
    /// The last one that was passed on, or is to be.
    last: Option<Signal>,
}

impl Server {
    /// Passes a signal on: to the server that runs, and to each that follows it once that serves. What
    /// the signal asks for is not done before the mount has ended.
    pub fn signal(&self, signal: Signal) {
        let mut server = self.0.lock();
        server.last = Some(signal);
        if !server.is_starting {
            server.pass_on();
        }
    }

    fn begin(&self, process: Option<OwnedFd>, is_starting: bool) {
        let mut server = self.0.lock();
        (server.process, server.is_starting) = (process, is_starting);
        if !is_starting {
            server.pass_on();
        }
    }

    fn serves(&self) {
        let mut server = self.0.lock();
        if std::mem::take(&mut server.is_starting) {
            server.pass_on();
        }
    }

    fn end(&self) {
        let mut server = self.0.lock();
        (server.process, server.is_starting) = (None, true);
    }
}

impl Signalled {
    fn pass_on(&self) {
        if let (Some(process), Some(signal)) = (&self.process, self.last) {
            // Failure: it has just died.
            let _sent = pidfd_send_signal(process, signal);
        }
    }
}

/// What happens, for the program that keeps.
pub trait Events {
    /// The first server serves; with its standard output and error, and lines for who waits for the mount.
    fn ready(&mut self, output: Vec<OwnedFd>, lines: &str);
    /// To be told to the service manager.
    fn notify(&mut self, text: &str);
    /// A server has died, and another one is started, or something stands in the way of that; in words.
    fn say(&mut self, words: &str);
}

/// How it ended.
#[derive(Debug)]
pub enum Ended {
    /// As the server has by its own will.
    Server(ExitStatus),
    /// In vain; in words.
    GivenUp(String),
}

/// A keeper.
#[derive(Debug)]
pub struct Keeper {
    program: OwnedFd,
    /// The one that the next server is to be of.
    next: Option<OwnedFd>,
    /// The one that is started again if the server that runs now does not come to serve.
    before: Option<OwnedFd>,
    arguments: Vec<OsString>,
    server: Server,
    state: Vec<Arc<OwnedFd>>,
    held: BTreeMap<HoldId, (u64, Arc<OwnedFd>)>,
    is_ending: bool,
    /// The server that runs now does, and one has.
    serves: bool,
    has_served: bool,
}

impl Keeper {
    /// Keeps servers that are this program, with these arguments.
    #[must_use]
    pub fn new(program: OwnedFd, arguments: Vec<OsString>, server: Server) -> Self {
        let (next, before, state, held) = Default::default();
        let (is_ending, serves, has_served) = (false, false, false);
        Self { program, next, before, arguments, server, state, held, is_ending, serves, has_served }
    }

    /// Keeps a server until it ends. A mount that was never served ends with its first server.
    ///
    /// # Errors
    /// When the first one cannot be started.
    pub fn run(mut self, events: &mut impl Events) -> io::Result<Ended> {
        let (mut servers, mut at_once, mut unserved, mut last) = (0_u32, 0, 0, LastEnd::Killed);
        let mut tries = 0;
        loop {
            let out_of_memory = sys::out_of_memory_kills();
            let (mut child, link) = match self.start(servers, last) {
                Ok(started) => started,
                Err(error) if self.before.is_some() => {
                    last = self.give_back(&format!("it cannot be started: {error}"), events);
                    continue;
                }
                Err(error) if self.has_served => {
                    self.wait_to_retry(&mut tries, &format!("no server can be started: {error}"), events);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let begun = Instant::now();
            self.serves = false;
            if let Err(error) = self.listen(&link, events) {
                events.say(&format!("the server's messages cannot be read any more: {error}"));
            }
            drop(link);
            let status = child.wait()?;
            self.server.end();
            servers += 1;
            if self.before.is_some() {
                last = self.give_back(&status.to_string(), events);
                continue;
            }
            let cannot_yet = status.code() == Some(CANNOT_YET) && !self.serves && self.has_served;
            if cannot_yet && tries < TRIES_MAX {
                self.wait_to_retry(&mut tries, "a server could not begin to serve; its log says why", events);
                last = LastEnd::Unready;
                continue;
            }
            tries = 0;
            // A panic of its first thread has the kernel's end of the connection closed as well.
            let died = status
                .signal()
                .or_else(|| (status.code() == Some(PANICKED)).then_some(Signal::ABORT.as_raw()));
            let Some(by) = died.filter(|_| !self.is_ending && self.has_served) else {
                return Ok(Ended::Server(status));
            };
            let is_killed = by == Signal::KILL.as_raw();
            // It has left its place, and ends itself.
            if let Some(program) = self.next.take().filter(|_| is_killed) {
                self.before = Some(std::mem::replace(&mut self.program, program));
                last = LastEnd::Upgraded;
                continue;
            }
            let has_no_memory = is_killed && sys::out_of_memory_kills() > out_of_memory;
            last = if is_killed && !has_no_memory { LastEnd::Killed } else { LastEnd::Crashed };
            // Other processes may kill servers as often as they like, once they serve.
            let is_blameless = last == LastEnd::Killed && self.serves;
            at_once = if is_blameless || begun.elapsed() >= LONG { 1 } else { at_once + 1 };
            unserved = if self.serves { 0 } else { unserved + 1 };
            let how = match has_no_memory {
                true => {
                    "the kernel has killed the server, or a process beside it, for want of memory".to_owned()
                }
                false => format!("the server was ended by signal {by}"),
            };
            if unserved >= STARTS_MAX || at_once >= DEATHS_MAX {
                return Ok(Ended::GivenUp(format!(
                    "{how}; {at_once} have ended so, one soon after the other: no other is started"
                )));
            }
            events.say(&format!("{how}: another one takes over"));
            thread::sleep(PAUSE * (at_once - 1));
        }
    }

    /// The new program does not come to serve: the one before is started again.
    fn give_back(&mut self, why: &str, events: &mut impl Events) -> LastEnd {
        events.say(&format!("the new program has not come to serve ({why}): the one before goes on"));
        if let Some(program) = self.before.take() {
            self.program = program;
        }
        self.next = None;
        LastEnd::GivenBack
    }

    /// Waits before another try to start a server, which is reported once: a mount that was served waits.
    fn wait_to_retry(&self, tries: &mut u32, why: &str, events: &mut impl Events) {
        if *tries == 0 {
            events.say(&format!("{why}; it is tried again"));
        }
        thread::sleep(RETRY_MAX.min(PAUSE * 2_u32.saturating_pow(*tries)));
        *tries = tries.saturating_add(1);
    }

    fn start(&self, servers: u32, last: LastEnd) -> io::Result<(Child, OwnedFd)> {
        let (keeper, server) = link::pair()?;
        let mut argument = OsString::from(ARGUMENT);
        let mut passed = vec![(Arc::new(server), LINK)];
        if servers == 0 {
            argument.push("first");
        } else {
            let how = match last {
                LastEnd::Killed => "killed",
                LastEnd::Crashed => "crashed",
                LastEnd::Upgraded => "upgraded",
                LastEnd::GivenBack => "given-back",
                LastEnd::Unready => "unready",
            };
            argument.push(format!("{servers},{how}"));
            passed.extend(self.state.iter().map(Arc::clone).zip(NUMBERS));
            for ((hold, (node, object)), number) in self.held.iter().zip(HELD..) {
                argument.push(format!(",{node}:{}:{number}", hold.0));
                passed.push((Arc::clone(object), number));
            }
        }
        let mut arguments = self.arguments.iter();
        let mut command = Command::new(format!("/proc/self/fd/{}", self.program.as_raw_fd()));
        if let Some(name) = arguments.next() {
            command.arg0(name);
        }
        command.arg(argument).args(arguments).process_group(0);
        sys::pass(&mut command, above(passed)?);
        let mut child = command.spawn()?;
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let process = match pid.map(|pid| pidfd_open(pid, PidfdFlags::empty())).transpose() {
            Ok(process) => process,
            Err(error) => {
                // Another one is started: there must not be two.
                child.kill()?;
                child.wait()?;
                return Err(error.into());
            }
        };
        self.server.begin(process, servers > 0);
        Ok((child, keeper))
    }

    /// Reads what a server says, until its end.
    fn listen(&mut self, link: &OwnedFd, events: &mut impl Events) -> io::Result<()> {
        // Of a server that does not come to serve, the state is not the mount's.
        let mut given = None;
        while let Some(message) = link::receive(link)? {
            match message {
                Message::State(state) if state.len() == NUMBERS.len() => {
                    let state = state.into_iter().map(Arc::new).collect();
                    if self.serves { self.state = state } else { given = Some(state) }
                }
                Message::State(_) => {}
                Message::Ready(output, lines) if given.is_some() || !self.state.is_empty() => {
                    self.state = given.take().unwrap_or_else(|| std::mem::take(&mut self.state));
                    self.serves = true;
                    self.before = None;
                    self.server.serves();
                    if !std::mem::replace(&mut self.has_served, true) {
                        events.ready(output, &lines);
                    }
                }
                Message::Ready(..) => {}
                Message::Notify(text) => events.notify(&text),
                // The server counts them.
                Message::Hold(Held { id, node }, object) => {
                    if self.held.len() < HELD_MAX {
                        self.held.insert(id, (node, Arc::new(object)));
                    }
                }
                Message::Drop(id) => drop(self.held.remove(&id)),
                Message::Program(program) => self.next = Some(program),
                // That of a new program which fails is not the mount's.
                Message::End => self.is_ending = self.before.is_none() || self.serves,
            }
        }
        Ok(())
    }
}

/// The descriptors under other numbers than those that the server finds them under.
fn above(passed: Vec<(Arc<OwnedFd>, RawFd)>) -> io::Result<Vec<(Arc<OwnedFd>, RawFd)>> {
    let last = passed.iter().map(|(_, number)| *number).max().unwrap_or(LINK);
    let raise = |(fd, number): (Arc<OwnedFd>, RawFd)| {
        if fd.as_raw_fd() > last || fd.as_raw_fd() < NUMBERS.start {
            return Ok((fd, number));
        }
        Ok((Arc::new(rustix::io::fcntl_dupfd_cloexec(fd.as_fd(), last + 1)?), number))
    };
    passed.into_iter().map(raise).collect()
}

/// The descriptor that the keeper has left under this number.
///
/// # Errors
/// When there is none.
pub fn take(number: RawFd) -> io::Result<OwnedFd> {
    sys::take(number)
}
