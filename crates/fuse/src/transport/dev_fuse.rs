//! The threads that read requests from `/dev/fuse`.
//!
//! Module [`pool`] decides how many there are; this one is what each of them does.

pub(crate) mod pool;

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;
use zerocopy::FromBytes as _;

use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::device::Dev;
use crate::dispatch::RequestHandler;
use crate::in_flight::RequestSlot;
use crate::protocol::abi::{InHeader, Opcode};
use crate::threads::Parker;
use crate::transport::reply_channel::ReplyChannel;
use pool::{ReadEnd, Spawn};

/// How long FORGETs are collected then, and an INTERRUPT among them may be late.
const PAUSE: Duration = Duration::from_millis(2);
/// How long a thread waits for memory before it tries again.
const MEMORY_RETRY: Duration = Duration::from_millis(100);

impl Spawn for Arc<Connection> {
    fn spawn(&self, number: usize) -> io::Result<JoinHandle<()>> {
        let connection = Self::clone(self);
        let builder = std::thread::Builder::new().name(format!("wt-fuse-{number}"));
        builder.spawn(move || run(&connection, number))
    }

    fn on_exhausted(&self) {
        // The watcher looks for killed callers.
        self.in_flight.request_scan();
    }
}

/// Takes the thread out of the lists however it ends.
struct Member<'a> {
    shared: &'a Connection,
    slot: Option<Arc<RequestSlot>>,
    number: usize,
}

impl Drop for Member<'_> {
    fn drop(&mut self) {
        if let Some(slot) = &self.slot {
            self.shared.in_flight.remove(slot);
        }
        self.shared.pool.remove_thread(self.number);
    }
}

/// A reading thread.
fn run(shared: &Arc<Connection>, number: usize) {
    let _of_the_mount = shared.span().enter();
    let mut member = Member { shared, slot: None, number };
    let Some(mut buffer) = buffer(shared) else { return };
    // A descriptor of its own spares the threads each other's locks; without it they share the
    // first.
    let clone = || shared.master.try_clone(false).map_or_else(|_| Arc::clone(&shared.master), Arc::new);
    let dev = if shared.resent.journal().is_some() { Arc::clone(&shared.master) } else { clone() };
    let slot = Arc::new(RequestSlot::new(ReplyChannel::Dev(Arc::clone(&dev))));
    shared.in_flight.add(&slot);
    member.slot = Some(Arc::clone(&slot));
    let mut handler = RequestHandler::new(Arc::clone(shared), slot, number);
    let parker = Arc::new(Parker::default());
    let end = read_loop(&mut handler, &dev, &mut buffer, &parker);
    if let Some(end) = end {
        shared.in_flight.close_queue();
        shared.pool.end(end);
    }
}

/// Memory to read into. The thread counts as one that reads, and may be the only one: it does not
/// give up while the connection lasts.
fn buffer(shared: &Connection) -> Option<Buffer> {
    let pinned = |mut buffer: Buffer| {
        if shared.resent.journal().is_some() {
            buffer.pin()?;
        }
        Ok(buffer)
    };
    loop {
        match Buffer::new().and_then(pinned) {
            Ok(buffer) => return Some(buffer),
            Err(error) => tracing::error!(%error, "no memory to read requests into"),
        }
        // Nothing reports when there is memory.
        if shared.pool.wait_ended(MEMORY_RETRY) {
            return None;
        }
    }
}

/// Whether the kernel only says what it has forgotten.
fn is_forget(message: &[u8]) -> bool {
    let header = InHeader::read_from_prefix(message);
    let opcode = header.ok().and_then(|(header, _)| Opcode::from_number(header.opcode));
    matches!(opcode, Some(Opcode::Forget | Opcode::BatchForget))
}

fn read_loop(
    handler: &mut RequestHandler,
    dev: &Dev,
    buffer: &mut Buffer,
    parker: &Arc<Parker<()>>,
) -> Option<ReadEnd> {
    let shared = Arc::clone(&handler.shared);
    let pop_queued = || shared.in_flight.pop_queued(shared.pool.capacity());
    loop {
        let mut is_forget = false;
        // A request that has waited comes first: this thread may have been brought for it.
        if let Some(queued) = pop_queued() {
            shared.pool.on_request_taken(&shared);
            handler.serve_queued(queued, buffer);
        } else {
            let reading = shared.resent.reading(dev);
            match dev.read(buffer.space()) {
                Ok(len) => {
                    handler.note(buffer.message(len));
                    drop(reading);
                    shared.pool.on_request_taken(&shared);
                    is_forget = self::is_forget(buffer.message(len));
                    handler.serve(buffer, len, false);
                }
                // NOENT: the request was taken back while it was read.
                Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
                Err(Errno::NODEV) => return Some(ReadEnd::Unmounted),
                Err(Errno::CONNABORTED) => return Some(ReadEnd::Aborted),
                Err(error) => return Some(ReadEnd::Failed(error)),
            }
        }
        while let Some(queued) = pop_queued() {
            handler.serve_queued(queued, buffer);
        }
        if !shared.pool.after_request(parker) {
            return None;
        }
        if is_forget && shared.pool.is_relaxed() {
            // Not in place of a wake-up, but to be woken less often.
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(all(test, shuttle))]
mod schedules;
