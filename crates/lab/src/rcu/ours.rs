//! Our own domains.

use rcu::{Domain, RcuCell};

use super::subject::{Counted, Subject, stay};

/// A domain, and a value that is read in it.
pub(crate) struct Ours {
    domain: Domain,
    value: RcuCell<u64>,
    is_normal: bool,
}

impl Ours {
    pub(crate) fn expedited() -> Self {
        Self::new(false)
    }

    pub(crate) fn normal() -> Self {
        Self::new(true)
    }

    fn new(is_normal: bool) -> Self {
        let domain = Domain::new();
        Self { value: RcuCell::new(&domain, 1), domain, is_normal }
    }
}

impl Subject for Ours {
    fn read(&self, pairs: u64, nested: bool) {
        let _outer = nested.then(|| self.domain.read());
        for _ in 0..pairs {
            let guard = self.domain.read();
            std::hint::black_box(self.value.load(&guard));
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
