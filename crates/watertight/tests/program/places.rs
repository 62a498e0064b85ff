//! Exit 0 of a verb that changes the tree: this path, looked up now by any process, leads where the
//! verb reports.
//!
//! Random sequences through a real mount against a model (`model`). After each step every path is
//! looked up by this process, which remembers all that it has seen, by another process, and by one
//! that is inside the mountpoint; a file is written through the path and looked for in the store's
//! own directory; and `status --json` is compared.
//!
//! `WATERTIGHT_PLACES_CASES=N` runs more cases, `PROPTEST_RNG_SEED=N` others, or repeats a run. A
//! failing sequence is shrunk and printed.

mod model;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use proptest::prelude::*;

use crate::rig::{Daemon, Out, Rig, eventually, run};
use model::{Dir, Ends, Model, UmountKind};

const STORES: usize = 3;
/// Directories of the mountpoint's own store.
const OUTER: [&str; 3] = ["p", "q", "r"];
/// Every path that may be a directory.
const PATHS: [&str; 14] = [
    "p", "q", "r", "p/in", "q/in", "r/in", "s", "p/s", "q/s", "p/in/in", "q/in/in", "r/in/in", "p/s/in", "in",
];
/// In each directory: which it is.
const MARK: &str = ".dir";

type At = prop::sample::Index;

#[derive(Debug, Clone)]
enum Op {
    Attach(usize, At),
    Bind(At, At),
    Detach(At, u8),
    Move(At, At),
    Open(At),
    OpenDir(At),
    Close(At),
    Sit(At),
    Mkdir(At),
    Rmdir(At),
    Rename(At, At),
    Both(Box<Op>, Box<Op>),
    Clone,
    LeaveClone,
}

fn verb() -> impl Strategy<Value = Op> {
    prop_oneof![
        5 => (1..=STORES, any::<At>()).prop_map(|(store, at)| Op::Attach(store, at)),
        5 => (any::<At>(), 0..5_u8).prop_map(|(at, how)| Op::Detach(at, how)),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let at = any::<At>;
    prop_oneof![
        16 => verb(),
        2 => (at(), at()).prop_map(|(from, to)| Op::Bind(from, to)),
        3 => (at(), at()).prop_map(|(from, to)| Op::Move(from, to)),
        4 => at().prop_map(Op::Open),
        1 => at().prop_map(Op::OpenDir),
        3 => at().prop_map(Op::Close),
        1 => at().prop_map(Op::Sit),
        2 => at().prop_map(Op::Mkdir),
        1 => at().prop_map(Op::Rmdir),
        2 => (at(), at()).prop_map(|(from, to)| Op::Rename(from, to)),
        3 => (verb(), verb()).prop_map(|(a, b)| Op::Both(Box::new(a), Box::new(b))),
        1 => Just(Op::Clone),
        1 => Just(Op::LeaveClone),
    ]
}

/// A process that was inside the mountpoint before anything was attached there.
struct Inside {
    shell: Child,
    answers: std::io::Lines<BufReader<ChildStdout>>,
}

impl Inside {
    fn new(dir: &Path) -> Self {
        const SCRIPT: &str = r#"while read -r path; do
            mark=
            if read -r mark 2>/dev/null < "$path" || [ -n "$mark" ]; then echo "$mark"; else echo none; fi
        done"#;
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT]).current_dir(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = command.spawn().unwrap();
        let answers = BufReader::new(shell.stdout.take().unwrap()).lines();
        Self { shell, answers }
    }

    fn mark(&mut self, path: &str) -> Option<String> {
        writeln!(self.shell.stdin.as_mut().unwrap(), "{path}/{MARK}").unwrap();
        let line = self.answers.next().unwrap().unwrap();
        (line != "none").then_some(line)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        // It ends with its standard input.
        drop(self.shell.stdin.take());
        let _reaped = self.shell.wait();
    }
}

fn read_mark(path: &Path) -> Option<String> {
    match fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => Some(format!("{error}")),
    }
}

fn path_of(at: &At) -> &'static str {
    at.get::<&'static str>(&PATHS)
}

fn mark((store, dir): Dir) -> String {
    format!("{store}:{dir}")
}

struct World {
    rig: Rig,
    daemon: Option<Daemon>,
    second: PathBuf,
    is_cloned: bool,
    model: Model,
    inside: Option<Inside>,
    open: Vec<(File, usize)>,
    sitting: Vec<Child>,
    step: usize,
}

