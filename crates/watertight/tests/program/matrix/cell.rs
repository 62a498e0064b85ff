//! A volume in a state.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::thread::{self, JoinHandle};

use serde_json::Value;
use watertight::control::api::Synced;
use watertight::control::client::CallError;

use crate::namespace::Namespace;
use crate::rig::{Daemon, Out, Rig, connect, eventually, run};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Idle,
    Dirty,
    Held,
    /// A sync waits at the limit of its cgroup.
    Throttled,
    /// A sync waits for a store that does not answer.
    Stalled,
}

/// In the order of the table.
pub(super) const STATES: [State; 5] =
    [State::Idle, State::Dirty, State::Held, State::Throttled, State::Stalled];

/// At the limit of `throttled` this takes longer than any test lasts.
const MUCH: usize = 256 << 10;

/// How often a state is tried to be had.
const TRIES: usize = 20;

impl State {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Dirty => "dirty",
            Self::Held => "held open",
            Self::Throttled => "throttled",
            Self::Stalled => "stalled store",
        }
    }
}

/// The parameters of a cell.
#[derive(Debug, Clone, Copy)]
pub(super) struct Setting {
    pub(super) state: State,
    pub(super) kind: &'static str,
    /// Where the helpers are installed.
    pub(super) in_namespace: bool,
}

/// A mounted volume.
pub(super) struct Cell {
    pub(super) rig: Rig,
    pub(super) daemon: Daemon,
    pub(super) state: State,
    namespace: Option<Namespace>,
    held: Option<File>,
    /// The data that was written to its file `f`.
    data: Vec<u8>,
    /// How much of that was not on the store when the state was reached.
    dirty: u64,
    /// The client that waits in a sync.
    waiting: Option<JoinHandle<Result<Synced, CallError>>>,
}

impl Setting {
    /// A volume that no deadline ends.
    pub(super) fn cell(self) -> Option<Cell> {
        self.cell_with("drain_timeout=1h")
    }

    /// None where there is no namespace to be had.
    pub(super) fn cell_with(self, options: &str) -> Option<Cell> {
        for _ in 0..TRIES {
            let mut cell = self.mounted(options)?;
            if !matches!(self.state, State::Throttled | State::Stalled) {
                return Some(cell);
            }
            cell.start_sync();
            if cell.dirty > 0 && cell.is_waited_for() {
                return Some(cell);
            }
            // Where the kernel does not name the caller of a sync, a sync of another program of the
            // host has every limit ignored.
            assert_ne!(cell.rig.volume()["syncfs_callers"], true, "{:?}", self.state);
            cell.verb("umount", &[]).ok();
            cell.has_ended_well();
        }
        panic!("other programs' syncs have it written each time");
    }

    /// A volume in this state, but its store stalls only at a request of the unmount.
    pub(super) fn cell_that_nobody_syncs(self) -> Option<Cell> {
        self.mounted("drain_timeout=1h")
    }

    fn mounted(self, options: &str) -> Option<Cell> {
        let mut rig = Rig::mounting()?;
        let namespace = if self.in_namespace { Some(Namespace::new(&rig)?) } else { None };
        let limit = if self.state == State::Throttled { ",limit=/:wbps=1" } else { "" };
        let fault = if self.state == State::Stalled { "fault:write:hang," } else { "" };
        let source = format!("{fault}dir:{}", rig.store.display());
        let mut command = rig.command(&["mount", &source]);
        command.arg(&rig.mnt);
        command.args(["-o", &format!("type={},dirty_after=1h,stall_after=50ms,{options}{limit}", self.kind)]);
        let command =
            namespace.as_ref().map_or_else(|| None, |inside| Some(inside.enter(&command))).unwrap_or(command);
        let daemon = rig.start(command);
        let mut cell = Cell {
            rig,
            daemon,
            state: self.state,
            namespace,
            held: None,
            data: Vec::new(),
            dirty: 0,
            waiting: None,
        };
        if self.state != State::Idle {
            cell.data = vec![b'w'; if self.state == State::Throttled { MUCH } else { 16 }];
            let mut file = File::create(cell.path("f")).unwrap();
            file.write_all(&cell.data).unwrap();
            cell.held = (self.state == State::Held).then_some(file);
            cell.dirty = cell.data.len() as u64;
        }
        Some(cell)
    }
}

impl Cell {
    /// Starts a sync that waits, and returns when that is visible. By the control socket: it holds
    /// nothing of the mount.
    fn start_sync(&mut self) {
        let client = connect(&self.rig.socket()).unwrap();
        self.waiting = Some(thread::spawn(move || client.sync()));
        if self.state == State::Throttled {
            eventually("it waits for the limit", || self.waits_for_a_limit() || !self.is_waited_for());
        } else {
            self.rig.is_stalled_in("write");
        }
        self.dirty = self.rig.volume()["dirty_bytes"].as_u64().unwrap();
    }

