//! Common alternatives inside a process, each as a careful user would write it.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use crossbeam_channel::{Receiver, Select, Sender};
use futures_util::stream::{FuturesUnordered, Stream};
use futures_util::task::AtomicWaker;
use parking_lot::{Condvar, Mutex};
use tokio::sync::mpsc;

use super::subject::Subject;

/// A number, and whether its source is queued.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Source {
    count: AtomicU64,
    is_queued: AtomicBool,
}

impl Source {
    /// Adds one; returns whether the source has to be queued.
    fn add(&self) -> bool {
        // ORDERING: AcqRel here and below: the exchange of the flag orders the count on both sides.
        self.count.fetch_add(1, Ordering::AcqRel);
        !self.is_queued.swap(true, Ordering::AcqRel)
    }

    /// The source is taken from the queue: returns its count.
    fn take(&self) -> u64 {
        self.is_queued.swap(false, Ordering::AcqRel);
        self.count.swap(0, Ordering::AcqRel)
    }
}

fn sources(count: usize) -> Vec<Source> {
    (0..count).map(|_| Source::default()).collect()
}

/// A queue under a mutex.
pub(crate) struct MutexCondvar {
    sources: Vec<Source>,
    queue: Mutex<VecDeque<usize>>,
    filled: Condvar,
}

impl MutexCondvar {
    fn take(
        &self,
        mut queue: parking_lot::MutexGuard<'_, VecDeque<usize>>,
        out: &mut Vec<usize>,
        max: usize,
    ) -> u64 {
        let count = queue.len().min(max);
        out.extend(queue.drain(..count));
        drop(queue);
        out.drain(..).map(|source| self.sources[source].take()).sum()
    }
}

impl Subject for MutexCondvar {
    type Consumer = Vec<usize>;

    fn new(count: usize) -> Self {
        Self { sources: sources(count), queue: Mutex::default(), filled: Condvar::new() }
    }

    fn consumer(&self) -> Vec<usize> {
        Vec::new()
    }

    fn signal(&self, source: usize) {
        if self.sources[source].add() {
            self.queue.lock().push_back(source);
            self.filled.notify_one();
        }
    }

    fn wait(&self, out: &mut Vec<usize>, max: usize) -> u64 {
        let mut queue = self.queue.lock();
        while queue.is_empty() {
            self.filled.wait(&mut queue);
        }
        self.take(queue, out, max)
    }

    fn poll(&self, out: &mut Vec<usize>, max: usize) -> u64 {
        self.take(self.queue.lock(), out, max)
    }
}

/// tokio's unbounded channel of source numbers.
pub(crate) struct Tokio {
    sources: Vec<Source>,
    sender: mpsc::UnboundedSender<usize>,
    /// One consumer at a time, as the channel wants it.
    receiver: Mutex<mpsc::UnboundedReceiver<usize>>,
}

impl Tokio {
    fn take(&self, first: Option<usize>, receiver: &mut mpsc::UnboundedReceiver<usize>, max: usize) -> u64 {
        let rest = std::iter::from_fn(|| receiver.try_recv().ok());
        first.into_iter().chain(rest).take(max).map(|source| self.sources[source].take()).sum()
    }
}

impl Subject for Tokio {
    type Consumer = ();

    fn new(count: usize) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        Self { sources: sources(count), sender, receiver: Mutex::new(receiver) }
    }

    fn consumer(&self) {}

    fn signal(&self, source: usize) {
        if self.sources[source].add() {
            self.sender.send(source).expect("the receiver is here");
        }
    }

    fn wait(&self, (): &mut (), max: usize) -> u64 {
        let mut receiver = self.receiver.lock();
        let first = receiver.blocking_recv();
        self.take(first, &mut receiver, max)
    }

    fn poll(&self, (): &mut (), max: usize) -> u64 {
        let mut receiver = self.receiver.lock();
        self.take(None, &mut receiver, max)
    }
}

/// A channel of one for each source, and crossbeam's `Select` over all of them.
pub(crate) struct Crossbeam {
    channels: Vec<(Sender<()>, Receiver<()>)>,
    sources: Vec<Source>,
}