impl World {
    fn new() -> Option<Self> {
        let mut rig = Rig::mounting()?;
        let model = Model::new(&OUTER, STORES);
        let store =
            |number: usize| if number == 0 { rig.store.clone() } else { rig.root.join(format!("s{number}")) };
        for number in 0..=STORES {
            fs::create_dir_all(store(number)).unwrap();
            fs::write(store(number).join(MARK), mark((number, 0))).unwrap();
        }
        for (dir, names) in model.dirs() {
            let path = names.iter().fold(store(dir.0), |path, name| path.join(name));
            fs::create_dir(&path).unwrap();
            fs::write(path.join(MARK), mark(dir)).unwrap();
        }
        let second = rig.root.join("second");
        fs::create_dir(&second).unwrap();
        let daemon = Some(rig.mount("dirty_after=1h"));
        let inside = Some(Inside::new(&rig.mnt));
        let (open, sitting) = Default::default();
        Some(Self { rig, daemon, second, is_cloned: false, model, inside, open, sitting, step: 0 })
    }

    fn store(&self, number: usize) -> PathBuf {
        if number == 0 { self.rig.store.clone() } else { self.rig.root.join(format!("s{number}")) }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.rig.mnt.join(path)
    }

    fn command(&self, verb: &str, arguments: &[&Path]) -> Command {
        let mut command = self.rig.command(&[verb]);
        command.args(arguments);
        command
    }

    fn run(&self, verb: &str, arguments: &[&Path]) -> Out {
        run(self.command(verb, arguments))
    }

    /// The verb of a step, and its effect on a model.
    fn verb(&self, op: &Op) -> Option<(Command, Change)> {
        Some(match op {
            Op::Attach(store, at) => {
                let (store, path) = (*store, path_of(at));
                let command = self.command("attach", &[&self.store(store), &self.at(path)]);
                (command, Box::new(move |model| model.attach(store, path)))
            }
            Op::Bind(from, to) => {
                let (from, to) = (path_of(from), path_of(to));
                // A path that leads nowhere is taken for a store's name: another error.
                self.model.leads_to(from)?;
                let command = self.command("attach", &[&self.at(from), &self.at(to)]);
                (command, Box::new(move |model| model.bind(from, to)))
            }
            Op::Detach(at, how) => {
                let path = path_of(at);
                let (how, option) = match how {
                    0 | 1 => (UmountKind::Plain, None),
                    4 if self.model.is_simple(path) => (UmountKind::Force, Some("--force")),
                    _ => (UmountKind::Lazy, Some("--lazy")),
                };
                let mut command = self.command("detach", &[&self.at(path)]);
                command.args(option);
                (command, Box::new(move |model| model.detach(path, how)))
            }
            Op::Move(from, to) => {
                let (from, to) = (path_of(from), path_of(to));
                let command = self.command("move", &[&self.at(from), &self.at(to)]);
                (command, Box::new(move |model| model.move_to(from, to)))
            }
            _ => return None,
        })
    }

    fn step(&mut self, op: &Op) {
        self.step += 1;
        match op {
            Op::Attach(..) | Op::Bind(..) | Op::Detach(..) | Op::Move(..) => {
                let Some((command, change)) = self.verb(op) else { return };
                let ends = change(&mut self.model);
                ended(&run(command), ends);
            }
            Op::Both(a, b) => self.both(a, b),
            Op::Open(at) => self.hold(path_of(at), MARK),
            Op::OpenDir(at) => self.hold(path_of(at), ""),
            Op::Close(at) if !self.open.is_empty() => {
                let (file, life) = self.open.swap_remove(at.index(self.open.len()));
                drop(file);
                self.model.close(life);
            }
            Op::Sit(at) => {
                let path = path_of(at);
                if self.model.leads_to(path).is_some() && self.sitting.len() < 3 {
                    let mut command = Command::new("sleep");
                    command.arg("1000").current_dir(self.at(path)).stdin(Stdio::null());
                    self.sitting.push(command.spawn().unwrap());
                }
            }
            Op::Mkdir(at) => {
                let path = path_of(at);
                if let Some(dir) = self.model.mkdir(path) {
                    fs::create_dir(self.at(path)).unwrap();
                    fs::write(self.at(path).join(MARK), mark(dir)).unwrap();
                }
            }
            Op::Rmdir(at) => {
                let path = path_of(at);
                match self.model.rmdir(path) {
                    None => {}
                    Some(Ends::Refused) => is_busy(fs::remove_dir(self.at(path))),
                    Some(Ends::Well) => fs::remove_dir_all(self.at(path)).unwrap(),
                }
            }
            Op::Rename(from, to) => {
                let (from, to) = (path_of(from), path_of(to));
                let renamed = |world: &Self| fs::rename(world.at(from), world.at(to));
                match self.model.rename(from, to) {
                    None => {}
                    Some(Ends::Refused) => is_busy(renamed(self)),
                    Some(Ends::Well) => renamed(self).unwrap(),
                }
            }
            Op::Clone if !self.is_cloned => {
                self.run("clone", &[&self.rig.mnt, &self.second]).ok();
                (self.is_cloned, self.model.was_cloned) = (true, true);
            }
            Op::LeaveClone if self.is_cloned => {
                self.run("umount", &[&self.second]).ok();
                self.is_cloned = false;
            }
            _ => return,
        }
        self.check(op);
    }

