//! Turns requests into calls of the volume.
//!
//! Purpose: [`Worker::serve`] takes one message from decoding to its answer. A panic in a handler
//! is that request's EIO, and affects no other request. The handlers, by subject, are in the
//! submodules; each consumes the request's [`Reply`] and gives back the proof.

mod attrs;
mod dirs;
mod files;
mod names;
mod place;
mod xattrs;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use volume::{Cancel, HandleId};

use crate::abi::{InHeader, Opcode};
use crate::buffer::Buffer;
use crate::decode::{self, Op};
use crate::interrupt::{Early, For, Slot, Waiting};
use crate::line::Line;
use crate::reply::{Reply, Sent};
use crate::session::Shared;
use crate::tree::Seen;
use place::{At, Cx, Turn};

/// One thread's means to serve requests.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) shared: Arc<Shared>,
    pub(crate) slot: Arc<Slot>,
    /// The thread's number, for statistics.
    pub(crate) number: usize,
    cancel: Arc<Cancel>,
    touched: Cell<bool>,
    /// The tree as it was when this thread looked last.
    seen: Seen,
    entries: Vec<store::DirEntry>,
}

impl Worker {
    pub(crate) fn new(shared: Arc<Shared>, slot: Arc<Slot>, number: usize) -> Self {
        let cancel = slot.cancel();
        Self {
            shared,
            slot,
            number,
            cancel,
            touched: Cell::new(false),
            seen: Seen::default(),
            entries: Vec::new(),
        }
    }

    /// Serves the message of `len` bytes in the buffer. `is_lent`: the buffer goes back to the
    /// kernel with the answer, which must not be given while the handler still uses it.
    pub(crate) fn serve(&mut self, buffer: &mut Buffer, len: usize, is_lent: bool) {
        self.serve_one(buffer, len, is_lent, false);
    }

    /// Serves a message that has waited; its answer goes where it was read.
    pub(crate) fn serve_waiting(&mut self, waiting: Waiting, buffer: &mut Buffer) {
        let Waiting { slot, message, .. } = waiting;
        let len = message.len();
        buffer.space()[..len].copy_from_slice(&message);
        drop(message);
        let own = std::mem::replace(&mut self.slot, slot);
        self.cancel = self.slot.cancel();
        self.serve_one(buffer, len, false, true);
        let done = std::mem::replace(&mut self.slot, own);
        self.cancel = self.slot.cancel();
        self.shared.interrupts.remove(&done);
    }

    fn serve_one(&mut self, buffer: &mut Buffer, len: usize, is_lent: bool, has_waited: bool) {
        let Self { shared, slot, number, cancel, touched, seen, entries } = self;
        let Some((header, op)) = decoded(shared, *number, buffer.message(len), slot.line()) else {
            return;
        };
        if !has_waited {
            shared.stats.request(*number, header.opcode);
        }
        // Another thread reads meanwhile: that was arranged when the request was taken.
        let before_wait = || shared.interrupts.may_wait();
        let unique = header.unique;
        if let Some(handled) = unanswerable(shared, slot, seen, &header, &op) {
            return note(shared, *number, &header, handled, shared.span());
        }
        let found = At::find(&shared.tree, seen, header.nodeid, &op);
        let refused = found.as_ref().err().copied();
        let (at, section) = found.unwrap_or_else(|_| (At::root(&shared.tree, 0), None));
        let early = if is_lent { Early::No } else { early(&op) };
        let whom = For {
            volume: at.volume_tag(),
            is_spared: place::is_spared(&op),
            says_nothing: place::says_nothing(&op),
            is_lent,
        };
        let turn = if refused.is_some() {
            Turn::Begins
        } else {
            at.turn((shared, slot), (whom, &op), (unique, header.pid), buffer.message(len), has_waited)
        };
        let refused = refused.or_else(|| (turn == Turn::Refused).then_some(Errno::IO));
        let _collected = match (&shared.page, &op) {
            (Some(page), Op::Write { arg, .. }) if files::is_collected(arg) => Some(page.collected.begin()),
            _ => None,
        };
        let is_to_begin =
            turn != Turn::Waits && at.begin(shared, slot, (unique, header.pid, early), has_waited);
        if !is_to_begin {
            return;
        }
        let page = shared.page.as_ref().filter(|_| may_change(&op)).map(|page| &page.page);
        let begin = || Reply::new(slot, touched, unique).noting(page);
        let kept = Cell::new(None);
        let is_without_store = turn == Turn::BeginsWithoutStore;
        let cx = Cx {
            shared,
            header: &header,
            at,
            kept: &kept,
            cancel,
            before_wait: &before_wait,
            is_without_store,
        };
        // Requests that need memory for data; then the rest.
        let handled = match op {
            _ if let Some(errno) = refused => answered(begin(), |reply| reply.error(errno)),
            Op::Read(arg) => answered(begin(), |reply| files::read(&cx, reply, &arg, buffer.data())),
            Op::ReadDir(arg) => answered(begin(), |reply| dirs::read(&cx, reply, &arg, buffer.data())),
            Op::ReadDirPlus(arg) => {
                answered(begin(), |reply| dirs::read_plus(&cx, reply, &arg, buffer.data(), entries))
            }
            op => answered(begin(), |reply| handle(&cx, reply, op)),
        };
        let panicked = matches!(handled, Handled::Panicked).then(|| cx.volume().span().clone());
        drop(section);
        // May end a volume that was detached.
        drop(kept.take());
        if touched.replace(false) {
            *cancel = slot.renew();
        }
        note(shared, *number, &header, handled, panicked.as_ref().unwrap_or(shared.span()));
    }
}

