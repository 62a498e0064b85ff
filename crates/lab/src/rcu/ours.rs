//! Our own domains.

use std::sync::atomic::{AtomicPtr, Ordering};

use rcu::{Domain, RcuCell};

use super::placement::{place, placed};
use super::subject::{Counted, Subject, stay};

static VALUE: u64 = 1;

/// A domain, and a value that is read in it.
pub(crate) struct Ours {
    domain: Domain,
    value: RcuCell<u64>,
    /// A pointer to [`VALUE`], as the peers' readers load it.
    pointer: AtomicPtr<u64>,
    is_normal: bool,
}

impl Ours {
    /// The default domain, and its shortest way into a section.
    pub(crate) fn expedited() -> Self {
        Self::new(Domain::global().clone(), false)
    }

    /// A domain of its own, and the way into a section that is short in any domain.
    pub(crate) fn normal() -> Self {
        Self::new(Domain::new(), true)
    }

    fn new(domain: Domain, is_normal: bool) -> Self {
        let pointer = AtomicPtr::new(std::ptr::from_ref(&VALUE).cast_mut());
        Self { value: RcuCell::new(&domain, 1), domain, pointer, is_normal }
    }
}

/// Loops of their own, so that neither pays for the other.
impl Ours {
    #[inline(never)]
    fn sections_default<const AT: usize>(&self, pairs: u64) -> u64 {
        let mut sum = 0;
        place!(AT);
        for _ in 0..pairs {
            let _guard = rcu::read();
            // ORDERING: Acquire, as in all subjects.
            // SAFETY: a static's address.
            sum += unsafe { *self.pointer.load(Ordering::Acquire) };
        }
        sum
    }

    #[inline(never)]
    fn sections_own<const AT: usize>(&self, pairs: u64) -> u64 {
        let mut sum = 0;
        place!(AT);
        for _ in 0..pairs {
            self.value.with(|value| sum += value);
        }
        sum
    }
}

impl Subject for Ours {
    fn read(&self, pairs: u64, nested: bool, placement: usize) -> u64 {
        let _outer = nested.then(|| self.domain.read());
        if self.is_normal {
            placed!(placement, self.sections_own(pairs))
        } else {
            placed!(placement, self.sections_default(pairs))
        }
    }

    fn read_while(&self, goes_on: &dyn Fn() -> bool) {
        loop {
            let guard = self.domain.read();
            std::hint::black_box(self.value.load(&guard));
            stay();
            drop(guard);
            if !goes_on() {
                return;
            }
        }
    }

    fn grace(&self) -> Result<(), &'static str> {
        if self.is_normal {
            self.domain.synchronize();
        } else {
            self.domain.synchronize_expedited();
        }
        Ok(())
    }

    fn poll(&self) -> Result<(), &'static str> {
        let cookie =
            if self.is_normal { self.domain.start_poll() } else { self.domain.start_poll_expedited() };
        while !self.domain.poll_state(cookie) {
            std::thread::yield_now();
        }
        Ok(())
    }

    fn callbacks(&self, values: u64) {
        (0..values).for_each(|n| self.domain.defer_free(Box::new(Counted(n))));
        self.domain.barrier();
    }
}
