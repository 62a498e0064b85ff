//! The handlers' view of the request in hand.

use std::cell::Cell;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use mounts::ActiveRef;
use rustix::io::Errno;
use sync::atomic::Ordering;
use volume::{Caller, Cancel, CgroupPath, Ctx, HandleId, NodeId, Volume};

use super::once::Once;
use super::target::Target;
use crate::connection::Connection;
use crate::notify::Invalidation;
use crate::protocol::abi::{AttrOut, EntryOut, InHeader, MINOR_WITH_PRUNE};
use crate::protocol::encode::{self, Validity};
use crate::reply::{Reply, Sent};
use crate::tree::wire::{self, NodeTag};
use crate::tree::{AttachedVolume, MountNode, NamespaceView, Open};

/// A handle as the protocol carries it.
pub(super) fn handle_id(fh: u64) -> HandleId {
    HandleId(fh)
}

/// Says that something of an attached volume is open.
#[derive(Debug, Default)]
pub(super) struct OpenPin {
    hold: Option<ActiveRef>,
    is_dir: bool,
}

/// The handlers' view of the request in hand.
pub(crate) struct RequestContext<'a> {
    pub(super) shared: &'a Connection,
    pub(super) header: &'a InHeader,
    pub(super) target: Target<'a>,
    /// Dropped after the request has left its section: that may end the volume.
    pub(super) dropped_pin: &'a Cell<Option<ActiveRef>>,
    pub(super) cancel: &'a Cancel,
    pub(super) before_wait: &'a (dyn Fn() + Sync),
    /// A thread of the volume is to close the file.
    pub(super) without_store: bool,
    /// What must not be executed twice.
    pub(super) once: Once<'a>,
}

impl<'a> RequestContext<'a> {
    pub(super) fn volume(&self) -> &'a Arc<Volume> {
        &self.target.served.volume
    }

    pub(super) fn served(&self) -> &'a Arc<AttachedVolume> {
        self.target.served
    }

    /// The node that the request is about.
    pub(super) fn node(&self) -> NodeId {
        self.target.node
    }

    /// The kernel's number for it, which no node of another volume has.
    pub(super) fn wire_node(&self) -> NodeId {
        store::ObjectId(self.header.nodeid)
    }

    pub(super) fn ctx(&self) -> Ctx<'_> {
        self.ctx_with_umask(0)
    }

    pub(super) fn ctx_with_umask(&self, umask: u32) -> Ctx<'_> {
        let caller = Caller { pid: self.header.pid, uid: self.header.uid, gid: self.header.gid, umask };
        Ctx { caller, cancel: self.cancel, before_wait: self.before_wait }
    }

    /// The cgroup of the caller.
    pub(super) fn cgroup(&self) -> CgroupPath {
        self.volume().tenants().path_of(&self.ctx().caller)
    }

    /// Whether no path leads to the node's mount any more.
    pub(super) fn is_gone(&self) -> bool {
        self.target.mount_node.is_some_and(|mount_node| mount_node.is_gone())
    }

    /// Whether another directory is seen through the same mount: only then a name can move there.
    pub(super) fn is_same_mount(&self, dir: u64) -> bool {
        wire::split(dir).0 == self.target.mount_node.map_or(NodeTag::ROOT, |mount_node| mount_node.tag)
    }

    /// Whether a file is of the request's volume.
    pub(super) fn is_same_volume(&self, file: u64) -> bool {
        wire::split(file).0 == self.target.served.tag
    }

    /// The mount on a directory that was found below the request's node.
    pub(super) fn crossed(&self, node: NodeId) -> Option<Arc<MountNode>> {
        let tree = &self.shared.tree;
        if tree.is_plain() {
            return None;
        }
        tree.crossed(self.target.mount_node.map(|mount_node| &**mount_node), node)
    }

    /// Whether something is attached to the directory of this name.
    pub(super) fn is_covered(&self, dir: NodeId, name: &OsStr) -> bool {
        let (tree, volume) = (&self.shared.tree, self.volume());
        if tree.is_plain() {
            return false;
        }
        let Ok(entry) = volume.lookup(dir, name) else { return false };
        volume.forget(entry.id, 1);
        tree.is_covered(self.target.served.tag, entry.id)
    }
}

