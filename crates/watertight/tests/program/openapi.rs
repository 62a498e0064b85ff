//! `openapi.json` against the server: both have one set of routes, and each answer has exactly the
//! fields that the document describes.

mod schema;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::sync::watch;
use volume::events::{Edge, Event, Events, Life, Limit, What};
use watertight::control::api::{
    AttachReply, AttachRequest, CgroupLimits, CloneReply, CloneRequest, DetachReply, DetachRequest, Ended,
    LeaveReply, LeaveRequest, LimitAhead, LimitRequest, LimitWait, Limits, MoveReply, MoveRequest,
    RequestPart, RequestUnderWay, Snapshot, SnapshotsReply, SnapshotsRequest, State, Stats, Status, Synced,
    UmountKind, UmountReply, UmountRequest, UnderWay, Unwritten, UpgradeReply, UpgradeRequest, WarmFailure,
    WarmReply, WarmRequest,
};
use watertight::control::routes::{OPENAPI, ROUTES};
use watertight::control::server::Server;
use watertight::control::service::Service;
use watertight::control::volume_id::VolumeId;
use watertight::host::holders::{self, Holder, Holders};
use watertight::host::pods::Pod;

use self::schema::Checker;
use crate::control::call;
use crate::events::Listener;
use crate::rig::{LONG, Rig};
use crate::sample;

/// Answers with everything that an answer can have.
struct Full {
    ended: watch::Sender<Option<Ended>>,
    calls: AtomicU32,
    events: Arc<Events>,
    /// If it is there: whether calls end.
    is_busy: watch::Sender<Option<bool>>,
}

impl Full {
    /// How many calls there were before.
    fn next(&self) -> u32 {
        if self.is_busy.borrow().is_some() {
            let mut busy = self.is_busy.subscribe();
            let over = async move { busy.wait_for(|busy| *busy == Some(false)).await.map(|_| ()) };
            tokio::runtime::Handle::current().block_on(over).expect("it has not ended");
            return 0;
        }
        // ORDERING: Relaxed, only this number; calls come one after the other.
        self.calls.fetch_add(1, Ordering::Relaxed)
    }
}

fn ended() -> Ended {
    let named = sample::status().errors;
    let unwritten = Unwritten { bytes: 5, files: 1, named };
    let error = Some("full".into());
    Ended { state: State::Failed, ended_ms: 1, unwritten, error, switch_drain_us: 2, switched_inodes: 3 }
}

/// An event of each kind; then the volume's end.
fn events() -> Arc<Events> {
    let events = Arc::new(Events::default());
    // More than are kept.
    (0..1024).for_each(|_| events.limit("/t/a".into(), Limit::IoMax, Edge::Begins));
    let what = What::Error { node: 7, path: None, error: store::ErrorKind::NoSpace };
    events.journal().push(Event { at: SystemTime::now(), what });
    events.life(Life::Mounted, Some("/mnt".into()));
    events.end(Some("full".to_owned()));
    events
}

/// A holder of each kind.
fn held() -> Holders {
    use holders::HoldKind::{
        Bind, LoopDevice, Mapping, Mount, Namespace, OpenFile, Program, Root, WorkingDirectory,
    };
    let all = [OpenFile, WorkingDirectory, Root, Program, Mapping, Mount, Bind, Namespace, LoopDevice];
    let found = all.map(|how| {
        let pid = match how {
            OpenFile | WorkingDirectory | Root | Program | Mapping | Namespace => Some(7),
            Mount | Bind | LoopDevice => None,
        };
        let pod = pid.map(|_| Pod {
            uid: "0c1b2a3d-4e5f-6789-abcd-ef0123456789".to_owned(),
            namespace: Some("shop".into()),
            name: Some("db-0".into()),
            container: Some("postgres".into()),
        });
        Holder { pid, name: "cat".into(), how, file: "/f".into(), direct: true, pod }
    });
    Holders { found: found.into(), unseen: 1, hung: vec![7] }
}

fn id() -> VolumeId {
    "fa4e".parse().unwrap()
}

impl Service for Full {
    fn status(&self) -> Status {
        let is_busy = self.is_busy.borrow().is_some();
        let failing_files = u64::from(!is_busy && self.next() > 0);
        Status { failing_files, ..sample::status() }
    }

