//! Finds the volume that a request is for.

#[cfg(all(test, shuttle))]
mod schedules;

use std::cell::Cell;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::Duration;

use mounts::ActiveRef;
use rcu::Guard;
use rustix::io::Errno;
use sync::atomic::Ordering;
use volume::{Caller, Cancel, CgroupPath, Ctx, HandleId, NodeId, Volume};

use super::files;
use crate::abi::{AttrOut, EntryOut, InHeader, WriteInFlags};
use crate::decode::Op;
use crate::encode::{self, Validity};
use crate::interrupt::{Early, For, Slot};
use crate::notify::Note;
use crate::session::Shared;
use crate::tree::clones::View;
use crate::tree::wire::{self, Tag};
use crate::tree::{Open, Seen, Served, Tagged, Tree};

/// A node in a volume of the tree.
#[derive(Clone, Copy)]
pub(super) struct At<'a> {
    served: &'a Arc<Served>,
    /// None: a node of the root volume, seen through its first mount.
    tagged: Option<&'a Arc<Tagged>>,
    node: NodeId,
}

impl<'a> At<'a> {
    /// A node of the root volume.
    pub(super) fn root(tree: &'a Tree, node: u64) -> Self {
        Self { served: tree.root(), tagged: None, node: store::ObjectId(node) }
    }

    /// The node that a node number of the kernel's names, and the section that keeps its volume for
    /// the request.
    pub(super) fn find(
        tree: &'a Tree,
        seen: &'a mut Seen,
        node: u64,
        op: &Op<'_>,
    ) -> Result<(Self, Option<Guard<'a>>), Errno> {
        if wire::is_plain(node) {
            return Ok((Self::root(tree, node), None));
        }
        let (tag, node) = wire::split(node);
        let tagged = tree.look(seen).tagged(tag).ok_or(Errno::STALE)?;
        if tagged.is_gone() && !is_for_what_is_open(op) {
            return Err(Errno::STALE);
        }
        if tagged.served.is_read_only && changes(op) {
            return Err(Errno::ROFS);
        }
        let section = tagged.served.enter().ok_or(Errno::STALE)?;
        Ok((Self { served: &tagged.served, tagged: Some(tagged), node }, Some(section)))
    }
}

/// Gives look-ups back, if the volume is still there.
pub(super) fn forget(shared: &Shared, slot: &Slot, seen: &mut Seen, node: u64, n: u64) {
    let tree = &shared.tree;
    let (tag, id) = wire::split(node);
    // A request for the attributes of a file without a name may hang.
    let forget = |served: &Served| {
        let whom = For { volume: served.tag, is_spared: true, says_nothing: false, is_lent: false };
        if has_turn(shared, slot, whom) {
            served.volume.forget(id, n);
        } else {
            served.volume.forget_later(id, n);
        }
        slot.is_for_none();
    };
    if tag == Tag::ROOT {
        return forget(tree.root());
    }
    let snapshot = tree.look(seen);
    if let Some(tagged) = snapshot.tagged(tag)
        && let Some(_asked) = tagged.served.enter()
    {
        forget(&tagged.served);
    }
    if id == NodeId::ROOT
        && let Some(clone) = snapshot.clone_of(tag)
    {
        clone.forgotten(tree, n);
    }
}

/// Takes the thread's place for a request, unless its volume has its part of the threads and other
/// volumes want them.
fn has_turn(shared: &Shared, slot: &Slot, whom: For) -> bool {
    let is_crowded = shared.pool.is_crowded() && !shared.tree.is_plain() && slot.is_readers();
    if is_crowded {
        return shared.interrupts.takes_turn(slot, whom, shared.pool.places());
    }
    slot.is_for(whom);
    true
}

/// The decision about a request that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Turn {
    /// It begins.
    Begins,
    /// It begins, but the store is not asked for it.
    BeginsWithoutStore,
    /// It waits, without a thread.
    Waits,
    /// It is one too many for a store that does not answer.
    Refused,
}

