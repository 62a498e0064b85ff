//! Second mountpoints, each with a clone of the namespace.
//!
//! A clone is made and shown, and ends with its mountpoint. Our `umount` of that mountpoint ends
//! the clone before it returns. A thread that waits for changes of the kernel's mount table as long
//! as there are clones detects any other way; then the clone ends as soon as it is not used.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use fuse::mount::shown_clone;
use rustix::event::{PollFd, PollFlags, poll};

use super::handover::CloneState;
use super::types::{Attachments, CloneMount, Clones, Mountpoint};
use crate::control::api::{
    CloneReply, CloneRequest, CloneStatus, LeaveReply, LeaveRequest, Propagation, UmountKind,
};
use crate::host::holders::Holders;
use crate::host::mount_agent::{self, AgentRequest, call};
use crate::host::mountinfo::{Device, Mount, MountTable};
use crate::host::unmount::Outcome;
use crate::host::{checks, utab};
use crate::term::shown::{Name, Show as _};

impl Clones {
    pub(super) fn mountpoints(&self) -> Vec<Mountpoint> {
        self.0.lock().shown.iter().map(|one| one.mountpoint.clone()).collect()
    }

    /// The clone that a mount shows; none: it shows the first namespace.
    fn shown_by(&self, mount: &Mount) -> Option<Arc<CloneMount>> {
        let name = shown_clone(mount)?;
        self.0.lock().shown.iter().find(|one| one.mountpoint.tree.clone_name() == Some(name)).map(Arc::clone)
    }

    fn drop_one(&self, one: &CloneMount) {
        let mut list = self.0.lock();
        let gone = list.shown.iter().position(|other| std::ptr::eq(&**other, one));
        let gone = gone.map(|at| list.shown.remove(at));
        drop(list);
        // With its line in utab.
        drop(gone);
    }
}

impl Attachments {
    /// The clones, for people.
    #[must_use]
    pub fn clones(&self) -> Vec<CloneStatus> {
        let one = |one: &Arc<CloneMount>| CloneStatus {
            mountpoint: Name::of(&one.mountpoint.path),
            propagation: one.propagation,
        };
        self.clones.0.lock().shown.iter().map(one).collect()
    }

    /// Serves `POST /v1/clone`.
    ///
    /// # Errors
    /// Why not, in words.
    pub fn clone_to(self: &Arc<Self>, request: &CloneRequest) -> Result<CloneReply, String> {
        let words = |problem: crate::term::problem::Problem| problem.to_string();
        if !rustix::process::geteuid().is_root() {
            return Err("only root may show a volume at a second mountpoint".to_owned());
        }
        let Some(first) = self.root.mount_now().filter(|mount| mount.root == Path::new("/")) else {
            let first = self.root.mount.mountpoint.shown();
            return Err(format!(
                "the volume cannot be cloned: its first mountpoint, {first}, is no longer mounted"
            ));
        };
        let target = checks::mountpoint(Path::new(&request.mountpoint)).map_err(words)?;
        for one in self.all() {
            let directory = checks::directory_of(&one.source);
            directory.map_or(Ok(()), |directory| checks::apart(&directory, &target)).map_err(words)?;
        }
        if let Some(directory) = checks::directory_of(&self.root.source) {
            checks::apart(&directory, &target).map_err(words)?;
        }
        let tree = self
            .tree
            .clone_namespace(match request.propagation {
                Propagation::Shared => fuse::Propagation::Shared,
                Propagation::Slave => fuse::Propagation::Slave,
                Propagation::Private => fuse::Propagation::Private,
            })
            .map_err(|error| error.to_string())?;
        let name = tree.clone_name().unwrap_or_default().to_owned();
        let shown = mount_agent::show(&first, &name, &target).map_err(words).and_then(|_| {
            let mount = MountTable::read().at(&target).cloned();
            let ours = mount.filter(|mount| Device::of(mount) == self.root.device());
            ours.ok_or_else(|| format!("{} was unmounted again", target.shown()))
        });
        let mount = match shown {
            Ok(mount) => mount,
            Err(why) => {
                tree.end_clone(false);
                return Err(why);
            }
        };
        self.add_clone(CloneMount {
            _utab: utab::Entry::add(&mount, &self.root.id),
            mountpoint: Mountpoint { tree, path: target.clone() },
            propagation: request.propagation,
        });
        self.watch_clones();
        Ok(CloneReply { mountpoint: Name::of(target) })
    }

    fn add_clone(self: &Arc<Self>, one: CloneMount) {
        let one = Arc::new(one);
        let (all, unused) = (Arc::downgrade(self), Arc::downgrade(&one));
        one.mountpoint.tree.when_unused(move || {
            let Some(all) = all.upgrade() else { return };
            let _change = all.changes.pass();
            if let Some(one) = unused.upgrade() {
                all.end_clone(&one, false);
            }
        });
        self.clones.0.lock().shown.push(one);
    }

    /// Has a thread watch the mount table, if there are clones and none does.
    pub(crate) fn watch_clones(self: &Arc<Self>) {
        {
            let mut list = self.clones.0.lock();
            if list.shown.is_empty() || std::mem::replace(&mut list.is_watched, true) {
                return;
            }
        }
        let all = Arc::downgrade(self);
        let started = std::thread::Builder::new().name("clones".to_owned()).spawn(move || look(&all));
        if let Err(error) = started {
            self.clones.0.lock().is_watched = false;
            tracing::error!(%error, "cannot watch the mount table: unmounts by other programs than `watertight umount` go unnoticed");
        }
    }

