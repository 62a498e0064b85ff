//! The cost of a domain: there is one for each namespace, and there may be thousands.
//!
//! One test, in a process of its own: it counts the process's threads and memory.
#![cfg(not(any(loom, shuttle)))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use watertight_rcu::{Domain, RcuCell};

struct Counting;

// ORDERING: Relaxed here and below: a count.
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator; requests are counted besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const DOMAINS: usize = if cfg!(miri) { 50 } else { 10_000 };

fn bytes() -> usize {
    BYTES.load(Ordering::Relaxed)
}

fn threads() -> usize {
    if cfg!(miri) { 0 } else { std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count) }
}

#[test]
fn thousands_of_domains_are_cheap() {
    let (bytes_before, threads_before) = (bytes(), threads());
    let domains: Vec<Domain> = (0..DOMAINS).map(|_| Domain::new()).collect();
    let for_each = (bytes() - bytes_before) / DOMAINS;
    eprintln!("{for_each} bytes for a domain");
    assert!(for_each <= 1024, "{for_each} bytes for a domain");

    // Read in all of them, one inside the other, by one thread; wait in all of them.
    let before = bytes();
    let guards: Vec<_> = domains.iter().map(Domain::read).collect();
    drop(guards);
    domains.iter().for_each(Domain::synchronize_expedited);
    let for_each = (bytes() - before) / DOMAINS;
    eprintln!("{for_each} bytes for a reader in a domain");
    assert!(for_each <= 1024, "{for_each} bytes for a reader in a domain");
    assert_eq!(threads(), threads_before, "readers and grace periods need no threads");

    // Callbacks in all: their workers end when they have had nothing to do for a while.
    let begun = Instant::now();
    for domain in &domains {
        let cell = RcuCell::new(domain, 1);
        cell.publish(2);
    }
    eprintln!("{} threads after {:?}", threads() - threads_before, begun.elapsed());
    domains.iter().for_each(Domain::barrier);
    eprintln!("{} threads after {:?}", threads() - threads_before, begun.elapsed());
    let begun = Instant::now();
    while threads() > threads_before {
        assert!(begun.elapsed() < Duration::from_secs(60), "{} threads are left", threads());
        std::thread::yield_now();
    }
    drop(domains);
}
