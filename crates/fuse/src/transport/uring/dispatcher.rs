//! The thread that has all entries which no serving thread has.
//!
//! Purpose: it makes the entries and registers them with the kernel. It gives each entry that gets
//! a request to a serving thread, which keeps it from then on. It takes back entries that other
//! threads have answered but cannot keep ([`Ring::return_entry`]). It never serves a request
//! itself, so that nothing ever holds it up.
//!
//! # Further entries
//! The kernel puts a request that finds no entry into the queue's own list, and takes from that
//! list only when an entry of that queue is answered: an entry that is registered afterwards does
//! not fetch it (Linux 6.18). So further entries have to be made before they are needed: when the
//! dispatcher has given away half of what a queue had in the beginning. They are not taken back.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::entry::Entry;
use super::entry_ring::{Completion, EntryRing, ends_connection};
use super::ring::{ENTRIES_STEP, Ring};
use super::{cpus, worker};
use crate::connection::Connection;
use crate::device::Dev;

/// How long the dispatcher makes no further entries after an allocation failed.
const ALLOC_RETRY: Duration = Duration::from_secs(10);

/// Sent to the thread when the kernel has agreed.
struct Start {
    shared: Arc<Connection>,
    number: usize,
}

/// A dispatcher that has everything it needs, of which the kernel does not know yet.
#[derive(Debug)]
pub(crate) struct PreparedDispatcher {
    ring: Arc<Ring>,
    thread: JoinHandle<()>,
    start: SyncSender<Start>,
    registered: Receiver<Result<(), String>>,
}

impl PreparedDispatcher {
    /// Starts the thread, and has it get memory and an io_uring: everything that can fail, before
    /// INIT is answered. From then on the kernel waits for the entries.
    pub(crate) fn new(dev: &Arc<Dev>, threads_max: usize, idle_sched: bool) -> Result<Self, String> {
        let queues = cpus::possible().map_err(|error| format!("cannot count the CPUs: {error}"))?;
        let ring = Ring::new(Arc::clone(dev), queues, threads_max, idle_sched);
        let ring = Arc::new(ring.map_err(|error| error.to_string())?);
        let no_uring = |error: io::Error| format!("no io_uring: {error}");
        let (ready, is_ready) = sync_channel(1);
        let (start, starting) = sync_channel(1);
        let (report, registered) = sync_channel(1);
        let its = Arc::clone(&ring);
        let body = move || prepare_and_run(its, &ready, &starting, &report);
        let named = std::thread::Builder::new().name("wt-ring-keeper".to_owned());
        let thread = named.spawn(body).map_err(no_uring)?;
        let ended = |_| Err(io::Error::other("the dispatcher thread has ended"));
        is_ready.recv().unwrap_or_else(ended).map_err(no_uring)?;
        Ok(Self { ring, thread, start, registered })
    }

    /// The ring that the threads share.
    pub(crate) fn ring(&self) -> &Arc<Ring> {
        &self.ring
    }

    /// Registers the entries with the kernel, which has agreed to it. The error says why requests
    /// will come over `/dev/fuse` after all; entries that are registered already come back when the
    /// connection ends.
    pub(crate) fn start(self, shared: &Arc<Connection>) -> Result<(), String> {
        let Self { ring, thread, start, registered } = self;
        let ended = || "the dispatcher thread has ended".to_owned();
        let number = ring.pool.add(thread);
        start.send(Start { shared: Arc::clone(shared), number }).map_err(|_| ended())?;
        registered.recv().map_err(|_| ended())?
    }
}

fn prepare_and_run(
    ring: Arc<Ring>,
    ready: &SyncSender<io::Result<()>>,
    starting: &Receiver<Start>,
    report: &SyncSender<Result<(), String>>,
) {
    // Failure to send, here and below: the other side does not wait any more.
    let (entry_ring, entries) = match make(&ring) {
        Ok(made) => made,
        Err(error) => {
            let _unheard = ready.send(Err(error));
            return;
        }
    };
    if ready.send(Ok(())).is_ok()
        && let Ok(Start { shared, number }) = starting.recv()
    {
        let span = shared.span().clone();
        let _of_the_mount = span.enter();
        let answered = Vec::with_capacity(ring.entries_max());
        let (entry_count, submitted) = (entries.len(), vec![0; ring.queues.len()]);
        let mut dispatcher =
            Dispatcher { ring, entry_ring, shared, answered, entry_count, alloc_failed_at: None, submitted };
        let registered = dispatcher.register(entries);
        let _unheard = report.send(registered);
        dispatcher.run();
        dispatcher.ring.pool.remove_thread(number);
    }
}

fn make(ring: &Ring) -> io::Result<(EntryRing, Vec<Entry>)> {
    let entry_ring = EntryRing::new(ring.dev.fd(), ring.entries_max())?;
    let mut entries = Vec::with_capacity(ring.entries());
    for queue in 0..ring.queues.len() {
        let queue = u16::try_from(queue).map_err(io::Error::other)?;
        for _ in 0..ring.depth {
            entries.push(Entry::new(queue)?);
        }
    }
    Ok((entry_ring, entries))
}