impl Crossbeam {
    fn take(&self, first: usize, max: usize) -> u64 {
        // The one that `Select` found, and then its neighbours.
        let count = self.channels.len();
        let ready = (0..count)
            .map(|next| (first + next) % count)
            .filter(|&at| self.channels[at].1.try_recv().is_ok());
        ready.take(max).map(|at| self.sources[at].take()).sum()
    }
}

impl Subject for Crossbeam {
    type Consumer = ();

    fn new(count: usize) -> Self {
        let channels = (0..count).map(|_| crossbeam_channel::bounded(1)).collect();
        Self { channels, sources: sources(count) }
    }

    fn consumer(&self) {}

    fn signal(&self, source: usize) {
        self.sources[source].count.fetch_add(1, Ordering::AcqRel);
        // Full: it is queued.
        let _ = self.channels[source].0.try_send(());
    }

    fn wait(&self, (): &mut (), max: usize) -> u64 {
        let mut select = Select::new();
        self.channels.iter().for_each(|(_, receiver)| {
            select.recv(receiver);
        });
        self.take(select.ready(), max)
    }

    fn poll(&self, (): &mut (), max: usize) -> u64 {
        self.take(0, max)
    }
}

/// A future for each source in a `FuturesUnordered`, on the consumer's thread.
pub(crate) struct Unordered {
    sources: Vec<Arc<Awaited>>,
    ready: Mutex<FuturesUnordered<Next>>,
}

#[derive(Debug, Default)]
struct Awaited {
    count: AtomicU64,
    waker: AtomicWaker,
}

/// A future that resolves to its source's count.
struct Next(Arc<Awaited>);

impl Future for Next {
    type Output = (Arc<Awaited>, u64);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.0.waker.register(context.waker());
        // ORDERING: AcqRel; `register` and `wake` order it with the count's change.
        match self.0.count.swap(0, Ordering::AcqRel) {
            0 => Poll::Pending,
            count => Poll::Ready((Arc::clone(&self.0), count)),
        }
    }
}

struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Unordered {
    fn poll_next(ready: &mut FuturesUnordered<Next>, context: &mut Context<'_>) -> Poll<u64> {
        match Pin::new(&mut *ready).poll_next(context) {
            Poll::Ready(Some((source, count))) => {
                ready.push(Next(source));
                Poll::Ready(count)
            }
            _ => Poll::Pending,
        }
    }

    fn take(ready: &mut FuturesUnordered<Next>, context: &mut Context<'_>, max: usize) -> u64 {
        let mut sum = 0;
        for _ in 0..max {
            let Poll::Ready(count) = Self::poll_next(ready, context) else { break };
            sum += count;
        }
        sum
    }
}

impl Subject for Unordered {
    type Consumer = Waker;

    fn new(count: usize) -> Self {
        let sources: Vec<Arc<Awaited>> = (0..count).map(|_| Arc::default()).collect();
        let ready = sources.iter().map(|source| Next(Arc::clone(source))).collect();
        Self { sources, ready: Mutex::new(ready) }
    }

    fn consumer(&self) -> Waker {
        // Of the thread that is given one: `wait` makes its own.
        Waker::noop().clone()
    }

    fn signal(&self, source: usize) {
        let source = &self.sources[source];
        // ORDERING: AcqRel, as above.
        source.count.fetch_add(1, Ordering::AcqRel);
        source.waker.wake();
    }

    fn wait(&self, waker: &mut Waker, max: usize) -> u64 {
        if waker.will_wake(Waker::noop()) {
            *waker = Arc::new(Unpark(std::thread::current())).into();
        }
        let mut ready = self.ready.lock();
        let context = &mut Context::from_waker(waker);
        let mut next = poll_fn(|context| Self::poll_next(&mut ready, context));
        let first = loop {
            if let Poll::Ready(count) = Pin::new(&mut next).poll(context) {
                break count;
            }
            std::thread::park();
        };
        first + Self::take(&mut ready, context, max - 1)
    }

    fn poll(&self, waker: &mut Waker, max: usize) -> u64 {
        Self::take(&mut self.ready.lock(), &mut Context::from_waker(waker), max)
    }
}
