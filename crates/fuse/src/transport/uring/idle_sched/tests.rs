use std::time::Duration;

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu};

use super::policy::Tid;
use super::*;

/// A watchdog, and what the calling thread needs to take the class; `None` where the host does not
/// let it. Without `has_thread` the test itself looks after the threads: the watchdog has no
/// thread.
fn guarded(has_thread: bool) -> Option<(Arc<Watchdog>, IdleSchedHandle)> {
    let watchdog = Arc::new(Watchdog::new(Cpus::new(), true));
    // ORDERING: Relaxed here and below: no other thread reads it yet, or the value is polled.
    watchdog.has_thread.store(!has_thread, Ordering::Relaxed);
    let handle = watchdog.register();
    if !handle.is_possible {
        testing::skipped("threads may not change their scheduling class back here");
        return None;
    }
    Some((watchdog, handle))
}

/// Serves until it may take the class.
fn serve(handle: &mut IdleSchedHandle) {
    for _ in 0..PACE + 2 {
        handle.before_wait(1000, true);
    }
}

fn class_of(tid: Tid) -> i32 {
    // SAFETY: only asks.
    unsafe { libc::sched_getscheduler(tid.as_raw_nonzero().get()) }
}

fn own_class() -> i32 {
    class_of(policy::me())
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < end, "the guard does nothing");
        std::thread::yield_now();
    }
}

/// A thread that wants a CPU all the time, until this is dropped.
struct Hog(Arc<AtomicBool>, Option<std::thread::JoinHandle<()>>);

impl Hog {
    fn on(cpu: u16) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&ended);
        let thread = std::thread::spawn(move || {
            Cpus::new().keep_to(Some(cpu));
            while !end.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        Self(ended, Some(thread))
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        if let Some(thread) = self.1.take() {
            assert!(thread.join().is_ok());
        }
    }
}

#[test]
fn only_fast_requests_are_worth_it() {
    let mut slow = Pace::default();
    assert!((0..100).all(|n| !slow.is_fast(1000 + n * 10)));
    let mut fast = Pace::default();
    assert!((0..=PACE).all(|_| !fast.is_fast(1000)));
    assert!((0..1000).all(|n| fast.is_fast(1001 + n / 20)), "and as long as it goes on");
    assert!(!fast.is_fast(5000));
}

#[test]
fn a_thread_that_waits_for_the_cpu_gets_its_class_back_and_nobody_takes_it_for_a_while() {
    let Some((watchdog, mut handle)) = guarded(true) else { return };
    let cpu = u16::try_from(sched_getcpu()).unwrap();
    let hog = Hog::on(cpu);
    Cpus::new().keep_to(Some(cpu));
    // It wants the CPU as well, and takes the class again for as long as it may.
    until(|| {
        if own_class() == libc::SCHED_OTHER {
            serve(&mut handle);
        }
        watchdog.is_banned.load(Ordering::Relaxed)
    });
    drop(hog);
    serve(&mut handle);
    // On a slow machine the ban may be over.
    assert!(own_class() == libc::SCHED_OTHER || !watchdog.is_banned.load(Ordering::Relaxed));
    // It ends by itself.
    until(|| !watchdog.is_banned.load(Ordering::Relaxed));
    drop(handle);
    watchdog.wait();
}

#[test]
fn only_those_who_are_alone_take_the_class() {
    let Some((_guard, mut handle)) = guarded(false) else { return };
    serve(&mut handle);
    assert_eq!(own_class(), libc::SCHED_IDLE);
    handle.before_wait(1000, false);
    assert_eq!(own_class(), libc::SCHED_OTHER);
    handle.before_wait(1000, true);
    assert_eq!(own_class(), libc::SCHED_IDLE);
    drop(handle);
    assert_eq!(own_class(), libc::SCHED_OTHER);
}