/// How long the kernel may remember.
impl RequestContext<'_> {
    /// For how long it may remember a name in the request's directory: not at all where the
    /// directory is seen in a second place. A file is one for the kernel wherever it is seen, a
    /// directory is not.
    pub(super) fn valid(&self, is_dir: bool) -> Validity {
        let mut valid = self.shared.valid;
        if let Some(most) = self.target.served.may_be_kept {
            valid = Validity { entry: valid.entry.min(most), attr: valid.attr.min(most) };
        }
        if !self.is_shared() {
            return valid;
        }
        Validity { entry: Duration::ZERO, attr: if is_dir { Duration::ZERO } else { valid.attr } }
    }

    /// Whether what was read of the volume stays true until this mountpoint's programs change it.
    pub(super) fn is_alone(&self) -> bool {
        self.target.served.may_be_kept.is_none()
    }

    /// Whether the request's directory may be changed through another place.
    pub(super) fn is_shared(&self) -> bool {
        self.target.served.is_shared()
    }

    /// The clone that this name stands for, if it does.
    pub(super) fn clone_named(&self, name: &OsStr) -> Option<Arc<NamespaceView>> {
        let is_root_dir = self.target.mount_node.is_none() && self.target.node == NodeId::ROOT;
        let tree = &self.shared.tree;
        let named = (is_root_dir && tree.has_clones()).then(|| tree.clone_named(name));
        named.flatten().filter(|clone| clone.is_shown())
    }

    /// Whether the caller may do anything on this host.
    pub(super) fn is_root(&self) -> bool {
        self.header.uid == 0
    }

    /// A name was changed after the kernel had its answer, since the caller was killed: what other
    /// processes have seen of it meanwhile is not valid any more.
    pub(super) fn changed_late(&self, name: &OsStr) {
        self.invalidate(Invalidation::name_changed(self.wire_node(), name));
    }

    /// [`changed_late`](Self::changed_late) for a name in another directory, by the kernel's
    /// number.
    pub(super) fn changed_late_in(&self, dir: u64, name: &OsStr) {
        self.invalidate(Invalidation::name_changed(store::ObjectId(dir), name));
    }

    /// Attributes were changed after the kernel had its answer.
    pub(super) fn attributes_changed_late(&self) {
        self.invalidate(Invalidation::attributes_changed(self.wire_node()));
    }

    fn invalidate<const N: usize>(&self, invalidations: [Invalidation; N]) {
        if let Err(error) = self.served().invalidations.invalidate(&self.shared.master, invalidations) {
            let volume = self.volume().name();
            tracing::warn!(volume, %error, "the kernel was not notified: its caches may be stale");
        }
    }

    /// More files are known than there may be: the kernel is to forget some that nobody uses. An older
    /// kernel forgets them when it needs memory.
    fn forget_surplus(&self) {
        let served = self.served();
        let can_prune = self.shared.negotiated.minor >= MINOR_WITH_PRUNE;
        // What has to be told goes first: where that waits, nothing is added.
        if !served.volume.has_surplus() || !can_prune || !served.invalidations.is_idle() {
            return;
        }
        // A directory has a number for each mount through which it is seen. Numbers that nothing has are
        // passed over.
        let tags = [vec![served.tag], served.seen_elsewhere(served.tag)].concat();
        let numbers = |id| tags.iter().filter_map(move |tag| wire::join(*tag, id));
        let ids: Vec<u64> = served.volume.name_surplus().into_iter().flat_map(numbers).collect();
        if !ids.is_empty() {
            // It is a hint: others are named later.
            let _untold = served.invalidations.invalidate(&self.shared.master, [Invalidation::Prune { ids }]);
        }
    }

    /// A name was made, removed or moved in a directory: the kernel's copy of it for other places,
    /// from before there were several, is not valid any more. Another thread sends the
    /// notification: the kernel takes locks for it that callers of requests have.
    pub(super) fn changed(&self, dir: NodeId, name: &OsStr) {
        if !self.target.served.is_shared() {
            return;
        }
        let own = self.target.mount_node.map_or(NodeTag::ROOT, |mount_node| mount_node.tag);
        for parent in
            self.target.served.seen_elsewhere(own).into_iter().filter_map(|tag| wire::join(tag, dir))
        {
            self.changed_late_in(parent, name);
        }
    }
}

