//! A thread that goes one instruction at a time, and stays at one of them.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::common::until;

/// One test at a time has such a thread: the handler knows only these.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
/// Instructions that it has done, and the one after which it stays.
static DONE: AtomicU64 = AtomicU64::new(0);
static STAY_AT: AtomicU64 = AtomicU64::new(0);
/// It stays there; it may go on.
static STAYS: AtomicBool = AtomicBool::new(false);
static MAY_GO: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// Whether this thread goes in steps.
    static IN_STEPS: Cell<bool> = const { Cell::new(false) };
}

/// In the flags of the processor: a trap after the next instruction.
const TRAP: libc::greg_t = 1 << 8;

/// After each instruction, and once before the first.
extern "C" fn step(_signal: libc::c_int, _info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let context = context.cast::<libc::ucontext_t>();
    // SAFETY: the kernel gives the handler the context that it will go back to, and no other code
    // has it meanwhile.
    let flags = unsafe { &mut (*context).uc_mcontext.gregs[libc::REG_EFL as usize] };
    if !IN_STEPS.get() {
        *flags &= !TRAP;
        return;
    }
    *flags |= TRAP;
    // ORDERING: SeqCst here and below, a test's turns.
    if DONE.fetch_add(1, Ordering::SeqCst) == STAY_AT.load(Ordering::SeqCst) {
        STAYS.store(true, Ordering::SeqCst);
        while !MAY_GO.load(Ordering::SeqCst) {
            // SAFETY: takes nothing, and handlers may call it.
            unsafe { libc::sched_yield() };
        }
    }
}

fn listen_for_traps() {
    // SAFETY: zeroes are a valid `sigaction`: no flags, an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = step as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the structure is complete and outlives the call; the handler uses atomics and one
    // system call only.
    let result = unsafe { libc::sigaction(libc::SIGTRAP, &raw const action, std::ptr::null_mut()) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Does `work` in steps.
fn in_steps(work: impl FnOnce()) {
    IN_STEPS.set(true);
    // SAFETY: the handler sets the processor's flag, so that from here on there is a trap for each
    // instruction.
    unsafe { libc::raise(libc::SIGTRAP) };
    work();
    IN_STEPS.set(false);
}

/// Has a thread do `work` again and again, `before` in front of it, and stays at each of its
/// instructions in turn while `meanwhile` runs.
pub(crate) fn at_each_step(before: impl Fn() + Sync, work: impl Fn() + Sync, mut meanwhile: impl FnMut(u64)) {
    let _alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    listen_for_traps();
    // Steps that are made only once in a thread's life do not count.
    let mut last = 0;
    for at in 1.. {
        DONE.store(0, Ordering::SeqCst);
        STAY_AT.store(at, Ordering::SeqCst);
        STAYS.store(false, Ordering::SeqCst);
        MAY_GO.store(false, Ordering::SeqCst);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                work();
                before();
                in_steps(&work);
            });
            let _goes_on = GoesOn;
            until("it stays or has ended", || STAYS.load(Ordering::SeqCst) || worker.is_finished());
            if STAYS.load(Ordering::SeqCst) {
                last = at;
                meanwhile(at);
                assert!(!worker.is_finished(), "it did not stay");
            }
        });
        if last < at {
            break;
        }
    }
    assert!(last > 50, "only {last} instructions");
}

/// Also when a check fails.
struct GoesOn;

impl Drop for GoesOn {
    fn drop(&mut self) {
        MAY_GO.store(true, Ordering::SeqCst);
    }
}
