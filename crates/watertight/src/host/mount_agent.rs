//! A process of its own that makes a mount process's calls to the kernel about its own mount.
//!
//! Unmounting and syncfs(2) wait for answers that the mount process itself has to give. A thread
//! that waits for its own process keeps that process from ending when it is killed: its descriptors
//! stay open, the connection is not aborted, and the thread waits for ever. So another process
//! waits: this program, by its hidden verb `kernel-side`.
//! # Why that process exists from the beginning
//! A child that is started later has copies of the store's open files, which execve(2) closes one
//! after the other. Where the store is itself a FUSE or a network file system, each close asks its
//! server (FLUSH); with a server that does not answer, the child never begins. So it is started
//! before a store is opened ([`start`]), and gets requests by a pipe: a line of JSON for each
//! question, and one for each answer, in any order.
//!
//! It ends when its pipe closes, that is with the mount process, however that ends.
//!
//! # Lock order
//! `AGENT` is a leaf. `MountAgent::input`, then `MountAgent::waiting`.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, open, syncfs};
use serde::{Deserialize, Serialize};
use sync::Mutex;

use crate::host::mountinfo::{self, Mount, MountTable};
use crate::host::unmount::{self, Outcome};
use crate::host::{signals, spawn_for_result};
use crate::term::console::console;
use crate::term::problem::{Problem, Result};
use crate::term::shown::Show as _;

/// The note for a host that does not pass syncs on.
pub const NO_SYNCFS: &str = "sync(2) and syncfs(2) return before the data is durable, since the kernel does not pass them on for this mount; fsync(2) and `watertight sync` wait";

/// The note for a kernel before 6.18.
pub const NO_CALLERS: &str = "sync(2) and syncfs(2) wait for the data of all cgroups, since the kernel does not name the caller; `watertight sync` goes by its caller's cgroup";

/// How long a mount waits for the first syncfs(2) of it, at most: on a host that has no processor
/// for the helper, its call comes late.
const SYNCFS_TRIED: Duration = Duration::from_secs(30);
/// The limit from when that call has come: most stores have answered by then.
const SYNCFS_ANSWERED: Duration = Duration::from_secs(1);
/// How often a mount checks whether that call has come to it. For a store that hangs, the call does
/// not return.
const SYNCFS_LOOKED_FOR: Duration = Duration::from_millis(5);

/// A request to that process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AgentRequest {
    /// Hand over the dirty pages (syncfs).
    Flush,
    /// Unmount, unless the mount is held.
    Umount,
    /// Take the path away.
    Detach,
    /// Abort the connection and take the path away.
    Force,
    /// Unmount, unless this very mount is held: others of the file system do not matter.
    Leave,
    /// Show a clone at another mountpoint.
    Show,
    /// Make a request of the mount, whichever.
    Wake,
}

#[derive(Debug, Serialize, Deserialize)]
struct RequestLine {
    number: u64,
    what: AgentRequest,
    /// Of the mount, in `/proc/self/mountinfo`.
    id: u64,
    /// A path's bytes, which need not be text.
    mountpoint: Vec<u8>,
    /// To [`AgentRequest::Show`]: which clone, and where.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    clone: Option<(Vec<u8>, Vec<u8>)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct ReplyLine {
    number: u64,
    result: AgentResult,
}

type AgentResult = std::result::Result<Outcome, String>;

/// The process that waits for the kernel, as the mount process sees it.
#[derive(Debug)]
struct MountAgent {
    pid: u32,
    /// With the last question's number.
    input: Mutex<(ChildStdin, u64)>,
    /// The waiting threads, by answer; none once that process has ended.
    waiting: Mutex<Option<HashMap<u64, Sender<AgentResult>>>>,
}

/// This process's one.
static AGENT: Mutex<Option<Arc<MountAgent>>> = Mutex::new(None);

/// Starts the process that asks the kernel. Called before a store is opened.
///
/// # Errors
/// When the host gives no process.
pub fn start() -> Result<()> {
    let failed = |error| Problem::failure(format!("cannot start the umount helper process: {error}"));
    *AGENT.lock() = Some(MountAgent::start().map_err(failed)?);
    Ok(())
}

/// The process, if it runs.
pub(crate) fn pid() -> Option<u32> {
    AGENT.lock().as_ref().map(|agent| agent.pid)
}

