//! The control socket as a stranger meets it: HTTP that is wrong, too much, or not allowed.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use volume::events::Events;
use watertight::control::api::{
    Ended, LimitRequest, Limits, State, Stats, Status, Synced, UmountReply, UmountRequest, UnderWay,
    Unwritten,
};
use watertight::control::client::{CallError, Client};
use watertight::control::server::Server;
use watertight::control::service::Service;
use watertight::host::holders::Holders;
use watertight::host::open_dir::OpenDir;

use crate::rig::{LONG, connect, eventually};
use crate::sample;

/// A volume that only answers what the test has set.
#[derive(Default)]
pub(crate) struct Fake {
    ended: watch::Sender<Option<Ended>>,
    pub(crate) events: Arc<Events>,
}

impl Service for Fake {
    fn status(&self) -> Status {
        Status { failing_files: 0, ..sample::status() }
    }

    fn stats(&self) -> Stats {
        Stats::default()
    }

    fn under_way(&self) -> UnderWay {
        UnderWay::default()
    }

    fn limits(&self) -> Limits {
        Limits::default()
    }

    fn limit(&self, _request: LimitRequest) -> Result<Limits, String> {
        Ok(Limits::default())
    }

    fn sync(&self, _by: Option<u32>) -> Result<Synced, String> {
        Err("the store is full".to_owned())
    }

    fn umount(&self, _request: UmountRequest) -> Result<UmountReply, String> {
        Ok(UmountReply { ended: None, holders: Holders::default() })
    }

    fn events(&self) -> Arc<Events> {
        Arc::clone(&self.events)
    }

    fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }
}

struct World {
    path: PathBuf,
    server: Option<Server>,
    fake: Arc<Fake>,
    _dir: tempfile::TempDir,
}

fn world() -> World {
    let private = fs::Permissions::from_mode(0o700);
    let dir = tempfile::Builder::new().permissions(private).tempdir().unwrap();
    let path = dir.path().join("sock");
    let listener = UnixListener::bind(&path).unwrap();
    let fake = Arc::new(Fake::default());
    let uid = rustix::process::geteuid().as_raw();
    let server = Server::start(listener, uid, Arc::clone(&fake) as Arc<_>).unwrap();
    World { path, server: Some(server), fake, _dir: dir }
}

fn ended() -> Ended {
    Ended {
        state: State::Released,
        ended_ms: 1,
        unwritten: Unwritten::default(),
        error: None,
        switch_drain_us: 2,
        switched_inodes: 3,
    }
}

