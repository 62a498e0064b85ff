//! Every way to unmount, in every state of a volume: the table of README.md, a cell each.

use std::fs::File;
use std::io::Write as _;
use std::process::Command;
use std::thread;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::rig::{Daemon, Out, Rig, eventually, has, no_copies, run, umount2};

const DATA: &[u8] = b"what was written";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Idle,
    Dirty,
    Held,
    Throttled,
    Stalled,
}

const STATES: [State; 5] = [State::Idle, State::Dirty, State::Held, State::Throttled, State::Stalled];

/// A volume in a state.
struct Cell {
    rig: Rig,
    daemon: Daemon,
    state: State,
    held: Option<File>,
}

impl Cell {
    fn new(state: State, kind: &str) -> Option<Self> {
        let mut rig = Rig::mounting()?;
        let options = format!("type={kind},dirty_after=1h,stall_after=50ms");
        let daemon = match state {
            State::Stalled => rig.mount_faulty("write:hang", &format!("{options},drain_timeout=300ms")),
            State::Throttled => rig.mount(&format!("{options},limit=/:wbps=1K")),
            _ => rig.mount(&options),
        };
        let mut held = None;
        if state != State::Idle {
            let mut file = File::create(rig.mnt.join("f")).unwrap();
            file.write_all(DATA).unwrap();
            held = (state == State::Held).then_some(file);
        }
        Some(Self { rig, daemon, state, held })
    }

    /// The data is on the store, and the process gone; `wait` says so too.
    fn is_complete(&self) {
        if self.state != State::Idle {
            assert_eq!(self.rig.stored("f").as_deref(), Some(DATA), "{:?}", self.state);
        }
        self.rig.verb("wait", &[]).ok().says("free");
        assert!(!self.rig.is_mounted());
        assert_eq!(self.daemon.end(), Some(0), "{:?}", self.state);
    }

    /// The volume ended, and what was not written is named, by whoever `said` it and by `wait`.
    fn is_lost(&self, said: Option<&Out>) {
        let lost = format!("f: {} bytes", DATA.len());
        for out in said.into_iter().chain([&self.rig.verb("wait", &[]).ends(1, &lost)]) {
            assert!(out.stderr.contains(&lost), "{:?}: {out:?}", self.state);
        }
        assert!(!self.rig.is_mounted());
        assert_eq!(self.daemon.end(), Some(1));
    }

    /// Lets go of the file; the data follows.
    fn let_go(&mut self) {
        drop(self.held.take());
        self.is_complete();
    }

    /// Runs a verb over a stalled store: it goes on until somebody forces the volume away.
    fn waits_for_the_store(&self, verb: &[&str]) {
        let mut command = self.rig.command(verb);
        command.arg(&self.rig.mnt);
        let waiting = thread::spawn(move || run(command));
        eventually("it is stalled", || self.rig.volume()["state"] == "stalled");
        assert!(!waiting.is_finished(), "it must not claim what is not so");
        let forced = self.rig.verb("umount", &["--force"]).ends(1, "not written");
        assert_ne!(waiting.join().unwrap().code, Some(0));
        self.is_lost(Some(&forced));
    }
}

fn each(kinds: &[&str], check: impl Fn(Cell, &str)) {
    for kind in kinds {
        for state in STATES {
            let Some(cell) = Cell::new(state, kind) else { return };
            // Where no loop device is to be had, `auto` is plain fuse.
            let kind = if cell.rig.volume()["mount_type"] == "fuseblk" { "fuseblk" } else { "fuse" };
            check(cell, kind);
        }
    }
}

#[test]
fn umount_in_every_state() {
    each(&["auto"], |mut cell, _| match cell.state {
        State::Held => {
            cell.rig.verb("umount", &[]).ends(1, "is busy (EBUSY)");
            assert!(cell.rig.is_mounted());
            drop(cell.held.take());
            cell.rig.verb("umount", &[]).ok();
            cell.is_complete();
        }
        State::Stalled => cell.waits_for_the_store(&["umount"]),
        _ => {
            cell.rig.verb("umount", &[]).ok();
            cell.is_complete();
        }
    });
}

