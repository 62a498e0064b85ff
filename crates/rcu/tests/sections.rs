//! Readers, grace periods and callbacks on real threads.
#![cfg(not(any(loom, shuttle)))]

use std::cell::RefCell;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::Duration;

use sync::ManualClock;
use watertight_rcu::{Domain, DomainOptions, Guard, RcuCell, WorkQueue};

/// Miri is a thousand times slower.
const fn size(n: usize) -> usize {
    if cfg!(miri) { n.div_ceil(50) } else { n }
}

const LONG: Duration = Duration::from_secs(120);

/// A thread inside a section of `domain`, until told to leave.
struct Reader {
    leave: Sender<()>,
    thread: thread::JoinHandle<()>,
}

impl Reader {
    fn start(domain: &Domain) -> Self {
        let (leave, task_queued) = channel();
        let (inside, entered) = channel();
        let domain = domain.clone();
        let thread = thread::Builder::new().name("a slow reader".into());
        let thread = thread.spawn(move || {
            let _guard = domain.read();
            inside.send(()).expect("the test waits");
            task_queued.recv().expect("the test tells");
        });
        let thread = thread.expect("a thread");
        entered.recv_timeout(LONG).expect("the reader enters");
        Self { leave, thread }
    }

    fn leave(self) {
        self.leave.send(()).expect("the reader waits");
        self.thread.join().expect("the reader ends");
    }
}

#[test]
fn a_grace_period_waits_for_a_reader_and_for_later_ones_not() {
    let domain = Domain::new();
    let early = Reader::start(&domain);
    let cookie = domain.get_state();
    let waiting = {
        let domain = domain.clone();
        thread::spawn(move || domain.cond_synchronize_expedited(cookie))
    };
    while domain.get_state() == cookie {
        thread::yield_now();
    }
    let late = Reader::start(&domain);
    assert!(!domain.poll_state(cookie), "the early reader is still inside");
    early.leave();
    waiting.join().expect("the waiter ends");
    assert!(domain.poll_state(cookie));
    late.leave();
}

#[test]
fn domains_do_not_wait_for_each_other() {
    let (one, other) = (Domain::new(), Domain::new());
    let reader = Reader::start(&one);
    other.synchronize_expedited();
    other.synchronize();
    other.barrier();
    let _guard = one.read();
    other.synchronize_expedited();
    reader.leave();
}

#[test]
fn sections_nest() {
    let domain = Domain::new();
    let outer = domain.read();
    drop(domain.read());
    let cookie = domain.start_poll();
    // Another thread's whole attempt does not pass us.
    assert!(!passes_soon(&domain, cookie));
    drop(outer);
    domain.cond_synchronize_expedited(cookie);
}

/// Whether the grace period passes although a thread waits inside: a second domain's barrier gives
/// it time.
fn passes_soon(domain: &Domain, cookie: watertight_rcu::Cookie) -> bool {
    let other = Domain::new();
    for _ in 0..20 {
        other.synchronize();
    }
    domain.poll_state(cookie)
}

#[test]
fn guards_may_be_dropped_in_any_order() {
    let domain = Domain::new();
    let (first, second) = (domain.read(), domain.read());
    drop(first);
    let cookie = domain.start_poll();
    assert!(!passes_soon(&domain, cookie));
    drop(second);
    domain.cond_synchronize(cookie);
}

#[test]
fn a_section_around_one_value() {
    let domain = Domain::new();
    let cell = RcuCell::new(&domain, vec![1]);
    let cookie = cell.with(|value| {
        let retired = cell.replace(vec![2]);
        assert!(!retired.is_free());
        let cookie = domain.start_poll();
        assert!(!passes_soon(&domain, cookie));
        assert_eq!(*value, [1]);
        cookie
    });
    domain.cond_synchronize(cookie);
    assert_eq!(cell.with(Clone::clone), [2]);
}

#[test]
#[should_panic(expected = "would wait for itself")]
fn waiting_for_oneself_is_refused() {
    let domain = Domain::new();
    let _guard = domain.read();
    domain.synchronize_expedited();
}

#[test]
#[should_panic(expected = "a guard of another domain")]
fn a_guard_of_another_domain_reads_nothing() {
    let (one, other) = (Domain::new(), Domain::new());
    let cell = RcuCell::new(&one, 1);
    let guard = other.read();
    cell.load(&guard);
}

