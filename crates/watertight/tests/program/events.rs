//! `GET /v1/events` and `watertight events`: every listener gets every event, at its own pace, or
//! the number of missing ones.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use testing::cgroup::Cgroup;
use volume::events::{Edge, Events, Limit};
use watertight::control::server::Server;
use watertight::host::mountinfo::Device;
use watertight::registry::Record;

use crate::control::{Fake, call};
use crate::rig::{LONG, Rig, eventually, wait};

/// A server of a volume's events alone.
struct World {
    events: Arc<Events>,
    socket: PathBuf,
    server: Option<Server>,
    dir: tempfile::TempDir,
}

impl World {
    fn new() -> Self {
        Self::with_id("sock")
    }

    /// A world that is found as a volume, in its own runtime directory: `id` in a registry.
    fn registered(id: &str) -> Self {
        let world = Self::with_id(&format!("{id}.sock"));
        let record = Record {
            id: id.parse().unwrap(),
            pid: std::process::id(),
            source: "mem:".into(),
            mountpoint: "/nowhere".into(),
            attached_to: None,
            journal: None,
            read_only: false,
            device: Device::default(),
            started_ms: 1,
            keeper: None,
            ended: None,
        };
        std::fs::write(world.dir.path().join(format!("{id}.json")), serde_json::to_vec(&record).unwrap())
            .unwrap();
        world
    }

    fn with_id(name: &str) -> Self {
        // No other user may look into it, as into a runtime directory.
        let private = Permissions::from_mode(0o700);
        let dir = tempfile::Builder::new().permissions(private).tempdir().unwrap();
        let socket = dir.path().join(name);
        let fake = Arc::new(Fake::default());
        let uid = rustix::process::geteuid().as_raw();
        let server =
            Server::start(UnixListener::bind(&socket).unwrap(), uid, Arc::clone(&fake) as Arc<_>).unwrap();
        Self { events: Arc::clone(&fake.events), socket, server: Some(server), dir }
    }

    /// Emits that a limit of the cgroup `/N` begins to hold.
    fn say(&self, n: u64) {
        self.events.limit(name(n).into(), Limit::IoMax, Edge::Begins);
    }

    /// After the first, emits the rest of far more than a socket, the server and the journal hold,
    /// and the end. A listener that keeps up misses none of it, so that all has gone through the
    /// server. Returns the number of the last one.
    fn say_more_than_fits(&self) -> u64 {
        let mut quick = Listener::new(&self.socket, "?since=1");
        let last = 20_000;
        for n in 2..=last {
            self.say(n);
            if n % 256 == 0 {
                while quick.next().unwrap()["cgroup"] != name(n) {}
            }
        }
        self.events.end(None);
        last
    }
}

fn name(n: u64) -> String {
    format!("/{n}")
}

impl Drop for World {
    fn drop(&mut self) {
        self.events.end(None);
        if let Some(server) = self.server.take() {
            server.finish();
        }
    }
}

/// A listener.
pub(crate) struct Listener(BufReader<UnixStream>);

impl Listener {
    pub(crate) fn new(socket: &Path, query: &str) -> Self {
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        write!(stream, "GET /v1/events{query} HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
        Self(BufReader::new(stream))
    }

    /// The next event; none at the end of the stream.
    pub(crate) fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            // A chunk of size 0 is the end; other sizes and the head are passed over.
            if self.0.read_line(&mut line).unwrap() == 0 || line == "0\r\n" {
                return None;
            }
            if line.starts_with('{') {
                return Some(serde_json::from_str(&line).unwrap());
            }
        }
    }
}

