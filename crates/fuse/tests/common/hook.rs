//! Where a store's calls wait in tests.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

/// Somewhere to wait until a test says so.
#[derive(Default)]
pub struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    pub fn shut(&self) {
        *self.is_shut.lock().unwrap() = true;
    }

    pub fn open(&self) {
        *self.is_shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        // ORDERING: SeqCst throughout this file: a test's count of waiters; the gate itself is
        // under its lock.
        self.waiting.load(Ordering::SeqCst)
    }

    /// Waits while the gate is shut.
    pub fn pass(&self) {
        let mut is_shut = self.is_shut.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        while *is_shut {
            is_shut = self.opened.wait(is_shut).unwrap();
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Opens the gate when a test ends, however it does: nothing can be unmounted while a store hangs.
pub struct OpenAtEnd(pub Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}
