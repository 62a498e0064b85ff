//! The running kernel: epoll(7) with eventfd(2)s.

use std::os::fd::OwnedFd;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::Timespec;

use super::subject::Subject;

/// An epoll instance with its eventfds.
pub(crate) struct Kernel {
    epoll: OwnedFd,
    sources: Vec<OwnedFd>,
}

impl Kernel {
    fn take(&self, events: &mut Vec<epoll::Event>, max: usize, timeout: Option<&Timespec>) -> u64 {
        events.clear();
        // The capacity of the vector is the largest number of events.
        events.reserve_exact(max);
        events.shrink_to(max);
        rustix::event::epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), timeout)
            .expect("epoll_wait");
        let mut sum = 0;
        for event in &*events {
            let mut number = [0; 8];
            let source = usize::try_from(event.data.u64()).expect("a number of ours");
            // Another worker may have been faster.
            if rustix::io::read(&self.sources[source], &mut number).is_ok() {
                sum += u64::from_ne_bytes(number);
            }
        }
        sum
    }
}

impl Subject for Kernel {
    type Consumer = Vec<epoll::Event>;

    fn new(sources: usize) -> Self {
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).expect("epoll_create");
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let sources: Vec<OwnedFd> = (0..sources).map(|_| eventfd(0, flags).expect("eventfd")).collect();
        for (number, source) in (0..).zip(&sources) {
            epoll::add(&poll, source, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
                .expect("epoll_ctl");
        }
        Self { epoll: poll, sources }
    }

    fn consumer(&self) -> Vec<epoll::Event> {
        Vec::new()
    }

    fn signal(&self, source: usize) {
        rustix::io::write(&self.sources[source], &1_u64.to_ne_bytes()).expect("an eventfd takes it");
    }

    fn wait(&self, events: &mut Vec<epoll::Event>, max: usize) -> u64 {
        self.take(events, max, None)
    }

    fn poll(&self, events: &mut Vec<epoll::Event>, max: usize) -> u64 {
        self.take(events, max, Some(&Timespec::default()))
    }

    fn control(&self, source: usize, mut did: impl FnMut()) -> bool {
        let (fd, data) = (&self.sources[source], epoll::EventData::new_u64(source as u64));
        epoll::modify(&self.epoll, fd, data, epoll::EventFlags::IN).expect("epoll_ctl");
        did();
        epoll::delete(&self.epoll, fd).expect("epoll_ctl");
        did();
        epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN).expect("epoll_ctl");
        did();
        true
    }
}