/// Serves a message that the kernel expects no answer to.
fn unanswerable(
    shared: &Shared,
    slot: &Slot,
    seen: &mut Seen,
    header: &InHeader,
    op: &Op<'_>,
) -> Option<Handled> {
    match op {
        Op::Forget(arg) => Some(unanswered(|| place::forget(shared, slot, seen, header.nodeid, arg.nlookup))),
        Op::BatchForget(forgets) => Some(unanswered(|| {
            forgets.iter().for_each(|one| place::forget(shared, slot, seen, one.nodeid, one.nlookup));
        })),
        Op::Interrupt(arg) => Some(unanswered(|| shared.interrupts.interrupt(arg.unique))),
        Op::NotServed(Opcode::NotifyReply) => Some(Handled::Fine),
        _ => None,
    }
}

fn note(shared: &Shared, number: usize, header: &InHeader, handled: Handled, span: &tracing::Span) {
    match handled {
        Handled::Fine => {}
        Handled::Error => shared.stats.error(number),
        Handled::Panicked => {
            shared.stats.panic(number);
            let op = Opcode::from_number(header.opcode).map_or("?", Opcode::name);
            let (node, unique) = (header.nodeid, header.unique);
            span.in_scope(|| tracing::error!(op, node, unique, "a request's handler panicked"));
        }
    }
}

/// Reads a message; one that cannot be read is logged, and answered if it says which request it is.
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
            // Failure: no process waits for the answer.
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

/// When a request may be answered while its handler goes on. If its late answer would have handed
/// something out, that is taken back (see [`Sent`]), and the kernel is notified of names that were
/// made or removed late.
fn early(op: &Op<'_>) -> Early {
    match op {
        Op::Open(arg) if files::truncates(arg.flags) => Early::No,
        Op::Open(_)
        | Op::Lookup { .. }
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
        | Op::LSeek(_) => Early::Always,
        Op::SetAttr(arg) if attrs::resizes(arg) => Early::No,
        op if place::changes_names_or_attributes(op) => Early::Killed,
        _ => Early::No,
    }
}

/// Whether something may not be durable after this request that was before.
fn may_change(op: &Op<'_>) -> bool {
    match op {
        Op::Write { .. }
        | Op::FAllocate(_)
        | Op::CopyFileRange(_)
        | Op::CopyFileRange64(_)
        | Op::Create { .. }
        | Op::TmpFile(_) => true,
        // The kernel collects data that is written through a mapping, and does not report it before
        // a sync.
        Op::Open(arg) => files::truncates(arg.flags) || files::writes(arg.flags),
        op => place::changes_names_or_attributes(op),
    }
}

fn handle(cx: &Cx<'_>, reply: Reply<'_>, op: Op<'_>) -> Sent {
    match op {
        Op::Lookup { name } => names::lookup(cx, reply, name),
        Op::Symlink { name, target } => names::symlink(cx, reply, name, target),
        Op::MkNod { arg, name } => names::mknod(cx, reply, &arg, name),
        Op::MkDir { arg, name } => names::mkdir(cx, reply, arg, name),
        Op::Unlink { name } => names::unlink(cx, reply, name),
        Op::RmDir { name } => names::rmdir(cx, reply, name),
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
        Op::RemoveXattr { name } => reply.unit(cx.volume().remove_xattr(&cx.ctx(), cx.node(), name)),
        Op::Destroy => destroy(cx, reply),
        // A connection begins once only.
        Op::Init(_) => reply.error(Errno::IO),
        // The kernel remembers that there is no such operation, and does not ask again.
        Op::NotServed(_) | Op::Unknown(_) => reply.error(Errno::NOSYS),
        // Served before; see `Worker::serve`.
        Op::Forget(_)
        | Op::BatchForget(_)
        | Op::Interrupt(_)
        | Op::Read(_)
        | Op::ReadDir(_)
        | Op::ReadDirPlus(_) => reply.error(Errno::IO),
    }
}

/// umount(2) waits for this answer: it goes out after the program has brought everything to the
/// store.
fn destroy(cx: &Cx<'_>, reply: Reply<'_>) -> Sent {
    cx.shared.destroy();
    reply.done()
}

/// A handle as the protocol carries it.
fn handle_id(fh: u64) -> HandleId {
    HandleId(fh)
}