    fn stats(&self) -> Stats {
        let wait = LimitWait {
            cgroup: "/a".into(),
            limit: Limit::IoMax,
            waits: 1,
            waited_us: 2,
            waiting: 3,
            longest_us: 4,
        };
        Stats {
            id: id(),
            mountpoint: "/x".into(),
            counted_ms: 5,
            operations: sample::status().operations,
            limit_waits: vec![wait],
        }
    }

    fn under_way(&self) -> UnderWay {
        use RequestPart::{Cache, Limit as AtLimit, Queue, Rest, Store};
        let ahead = LimitAhead { cgroup: "/a".into(), limit: Limit::IoMax, left_us: Some(1), bytes: Some(2) };
        let request = |part| RequestUnderWay {
            caller: 1,
            op: "read".to_owned(),
            mountpoint: "/x".into(),
            for_us: 2,
            part,
            part_us: 3,
            limit: (part == AtLimit).then(|| ahead.clone()),
        };
        UnderWay { id: id(), requests: [Queue, AtLimit, Cache, Store, Rest].map(request).into() }
    }

    fn limits(&self) -> Limits {
        let all = Some(1);
        let cgroup = "/a".into();
        let limits = CgroupLimits {
            cgroup,
            rbps: all,
            wbps: all,
            riops: all,
            wiops: all,
            dirty_bytes_max: all,
            sync_isolation: true,
            owed_bytes: 1,
        };
        Limits { limits: vec![limits] }
    }

    fn limit(&self, request: LimitRequest) -> Result<Limits, String> {
        if request.limits.is_empty() { Err("no limit".to_owned()) } else { Ok(self.limits()) }
    }

