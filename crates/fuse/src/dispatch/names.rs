//! Names: look-ups, making, removing, moving.

use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::Arc;

use rustix::io::Errno;
use store::{FileType, NewNode, RenameFlags};
use volume::{NodeId, Volume};

use super::context::RequestContext;
use crate::protocol::abi::{EntryOut, LinkIn, MkDirIn, MkNodIn, Rename2In};
use crate::protocol::encode;
use crate::reply::{Reply, Sent};
use crate::tree::NamespaceView;
use crate::tree::wire;

pub(super) fn lookup(cx: &RequestContext<'_>, reply: Reply<'_>, name: &OsStr) -> Sent {
    // A look-up of a node that the kernel has forgotten and a program has a handle of.
    if name == "." {
        return recalled(cx, reply, cx.volume().recall(cx.node()));
    }
    if name == ".." {
        return recalled(cx, reply, cx.volume().recall_parent(cx.node()));
    }
    if let Some(clone) = cx.clone_named(name) {
        return clone_root(cx, reply, &clone);
    }
    match find(cx, name) {
        Ok((out, taken)) => {
            let sent = reply.value(&out);
            if !sent.is_delivered {
                taken.give_back();
            }
            sent
        }
        // Only this kernel changes the store, so that it may remember that a name is not there.
        Err(Errno::NOENT) => reply.value(&encode::no_entry_out(cx.valid(false))),
        Err(errno) => reply.error(errno),
    }
}

/// The node that a handle leads to. The kernel turns any error into "stale" for the program, and
/// compares the generation.
fn recalled(cx: &RequestContext<'_>, reply: Reply<'_>, found: volume::Result<store::Entry>) -> Sent {
    match found {
        Ok(entry) => hand_out(cx, reply, &entry),
        Err(error) => reply.error(crate::protocol::errno::of(&error)),
    }
}

/// Hands out an entry; its look-up is taken back if the kernel does not take it.
fn hand_out(cx: &RequestContext<'_>, reply: Reply<'_>, entry: &store::Entry) -> Sent {
    let sent = match cx.entry_out(entry) {
        Ok(out) => reply.value(&out),
        Err(errno) => Sent { is_delivered: false, ..reply.error(errno) },
    };
    if !sent.is_delivered {
        cx.volume().forget(entry.id, 1);
    }
    sent
}

/// The root of a clone. Only root finds it by this name, since a mountpoint leads there that has
/// permissions of its own. Any other user gets EINTR: any other error would have the kernel take
/// the directory for removed.
fn clone_root(cx: &RequestContext<'_>, reply: Reply<'_>, clone: &NamespaceView) -> Sent {
    if !cx.is_root() {
        return reply.error(Errno::INTR);
    }
    let found = cx.volume().look_up_again(NodeId::ROOT).map_err(|error| crate::protocol::errno::of(&error));
    match found.and_then(|root| cx.entry_on(&clone.root, &root)) {
        Ok(out) => {
            clone.looked_up();
            let sent = reply.value(&out);
            if !sent.is_delivered {
                cx.volume().forget(NodeId::ROOT, 1);
                cx.shared.tree.forget_clone_root(clone, 1);
            }
            sent
        }
        Err(errno) => reply.error(errno),
    }
}

/// A look-up that is handed out to the kernel.
pub(super) struct Taken<'a> {
    volume: Cow<'a, Arc<Volume>>,
    node: NodeId,
}

impl Taken<'_> {
    /// The kernel did not take it.
    pub(super) fn give_back(self) {
        self.volume.forget(self.node, 1);
    }
}

/// The node that a name in the request's directory stands for: where something is attached, the
/// root of that.
pub(super) fn find<'a>(cx: &'a RequestContext<'_>, name: &OsStr) -> Result<(EntryOut, Taken<'a>), Errno> {
    let failed = |error| crate::protocol::errno::of(&error);
    let entry = cx.volume().lookup(cx.node(), name).map_err(failed)?;
    let taken = Taken { volume: Cow::Borrowed(cx.volume()), node: entry.id };
    let on = if entry.attr.kind == FileType::Directory { cx.crossed(entry.id) } else { None };
    let Some(on) = on else {
        return match cx.entry_out(&entry) {
            Ok(out) => Ok((out, taken)),
            Err(errno) => {
                taken.give_back();
                Err(errno)
            }
        };
    };
    taken.give_back();
    // It ends beside this look-up: the name leads elsewhere by now, and the kernel asks again.
    let _asked = on.served.enter().ok_or(Errno::STALE)?;
    let root = on.served.volume.look_up_again(on.root).map_err(failed)?;
    let taken = Taken { volume: Cow::Owned(Arc::clone(&on.served.volume)), node: root.id };
    Ok((cx.entry_on(&on, &root)?, taken))
}

pub(super) fn symlink(cx: &RequestContext<'_>, reply: Reply<'_>, name: &OsStr, target: &OsStr) -> Sent {
    let is_it = |entry: &store::Entry| {
        entry.attr.kind == FileType::Symlink
            && cx.volume().read_link(entry.id).is_ok_and(|found| found == target)
    };
    let make = || cx.volume().make(&cx.ctx(), cx.node(), name, NewNode::Symlink(target), 0o777);
    entry(cx, reply, name, cx.once.make(at(cx, name), is_it, make))
}

