//! A serving thread.
//!
//! Purpose: it serves the request of an entry, hands the answer to the kernel and waits there for
//! the next request in the same entry: one system call for each request. A thread has one entry at
//! most, and while it serves, the kernel has none of its entries. So whatever a handler does holds
//! up that one request.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::io::Errno;
use rustix::time::{ClockId, clock_gettime};

use super::entry::{Entry, Payload, Received};
use super::entry_ring::{Completion, EntryRing, ends_connection};
use super::idle_sched::IdleSchedHandle;
use super::pool::NewWorker;
use super::reply_slot::{ReplySlot, ServedEntry};
use super::ring::Ring;
use crate::buffer::Buffer;
use crate::connection::Connection;
use crate::dispatch::RequestHandler;
use crate::in_flight::RequestSlot;
use crate::threads::Parker;
use crate::transport::dev_fuse::pool::ReadEnd;
use crate::transport::reply_channel::ReplyChannel;

/// A request that takes longer than this is slow: what its thread does afterwards does not matter.
const SLOW_MS: u64 = 10;

/// Starts a thread.
pub(super) fn spawn(
    ring: &Arc<Ring>,
    shared: &Arc<Connection>,
    new_worker: NewWorker,
) -> io::Result<JoinHandle<()>> {
    let (ring, shared) = (Arc::clone(ring), Arc::clone(shared));
    let name = format!("wt-ring-{}", new_worker.number);
    std::thread::Builder::new().name(name).spawn(move || {
        let _of_the_mount = shared.span().enter();
        let Some(entry) = new_worker.parker.take() else { return };
        Worker::new(&ring, &shared, new_worker).run(entry);
    })
}

struct Worker {
    ring: Arc<Ring>,
    shared: Arc<Connection>,
    number: usize,
    parker: Arc<Parker<Entry>>,
    slot: Arc<RequestSlot>,
    reply_slot: Arc<ReplySlot>,
    handler: RequestHandler,
    /// Where requests are put together; missing when the host had no memory.
    scratch: Option<Buffer>,
    /// Missing when the host had no io_uring for this thread, which then keeps no entry.
    entry_ring: Option<EntryRing>,
    idle_sched: IdleSchedHandle,
    /// Whether the caller of the request was alone on the mount.
    is_alone: bool,
    /// The CPU that this thread is kept on, if any; not known in the beginning.
    cpu: Option<Option<u16>>,
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.shared.in_flight.remove(&self.slot);
        self.ring.pool.remove_thread(self.number);
    }
}

/// How a thread goes on when it has passed an entry on.
enum Next {
    Serve(Entry),
    Rest,
    End,
}

impl Worker {
    fn new(ring: &Arc<Ring>, shared: &Arc<Connection>, new_worker: NewWorker) -> Self {
        let NewWorker { number, parker } = new_worker;
        let reply_slot = Arc::new(ReplySlot::new(Arc::clone(ring)));
        let slot = Arc::new(RequestSlot::new(ReplyChannel::ReplySlot(Arc::clone(&reply_slot))));
        shared.in_flight.add(&slot);
        let entry_ring = EntryRing::new(ring.dev.fd(), 1).inspect_err(
            |error| tracing::warn!(%error, "cannot make an io_uring for a thread, which is slower without"),
        );
        Self {
            ring: Arc::clone(ring),
            shared: Arc::clone(shared),
            number,
            parker,
            handler: RequestHandler::new(Arc::clone(shared), Arc::clone(&slot), number),
            slot,
            reply_slot,
            scratch: Buffer::new().ok(),
            entry_ring: entry_ring.ok(),
            idle_sched: ring.watchdog.register(),
            is_alone: false,
            cpu: None,
        }
    }

    fn run(mut self, first: Entry) {
        let mut next = self.adopt(first);
        loop {
            next = match next {
                Next::Serve(entry) => self.serve_and_pass_on(entry),
                Next::Rest => match self.ring.pool.park(&self.parker) {
                    Some(entry) => self.adopt(entry),
                    None => return,
                },
                Next::End => return,
            };
        }
    }

    /// Takes over an entry that was another thread's.
    fn adopt(&self, entry: Entry) -> Next {
        self.ring.queue(&entry).start_serving();
        Next::Serve(entry)
    }

