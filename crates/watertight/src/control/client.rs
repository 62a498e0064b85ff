//! The client side of the control socket: one call, one connection.
//!
//! Before the first request, each connection's peer must be the directory's owner and the process
//! that was found first (SO_PEERCRED). The socket is looked up by name in its directory's
//! descriptor, as a socket of the owner's, and connected by its own: no link leads to another one.
//! A process is signalled by a descriptor, and only if it runs as that user alone.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::{Method, Request, Response};
use hyper_util::rt::TokioIo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use sync::Mutex;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::task::JoinSet;

use super::api::{
    AttachReply, AttachRequest, CloneReply, CloneRequest, DetachReply, DetachRequest, ErrorReply, LeaveReply,
    LeaveRequest, LimitRequest, Limits, MoveReply, MoveRequest, SnapshotsReply, SnapshotsRequest, Stats,
    Status, Synced, UmountReply, UmountRequest, UnderWay, UpgradeReply, UpgradeRequest, WaitReply, WarmReply,
    WarmRequest,
};
use super::events::Event;
use super::registered;
use crate::control::volume_id::VolumeId;
use crate::host::keeper_id::KeeperId;
use crate::host::open_dir::OpenDir;
use crate::host::process;
use crate::term::shown::in_one_line;

/// Bytes of an answer; a status with a thousand named files is far smaller.
const REPLY_BYTES_MAX: usize = 4 << 20;
/// Bytes of an event.
const EVENT_BYTES_MAX: usize = 64 << 10;
/// How long an answer may take for which the server does not touch the store.
const QUICK: Duration = Duration::from_secs(10);
/// How long after its requested time a process may answer.
const ON_TIME: Duration = Duration::from_secs(2);
/// How often a call is made again at most whose connection has closed, while its process goes on.
const AGAIN: usize = 64;

/// How long a caller waits for another process to take a mount over, and how often it looks.
pub const TAKEOVER: Duration = Duration::from_secs(10);
/// See [`TAKEOVER`].
pub const TAKEOVER_LOOK: Duration = Duration::from_millis(10);

/// Why a call got no answer.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The process is gone, or its socket is.
    #[error("the mount process is gone")]
    Gone,
    /// The socket's process is not the expected one.
    #[error("{socket} is not the socket of a process of user {owner}; not used")]
    Untrusted {
        /// The socket.
        socket: String,
        /// The expected user.
        owner: u32,
    },
    /// The process did not answer in time.
    #[error("the mount process did not answer in {0:?}")]
    TimedOut(Duration),
    /// The process refused, in its own words.
    #[error("{0}")]
    Refused(String),
    /// So many callers wait that it takes no more.
    #[error("the mount process does not answer: others wait for it already")]
    Crowded,
    /// Something else went wrong.
    #[error("talking to the mount process: {0}")]
    Io(String),
}

/// The bound on the answers of several processes together.
#[derive(Debug)]
pub struct Allowance {
    until: Instant,
    bytes: AtomicUsize,
}

impl Allowance {
    /// So much time from now on, and so many bytes.
    #[must_use]
    pub fn new(time: Duration, bytes: usize) -> Arc<Self> {
        Arc::new(Self { until: Instant::now() + time, bytes: AtomicUsize::new(bytes) })
    }

    fn take(&self, bytes: usize) -> Result<(), CallError> {
        // ORDERING: Relaxed, a count of its own.
        let taken =
            self.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(bytes));
        taken.map(drop).map_err(|_| CallError::Io("its user's processes say more than is read".to_owned()))
    }
}

/// The process that listens.
#[derive(Debug, Clone)]
struct Peer {
    pid: Pid,
    process: Arc<OwnedFd>,
}

/// A running mount process, as reached through its socket.
#[derive(Debug)]
pub struct Client {
    dir: OpenDir,
    socket: String,
    /// Another one, once that has taken over. The lock is a leaf.
    peer: Mutex<Peer>,
    /// The process that starts another one if the peer dies.
    keeper: Option<KeeperId>,
    /// How long a quick answer may take.
    patience: Duration,
    allowance: Option<Arc<Allowance>>,
}

