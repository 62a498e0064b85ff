//! The control socket beside a process that tries to hold it up. No test here fails because the
//! machine was slow: it asserts which requests are answered while all requests of that process stay
//! unanswered; the times are printed.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::Instant;

use testing::cgroup::Cgroup;
use watertight::control::server::Server;

use crate::control::{Fake, call};
use crate::rig::{LONG, Rig, eventually, wait};

/// The connections that the hostile process opens.
const HEADS: usize = 1000;
const LISTENERS: usize = 400;
const SYNCS: usize = 300;
/// How many of them may stay, by the tables of `control::connections` and `control::call_limits`.
const HEADS_KEPT: usize = 16;
const LISTENERS_KEPT: usize = 64;
const SYNCS_KEPT: usize = 32;

/// How the hostile process finds the socket.
const SOCKET: &str = "WATERTIGHT_TEST_HOSTILE_SOCKET";

/// A connection with this on it.
fn opened(socket: &Path, request: &str) -> UnixStream {
    let mut stream = UnixStream::connect(socket).expect("it listens");
    // It may be closed before all is written.
    let _closed = stream.write_all(request.as_bytes());
    stream.set_nonblocking(true).expect("a socket");
    stream
}

/// The present state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Nothing,
    Closed,
    Served,
    Refused,
}

fn said(stream: &UnixStream) -> Said {
    let mut head = [0; 12];
    match rustix::net::recv(stream, &mut head, rustix::net::RecvFlags::PEEK) {
        Err(rustix::io::Errno::AGAIN) => Said::Nothing,
        Ok((12, _)) if head.ends_with(b"503") => Said::Refused,
        Ok((12, _)) => Said::Served,
        _ => Said::Closed,
    }
}

fn count(all: &[UnixStream], what: Said) -> usize {
    all.iter().filter(|stream| said(stream) == what).count()
}

/// All that is opened against one socket.
struct Load {
    heads: Vec<UnixStream>,
    listeners: Vec<UnixStream>,
    syncs: Vec<UnixStream>,
}

impl Load {
    fn new(socket: &Path) -> Self {
        let many = |n: usize, request: &str| (0..n).map(|_| opened(socket, request)).collect();
        let end = "HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n";
        Self {
            listeners: many(LISTENERS, &format!("GET /v1/events {end}")),
            syncs: many(SYNCS, &format!("POST /v1/sync {end}")),
            heads: many(HEADS, "GET /v1/status HTTP/1.1\r\nhost: x\r\nslow: "),
        }
    }

    /// Connections beyond the bounds are refused or closed, and all the rest waits.
    fn is_as_bounded(&self) -> bool {
        let bounded = |all: &[UnixStream], refused: Said, kept: usize| {
            count(all, refused) == all.len().saturating_sub(kept)
        };
        bounded(&self.listeners, Said::Refused, LISTENERS_KEPT)
            && bounded(&self.syncs, Said::Refused, SYNCS_KEPT)
            && count(&self.syncs, Said::Nothing) == SYNCS_KEPT
    }
}

/// Of the connections that wait for their peers, the oldest of the process's gave way, and the
/// newest are open: a client that had waited for these would wait still.
#[test]
fn of_slow_peers_the_oldest_give_way_and_nobody_waits_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let fake = Arc::new(Fake::default());
    let uid = rustix::process::geteuid().as_raw();
    let server = Server::start(UnixListener::bind(&socket).unwrap(), uid, fake as Arc<_>).unwrap();
    // Again where the machine was busy for so long that the server had enough of the newest as
    // well.
    let mut slow: Vec<UnixStream> = Vec::new();
    eventually("the oldest are closed, and the newest are open", || {
        slow = (0..200).map(|_| opened(&socket, "GET /v1/sta")).collect();
        // Even a call of that process, which arrives with its whole request.
        assert!(call(&socket, "GET /healthz", "").ends_with("ok\n"));
        let (gone, kept) = slow.split_at(slow.len() - HEADS_KEPT);
        eventually("the oldest are closed", || count(gone, Said::Closed) >= gone.len() - 1);
        count(kept, Said::Nothing) >= HEADS_KEPT - 1
    });
    // A connection that goes on is served.
    let mut last = slow.last().unwrap();
    last.write_all(b"tus HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    eventually("it is answered", || said(last) == Said::Served);
    server.finish();
}