/// Waits, on a thread of its own, for the one that the program before has started: its pipe has
/// closed.
pub(crate) fn reap(pid: u32) {
    let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else { return };
    let wait = move || {
        let _reaped = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty());
    };
    if let Err(error) = thread::Builder::new().name("reap".to_owned()).spawn(wait) {
        tracing::debug!(%error, "cannot start a thread that waits for a child");
    }
}

/// Asks through that process, and waits for the answer.
///
/// # Errors
/// The error of that process.
pub fn call(what: AgentRequest, mount: &Mount) -> Result<Outcome> {
    call_with(what, mount, None)
}

/// Calls syncfs(2) on a mount that was just made, so that its session sees whether the kernel
/// passes it on. Returns when the call does: until then the mount is busy. Of a store that hangs it
/// does not; then it returns a moment after the session `has_seen` it. It returns at once when the
/// caller `has_event` to handle.
pub fn try_syncfs(mount: &Mount, has_seen: impl Fn() -> bool, mut has_event: impl FnMut() -> bool) {
    let mount = mount.clone();
    match spawn_for_result("try-syncfs", move || call(AgentRequest::Flush, &mount)) {
        Ok(outcome) => {
            let mut until = Instant::now() + SYNCFS_TRIED;
            while Instant::now() < until && !has_event() {
                if has_seen() {
                    until = until.min(Instant::now() + SYNCFS_ANSWERED);
                }
                match outcome.recv_timeout(SYNCFS_LOOKED_FOR) {
                    Err(RecvTimeoutError::Timeout) => continue,
                    Ok(Err(problem)) => tracing::debug!(%problem, "the first syncfs(2) failed"),
                    Ok(Ok(_)) | Err(RecvTimeoutError::Disconnected) => {}
                }
                break;
            }
        }
        Err(error) => tracing::debug!(%error, "cannot start a thread that calls syncfs(2)"),
    }
}

/// Shows the clone `name` of the mount at `target` as well.
///
/// # Errors
/// As [`call`].
pub fn show(mount: &Mount, name: &OsStr, target: &Path) -> Result<Outcome> {
    call_with(AgentRequest::Show, mount, Some((name, target)))
}

fn call_with(what: AgentRequest, mount: &Mount, clone: Option<(&OsStr, &Path)>) -> Result<Outcome> {
    let agent = AGENT.lock().clone();
    if let Some(result) = agent.and_then(|agent| agent.call(what, mount, clone)) {
        return result.map_err(Problem::failure);
    }
    tracing::warn!("the umount helper process has ended; starting another one");
    start()?;
    let agent = AGENT.lock().clone();
    let result = agent.and_then(|agent| agent.call(what, mount, clone));
    result.unwrap_or_else(|| Err("the umount helper process has ended".to_owned())).map_err(Problem::failure)
}

impl MountAgent {
    fn start() -> io::Result<Arc<Self>> {
        let mut child = Command::new("/proc/self/exe")
            .arg("kernel-side")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // It outlives the caller of a mount that goes to the background. Errors come as
            // answers.
            .stderr(Stdio::null())
            .current_dir("/")
            // Ctrl-C in the terminal is for the mount process.
            .process_group(0)
            .spawn()?;
        let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let waiting = Mutex::new(Some(HashMap::new()));
        let pid = child.id();
        let agent = Arc::new(Self { pid, input: Mutex::new((input, 0)), waiting });
        let this = Arc::clone(&agent);
        thread::Builder::new().name("kernel-side".to_owned()).spawn(move || this.deliver_replies(child))?;
        Ok(agent)
    }

    /// None: that process has ended.
    fn call(&self, what: AgentRequest, mount: &Mount, clone: Option<(&OsStr, &Path)>) -> Option<AgentResult> {
        let bytes = |(name, target): (&OsStr, &Path)| {
            (name.as_bytes().to_vec(), target.as_os_str().as_bytes().to_vec())
        };
        let mountpoint = mount.mountpoint.as_os_str().as_bytes().to_vec();
        let (sender, receiver) = channel();
        {
            let mut input = self.input.lock();
            let (pipe, number) = &mut *input;
            *number += 1;
            let clone = clone.map(bytes);
            let request = RequestLine { number: *number, what, id: mount.id, mountpoint, clone };
            let mut line = serde_json::to_vec(&request).ok()?;
            line.push(b'\n');
            self.waiting.lock().as_mut()?.insert(request.number, sender);
            pipe.write_all(&line).ok()?;
        }
        receiver.recv().ok()
    }

