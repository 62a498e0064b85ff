//! seize.

use std::sync::atomic::{AtomicPtr, Ordering};

use seize::{Collector, Guard as _, reclaim};

use super::placement::{place, placed};
use super::subject::{Counted, Subject, dropped, stay, until_dropped};

/// A collector, and a value that is read under it.
pub(crate) struct Seize {
    collector: Collector,
    value: AtomicPtr<u64>,
}

impl Default for Seize {
    fn default() -> Self {
        Self { collector: Collector::new(), value: AtomicPtr::new(Box::into_raw(Box::new(1))) }
    }
}

impl Drop for Seize {
    fn drop(&mut self) {
        // SAFETY: made of a box in `default`, never replaced, and no thread reads any more.
        drop(unsafe { Box::from_raw(*self.value.get_mut()) });
    }
}

impl Seize {
    #[inline(never)]
    fn sections<const AT: usize>(&self, pairs: u64) -> u64 {
        let mut sum = 0;
        place!(AT);
        for _ in 0..pairs {
            let guard = self.collector.enter();
            // ORDERING: Acquire, as in all subjects.
            // SAFETY: never null, and never replaced.
            sum += unsafe { *guard.protect(&self.value, Ordering::Acquire) };
        }
        sum
    }
}

impl Subject for Seize {
    fn read(&self, pairs: u64, nested: bool, placement: usize) -> u64 {
        let _outer = nested.then(|| self.collector.enter());
        placed!(placement, self.sections(pairs))
    }

    fn read_while(&self, goes_on: &dyn Fn() -> bool) {
        loop {
            let guard = self.collector.enter();
            // ORDERING: Acquire, as in all subjects.
            std::hint::black_box(guard.protect(&self.value, Ordering::Acquire));
            stay();
            drop(guard);
            if !goes_on() {
                return;
            }
        }
    }

    fn grace(&self) -> Result<(), &'static str> {
        Err("seize has no call that waits for readers")
    }

    fn poll(&self) -> Result<(), &'static str> {
        Err("seize has no grace periods to poll")
    }

    fn callbacks(&self, values: u64) {
        let before = dropped();
        for n in 0..values {
            let value = Box::into_raw(Box::new(Counted(n)));
            // SAFETY: a box that no other code knows, retired once.
            unsafe { self.collector.retire(value, reclaim::boxed::<Counted>) };
        }
        until_dropped(before, values, || self.collector.enter().flush());
    }
}
