//! Our own domains.

use std::sync::atomic::{AtomicPtr, Ordering};

use rcu::{Domain, RcuCell};

use super::subject::{Counted, Subject, stay};

/// A domain, and a value that is read in it.
pub(crate) struct Ours {
    domain: Domain,
    value: RcuCell<u64>,
    /// A pointer to some value, as the peers' readers load it.
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
        let pointer = AtomicPtr::new(std::ptr::dangling_mut());
        Self { value: RcuCell::new(&domain, 1), domain, pointer, is_normal }
    }
}

/// Loops of their own, so that neither pays for the other.
impl Ours {
    #[inline(never)]
    fn read_default(&self, pairs: u64) {
        for _ in 0..pairs {
            let _guard = rcu::read();
            // ORDERING: Acquire, as everybody's.
            std::hint::black_box(self.pointer.load(Ordering::Acquire));
        }
    }

    #[inline(never)]
    fn read_own(&self, pairs: u64) {
        (0..pairs).for_each(|_| self.value.with(|value| _ = std::hint::black_box(value)));
    }
}

impl Subject for Ours {
    fn read(&self, pairs: u64, nested: bool) {
        let _outer = nested.then(|| self.domain.read());
        if self.is_normal { self.read_own(pairs) } else { self.read_default(pairs) }
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
