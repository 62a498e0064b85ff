//! Any bytes at the control socket: answered as HTTP and with an error of the caller's, or not at
//! all; never a panic, and never a second answer or a connection that stays open.
//!
//! The server is the whole one, with a volume that has ended, so that no call waits.
#![no_main]

use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use tokio::sync::watch;
use volume::events::Events;
use watertight::control::api::{
    AttachReply, AttachRequest, DetachReply, DetachRequest, Ended, LimitRequest, Limits, MoveReply,
    MoveRequest, State, Stats, Status, Synced, UmountReply, UmountRequest, UnderWay, Unwritten,
};
use watertight::control::server::Server;
use watertight::control::service::Service;
use watertight::host::holders::Holders;

struct Volume {
    ended: watch::Sender<Option<Ended>>,
    events: Arc<Events>,
}

impl Service for Volume {
    fn status(&self) -> Status {
        Status::default()
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

    fn limit(&self, request: LimitRequest) -> Result<Limits, String> {
        let _cgroup: Result<volume::CgroupPath, _> = request.cgroup.parse();
        let change: volume::LimitChange =
            request.limits.parse().map_err(|error: volume::LimitError| error.to_string())?;
        std::hint::black_box(change);
        Ok(Limits::default())
    }

    fn sync(&self, _by: Option<u32>) -> Result<Synced, String> {
        Err("it has ended".to_owned())
    }

    fn umount(&self, _request: UmountRequest) -> Result<UmountReply, String> {
        Ok(UmountReply { ended: None, holders: Holders::default() })
    }

    fn attach(&self, request: AttachRequest) -> Result<AttachReply, String> {
        Err(request.path)
    }

    fn detach(&self, request: DetachRequest) -> Result<DetachReply, String> {
        Err(request.path)
    }

    fn move_to(&self, request: MoveRequest) -> Result<MoveReply, String> {
        Err(request.to)
    }

    fn events(&self) -> Arc<Events> {
        Arc::clone(&self.events)
    }

    fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }
}

/// A server for the life of the process; the directory goes with the process's end.
fn socket() -> &'static PathBuf {
    static SOCKET: OnceLock<(PathBuf, Server)> = OnceLock::new();
    let start = || {
        let path = std::env::temp_dir().join(format!("watertight-fuzz-{}.sock", std::process::id()));
        let _of_before = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).expect("a socket");
        let ended = Ended {
            state: State::Released,
            ended_ms: 1,
            unwritten: Unwritten::default(),
            error: None,
            switch_drain_us: 0,
            switched_inodes: 0,
        };
        let events = Arc::<Events>::default();
        events.end(None);
        let volume = Volume { ended: watch::Sender::new(Some(ended)), events };
        let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&path).expect("it is there"));
        let server = Server::start(listener, uid, Arc::new(volume)).expect("a thread");
        (path, server)
    };
    &SOCKET.get_or_init(start).0
}

/// Beginnings of requests, so that the fuzzer spends its time behind them.
const BEGINNINGS: [&str; 8] = [
    "",
    "GET /v1/events?",
    "GET /v1/wait?",
    "GET /v1/volumes?after=",
    "POST /v1/limit",
    "POST /v1/umount",
    "POST /v1/attach",
    "POST /v1/detach",
];

fuzz_target!(|input: &[u8]| {
    let Some((&choice, rest)) = input.split_first() else { return };
    let beginning = BEGINNINGS[usize::from(choice) % BEGINNINGS.len()];
    let mut request = beginning.as_bytes().to_vec();
    if beginning.starts_with("POST") {
        request.extend(format!(" HTTP/1.1\r\nhost: x\r\ncontent-length: {}\r\n\r\n", rest.len()).as_bytes());
        request.extend(rest);
    } else if beginning.starts_with("GET") {
        let query = rest.iter().filter(|byte| byte.is_ascii_graphic());
        request.extend(query);
        request.extend(b" HTTP/1.1\r\nhost: x\r\n\r\n");
    } else {
        request.extend(rest);
    }
    let mut stream = UnixStream::connect(socket()).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time");
    // It may be closed before all is written.
    let _closed = stream.write_all(&request);
    let _closed = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
            panic!("it is not answered, and stays open")
        }
        _ => {}
    }
    if !answer.is_empty() {
        let status = answer.strip_prefix(b"HTTP/1.1 ").or_else(|| answer.strip_prefix(b"HTTP/1.0 "));
        let status = status.unwrap_or_else(|| panic!("{}", answer.escape_ascii()));
        assert!(matches!(status.first(), Some(b'2' | b'4')), "{}", answer.escape_ascii());
    }
});
