//! Something that a thread waits for, once for each time that it is set.

use sync::{Condvar, Mutex};

#[derive(Default)]
pub(crate) struct Event {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Event {
    pub(crate) fn set(&self) {
        *self.set.lock() = true;
        self.changed.notify_all();
    }

    pub(crate) fn wait(&self) {
        let mut set = self.set.lock();
        while !*set {
            self.changed.wait(&mut set);
        }
        *set = false;
    }
}