    fn hold(&mut self, path: &str, name: &str) {
        if let Some(life) = self.model.open(path) {
            let file = File::open(self.at(path).join(name));
            self.open.push((file.unwrap_or_else(|error| panic!("{path}: {error}")), life));
        }
    }

    /// Two callers at once: as if one had come after the other, or as if a caller that reports a
    /// failure had never come.
    fn both(&mut self, a: &Op, b: &Op) {
        let (Some((mut first, a)), Some((mut second, b))) = (self.verb(a), self.verb(b)) else { return };
        let pipes = |command: &mut Command| {
            let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
            child.unwrap()
        };
        let (first, second) = (pipes(&mut first), pipes(&mut second));
        let (first, second) = (first.wait_with_output().unwrap(), second.wait_with_output().unwrap());
        let (went_a, went_b) = (first.status.success(), second.status.success());
        let mut after = Vec::new();
        let orders: [&[(&Change, bool)]; 4] =
            [&[(&a, went_a), (&b, went_b)], &[(&b, went_b), (&a, went_a)], &[(&a, went_a)], &[(&b, went_b)]];
        for (n, order) in orders.into_iter().enumerate() {
            let is_alone_refused = match n {
                2 => went_b,
                3 => went_a,
                _ => false,
            };
            let mut model = self.model.clone();
            let agrees = order.iter().all(|(change, went)| (change(&mut model) == Ends::Well) == *went);
            if agrees && !is_alone_refused {
                after.push(model);
            }
        }
        if !went_a && !went_b {
            after.push(self.model.clone());
        }
        assert!(!after.is_empty(), "in no order: {first:?} and {second:?}");
        let is_seen = |model: &&Model| {
            PATHS.iter().all(|path| read_mark(&self.at(path).join(MARK)) == model.leads_to(path).map(mark))
        };
        let found = after.iter().find(is_seen).cloned();
        self.model =
            found.unwrap_or_else(|| panic!("nothing that is seen follows: {first:?} and {second:?}"));
    }

    fn check(&mut self, op: &Op) {
        let mountpoints = [Some(self.rig.mnt.clone()), self.is_cloned.then(|| self.second.clone())];
        for mountpoint in mountpoints.into_iter().flatten() {
            let others = other_process(&mountpoint);
            for (path, theirs) in PATHS.iter().zip(others) {
                let wanted = self.model.leads_to(path).map(mark);
                let ours = read_mark(&mountpoint.join(path).join(MARK));
                let shown = mountpoint.join(path);
                assert_eq!(ours, wanted, "{} after {op:?}, by this process", shown.display());
                assert_eq!(theirs, wanted, "{} after {op:?}, by another process", shown.display());
                if mountpoint == self.rig.mnt {
                    let inside = self.inside.as_mut().unwrap().mark(path);
                    assert_eq!(inside, wanted, "{path} after {op:?}, by a process inside");
                }
            }
        }
        self.check_writes(op);
        self.check_status(op);
    }

    /// Data written through a path rests in the store that it leads to.
    fn check_writes(&self, op: &Op) {
        let name = format!("w{}", self.step);
        let paths: Vec<(&&str, Dir)> =
            PATHS.iter().filter_map(|path| Some((path, self.model.leads_to(path)?))).collect();
        for (path, dir) in &paths {
            fs::write(self.at(path).join(&name), mark(*dir)).unwrap();
        }
        self.run("sync", &[&self.rig.mnt]).ok();
        for (path, dir) in &paths {
            let names = self.model.names_of(*dir);
            let stored = names.iter().fold(self.store(dir.0), |path, name| path.join(name)).join(&name);
            let content = fs::read_to_string(&stored).unwrap_or_else(|error| error.to_string());
            assert_eq!(content, mark(*dir), "{path} after {op:?}: {}", stored.display());
        }
        // The next step finds the directories as small as they were.
        for (path, _) in &paths {
            let _gone_with_another_path = fs::remove_file(self.at(path).join(&name));
        }
    }

