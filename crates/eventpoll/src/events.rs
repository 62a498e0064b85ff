//! Events, and the interest of a watcher in them.

bitflags::bitflags! {
    /// The events that a source is ready for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Events: u32 {
        /// There is something to read.
        const IN = 1;
        /// Something urgent.
        const PRI = 2;
        /// There is room to write.
        const OUT = 4;
        /// An error; always reported.
        const ERR = 8;
        /// The other side is gone; always reported.
        const HUP = 16;
        /// The other side writes nothing more.
        const RDHUP = 32;
    }
}

/// Which events of a source are reported, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Interest {
    pub(crate) events: Events,
    pub(crate) is_edge: bool,
    pub(crate) is_one_shot: bool,
    pub(crate) is_exclusive: bool,
}

impl Interest {
    /// Report the source as long as it is ready for any of `events`.
    #[must_use]
    pub const fn level(events: Events) -> Self {
        Self { events, is_edge: false, is_one_shot: false, is_exclusive: false }
    }

    /// Report it once for each time that it is signalled, if it is ready then. Signals that come
    /// before the report count as one.
    #[must_use]
    pub const fn edge(events: Events) -> Self {
        Self { is_edge: true, ..Self::level(events) }
    }

    /// Report it once; then never until [`EventPoll::modify`](crate::EventPoll::modify).
    #[must_use]
    pub const fn one_shot(self) -> Self {
        Self { is_one_shot: true, ..self }
    }

    /// Where several eventpolls watch the source, one signal wakes at least one of them, and not
    /// all: as long as a thread sleeps in one of them that no signal has woken yet, the next signal
    /// wakes one. Those that are not exclusive are always woken.
    ///
    /// As in epoll_ctl(2), only [`Events::IN`], [`Events::OUT`], [`Events::ERR`] and
    /// [`Events::HUP`] can be waited for so, and not with [`one_shot`](Self::one_shot).
    #[must_use]
    pub const fn exclusive(self) -> Self {
        Self { is_exclusive: true, ..self }
    }

    /// Whether epoll_ctl(2) would take it: its page lists what may stand beside EPOLLEXCLUSIVE.
    pub(crate) fn is_permitted(self) -> bool {
        let beside_exclusive = Events::IN | Events::OUT | Events::ERR | Events::HUP;
        !self.is_exclusive || !self.is_one_shot && beside_exclusive.contains(self.events)
    }
}

/// A source that is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Event {
    /// The token that was given when the source was added or modified.
    pub token: u64,
    /// The events that it is ready for.
    pub events: Events,
}