impl At<'_> {
    /// The volume's tag.
    pub(super) fn volume_tag(&self) -> Tag {
        self.served.tag
    }

    /// Puts a request (its number, its caller, when it may be answered early) into its thread's
    /// slot, where it is already if it has waited. Says whether it is to be served: it may have
    /// been answered while it waited.
    pub(super) fn begin(
        &self,
        shared: &Shared,
        slot: &Arc<Slot>,
        request: (u64, u32, Early),
        has_waited: bool,
    ) -> bool {
        let (unique, pid, early) = request;
        if has_waited {
            return shared.interrupts.begin_again(slot, (unique, early), &self.served.is_given_up);
        }
        if self.served.tag == Tag::ROOT {
            shared.interrupts.begin(slot, unique, pid, early);
        } else {
            shared.interrupts.begin_for(slot, request, &self.served.is_given_up);
        }
        true
    }

    /// Takes the thread's place for a request (its number, its caller), or finds another one for
    /// it.
    pub(super) fn turn(
        &self,
        (shared, slot): (&Shared, &Arc<Slot>),
        (whom, op): (For, &Op<'_>),
        request: (u64, u32),
        message: &[u8],
        has_waited: bool,
    ) -> Turn {
        let is_stalled = self.served.tag != Tag::ROOT && self.served.volume.is_known_to_stall();
        if is_stalled && !whom.is_spared {
            if shared.interrupts.admit(slot, whom) {
                return Turn::Begins;
            }
            // To be answered at once.
            slot.is_for(For { is_spared: true, ..whom });
            return Turn::Refused;
        }
        if has_waited || is_stalled || matches!(op, Op::Destroy) {
            slot.is_for(whom);
            return Turn::Begins;
        }
        if has_turn(shared, slot, whom) {
            return Turn::Begins;
        }
        if !whom.says_nothing {
            let whose = (whom, &self.served.is_given_up);
            if shared.interrupts.wait(slot, request, whose, message, shared.pool.places()) {
                return Turn::Waits;
            }
        }
        slot.is_for(whom);
        if whom.says_nothing { Turn::BeginsWithoutStore } else { Turn::Begins }
    }
}

/// Requests that are not refused because a store does not answer: those that no process waits for,
/// and whose failure would lose something. The kernel itself limits how many it writes of the data
/// that it has kept.
pub(super) fn is_spared(op: &Op<'_>) -> bool {
    match op {
        Op::Release(_) | Op::ReleaseDir(_) => true,
        Op::Write { arg, .. } => {
            WriteInFlags::from_bits_retain(arg.write_flags).contains(WriteInFlags::CACHE)
        }
        _ => false,
    }
}

/// Requests whose answers carry no information: the kernel only counts them.
pub(super) fn says_nothing(op: &Op<'_>) -> bool {
    matches!(op, Op::Release(_) | Op::ReleaseDir(_))
}

/// Requests about directories that are open, though no path leads there.
fn is_for_what_is_open(op: &Op<'_>) -> bool {
    matches!(op, Op::ReadDir(_) | Op::ReadDirPlus(_) | Op::ReleaseDir(_) | Op::FSyncDir(_) | Op::StatFs)
}

/// Requests that a volume which was attached read-only refuses.
fn changes(op: &Op<'_>) -> bool {
    match op {
        Op::Open(arg) => files::writes(arg.flags),
        Op::Write { .. } | Op::FAllocate(_) | Op::CopyFileRange(_) | Op::CopyFileRange64(_) => true,
        op => changes_names_or_attributes(op),
    }
}

/// Requests that make, remove or move names, or set attributes, a file's length among them.
pub(super) fn changes_names_or_attributes(op: &Op<'_>) -> bool {
    matches!(
        op,
        Op::SetAttr(_)
            | Op::Symlink { .. }
            | Op::MkNod { .. }
            | Op::MkDir { .. }
            | Op::Unlink { .. }
            | Op::RmDir { .. }
            | Op::Rename { .. }
            | Op::Link { .. }
            | Op::Create { .. }
            | Op::TmpFile(_)
            | Op::SetXattr { .. }
            | Op::RemoveXattr { .. }
    )
}

