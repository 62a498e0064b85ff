//! liburcu, where it and a C compiler were available when the lab was built: `liburcu.c`, linked
//! into the lab.

use std::os::raw::{c_int, c_ulong};

use super::placement::PLACEMENTS;
use super::subject::{Subject, stay};

/// liburcu's flavour with membarrier(2).
pub(crate) struct Liburcu;

// SAFETY: the functions of these types in `liburcu.c`. All but the first two want a thread that is
// registered.
unsafe extern "C" {
    fn lab_enter_thread();
    fn lab_leave_thread();
    fn lab_read(pairs: c_ulong, nested: c_int, placement: c_int) -> c_ulong;
    fn lab_lock();
    fn lab_unlock();
    fn lab_synchronize();
    fn lab_poll() -> c_int;
    fn lab_callbacks(values: c_ulong) -> c_ulong;
}

/// Runs `work` as a thread that liburcu knows.
fn registered<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: each thread registers once, here, and leaves before it returns.
    unsafe { lab_enter_thread() };
    let result = work();
    // SAFETY: as above.
    unsafe { lab_leave_thread() };
    result
}

impl Subject for Liburcu {
    fn read(&self, pairs: u64, nested: bool, placement: usize) -> u64 {
        let placement = c_int::try_from(placement % PLACEMENTS).expect("a few");
        // SAFETY: called by a registered thread.
        registered(|| unsafe { lab_read(pairs, c_int::from(nested), placement) })
    }

    fn read_while(&self, goes_on: &dyn Fn() -> bool) {
        registered(|| {
            loop {
                // SAFETY: called by a registered thread, and unlocked below.
                unsafe { lab_lock() };
                stay();
                // SAFETY: locked above.
                unsafe { lab_unlock() };
                if !goes_on() {
                    return;
                }
            }
        });
    }

    fn grace(&self) -> Result<(), &'static str> {
        // SAFETY: outside of read sections; a waiting thread need not be registered.
        unsafe { lab_synchronize() };
        Ok(())
    }

    fn poll(&self) -> Result<(), &'static str> {
        // SAFETY: called by a registered thread, outside of read sections.
        let is_there = registered(|| unsafe { lab_poll() });
        if is_there == 0 {
            Err("this liburcu has no polled grace periods (0.14 and later have)")
        } else {
            Ok(())
        }
    }

    fn callbacks(&self, values: u64) {
        // SAFETY: called by a registered thread, outside of read sections.
        let given = registered(|| unsafe { lab_callbacks(values) });
        assert_eq!(given, values, "memory for the values");
    }
}
