//! Our eventpoll with one or the other ready list.

use std::time::Duration;

use eventpoll::ready::{Bits, ReadyList};
use eventpoll::{Counter, Event, EventPoll, Events, Interest, Options};

use super::subject::Subject;

/// With the list that the product has.
pub(crate) type Default = Ours<Bits>;

/// With any.
pub(crate) struct Ours<R: ReadyList> {
    poll: EventPoll<R>,
    sources: Vec<Counter>,
}

impl<R: ReadyList> Ours<R> {
    fn take(&self, events: &mut Vec<Event>, max: usize, timeout: Option<Duration>) -> u64 {
        self.poll.wait(events, max, timeout).expect("it is open");
        let source = |event: &Event| &self.sources[usize::try_from(event.token).expect("a number of ours")];
        events.iter().map(|event| source(event).take()).sum()
    }
}

impl<R: ReadyList> Subject for Ours<R> {
    type Consumer = Vec<Event>;

    fn new(sources: usize) -> Self {
        let poll = EventPoll::with_ready_list(Options::default());
        let sources: Vec<Counter> = (0..sources).map(|_| Counter::new()).collect();
        for (token, source) in (0..).zip(&sources) {
            poll.add(source, Interest::level(Events::IN), token).expect("a new source");
        }
        Self { poll, sources }
    }

    fn consumer(&self) -> Vec<Event> {
        Vec::new()
    }

    fn signal(&self, source: usize) {
        self.sources[source].add(1);
    }

    fn wait(&self, events: &mut Vec<Event>, max: usize) -> u64 {
        self.take(events, max, None)
    }

    fn poll(&self, events: &mut Vec<Event>, max: usize) -> u64 {
        self.take(events, max, Some(Duration::ZERO))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use eventpoll::ready::{Bits, ReadyList};

    use super::super::lists::{RwLocked, SpinLocked};
    use super::{Ours, Subject};

    const PRODUCERS: u64 = 4;
    const WAITERS: u64 = 3;
    const SIGNALS: u64 = 5_000;
    /// Only for who hangs.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Producers signal, waiters take, until all that was given was taken.
    fn no_lost_wakeup<R: ReadyList>(max: usize) {
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let subject = Ours::<R>::new(usize::try_from(PRODUCERS).expect("a few"));
            let (seen, ended) = (AtomicU64::new(0), AtomicU64::new(0));
            // ORDERING: SeqCst, a test's counts.
            std::thread::scope(|scope| {
                for _ in 0..WAITERS {
                    scope.spawn(|| {
                        let mut consumer = subject.consumer();
                        while seen.load(Ordering::SeqCst) < PRODUCERS * SIGNALS {
                            seen.fetch_add(subject.wait(&mut consumer, max), Ordering::SeqCst);
                        }
                        ended.fetch_add(1, Ordering::SeqCst);
                        // Whoever still sleeps is told by who was told.
                        while ended.load(Ordering::SeqCst) < WAITERS {
                            subject.signal(0);
                            std::thread::yield_now();
                        }
                    });
                }
                for source in 0..usize::try_from(PRODUCERS).expect("a few") {
                    let subject = &subject;
                    scope.spawn(move || (0..SIGNALS).for_each(|_| subject.signal(source)));
                }
            });
            done.send(seen.into_inner()).expect("somebody waits for it");
        });
        let seen = is_done.recv_timeout(PATIENCE).expect("a wake-up was lost");
        assert!(seen >= PRODUCERS * SIGNALS, "{seen}");
    }

    #[test]
    fn ep_r1_no_lost_wakeup_with_any_list() {
        for max in [1, 4] {
            no_lost_wakeup::<Bits>(max);
            no_lost_wakeup::<RwLocked>(max);
            no_lost_wakeup::<SpinLocked>(max);
        }
    }
}