fn lines(answer: &str) -> Vec<Value> {
    let lines = answer.lines().filter(|line| line.starts_with('{'));
    lines.map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn everybody_hears_everything_in_order_until_the_end() {
    let world = World::new();
    world.say(1);
    let mut listeners: Vec<Listener> = (0..8).map(|_| Listener::new(&world.socket, "")).collect();
    for listener in &mut listeners {
        assert_eq!(listener.next().unwrap()["cgroup"], "/1");
    }
    (2..=500).for_each(|n| world.say(n));
    world.events.end(None);
    world.say(501);
    for listener in &mut listeners {
        for n in 2..=500 {
            let event = listener.next().unwrap();
            assert_eq!((&event["cgroup"], &event["seq"]), (&format!("/{n}").into(), &n.into()));
        }
        assert_eq!(listener.next().unwrap()["state"], "released");
        assert_eq!(listener.next(), None);
    }
}

#[test]
fn who_comes_back_goes_on_where_it_was() {
    let world = World::new();
    (1..=5).for_each(|n| world.say(n));
    let kept = |query: &str| -> Vec<Value> {
        let all = lines(&call(&world.socket, &format!("GET /v1/events?follow=false{query}"), ""));
        all.into_iter().map(|mut event| event["seq"].take()).collect()
    };
    assert_eq!(kept(""), [1, 2, 3, 4, 5]);
    assert_eq!(kept("&since=3"), [4, 5]);
    assert!(kept("&since=99").is_empty());
    // The newest 1024 are kept; the first line reports that those up to the 976th are missing.
    (6..=2000).for_each(|n| world.say(n));
    let newest = kept("");
    assert_eq!((newest.len(), &newest[0], &newest[1]), (1025, &976.into(), &977.into()));
}

/// Of so many events the first was read; `next` reads the others, or the number of missing ones,
/// until the last.
#[track_caller]
fn all_is_accounted_for(events: u64, mut next: impl FnMut() -> Value) {
    let (mut heard, mut lost, mut seq, mut is_over) = (1, 0, 1, false);
    while !is_over {
        let event = next();
        let missing = if event["kind"] == "gap" { event["lost"].as_u64().unwrap() } else { 0 };
        let number = event["seq"].as_u64().unwrap();
        // A reader that is overtaken while it reads an entry skips that entry's number.
        assert!(number >= seq + missing.max(1), "{event} after {seq}");
        (seq, lost, heard) = (number, lost + missing, heard + u64::from(missing == 0));
        is_over = event["state"] == "released";
    }
    assert!(lost > 0, "it heard {heard}");
    // No fewer than there were events, and each number once; the two are equal unless numbers were
    // skipped.
    assert!(
        (events..=seq).contains(&(heard + lost)),
        "{heard} heard and {lost} missing of {events} up to {seq}"
    );
}

#[test]
fn who_is_too_slow_is_told_how_much_is_missing() {
    let world = World::new();
    let mut slow = Listener::new(&world.socket, "");
    world.say(1);
    assert_eq!(slow.next().unwrap()["seq"], 1);
    let last = world.say_more_than_fits();
    all_is_accounted_for(last + 1, || slow.next().unwrap());
    assert_eq!(slow.next(), None);
}

#[test]
fn listeners_take_no_place_from_others_and_are_bounded() {
    let world = World::new();
    world.say(1);
    let mut listeners: Vec<Listener> = (0..64).map(|_| Listener::new(&world.socket, "")).collect();
    listeners.iter_mut().for_each(|listener| assert_eq!(listener.next().unwrap()["seq"], 1));
    assert!(call(&world.socket, "GET /healthz", "").ends_with("ok\n"));
    let answer = call(&world.socket, "GET /v1/events", "");
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("64 callers of this process read events"),
        "{answer}"
    );
    // The place of a listener that has left is free again.
    drop(listeners.pop());
    eventually("a place is free", || {
        call(&world.socket, "GET /v1/events?follow=false", "").starts_with("HTTP/1.1 200")
    });
}

/// `watertight events`, as it runs.
struct Verb {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Verb {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    /// Reads until `done`; returns that event.
    #[track_caller]
    fn until(&mut self, done: impl Fn(&Value) -> bool) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.out.read_line(&mut line).unwrap() > 0, "it ended: {}", self.stderr());
            let event = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
            if done(&event) {
                return event;
            }
        }
    }

    fn stderr(&mut self) -> String {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }

    /// It ends by itself, with 0 and without a word.
    #[track_caller]
    fn ends(mut self) {
        let status = wait(&mut self.child, LONG);
        assert_eq!(status.and_then(|status| status.code()), Some(0), "{}", self.stderr());
        assert_eq!(self.stderr(), "");
    }
}

