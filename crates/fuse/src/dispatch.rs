//! Turns requests into calls of the volume.
//!
//! Purpose: [`RequestHandler::serve`] takes one message from decoding to its answer. A panic in a
//! handler is that request's EIO, and affects no other request. The handlers, by subject, are in
//! the submodules; each consumes the request's [`Reply`] and gives back the proof.

mod attrs;
mod context;
mod dirs;
mod files;
mod forget;
mod names;
mod once;
mod op_class;
mod op_timer;
mod target;
mod xattrs;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Instant;

use recovery::{Journal, RequestRecord, Slot};
use rustix::io::Errno;
use sync::mutant::is_on;
use volume::Cancel;

use crate::admission::queue::QueuedRequest;
use crate::admission::{self, Admission, Request};
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::in_flight::{AbortPolicy, RequestClass, RequestKey, RequestSlot};
use crate::protocol::abi::{InHeader, Opcode};
use crate::protocol::decode::{self, Op};
use crate::reply::{Reply, Sent};
use crate::resent::CRASHES_MAX;
use crate::transport::reply_channel::ReplyChannel;
use crate::tree::{AttachedVolume, SnapshotCache};
use context::RequestContext;
use once::Once;
use op_timer::OpTimer;
use target::Target;

/// One thread's means to serve requests.
#[derive(Debug)]
pub(crate) struct RequestHandler {
    pub(crate) shared: Arc<Connection>,
    pub(crate) slot: Arc<RequestSlot>,
    /// The thread's number, for statistics.
    pub(crate) number: usize,
    cancel: Arc<Cancel>,
    cancel_used: Cell<bool>,
    /// The tree as this thread saw it last.
    cache: SnapshotCache,
    entries: Vec<store::DirEntry>,
    /// Where the request in hand is noted.
    noted: Option<Slot>,
    /// How far the request in hand came in the hands of a server that died.
    before: Option<RequestRecord>,
}

impl Drop for RequestHandler {
    fn drop(&mut self) {
        if let (Some(journal), Some(slot)) = (self.shared.resent.journal(), self.noted) {
            journal.remove_thread(slot);
        }
    }
}

impl RequestHandler {
    pub(crate) fn new(shared: Arc<Connection>, slot: Arc<RequestSlot>, number: usize) -> Self {
        let cancel = slot.cancel();
        let noted = shared.resent.journal().and_then(Journal::add_thread);
        Self {
            shared,
            slot,
            number,
            cancel,
            cancel_used: Cell::new(false),
            cache: SnapshotCache::default(),
            entries: Vec::new(),
            noted,
            before: None,
        }
    }

    /// Notes a message that was just read.
    pub(crate) fn note(&mut self, message: &[u8]) {
        if !is_on("recovery-noted-after-its-answer") {
            self.before = self.shared.resent.note(self.noted, message);
        }
    }

    /// Serves the message of `len` bytes in the buffer. `in_place`: the buffer goes back to the
    /// kernel with the answer, which must not be given while the handler still uses it.
    pub(crate) fn serve(&mut self, buffer: &mut Buffer, len: usize, in_place: bool) {
        if is_on("recovery-ended-before-its-answer") {
            self.end_note();
        }
        self.serve_one(buffer, len, in_place, None);
        if is_on("recovery-noted-after-its-answer") {
            self.shared.resent.note(self.noted, buffer.message(len));
        }
        self.before = None;
        self.end_note();
    }

    fn end_note(&self) {
        if let (Some(journal), Some(slot)) = (self.shared.resent.journal(), self.noted) {
            journal.end(slot);
        }
    }

    /// Serves a message that has waited; its answer goes where it was read.
    pub(crate) fn serve_queued(&mut self, queued: QueuedRequest, buffer: &mut Buffer) {
        let QueuedRequest { slot, message, since, .. } = queued;
        let len = message.len();
        buffer.space()[..len].copy_from_slice(&message);
        drop(message);
        let own = std::mem::replace(&mut self.slot, slot);
        self.cancel = self.slot.cancel();
        self.serve_one(buffer, len, false, Some(since));
        let done = std::mem::replace(&mut self.slot, own);
        self.cancel = self.slot.cancel();
        self.shared.in_flight.remove(&done);
    }

