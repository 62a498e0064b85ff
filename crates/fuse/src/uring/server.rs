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

use super::crew::{Bunk, Recruit};
use super::entry::{Entry, Place, Received};
use super::lane::{Event, Lane};
use super::seat::{Left, Seat};
use super::stay::Stayer;
use super::{Ring, ends_connection};
use crate::buffer::Buffer;
use crate::dispatch::Worker;
use crate::interrupt::Slot;
use crate::line::Line;
use crate::session::Shared;

/// A request that takes longer than this is slow: what its thread does afterwards does not matter.
const SLOW_MS: u64 = 10;

/// Starts a thread.
pub(super) fn spawn(ring: &Arc<Ring>, shared: &Arc<Shared>, recruit: Recruit) -> io::Result<JoinHandle<()>> {
    let (ring, shared) = (Arc::clone(ring), Arc::clone(shared));
    let name = format!("wt-ring-{}", recruit.number);
    std::thread::Builder::new().name(name).spawn(move || {
        let _of_the_mount = shared.span().enter();
        let Some(entry) = recruit.bunk.take() else { return };
        Server::new(&ring, &shared, recruit).run(entry);
    })
}

struct Server {
    ring: Arc<Ring>,
    shared: Arc<Shared>,
    number: usize,
    bunk: Arc<Bunk>,
    slot: Arc<Slot>,
    seat: Arc<Seat>,
    worker: Worker,
    /// Where requests are put together; missing when the host had no memory.
    scratch: Option<Buffer>,
    /// Missing when the host had no io_uring for this thread, which then keeps no entry.
    lane: Option<Lane>,
    stayer: Stayer,
    /// Whether the caller of the request was alone on the mount.
    is_alone: bool,
    /// The CPU that this thread is kept on, if any; not known in the beginning.
    cpu: Option<Option<u16>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.interrupts.remove(&self.slot);
        self.ring.crew.left(self.number);
    }
}

/// How a thread goes on when it has passed an entry on.
enum Next {
    Serve(Entry),
    Rest,
    End,
}

impl Server {
    fn new(ring: &Arc<Ring>, shared: &Arc<Shared>, recruit: Recruit) -> Self {
        let Recruit { number, bunk } = recruit;
        let seat = Arc::new(Seat::new(Arc::clone(ring)));
        let slot = Arc::new(Slot::new(Line::Seat(Arc::clone(&seat))));
        shared.interrupts.add(&slot);
        let lane = Lane::new(ring.dev.fd(), 1)
            .inspect_err(|error| tracing::warn!(%error, "no io_uring for a thread, which makes it slower"));
        Self {
            ring: Arc::clone(ring),
            shared: Arc::clone(shared),
            number,
            bunk,
            worker: Worker::new(Arc::clone(shared), Arc::clone(&slot), number),
            slot,
            seat,
            scratch: Buffer::new().ok(),
            lane: lane.ok(),
            stayer: ring.guard.join(),
            is_alone: false,
            cpu: None,
        }
    }

    fn run(mut self, first: Entry) {
        let mut next = self.adopt(first);
        loop {
            next = match next {
                Next::Serve(entry) => self.serve_and_pass_on(entry),
                Next::Rest => match self.ring.crew.rest(&self.bunk) {
                    Some(entry) => self.adopt(entry),
                    None => return,
                },
                Next::End => return,
            };
        }
    }

    /// Takes over an entry that was another thread's.
    fn adopt(&self, entry: Entry) -> Next {
        self.ring.queue(&entry).begins();
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
        self.ring.queue(&entry).takes(&mut entry);
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
        let Received { unique, caller, len, place, reads_ahead } = received;
        self.is_alone = self.ring.callers.is_alone(caller, now_ms);
        let cpu = if reads_ahead { None } else { Some(entry.queue()) };
        if self.cpu != Some(cpu) {
            self.ring.cpus.keep_to(cpu);
            self.cpu = Some(cpu);
        }
        let worker = &mut self.worker;
        // Handlers' panics are dealt with inside; a panic that comes out here must not cost the
        // thread either.
        match place {
            Place::Scratch => {
                self.seat.put(unique, entry);
                let served = catch_unwind(AssertUnwindSafe(|| worker.serve(scratch, len, false)));
                log_panic(served);
                match self.seat.left() {
                    Left::Answered(entry) => Some(entry),
                    Left::Unanswered(mut entry) => {
                        entry.refuse(Errno::IO);
                        Some(entry)
                    }
                    Left::Gone => None,
                }
            }
            Place::Lent => {
                self.seat.lend(unique, entry.buffer.data().as_ptr().addr());
                let served = catch_unwind(AssertUnwindSafe(|| worker.serve(&mut entry.buffer, len, true)));
                log_panic(served);
                entry.conclude_lent(unique, self.seat.lent_answer());
                Some(entry)
            }
        }
    }

    /// Hands an answered entry over and waits for its next request.
    fn pass_on(&mut self, mut entry: Entry, begun: u64) -> Next {
        let Self { ring, shared, lane, stayer, cpu, is_alone, .. } = self;
        let queue = ring.queue(&entry);
        let is_slow = coarse_ms() - begun > SLOW_MS;
        let Some(lane) = lane.as_mut().filter(|_| !(ring.crew.is_needed() || (is_slow && queue.has_idle())))
        else {
            stayer.leave();
            ring.keep(entry);
            return Next::Rest;
        };
        let release = entry.is_large() && queue.is_crowded(ring.warm) && !queue.keeps_warm(&mut entry);
        queue.waits();
        lane.commit(entry);
        if release && lane.submit().is_ok() && !lane.has_news() {
            lane.release_away();
        }
        stayer.before_wait(begun, *is_alone && matches!(cpu, Some(Some(_))));
        if let Err(errno) = lane.wait() {
            ring.fail(shared, errno);
            return Next::End;
        }
        match lane.next() {
            Some(Event::Request(entry)) => {
                queue.goes_on();
                Next::Serve(entry)
            }
            Some(Event::Dead(errno)) if ends_connection(errno) => {
                ring.end();
                Next::End
            }
            other => {
                queue.is_lost();
                tracing::error!(?other, "the kernel gave an entry up");
                Next::Rest
            }
        }
    }
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
