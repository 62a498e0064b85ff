//! Attributes, targets of symbolic links, sizes of the medium.

use std::os::unix::ffi::OsStrExt as _;

use store::{SetAttr, TimeSet, Timestamp};

use super::context::RequestContext;
use crate::protocol::abi::{SetAttrIn, SetAttrValid};
use crate::protocol::encode;
use crate::reply::{Reply, Sent};

pub(super) fn get(cx: &RequestContext<'_>, reply: Reply<'_>) -> Sent {
    reply.result(cx.volume().attr(cx.node()).map(|attr| cx.attr_out(&attr)))
}

pub(super) fn set(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &SetAttrIn) -> Sent {
    let valid = SetAttrValid::from_bits_retain(arg.valid);
    let changes = changes(arg, valid);
    // Before it changes data, the kernel itself takes away the bits that it knows of. It asks for
    // no change if that is the daemon's task: the answer then is what it goes by.
    let is_announced = changes == SetAttr::default();
    let kill_priv =
        valid.contains(SetAttrValid::KILL_SUIDGID) || is_announced && !volume::may_set_id(&cx.ctx().caller);
    let result = cx.volume().set_attr(&cx.ctx(), cx.node(), &changes, kill_priv);
    let sent = reply.result(result.map(|attr| cx.attr_out(&attr)));
    if !sent.is_delivered {
        cx.attributes_changed_late();
    }
    sent
}

/// The changes that a SETATTR asks for. A ctime that the kernel proposes (kernel write-back) is not
/// taken: the change sets it.
fn changes(arg: &SetAttrIn, valid: SetAttrValid) -> SetAttr {
    let when = |set, now, secs: u64, nanos| match (valid.contains(set), valid.contains(now)) {
        (_, true) => Some(TimeSet::Now),
        (true, false) => Some(TimeSet::At(Timestamp { secs: secs.cast_signed(), nanos })),
        (false, false) => None,
    };
    SetAttr {
        perm: valid.contains(SetAttrValid::MODE).then_some(arg.mode & 0o7777),
        uid: valid.contains(SetAttrValid::UID).then_some(arg.uid),
        gid: valid.contains(SetAttrValid::GID).then_some(arg.gid),
        size: valid.contains(SetAttrValid::SIZE).then_some(arg.size),
        atime: when(SetAttrValid::ATIME, SetAttrValid::ATIME_NOW, arg.atime, arg.atimensec),
        mtime: when(SetAttrValid::MTIME, SetAttrValid::MTIME_NOW, arg.mtime, arg.mtimensec),
    }
}

pub(super) fn read_link(cx: &RequestContext<'_>, reply: Reply<'_>) -> Sent {
    match cx.volume().read_link(cx.node()) {
        Ok(target) => reply.data(target.as_bytes()),
        Err(error) => reply.error(crate::protocol::errno::of(&error)),
    }
}

pub(super) fn statfs(cx: &RequestContext<'_>, reply: Reply<'_>) -> Sent {
    reply.result(cx.volume().statfs().map(|sizes| encode::statfs_out(&sizes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_valid_changes() {
        let arg = SetAttrIn {
            mode: 0o104_755,
            uid: 1,
            gid: 2,
            size: 3,
            atime: 4,
            mtime: 5,
            ..SetAttrIn::default()
        };
        assert_eq!(changes(&arg, SetAttrValid::empty()), SetAttr::default());
        let mode = changes(&arg, SetAttrValid::MODE);
        assert_eq!(mode, SetAttr { perm: Some(0o4755), ..SetAttr::default() });
        let now = changes(&arg, SetAttrValid::MTIME | SetAttrValid::MTIME_NOW | SetAttrValid::ATIME);
        assert_eq!(now.mtime, Some(TimeSet::Now));
        assert_eq!(now.atime, Some(TimeSet::At(Timestamp { secs: 4, nanos: 0 })));
        let before_1970 = SetAttrIn { mtime: u64::MAX, mtimensec: 7, ..arg };
        let times = changes(&before_1970, SetAttrValid::MTIME);
        assert_eq!(times.mtime, Some(TimeSet::At(Timestamp { secs: -1, nanos: 7 })));
    }
}