    /// Serves one message: decodes it, finds its volume, has it admitted, runs its handler, and
    /// records how that went. One that has waited is served once more, with the time since when.
    fn serve_one(&mut self, buffer: &mut Buffer, len: usize, in_place: bool, waited: Option<Instant>) {
        let Self { shared, slot, number, cancel, cancel_used, cache, entries, noted, before } = self;
        let Some((header, op)) = decoded(shared, *number, buffer.message(len), slot.channel()) else {
            return;
        };
        if waited.is_none() {
            shared.stats.request(*number, header.opcode);
        }
        if let Some(handled) = unanswerable(shared, slot, cache, &header, &op) {
            return record(shared, *number, &header, handled, shared.span());
        }
        let timer = OpTimer::begin(waited, slot.activity());
        let found = Target::find(&shared.tree, cache, header.nodeid, &op);
        let refused = found.as_ref().err().copied().or_else(|| suspected(before.as_ref(), &header));
        let (target, section) = found.unwrap_or_else(|_| (Target::root(&shared.tree, 0), None));
        let request = request(&header, &op, target.served, in_place, waited.is_some());
        let admission = match refused {
            Some(errno) => Admission::Refused(errno),
            None => admission::admit(shared, slot, &request, buffer.message(len)),
        };
        let _collected = match (&shared.page, &op) {
            (Some(page), Op::Write { arg, .. }) if op_class::is_collected(arg) => {
                Some(page.collected.begin())
            }
            _ => None,
        };
        if admission == Admission::Queued || !admission::begin(shared, slot, &request) {
            return;
        }
        let page = shared.page.as_ref().filter(|_| op_class::may_change(&op)).map(|page| &page.page);
        let reply = Reply::new(slot, cancel_used, header.unique).noting(page);
        let dropped_pin = Cell::new(None);
        let cx = RequestContext {
            shared,
            header: &header,
            target,
            dropped_pin: &dropped_pin,
            cancel,
            // Another thread reads meanwhile: that was arranged when the request was taken.
            before_wait: &|| shared.in_flight.request_scan(),
            without_store: admission == Admission::StartWithoutStore,
            once: Once::new(shared.resent.journal(), *noted, *before),
        };
        // Requests that need memory for data; then the rest.
        let handled = match op {
            _ if let Admission::Refused(errno) = admission => answered(reply, |reply| reply.error(errno)),
            Op::Read(arg) => answered(reply, |reply| files::read(&cx, reply, &arg, buffer.data())),
            Op::ReadDir(arg) => answered(reply, |reply| dirs::read(&cx, reply, &arg, buffer.data())),
            Op::ReadDirPlus(arg) => {
                answered(reply, |reply| dirs::read_plus(&cx, reply, &arg, buffer.data(), entries))
            }
            op => answered(reply, |reply| handle(&cx, reply, op)),
        };
        timer.end(cx.volume(), header.opcode);
        let panicked = matches!(handled, Handled::Panicked).then(|| cx.volume().span().clone());
        drop(section);
        // May end a volume that was detached.
        drop(dropped_pin.take());
        if cancel_used.replace(false) {
            *cancel = slot.reset_cancel();
        }
        record(shared, *number, &header, handled, panicked.as_ref().unwrap_or(shared.span()));
    }
}

/// The error of a request that servers die of.
fn suspected(before: Option<&RequestRecord>, header: &InHeader) -> Option<Errno> {
    let crashes = before?.crashes;
    if crashes < CRASHES_MAX {
        return None;
    }
    let op = Opcode::from_number(header.opcode).map_or("?", Opcode::name);
    tracing::error!(
        op,
        node = header.nodeid,
        crashes,
        "servers have died with this request in their hands: it is answered EIO"
    );
    Some(Errno::IO)
}

/// A request as its admission sees it.
fn request<'a>(
    header: &InHeader,
    op: &Op<'_>,
    volume: &'a AttachedVolume,
    in_place: bool,
    has_waited: bool,
) -> Request<'a> {
    let policy = if in_place { AbortPolicy::Never } else { op_class::abort_policy(op) };
    Request {
        key: RequestKey { unique: header.unique, pid: header.pid, opcode: header.opcode, policy },
        class: RequestClass {
            volume: volume.tag,
            quota_exempt: op_class::has_no_caller(op),
            empty_reply: op_class::has_empty_reply(op),
            in_place,
        },
        volume,
        is_destroy: matches!(op, Op::Destroy),
        has_waited,
    }
}

/// Serves a message that the kernel expects no answer to.
fn unanswerable(
    shared: &Connection,
    slot: &RequestSlot,
    cache: &mut SnapshotCache,
    header: &InHeader,
    op: &Op<'_>,
) -> Option<Handled> {
    match op {
        Op::Forget(arg) => {
            Some(unanswered(|| forget::forget(shared, slot, cache, header.nodeid, arg.nlookup)))
        }
        Op::BatchForget(forgets) => Some(unanswered(|| {
            forgets.iter().for_each(|one| forget::forget(shared, slot, cache, one.nodeid, one.nlookup));
        })),
        Op::Interrupt(arg) => Some(unanswered(|| shared.in_flight.interrupt(arg.unique))),
        Op::NotServed(Opcode::NotifyReply) => Some(Handled::Fine),
        _ => None,
    }
}

fn record(shared: &Connection, number: usize, header: &InHeader, handled: Handled, span: &tracing::Span) {
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
fn decoded<'a>(
    shared: &Connection,
    number: usize,
    message: &'a [u8],
    channel: &ReplyChannel,
) -> Option<(InHeader, Op<'a>)> {
    let (mut header, body) = match decode::header(message) {
        Ok(split) => split,
        Err(error) => {
            shared.stats.unknown(number);
            tracing::error!(%error, "a message that cannot be answered");
            return None;
        }
    };
    match decode::operation(&header, body, shared.negotiated.agreed) {
        Ok(op) => {
            if op_class::has_no_caller(&op) {
                header.pid = 0;
            }
            Some((header, op))
        }
        Err(error) => {
            shared.stats.unknown(number);
            tracing::error!(%error, unique = header.unique, "a request that cannot be read");
            // Failure: no process waits for the answer.
            let _unwanted = channel.answer(header.unique, Err(Errno::IO));
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

fn handle(cx: &RequestContext<'_>, reply: Reply<'_>, op: Op<'_>) -> Sent {
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
        Op::RemoveXattr { name } => xattrs::remove(cx, reply, name),
        Op::Destroy => destroy(cx, reply),
        // A connection begins once only.
        Op::Init(_) => reply.error(Errno::IO),
        // The kernel remembers that there is no such operation, and does not ask again.
        Op::NotServed(_) | Op::Unknown(_) => reply.error(Errno::NOSYS),
        // Served before; see `RequestHandler::serve`.
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
fn destroy(cx: &RequestContext<'_>, reply: Reply<'_>) -> Sent {
    cx.shared.destroy();
    reply.done()
}
