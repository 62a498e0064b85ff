//! Requests to calls of the volume.
//!
//! Purpose: [`Worker::serve`] takes one message from decoding to its answer. A panic in a handler is that request's
//! EIO and nobody else's trouble. The handlers, by subject, are in the submodules; each consumes the
//! request's [`Reply`] and gives back the proof.

mod attrs;
mod closing;
mod dirs;
mod files;
mod locks;
mod names;
mod xattrs;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use volume::{Caller, Cancel, Ctx, HandleId, NodeId, Volume};

use crate::abi::{InHeader, Opcode};
use crate::buffer::Buffer;
use crate::decode::{self, Op};
use crate::interrupt::Slot;
use crate::line::Line;
use crate::reply::{ParkedReply, Reply, Sent};
use crate::session::Shared;

pub(crate) use closing::Closing;
pub(crate) use locks::OwnersByHandle;
#[cfg(all(test, shuttle))]
pub(crate) use locks::wait_parked;

/// One thread's means to serve requests.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot: Arc<Slot>,
    /// The thread's number, for statistics.
    pub(crate) number: usize,
    cancel: Arc<Cancel>,
    touched: Cell<bool>,
    entries: Vec<store::DirEntry>,
}

/// What handlers need to know of the request in hand.
pub(crate) struct Cx<'a> {
    shared: &'a Shared,
    header: &'a InHeader,
    cancel: &'a Cancel,
    before_wait: &'a (dyn Fn() + Sync),
}

impl<'a> Cx<'a> {
    fn volume(&self) -> &'a Volume {
        &self.shared.volume
    }

    /// The node that the request is about.
    fn node(&self) -> NodeId {
        store::ObjectId(self.header.nodeid)
    }

    fn ctx(&self) -> Ctx<'_> {
        self.ctx_with_umask(0)
    }

    fn ctx_with_umask(&self, umask: u32) -> Ctx<'_> {
        let caller = Caller { pid: self.header.pid, uid: self.header.uid, gid: self.header.gid, umask };
        Ctx { caller, cancel: self.cancel, before_wait: self.before_wait }
    }
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, slot: Arc<Slot>, number: usize) -> Self {
        let cancel = slot.cancel();
        Self { shared, slot, number, cancel, touched: Cell::new(false), entries: Vec::new() }
    }

    /// Serves the message of `len` bytes in the buffer. `is_lent`: the buffer goes back to the kernel with the
    /// answer, which must not be given while the handler still uses it.
    pub(crate) fn serve(&mut self, buffer: &mut Buffer, len: usize, is_lent: bool) {
        let Self { shared, slot, number, cancel, touched, entries } = self;
        let Some((header, op)) = decoded(shared, *number, buffer.message(len), slot.line()) else {
            return;
        };
        shared.stats.request(*number, header.opcode);
        // That others are served meanwhile is seen to when a request is taken.
        let before_wait = || shared.interrupts.may_wait();
        let cx = Cx { shared, header: &header, cancel, before_wait: &before_wait };
        let unique = header.unique;
        let begin = || {
            shared.interrupts.begin(slot, unique, header.pid, !is_lent && is_abandonable(&op));
            Reply::new(slot, touched, unique)
        };
        // What has no reply, or a reply later; then what needs memory for data; then the rest.
        let sent = match op {
            Op::Forget(arg) => unanswered(|| cx.volume().forget(cx.node(), arg.nlookup)),
            Op::BatchForget(forgets) => unanswered(|| names::forget_all(&cx, forgets)),
            Op::Interrupt(arg) => unanswered(|| shared.interrupts.interrupt(arg.unique, cx.volume())),
            Op::NotServed(Opcode::NotifyReply) => return,
            Op::SetLkW(arg) => {
                let reply = ParkedReply::new(slot, &shared.interrupts, unique);
                unanswered(|| locks::wait(&cx, reply, &arg))
            }
            Op::Read(arg) => answered(begin(), |reply| files::read(&cx, reply, &arg, buffer.data())),
            Op::ReadDir(arg) => answered(begin(), |reply| dirs::read(&cx, reply, &arg, buffer.data())),
            Op::ReadDirPlus(arg) => {
                answered(begin(), |reply| dirs::read_plus(&cx, reply, &arg, buffer.data(), entries))
            }
            op => answered(begin(), |reply| handle(&cx, reply, op)),
        };
        if touched.replace(false) {
            *cancel = slot.renew();
        }
        match sent {
            Handled::Fine => {}
            Handled::Error => shared.stats.error(*number),
            Handled::Panicked => {
                shared.stats.panic(*number);
                let op = Opcode::from_number(header.opcode).map_or("?", Opcode::name);
                tracing::error!(op, node = header.nodeid, unique, "a request's handler panicked");
            }
        }
    }
}

/// Reads a message; what cannot be read is logged, and answered if it says whom to answer.
fn decoded<'a>(shared: &Shared, number: usize, message: &'a [u8], line: &Line) -> Option<(InHeader, Op<'a>)> {
    let (header, body) = match decode::header(message) {
        Ok(split) => split,
        Err(error) => {
            shared.stats.unknown(number);
            tracing::error!(%error, "a message that cannot be answered");
            return None;
        }
    };
    match decode::operation(&header, body, shared.negotiated.agreed) {
        Ok(op) => Some((header, op)),
        Err(error) => {
            shared.stats.unknown(number);
            tracing::error!(%error, unique = header.unique, "a request that cannot be read");
            // Failure: nobody waits for the answer.
            let _unwanted = line.answer(header.unique, Err(Errno::IO));
            None
        }
    }
}