#[test]
fn a_value_outlives_its_cell_under_a_guard() {
    let domain = Domain::new();
    let guard = domain.read();
    let cell = RcuCell::new(&domain, String::from("seen"));
    let seen = cell.load(&guard);
    drop(cell);
    assert_eq!(seen, "seen");
}

#[test]
fn a_thousand_waiters_share_grace_periods() {
    let domain =
        Domain::with_options(DomainOptions { tick: Duration::from_secs(3600), ..DomainOptions::default() });
    let reader = Reader::start(&domain);
    let all = Arc::new(Barrier::new(size(1000) + 1));
    let waiters: Vec<_> = (0..size(1000))
        .map(|_| {
            let (domain, all) = (domain.clone(), Arc::clone(&all));
            thread::spawn(move || {
                let cookie = domain.get_state();
                all.wait();
                domain.cond_synchronize_expedited(cookie);
            })
        })
        .collect();
    all.wait();
    reader.leave();
    for waiter in waiters {
        waiter.join().expect("a waiter ends");
    }
    assert!(domain.stats().grace_periods <= 2, "{:?}", domain.stats());
}

#[test]
fn numbers_go_around() {
    let first_number = u64::MAX - 7;
    let domain = Domain::with_options(DomainOptions { first_number, ..DomainOptions::default() });
    for _ in 0..10 {
        let reader = Reader::start(&domain);
        let cookie = domain.get_state();
        assert!(!domain.poll_state(cookie));
        reader.leave();
        domain.cond_synchronize_expedited(cookie);
        assert!(domain.poll_state(cookie));
    }
}

#[test]
fn callbacks_run_in_order_after_readers_left() {
    let domain = Domain::new();
    let (ran, runs) = channel();
    let reader = Reader::start(&domain);
    for n in 0..size(1000) {
        let ran = ran.clone();
        domain.call(move || ran.send(n).expect("the test listens"));
    }
    assert!(runs.try_recv().is_err());
    reader.leave();
    domain.barrier();
    assert_eq!(runs.try_iter().collect::<Vec<_>>(), (0..size(1000)).collect::<Vec<_>>());
    assert_eq!(domain.stats().callbacks_run, size(1000) as u64);
}

#[test]
fn a_barrier_waits_for_a_callback_that_runs() {
    let domain = Domain::new();
    let (began, begins) = channel();
    let (finish, task_queued) = channel();
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    domain.call(move || {
        began.send(()).expect("the test listens");
        task_queued.recv().expect("the test tells");
        // ORDERING: SeqCst in these tests, plain counting.
        over.store(true, Ordering::SeqCst);
    });
    begins.recv_timeout(LONG).expect("the callback begins");
    let barrier = {
        let (domain, is_over) = (domain.clone(), Arc::clone(&is_over));
        thread::spawn(move || {
            domain.barrier();
            is_over.load(Ordering::SeqCst)
        })
    };
    finish.send(()).expect("the callback waits");
    assert!(barrier.join().expect("the barrier ends"), "the callback was over when the barrier returned");
}

#[test]
fn whoever_queues_too_much_waits() {
    let domain = Domain::with_options(DomainOptions { callbacks_max: 10, ..DomainOptions::default() });
    let reader = Reader::start(&domain);
    let producer = {
        let domain = domain.clone();
        thread::spawn(move || (0..100).for_each(|n| domain.defer_drop(vec![n; 100])))
    };
    assert_eq!(queued_when_slowed(&domain, 10), 10);
    reader.leave();
    producer.join().expect("the producer ends");
    domain.barrier();
    assert_eq!(domain.stats().callbacks_run, 100);
}

/// The number of callbacks queued when a caller waits because of them. There are `at_least` so many
/// then; counters are read one after the other, and may be seen late.
fn queued_when_slowed(domain: &Domain, at_least: u64) -> u64 {
    loop {
        let stats = domain.stats();
        if stats.callers_slowed > 0 && stats.callbacks_queued >= at_least {
            return stats.callbacks_queued;
        }
        thread::yield_now();
    }
}

