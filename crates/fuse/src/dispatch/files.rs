//! Open files: data, durability, allocation.

use std::ffi::OsStr;

use rustix::io::Errno;
use store::{AllocateMode, Entry, Seek};
use volume::{Ctx, HandleId, OpenFlags, WriteFlags};

use super::context::{RequestContext, handle_id};
use super::op_class::{flag, truncates};
use crate::protocol::abi::{
    self, CopyFileRangeIn, CopyFileRangeOut, CreateIn, CreateOut, FAllocateIn, FOpen, FSyncIn, FlushIn,
    LSeekIn, LSeekOut, OFFSET_MAX, OpenIn, OpenOut, ReadIn, ReleaseIn, WriteIn, WriteInFlags, WriteOut,
};
use crate::protocol::errno;
use crate::protocol::init::Mode;
use crate::reply::{Reply, Sent};
use crate::tree::Open;

/// `O_SYNC` without the `O_DSYNC` that it includes.
const SYNC_ONLY: u32 = flag(libc::O_SYNC) & !flag(libc::O_DSYNC);

/// Whether these open flags go around the kernel's page cache.
fn is_direct(flags: u32) -> bool {
    flags & flag(libc::O_DIRECT) != 0
}

fn open_flags(cx: &RequestContext<'_>, flags: u32, more: u32) -> OpenFlags {
    let mut open = match flags & flag(libc::O_ACCMODE) {
        access if access == flag(libc::O_RDONLY) => OpenFlags::READ,
        access if access == flag(libc::O_WRONLY) => OpenFlags::WRITE,
        _ => OpenFlags::READ | OpenFlags::WRITE | OpenFlags::MAPPABLE,
    };
    if cx.shared.mode == Mode::KernelWriteback {
        // The kernel fills pages that are written in part through any handle.
        open |= OpenFlags::READ;
    }
    open.set(OpenFlags::TRUNCATE, truncates(flags));
    open.set(OpenFlags::EXCLUSIVE, flags & flag(libc::O_EXCL) != 0);
    open.set(OpenFlags::SYNC, flags & SYNC_ONLY != 0);
    open.set(OpenFlags::DSYNC, flags & flag(libc::O_DSYNC) != 0);
    open.set(OpenFlags::KILL_PRIV, more & abi::OPEN_KILL_SUIDGID != 0);
    open
}

/// Copies that the kernel has of the file stay true where only this volume's callers change the
/// store.
fn open_out(cx: &RequestContext<'_>, handle: HandleId) -> OpenOut {
    let open_flags = if cx.is_alone() { FOpen::KEEP_CACHE } else { FOpen::empty() }.bits();
    OpenOut { fh: handle.0, open_flags, backing_id: 0 }
}

pub(super) fn open(cx: &RequestContext<'_>, reply: Reply<'_>, arg: OpenIn) -> Sent {
    let flags = open_flags(cx, arg.flags, arg.open_flags);
    let open = || match cx.once.opened() {
        Some(open) => Ok(handle_id(open.handle)),
        None => cx.volume().open(&cx.ctx(), cx.node(), flags).map_err(|error| errno::of(&error)),
    };
    cx.open_with(reply, Open::File, open, |reply, handle, pin| {
        cx.opened(Open::File, handle, pin);
        let sent = reply.value(&open_out(cx, handle));
        if !sent.is_delivered {
            close(cx, handle);
        }
        sent
    })
}

/// The kernel did not take the handle of the file that was opened.
fn close(cx: &RequestContext<'_>, handle: HandleId) {
    cx.volume().release(handle);
    cx.released(Open::File, handle);
}

pub(super) fn create(cx: &RequestContext<'_>, reply: Reply<'_>, arg: CreateIn, name: &OsStr) -> Sent {
    let sent = made(cx, reply, arg, |ctx, perm, flags| {
        let reopen = |entry: Entry| {
            let id = entry.id;
            match cx.volume().open(ctx, id, flags) {
                Ok(handle) => Ok((entry, handle)),
                Err(error) => {
                    cx.volume().forget(id, 1);
                    Err(error)
                }
            }
        };
        let create = || cx.volume().create(ctx, cx.node(), name, perm, flags);
        let created = cx.once.create((cx.volume(), cx.node(), name), reopen, create)?;
        cx.changed(cx.node(), name);
        Ok(created)
    });
    if !sent.is_delivered {
        cx.changed_late(name);
    }
    sent
}