struct Dispatcher {
    ring: Arc<Ring>,
    entry_ring: EntryRing,
    shared: Arc<Connection>,
    /// The buffer into which the returned entries are taken.
    answered: Vec<Entry>,
    /// How many entries there are.
    entry_count: usize,
    /// When the allocation of a further entry failed.
    alloc_failed_at: Option<Instant>,
    /// How many of each queue the kernel has from the dispatcher.
    submitted: Vec<usize>,
}

impl Dispatcher {
    /// Registers all entries. The kernel begins to use them when every queue has one. The last
    /// queue's turn comes when all others were accepted, so that a failure before leaves everything
    /// to `/dev/fuse`.
    fn register(&mut self, entries: Vec<Entry>) -> Result<(), String> {
        self.entry_ring.poll_readable(self.ring.wakeup());
        match self.register_all(entries) {
            // A reader of `/dev/fuse` learns of it, and why.
            Err(errno) if ends_connection(errno) => Ok(()),
            outcome => outcome.map_err(|errno| format!("the kernel refused an entry: {errno}")),
        }
    }

    fn register_all(&mut self, entries: Vec<Entry>) -> Result<(), Errno> {
        let last = self.ring.queues.len() - 1;
        let mut others_are_known = false;
        for entry in entries {
            if usize::from(entry.queue()) == last && !others_are_known {
                self.entry_ring.submit().and_then(|()| self.handle_completions())?;
                others_are_known = true;
            }
            self.register_one(entry);
        }
        self.entry_ring.submit()?;
        self.entry_ring.release_registered();
        self.handle_completions()
    }

    fn register_one(&mut self, entry: Entry) {
        self.submitted[usize::from(entry.queue())] += 1;
        self.entry_ring.register(entry);
    }

    fn commit(&mut self, entry: Entry) {
        self.submitted[usize::from(entry.queue())] += 1;
        self.entry_ring.commit(entry);
    }

    /// Gives a queue further entries, before those that it has run out.
    fn add_entries(&mut self, queue: u16) {
        let count = ENTRIES_STEP.min(self.ring.entries_max() - self.entry_count);
        let is_short = self.submitted[usize::from(queue)] < self.ring.depth / 2;
        if !is_short || count == 0 || self.alloc_failed_at.is_some_and(|since| since.elapsed() < ALLOC_RETRY)
        {
            return;
        }
        self.alloc_failed_at = None;
        for _ in 0..count {
            match Entry::new(queue) {
                Ok(entry) => {
                    self.entry_count += 1;
                    self.register_one(entry);
                }
                Err(error) => {
                    tracing::warn!(%error, "no memory for more ring entries");
                    self.alloc_failed_at = Some(Instant::now());
                    break;
                }
            }
        }
        // Failure: the next wait fails too, and says so.
        let _fails_again = self.entry_ring.submit();
    }

    /// Goes on until the connection has ended and every entry has come back.
    fn run(&mut self) {
        while !self.ring.has_ended() || self.entry_ring.submitted() > 0 {
            if let Err(errno) = self.entry_ring.wait() {
                worker::fail(&self.ring, &self.shared, errno);
                return;
            }
            // Failure: logged; the others go on.
            let _logged = self.handle_completions();
        }
    }

    /// Handles the events that have arrived. The error is that of an entry that did not come back
    /// with a request.
    fn handle_completions(&mut self) -> Result<(), Errno> {
        let mut outcome = Ok(());
        while let Some(event) = self.entry_ring.next() {
            match event {
                Completion::Request(entry) => {
                    let queue = entry.queue();
                    self.submitted[usize::from(queue)] -= 1;
                    self.assign(entry);
                    self.add_entries(queue);
                }
                Completion::Failed(errno) => {
                    outcome = Err(errno);
                    if ends_connection(errno) {
                        self.ring.end();
                    } else {
                        tracing::error!(%errno, "the kernel returned an entry with an error");
                    }
                }
                Completion::Readable => self.recommit_returned(),
            }
        }
        outcome
    }

    fn assign(&mut self, entry: Entry) {
        let (ring, shared) = (&self.ring, &self.shared);
        if let Err(mut entry) = ring.pool.assign(entry, |new_worker| worker::spawn(ring, shared, new_worker))
        {
            entry.refuse(Errno::NOMEM);
            self.commit(entry);
        }
    }

    /// Hands over to the kernel the entries that other threads have answered.
    fn recommit_returned(&mut self) {
        self.ring.clear_wakeup();
        self.entry_ring.poll_readable(self.ring.wakeup());
        let mut is_large = false;
        let mut answered = std::mem::take(&mut self.answered);
        self.ring.take_returned(&mut answered);
        for entry in answered.drain(..) {
            is_large |= entry.is_large();
            self.commit(entry);
        }
        self.answered = answered;
        if is_large && self.entry_ring.submit().is_ok() && !self.entry_ring.has_completion() {
            self.entry_ring.release_submitted();
        }
    }
}