/// A peer that has its answer and does not read it gives way as well, and so does one that waited.
#[test]
fn answers_that_nobody_reads_are_bounded() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("sock");
    let uid = rustix::process::geteuid().as_raw();
    let fake = Arc::new(Fake::default());
    let server = Server::start(UnixListener::bind(&socket).unwrap(), uid, fake as Arc<_>).unwrap();
    let request = "GET /v1/wait?timeout_ms=1 HTTP/1.1\r\nhost: x\r\n\r\n";
    // One after another: each is over before the next begins.
    for _ in 0..300 {
        let waited = opened(&socket, request);
        eventually("it is answered", || said(&waited) != Said::Nothing);
        assert_eq!(said(&waited), Said::Served, "places are given back");
    }
    server.finish();
}

/// The hostile process.
#[test]
#[ignore = "run by a test, as another process"]
fn the_hostile_process() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    watertight::host::process::raise_descriptors();
    let load = Load::new(Path::new(&socket));
    eventually("all that is too much is refused", || load.is_as_bounded());
    println!("\nhostile: ready");
    let mut end = Vec::new();
    io::stdin().read_to_end(&mut end).expect("a pipe");
    let [heads, syncs] = [&load.heads, &load.syncs].map(|all| count(all, Said::Nothing));
    println!("\nhostile: {heads} heads and {syncs} syncs are open");
}

struct Hostile {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
}

impl Hostile {
    /// Starts it in a cgroup whose syncs take minutes.
    fn start(socket: &Path, cgroup: &Cgroup) -> Self {
        let mut command = cgroup.command(std::env::current_exe().unwrap().to_str().unwrap());
        command.args(["--exact", "hostile::the_hostile_process", "--ignored", "--nocapture"]);
        command.env(SOCKET, socket).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut hostile = Self { child, out };
        assert_eq!(hostile.line(), "ready");
        hostile
    }

    fn line(&mut self) -> String {
        let lines = self.out.by_ref().lines().map_while(Result::ok);
        let mut said = lines.filter_map(|line| line.strip_prefix("hostile: ").map(str::to_owned));
        said.next().expect("it goes on")
    }
}

impl Drop for Hostile {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _status = wait(&mut self.child, LONG);
    }
}

#[test]
fn status_metrics_and_umount_are_answered_beside_slow_heads_listeners_and_syncs() {
    let Some(mut rig) = Rig::mounting() else { return };
    let Some(slow) = Cgroup::make() else { return };
    let options = format!("dirty_after=1h,cache=64M,type=fuse,limit={}:wbps=16K", slow.path().display());
    let mut command =
        rig.command(&["--log-level", "watertight=debug", "mount", &format!("dir:{}", rig.store.display())]);
    command.arg(&rig.mnt).args(["-o", &options]);
    let daemon = rig.start(command);
    let of = format!("of={}", rig.mnt.join("a").display());
    slow.run("dd", &["if=/dev/zero", &of, "bs=1M", "count=32", "status=none"]);
    let mut hostile = Hostile::start(&rig.socket(), &slow);
    let timed = |what: &str, call: &dyn Fn()| {
        let begun = Instant::now();
        call();
        println!("{what}: {:?}", begun.elapsed());
    };
    timed("status", &|| drop(rig.verb("status", &[]).ok().says("active")));
    timed("status --metrics", &|| drop(rig.run(&["status", "--metrics"]).ok().says("watertight_")));
    let socket = rig.socket();
    timed("GET /metrics", &|| assert!(call(&socket, "GET /metrics", "").starts_with("HTTP/1.1 200")));
    timed("GET /healthz", &|| assert!(call(&socket, "GET /healthz", "").ends_with("ok\n")));
    // None of its syncs has ended, and the newest of its heads are as slow as they were: no
    // answered request waited for them.
    drop(hostile.child.stdin.take());
    let line = hostile.line();
    let syncs = format!(" and {SYNCS_KEPT} syncs are open");
    println!("{line}");
    assert!(line.ends_with(&syncs), "{line}");
    drop(hostile);

    let mut hostile = Hostile::start(&rig.socket(), &slow);
    timed("umount", &|| drop(rig.verb("umount", &[]).ok()));
    assert_eq!(daemon.end(), Some(0));
    let log = daemon.stderr();
    assert!(!log.contains("still open at the end"), "those who say nothing were waited for: {log}");
    assert_eq!(rig.stored("a").map(|data| data.len()), Some(32 << 20));
    drop(hostile.child.stdin.take());
}