    fn sync(&self, _by: Option<u32>) -> Result<Synced, String> {
        match self.next() {
            0 => Ok(Synced { id: id(), left_out: vec!["/x".into()] }),
            1 => Err("the store is full".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn warm(&self, _request: WarmRequest) -> Result<WarmReply, String> {
        match self.next() {
            0 => Ok(WarmReply { bytes: 1, failed: vec![WarmFailure { file: 2, error: "damaged".into() }] }),
            1 => Err("it has no disk cache".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn umount(&self, request: UmountRequest) -> Result<UmountReply, String> {
        match (request.how, self.next()) {
            (UmountKind::Plain, 0) => Ok(UmountReply { ended: None, holders: held() }),
            (UmountKind::Lazy, _) => Ok(UmountReply { ended: Some(ended()), holders: Holders::default() }),
            (UmountKind::Force, _) => Err("it has ended already".to_owned()),
            (UmountKind::Plain, _) => panic!("as it is meant to"),
        }
    }

    fn events(&self) -> Arc<Events> {
        Arc::clone(&self.events)
    }

    fn volumes(&self, _after: Option<&VolumeId>) -> Vec<Status> {
        vec![sample::status()]
    }

    fn attach(&self, request: AttachRequest) -> Result<AttachReply, String> {
        match self.next() {
            0 => Ok(AttachReply { id: Some(id()), mountpoint: request.path.into() }),
            1 => Err("it is busy".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn detach(&self, _request: DetachRequest) -> Result<DetachReply, String> {
        let (id, source) = (Some(id()), Some("mem:".into()));
        match self.next() {
            0 => Ok(DetachReply { id, source, ended: Some(ended()), is_held: true, holders: held() }),
            1 => Err("it is busy".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn move_to(&self, request: MoveRequest) -> Result<MoveReply, String> {
        match self.next() {
            0 => Ok(MoveReply { mountpoint: request.to.into() }),
            1 => Err("it is busy".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn clone_to(&self, request: CloneRequest) -> Result<CloneReply, String> {
        match self.next() {
            0 => Ok(CloneReply { mountpoint: request.mountpoint.into() }),
            1 => Err("it is no directory".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn upgrade(&self, _request: UpgradeRequest) -> Result<UpgradeReply, String> {
        match self.next() {
            0 => Ok(UpgradeReply {}),
            1 => Err("it is none of them".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn leave(&self, _request: LeaveRequest) -> Result<LeaveReply, String> {
        match self.next() {
            0 => Ok(LeaveReply { is_held: true, holders: held() }),
            1 => Err("it is none of them".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn snapshots(&self, _request: SnapshotsRequest) -> Result<SnapshotsReply, String> {
        let created = "2026-11-25T12:00:00Z".into();
        match self.next() {
            0 => Ok(SnapshotsReply {
                snapshots: vec![Snapshot { name: "a".into(), created, bytes: 1, files: 2 }],
            }),
            1 => Err("there is one already".to_owned()),
            _ => panic!("as it is meant to"),
        }
    }

    fn ended(&self) -> watch::Receiver<Option<Ended>> {
        self.ended.subscribe()
    }
}

/// A new server on `socket`.
fn serve(socket: &Path, events: Arc<Events>) -> (Arc<Full>, Server) {
    let full = Arc::new(Full {
        ended: watch::Sender::new(None),
        calls: AtomicU32::new(0),
        events,
        is_busy: watch::Sender::default(),
    });
    let uid = rustix::process::geteuid().as_raw();
    let listener = UnixListener::bind(socket).unwrap();
    let server = Server::start(listener, uid, Arc::clone(&full) as Arc<_>).unwrap();
    (full, server)
}

/// One answer: status, type, body.
fn ask(path: &Path, head: &str, body: &str) -> (u16, String, String) {
    let answer = call(path, head, body);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let kind = head.lines().find_map(|line| line.strip_prefix("content-type: ")).unwrap();
    (status, kind.to_owned(), body.to_owned())
}

/// Checks one answer; returns `METHOD path status`.
#[track_caller]
fn check(document: &Value, checker: &mut Checker<'_>, socket: &Path, head: &str, body: &str) -> String {
    check_answer(document, checker, head, ask(socket, head, body))
}

/// Makes one call more than a process may make of its kind, while none of them ends: returns that
/// one's answer.
fn one_too_many(socket: &Path, callers: usize, head: &str, body: &str) -> (u16, String, String) {
    let (full, server) = serve(socket, events());
    full.is_busy.send_replace(Some(true));
    let (tell, told) = channel();
    let calls: Vec<_> = (0..=callers)
        .map(|_| {
            let (tell, socket, head, body) =
                (tell.clone(), socket.to_owned(), head.to_owned(), body.to_owned());
            thread::spawn(move || tell.send(ask(&socket, &head, &body)).expect("somebody listens"))
        })
        .collect();
    let first = told.recv_timeout(LONG).expect("one is answered");
    // All others hold their permits, and keep no other caller from being answered.
    assert_eq!(ask(socket, "GET /v1/status", "").0, 200);
    full.is_busy.send_replace(Some(false));
    full.ended.send_replace(Some(ended()));
    for _ in 0..callers {
        assert_eq!(told.recv_timeout(LONG).expect("it is answered").0, 200);
    }
    calls.into_iter().for_each(|call| call.join().unwrap());
    server.finish();
    first
}

/// Checks an answer that has been read.
#[track_caller]
fn check_answer(
    document: &Value,
    checker: &mut Checker<'_>,
    head: &str,
    (status, kind, answer): (u16, String, String),
) -> String {
    let (method, target) = head.split_once(' ').unwrap();
    let path = target.split('?').next().unwrap();
    let operation = &document["paths"][path][method.to_lowercase()];
    let response = &operation["responses"][status.to_string()];
    assert!(response.is_object(), "{head}: {status} is not in the document");
    let schema = &response["content"][&kind]["schema"];
    assert!(schema.is_object(), "{head}: {status} with {kind} is not in the document");
    let value = match kind.as_str() {
        "application/json" => serde_json::from_str(&answer).unwrap(),
        "application/x-ndjson" => {
            let event = json!({ "$ref": "#/components/schemas/Event" });
            // In chunks: their sizes stand between the lines.
            for line in answer.lines().filter(|line| line.starts_with('{')) {
                checker.check(&event, &serde_json::from_str(line).unwrap(), head).unwrap();
            }
            Value::String(answer)
        }
        _ => Value::String(answer),
    };
    checker.check(schema, &value, head).unwrap_or_else(|error| panic!("{head}: {error}: {value}"));
    format!("{method} {path} {status}")
}

fn document() -> Value {
    serde_json::from_str(OPENAPI).unwrap()
}

/// `METHOD path` of the document, with its description.
fn operations(document: &Value) -> Vec<(String, &Value)> {
    let mut all = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            all.push((format!("{} {path}", method.to_uppercase()), operation));
        }
    }
    all
}

#[test]
fn the_document_has_the_routes_of_the_server() {
    let document = document();
    let described: BTreeSet<String> = operations(&document).into_iter().map(|(name, _)| name).collect();
    let served = ROUTES.iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    assert_eq!(described, served);
    let version = document["info"]["version"].as_str().unwrap();
    let major = version.split('.').next().unwrap();
    assert!(described.iter().all(|name| !name.contains("/v") || name.contains(&format!("/v{major}/"))));
}

#[test]
fn every_answer_is_as_the_document_says_and_every_field_of_it_is_there() {
    let document = document();
    let mut checker = Checker::new(&document);
    let mut given = BTreeSet::new();
    // Each row of calls meets a new server.
    const ATTACH: (&str, &str) = ("POST /v1/attach", r#"{"path":"a","source":"mem:"}"#);
    const DETACH: (&str, &str) = ("POST /v1/detach", r#"{"path":"a","how":"plain"}"#);
    const MOVE: (&str, &str) = ("POST /v1/move", r#"{"from":"a","to":"b"}"#);
    const CLONE: (&str, &str) = ("POST /v1/clone", r#"{"mountpoint":"/b","propagation":"slave"}"#);
    const WARM: (&str, &str) = ("POST /v1/warm", r#"{"pieces":[{"file":2,"offset":0,"len":1}]}"#);
    const LEAVE: (&str, &str) = ("POST /v1/leave", r#"{"mountpoint":"/b","how":"lazy"}"#);
    const SNAPSHOTS: (&str, &str) = ("POST /v1/snapshots", r#"{"action":"create","name":"a"}"#);
    const UPGRADE: (&str, &str) =
        ("POST /v1/upgrade", r#"{"program":"/b","timeout_ms":1000,"max_pause_ms":1000}"#);
    let rows: [&[(&str, &str)]; 17] = [
        &[("GET /v1/volumes?after=0", ""), ("GET /v1/volumes?after=x.y", "")],
        &[
            ("GET /v1/limits", ""),
            ("GET /v1/stats", ""),
            ("GET /v1/requests", ""),
            ("POST /v1/limit", r#"{"cgroup":"/a","limits":"wbps=1M"}"#),
            ("POST /v1/limit", r#"{"cgroup":"/a","limits":""}"#),
        ],
        &[("GET /healthz", ""), ("GET /healthz", ""), ("GET /metrics", ""), ("GET /v1/openapi.json", "")],
        &[("GET /v1/status", ""), ("GET /v1/wait?timeout_ms=0", ""), ("GET /v1/wait?timeout_ms=x", "")],
        &[("GET /v1/events", ""), ("GET /v1/events?since=x", "")],
        &[("POST /v1/sync", ""), ("POST /v1/sync", ""), ("POST /v1/sync", "")],
        &[("POST /v1/umount", r#"{"how":"plain"}"#), ("POST /v1/umount", r#"{"how":"plain"}"#)],
        &[("POST /v1/umount", r#"{"how":"lazy"}"#), ("POST /v1/umount", r#"{"how":"force"}"#)],
        &[("POST /v1/umount", r#"{"how":"hard"}"#)],
        &[ATTACH, ATTACH, ATTACH, ("POST /v1/attach", "{}")],
        &[DETACH, DETACH, DETACH, ("POST /v1/detach", "{}")],
        &[MOVE, MOVE, MOVE, ("POST /v1/move", "{}")],
        &[CLONE, CLONE, CLONE, ("POST /v1/clone", "{}")],
        &[LEAVE, LEAVE, LEAVE, ("POST /v1/leave", "{}")],
        &[SNAPSHOTS, SNAPSHOTS, SNAPSHOTS, ("POST /v1/snapshots", "{}")],
        &[WARM, WARM, WARM, ("POST /v1/warm", "{}")],
        &[UPGRADE, UPGRADE, UPGRADE, ("POST /v1/upgrade", "{}")],
    ];
    let dir = tempfile::tempdir().unwrap();
    for (n, row) in rows.into_iter().enumerate() {
        let socket = dir.path().join(n.to_string());
        let (full, server) = serve(&socket, events());
        for (head, body) in row {
            given.insert(check(&document, &mut checker, &socket, head, body));
        }
        full.ended.send_replace(Some(ended()));
        check(&document, &mut checker, &socket, "GET /v1/wait", "");
        server.finish();
    }
    let long =
        [("POST /v1/sync", "", 32), ("GET /v1/wait", "", 64), ("POST /v1/umount", r#"{"how":"plain"}"#, 16)];
    let tree = [ATTACH, DETACH, MOVE, WARM].map(|(head, body)| (head, body, 16));
    for (head, body, callers) in long.into_iter().chain(tree) {
        let socket = dir.path().join(head.replace('/', "-"));
        let answer = one_too_many(&socket, callers, head, body);
        assert_eq!(answer.0, 503, "{head}");
        given.insert(check_answer(&document, &mut checker, head, answer));
    }
    // No listener learns the end, so that their permits are taken.
    let socket = dir.path().join("full");
    let (full, server) = serve(&socket, Arc::default());
    full.events.life(Life::Attached, None);
    let listeners: Vec<_> = (0..64)
        .map(|_| {
            let mut listener = Listener::new(&socket, "");
            assert_eq!(listener.next().unwrap()["state"], "attached");
            listener
        })
        .collect();
    given.insert(check(&document, &mut checker, &socket, "GET /v1/events", ""));
    drop(listeners);
    server.finish();

    let described: BTreeSet<String> = operations(&document)
        .into_iter()
        .flat_map(|(name, operation)| {
            let responses = operation["responses"].as_object().unwrap().keys();
            responses.map(move |status| format!("{name} {status}")).collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(given, described, "an answer that is described was not given");
    let schemas = document["components"]["schemas"].as_object().unwrap();
    // A request, or a part of one.
    let is_asked = |name: &str| {
        let reference = format!("\"#/components/schemas/{name}\"");
        let has = |(of, schema): (&String, &Value)| {
            of.ends_with("Request") && schema.to_string().contains(&reference)
        };
        name.ends_with("Request") || schemas.iter().any(has)
    };
    for (name, schema) in schemas {
        for (key, property) in schema["properties"].as_object().into_iter().flatten() {
            let field = format!("{name}.{key}");
            assert!(is_asked(name) || checker.seen.contains(&field), "{field} is in no answer");
            assert!(
                property.get("description").is_some() || property.get("$ref").is_some(),
                "{field}: what is it?"
            );
        }
    }
    let states = State::ALL.map(|state| state.to_string());
    assert_eq!(document["components"]["schemas"]["State"]["enum"], json!(states));
}

#[test]
fn what_the_document_does_not_say_is_found() {
    let document = document();
    let reference = json!({ "$ref": "#/components/schemas/Ended" });
    let good = serde_json::to_value(ended()).unwrap();
    let refused = |change: &dyn Fn(&mut Value)| {
        let mut value = good.clone();
        change(&mut value);
        Checker::new(&document).check(&reference, &value, "").unwrap_err()
    };
    Checker::new(&document).check(&reference, &good, "").unwrap();
    assert!(refused(&|value| value["more"] = json!(1)).contains("Ended.more is not in the document"));
    assert!(refused(&|value| value["ended_ms"] = json!("1")).contains("is not of type"));
    assert!(refused(&|value| value["ended_ms"] = json!(-1)).contains("is below 0"));
    assert!(refused(&|value| value["state"] = json!("lost")).contains("is none of"));
    assert!(
        refused(&|value| drop(value.as_object_mut().unwrap().remove("unwritten")))
            .contains("has no unwritten")
    );
}

#[test]
fn a_mount_process_answers_so_too() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount("");
    fs::write(rig.mnt.join("a"), "12345").unwrap();
    let (document, socket) = (document(), rig.socket());
    let mut checker = Checker::new(&document);
    for head in
        ["GET /healthz", "GET /metrics", "GET /v1/status", "GET /v1/wait?timeout_ms=0", "POST /v1/sync"]
    {
        assert!(check(&document, &mut checker, &socket, head, "").ends_with(" 200"), "{head}");
    }
    let (status, kind, text) = ask(&socket, "GET /v1/openapi.json", "");
    assert_eq!((status, kind.as_str(), text.as_str()), (200, "application/json", OPENAPI));
    rig.verb("umount", &[]).ok();
    assert_eq!(daemon.end(), Some(0));
}