/// A block, in which callbacks are counted where the bound is large.
const BLOCK: u64 = 64;

#[test]
fn threads_that_come_and_go_wait_as_well() {
    let domain = Domain::with_options(DomainOptions { callbacks_max: 1024, ..DomainOptions::default() });
    let reader = Reader::start(&domain);
    let producer = {
        let domain = domain.clone();
        thread::spawn(move || {
            for _ in 0..20 {
                let domain = domain.clone();
                // None of them fills a block.
                let caller = thread::spawn(move || (1..BLOCK).for_each(|n| domain.defer_free(Box::new(n))));
                caller.join().expect("a caller ends");
            }
        })
    };
    let queued = queued_when_slowed(&domain, 1024);
    assert!((1024..1024 + BLOCK).contains(&queued), "{queued} wait");
    reader.leave();
    producer.join().expect("the producer ends");
    domain.barrier();
    assert_eq!(domain.stats().callbacks_run, 20 * (BLOCK - 1));
}

/// A caller that must not wait because it is in a section waits at its next call outside.
#[test]
fn who_calls_inside_sections_waits_afterwards() {
    let max = 10;
    let domain = Domain::with_options(DomainOptions { callbacks_max: max, ..DomainOptions::default() });
    let reader = Reader::start(&domain);
    let producer = {
        let domain = domain.clone();
        thread::spawn(move || {
            let section = domain.read();
            (0..3 * max).for_each(|n| domain.defer_drop(n));
            drop(section);
            (0..2).for_each(|n| domain.defer_drop(n));
        })
    };
    let expected = 3 * max as u64 + 1;
    assert_eq!(queued_when_slowed(&domain, expected), expected, "the first call outside");
    reader.leave();
    producer.join().expect("the producer ends");
    domain.barrier();
    assert_eq!(domain.stats().callbacks_run, 3 * max as u64 + 2);
}

#[test]
fn who_only_calls_is_no_reader() {
    let domain = Domain::new();
    domain.call(|| ());
    domain.barrier();
    assert_eq!(domain.stats().readers, 0);
    drop(domain.read());
    assert_eq!(domain.stats().readers, 1);
}

#[test]
fn a_poll_does_not_stand_behind_a_callback() {
    let domain = Domain::new();
    let (began, begins) = channel();
    let (finish, task_queued) = channel::<()>();
    domain.call(move || {
        began.send(()).expect("the test listens");
        task_queued.recv().expect("the test tells");
    });
    begins.recv_timeout(LONG).expect("the callback begins");
    for cookie in [domain.start_poll(), domain.start_poll_expedited()] {
        while !domain.poll_state(cookie) {
            thread::yield_now();
        }
    }
    finish.send(()).expect("the callback waits");
    domain.barrier();
}

#[test]
fn callbacks_of_callbacks_and_of_panics() {
    let domain = Domain::with_options(DomainOptions { callbacks_max: 1, ..DomainOptions::default() });
    let count = Arc::new(AtomicUsize::new(0));
    let (inner, counted) = (domain.clone(), Arc::clone(&count));
    domain.call(|| panic!("on purpose"));
    domain.call(move || {
        let again = Arc::clone(&counted);
        inner.call(move || _ = again.fetch_add(1, Ordering::SeqCst));
        counted.fetch_add(1, Ordering::SeqCst);
    });
    while count.load(Ordering::SeqCst) < 2 {
        thread::yield_now();
    }
    domain.barrier();
    assert_eq!(domain.stats().callbacks_run, 3);
}

/// The payload of a panic may panic when it is dropped: the callback has run all the same, once,
/// and the next one runs.
#[test]
fn a_panic_within_a_panic_runs_nothing_twice() {
    struct Payload;
    impl Drop for Payload {
        fn drop(&mut self) {
            panic!("on purpose, the second one");
        }
    }
    let domain = Domain::new();
    let count = Arc::new(AtomicUsize::new(0));
    for _ in 0..3 {
        let counted = Arc::clone(&count);
        domain.call(move || {
            counted.fetch_add(1, Ordering::SeqCst);
            std::panic::panic_any(Payload);
        });
        domain.barrier();
    }
    drop(domain);
    assert_eq!((count.load(Ordering::SeqCst), Arc::strong_count(&count)), (3, 1));
}