impl Drop for Verb {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_verb_tells_a_volumes_life_and_its_errors() {
    let Some(mut rig) = Rig::mounting() else { return };
    let daemon = rig.mount_faulty("write_at:nth=1:fail=ENOSPC", "dirty_after=50ms");
    let mut verb = {
        let mut command = rig.command(&["events", "--json"]);
        command.arg(&rig.mnt);
        Verb::start(command)
    };
    let mounted = verb.until(|event| event["kind"] == "life");
    assert_eq!((&mounted["state"], &mounted["seq"]), (&"mounted".into(), &1.into()));
    assert_eq!(mounted["path"], rig.mnt.to_string_lossy().as_ref());
    std::fs::write(rig.mnt.join("a"), "12345").unwrap();
    let error = verb.until(|event| event["kind"] == "error");
    assert_eq!(error["file"], "a", "{error}");
    let shown = rig.verb("events", &["--once"]).ok();
    assert!(
        shown.stdout.contains("mounted at ") && shown.stdout.contains("a could not be written"),
        "{shown:?}"
    );
    rig.verb("umount", &[]).ok();
    verb.until(|event| event["state"] == "draining");
    verb.until(|event| event["state"] == "released");
    verb.ends();
    assert_eq!(daemon.end(), Some(0));
    rig.verb("events", &[]).ends(1, "has ended: released");
}

/// A limit of a byte a second holds up a writer below it: the event names the waiting cgroup, until
/// the limit is lifted.
#[test]
fn the_verb_tells_who_waits_for_a_limit_and_when_that_ends() {
    let Some(mut rig) = Rig::mounting() else { return };
    let Some(limited) = Cgroup::make() else { return };
    let writes = limited.child("writes");
    let daemon = rig.mount(&format!("dirty_after=1h,limit={}:wbps=1", limited.path().display()));
    let mut verb = {
        let mut command = rig.command(&["events", "--json"]);
        command.arg(&rig.mnt);
        Verb::start(command)
    };
    let of = format!("of={}", rig.mnt.join("a").display());
    let mut command = writes.command("dd");
    command.args(["if=/dev/zero", &of, "bs=64K", "count=1", "conv=fsync", "status=none"]);
    let mut writer = command.spawn().unwrap();
    let edge = |edge: &'static str| move |event: &Value| event["kind"] == "limit" && event["edge"] == edge;
    let begins = verb.until(edge("begins"));
    let who = Value::from(writes.path().to_string_lossy());
    assert_eq!((&begins["cgroup"], &begins["limit"]), (&who, &"io.max".into()), "{begins}");
    let mnt = rig.mnt.to_string_lossy().into_owned();
    rig.run(&["limit", &limited.path().to_string_lossy(), &mnt, "wbps=max"]).ok();
    assert!(wait(&mut writer, LONG).is_some_and(|status| status.success()));
    // A read of the volume's figures also checks whether the limit has ended.
    let ends = std::thread::spawn(move || (verb.until(edge("ends")), verb));
    while !ends.is_finished() {
        rig.verb("status", &["--json"]).ok();
    }
    let (ends, mut verb) = ends.join().unwrap();
    assert_eq!((&ends["cgroup"], &ends["limit"]), (&who, &"io.max".into()), "{ends}");
    rig.verb("umount", &[]).ok();
    verb.until(|event| event["state"] == "released");
    verb.ends();
    assert_eq!(daemon.end(), Some(0));
}

/// The verb's output is not read until far more has happened than its pipe, its queue, the socket
/// and the journal hold. Then it reports how much is missing: its lines and the missing ones are
/// together all that happened.
#[test]
fn the_verb_says_how_much_is_missing_when_it_was_not_read() {
    let world = World::registered("slow");
    let mut command = Rig::new().command(&["events", "--json", "slow"]);
    command.env("WATERTIGHT_RUNTIME_DIR", world.dir.path());
    let mut verb = Verb::start(command);
    world.say(1);
    assert_eq!(verb.until(|_| true)["seq"], 1);
    let last = world.say_more_than_fits();
    all_is_accounted_for(last + 1, || verb.until(|_| true));
    verb.ends();
}

#[test]
fn the_verb_hears_volumes_that_appear_and_die() {
    let Some(mut rig) = Rig::mounting() else { return };
    // The directory is not even there.
    let mut verb = Verb::start(rig.command(&["events", "--json"]));
    let mnt = rig.root.join("other");
    std::fs::create_dir(&mnt).unwrap();
    let one = rig.mount("");
    let first = verb.until(|event| event["state"] == "mounted");
    let mut command = rig.command(&["mount", "mem:"]);
    command.arg(&mnt);
    let other = rig.start(command);
    let second = verb.until(|event| event["state"] == "mounted");
    assert_ne!(first["volume"], second["volume"]);
    other.kill();
    let died = verb.until(|event| event["kind"] == "unheard");
    assert_eq!(died["volume"], second["volume"]);
    assert!(died["error"].as_str().unwrap().contains("died"), "{died}");
    rig.verb("umount", &[]).ok();
    assert_eq!(one.end(), Some(0));
    let released = verb.until(|event| event["state"] == "released");
    assert_eq!(released["volume"], first["volume"]);
    kill_process(Pid::from_child(&verb.child), Signal::INT).unwrap();
    verb.ends();
}

#[test]
fn the_verb_ends_when_nobody_reads_it() {
    let rig = Rig::new();
    let mut verb = Verb::start(rig.command(&["events"]));
    // It is there, and has nothing to say.
    eventually("it watches", || rig.runtime.is_dir());
    let out = std::mem::replace(&mut verb.out, empty());
    drop(out);
    verb.ends();
    rig.run(&["events", "--once"]).ok();
    rig.verb("events", &[]).ends(2, "is not a volume");
    rig.run(&["events", "--since", "3"]).ends(2, "<VOLUME>");
}

/// The output of a program that has none.
fn empty() -> BufReader<ChildStdout> {
    let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
    let out = child.stdout.take().unwrap();
    child.wait().unwrap();
    BufReader::new(out)
}
