//! The thread that has all entries which no serving thread has.
//!
//! Purpose: it makes the entries and registers them with the kernel. It gives each entry that gets
//! a request to a serving thread, which keeps it from then on. It takes back entries that other
//! threads have answered but cannot keep ([`Ring::keep`]). It never serves a request itself, so
//! that nothing ever holds it up.
//!
//! # Further entries
//! The kernel puts a request that finds no entry into the queue's own list, and takes from that
//! list only when an entry of that queue is answered: an entry that is registered afterwards does
//! not fetch it (Linux 6.18). So further entries have to be made before they are needed: when the
//! keeper has given away half of what a queue had in the beginning. They are not taken back.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use super::entry::Entry;
use super::lane::{Event, Lane};
use super::{MORE, Ring, ends_connection, server};
use crate::session::Shared;

/// How long the keeper makes no further entries after an allocation failed.
const NO_MEMORY: Duration = Duration::from_secs(10);

/// Sent to the thread when the kernel has agreed.
struct Go {
    shared: Arc<Shared>,
    number: usize,
}

/// A keeper that has everything it needs and waits for the agreement with the kernel.
#[derive(Debug)]
pub(super) struct Waiting {
    thread: JoinHandle<()>,
    go: SyncSender<Go>,
    registered: Receiver<Result<(), String>>,
}

impl Waiting {
    /// Starts the thread, and has it get memory and an io_uring.
    pub(super) fn new(ring: &Arc<Ring>) -> io::Result<Self> {
        let (ready, is_ready) = sync_channel(1);
        let (go, going) = sync_channel(1);
        let (tell, registered) = sync_channel(1);
        let ring = Arc::clone(ring);
        let body = move || prepare_and_run(ring, &ready, &going, &tell);
        let thread = std::thread::Builder::new().name("wt-ring-keeper".to_owned()).spawn(body)?;
        match is_ready.recv() {
            Ok(Ok(())) => Ok(Self { thread, go, registered }),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(io::Error::other("the thread that keeps the entries ended")),
        }
    }

    /// Registers the entries with the kernel. The error says why there is no ring; entries that are
    /// registered already come back when the connection ends.
    pub(super) fn go(self, ring: &Ring, shared: &Arc<Shared>) -> Result<(), String> {
        let Self { thread, go, registered } = self;
        let ended = || "the thread that keeps the entries ended".to_owned();
        let number = ring.crew.add(thread);
        go.send(Go { shared: Arc::clone(shared), number }).map_err(|_| ended())?;
        registered.recv().map_err(|_| ended())?
    }
}

fn prepare_and_run(
    ring: Arc<Ring>,
    ready: &SyncSender<io::Result<()>>,
    going: &Receiver<Go>,
    tell: &SyncSender<Result<(), String>>,
) {
    // Failure to send, here and below: the other side does not wait any more.
    let (lane, entries) = match make(&ring) {
        Ok(made) => made,
        Err(error) => {
            let _unheard = ready.send(Err(error));
            return;
        }
    };
    if ready.send(Ok(())).is_ok()
        && let Ok(Go { shared, number }) = going.recv()
    {
        let span = shared.span().clone();
        let _of_the_mount = span.enter();
        let answered = Vec::with_capacity(ring.entries_max());
        let (known, here) = (entries.len(), vec![0; ring.queues.len()]);
        let mut keeper = Keeper { ring, lane, shared, answered, known, no_memory: None, here };
        let registered = keeper.register(entries);
        let _unheard = tell.send(registered);
        keeper.run();
        keeper.ring.crew.left(number);
    }
}

fn make(ring: &Ring) -> io::Result<(Lane, Vec<Entry>)> {
    let lane = Lane::new(ring.dev.fd(), ring.entries_max())?;
    let mut entries = Vec::with_capacity(ring.entries());
    for queue in 0..ring.queues.len() {
        let queue = u16::try_from(queue).map_err(io::Error::other)?;
        for _ in 0..ring.depth {
            entries.push(Entry::new(queue)?);
        }
    }
    Ok((lane, entries))
}

