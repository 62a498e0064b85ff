//! A program's use of the tree of a mountpoint.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use mounts::Propagation;
use volume::{Caller, Cancel, Volume};

use crate::admission;
use crate::connection::Connection;
use crate::handover::SessionHandover;
use crate::tree::wire::NodeTag;
use crate::tree::{Attached, AttachmentInfo, Detach, NamespaceView, OnEnd, ResumedVolume, TreeError};

/// The volumes that are attached to a session's mountpoint, to be listed and changed from any
/// thread but those that serve requests: changes wait for the kernel, and for volumes.
#[derive(Debug, Clone)]
pub struct TreeHandle {
    shared: Arc<Connection>,
    view: Arc<NamespaceView>,
}

/// Paths begin at the mountpoint, have no `..`, and no symbolic link on the way.
impl TreeHandle {
    /// The tree of the session's own mountpoint.
    pub(crate) fn first(shared: Arc<Connection>) -> Self {
        let view = Arc::clone(shared.tree.first());
        Self { shared, view }
    }

    /// Clones the namespace, with all that is attached. The clone is to be shown at a mountpoint
    /// ([`mount::show`](fn@crate::mount::show)). It ends when its last user is gone
    /// ([`release`](Self::release)), or with [`end_clone`](Self::end_clone).
    ///
    /// `Shared`: each sees what is attached or detached in the other; `Slave`: the clone sees what
    /// is, in this one; otherwise neither.
    ///
    /// # Errors
    /// [`TreeError::NoTags`], [`TreeError::Tree`]; the namespace is as it was.
    pub fn clone_namespace(&self, propagation: Propagation) -> Result<Self, TreeError> {
        let view = self.shared.tree.clone_view(&self.view, propagation)?;
        Ok(Self { shared: Arc::clone(&self.shared), view })
    }

    /// The clones of the mountpoint's namespace that have not ended.
    #[must_use]
    pub fn clones(&self) -> Vec<Self> {
        let one = |view| Self { shared: Arc::clone(&self.shared), view };
        self.shared.tree.clones().into_iter().map(one).collect()
    }

    /// The clone's name in the file system's root directory, where only root finds it; `None` for
    /// the first.
    #[must_use]
    pub fn clone_name(&self) -> Option<&OsStr> {
        (!self.view.name.is_empty()).then_some(&*self.view.name)
    }

    /// To be called when no mountpoint leads to the clone any more: it ends when its last user is
    /// gone, in any mount namespace.
    pub fn release(&self) {
        self.shared.tree.release(&self.view);
    }

    /// Whether [`release`](Self::release) was called.
    #[must_use]
    pub fn is_released(&self) -> bool {
        !self.view.is_shown()
    }

