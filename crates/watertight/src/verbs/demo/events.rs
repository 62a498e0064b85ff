//! Events inside a process: threads that signal, and one that waits.

use std::io;
use std::os::fd::OwnedFd;
use std::thread;
use std::time::{Duration, Instant};

use eventpoll::{EventCounter, EventPoll, Events, Interest};
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};

use super::say::{failed, heading, step};
use super::stage::live;
use super::table::Table;
use crate::term::problem::Result;
use crate::term::units;

/// Each of these threads signals…
const TELLERS: usize = 2;
/// …so often.
const SIGNALS: u64 = 100_000;
const ALL: u64 = SIGNALS * TELLERS as u64;
/// Nothing here takes longer, or a signal is lost.
const LONG: Duration = Duration::from_secs(20);

pub(super) fn show(table: &mut Table) -> Result<()> {
    heading(&format!("Events: {TELLERS} threads signal a third one {SIGNALS} times each:"));
    let (heard, without) = live("epoll(7)", || by_the_kernel().map_err(|error| failed("epoll(7)", &error)));
    is_whole(heard?)?;
    step(&format!(
        "by the kernel's epoll(7), each signal a system call, it has received all after {}",
        units::duration(without)
    ));
    let (heard, with) = live("eventpoll", || by_eventpoll().map_err(|error| failed("eventpoll", &error)));
    is_whole(heard?)?;
    step(&format!(
        "by eventpoll, which carries a volume's events, after {}: a thread that signals never waits",
        units::duration(with)
    ));
    let what = format!("{ALL} events received after");
    table.row(&what, units::duration(without), units::duration(with));
    table.note("Events, without: the kernel's epoll(7) with eventfd(2).");
    Ok(())
}

fn is_whole(heard: u64) -> Result<()> {
    if heard == ALL {
        return Ok(());
    }
    Err(failed("events", &format!("{heard} of {ALL} were received")))
}

fn by_the_kernel() -> io::Result<u64> {
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let sources = [(); TELLERS].map(|()| eventfd(0, flags));
    let sources: Vec<OwnedFd> = sources.into_iter().collect::<rustix::io::Result<_>>()?;
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (source, number) in sources.iter().zip(0..) {
        epoll::add(&poll, source, epoll::EventData::new_u64(number), epoll::EventFlags::IN)?;
    }
    let until = Instant::now() + LONG;
    thread::scope(|scope| {
        for source in &sources {
            scope.spawn(move || {
                (0..SIGNALS).all(|_| rustix::io::write(source, &1_u64.to_ne_bytes()).is_ok());
            });
        }
        let mut ready = Vec::with_capacity(TELLERS);
        let (mut heard, mut count) = (0, [0; 8]);
        while heard < ALL {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            ready.clear();
            epoll::wait(&poll, rustix::buffer::spare_capacity(&mut ready), Some(&left))?;
            for event in &ready {
                let number = usize::try_from(event.data.u64()).map_err(io::Error::other)?;
                rustix::io::read(&sources[number], &mut count)?;
                heard += u64::from_ne_bytes(count);
            }
        }
        Ok(heard)
    })
}

fn by_eventpoll() -> eventpoll::Result<u64> {
    let poll = EventPoll::new();
    let sources = [(); TELLERS].map(|()| EventCounter::new());
    for (source, number) in sources.iter().zip(0..) {
        poll.add(source, Interest::level(Events::IN), number)?;
    }
    let until = Instant::now() + LONG;
    thread::scope(|scope| {
        for source in &sources {
            scope.spawn(move || (0..SIGNALS).for_each(|_| source.add(1)));
        }
        let (mut ready, mut heard) = (Vec::new(), 0);
        while heard < ALL {
            let Some(left) = until.checked_duration_since(Instant::now()) else { break };
            poll.wait(&mut ready, TELLERS, Some(left))?;
            let taken = ready.iter().filter_map(|event| sources.get(usize::try_from(event.token).ok()?));
            heard += taken.map(EventCounter::take).sum::<u64>();
        }
        Ok(heard)
    })
}