/// Says that something of an attached volume is open.
#[derive(Debug, Default)]
pub(super) struct Holding {
    hold: Option<ActiveRef>,
    is_dir: bool,
}

/// The handlers' view of the request in hand.
pub(crate) struct Cx<'a> {
    pub(super) shared: &'a Shared,
    pub(super) header: &'a InHeader,
    pub(super) at: At<'a>,
    /// Dropped after the request has left its section: that may end the volume.
    pub(super) kept: &'a Cell<Option<ActiveRef>>,
    pub(super) cancel: &'a Cancel,
    pub(super) before_wait: &'a (dyn Fn() + Sync),
    /// A thread of the volume is to close the file.
    pub(super) is_without_store: bool,
}

impl<'a> Cx<'a> {
    pub(super) fn volume(&self) -> &'a Arc<Volume> {
        &self.at.served.volume
    }

    pub(super) fn served(&self) -> &'a Arc<Served> {
        self.at.served
    }

    /// The node that the request is about.
    pub(super) fn node(&self) -> NodeId {
        self.at.node
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
        self.at.tagged.is_some_and(|tagged| tagged.is_gone())
    }

    /// Whether another directory is seen through the same mount: only then a name can move there.
    pub(super) fn is_same_mount(&self, dir: u64) -> bool {
        wire::split(dir).0 == self.at.tagged.map_or(Tag::ROOT, |tagged| tagged.tag)
    }

    /// Whether a file is of the request's volume.
    pub(super) fn is_same_volume(&self, file: u64) -> bool {
        wire::split(file).0 == self.at.served.tag
    }

    /// The mount on a directory that was found below the request's node.
    pub(super) fn crossed(&self, node: NodeId) -> Option<Arc<Tagged>> {
        let tree = &self.shared.tree;
        if tree.is_plain() {
            return None;
        }
        tree.crossed(self.at.tagged.map(|tagged| &**tagged), node)
    }

    /// Whether something is attached to the directory of this name.
    pub(super) fn is_covered(&self, dir: NodeId, name: &OsStr) -> bool {
        let (tree, volume) = (&self.shared.tree, self.volume());
        if tree.is_plain() {
            return false;
        }
        let Ok(entry) = volume.lookup(dir, name) else { return false };
        volume.forget(entry.id, 1);
        tree.is_covered(self.at.served.tag, entry.id)
    }
}

/// How long the kernel may remember.
impl Cx<'_> {
    /// For how long it may remember a name in the request's directory: not at all where the
    /// directory is seen in a second place. A file is one for the kernel wherever it is seen, a
    /// directory is not.
    pub(super) fn valid(&self, is_dir: bool) -> Validity {
        let valid = self.shared.valid;
        if !self.is_shared() {
            return valid;
        }
        Validity { entry: Duration::ZERO, attr: if is_dir { Duration::ZERO } else { valid.attr } }
    }

    /// Whether the request's directory may be changed through another place.
    pub(super) fn is_shared(&self) -> bool {
        self.at.served.is_shared()
    }

    /// The clone that this name stands for, if it does.
    pub(super) fn clone_named(&self, name: &OsStr) -> Option<Arc<View>> {
        let is_root_dir = self.at.tagged.is_none() && self.at.node == NodeId::ROOT;
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
        self.tell(Note::name_changed(self.wire_node(), name));
    }

    /// [`changed_late`](Self::changed_late) for a name in another directory, by the kernel's
    /// number.
    pub(super) fn changed_late_in(&self, dir: u64, name: &OsStr) {
        self.tell(Note::name_changed(store::ObjectId(dir), name));
    }

    /// Attributes were changed after the kernel had its answer.
    pub(super) fn attributes_changed_late(&self) {
        self.tell(Note::attributes_changed(self.wire_node()));
    }

    fn tell<const N: usize>(&self, notes: [Note; N]) {
        if let Err(error) = self.served().teller.tell(&self.shared.master, notes) {
            let volume = self.volume().name();
            tracing::warn!(volume, %error, "the kernel may remember what has changed");
        }
    }

    /// A name was made, removed or moved in a directory: the kernel's copy of it for other places,
    /// from before there were several, is not valid any more. Another thread sends the
    /// notification: the kernel takes locks for it that callers of requests have.
    pub(super) fn changed(&self, dir: NodeId, name: &OsStr) {
        if !self.at.served.is_shared() {
            return;
        }
        let own = self.at.tagged.map_or(Tag::ROOT, |tagged| tagged.tag);
        for parent in self.at.served.seen_elsewhere(own).into_iter().filter_map(|tag| wire::join(tag, dir)) {
            self.changed_late_in(parent, name);
        }
    }
}