/// Sends bytes and returns the reply until the server closes or has answered.
fn raw(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    // The server may close before it has read all of it.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

pub(crate) fn call(path: &Path, head: &str, body: &str) -> String {
    let length = body.len();
    let request =
        format!("{head} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    raw(path, request.as_bytes())
}

#[test]
fn calls_and_their_answers() {
    let world = world();
    let status = call(&world.path, "GET /v1/status", "");
    assert!(status.starts_with("HTTP/1.1 200"), "{status}");
    assert!(status.contains("application/json"), "{status}");
    assert!(status.contains("\"state\":\"active\""), "{status}");
    assert!(call(&world.path, "GET /healthz", "").ends_with("ok\n"));
    assert!(call(&world.path, "POST /v1/umount", "{\"how\":\"lazy\"}").starts_with("HTTP/1.1 200"));
    let refused = call(&world.path, "POST /v1/sync", "");
    assert!(refused.starts_with("HTTP/1.1 409") && refused.contains("the store is full"), "{refused}");
    let waited = call(&world.path, "GET /v1/wait?timeout_ms=1", "");
    assert!(waited.contains("\"ended\":null"), "{waited}");
}

#[test]
fn what_is_wrong_is_refused_and_harms_nobody() {
    let world = world();
    for (head, body, code) in [
        ("GET /", "", "404"),
        ("GET /v1/statuses", "", "404"),
        ("POST /v1/status", "", "405"),
        ("GET /v1/umount", "", "405"),
        ("DELETE /v1/sync", "", "405"),
        ("POST /metrics", "", "405"),
        ("POST /v1/umount", "", "400"),
        ("POST /v1/umount", "{\"how\":\"hard\"}", "400"),
        ("POST /v1/umount", "[[[[[[", "400"),
        ("GET /v1/wait?timeout_ms=soon", "", "400"),
        ("GET /v1/wait?forever=1", "", "400"),
    ] {
        let answer = call(&world.path, head, body);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{head} {body}: {answer}");
        assert!(answer.contains("\"error\""), "{head} {body}: {answer}");
    }
    let wrong = call(&world.path, "DELETE /v1/sync", "");
    assert!(wrong.contains("allow: POST") && wrong.contains("takes POST, not DELETE"), "{wrong}");
    let large = "x".repeat(100 << 10);
    let answer = call(&world.path, "POST /v1/umount", &large);
    assert!(answer.starts_with("HTTP/1.1 400") || answer.is_empty(), "{answer}");
    let answer = raw(&world.path, format!("GET /{large} HTTP/1.1\r\n\r\n").as_bytes());
    assert!(!answer.starts_with("HTTP/1.1 2"), "{answer}");
    assert!(!raw(&world.path, b"\0\x01\x02 nonsense\r\n\r\n").starts_with("HTTP/1.1 2"));
    // Connections that say nothing take no place from others for ever, and none at all below the
    // bound.
    let silent: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(&world.path).unwrap()).collect();
    assert!(call(&world.path, "GET /healthz", "").ends_with("ok\n"));
    drop(silent);
}

#[test]
fn who_waits_hears_the_end_before_the_server_ends() {
    let mut world = world();
    let path = world.path.clone();
    let client = connect(&path).unwrap();
    assert_eq!(client.pid(), std::process::id());
    assert_eq!(client.wait(Duration::ZERO).unwrap().ended, None);
    let waiting: Vec<_> = (0..8)
        .map(|_| {
            let client = connect(&path).unwrap();
            std::thread::spawn(move || client.wait(LONG).unwrap().ended)
        })
        .collect();
    eventually("all of them wait", || world.fake.ended.receiver_count() >= waiting.len());
    world.fake.ended.send_replace(Some(ended()));
    world.server.take().unwrap().finish();
    for thread in waiting {
        assert_eq!(thread.join().unwrap(), Some(ended()));
    }
    assert!(matches!(client.status(), Err(CallError::Gone)));
    assert!(matches!(connect(&path), Err(CallError::Gone)));
    assert!(!client.wait_gone(Duration::ZERO), "this very process is there");
}

#[test]
fn another_user_is_refused_even_where_the_socket_is_open_to_all() {
    if !rustix::process::geteuid().is_root() {
        crate::rig::skipped("needs root to become another user");
        return;
    }
    let world = world();
    let dir = OpenDir::own(world.path.parent().unwrap(), 0).unwrap().unwrap();
    // Break its other protections, so that only the check of the peer is left.
    fs::set_permissions(world.path.parent().unwrap(), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(&world.path, fs::Permissions::from_mode(0o777)).unwrap();
    let path = world.path.clone();
    let stranger = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        // Of this thread only.
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        call(&path, "GET /v1/status", "")
    });
    assert_eq!(stranger.join().unwrap(), "");
    assert!(call(&world.path, "GET /v1/status", "").starts_with("HTTP/1.1 200"));
    // And a client does not talk to a socket that is not its owner's.
    let path = world.path.clone();
    let nobodys = std::thread::spawn(move || {
        let nobody = rustix::process::Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
        let other = path.with_file_name("other");
        let listener = UnixListener::bind(&other).unwrap();
        (other, listener)
    });
    let (other, _listener) = nobodys.join().unwrap();
    assert!(matches!(
        Client::connect(&dir, other.file_name().unwrap().to_str().unwrap()),
        Err(CallError::Untrusted { .. })
    ));
}