#[test]
fn work_goes_to_its_queue() {
    struct Channel(Sender<Box<dyn FnOnce() + Send>>);
    impl WorkQueue for Channel {
        fn push(&self, work: Box<dyn FnOnce() + Send>) {
            self.0.send(work).expect("the test listens");
        }
    }
    let (sender, works) = channel();
    let queue: Arc<dyn WorkQueue> = Arc::new(Channel(sender));
    let domain = Domain::new();
    let here = thread::current().id();
    domain.queue_work(&queue, move || assert_eq!(thread::current().id(), here));
    works.recv_timeout(LONG).expect("it comes")();
}

#[test]
fn what_is_left_when_a_domain_is_dropped_runs() {
    let (ran, runs) = channel();
    let domain = Domain::new();
    domain.call(move || ran.send(()).expect("the test listens"));
    drop(domain);
    runs.recv_timeout(LONG).expect("it runs");
}

#[test]
fn threads_come_and_go() {
    let domain = Domain::new();
    for _ in 0..size(50) {
        let domain = domain.clone();
        thread::spawn(move || drop(domain.read())).join().expect("it ends");
    }
    assert_eq!(domain.stats().readers, 0);
    domain.synchronize_expedited();
}

#[test]
fn sections_in_destructors_of_a_thread_that_ends() {
    struct ReadsAtTheEnd(Domain, Sender<usize>);
    impl Drop for ReadsAtTheEnd {
        fn drop(&mut self) {
            let _guard = self.0.read();
            let _inner = self.0.read();
            self.1.send(self.0.stats().readers).expect("the test listens");
        }
    }
    thread_local! {
        static FIRST: RefCell<Option<ReadsAtTheEnd>> = const { RefCell::new(None) };
        static KEPT: RefCell<Option<Guard<'static>>> = const { RefCell::new(None) };
    }
    let domain: &'static Domain = Box::leak(Box::new(Domain::new()));
    let (sender, readers) = channel();
    thread::spawn(move || {
        FIRST.with(|first| *first.borrow_mut() = Some(ReadsAtTheEnd(domain.clone(), sender)));
        KEPT.with(|kept| *kept.borrow_mut() = Some(domain.read()));
    })
    .join()
    .expect("it ends");
    assert!(readers.recv().expect("the destructor ran") >= 1);
    assert_eq!(domain.stats().readers, 0);
    domain.synchronize_expedited();
}

/// A thread never waits for itself: not even in the destructor of a thread-local that is dropped
/// after the thread's registrations.
#[test]
fn waiting_for_oneself_is_refused_while_a_thread_ends() {
    struct WaitsAtTheEnd([Domain; 2], Sender<[bool; 3]>);
    impl Drop for WaitsAtTheEnd {
        fn drop(&mut self) {
            let Self([domain, other], results) = self;
            let is_refused =
                |domain: &Domain| catch_unwind(AssertUnwindSafe(|| domain.synchronize_expedited())).is_err();
            let guard = domain.read();
            let inside = [is_refused(domain), is_refused(other)];
            drop(guard);
            results.send([inside[0], inside[1], is_refused(domain)]).expect("the test listens");
        }
    }
    thread_local! {
        static FIRST: RefCell<Option<WaitsAtTheEnd>> = const { RefCell::new(None) };
    }
    let domains = [Domain::new(), Domain::new()];
    let (sender, results) = channel();
    thread::spawn(move || {
        let domain = domains[0].clone();
        // Before the thread has a place, so that it is dropped after that.
        FIRST.with(|first| *first.borrow_mut() = Some(WaitsAtTheEnd(domains, sender)));
        drop(domain.read());
    })
    .join()
    .expect("it ends");
    assert_eq!(results.recv_timeout(LONG).expect("the destructor ran"), [true, false, false]);
}