    /// Hands out the answers until there are no more.
    fn deliver_replies(&self, mut child: Child) {
        let lines = child.stdout.take().map(|output| BufReader::new(output).lines());
        for line in lines.into_iter().flatten().map_while(io::Result::ok) {
            let Ok(ReplyLine { number, result }) = serde_json::from_str(&line) else { continue };
            let asked = self.waiting.lock().as_mut().and_then(|waiting| waiting.remove(&number));
            let _gone_meanwhile = asked.map(|asked| asked.send(result));
        }
        self.waiting.lock().take();
        let _reaped = child.wait();
    }
}

/// Runs the hidden verb: answers requests, or prints whether a mount's server is gone.
///
/// # Errors
/// When signals cannot be taken.
pub fn run(probe: Option<&Path>) -> Result<()> {
    if let Some(path) = probe {
        console().print(unmount::says_dead(path));
        return Ok(());
    }
    // A signal that ends a mount process ends this one later, by its pipe.
    signals::watch(|_| true).map_err(|error| Problem::failure(format!("cannot handle signals: {error}")))?;
    for line in io::stdin().lock().lines().map_while(io::Result::ok) {
        let Ok(request) = serde_json::from_str::<RequestLine>(&line) else { continue };
        // Each on a thread of its own: they wait for the mount process, and it may ask more
        // meanwhile.
        let number = request.number;
        let run = move || reply(number, execute(&request).map_err(|problem| problem.to_string()));
        if let Err(error) = thread::Builder::new().spawn(run) {
            reply(number, Err(error.to_string()));
        }
    }
    Ok(())
}

fn reply(number: u64, result: AgentResult) {
    let Ok(mut line) = serde_json::to_vec(&ReplyLine { number, result }) else { return };
    line.push(b'\n');
    // Failure: the mount process is gone.
    let mut out = io::stdout().lock();
    let _told = out.write_all(&line).and_then(|()| out.flush());
}

fn execute(request: &RequestLine) -> Result<Outcome> {
    let table = MountTable::read();
    let mountpoint = PathBuf::from(OsString::from_vec(request.mountpoint.clone()));
    let is_meant = |m: &&Mount| m.id == request.id && m.mountpoint == mountpoint && mountinfo::is_ours(m);
    let Some(mount) = table.iter().find(is_meant) else { return Ok(Outcome::Gone) };
    match request.what {
        AgentRequest::Umount => return unmount::plain(mount),
        AgentRequest::Leave => return unmount::one_of_several(mount),
        AgentRequest::Show => show_clone(mount, request)?,
        AgentRequest::Flush => flush(mount)?,
        AgentRequest::Wake => ask(mount)?,
        AgentRequest::Detach => unmount::detach(mount)?,
        AgentRequest::Force => unmount::force(mount)?,
    }
    Ok(Outcome::Gone)
}

/// Asks for the sizes of the mount's medium, which no cache of the kernel's knows. The path is not
/// looked up in the mount.
fn ask(mount: &Mount) -> Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let ask = || rustix::fs::fstatfs(open(&mount.mountpoint, flags, Mode::empty())?);
    ask().map(drop).map_err(|error| Problem::failure(io::Error::from(error).to_string()))
}

fn show_clone(mount: &Mount, request: &RequestLine) -> Result<()> {
    let Some((name, target)) = request.clone.clone() else {
        return Err(Problem::failure("the request names no clone and no target"));
    };
    let (name, target) = (OsString::from_vec(name), PathBuf::from(OsString::from_vec(target)));
    fuse::mount::show(&mount.mountpoint, &name, &target)
        .map_err(|error| Problem::failure(format!("{} cannot be mounted: {error}", target.shown())))
}

/// Makes the kernel hand over the dirty pages of the file system at `mount`, and on `fuseblk` waits
/// until they are durable.
///
/// # Errors
/// Those of opening the mountpoint and of syncfs(2).
pub fn flush(mount: &Mount) -> Result<()> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let flush = || syncfs(open(&mount.mountpoint, flags, Mode::empty())?);
    flush().map_err(|error| {
        let error = io::Error::from(error);
        Problem::failure(format!("{}: not everything is durable: {error}", mount.mountpoint.shown()))
    })
}
