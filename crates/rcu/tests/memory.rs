//! Retired values hold no more memory than the bound allows.
//!
//! One test, in a process of its own: it counts what is allocated.
#![cfg(not(any(loom, shuttle)))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use watertight_rcu::{Domain, DomainOptions};

/// Of values, and of nothing else here.
const SIZE: usize = 1000;

struct Counting;

// ORDERING: Relaxed here and below: counts.
static VALUES: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator; requests are counted besides.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.size() == SIZE {
            MOST.fetch_max(VALUES.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        if layout.size() == SIZE {
            VALUES.fetch_sub(1, Ordering::Relaxed);
        }
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn what_is_given_up_holds_no_more_memory_than_the_bound() {
    let (callbacks_max, threads, block) = (1024, 2, 64);
    let domain = Domain::with_options(DomainOptions { callbacks_max, ..DomainOptions::default() });
    let callers: Vec<_> = (0..threads)
        .map(|_| {
            let domain = domain.clone();
            thread::spawn(move || (0..20_000).for_each(|_| domain.defer_free(Box::new([0_u8; SIZE]))))
        })
        .collect();
    for caller in callers {
        caller.join().expect("a caller ends");
    }
    let most = MOST.load(Ordering::Relaxed);
    eprintln!("{most} values at most, {} slowed", domain.stats().callers_slowed);
    assert!(domain.stats().callers_slowed > 0);
    // Each thread may be one block beyond it, and has one value that it has not given up yet.
    assert!(most <= callbacks_max + threads * (block + 1), "{most} values");
    drop(domain);
    while VALUES.load(Ordering::Relaxed) > 0 {
        thread::yield_now();
    }
}