    /// Whether the mountpoint's own volume is known to stall: a path below it cannot be looked up then.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.shared.tree.root().volume.is_known_to_stall()
    }

    /// Whether a clone has ended, and with it what was attached there and nowhere else. The first
    /// namespace ends with its session, which reports that itself.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.view.root.is_gone()
    }

    /// `on_unused` is called, once and by a thread of its own, when the clone has no user any more,
    /// in any mount namespace, or had none any more when it was handed over; it has to
    /// [end](Self::end_clone) the clone.
    pub fn when_unused(&self, on_unused: impl FnOnce() + Send + 'static) {
        self.shared.tree.when_unused(&self.view, Box::new(on_unused));
    }

    /// Detaches everything from this namespace. On return, volumes that are attached nowhere else
    /// have ended, unless something of them is open. With `is_forced` their unwritten data is given
    /// up. A clone is no more after that. The first namespace shows its own volume as long as it is
    /// mounted, and nothing can be attached to it.
    pub fn end_clone(&self, is_forced: bool) {
        let abort = |volume| self.fail_requests(volume);
        self.shared.tree.end_clone(&self.view, is_forced, abort);
    }

    /// Makes durable what is dirty in the session's volume and in all that are attached, by the
    /// policy of the cgroup that a process of the host is in. Attached volumes whose stores do not
    /// answer are left out, before they are asked or when it is noticed
    /// ([`apply_stall_quota`](Self::apply_stall_quota)). Their names, as the log has them, are
    /// returned, whichever cgroup has data in them: what is dirty there is not durable.
    ///
    /// # Errors
    /// The first failure, after the others were tried.
    pub fn sync_for(&self, pid: u32) -> volume::Result<Vec<String>> {
        let own = &self.shared.tree.root().volume;
        let cgroup = || own.tenants().path_of(&Caller { pid, ..Caller::default() });
        let synced = self.shared.sync_attached(cgroup, &Cancel::default(), || own.sync_for(pid));
        synced.result.map(|()| synced.skipped.iter().map(|one| one.name()).collect())
    }

    /// Attaches a volume to a directory; a process that looks there sees it when the call returns.
    /// `on_end` is called when the volume has ended, for whatever reason.
    ///
    /// # Errors
    /// The path is none, or leads to no directory; see [`TreeError`]. The volume goes on as it was.
    pub fn attach(
        &self,
        path: &Path,
        volume: &Arc<Volume>,
        is_read_only: bool,
        on_end: OnEnd,
    ) -> Result<Attached, TreeError> {
        self.shared.tree.attach((&self.view, path), volume, is_read_only, on_end)
    }

    /// A volume that was attached and has begun to end, by the log's name for it: it can neither be
    /// used nor handed over.
    #[must_use]
    pub fn ending(&self) -> Option<String> {
        self.shared.tree.ending()
    }

    /// Attaches what the program before had attached, where it was: the volumes that were taken over
    /// beside the session. To be called before the session runs. Returns where each of them is, in
    /// their order.
    ///
    /// # Errors
    /// [`TreeError::BadState`], and those of the namespace.
    pub fn take_over(
        &self,
        session: &SessionHandover,
        volumes: Vec<ResumedVolume>,
    ) -> Result<Vec<Attached>, TreeError> {
        match &session.tree {
            Some(tree) => self.shared.tree.take_over(tree, volumes),
            None if volumes.is_empty() => Ok(Vec::new()),
            None => Err(TreeError::BadState("it has volumes and no tree")),
        }
    }

    /// Shows a directory in a second place; volumes attached below it are not shown there.
    ///
    /// # Errors
    /// As [`attach`](Self::attach).
    pub fn bind(&self, from: &Path, to: &Path) -> Result<(), TreeError> {
        self.shared.tree.bind(&self.view, from, to)
    }

    /// Takes away what is attached at a path. On return no path leads there, for any process; and
    /// its volume has ended, if this was its last place and nothing of it is open (where something
    /// is, [`Detach::Sync`] is refused).
    ///
    /// # Errors
    /// [`TreeError::NotAttached`], `EBUSY` ([`mounts::Error::Busy`]), and those of the path.
    pub fn detach(&self, path: &Path, how: Detach) -> Result<(), TreeError> {
        let abort = |volume| self.fail_requests(volume);
        self.shared.tree.detach((&self.view, path), how, abort)
    }

    /// The volume that is attached uppermost at a path, to be detached later, wherever the path
    /// leads then.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    pub fn found_at(&self, path: &Path) -> Result<Attached, TreeError> {
        self.shared.tree.found_at((&self.view, path))
    }

    /// Attaches a volume of this session to one more directory, also one that was detached and that
    /// open files keep: these files, the cache and recorded failures go on. Every process that
    /// looks there sees it when the call returns.
    ///
    /// # Errors
    /// As [`attach`](Self::attach); [`mounts::Error::AlreadyThere`] where the path leads to it,
    /// [`mounts::Error::Ended`] where it has ended, is ending, or was given up.
    pub fn attach_again(&self, path: &Path, attached: &Attached) -> Result<Attached, TreeError> {
        self.shared.tree.attach_again((&self.view, path), attached)
    }

    /// [`detach_attached`](Self::detach_attached) by force.
    ///
    /// # Errors
    /// As [`detach_attached`](Self::detach_attached).
    pub fn detach_by_force(&self, attached: &Attached) -> Result<(), TreeError> {
        self.detach_attached(attached, Detach::Force)
    }

    /// [`detach`](Self::detach) of what was attached or found, wherever it is now: no store is
    /// asked for the way there.
    ///
    /// # Errors
    /// [`TreeError::NotAttached`] where it has left.
    pub fn detach_attached(&self, attached: &Attached, how: Detach) -> Result<(), TreeError> {
        let abort = |volume| self.fail_requests(volume);
        self.shared.tree.detach_attached(attached, how, abort)
    }

    /// Gives up a volume that is in one place at most; also one that is being detached, or that
    /// only open files keep. Callers that wait for it get an error. Waits for nothing: its place is
    /// to be taken away by [`detach_by_force`](Self::detach_by_force). Says whether it is given up.
    pub fn abort(&self, attached: &Attached) -> bool {
        self.shared.tree.abort(attached, |volume| self.fail_requests(volume))
    }

    /// Fails the callers that wait for a volume that was given up; other threads are to read in
    /// place of those that hang.
    fn fail_requests(&self, volume: NodeTag) {
        admission::abort_volume(&self.shared, volume);
    }

    /// Moves what is attached at a path to another directory, with all that is attached below.
    ///
    /// # Errors
    /// As [`detach`](Self::detach) and [`attach`](Self::attach).
    pub fn move_to(&self, from: &Path, to: &Path) -> Result<(), TreeError> {
        self.shared.tree.move_to(&self.view, from, to)
    }

    /// Waits until nothing is open of the volume that is attached at a path, or `until`; says
    /// whether nothing is. The kernel reports a close a little after close(2).
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    pub fn wait_closed(&self, path: &Path, until: Instant) -> Result<bool, TreeError> {
        self.shared.tree.wait_closed((&self.view, path), until)
    }

    /// Whether a volume is still where it was attached, or moved to.
    #[must_use]
    pub fn is_attached(&self, attached: &Attached) -> bool {
        self.shared.tree.is_attached(attached)
    }

    /// Where a volume that was attached is: at its first place in this namespace, or the next one
    /// that is left. None: nowhere here, or a store cannot say.
    #[must_use]
    pub fn place_of(&self, attached: &Attached) -> Option<PathBuf> {
        self.shared.tree.place_of(&self.view, attached)
    }

    /// The number of the volume that is attached uppermost at a path, as [`Attached::volume`] gives
    /// it.
    ///
    /// # Errors
    /// As [`detach`](Self::detach).
    pub fn volume_at(&self, path: &Path) -> Result<u64, TreeError> {
        self.shared.tree.volume_at((&self.view, path))
    }

    /// The present attachments.
    #[must_use]
    pub fn attachments(&self) -> Vec<AttachmentInfo> {
        self.shared.tree.attachments(&self.view)
    }

    /// Holds volumes whose stores do not answer to their share of the threads and entries that
    /// bring requests: for each the first request waits, and of further ones as many as have room;
    /// the rest fail with EIO. Syncs of the mountpoint wait for these volumes no longer. To be
    /// called about once a second, after each volume's [`look`](Volume::look).
    pub fn apply_stall_quota(&self) {
        admission::apply_stall_quota(&self.shared);
    }

    /// Ends everything that is attached, and returns when all of it has ended. The session's own
    /// volume is not touched. Called by the session itself before the handler of DESTROY.
    pub fn end(&self) {
        self.shared.tree.end();
    }
}
