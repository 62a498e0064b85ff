//! The control API under tools of other projects: a validator reads its description, and
//! schemathesis makes up requests from it, right ones and wrong ones, for a real mount process.
//! None may be answered with a 5xx, and all answers are as described.
//!
//! schemathesis speaks TCP, so that a bridge stands between: one request and one answer in a
//! connection. It also mounts again after a requested unmount.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use watertight::control::routes::{OPENAPI, ROUTES};

use crate::rig::{Daemon, LONG, Out, Rig, has, run, run_within, tool};

/// Calls that wait for an event. The bridge ends a call without an answer by then: the test looks
/// for a wrong answer.
const WAITING: [&str; 2] = ["/v1/wait", "/v1/events"];
const PATIENCE: Duration = Duration::from_millis(200);

/// A mount process that is there whenever it is needed.
struct World {
    rig: Rig,
    daemon: Option<Daemon>,
    /// How often each status was given, by `METHOD /path status`.
    given: BTreeMap<String, usize>,
    /// A path whose answers are made wrong on their way.
    spoilt: Option<&'static str>,
}

impl World {
    /// A connection to the mount process; to a new one where a request has ended the last one.
    fn connect(&mut self) -> UnixStream {
        loop {
            if self.daemon.is_none() {
                self.daemon = Some(self.rig.mount_source("mem:", ""));
            }
            // Asked once: it may be about to leave.
            let status = self.rig.status();
            let volumes = status["volumes"].as_array().unwrap();
            let socket = |id: &str| self.rig.runtime.join(format!("{id}.sock"));
            if let [volume] = &volumes[..]
                && let Ok(stream) = UnixStream::connect(socket(volume["id"].as_str().unwrap()))
            {
                return stream;
            }
            self.daemon.take().unwrap().end();
        }
    }

    /// Passes the request to the mount process, and returns its answer.
    fn answer(&mut self, request: &[u8]) -> Vec<u8> {
        let head = String::from_utf8_lossy(request);
        let mut words = head.split([' ', '?']);
        let (method, path) = (words.next().unwrap().to_owned(), words.next().unwrap_or_default().to_owned());
        let mut stream = self.connect();
        let is_waiting = WAITING.contains(&path.as_str());
        stream.set_read_timeout(Some(if is_waiting { PATIENCE } else { LONG })).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = Vec::new();
        if let Err(error) = stream.read_to_end(&mut answer) {
            assert!(is_waiting, "{method} {path}: {error}");
            answer = b"HTTP/1.1 204 Still Waiting\r\nconnection: close\r\n\r\n".into();
        }
        if self.spoilt == Some(path.as_str()) {
            answer = b"HTTP/1.1 500 Spoilt\r\nconnection: close\r\ncontent-length: 0\r\n\r\n".into();
        }
        let status = String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap_or("none").to_owned();
        *self.given.entry(format!("{method} {path} {status}")).or_default() += 1;
        answer
    }
}

/// Reads one request: its head, and a body of the length in the head.
fn request(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 4096]);
    loop {
        let head = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if let Some(head) = head {
            let text = String::from_utf8_lossy(&bytes[..head]).to_lowercase();
            let length =
                text.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            if bytes.len() >= head + 4 + length.unwrap_or(0) {
                return Some(bytes);
            }
        }
        match stream.read(&mut buffer) {
            Ok(n) if n > 0 => bytes.extend_from_slice(&buffer[..n]),
            _ => return None,
        }
    }
}

/// Stands between TCP and the mount process's socket, for as long as the test's process lives.
fn bridge(world: Arc<Mutex<World>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            if let Some(request) = request(&mut stream) {
                let answer = world.lock().unwrap().answer(&request);
                let _ = stream.write_all(&answer);
            }
            let _ = stream.shutdown(Shutdown::Both);
        }
    });
    address
}

/// Far longer than all its requests take, each with another process.
const FUZZING: Duration = Duration::from_secs(1200);