/// Answers.
impl RequestContext<'_> {
    /// An entry of the request's volume, which the kernel knows from here on. Where it knows too many,
    /// it is asked to forget others.
    pub(super) fn entry_out(&self, entry: &store::Entry) -> Result<EntryOut, Errno> {
        self.forget_surplus();
        let is_dir = entry.attr.kind == store::FileType::Directory;
        let Some(mount_node) = self.target.mount_node else {
            return Ok(encode::entry_out(entry, self.valid(is_dir)));
        };
        self.entry_with(
            if is_dir { mount_node.tag } else { self.target.served.tag },
            self.target.served.tag,
            entry,
        )
    }

    /// The root of what is attached.
    pub(super) fn entry_on(&self, on: &MountNode, root: &store::Entry) -> Result<EntryOut, Errno> {
        self.entry_with(on.tag, on.served.tag, root)
    }

    fn entry_with(&self, tag: NodeTag, volume: NodeTag, entry: &store::Entry) -> Result<EntryOut, Errno> {
        let is_dir = entry.attr.kind == store::FileType::Directory;
        let mut out = encode::entry_out(entry, self.valid(is_dir));
        out.nodeid = wire::join(tag, entry.id).ok_or(Errno::OVERFLOW)?;
        out.generation = wire::generation(volume, entry.generation).into();
        out.attr.ino = wire::ino(volume, out.attr.ino);
        Ok(out)
    }

    pub(super) fn attr_out(&self, attr: &store::Attr) -> AttrOut {
        let mut out = encode::attr_out(attr, self.valid(attr.kind == store::FileType::Directory));
        out.attr.ino = wire::ino(self.target.served.tag, out.attr.ino);
        out
    }

    /// An entry of a listing, with the inode number that programs see.
    pub(super) fn listed(&self, mut entry: store::DirEntry) -> store::DirEntry {
        entry.ino = wire::ino(self.target.served.tag, entry.ino);
        entry
    }
}

/// Open files and directories.
impl RequestContext<'_> {
    /// Opens something, and has `answer` hand it out with its pin.
    pub(super) fn open_with<T>(
        &self,
        reply: Reply<'_>,
        what: Open,
        open: impl FnOnce() -> Result<T, Errno>,
        answer: impl FnOnce(Reply<'_>, T, OpenPin) -> Sent,
    ) -> Sent {
        let pin = match self.pin_open(what) {
            Ok(pin) => pin,
            Err(errno) => return reply.error(errno),
        };
        match open() {
            Ok(opened) => answer(reply, opened, pin),
            Err(errno) => {
                self.not_opened(pin);
                reply.error(errno)
            }
        }
    }

    /// To be taken before something is opened.
    fn pin_open(&self, what: Open) -> Result<OpenPin, Errno> {
        let Some(mount_node) = self.target.mount_node else { return Ok(OpenPin::default()) };
        let is_dir = what == Open::Directory;
        if is_dir {
            // ORDERING: SeqCst, before the load of `is_gone` in `closed_dir`; see there.
            mount_node.dirs.fetch_add(1, Ordering::SeqCst);
            if mount_node.is_gone() {
                self.shared.tree.closed_dir(mount_node);
                return Err(Errno::STALE);
            }
        }
        if self.target.served.tag == NodeTag::ROOT {
            return Ok(OpenPin { hold: None, is_dir });
        }
        match mount_node.superblock.get_active() {
            Ok(hold) => Ok(OpenPin { hold: Some(hold), is_dir }),
            Err(_) => {
                self.not_opened(OpenPin { hold: None, is_dir });
                Err(Errno::STALE)
            }
        }
    }

    /// It was opened.
    pub(super) fn opened(&self, what: Open, handle: HandleId, pin: OpenPin) {
        self.target.served.opened(what, handle, pin.hold);
    }

    /// It was not.
    fn not_opened(&self, pin: OpenPin) {
        self.dropped_pin.set(pin.hold);
        if let (true, Some(mount_node)) = (pin.is_dir, self.target.mount_node) {
            self.shared.tree.closed_dir(mount_node);
        }
    }

    /// It is closed.
    pub(super) fn released(&self, what: Open, handle: HandleId) {
        if self.target.mount_node.is_some() {
            let hold = self.target.served.released(what, handle);
            self.not_opened(OpenPin { hold, is_dir: what == Open::Directory });
        }
    }
}
