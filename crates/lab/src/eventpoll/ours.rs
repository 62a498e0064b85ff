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
