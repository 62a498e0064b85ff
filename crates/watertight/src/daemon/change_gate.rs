//! Calls that change a mount, ends of its clones, and an upgrade: one of them at a time.
//!
//! An upgrade closes the gate before requests wait, and opens it again where it is refused. Calls
//! under way come to their ends before; those that come later wait at the gate: for its opening, or
//! for the end of this program, and then their callers ask the next one. So a call that was
//! answered is part of the state that is handed over, and one whose connection has closed was not
//! begun.

use std::time::{Duration, Instant};

use sync::{Condvar, Mutex};

/// How often a step of an upgrade that waits looks for events that end it.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct ChangeGate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct GateState {
    is_closed: bool,
    under_way: usize,
}

/// A call that changes something.
#[derive(Debug)]
pub(crate) struct Change<'a>(&'a ChangeGate);

/// The gate is closed until this is dropped.
#[derive(Debug)]
pub(crate) struct Closed<'a>(&'a ChangeGate);

impl ChangeGate {
    /// To be held while something is changed that is handed over and no request of the kernel's
    /// changes.
    pub(crate) fn pass(&self) -> Change<'_> {
        let mut state = self.state.lock();
        while state.is_closed {
            self.changed.wait(&mut state);
        }
        state.under_way += 1;
        Change(self)
    }

    /// Lets no call pass, and waits for those under way, until `until`, and as long as `go_on`
    /// agrees. One caller at a time.
    ///
    /// # Errors
    /// How many calls did not come to their ends: the gate is open again then.
    pub(crate) fn close(&self, until: Instant, mut go_on: impl FnMut() -> bool) -> Result<Closed<'_>, usize> {
        self.state.lock().is_closed = true;
        let closed = Closed(self);
        let mut state = self.state.lock();
        while state.under_way > 0 {
            let next = until.min(Instant::now() + LOOK);
            let is_late = self.changed.wait_until(&mut state, next);
            if is_late && state.under_way > 0 && (Instant::now() >= until || !go_on()) {
                return Err(state.under_way);
            }
        }
        drop(state);
        Ok(closed)
    }
}

impl Drop for Change<'_> {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
        self.0.changed.notify_all();
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.state.lock().is_closed = false;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    fn soon() -> Instant {
        Instant::now() + Duration::from_millis(50)
    }

    #[test]
    fn a_call_under_way_is_waited_for_and_a_later_one_waits() {
        let (gate, has_passed) = (ChangeGate::default(), AtomicBool::new(false));
        let change = gate.pass();
        assert_eq!(gate.close(soon(), || true).unwrap_err(), 1);
        let begun = Instant::now();
        assert_eq!(gate.close(begun + Duration::from_secs(3600), || false).unwrap_err(), 1);
        assert!(begun.elapsed() < Duration::from_secs(600), "{:?}", begun.elapsed());
        let second = gate.pass();
        drop((change, second));
        let closed = gate.close(soon(), || true).unwrap();
        thread::scope(|scope| {
            scope.spawn(|| {
                let _change = gate.pass();
                has_passed.store(true, Ordering::SeqCst);
            });
            thread::sleep(Duration::from_millis(50));
            assert!(!has_passed.load(Ordering::SeqCst), "it has passed a closed gate");
            drop(closed);
        });
        assert!(has_passed.load(Ordering::SeqCst));
        drop(gate.close(soon(), || true).unwrap());
    }
}