/// Runs schemathesis with these arguments, always with one fixed set of made-up requests.
fn schemathesis(world: &Arc<Mutex<World>>, address: SocketAddr, arguments: &[&str]) -> Option<Out> {
    let program = tool("schemathesis")?;
    let root = world.lock().unwrap().rig.root.clone();
    let mut command = Command::new(program);
    let document = root.join("openapi.json");
    std::fs::write(&document, OPENAPI).unwrap();
    command.arg("run").arg(document).args(["--url", &format!("http://{address}")]);
    command.args([
        "-H",
        "Connection: close",
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        "25",
    ]);
    command.args(["--seed", "1", "--generation-database", "none", "--no-color"]);
    // An answer may include an unmount and another mount; a slow machine is no fault.
    command.args(["--request-timeout", "600", "--suppress-health-check", "all"]).env("NO_PROXY", "127.0.0.1");
    // It looks for a configuration, and leaves its own files, in its working directory.
    command.args(arguments).current_dir(root);
    Some(run_within(FUZZING, command))
}

#[test]
fn made_up_requests_get_no_500_and_answers_as_described() {
    // Before there is a mount: the bridge would keep it for longer than this program runs.
    if !has("schemathesis") {
        return;
    }
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = Some(rig.mount_source("mem:", ""));
    let world = Arc::new(Mutex::new(World { rig, daemon, given: BTreeMap::new(), spoilt: None }));
    let address = bridge(Arc::clone(&world));

    let waiting = ["/v1/wait", "/v1/events"];
    let all =
        "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance";
    let but = ["--exclude-path", waiting[0], "--exclude-path", waiting[1], "--checks", all];
    let Some(out) = schemathesis(&world, address, &but) else { return };
    assert_eq!(out.code, Some(0), "{}\n{}", out.stdout, out.stderr);
    let only = ["--include-path", waiting[0], "--include-path", waiting[1], "--checks", "not_a_server_error"];
    let out = schemathesis(&world, address, &only).unwrap();
    assert_eq!(out.code, Some(0), "{}\n{}", out.stdout, out.stderr);

    let given = world.lock().unwrap().given.clone();
    let was_given = |wanted: &str| given.keys().any(|key| key.starts_with(wanted));
    for route in &ROUTES {
        assert!(
            was_given(&format!("{} {} ", route.method, route.path)),
            "nobody asked {}: {given:?}",
            route.path
        );
    }
    for wanted in ["POST /v1/umount 200", "POST /v1/limit 400", "POST /v1/attach 400", "GET /v1/wait 400"] {
        assert!(was_given(wanted), "never {wanted}: {given:?}");
    }
    let five: Vec<&String> = given.keys().filter(|key| key.contains(" 5")).collect();
    assert!(five.is_empty(), "{five:?}");

    // And it would have said so.
    world.lock().unwrap().spoilt = Some("/v1/limits");
    let one = ["--include-path", "/v1/limits", "--checks", "not_a_server_error"];
    let out = schemathesis(&world, address, &one).unwrap();
    assert!(out.code == Some(1) && out.stdout.contains("Server error"), "{}\n{}", out.stdout, out.stderr);
    if let Some(daemon) = world.lock().unwrap().daemon.take() {
        daemon.signal(Signal::TERM);
        daemon.end();
    }
}

#[test]
fn a_public_validator_takes_the_description() {
    let Some(validator) = tool("openapi-spec-validator") else { return };
    let rig = Rig::new();
    let validate = |text: &str| {
        let file = rig.root.join("openapi.json");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(&validator);
        command.arg(file);
        run(command)
    };
    validate(OPENAPI).ok();
    let wrong = OPENAPI.replace("\"in\": \"query\"", "\"in\": \"somewhere\"");
    assert_ne!(wrong, OPENAPI);
    assert_ne!(validate(&wrong).code, Some(0));
}