/// The shortest way into the default domain is into the same domain, in all threads, also while
/// they end.
#[test]
fn the_default_domain() {
    struct ReadsAtTheEnd(Sender<bool>);
    impl Drop for ReadsAtTheEnd {
        fn drop(&mut self) {
            let guard = watertight_rcu::read();
            let cookie = Domain::global().start_poll_expedited();
            let passes = passes_soon(Domain::global(), cookie);
            drop(guard);
            self.0.send(passes).expect("the test listens");
        }
    }
    thread_local! {
        static AT_THE_END: RefCell<Option<ReadsAtTheEnd>> = const { RefCell::new(None) };
    }
    let domain = Domain::global();
    let cell = RcuCell::new(domain, 7);
    let (outer, inner) = (watertight_rcu::read(), domain.read());
    assert_eq!((cell.load(&outer), cell.load(&inner)), (&7, &7));
    drop(outer);
    let cookie = domain.start_poll();
    assert!(!passes_soon(domain, cookie));
    drop(inner);
    domain.cond_synchronize_expedited(cookie);
    let (sender, passed) = channel();
    thread::spawn(move || {
        AT_THE_END.with(|at_the_end| *at_the_end.borrow_mut() = Some(ReadsAtTheEnd(sender)));
        drop(watertight_rcu::read());
    })
    .join()
    .expect("it ends");
    assert!(
        !passed.recv().expect("the destructor ran"),
        "a grace period passed a section of a thread that ends"
    );
    domain.synchronize_expedited();
}

#[test]
fn many_domains_in_one_thread() {
    let domains: Vec<_> = (0..size(1000)).map(|_| Domain::new()).collect();
    for domain in &domains {
        drop(domain.read());
    }
    let guards: Vec<_> = domains.iter().map(Domain::read).collect();
    let one = &domains[domains.len() / 2];
    let cookie = one.start_poll();
    assert!(!passes_soon(one, cookie));
    drop(guards);
    one.cond_synchronize(cookie);
}

/// The text of the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic under it").write(text)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_stays_for_over_a_second_is_named() {
    let clock = Arc::new(ManualClock::default());
    let options = DomainOptions { clock: Arc::clone(&clock) as _, ..DomainOptions::default() };
    let domain = Domain::with_options(options);
    let reader = Reader::start(&domain);
    let log = Log::default();
    let waiting = {
        let (domain, log) = (domain.clone(), log.clone());
        let logger = tracing_subscriber::fmt().with_writer(move || log.clone()).finish();
        thread::spawn(move || {
            tracing::subscriber::with_default(logger, || domain.synchronize_expedited());
        })
    };
    let cookie = domain.get_state();
    clock.advance(Duration::from_millis(900));
    domain.clock_moved();
    assert_eq!(domain.stats().stalls, 0);
    // The waiter reads the clock when it begins to wait, which may be after the first step.
    while domain.stats().stalls == 0 {
        clock.advance(Duration::from_millis(100));
        domain.clock_moved();
        thread::yield_now();
    }
    assert!(!domain.poll_state(cookie));
    // Known while it is there.
    assert!(domain.stats().longest_reader >= Duration::from_secs(1), "{:?}", domain.stats());
    reader.leave();
    waiting.join().expect("it ends");
    assert!(domain.stats().longest_reader >= Duration::from_secs(1), "{:?}", domain.stats());
    let text = || String::from_utf8(log.0.lock().expect("no panic under it").clone()).expect("text");
    // No other thread joins the thread that writes it.
    while !text().ends_with('\n') {
        thread::yield_now();
    }
    let text = text();
    assert!(text.contains("a grace period waits for readers") && text.contains("a slow reader"), "{text}");
}

/// A callback in place of a log file.
struct OnWrite<F>(F);

impl<F: Fn()> Write for OnWrite<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (self.0)();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A grace period waits for a reader for over a second; the reader leaves when it is named in the
/// log, and then `and_then` is called there.
fn stalled_until_named(
    domain: &Domain,
    clock: &ManualClock,
    and_then: impl Fn() + Clone + Send + Sync + 'static,
) {
    let reader = Arc::new(Mutex::new(Some(Reader::start(domain))));
    let waiting = {
        let domain = domain.clone();
        let on_write = move || {
            reader.lock().expect("no panic under it").take().into_iter().for_each(Reader::leave);
            and_then();
        };
        let logger = tracing_subscriber::fmt().with_writer(move || OnWrite(on_write.clone())).finish();
        thread::spawn(move || {
            tracing::subscriber::with_default(logger, || domain.synchronize_expedited());
        })
    };
    while !waiting.is_finished() {
        clock.advance(Duration::from_millis(100));
        domain.clock_moved();
        thread::yield_now();
    }
    waiting.join().expect("it ends");
    assert!(domain.stats().stalls >= 1);
}