pub(super) fn tmpfile(cx: &RequestContext<'_>, reply: Reply<'_>, arg: CreateIn) -> Sent {
    made(cx, reply, arg, |ctx, perm, flags| {
        cx.volume().tmpfile(ctx, cx.node(), perm, flags).map_err(|error| errno::of(&error))
    })
}

fn made(
    cx: &RequestContext<'_>,
    reply: Reply<'_>,
    arg: CreateIn,
    make: impl FnOnce(&Ctx<'_>, u32, OpenFlags) -> Result<(Entry, HandleId), Errno>,
) -> Sent {
    let flags = open_flags(cx, arg.flags, arg.open_flags);
    let make = || match cx.once.opened() {
        Some(open) => {
            let entry = super::once::entry_of(cx.volume(), store::ObjectId(open.node));
            Ok((entry.map_err(|error| errno::of(&error))?, handle_id(open.handle)))
        }
        None => make(&cx.ctx_with_umask(arg.umask), arg.mode & 0o7777, flags),
    };
    cx.open_with(reply, Open::File, make, |reply, (entry, handle), pin| {
        cx.opened(Open::File, handle, pin);
        let sent = match cx.entry_out(&entry) {
            Ok(entry_out) => reply.value(&CreateOut { entry: entry_out, open: open_out(cx, handle) }),
            Err(errno) => Sent { is_delivered: false, ..reply.error(errno) },
        };
        if !sent.is_delivered {
            close(cx, handle);
            cx.volume().forget(entry.id, 1);
        }
        sent
    })
}

/// Nothing is allocated here: the data goes into the reader's own memory and from there to the
/// kernel.
pub(super) fn read(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &ReadIn, space: &mut [u8]) -> Sent {
    let Some(space) = usize::try_from(arg.size).ok().and_then(|size| space.get_mut(..size)) else {
        return reply.error(Errno::INVAL);
    };
    if is_direct(arg.flags) {
        // The kernel reports no signal to its caller.
        (cx.before_wait)();
    }
    match cx.volume().read(&cx.ctx(), handle_id(arg.fh), arg.offset, space) {
        Ok(len) => reply.data(&space[..len]),
        Err(error) => reply.error(errno::of(&error)),
    }
}

pub(super) fn write(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &WriteIn, data: &[u8]) -> Sent {
    if ends_beyond(arg.offset, u64::from(arg.size)) {
        return reply.error(Errno::FBIG);
    }
    let how = WriteInFlags::from_bits_retain(arg.write_flags);
    let mut flags = WriteFlags::empty();
    flags.set(WriteFlags::KILL_PRIV, how.contains(WriteInFlags::KILL_SUIDGID));
    flags.set(WriteFlags::KERNEL, how.contains(WriteInFlags::CACHE));
    flags.set(WriteFlags::SYNC, arg.flags & SYNC_ONLY != 0);
    flags.set(WriteFlags::DSYNC, arg.flags & flag(libc::O_DSYNC) != 0);
    if is_direct(arg.flags) {
        (cx.before_wait)();
    }
    match cx.volume().write(&cx.ctx(), handle_id(arg.fh), arg.offset, data, flags) {
        // The written length is at most that of `data`, which came as a u32.
        Ok(len) => reply.value(&WriteOut { size: u32::try_from(len).unwrap_or(arg.size), padding: 0 }),
        Err(error) => reply.error(errno::of(&error)),
    }
}

/// Whether a range ends beyond the largest offset that a file can have.
fn ends_beyond(offset: u64, len: u64) -> bool {
    offset.checked_add(len).is_none_or(|end| end > OFFSET_MAX)
}

pub(super) fn release(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &ReleaseIn) -> Sent {
    let handle = handle_id(arg.fh);
    if cx.without_store {
        cx.volume().release_later(handle);
    } else {
        cx.volume().release(handle);
    }
    cx.released(Open::File, handle);
    reply.done()
}

/// Each close(2) reports errors.
pub(super) fn flush(cx: &RequestContext<'_>, reply: Reply<'_>, arg: FlushIn) -> Sent {
    reply.unit(cx.volume().flush(&cx.ctx(), handle_id(arg.fh)))
}

pub(super) fn fsync(cx: &RequestContext<'_>, reply: Reply<'_>, arg: FSyncIn) -> Sent {
    (cx.before_wait)();
    let data_only = arg.fsync_flags & abi::FSYNC_FDATASYNC != 0;
    reply.unit(cx.volume().fsync(&cx.ctx(), handle_id(arg.fh), data_only))
}

/// The kernel does not say which part of the mountpoint is meant: all volumes are made durable, but
/// for attached ones that do not answer. Returns the first failure, after the others were tried;
/// EIO if the caller's cgroup has data in a volume that was left out.
pub(super) fn sync(cx: &RequestContext<'_>, reply: Reply<'_>) -> Sent {
    if let Some(page) = &cx.shared.page {
        if page.is_only_way() {
            return reply.error(Errno::NOSYS);
        }
        page.page.end();
    }
    (cx.before_wait)();
    let own = || cx.volume().sync(&cx.ctx());
    let synced = cx.shared.sync_attached(|| cx.cgroup(), cx.cancel, own);
    reply.unit(synced.into_result())
}

pub(super) fn allocate(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &FAllocateIn) -> Sent {
    let Some(mode) = AllocateMode::from_bits(arg.mode) else { return reply.error(Errno::OPNOTSUPP) };
    if ends_beyond(arg.offset, arg.length) {
        return reply.error(Errno::FBIG);
    }
    reply.unit(cx.volume().allocate(&cx.ctx(), handle_id(arg.fh), mode, arg.offset, arg.length))
}

pub(super) fn seek(cx: &RequestContext<'_>, reply: Reply<'_>, arg: LSeekIn) -> Sent {
    if cx.shared.mode == Mode::KernelWriteback {
        // The kernel does not send its dirty pages before it asks, so data that only it has would
        // be called a hole. Refused once, it takes the whole file for data.
        return reply.error(Errno::NOSYS);
    }
    let what = match arg.whence.cast_signed() {
        libc::SEEK_DATA => Seek::Data,
        libc::SEEK_HOLE => Seek::Hole,
        _ => return reply.error(Errno::INVAL),
    };
    let found = cx.volume().seek(&cx.ctx(), handle_id(arg.fh), what, arg.offset);
    reply.result(found.map(|offset| LSeekOut { offset }))
}

/// The older form can only report 4 GiB.
pub(super) fn copy_range(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &CopyFileRangeIn) -> Sent {
    const LONGEST: u32 = !4095;
    match copy(cx, arg, arg.len.min(u64::from(LONGEST))) {
        Ok(len) => reply.value(&WriteOut { size: u32::try_from(len).unwrap_or(LONGEST), padding: 0 }),
        Err(errno) => reply.error(errno),
    }
}

pub(super) fn copy_range_64(cx: &RequestContext<'_>, reply: Reply<'_>, arg: &CopyFileRangeIn) -> Sent {
    match copy(cx, arg, arg.len) {
        Ok(bytes_copied) => reply.value(&CopyFileRangeOut { bytes_copied }),
        Err(errno) => reply.error(errno),
    }
}

fn copy(cx: &RequestContext<'_>, arg: &CopyFileRangeIn, len: u64) -> Result<u64, Errno> {
    if arg.flags != 0 {
        return Err(Errno::INVAL);
    }
    if ends_beyond(arg.off_out, len) || ends_beyond(arg.off_in, len) {
        return Err(Errno::FBIG);
    }
    if !cx.is_same_volume(arg.nodeid_out) {
        return Err(Errno::XDEV);
    }
    let (from, to) = ((handle_id(arg.fh_in), arg.off_in), (handle_id(arg.fh_out), arg.off_out));
    let copied = cx.volume().copy_range(&cx.ctx(), from, to, len);
    copied.map_err(|error| errno::of(&error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_end_at_the_largest_offset() {
        assert!(!ends_beyond(OFFSET_MAX - 1, 1));
        assert!(ends_beyond(OFFSET_MAX - 1, 2));
        assert!(ends_beyond(u64::MAX, 1));
        assert!(ends_beyond(u64::MAX, u64::MAX));
        assert!(!ends_beyond(0, 0));
    }

    #[test]
    fn sync_and_dsync_are_told_apart() {
        assert_ne!(SYNC_ONLY, 0);
        assert_eq!(SYNC_ONLY & flag(libc::O_DSYNC), 0);
        assert_eq!(SYNC_ONLY | flag(libc::O_DSYNC), flag(libc::O_SYNC));
    }
}