    fn check_status(&self, op: &Op) {
        let wanted = self.model.volumes();
        let seen = || -> BTreeMap<usize, (String, String)> {
            let status = self.rig.status();
            let text = |volume: &serde_json::Value, key: &str| volume[key].as_str().unwrap_or("").to_owned();
            let volumes =
                status["volumes"].as_array().unwrap().iter().filter(|v| !v["attached_to"].is_null());
            let number = |source: String| source.chars().last().unwrap().to_digit(10).unwrap() as usize;
            volumes.map(|v| (number(text(v, "source")), (text(v, "state"), text(v, "mountpoint")))).collect()
        };
        let state = |is_seen: bool| if is_seen { "active" } else { "detached" };
        // The kernel reports a close a little after close(2).
        if matches!(op, Op::Close(_)) {
            eventually("what was closed last has ended", || seen().keys().eq(wanted.keys()));
        }
        let now = seen();
        let states: BTreeMap<usize, &str> = now.iter().map(|(&n, (state, _))| (n, &**state)).collect();
        let expected: BTreeMap<usize, &str> =
            wanted.iter().map(|(&n, &is_seen)| (n, state(is_seen))).collect();
        assert_eq!(states, expected, "status after {op:?}: {now:?}");
        for (store, (_, mountpoint)) in now.iter().filter(|(store, _)| wanted[*store]) {
            let path = Path::new(mountpoint);
            let inside =
                path.strip_prefix(&self.rig.mnt).or_else(|_| path.strip_prefix(&self.second)).unwrap();
            // In deeper places than those that are checked, it may be in none of them.
            let path = inside.to_str().unwrap();
            if PATHS.contains(&path) {
                // As in the kernel's table of mounts: also where something that is attached above
                // hides it.
                let is_there = self.model.is_at(*store, path) || self.model.is_hidden(path);
                assert!(is_there, "status says that {store} is at {path} after {op:?}");
            }
        }
    }

    fn end(mut self) {
        self.open.clear();
        for mut child in self.sitting.drain(..) {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        self.inside = None;
        if self.is_cloned {
            self.run("umount", &[&self.second]).ok();
        }
        self.rig.verb("umount", &["--lazy"]).ok();
        assert_eq!(self.daemon.take().unwrap().end(), Some(0));
        self.rig.is_quiet();
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.sitting {
            let _already_gone = child.kill();
            let _reaped = child.wait();
        }
    }
}

type Change = Box<dyn Fn(&mut Model) -> Ends>;

#[track_caller]
fn ended(out: &Out, ends: Ends) {
    let wanted = if ends == Ends::Well { out.code == Some(0) } else { matches!(out.code, Some(1 | 2)) };
    assert!(wanted, "not {ends:?}: {out:?}");
}

#[track_caller]
fn is_busy(result: std::io::Result<()>) {
    assert_eq!(result.unwrap_err().kind(), ErrorKind::ResourceBusy);
}

/// The look-up by a process that is started for it.
fn other_process(mountpoint: &Path) -> Vec<Option<String>> {
    const SCRIPT: &str = r#"for path do
        if read -r mark 2>/dev/null < "$path" || [ -n "$mark" ]; then echo "$mark"; else echo none; fi
        mark=
    done"#;
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT, "sh"]).args(PATHS.map(|path| mountpoint.join(path).join(MARK)));
    let out = run(command).ok();
    let marks: Vec<_> = out.stdout.lines().map(|line| (line != "none").then(|| line.to_owned())).collect();
    assert_eq!(marks.len(), PATHS.len(), "{out:?}");
    marks
}

fn config() -> ProptestConfig {
    let cases = std::env::var("WATERTIGHT_PLACES_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(8);
    ProptestConfig { cases, max_shrink_iters: 200, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_path_leads_where_the_verbs_say(ops in prop::collection::vec(op(), 4..28)) {
        if let Some(mut world) = World::new() {
            ops.iter().for_each(|op| world.step(op));
            world.end();
        }
    }
}