/// Answers.
impl Cx<'_> {
    /// An entry of the request's volume.
    pub(super) fn entry_out(&self, entry: &store::Entry) -> Result<EntryOut, Errno> {
        let is_dir = entry.attr.kind == store::FileType::Directory;
        let Some(tagged) = self.at.tagged else { return Ok(encode::entry_out(entry, self.valid(is_dir))) };
        self.entry_with(if is_dir { tagged.tag } else { self.at.served.tag }, self.at.served.tag, entry)
    }

    /// The root of what is attached.
    pub(super) fn entry_on(&self, on: &Tagged, root: &store::Entry) -> Result<EntryOut, Errno> {
        self.entry_with(on.tag, on.served.tag, root)
    }

    fn entry_with(&self, tag: Tag, volume: Tag, entry: &store::Entry) -> Result<EntryOut, Errno> {
        let is_dir = entry.attr.kind == store::FileType::Directory;
        let mut out = encode::entry_out(entry, self.valid(is_dir));
        out.nodeid = wire::join(tag, entry.id).ok_or(Errno::OVERFLOW)?;
        out.generation = wire::generation(volume, entry.generation).into();
        out.attr.ino = wire::ino(volume, out.attr.ino);
        Ok(out)
    }

    pub(super) fn attr_out(&self, attr: &store::Attr) -> AttrOut {
        let mut out = encode::attr_out(attr, self.valid(attr.kind == store::FileType::Directory));
        out.attr.ino = wire::ino(self.at.served.tag, out.attr.ino);
        out
    }

    /// An entry of a listing, with the inode number that programs see.
    pub(super) fn listed(&self, mut entry: store::DirEntry) -> store::DirEntry {
        entry.ino = wire::ino(self.at.served.tag, entry.ino);
        entry
    }
}

/// Open files and directories.
impl Cx<'_> {
    /// To be taken before something is opened.
    pub(super) fn hold(&self, what: Open) -> Result<Holding, Errno> {
        let Some(tagged) = self.at.tagged else { return Ok(Holding::default()) };
        let is_dir = what == Open::Directory;
        if is_dir {
            // ORDERING: SeqCst, before the load of `is_gone` in `closed_dir`; see there.
            tagged.dirs.fetch_add(1, Ordering::SeqCst);
            if tagged.is_gone() {
                self.shared.tree.closed_dir(tagged);
                return Err(Errno::STALE);
            }
        }
        if self.at.served.tag == Tag::ROOT {
            return Ok(Holding { hold: None, is_dir });
        }
        match tagged.superblock.get_active() {
            Ok(hold) => Ok(Holding { hold: Some(hold), is_dir }),
            Err(_) => {
                self.not_opened(Holding { hold: None, is_dir });
                Err(Errno::STALE)
            }
        }
    }

    /// It was opened.
    pub(super) fn opened(&self, what: Open, handle: HandleId, holding: Holding) {
        self.at.served.opened(what, handle, holding.hold);
    }

    /// It was not.
    pub(super) fn not_opened(&self, holding: Holding) {
        self.kept.set(holding.hold);
        if let (true, Some(tagged)) = (holding.is_dir, self.at.tagged) {
            self.shared.tree.closed_dir(tagged);
        }
    }

    /// It is closed.
    pub(super) fn released(&self, what: Open, handle: HandleId) {
        if self.at.tagged.is_some() {
            let hold = self.at.served.released(what, handle);
            self.not_opened(Holding { hold, is_dir: what == Open::Directory });
        }
    }
}
