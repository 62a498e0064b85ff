//! crossbeam-epoch.

use std::sync::atomic::Ordering;

use crossbeam_epoch::{Atomic, Collector};

use super::placement::{place, placed};
use super::subject::{Counted, Subject, dropped, stay, until_dropped};

/// The default collector, and a value that is read under it.
pub(crate) struct Crossbeam {
    value: Atomic<u64>,
}

impl Default for Crossbeam {
    fn default() -> Self {
        Self { value: Atomic::new(1) }
    }
}

impl Crossbeam {
    fn load(&self, guard: &crossbeam_epoch::Guard) {
        // ORDERING: Acquire, as in all subjects.
        std::hint::black_box(self.value.load(Ordering::Acquire, guard));
    }

    #[inline(never)]
    fn sections<const AT: usize>(&self, pairs: u64) -> u64 {
        let mut sum = 0;
        place!(AT);
        for _ in 0..pairs {
            let guard = crossbeam_epoch::pin();
            // ORDERING: Acquire, as in all subjects.
            // SAFETY: never null, and never replaced.
            sum += unsafe { *self.value.load(Ordering::Acquire, &guard).deref() };
        }
        sum
    }
}

impl Subject for Crossbeam {
    fn read(&self, pairs: u64, nested: bool, placement: usize) -> u64 {
        let _outer = nested.then(crossbeam_epoch::pin);
        placed!(placement, self.sections(pairs))
    }

    fn read_while(&self, goes_on: &dyn Fn() -> bool) {
        loop {
            let guard = crossbeam_epoch::pin();
            self.load(&guard);
            stay();
            drop(guard);
            if !goes_on() {
                return;
            }
        }
    }

    fn grace(&self) -> Result<(), &'static str> {
        Err("crossbeam-epoch has no call that waits for readers")
    }

    fn poll(&self) -> Result<(), &'static str> {
        Err("crossbeam-epoch has no grace periods to poll")
    }

    fn callbacks(&self, values: u64) {
        let before = dropped();
        let handle = Collector::new().register();
        for n in 0..values {
            let value = Box::new(Counted(n));
            handle.pin().defer(move || drop(value));
        }
        until_dropped(before, values, || handle.pin().flush());
    }
}
