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

/// A guard, and what the calling thread needs to take the class; nothing where the host does not let it. Who has to be looked after by the
/// test itself has a guard without a thread.
fn guarded(has_thread: bool) -> Option<(Arc<Guard>, Stayer)> {
    let guard = Guard::new(Cpus::new());
    if !guard.is_possible {
        testing::skipped("threads may not change their scheduling class back here");
        return None;
    }
    // ORDERING: Relaxed here and below: nobody else looks yet, or the value is polled.
    guard.has_thread.store(!has_thread, Ordering::Relaxed);
    let stayer = guard.join();
    Some((Arc::new(guard), stayer))
}

/// Serves until it may take the class.
fn serve(guard: &Arc<Guard>, stayer: &mut Stayer) {
    for _ in 0..PACE + 2 {
        stayer.before_wait(guard, 1000, true);
    }
}

fn class_of(tid: Pid) -> i32 {
    // SAFETY: only asks.
    unsafe { libc::sched_getscheduler(tid.as_raw_nonzero().get()) }
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
fn a_thread_that_waits_for_the_cpu_gets_its_class_back_and_nobody_takes_it_for_a_while() {
    let Some((guard, mut stayer)) = guarded(true) else { return };
    let cpu = u16::try_from(rustix::thread::sched_getcpu()).unwrap();
    let hog = Hog::on(cpu);
    Cpus::new().keep_to(Some(cpu));
    // It wants the CPU as well, and takes the class again for as long as it may.
    until(|| {
        if class_of(stayer.stay.tid) == libc::SCHED_OTHER {
            serve(&guard, &mut stayer);
        }
        guard.is_banned.load(Ordering::Relaxed)
    });
    drop(hog);
    serve(&guard, &mut stayer);
    let class = class_of(stayer.stay.tid);
    // On a slow machine the ban may be over.
    assert!(class == libc::SCHED_OTHER || !guard.is_banned.load(Ordering::Relaxed));
    // It ends without anybody asking for it.
    until(|| !guard.is_banned.load(Ordering::Relaxed));
    stayer.leave();
    guard.end();
}

#[test]
fn a_thread_that_waited_for_requests_only_is_no_reason_for_a_ban() {
    let now = RunQueue::of(gettid()).unwrap();
    let stay = Arc::new(Stay { tid: gettid(), waits: AtomicU64::new(0) });
    let closed = |before| {
        let mut ban = Ban::default();
        let is_open = Released { stay: Arc::clone(&stay), before, ticks: 0 }.is_open(&mut ban);
        (is_open, ban.holds())
    };
    let turns = now.turns.wrapping_sub(1);
    assert_eq!(closed(RunQueue { waited: Duration::ZERO, turns }), (false, now.waited >= TICK));
    // Far more than this thread can have waited since.
    assert_eq!(closed(RunQueue { waited: now.waited + Duration::from_secs(3600), turns }), (false, false));
}

#[test]
fn a_thread_that_does_not_run_any_more_is_forgotten() {
    let (tell, told) = std::sync::mpsc::channel();
    let (end, ended) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        tell.send(gettid()).unwrap();
        ended.recv().ok();
    });
    let stay = Arc::new(Stay { tid: told.recv().unwrap(), waits: AtomicU64::new(0) });
    let path = format!("/proc/self/task/{}/stat", stay.tid.as_raw_nonzero());
    until(|| std::fs::read_to_string(&path).unwrap().contains(") S "));
    let mut released = Released { before: RunQueue::of(stay.tid).unwrap(), stay, ticks: 0 };
    let mut ban = Ban::default();
    let looks = (0..).take_while(|_| released.is_open(&mut ban)).count();
    assert_eq!((looks, ban.holds()), (PATIENCE as usize - 1, false));
    drop(end);
    thread.join().unwrap();
}

#[test]
fn only_those_who_are_alone_take_the_class() {
    let Some((guard, mut stayer)) = guarded(false) else { return };
    serve(&guard, &mut stayer);
    assert_eq!(class_of(stayer.stay.tid), libc::SCHED_IDLE);
    stayer.before_wait(&guard, 1000, false);
    assert_eq!(class_of(stayer.stay.tid), libc::SCHED_OTHER);
    stayer.before_wait(&guard, 1000, true);
    assert_eq!(class_of(stayer.stay.tid), libc::SCHED_IDLE);
    stayer.leave();
    assert_eq!(class_of(stayer.stay.tid), libc::SCHED_OTHER);
}

#[test]
fn a_thread_without_requests_gets_its_class_back_and_may_take_it_again() {
    let Some((guard, mut stayer)) = guarded(false) else { return };
    let tid = stayer.stay.tid;
    let mut watch = Watch::default();
    serve(&guard, &mut stayer);
    watch.look(guard.threads());
    stayer.before_wait(&guard, 1000, true);
    watch.look(guard.threads());
    assert_eq!(class_of(tid), libc::SCHED_IDLE, "it has moved");
    watch.look(guard.threads());
    assert_eq!(class_of(tid), libc::SCHED_OTHER, "it has not");
    stayer.before_wait(&guard, 1000, true);
    assert_eq!(class_of(tid), libc::SCHED_IDLE);
    stayer.leave();
}

#[test]
fn a_class_that_was_lost_to_the_guard_is_taken_again_soon() {
    let Some((guard, mut stayer)) = guarded(false) else { return };
    serve(&guard, &mut stayer);
    // As the guard does at a bad moment.
    set_class(None, Class::Normal);
    for _ in 0..AGAIN {
        stayer.before_wait(&guard, 1000, true);
    }
    assert_eq!(class_of(stayer.stay.tid), libc::SCHED_IDLE);
    stayer.leave();
}

#[test]
fn the_guard_has_a_class_of_its_own_and_may_run_anywhere() {
    let Some((guard, mut stayer)) = guarded(true) else { return };
    let all = rustix::thread::sched_getaffinity(None).unwrap();
    let cpu = u16::try_from(rustix::thread::sched_getcpu()).unwrap();
    let cpus = Cpus::new();
    cpus.keep_to(Some(cpu));
    serve(&guard, &mut stayer);
    let own = || {
        let mut tasks = std::fs::read_dir("/proc/self/task").unwrap();
        tasks.find_map(|task| {
            let task = task.unwrap();
            let name = std::fs::read_to_string(task.path().join("comm")).ok()?;
            (name.trim() == "wt-ring-guard").then(|| task.file_name().into_string().unwrap())
        })
    };
    // It takes its name itself, and its CPUs.
    until(|| own().is_some());
    let tid = Pid::from_raw(own().unwrap().parse().unwrap()).unwrap();
    assert_eq!(class_of(tid), libc::SCHED_OTHER);
    until(|| rustix::thread::sched_getaffinity(Some(tid)).is_ok_and(|set| set == all));
    stayer.leave();
    guard.end();
}
