//! Our eventpoll with one or the other ready list.

use std::time::Duration;

use eventpoll::ready::{ReadyBitmap, ReadyList};
use eventpoll::{Event, EventCounter, EventPoll, Events, Interest, Options};

use super::subject::Subject;

/// With the list that the product has.
pub(crate) type Default = Ours<ReadyBitmap>;

/// With any.
pub(crate) struct Ours<R: ReadyList> {
    poll: EventPoll<R>,
    sources: Vec<EventCounter>,
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
        let sources: Vec<EventCounter> = (0..sources).map(|_| EventCounter::new()).collect();
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

    fn control(&self, source: usize, mut did: impl FnMut()) -> bool {
        let (token, source) = (source as u64, &self.sources[source]);
        let level = Interest::level(Events::IN);
        self.poll.modify(source, level, token).expect("it is watched");
        did();
        self.poll.delete(source).expect("it is watched");
        did();
        self.poll.add(source, level, token).expect("it was deleted");
        did();
        true
    }
}

/// With the list of the product, and with as many entries into the kernel as epoll's user makes:
/// one for each signal (write(2) of an eventfd), each wait (epoll_wait(2)), each source that is
/// taken (read(2)) and each change (epoll_ctl(2)). The called functions do nothing.
pub(crate) struct Entering(Default);

/// An entry into the kernel.
fn enter() {
    std::hint::black_box(rustix::process::getppid());
}

impl Entering {
    fn take(&self, events: &mut Vec<Event>, max: usize, timeout: Option<Duration>) -> u64 {
        enter();
        let sum = self.0.take(events, max, timeout);
        events.iter().for_each(|_| enter());
        sum
    }
}

impl Subject for Entering {
    type Consumer = Vec<Event>;

    fn new(sources: usize) -> Self {
        Self(Subject::new(sources))
    }

    fn consumer(&self) -> Vec<Event> {
        Vec::new()
    }

    fn signal(&self, source: usize) {
        enter();
        self.0.signal(source);
    }

    fn wait(&self, events: &mut Vec<Event>, max: usize) -> u64 {
        self.take(events, max, None)
    }

    fn poll(&self, events: &mut Vec<Event>, max: usize) -> u64 {
        self.take(events, max, Some(Duration::ZERO))
    }

    fn control(&self, source: usize, mut did: impl FnMut()) -> bool {
        enter();
        self.0.control(source, || {
            did();
            enter();
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use eventpoll::ready::{ReadyBitmap, ReadyList};
    use eventpoll::{EventCounter, EventPoll, Events, Interest, Options};

    use super::super::lists::{RwLocked, SpinLocked};
    use super::super::stack::HalfLockless;

    const PRODUCERS: u64 = 4;
    const WAITERS: usize = 3;
    const SIGNALS: u64 = 5_000;
    /// Only for a test that hangs.
    const PATIENCE: Duration = Duration::from_secs(120);

    /// Producers signal, waiters take, until all signals were taken.
    fn no_lost_wakeup<R: ReadyList>(max: usize, mode: Interest) {
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            let poll = EventPoll::<R>::with_ready_list(Options::default());
            let sources: Vec<EventCounter> = (0..PRODUCERS).map(|_| EventCounter::new()).collect();
            for (token, source) in (0..).zip(&sources) {
                poll.add(source, mode, token).expect("a new source");
            }
            let (taken, waiting) = (AtomicU64::new(0), AtomicUsize::new(WAITERS));
            // ORDERING: SeqCst, a test's counts.
            std::thread::scope(|scope| {
                for _ in 0..WAITERS {
                    scope.spawn(|| {
                        let mut events = Vec::new();
                        while poll.wait(&mut events, max, None).is_ok() {
                            for event in &events {
                                let source =
                                    &sources[usize::try_from(event.token).expect("a number of ours")];
                                taken.fetch_add(source.take(), Ordering::SeqCst);
                                if mode == Interest::level(Events::IN).one_shot() {
                                    // Closed meanwhile: all is taken.
                                    let _ = poll.modify(source, mode, event.token);
                                }
                            }
                            if taken.load(Ordering::SeqCst) == PRODUCERS * SIGNALS {
                                poll.close();
                            }
                        }
                        waiting.fetch_sub(1, Ordering::SeqCst);
                    });
                }
                for source in &sources {
                    scope.spawn(move || (0..SIGNALS).for_each(|_| source.add(1)));
                }
            });
            let result = (taken.into_inner(), waiting.into_inner());
            done.send(result).expect("somebody waits for it");
        });
        let result = is_done.recv_timeout(PATIENCE).expect("a wake-up was lost");
        assert_eq!(result, (PRODUCERS * SIGNALS, 0), "room for {max}, {mode:?}");
    }

    fn no_lost_wakeup_in_any_mode<R: ReadyList>() {
        let (level, edge) = (Interest::level(Events::IN), Interest::edge(Events::IN));
        for mode in [level, edge, level.one_shot(), level.exclusive(), edge.exclusive()] {
            no_lost_wakeup::<R>(1, mode);
            no_lost_wakeup::<R>(4, mode);
        }
    }

    #[test]
    fn ep_r1_no_lost_wakeup_with_the_default_list() {
        no_lost_wakeup_in_any_mode::<ReadyBitmap>();
    }

    #[test]
    fn ep_r1_no_lost_wakeup_with_the_rwlock() {
        no_lost_wakeup_in_any_mode::<RwLocked>();
    }

    #[test]
    fn ep_r1_no_lost_wakeup_with_the_spinlock() {
        no_lost_wakeup_in_any_mode::<SpinLocked>();
    }

    #[test]
    fn ep_r1_no_lost_wakeup_with_the_half_lockless_list() {
        no_lost_wakeup_in_any_mode::<HalfLockless>();
    }
}