#[test]
fn threads_that_it_makes_do_not_inherit_the_class() {
    let Some((_guard, mut handle)) = guarded(false) else { return };
    serve(&mut handle);
    assert_eq!(own_class(), libc::SCHED_IDLE);
    let classes = sync::Mutex::new(Vec::new());
    sync::thread::run_scoped(3, 64 << 10, || classes.lock().push(own_class()));
    let classes = classes.lock();
    assert!(classes.len() > 1, "no thread was made");
    assert!(classes.iter().all(|policy| *policy == libc::SCHED_OTHER), "{classes:?}");
}

/// The kernel would take it from the scheduling class.
#[test]
fn the_io_of_a_thread_in_the_class_is_not_idle() {
    let Some((_guard, mut handle)) = guarded(false) else { return };
    serve(&mut handle);
    assert_eq!(own_class(), libc::SCHED_IDLE);
    // SAFETY: only asks.
    let policy = unsafe { libc::syscall(libc::SYS_ioprio_get, 1, 0) } >> 13;
    assert!(policy == 1 || policy == 2, "{policy}");
    drop(handle);
}

#[test]
fn a_thread_without_requests_gets_its_class_back_and_may_take_it_again() {
    let Some((watchdog, mut handle)) = guarded(false) else { return };
    let mut detector = StarvationDetector::default();
    serve(&mut handle);
    detector.look(&watchdog.list.lock());
    handle.before_wait(1000, true);
    detector.look(&watchdog.list.lock());
    assert_eq!(own_class(), libc::SCHED_IDLE, "it has moved");
    detector.look(&watchdog.list.lock());
    assert_eq!(own_class(), libc::SCHED_OTHER, "it has not");
    handle.before_wait(1000, true);
    assert_eq!(own_class(), libc::SCHED_IDLE);
    drop(handle);
    assert!(watchdog.list.lock().is_empty());
}

#[test]
fn a_class_that_was_lost_to_the_guard_is_taken_again_soon() {
    let Some((_guard, mut handle)) = guarded(false) else { return };
    serve(&mut handle);
    // As the watchdog does at a bad moment.
    policy::set(&policy::me(), Policy::Normal);
    for _ in 0..RENEW_EVERY {
        handle.before_wait(1000, true);
    }
    assert_eq!(own_class(), libc::SCHED_IDLE);
}

#[test]
fn nobody_takes_the_class_when_the_guard_has_ended() {
    let Some((watchdog, mut handle)) = guarded(true) else { return };
    serve(&mut handle);
    watchdog.wait();
    assert_eq!(own_class(), libc::SCHED_OTHER);
    for _ in 0..2 * RENEW_EVERY {
        handle.before_wait(1000, true);
        assert_eq!(own_class(), libc::SCHED_OTHER);
    }
}

#[test]
fn the_guard_is_a_real_time_thread_that_may_run_anywhere() {
    let Some((watchdog, mut handle)) = guarded(true) else { return };
    let all = sched_getaffinity(None).unwrap();
    Cpus::new().keep_to(Some(u16::try_from(sched_getcpu()).unwrap()));
    // Asked before it can have begun, and until it has.
    serve(&mut handle);
    let guards = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let tids = tasks.filter_map(|task| task.ok()?.file_name().into_string().ok());
        let named = |tid: &String| {
            let name = std::fs::read_to_string(format!("/proc/self/task/{tid}/comm")).unwrap_or_default();
            name.trim() == "wt-ring-guard"
        };
        tids.filter(named).filter_map(|tid| Tid::from_raw(tid.parse().ok()?)).collect::<Vec<_>>()
    };
    // Other tests have guards of their own, which may end meanwhile.
    let is_right = |tid: &Tid| {
        let cpus: Option<CpuSet> = sched_getaffinity(Some(*tid)).ok();
        class_of(*tid) == libc::SCHED_FIFO && cpus == Some(all)
    };
    until(|| guards().iter().any(is_right));
    drop(handle);
    watchdog.wait();
}
