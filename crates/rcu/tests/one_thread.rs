//! Domains that wait for their ticks need one thread for all, and none of them waits for another's
//! callback. Alone in its process: it counts threads.
#![cfg(not(any(loom, shuttle, miri)))]

use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use watertight_rcu::{Domain, DomainOptions};

const DOMAINS: usize = 50;
const LONG: Duration = Duration::from_secs(60);

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("this process's threads").count()
}

fn domains(tick: Duration) -> Vec<Domain> {
    (0..DOMAINS).map(|_| Domain::with_options(DomainOptions { tick, ..DomainOptions::default() })).collect()
}

#[test]
fn domains_that_wait_for_their_ticks_need_one_thread() {
    let (before, (ran, runs)) = (threads(), channel());
    let call = |domain: &Domain| {
        let ran = ran.clone();
        domain.call(move || ran.send(()).expect("the test listens"));
    };

    // The tick never comes here.
    let waiting = domains(Duration::from_secs(3600));
    waiting.iter().for_each(call);
    assert_eq!(threads(), before + 1, "a thread for all");
    assert!(runs.try_recv().is_err(), "before the tick");
    // A caller that cannot wait for the tick is served at once, by any thread.
    waiting.iter().for_each(Domain::barrier);
    assert_eq!(runs.try_iter().count(), DOMAINS);

    // With the tick, which no caller waits for.
    let ticking = domains(Duration::from_millis(1));
    ticking.iter().for_each(call);
    (0..DOMAINS).for_each(|_| runs.recv_timeout(LONG).expect("it runs after a tick"));

    // Each waits until all run: a domain whose callback hangs holds up no other's, though the same
    // thread kept their time.
    let all = Arc::new(Barrier::new(DOMAINS));
    for domain in &ticking {
        let (all, ran) = (Arc::clone(&all), ran.clone());
        domain.call(move || {
            all.wait();
            ran.send(()).expect("the test listens");
        });
    }
    (0..DOMAINS).for_each(|_| runs.recv_timeout(LONG).expect("no domain waits for another"));
}
