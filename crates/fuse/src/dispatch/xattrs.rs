//! Extended attributes.

use std::ffi::OsStr;

use rustix::io::Errno;
use store::{SetAttr, SetXattr};

use super::context::RequestContext;
use super::names::done;
use crate::protocol::abi::{GetXattrIn, GetXattrOut, SETXATTR_ACL_KILL_SGID, SetXattrIn};
use crate::reply::{Reply, Sent};

/// Set-group-id in `st_mode`.
const S_ISGID: u32 = 0o2000;

pub(super) fn set(
    cx: &RequestContext<'_>,
    reply: Reply<'_>,
    arg: SetXattrIn,
    name: &OsStr,
    value: &[u8],
) -> Sent {
    let how = match arg.flags.cast_signed() {
        0 => SetXattr::Any,
        libc::XATTR_CREATE => SetXattr::Create,
        libc::XATTR_REPLACE => SetXattr::Replace,
        _ => return reply.error(Errno::INVAL),
    };
    let is_set = || cx.volume().get_xattr(cx.node(), name).is_ok_and(|found| found == value);
    let finish = || {
        if arg.setxattr_flags & SETXATTR_ACL_KILL_SGID != 0 {
            clear_set_group_id(cx)?;
        }
        Ok(())
    };
    let set = || {
        cx.volume().set_xattr(&cx.ctx(), cx.node(), name, value, how)?;
        finish()
    };
    // Only one that must not be there is found changed by a second attempt.
    if how != SetXattr::Create {
        return reply.unit(set());
    }
    if cx.once.is_noted() && !cx.once.is_resent() && cx.volume().get_xattr(cx.node(), name).is_ok() {
        return reply.error(Errno::EXIST);
    }
    done(reply, cx.once.change(is_set, finish, set))
}

pub(super) fn remove(cx: &RequestContext<'_>, reply: Reply<'_>, name: &OsStr) -> Sent {
    let find = || cx.volume().get_xattr(cx.node(), name).err();
    if cx.once.is_noted()
        && !cx.once.is_resent()
        && let Some(error) = find()
    {
        return reply.error(crate::protocol::errno::of(&error));
    }
    let remove = || cx.volume().remove_xattr(&cx.ctx(), cx.node(), name);
    done(reply, cx.once.change(|| find().is_some(), || Ok(()), remove))
}

/// Needed when a caller outside the file's group sets an access ACL.
fn clear_set_group_id(cx: &RequestContext<'_>) -> volume::Result<()> {
    let attr = cx.volume().attr(cx.node())?;
    if attr.perm & S_ISGID != 0 {
        let set = SetAttr { perm: Some(attr.perm & !S_ISGID), ..SetAttr::default() };
        cx.volume().set_attr(&cx.ctx(), cx.node(), &set, false)?;
    }
    Ok(())
}

pub(super) fn get(cx: &RequestContext<'_>, reply: Reply<'_>, arg: GetXattrIn, name: &OsStr) -> Sent {
    sized(reply, arg.size, cx.volume().get_xattr(cx.node(), name))
}

pub(super) fn list(cx: &RequestContext<'_>, reply: Reply<'_>, arg: GetXattrIn) -> Sent {
    sized(reply, arg.size, cx.volume().list_xattr(cx.node()))
}

/// Size 0 asks how much room is needed.
fn sized(reply: Reply<'_>, size: u32, result: volume::Result<Vec<u8>>) -> Sent {
    match result {
        Err(error) => reply.error(crate::protocol::errno::of(&error)),
        Ok(bytes) => match u32::try_from(bytes.len()) {
            Ok(len) if size == 0 => reply.value(&GetXattrOut { size: len, padding: 0 }),
            Ok(len) if len <= size => reply.data(&bytes),
            _ => reply.error(Errno::RANGE),
        },
    }
}