fn with_clock() -> (Domain, Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let options = DomainOptions { clock: Arc::clone(&clock) as _, ..DomainOptions::default() };
    (Domain::with_options(options), clock)
}

/// The log's sink may be read in a section of the domain, or wait for a thread that is in one.
#[test]
fn a_reader_leaves_while_it_is_named() {
    let (domain, clock) = with_clock();
    stalled_until_named(&domain, &clock, || ());
}

/// The log's sink may wait for a grace period, too.
#[test]
fn who_is_told_of_a_stall_may_wait_for_a_grace_period() {
    let (domain, clock) = with_clock();
    let (tell, task_queued) = channel();
    let of_log = domain.clone();
    stalled_until_named(&domain, &clock, move || {
        of_log.synchronize_expedited();
        // The test does not listen any more after the first part of the line.
        let _ = tell.send(());
    });
    task_queued.recv().expect("it has waited");
}

#[test]
fn a_normal_grace_period_comes_with_the_tick() {
    let clock = Arc::new(ManualClock::default());
    let (clock_of_domain, tick) = (Arc::clone(&clock) as _, Duration::from_millis(20));
    let domain =
        Domain::with_options(DomainOptions { clock: clock_of_domain, tick, ..DomainOptions::default() });
    let (ran, runs) = channel();
    domain.call(move || ran.send(()).expect("the test listens"));
    let waiters: Vec<_> = (0..size(1000))
        .map(|_| {
            let domain = domain.clone();
            thread::spawn(move || domain.synchronize())
        })
        .collect();
    while domain.stats().waiters < size(1000) as u64 {
        thread::yield_now();
    }
    clock.advance(Duration::from_millis(19));
    domain.clock_moved();
    assert_eq!(domain.stats().grace_periods, 0, "before the tick");
    assert!(runs.try_recv().is_err(), "before the tick");
    clock.advance(Duration::from_millis(1));
    domain.clock_moved();
    for waiter in waiters {
        waiter.join().expect("a waiter ends");
    }
    // All came before the tick: one for all of them, and one more at most for the callback.
    assert!(domain.stats().grace_periods <= 2, "{:?}", domain.stats());
    // The worker may have read the clock later than they.
    while runs.try_recv().is_err() {
        clock.advance(tick);
        domain.clock_moved();
        thread::yield_now();
    }
}

/// Normal and expedited grace periods serve each other's waiters: the tick never comes here.
#[test]
fn an_expedited_grace_period_ends_the_wait_for_the_tick() {
    let tick = Duration::from_secs(3600);
    let domain = Domain::with_options(DomainOptions { tick, ..DomainOptions::default() });
    let waiting = {
        let domain = domain.clone();
        thread::spawn(move || domain.synchronize())
    };
    // A thread that counts as a waiter has its cookie.
    while domain.stats().waiters == 0 {
        thread::yield_now();
    }
    domain.synchronize_expedited();
    waiting.join().expect("it ends without a tick");
}

#[test]
fn who_polls_need_not_wait_for_the_tick() {
    let tick = Duration::from_secs(3600);
    let domain = Domain::with_options(DomainOptions { tick, ..DomainOptions::default() });
    let cookie = domain.start_poll_expedited();
    while !domain.poll_state(cookie) {
        thread::yield_now();
    }
    // Barriers do not wait for it either.
    domain.call(|| ());
    domain.barrier();
}

#[test]
fn a_thread_that_ends_leaves_its_callbacks_and_memory() {
    let domain = Domain::new();
    let counted = Arc::new(());
    for n in 0..size(500) {
        let (domain, counted) = (domain.clone(), Arc::clone(&counted));
        let thread = thread::spawn(move || {
            for _ in 0..n {
                domain.defer_free(Box::new(Arc::clone(&counted)));
            }
        });
        thread.join().expect("it ends");
    }
    domain.barrier();
    assert_eq!(Arc::strong_count(&counted), 1);
    let stats = domain.stats();
    assert_eq!((stats.callbacks_queued, stats.readers), (stats.callbacks_run, 0));
}