impl Peer {
    fn find(dir: &OpenDir, socket: &str) -> Result<Self, CallError> {
        let (_, pid) = dial(dir, socket)?;
        let process = pidfd_open(pid, PidfdFlags::empty()).map_err(|error| match error {
            rustix::io::Errno::SRCH => CallError::Gone,
            error => CallError::Io(error.to_string()),
        })?;
        // The pid was looked up after the connection was made, and may have become another
        // process's: of another user (a process that has handed its socket on can choose its end),
        // or of the same user's. Asking for the users of the descriptor's process rules out the
        // first; the socket that still answers rules out the second.
        if !runs_as(pid, dir.owner()) {
            return Err(if has_ended(&process) { CallError::Gone } else { untrusted(dir, socket) });
        }
        let (_, again) = dial(dir, socket)?;
        if again != pid || has_ended(&process) {
            return Err(CallError::Gone);
        }
        Ok(Self { pid, process: Arc::new(process) })
    }
}

impl Client {
    /// Finds the process behind `socket` in a runtime directory, which must be the process of the
    /// directory's owner.
    ///
    /// # Errors
    /// [`CallError::Gone`] when no process listens.
    pub fn connect(dir: &OpenDir, socket: &str) -> Result<Self, CallError> {
        let peer = Mutex::new(Peer::find(dir, socket)?);
        let socket = socket.to_owned();
        Ok(Self { dir: dir.clone(), socket, peer, keeper: None, patience: QUICK, allowance: None })
    }

    /// Goes on with the next process where this one has died and the keeper, if there is one, runs.
    #[must_use]
    pub fn kept_by(self, keeper: Option<KeeperId>) -> Self {
        Self { keeper, ..self }
    }

    fn peer(&self) -> Peer {
        self.peer.lock().clone()
    }

    /// Takes the answers' time and bytes from an allowance that others have a part in.
    #[must_use]
    pub fn allowed(self, allowance: Option<Arc<Allowance>>) -> Self {
        Self { allowance, ..self }
    }

    /// Waits no longer than this for answers that need no store.
    #[must_use]
    pub fn within(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// The process's id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.peer().pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// The volume now.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn status(&self) -> Result<Status, CallError> {
        self.call(Method::GET, "/v1/status", &(), Some(self.patience))
    }

