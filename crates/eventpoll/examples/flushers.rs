//! Few flushers, many things with work: one flusher on one of them at a time.
//!
//! `cargo run -p watertight-eventpoll --example flushers`

use std::sync::atomic::{AtomicU64, Ordering};

use watertight_eventpoll::{Error, EventPoll, Events, Flag, Interest};

/// Something with work: here a number of pages to write.
#[derive(Default)]
struct Wb {
    dirty: AtomicU64,
    has_work: Flag,
}

fn main() -> Result<(), Error> {
    const WRITERS: u64 = 4;
    const PAGES: u64 = 10_000;
    let wbs: Vec<Wb> = (0..16).map(|_| Wb::default()).collect();
    let poll = EventPoll::new();
    // One shot: a flusher that takes a wb has it alone until it arms it again.
    let interest = Interest::level(Events::IN).one_shot();
    for (token, wb) in (0..).zip(&wbs) {
        poll.add(&wb.has_work, interest, token)?;
    }
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| flush(&poll, &wbs, interest, &written, WRITERS * PAGES));
        }
        for writer in 0..WRITERS {
            let wbs = &wbs;
            scope.spawn(move || {
                for page in writer..writer + PAGES {
                    let wb = &wbs[usize::try_from(page).unwrap_or(0) % wbs.len()];
                    // ORDERING: Relaxed here and below: the flag orders the numbers.
                    wb.dirty.fetch_add(1, Ordering::Relaxed);
                    wb.has_work.set();
                }
            });
        }
    });
    assert_eq!(written.into_inner(), WRITERS * PAGES);
    Ok(())
}

fn flush(poll: &EventPoll, wbs: &[Wb], interest: Interest, written: &AtomicU64, all: u64) {
    let mut events = Vec::new();
    // Closed when everything is written.
    while poll.wait(&mut events, 1, None).is_ok() {
        for event in &events {
            let wb = &wbs[usize::try_from(event.token).unwrap_or(0)];
            wb.has_work.take();
            let pages = wb.dirty.swap(0, Ordering::Relaxed);
            if written.fetch_add(pages, Ordering::Relaxed) + pages == all {
                poll.close();
                return;
            }
            // Armed again: if there is work by now, a flusher is woken.
            let _ = poll.modify(&wb.has_work, interest, event.token);
        }
    }
}