pub(super) fn mknod(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &MkNodIn, name: &OsStr) -> Sent {
    let Some(kind) = encode::file_type(arg.mode) else { return reply.error(Errno::INVAL) };
    let what = NewNode::Special { kind, rdev: arg.rdev };
    let ctx = cx.ctx_with_umask(arg.umask);
    let make = || cx.volume().make(&ctx, cx.node(), name, what, arg.mode & 0o7777);
    entry(cx, reply, name, cx.once.make(at(cx, name), |entry| entry.attr.kind == kind, make))
}

pub(super) fn mkdir(cx: &RequestContext<'_>, reply: Reply<'_>, arg: MkDirIn, name: &OsStr) -> Sent {
    let ctx = cx.ctx_with_umask(arg.umask);
    let make = || cx.volume().make(&ctx, cx.node(), name, NewNode::Directory, arg.mode & 0o7777);
    let is_it = |entry: &store::Entry| entry.attr.kind == FileType::Directory;
    entry(cx, reply, name, cx.once.make(at(cx, name), is_it, make))
}

pub(super) fn rename(
    cx: &RequestContext<'_>,
    reply: Reply<'_>,
    arg: &Rename2In,
    name: &OsStr,
    new_name: &OsStr,
) -> Sent {
    let Some(flags) = RenameFlags::from_bits(arg.flags) else { return reply.error(Errno::INVAL) };
    if !cx.is_same_mount(arg.newdir) {
        return reply.error(Errno::XDEV);
    }
    let (_, new_dir) = wire::split(arg.newdir);
    // Nothing is attached meanwhile to a directory that loses its name.
    let _names = cx.served().names.read();
    if cx.is_covered(cx.node(), name) || cx.is_covered(new_dir, new_name) {
        return reply.error(Errno::BUSY);
    }
    let rename = || cx.volume().rename(&cx.ctx(), cx.node(), name, new_dir, new_name, flags);
    let renamed = cx.once.rename(cx.volume(), (cx.node(), name), (new_dir, new_name), flags, rename);
    if renamed.is_ok() {
        cx.changed(cx.node(), name);
        cx.changed(new_dir, new_name);
    }
    let sent = done(reply, renamed);
    if !sent.is_delivered {
        cx.changed_late(name);
        cx.changed_late_in(arg.newdir, new_name);
    }
    sent
}

pub(super) fn rmdir(cx: &RequestContext<'_>, reply: Reply<'_>, name: &OsStr) -> Sent {
    let _names = cx.served().names.read();
    if cx.is_covered(cx.node(), name) {
        return reply.error(Errno::BUSY);
    }
    removed(cx, reply, name, cx.once.remove(at(cx, name), || cx.volume().rmdir(&cx.ctx(), cx.node(), name)))
}

pub(super) fn unlink(cx: &RequestContext<'_>, reply: Reply<'_>, name: &OsStr) -> Sent {
    removed(cx, reply, name, cx.once.remove(at(cx, name), || cx.volume().unlink(&cx.ctx(), cx.node(), name)))
}

/// A name in the request's directory.
fn at<'a>(cx: &RequestContext<'a>, name: &'a OsStr) -> (&'a Volume, NodeId, &'a OsStr) {
    (cx.volume(), cx.node(), name)
}

/// Answers with success or an error.
pub(super) fn done(reply: Reply<'_>, result: Result<(), Errno>) -> Sent {
    match result {
        Ok(()) => reply.done(),
        Err(errno) => reply.error(errno),
    }
}

fn removed(cx: &RequestContext<'_>, reply: Reply<'_>, name: &OsStr, removed: Result<(), Errno>) -> Sent {
    if removed.is_ok() {
        cx.changed(cx.node(), name);
    }
    let sent = done(reply, removed);
    if !sent.is_delivered {
        cx.changed_late(name);
    }
    sent
}

pub(super) fn link(cx: &RequestContext<'_>, reply: Reply<'_>, arg: LinkIn, name: &OsStr) -> Sent {
    if !cx.is_same_volume(arg.oldnodeid) {
        return reply.error(Errno::XDEV);
    }
    let (_, old) = wire::split(arg.oldnodeid);
    let link = || cx.volume().link(&cx.ctx(), old, cx.node(), name);
    entry(cx, reply, name, cx.once.make(at(cx, name), |entry| entry.id == old, link))
}

/// Hands out the entry of a name that was made.
fn entry(cx: &RequestContext<'_>, reply: Reply<'_>, name: &OsStr, made: Result<store::Entry, Errno>) -> Sent {
    match made {
        Ok(entry) => {
            cx.changed(cx.node(), name);
            let sent = hand_out(cx, reply, &entry);
            if !sent.is_delivered {
                cx.changed_late(name);
            }
            sent
        }
        Err(errno) => reply.error(errno),
    }
}