    /// Like [`status`](Self::status), for a caller that waits only this long.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn status_within(&self, patience: Duration) -> Result<Status, CallError> {
        self.call(Method::GET, "/v1/status", &(), Some(patience))
    }

    /// How long its operations take.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn stats(&self) -> Result<Stats, CallError> {
        self.call(Method::GET, "/v1/stats", &(), Some(self.patience))
    }

    /// The requests under way.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn under_way(&self) -> Result<UnderWay, CallError> {
        self.under_way_within(self.patience)
    }

    /// Like [`under_way`](Self::under_way), for a caller that waits only this long.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn under_way_within(&self, patience: Duration) -> Result<UnderWay, CallError> {
        self.call(Method::GET, "/v1/requests", &(), Some(patience))
    }

    /// The volumes that are attached to this one's mountpoint.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn attached(&self) -> Result<Vec<Status>, CallError> {
        let mut all: Vec<Status> = Vec::new();
        loop {
            let last = all.last().map(|last| &last.id);
            let after = last.map_or("", VolumeId::as_str);
            let page: Vec<Status> =
                self.call(Method::GET, &format!("/v1/volumes?after={after}"), &(), Some(self.patience))?;
            if page.is_empty() {
                return Ok(all);
            }
            // So there is an end to it: ids are finite.
            if last.into_iter().chain(page.iter().map(|one| &one.id)).is_sorted_by(|a, b| a < b) {
                all.extend(page);
            } else {
                return Err(CallError::Io("its volumes are not in the order of their ids".to_owned()));
            }
        }
    }

    /// Makes the dirty data durable; takes as long as it takes.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn sync(&self) -> Result<Synced, CallError> {
        self.call(Method::POST, "/v1/sync", &(), None)
    }

    /// Makes all data durable, for any caller: no cgroup's limits are waited for.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn sync_all(&self) -> Result<Synced, CallError> {
        self.call(Method::POST, "/v1/sync?all=1", &(), None)
    }

    /// The limits.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn limits(&self) -> Result<Limits, CallError> {
        self.call(Method::GET, "/v1/limits", &(), Some(QUICK))
    }

    /// Changes limits of a cgroup.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn limit(&self, request: &LimitRequest) -> Result<Limits, CallError> {
        self.call(Method::POST, "/v1/limit", request, Some(QUICK))
    }

    /// Asks the process to unmount, and waits up to `limit` for its answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn umount(&self, request: UmountRequest, limit: Option<Duration>) -> Result<UmountReply, CallError> {
        self.call(Method::POST, "/v1/umount", &request, limit)
    }

    /// Attaches a volume to a directory of the process's mountpoint, and waits up to `limit` for
    /// the answer.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn attach(&self, request: &AttachRequest, limit: Option<Duration>) -> Result<AttachReply, CallError> {
        self.call(Method::POST, "/v1/attach", request, limit)
    }

    /// Detaches one, and waits up to `limit` for the answer: its data may need long.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn detach(&self, request: &DetachRequest, limit: Option<Duration>) -> Result<DetachReply, CallError> {
        self.call(Method::POST, "/v1/detach", request, limit)
    }

    /// Moves one.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn move_to(&self, request: &MoveRequest) -> Result<MoveReply, CallError> {
        self.call(Method::POST, "/v1/move", request, None)
    }

    /// Brings files to the disk cache.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn warm(&self, request: &WarmRequest) -> Result<WarmReply, CallError> {
        self.call(Method::POST, "/v1/warm", request, None)
    }

    /// Shows a clone of the namespace at a second mountpoint.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn clone_to(&self, request: &CloneRequest) -> Result<CloneReply, CallError> {
        self.call(Method::POST, "/v1/clone", request, None)
    }

    /// Unmounts one of several mountpoints; takes as long as the data needs that is attached there
    /// only.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn leave(&self, request: &LeaveRequest) -> Result<LeaveReply, CallError> {
        self.call(Method::POST, "/v1/leave", request, None)
    }

    /// Makes, deletes or lists snapshots; takes as long as it takes.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn snapshots(&self, request: &SnapshotsRequest) -> Result<SnapshotsReply, CallError> {
        self.call(Method::POST, "/v1/snapshots", request, None)
    }

    /// Has another program take the process's place, and waits up to `limit` for the refusal:
    /// [`CallError::Gone`] when the process has closed the connection.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn upgrade(&self, request: &UpgradeRequest, limit: Duration) -> Result<UpgradeReply, CallError> {
        self.call(Method::POST, "/v1/upgrade", request, Some(limit))
    }

    /// Waits until the volume ended, at most for `timeout`.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn wait(&self, timeout: Duration) -> Result<WaitReply, CallError> {
        let begun = Instant::now();
        let call = |timeout: Duration| {
            let path = format!("/v1/wait?timeout_ms={}", timeout.as_millis());
            self.call(Method::GET, &path, &(), Some(timeout.saturating_add(ON_TIME)))
        };
        let mut result = call(timeout);
        for _ in 0..AGAIN {
            let until = Instant::now() + TAKEOVER;
            let is_taken_over = loop {
                match self.look_for_the_next(&result, until) {
                    Some(found) => break found,
                    None => std::thread::sleep(TAKEOVER_LOOK),
                }
            };
            if !is_taken_over {
                break;
            }
            result = call(timeout.saturating_sub(begun.elapsed()));
        }
        result
    }

    /// Waits until the process is gone, at most for `timeout`; returns whether it is.
    #[must_use]
    pub fn wait_gone(&self, timeout: Duration) -> bool {
        process::ends_within(&self.peer().process, timeout).unwrap_or(false)
    }

    /// As [`wait_gone`](Self::wait_gone), for a caller that does other things meanwhile.
    pub(crate) async fn ends_within(&self, timeout: Duration) -> bool {
        let peer = self.peer();
        match peer.process.try_clone().and_then(|process| registered(process, Interest::READABLE)) {
            Ok(process) => tokio::time::timeout(timeout, process.readable()).await.is_ok(),
            Err(_) => has_ended(&peer.process),
        }
    }

    /// Ends the process without asking it.
    ///
    /// # Errors
    /// Those of pidfd_send_signal(2).
    pub fn kill(&self) -> io::Result<()> {
        Ok(pidfd_send_signal(&*self.peer().process, Signal::KILL)?)
    }

    /// Reads the volume's events after number `since`, until its end; without `follow`, until now.
    /// Passes each event to `hear`, which may take its time, and returns whether to go on.
    ///
    /// # Errors
    /// See [`CallError`].
    pub async fn events(
        &self,
        since: u64,
        follow: bool,
        mut hear: impl AsyncFnMut(Event) -> bool,
    ) -> Result<(), CallError> {
        let request =
            request(Method::GET, &format!("/v1/events?since={since}&follow={follow}"), Bytes::new())?;
        let exchange = async {
            let (response, driver) = self.send(request).await?;
            if response.status().is_success() {
                return Ok((response.into_body(), driver));
            }
            let body = Limited::new(response.into_body(), REPLY_BYTES_MAX).collect().await.map_err(other)?;
            Err(refused(&body.to_bytes()))
        };
        let answer = tokio::time::timeout(QUICK, exchange).await;
        let (mut body, _driver) = answer.map_err(|_| CallError::TimedOut(QUICK))??;
        let mut begun = Vec::new();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame.map_err(from_hyper)?.into_data() else { continue };
            let mut lines = data.split(|&byte| byte == b'\n');
            // The bytes after the last line's end.
            let rest = lines.next_back().unwrap_or_default();
            for line in lines {
                begun.extend_from_slice(line);
                let event = serde_json::from_slice(&begun).map_err(other)?;
                begun.clear();
                if !hear(event).await {
                    return Ok(());
                }
            }
            begun.extend_from_slice(rest);
            if begun.len() > EVENT_BYTES_MAX {
                return Err(CallError::Io("an event of more than 64 KiB".to_owned()));
            }
        }
        Ok(())
    }

    fn call<B: Serialize, T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: &B,
        limit: Option<Duration>,
    ) -> Result<T, CallError> {
        let body = serde_json::to_vec(body).map_err(other)?;
        let request = request(method, path, Bytes::from(body))?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(other)?;
        let left = self.allowance.as_ref().map(|all| all.until.saturating_duration_since(Instant::now()));
        let limit = limit.into_iter().chain(left).min();
        let (ok, body) = runtime.block_on(async {
            let exchange = self.exchange_again(request);
            match limit {
                None => exchange.await,
                Some(limit) => {
                    tokio::time::timeout(limit, exchange).await.map_err(|_| CallError::TimedOut(limit))?
                }
            }
        })?;
        self.allowance.as_ref().map_or(Ok(()), |all| all.take(body.len()))?;
        if ok {
            return serde_json::from_slice(&body).map_err(other);
        }
        Err(refused(&body))
    }

    /// Asks again where the connection closes and the process goes on: it has another program,
    /// which knows all that was answered. What the one before had not begun is begun by this one,
    /// and its change was answered: the answer is sent long before the program is replaced, since
    /// that waits for calls and requests first. Where the process has died
    /// and another one follows, that is asked in the same way.
    async fn exchange_again(&self, request: Request<Full<Bytes>>) -> Result<(bool, Bytes), CallError> {
        let path = request.uri().path();
        let has_own_way = path == "/v1/wait" || path == "/v1/upgrade";
        let mut result = self.exchange(request.clone()).await;
        for _ in 0..if has_own_way { 0 } else { AGAIN } {
            if !self.is_taken_over(&result).await {
                break;
            }
            result = self.exchange(request.clone()).await;
        }
        result
    }

    /// Whether the connection has closed, and the process goes on: a program that takes it over
    /// closes all connections, and its socket listens still. Or another process goes on. None: one is
    /// about to.
    fn look_for_the_next<T>(&self, result: &Result<T, CallError>, until: Instant) -> Option<bool> {
        if !matches!(result, Err(CallError::Gone)) {
            return Some(false);
        }
        if !has_ended(&self.peer().process) {
            return Some(true);
        }
        let Some(keeper) = self.keeper else { return Some(false) };
        match Peer::find(&self.dir, &self.socket) {
            Ok(next) => {
                *self.peer.lock() = next;
                Some(true)
            }
            Err(CallError::Gone | CallError::Crowded) if keeper.is_running() && Instant::now() < until => {
                None
            }
            Err(_) => Some(false),
        }
    }

    /// As [`look_for_the_next`](Self::look_for_the_next), waiting for it.
    async fn is_taken_over<T>(&self, result: &Result<T, CallError>) -> bool {
        let until = Instant::now() + TAKEOVER;
        loop {
            match self.look_for_the_next(result, until) {
                Some(found) => return found,
                None => tokio::time::sleep(TAKEOVER_LOOK).await,
            }
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<(bool, Bytes), CallError> {
        let (response, _driver) = self.send(request).await?;
        let ok = response.status().is_success();
        let body = Limited::new(response.into_body(), REPLY_BYTES_MAX).collect().await.map_err(other)?;
        Ok((ok, body.to_bytes()))
    }

    /// Sends a request and waits for the head of the answer; its body comes as long as the driver
    /// is there.
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<(Response<Incoming>, Driver), CallError> {
        let (stream, pid) = dial(&self.dir, &self.socket)?;
        if pid != self.peer().pid {
            return Err(CallError::Gone);
        }
        let stream = UnixStream::from_std(stream).map_err(other)?;
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(from_hyper)?;
        let mut driver = JoinSet::new();
        driver.spawn(connection);
        Ok((sender.send_request(request).await.map_err(from_hyper)?, driver))
    }
}

/// A connection's task, which ends when this is dropped.
type Driver = JoinSet<hyper::Result<()>>;

fn request(method: Method, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, CallError> {
    let request = Request::builder().method(method).uri(path).header("host", "watertight");
    request.body(Full::new(body)).map_err(other)
}

fn refused(body: &[u8]) -> CallError {
    match serde_json::from_slice::<ErrorReply>(body) {
        Ok(reply) => CallError::Refused(in_one_line(&reply.error)),
        Err(error) => other(error),
    }
}

/// Connects, and returns the process, which is the directory's owner's. Does not wait for a process
/// that takes no more connections: it may be stopped.
fn dial(dir: &OpenDir, socket: &str) -> Result<(StdStream, Pid), CallError> {
    let file = dir.socket(socket).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => CallError::Gone,
        io::ErrorKind::InvalidData => untrusted(dir, socket),
        _ => other(error),
    })?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(other)?;
    let address = SocketAddrUnix::new(file.path()).map_err(other)?;
    connect(&stream, &address).map_err(|error| from_connect(error.into()))?;
    let peer = socket_peercred(&stream).map_err(other)?;
    if peer.uid.as_raw() != dir.owner() {
        return Err(untrusted(dir, socket));
    }
    Ok((stream.into(), peer.pid))
}