    /// Writes down where they are.
    pub(crate) fn hand_over_clones(&self) -> Vec<CloneState> {
        let one = |one: &Arc<CloneMount>| CloneState {
            name: one.mountpoint.tree.clone_name().unwrap_or_default().as_bytes().to_vec(),
            mountpoint: one.mountpoint.path.as_os_str().as_bytes().to_vec(),
            propagation: one.propagation,
        };
        self.clones.0.lock().shown.iter().map(one).collect()
    }

    /// Knows again where those are that the tree has. One whose last user went while no program
    /// served ends then.
    pub(super) fn take_over_clones(self: &Arc<Self>, clones: &[CloneState]) {
        for tree in self.tree.clones() {
            let is_its =
                |one: &&CloneState| tree.clone_name().is_some_and(|name| name.as_bytes() == one.name);
            let Some(one) = clones.iter().find(is_its) else { continue };
            let path = PathBuf::from(OsStr::from_bytes(&one.mountpoint));
            self.add_clone(CloneMount {
                _utab: utab::Entry::resume(&path),
                mountpoint: Mountpoint { tree, path },
                propagation: one.propagation,
            });
        }
    }

    fn end_clone(&self, one: &CloneMount, is_forced: bool) {
        one.mountpoint.tree.end_clone(is_forced);
        self.clones.drop_one(one);
    }

    /// Serves `POST /v1/leave`: unmounts one of several mountpoints. Volumes that are attached only
    /// there end, as with `detach`.
    ///
    /// # Errors
    /// The reason, in words; for `plain` nothing was changed then.
    pub fn leave(&self, request: &LeaveRequest) -> Result<LeaveReply, String> {
        let path = Path::new(&request.mountpoint);
        let table = MountTable::read();
        let Some(mount) = table.at(path).filter(|mount| Device::of(mount) == self.root.device()) else {
            return Err(format!("{} is not a mountpoint of the volume", path.shown()));
        };
        if table.others(mount).next().is_none() {
            return Err(format!(
                "{} is the volume's only mountpoint: call `umount`, which ends the volume",
                path.shown()
            ));
        }
        let clone = self.clones.shown_by(mount);
        let words = |problem: crate::term::problem::Problem| problem.to_string();
        let mut held = None;
        if request.how != UmountKind::Force {
            self.sync_all().map_err(|error| {
                format!("{} stays mounted, its data could not be written: {error}", path.shown())
            })?;
            if let Outcome::Held(holders) = call(AgentRequest::Leave, mount).map_err(words)? {
                if request.how == UmountKind::Plain {
                    return Ok(LeaveReply { is_held: true, holders });
                }
                held = Some(holders);
            }
        }
        if held.is_some() || request.how == UmountKind::Force {
            call(AgentRequest::Detach, mount).map_err(words)?;
        }
        let is_forced = request.how == UmountKind::Force;
        // A bind mount may show it still.
        let is_shown = shows(&MountTable::read(), self.root.device(), shown_clone(mount));
        match &clone {
            _ if is_shown => {}
            Some(clone) => self.end_clone(clone, is_forced),
            None => self.tree.end_clone(is_forced),
        }
        Ok(LeaveReply { is_held: held.is_some(), holders: held.unwrap_or_default() })
    }

    /// Unmounts the clones that are not held; returns the holders of the others.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn leave_all(&self) -> Result<Holders, String> {
        let mut all = Holders::default();
        for CloneStatus { mountpoint, .. } in self.clones() {
            // Its own mountpoint may be gone, where a bind mount shows it still.
            let is_ours = |mount: &Mount| Device::of(mount) == self.root.device();
            if !MountTable::read().at(mountpoint.as_path()).is_some_and(is_ours) {
                continue;
            }
            let reply = self.leave(&LeaveRequest {
                mountpoint: mountpoint.as_str().to_owned(),
                how: UmountKind::Plain,
            })?;
            all.found.extend(reply.holders.found);
            all.unseen += reply.holders.unseen;
        }
        Ok(all)
    }
}

/// Whether a mount of the file system `device` shows this clone; none: the first namespace.
fn shows(table: &MountTable, device: Device, clone: Option<&OsStr>) -> bool {
    table.of_device(device).any(|mount| shown_clone(mount) == clone)
}

/// Waits for changes of the kernel's mount table, as long as there are clones.
fn look(all: &Weak<Attachments>) {
    let table = match File::open("/proc/self/mountinfo") {
        Ok(table) => table,
        Err(error) => {
            tracing::error!(%error, "the kernel's mount table cannot be watched");
            return;
        }
    };
    loop {
        let Some(attachments) = all.upgrade() else { return };
        // A notification that the kernel holds up while requests wait would hold up execve(2).
        let change = attachments.changes.pass();
        let now = MountTable::read();
        {
            let mut list = attachments.clones.0.lock();
            if list.shown.is_empty() {
                list.is_watched = false;
                return;
            }
        }
        let shown = attachments.clones.0.lock().shown.clone();
        let device = attachments.root.device();
        let gone = |one: &&Arc<CloneMount>| {
            let tree = &one.mountpoint.tree;
            !tree.is_released() && !shows(&now, device, tree.clone_name())
        };
        shown.iter().filter(gone).for_each(|one| one.mountpoint.tree.release());
        drop(change);
        drop((shown, attachments));
        let mut changed = [PollFd::new(&table, PollFlags::PRI)];
        if let Err(error) = poll(&mut changed, None)
            && error != rustix::io::Errno::INTR
        {
            tracing::error!(%error, "the kernel's mount table cannot be watched");
            return;
        }
    }
}