enum Handled {
    Fine,
    Error,
    Panicked,
}

/// Runs a handler; `reply` answers EIO by itself if it panics.
fn answered<'a>(reply: Reply<'a>, handler: impl FnOnce(Reply<'a>) -> Sent) -> Handled {
    match catch_unwind(AssertUnwindSafe(|| handler(reply))) {
        Ok(Sent { is_error: false, .. }) => Handled::Fine,
        Ok(Sent { is_error: true, .. }) => Handled::Error,
        Err(_) => Handled::Panicked,
    }
}

/// Runs a handler that answers nothing, or later.
fn unanswered(handler: impl FnOnce()) -> Handled {
    match catch_unwind(AssertUnwindSafe(handler)) {
        Ok(()) => Handled::Fine,
        Err(_) => Handled::Panicked,
    }
}

/// Whether a request of a killed caller may be answered EINTR while its handler goes on: nothing that
/// matters happens late, and what the late answer would have handed out is taken back (see [`Sent`]).
fn is_abandonable(op: &Op<'_>) -> bool {
    match op {
        Op::Open(arg) => !files::truncates(arg.flags),
        Op::Lookup { .. }
        | Op::GetAttr(_)
        | Op::ReadLink
        | Op::Read(_)
        | Op::Write { .. }
        | Op::StatFs
        | Op::FSync(_)
        | Op::FSyncDir(_)
        | Op::SyncFs
        | Op::Flush(_)
        | Op::GetXattr { .. }
        | Op::ListXattr(_)
        | Op::OpenDir(_)
        | Op::ReadDir(_)
        | Op::ReadDirPlus(_)
        | Op::GetLk(_)
        | Op::LSeek(_) => true,
        _ => false,
    }
}

fn handle(cx: &Cx<'_>, reply: Reply<'_>, op: Op<'_>) -> Sent {
    match op {
        Op::Lookup { name } => names::lookup(cx, reply, name),
        Op::Symlink { name, target } => names::symlink(cx, reply, name, target),
        Op::MkNod { arg, name } => names::mknod(cx, reply, &arg, name),
        Op::MkDir { arg, name } => names::mkdir(cx, reply, arg, name),
        Op::Unlink { name } => reply.unit(cx.volume().unlink(cx.node(), name)),
        Op::RmDir { name } => reply.unit(cx.volume().rmdir(cx.node(), name)),
        Op::Rename { arg, name, new_name } => names::rename(cx, reply, &arg, name, new_name),
        Op::Link { arg, name } => names::link(cx, reply, arg, name),
        Op::GetAttr(_) => attrs::get(cx, reply),
        Op::SetAttr(arg) => attrs::set(cx, reply, &arg),
        Op::ReadLink => attrs::read_link(cx, reply),
        Op::StatFs => attrs::statfs(cx, reply),
        Op::Open(arg) => files::open(cx, reply, arg),
        Op::Create { arg, name } => files::create(cx, reply, arg, name),
        Op::TmpFile(arg) => files::tmpfile(cx, reply, arg),
        Op::Write { arg, data } => files::write(cx, reply, &arg, data),
        Op::Release(arg) => files::release(cx, reply, &arg),
        Op::Flush(arg) => files::flush(cx, reply, arg),
        Op::FSync(arg) => files::fsync(cx, reply, arg),
        Op::FAllocate(arg) => files::allocate(cx, reply, &arg),
        Op::LSeek(arg) => files::seek(cx, reply, arg),
        Op::CopyFileRange(arg) => files::copy_range(cx, reply, &arg),
        Op::CopyFileRange64(arg) => files::copy_range_64(cx, reply, &arg),
        Op::SyncFs => files::sync(cx, reply),
        Op::OpenDir(_) => dirs::open(cx, reply),
        Op::ReleaseDir(arg) => dirs::release(cx, reply, &arg),
        Op::FSyncDir(arg) => dirs::fsync(cx, reply, arg),
        Op::SetXattr { arg, name, value } => xattrs::set(cx, reply, arg, name, value),
        Op::GetXattr { arg, name } => xattrs::get(cx, reply, arg, name),
        Op::ListXattr(arg) => xattrs::list(cx, reply, arg),
        Op::RemoveXattr { name } => reply.unit(cx.volume().remove_xattr(cx.node(), name)),
        Op::GetLk(arg) => locks::get(cx, reply, &arg),
        Op::SetLk(arg) => locks::set(cx, reply, &arg),
        Op::Destroy => destroy(cx, reply),
        // A connection begins once only.
        Op::Init(_) => reply.error(Errno::IO),
        // The kernel remembers that there is no such thing, and does not ask again.
        Op::NotServed(_) | Op::Unknown(_) => reply.error(Errno::NOSYS),
        // Served before; see `Worker::serve`.
        Op::Forget(_)
        | Op::BatchForget(_)
        | Op::Interrupt(_)
        | Op::SetLkW(_)
        | Op::Read(_)
        | Op::ReadDir(_)
        | Op::ReadDirPlus(_) => reply.error(Errno::IO),
    }
}

/// umount(2) waits for this answer: it goes out after the program has brought everything to the store.
fn destroy(cx: &Cx<'_>, reply: Reply<'_>) -> Sent {
    cx.shared.destroy();
    reply.done()
}

/// A handle as the protocol carries it.
fn handle_id(fh: u64) -> HandleId {
    HandleId(fh)
}