fn untrusted(dir: &OpenDir, socket: &str) -> CallError {
    CallError::Untrusted { socket: socket.to_owned(), owner: dir.owner() }
}

/// Whether a process runs as this user, and as no other: real, effective, saved, and for files.
fn runs_as(pid: Pid, uid: u32) -> bool {
    let status =
        std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap_or_default();
    let users = status.lines().find_map(|line| line.strip_prefix("Uid:"));
    users.is_some_and(|users| users.split_whitespace().all(|user| user.parse() == Ok(uid)))
}

/// Whether it is gone, or a zombie.
fn has_ended(process: &OwnedFd) -> bool {
    poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn from_connect(error: io::Error) -> CallError {
    match error.kind() {
        io::ErrorKind::WouldBlock => CallError::Crowded,
        // That there is no such path would be the lack of /proc.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset => CallError::Gone,
        _ => other(error),
    }
}

fn from_hyper(error: hyper::Error) -> CallError {
    if error.is_incomplete_message() || error.is_canceled() || error.is_closed() {
        return CallError::Gone;
    }
    let io = std::error::Error::source(&error).and_then(|source| source.downcast_ref::<io::Error>());
    match io.map(io::Error::kind) {
        Some(io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset | io::ErrorKind::UnexpectedEof) => {
            CallError::Gone
        }
        _ => other(error),
    }
}

fn other(error: impl std::fmt::Display) -> CallError {
    CallError::Io(in_one_line(&error.to_string()))
}