    fn serve_and_pass_on(&mut self, entry: Entry) -> Next {
        let begun = coarse_ms();
        match self.serve(entry, begun) {
            Some(entry) => self.pass_on(entry, begun),
            None => Next::Rest,
        }
    }

    /// Serves; gives the entry back with its answer, unless another thread has it now.
    fn serve(&mut self, mut entry: Entry, now_ms: u64) -> Option<Entry> {
        self.ring.queue(&entry).release_resident(&mut entry);
        let Some(scratch) = &mut self.scratch else {
            entry.refuse(Errno::NOMEM);
            return Some(entry);
        };
        let received = match entry.receive(scratch) {
            Ok(received) => received,
            Err(error) => {
                self.shared.stats.unknown(self.number);
                tracing::error!(%error, "a request that cannot be read");
                entry.refuse(Errno::IO);
                return Some(entry);
            }
        };
        let Received { unique, caller, len, payload, reads_ahead } = received;
        self.is_alone = self.ring.single_client.observe(caller, now_ms);
        let cpu = if reads_ahead { None } else { Some(entry.queue()) };
        if self.cpu != Some(cpu) {
            self.ring.cpus.keep_to(cpu);
            self.cpu = Some(cpu);
        }
        let handler = &mut self.handler;
        // Handlers' panics are dealt with inside; a panic that comes out here must not cost the
        // thread either.
        match payload {
            Payload::Copied => {
                self.reply_slot.put_entry(unique, entry);
                let served = catch_unwind(AssertUnwindSafe(|| handler.serve(scratch, len, false)));
                log_panic(served);
                match self.reply_slot.take_served() {
                    ServedEntry::Answered(entry) => Some(entry),
                    ServedEntry::Unanswered(mut entry) => {
                        entry.refuse(Errno::IO);
                        Some(entry)
                    }
                    ServedEntry::Gone => None,
                }
            }
            Payload::InPlace => {
                self.reply_slot.begin_in_place(unique, entry.buffer.data().as_ptr().addr());
                let served = catch_unwind(AssertUnwindSafe(|| handler.serve(&mut entry.buffer, len, true)));
                log_panic(served);
                entry.conclude_in_place(unique, self.reply_slot.in_place_reply());
                Some(entry)
            }
        }
    }

    /// Hands an answered entry over and waits for its next request.
    fn pass_on(&mut self, mut entry: Entry, begun: u64) -> Next {
        let Self { ring, shared, entry_ring, idle_sched, cpu, is_alone, .. } = self;
        let queue = ring.queue(&entry);
        let is_slow = coarse_ms() - begun > SLOW_MS;
        let Some(entry_ring) =
            entry_ring.as_mut().filter(|_| !(ring.pool.is_needed() || (is_slow && queue.has_idle())))
        else {
            idle_sched.leave();
            ring.return_entry(entry);
            return Next::Rest;
        };
        let release =
            entry.is_large() && queue.is_crowded(ring.resident) && !queue.claim_resident(&mut entry);
        queue.start_waiting();
        entry_ring.commit(entry);
        if release && entry_ring.submit().is_ok() && !entry_ring.has_completion() {
            entry_ring.release_submitted();
        }
        idle_sched.before_wait(begun, *is_alone && matches!(cpu, Some(Some(_))));
        if let Err(errno) = entry_ring.wait() {
            fail(ring, shared, errno);
            return Next::End;
        }
        match entry_ring.next() {
            Some(Completion::Request(entry)) => {
                queue.resume_serving();
                Next::Serve(entry)
            }
            Some(Completion::Failed(errno)) if ends_connection(errno) => {
                ring.end();
                Next::End
            }
            other => {
                queue.drop_waiting();
                tracing::error!(?other, "the kernel returned an entry with an error");
                Next::Rest
            }
        }
    }
}

/// io_uring does not work any more: the session cannot go on.
pub(super) fn fail(ring: &Ring, shared: &Connection, errno: Errno) {
    ring.end();
    shared.pool.end(ReadEnd::Failed(errno));
}

fn log_panic(served: std::thread::Result<()>) {
    if served.is_err() {
        tracing::error!("a panic outside a request's handler");
    }
}

/// Milliseconds of a clock that is quick to read and exact to some milliseconds.
fn coarse_ms() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // Never before the host's start.
    u64::try_from(now.tv_sec * 1000 + now.tv_nsec / 1_000_000).unwrap_or(0)
}
