//! Names: look-ups, making, removing, moving.

use std::ffi::OsStr;

use rustix::io::Errno;
use store::{ErrorKind, NewNode, ObjectId, RenameFlags};
use volume::Error;

use super::Cx;
use crate::abi::{LinkIn, MkDirIn, MkNodIn, Rename2In};
use crate::decode::Forgets;
use crate::encode;
use crate::reply::{Reply, Sent};

pub(super) fn lookup(cx: &Cx<'_>, reply: Reply<'_>, name: &OsStr) -> Sent {
    match cx.volume().lookup(cx.node(), name) {
        // Nobody but this kernel changes the store, so that it may remember what is not there.
        Err(Error::Store(error)) if error.kind() == ErrorKind::NotFound => {
            reply.value(&encode::no_entry_out(cx.shared.valid))
        }
        found => entry(cx, reply, found),
    }
}

pub(super) fn symlink(cx: &Cx<'_>, reply: Reply<'_>, name: &OsStr, target: &OsStr) -> Sent {
    entry(cx, reply, cx.volume().make(&cx.ctx(), cx.node(), name, NewNode::Symlink(target), 0o777))
}

pub(super) fn mknod(cx: &Cx<'_>, reply: Reply<'_>, arg: &MkNodIn, name: &OsStr) -> Sent {
    let Some(kind) = encode::file_type(arg.mode) else { return reply.error(Errno::INVAL) };
    let what = NewNode::Special { kind, rdev: arg.rdev };
    let ctx = cx.ctx_with_umask(arg.umask);
    entry(cx, reply, cx.volume().make(&ctx, cx.node(), name, what, arg.mode & 0o7777))
}

pub(super) fn mkdir(cx: &Cx<'_>, reply: Reply<'_>, arg: MkDirIn, name: &OsStr) -> Sent {
    let ctx = cx.ctx_with_umask(arg.umask);
    entry(cx, reply, cx.volume().make(&ctx, cx.node(), name, NewNode::Directory, arg.mode & 0o7777))
}

pub(super) fn rename(cx: &Cx<'_>, reply: Reply<'_>, arg: &Rename2In, name: &OsStr, new_name: &OsStr) -> Sent {
    let Some(flags) = RenameFlags::from_bits(arg.flags) else { return reply.error(Errno::INVAL) };
    reply.unit(cx.volume().rename(&cx.ctx(), cx.node(), name, ObjectId(arg.newdir), new_name, flags))
}

pub(super) fn link(cx: &Cx<'_>, reply: Reply<'_>, arg: LinkIn, name: &OsStr) -> Sent {
    entry(cx, reply, cx.volume().link(ObjectId(arg.oldnodeid), cx.node(), name))
}

pub(super) fn forget_all(cx: &Cx<'_>, forgets: Forgets<'_>) {
    for one in forgets.iter() {
        cx.volume().forget(ObjectId(one.nodeid), one.nlookup);
    }
}

/// Hands out an entry; its look-up is taken back if the kernel does not take it.
fn entry(cx: &Cx<'_>, reply: Reply<'_>, found: volume::Result<store::Entry>) -> Sent {
    match found {
        Ok(entry) => {
            let sent = reply.value(&encode::entry_out(&entry, cx.shared.valid));
            if !sent.is_delivered {
                cx.volume().forget(entry.id, 1);
            }
            sent
        }
        Err(error) => reply.error(crate::errno::of(&error)),
    }
}
