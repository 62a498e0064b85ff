use super::*;

#[test]
fn only_fast_requests_are_worth_it() {
    let mut slow = Pace::default();
    assert!((0..100).all(|n| !slow.is_fast(1000 + n * 10)));
    let mut fast = Pace::default();
    assert!((0..=PACE).all(|_| !fast.is_fast(1000)) || PACE == 0);
    assert!((0..1000).all(|n| fast.is_fast(1001 + n / 20)), "and as long as it goes on");
    assert!(!fast.is_fast(5000));
}

#[test]
fn bans_grow_while_they_are_needed() {
    let mut ban = Ban::default();
    assert!(!ban.holds());
    ban.begin();
    assert!(ban.holds());
    assert_eq!(ban.last, BAN[0]);
    ban.begin();
    assert_eq!(ban.last, BAN[0] * 2);
    for _ in 0..10 {
        ban.begin();
    }
    assert_eq!(ban.last, BAN[1]);
}

/// The guard, and a thread of this test that has taken the class.
fn in_the_class() -> Option<(Arc<Guard>, Stayer)> {
    let guard = Arc::new(Guard::new(Cpus::new()));
    if !guard.is_possible {
        testing::skipped("threads may not change their scheduling class back here");
        return None;
    }
    let mut stayer = guard.join();
    for _ in 0..=PACE + 1 {
        stayer.after_wait();
        stayer.before_wait(&guard, 1000, true);
    }
    // ORDERING: Relaxed here and below, values that are polled.
    assert_eq!(stayer.stay.waits.load(Ordering::Relaxed), stayer.number);
    Some((guard, stayer))
}

fn class_of(tid: Pid) -> i32 {
    // SAFETY: only asks.
    unsafe { libc::sched_getscheduler(tid.as_raw_nonzero().get()) }
}

fn until(mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(30);
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
        self.1.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_thread_that_waits_for_the_cpu_gets_its_class_back_and_nobody_takes_it_for_a_while() {
    let cpu = u16::try_from(rustix::thread::sched_getcpu()).unwrap();
    let Some((guard, mut stayer)) = in_the_class() else { return };
    let hog = Hog::on(cpu);
    Cpus::new().keep_to(Some(cpu));
    // It wants the CPU as well, and takes the class again for as long as it may.
    until(|| {
        let banned = guard.is_banned.load(Ordering::Relaxed);
        if class_of(stayer.stay.tid) == libc::SCHED_OTHER && !banned {
            stayer.after_wait();
            stayer.before_wait(&guard, 1000, true);
        }
        banned
    });
    drop(hog);
    let number = stayer.number;
    stayer.after_wait();
    stayer.before_wait(&guard, 1000, true);
    assert_eq!((class_of(stayer.stay.tid), stayer.number), (libc::SCHED_OTHER, number));
    // The ban ends without anybody asking for it.
    until(|| !guard.is_banned.load(Ordering::Relaxed));
    guard.end();
}

#[test]
fn only_those_who_are_alone_take_the_class() {
    let Some((guard, mut stayer)) = in_the_class() else { return };
    stayer.after_wait();
    stayer.before_wait(&guard, 1000, false);
    assert_eq!(class_of(stayer.stay.tid), libc::SCHED_OTHER);
    stayer.before_wait(&guard, 1000, true);
    assert_eq!(class_of(stayer.stay.tid), libc::SCHED_IDLE);
    stayer.after_wait();
    guard.end();
}

#[test]
fn a_thread_without_requests_gets_its_class_back_and_may_take_it_again() {
    let (tell, told) = std::sync::mpsc::channel();
    let (leave, left) = std::sync::mpsc::channel::<()>();
    let waiter = std::thread::spawn(move || {
        let Some((guard, mut stayer)) = in_the_class() else { return };
        tell.send((Arc::clone(&guard), stayer.stay.tid)).unwrap();
        left.recv().unwrap();
        stayer.after_wait();
        stayer.before_wait(&guard, 1000, true);
        assert_eq!(class_of(stayer.stay.tid), libc::SCHED_IDLE);
        stayer.after_wait();
        assert_eq!(class_of(stayer.stay.tid), libc::SCHED_OTHER);
        guard.end();
    });
    if let Ok((guard, tid)) = told.recv() {
        until(|| class_of(tid) == libc::SCHED_OTHER);
        assert!(!guard.is_banned.load(Ordering::Relaxed));
        leave.send(()).unwrap();
    }
    waiter.join().unwrap();
}

#[test]
fn the_guard_has_a_class_of_its_own() {
    let Some((guard, mut stayer)) = in_the_class() else { return };
    let own = || {
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.find_map(|task| {
            let task = task.unwrap();
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            (name.trim() == "wt-ring-guard").then(|| task.file_name().into_string().unwrap())
        })
    };
    // It takes its name itself.
    until(|| own().is_some());
    let tid: i32 = own().unwrap().parse().unwrap();
    assert_eq!(class_of(Pid::from_raw(tid).unwrap()), libc::SCHED_OTHER);
    guard.end();
    stayer.after_wait();
}
