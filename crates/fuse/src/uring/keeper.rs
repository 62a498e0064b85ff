//! The thread that has all entries which no serving thread has.
//!
//! Purpose: it makes the entries, makes them known to the kernel, and gives each that gets a request to a serving thread,
//! which keeps it from then on. It takes back what others have answered but cannot keep ([`Ring::keep`]). It never
//! serves a request itself, so that nothing ever holds it up.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rustix::io::Errno;

use super::entry::Entry;
use super::lane::{Event, Lane};
use super::{Ring, ends_connection, server};
use crate::session::Shared;

/// What the thread is told when the agreement with the kernel is there.
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

    /// Makes the entries known to the kernel. The error says why there is no ring; what is known already comes
    /// back when the connection ends.
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
    // Failure to send, here and below: nobody waits any more.
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
        let answered = Vec::with_capacity(ring.entries());
        let mut keeper = Keeper { ring, lane, shared, answered };
        let registered = keeper.register(entries);
        let _unheard = tell.send(registered);
        keeper.run();
        keeper.ring.crew.left(number);
    }
}

fn make(ring: &Ring) -> io::Result<(Lane, Vec<Entry>)> {
    let lane = Lane::new(ring.dev.fd(), ring.entries())?;
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
    /// What the inbox is emptied into.
    answered: Vec<Entry>,
}

impl Keeper {
    /// Makes all entries known. The kernel begins to use them when every queue has one: the last queue's turn
    /// comes when all others were accepted, so that a failure before leaves everything to `/dev/fuse`.
    fn register(&mut self, entries: Vec<Entry>) -> Result<(), String> {
        self.lane.watch(self.ring.bell());
        match self.register_all(entries) {
            // Whoever reads `/dev/fuse` hears of it, and why.
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
            self.lane.register(entry);
        }
        self.lane.submit()?;
        self.lane.release_registered();
        self.look()
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

    /// Deals with what happened; the error is that of an entry that did not come back with a request.
    fn look(&mut self) -> Result<(), Errno> {
        let mut outcome = Ok(());
        while let Some(event) = self.lane.next() {
            match event {
                Event::Request(entry) => self.assign(entry),
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
            self.lane.commit(entry);
        }
    }

    /// Hands over to the kernel what others have answered.
    fn take_back(&mut self) {
        self.ring.silence_bell();
        self.lane.watch(self.ring.bell());
        let mut is_large = false;
        self.ring.take_inbox(&mut self.answered);
        for entry in self.answered.drain(..) {
            is_large |= entry.is_large();
            self.lane.commit(entry);
        }
        if is_large && self.lane.submit().is_ok() && !self.lane.has_news() {
            self.lane.release_away();
        }
    }
}