    fn waits_for_a_limit(&self) -> bool {
        let told = self.verb("events", &["--once", "--json"]).ok().stdout;
        let mut events = told.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        events.any(|event| event["kind"] == "limit" && event["edge"] == "begins")
    }

    /// Whether that sync waits still.
    pub(super) fn is_waited_for(&self) -> bool {
        self.waiting.as_ref().is_some_and(|waiting| !waiting.is_finished())
    }

    /// The waiting client learns that everything is durable, or is not.
    fn who_waited_learns(&mut self, is_durable: bool) {
        let Some(waiting) = self.waiting.take() else { return };
        eventually("the sync ends", || waiting.is_finished());
        let told = waiting.join().unwrap();
        // A client whose process has left meanwhile asks how the volume ended.
        let is_gone = matches!(told, Err(CallError::Gone));
        assert!(is_gone || told.is_ok() == is_durable, "{:?}: {told:?}", self.state);
    }

    /// Whether the volume goes on: its mount is held.
    pub(super) fn is_used_still(&self) -> bool {
        let status = self.rig.status();
        let mut states = status["volumes"].as_array().unwrap().iter().map(|volume| &volume["state"]);
        states.any(|state| ["active", "detached", "draining", "stalled"].iter().any(|one| state == one))
    }

    /// A file of the volume, for this process.
    pub(super) fn path(&self, name: &str) -> PathBuf {
        let path = self.rig.mnt.join(name);
        self.namespace.as_ref().map_or_else(|| path.clone(), |namespace| namespace.path(&path))
    }

    /// A command that is run where the volume is mounted.
    pub(super) fn inside(&self, command: Command) -> Command {
        match &self.namespace {
            Some(namespace) => namespace.enter(&command),
            None => command,
        }
    }

    /// Runs `watertight VERB MORE… MOUNTPOINT` there.
    pub(super) fn verb(&self, verb: &str, more: &[&str]) -> Out {
        let mut command = self.rig.command(&[verb]);
        command.args(more).arg(&self.rig.mnt);
        run(self.inside(command))
    }

    pub(super) fn is_mounted(&self) -> bool {
        self.namespace
            .as_ref()
            .map_or_else(|| self.rig.is_mounted(), |namespace| namespace.is_mounted(&self.rig.mnt))
    }

    pub(super) fn is_held(&self) -> bool {
        self.held.is_some()
    }

    /// Its holder can go on.
    pub(super) fn write_more(&mut self) {
        self.held.as_mut().expect("it is held").write_all(b" and more").unwrap();
        self.data.extend(b" and more");
    }

    /// Its holder lets go.
    pub(super) fn let_go(&mut self) {
        drop(self.held.take().expect("it is held"));
    }

    /// Everything that was written is on the store.
    pub(super) fn is_on_the_store(&self) {
        let stored = self.rig.stored("f");
        if self.state == State::Idle {
            assert_eq!(stored, None);
        } else {
            let bytes = stored.as_ref().map(Vec::len);
            assert!(stored.as_deref() == Some(&self.data[..]), "{:?}: {bytes:?} bytes are there", self.state);
        }
    }

    /// The volume has ended with everything written, and its process leaves.
    pub(super) fn has_ended_well(&mut self) {
        self.verb("wait", &[]).ok().says("free");
        self.who_waited_learns(true);
        self.is_on_the_store();
        assert!(!self.is_mounted());
        assert_eq!(self.daemon.end(), Some(0), "{:?}: {}", self.state, self.daemon.stderr());
    }

    /// The volume has ended, and the lost data is named, in the output `said` and by `wait`.
    pub(super) fn has_lost(&mut self, said: Option<&Out>) {
        let lost = format!("f: {} bytes", self.dirty);
        let waited = self.verb("wait", &[]).ends(1, &lost);
        for out in said.into_iter().chain([&waited]) {
            assert!(out.stderr.contains(&lost), "{:?}: {out:?}", self.state);
        }
        eventually("the path is gone", || !self.is_mounted());
        assert_eq!(self.daemon.end(), Some(1), "{}", self.daemon.stderr());
        self.who_waited_learns(false);
    }

    /// Its process was killed: a client that waits in a sync gets an error.
    pub(super) fn has_died(&mut self) {
        self.who_waited_learns(false);
    }

    /// The store is free at once: its directory can be renamed and mounted again, and the written
    /// data is there.
    pub(super) fn store_is_free(&mut self) {
        let elsewhere = self.rig.root.join("renamed");
        fs::rename(&self.rig.store, &elsewhere).unwrap();
        let mut command = self.rig.command(&["mount", &format!("dir:{}", elsewhere.display())]);
        command.arg(&self.rig.mnt);
        let command = self.inside(command);
        let again = self.rig.start(command);
        assert!(self.is_mounted());
        let names = fs::read_dir(self.path("")).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.count(), usize::from(self.state != State::Idle));
        self.verb("umount", &[]).ok();
        assert_eq!(again.end(), Some(0));
        fs::rename(&elsewhere, &self.rig.store).unwrap();
    }
}