#[test]
fn umount_lazy_in_every_state() {
    each(&["auto"], |mut cell, _| match cell.state {
        State::Held => {
            cell.rig.verb("umount", &["--lazy"]).ok().says("its data follows");
            assert!(!cell.rig.is_mounted());
            cell.let_go();
        }
        State::Stalled => cell.waits_for_the_store(&["umount", "--lazy"]),
        _ => {
            cell.rig.verb("umount", &["--lazy"]).ok();
            cell.is_complete();
        }
    });
}

#[test]
fn umount_force_in_every_state() {
    each(&["auto"], |cell, _| {
        let out = cell.rig.verb("umount", &["--force"]);
        match cell.state {
            State::Idle => {
                out.ok();
                cell.is_complete();
            }
            _ => cell.is_lost(Some(&out.ends(1, "not written"))),
        }
    });
}

#[test]
fn a_raw_umount2_in_every_state() {
    each(&["auto", "fuse"], |mut cell, kind| match cell.state {
        State::Held => {
            assert_eq!(rustix::mount::unmount(&cell.rig.mnt, UnmountFlags::empty()), Err(Errno::BUSY));
            drop(cell.held.take());
            umount2(&cell.rig.mnt, UnmountFlags::empty());
            cell.rig.verb("wait", &[]).ok();
            cell.is_complete();
        }
        State::Stalled => {
            umount2(&cell.rig.mnt, UnmountFlags::empty());
            cell.is_lost(None);
        }
        state => {
            umount2(&cell.rig.mnt, UnmountFlags::empty());
            if kind == "fuseblk" && state != State::Idle {
                assert_eq!(cell.rig.stored("f").as_deref(), Some(DATA), "the kernel waits");
            }
            cell.rig.verb("wait", &[]).ok();
            cell.is_complete();
        }
    });
}

/// `fusermount3 -u`; says whether the mount was let go.
fn fusermount(cell: &Cell) -> bool {
    let mut command = Command::new("fusermount3");
    command.arg("-u").arg(&cell.rig.mnt);
    let _no_copies = no_copies();
    run(command).code == Some(0)
}

#[test]
fn fusermount3_in_every_state() {
    if !has("fusermount3") {
        return;
    }
    each(&["auto", "fuse"], |mut cell, kind| {
        if cell.state == State::Held {
            assert!(!fusermount(&cell));
            assert!(cell.rig.is_mounted());
            drop(cell.held.take());
        }
        // As with umount2: somebody who looks through /proc may hold the mount for a moment.
        eventually("fusermount3 does not say EBUSY", || fusermount(&cell));
        match cell.state {
            State::Stalled => cell.is_lost(None),
            state => {
                if kind == "fuseblk" && state != State::Idle {
                    assert_eq!(cell.rig.stored("f").as_deref(), Some(DATA), "the kernel waits");
                }
                cell.rig.verb("wait", &[]).ok();
                cell.is_complete();
            }
        }
    });
}

#[test]
fn a_raw_umount2_with_mnt_detach_in_every_state() {
    each(&["auto", "fuse"], |mut cell, kind| {
        umount2(&cell.rig.mnt, UnmountFlags::DETACH);
        assert!(!cell.rig.is_mounted());
        match cell.state {
            State::Held => {
                assert_eq!(cell.rig.volume()["state"], "detached");
                drop(cell.held.take());
                cell.rig.verb("wait", &[]).ok();
                cell.is_complete();
            }
            State::Stalled => cell.is_lost(None),
            state => {
                if kind == "fuseblk" && state != State::Idle {
                    assert_eq!(cell.rig.stored("f").as_deref(), Some(DATA), "the kernel waits");
                }
                cell.rig.verb("wait", &[]).ok();
                cell.is_complete();
            }
        }
    });
}

#[test]
fn a_killed_mount_process_in_every_state() {
    each(&["auto"], |mut cell, _| {
        cell.daemon.kill();
        cell.rig.verb("wait", &[]).ends(1, "");
        drop(cell.held.take());
        cell.rig.verb("umount", &[]).ends(1, "died");
        assert!(!cell.rig.is_mounted());
        // The store is free: it can be mounted again.
        let again = cell.rig.mount("");
        cell.rig.verb("umount", &[]).ok();
        assert_eq!(again.end(), Some(0));
    });
}