struct Keeper {
    ring: Arc<Ring>,
    lane: Lane,
    shared: Arc<Shared>,
    /// The buffer into which the inbox is emptied.
    answered: Vec<Entry>,
    /// How many entries there are.
    known: usize,
    /// When the allocation of a further entry failed.
    no_memory: Option<Instant>,
    /// How many of each queue the kernel has from the keeper.
    here: Vec<usize>,
}

impl Keeper {
    /// Registers all entries. The kernel begins to use them when every queue has one. The last
    /// queue's turn comes when all others were accepted, so that a failure before leaves everything
    /// to `/dev/fuse`.
    fn register(&mut self, entries: Vec<Entry>) -> Result<(), String> {
        self.lane.watch(self.ring.bell());
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
                self.lane.submit().and_then(|()| self.look())?;
                others_are_known = true;
            }
            self.register_one(entry);
        }
        self.lane.submit()?;
        self.lane.release_registered();
        self.look()
    }

    fn register_one(&mut self, entry: Entry) {
        self.here[usize::from(entry.queue())] += 1;
        self.lane.register(entry);
    }

    fn commit(&mut self, entry: Entry) {
        self.here[usize::from(entry.queue())] += 1;
        self.lane.commit(entry);
    }

    /// Gives a queue further entries, before those that it has run out.
    fn make_more(&mut self, queue: u16) {
        let count = MORE.min(self.ring.entries_max() - self.known);
        let is_short = self.here[usize::from(queue)] < self.ring.depth / 2;
        if !is_short || count == 0 || self.no_memory.is_some_and(|since| since.elapsed() < NO_MEMORY) {
            return;
        }
        self.no_memory = None;
        for _ in 0..count {
            match Entry::new(queue) {
                Ok(entry) => {
                    self.known += 1;
                    self.register_one(entry);
                }
                Err(error) => {
                    tracing::warn!(%error, "no memory for further requests");
                    self.no_memory = Some(Instant::now());
                    break;
                }
            }
        }
        // Failure: the next wait fails too, and says so.
        let _fails_again = self.lane.submit();
    }

    /// Goes on until the connection has ended and every entry has come back.
    fn run(&mut self) {
        while !self.ring.has_ended() || self.lane.away() > 0 {
            if let Err(errno) = self.lane.wait() {
                self.ring.fail(&self.shared, errno);
                return;
            }
            // Failure: logged; the others go on.
            let _logged = self.look();
        }
    }

    /// Handles the events that have arrived. The error is that of an entry that did not come back
    /// with a request.
    fn look(&mut self) -> Result<(), Errno> {
        let mut outcome = Ok(());
        while let Some(event) = self.lane.next() {
            match event {
                Event::Request(entry) => {
                    let queue = entry.queue();
                    self.here[usize::from(queue)] -= 1;
                    self.assign(entry);
                    self.make_more(queue);
                }
                Event::Dead(errno) => {
                    outcome = Err(errno);
                    if ends_connection(errno) {
                        self.ring.end();
                    } else {
                        tracing::error!(%errno, "the kernel gave an entry up");
                    }
                }
                Event::Watched => self.take_back(),
            }
        }
        outcome
    }

    fn assign(&mut self, entry: Entry) {
        let (ring, shared) = (&self.ring, &self.shared);
        if let Err(mut entry) = ring.crew.assign(entry, |recruit| server::spawn(ring, shared, recruit)) {
            entry.refuse(Errno::NOMEM);
            self.commit(entry);
        }
    }

    /// Hands over to the kernel the entries that other threads have answered.
    fn take_back(&mut self) {
        self.ring.silence_bell();
        self.lane.watch(self.ring.bell());
        let mut is_large = false;
        let mut answered = std::mem::take(&mut self.answered);
        self.ring.take_inbox(&mut answered);
        for entry in answered.drain(..) {
            is_large |= entry.is_large();
            self.commit(entry);
        }
        self.answered = answered;
        if is_large && self.lane.submit().is_ok() && !self.lane.has_news() {
            self.lane.release_away();
        }
    }
}
