//! Seeded schedules of three hosts, and the mutants that the tests catch.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-objects --lib schedules`

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use store::ErrorKind;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::double::{Fault, FaultyStore, Machine, Random, Running, run};
use super::world::{SECOND, World, assert_words, keep};
use super::*;

/// A process that can be stopped and continued.
#[derive(Debug, Default)]
struct Stop {
    is_stopped: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Stop {
    fn set(&self, is_stopped: bool) {
        // ORDERING: SeqCst: one thread runs all of it.
        self.is_stopped.store(is_stopped, Ordering::SeqCst);
        if let Some(waker) = self.waker.lock().unwrap().take() {
            waker.wake();
        }
    }
}

/// Runs a process, unless it is stopped.
struct Stoppable<F>(Pin<Box<F>>, Arc<Stop>);

impl<F: Future> Future for Stoppable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        // ORDERING: SeqCst: one thread runs all of it.
        if self.1.is_stopped.load(Ordering::SeqCst) {
            *self.1.waker.lock().unwrap() = Some(context.waker().clone());
            return Poll::Pending;
        }
        self.0.as_mut().poll(context)
    }
}

/// A process on one of the machines.
struct Mount {
    running: Arc<Running>,
    task: JoinHandle<()>,
    stop: Arc<Stop>,
    unmount: Arc<Notify>,
    held: Arc<Mutex<Option<Arc<Held>>>>,
    /// Whether it was ever stopped.
    is_stopped: bool,
}

/// What all processes of a schedule believed.
#[derive(Debug, Default)]
struct Beliefs {
    seed: u64,
    /// Epochs and nonces of those that took the volume.
    taken: Mutex<Vec<(u64, Nonce)>>,
    lost: Mutex<Vec<Nonce>>,
}

impl Beliefs {
    fn take(&self, held: &Held) {
        let mut taken = self.taken.lock().unwrap();
        let is_new = taken.iter().all(|(epoch, _)| *epoch != held.epoch());
        assert!(is_new, "seed {}: two processes hold the volume in epoch {}", self.seed, held.epoch());
        taken.push((held.epoch(), held.nonce()));
    }

    /// What a process does with the volume.
    async fn mount(&self, held: &Arc<Held>, store: &FaultyStore, unmount: &Notify) {
        let work = async {
            loop {
                sleep(Duration::from_millis(3700)).await;
                let holder = store.current().nonce;
                if held.validate().await.is_ok() {
                    assert_eq!(holder, held.nonce(), "seed {}: a lost lease was validated", self.seed);
                }
            }
        };
        let mut ended = held.watch();
        tokio::select! {
            biased;
            () = async { drop(ended.wait_for(Option::is_some).await) } => {}
            () = unmount.notified() => self.release(held, store).await,
            () = Arc::clone(held).keep() => {}
            () = work => {}
        }
        if let Some(Ended::Lost(_)) = &*held.watch().borrow() {
            self.lost.lock().unwrap().push(held.nonce());
        }
    }

    async fn release(&self, held: &Held, store: &FaultyStore) {
        let released = loop {
            match held.release().await {
                Err(error) if error.kind() != ErrorKind::Stale => sleep(Duration::from_secs(1)).await,
                released => break released,
            }
        };
        let history = store.history();
        let is_free = |info: &LeaseInfo| (info.nonce, info.state) == (held.nonce(), State::Free);
        assert_eq!(
            released.is_ok(),
            history.iter().any(is_free),
            "seed {}: a release ended in {released:?}",
            self.seed
        );
    }
}

struct Schedule {
    random: Random,
    store: Arc<FaultyStore>,
    beliefs: Arc<Beliefs>,
    machines: Vec<Arc<Machine>>,
    mounts: [Option<Mount>; 3],
}

impl Schedule {
    async fn new(seed: u64) -> Self {
        let store = Arc::<FaultyStore>::default();
        let _ = Lease::create_free(&store.bucket()).await.unwrap();
        // Each second schedule has a bucket that does all that it is asked for.
        store.set_random((!seed.is_multiple_of(2)).then(|| Random::new(seed + 1_000_000)));
        let machines = ["alpha", "beta", "gamma"].map(Machine::new).to_vec();
        let beliefs = Arc::new(Beliefs { seed, ..Beliefs::default() });
        Self { random: Random::new(seed), store, beliefs, machines, mounts: [None, None, None] }
    }

    fn start(&mut self, number: usize) {
        let running = self.machines[number].start();
        let stop = Arc::<Stop>::default();
        let unmount = Arc::<Notify>::default();
        let held = Arc::<Mutex<Option<Arc<Held>>>>::default();
        let request = if self.random.below(2) == 0 { running.request() } else { running.takeover() };
        let program = {
            let (store, beliefs) = (Arc::clone(&self.store), Arc::clone(&self.beliefs));
            let (running, unmount, held) = (Arc::clone(&running), Arc::clone(&unmount), Arc::clone(&held));
            async move {
                // A process that was refused ends, and the next one has to try.
                if let Ok(taken) = Lease::take(&store.bucket(), &request, running.clone()).await {
                    let taken = Arc::new(taken);
                    beliefs.take(&taken);
                    *held.lock().unwrap() = Some(Arc::clone(&taken));
                    beliefs.mount(&taken, &store, &unmount).await;
                }
                running.kill();
            }
        };
        let task = tokio::spawn(Stoppable(Box::pin(program), Arc::clone(&stop)));
        self.mounts[number] = Some(Mount { running, task, stop, unmount, held, is_stopped: false });
    }

    async fn step(&mut self) {
        sleep(self.random.millis(9000)).await;
        let number = usize::try_from(self.random.below(3)).unwrap();
        let action = self.random.below(8);
        let Some(mount) = &mut self.mounts[number] else { return self.start(number) };
        if mount.task.is_finished() {
            return self.end(number).await;
        }
        match action {
            0..3 => mount.unmount.notify_one(),
            3 => {
                mount.stop.set(true);
                mount.is_stopped = true;
            }
            4 | 5 => mount.stop.set(false),
            6 => {
                mount.running.kill();
                mount.task.abort();
                self.mounts[number] = None;
            }
            _ => {
                self.machines[number].reboot();
                mount.task.abort();
                self.mounts[number] = None;
            }
        }
    }

    /// Looks at what a process left.
    async fn end(&mut self, number: usize) {
        let Some(mount) = self.mounts[number].take() else { return };
        mount.task.await.unwrap();
        let held = mount.held.lock().unwrap().clone();
        if let Some(held) = held.filter(|_| !mount.is_stopped && self.beliefs.seed.is_multiple_of(2)) {
            let lost = self.beliefs.lost.lock().unwrap();
            let seed = self.beliefs.seed;
            assert!(!lost.contains(&held.nonce()), "seed {seed}: a holder that answers lost the volume");
        }
    }

    /// Lets all processes run on, and a further one take the volume.
    async fn finish(mut self) {
        let seed = self.beliefs.seed;
        self.store.set_random(None);
        for mount in self.mounts.iter().flatten() {
            mount.stop.set(false);
            mount.unmount.notify_one();
        }
        // A taker's patience, and the requests of many that take one after the other.
        sleep(Duration::from_secs(60)).await;
        for number in 0..3 {
            if let Some(mount) = &self.mounts[number] {
                assert!(mount.task.is_finished(), "seed {seed}: a process did not end");
            }
            self.end(number).await;
        }
        let (last, start) = (Machine::new("delta").start(), Instant::now());
        let held = Lease::take(&self.store.bucket(), &last.takeover(), last.clone()).await;
        self.beliefs.take(&held.unwrap_or_else(|error| panic!("seed {seed}: {error}")));
        assert!(start.elapsed() <= PATIENCE + Duration::from_secs(1), "seed {seed}: {:?}", start.elapsed());
        self.check_history();
    }

    fn check_history(&self) {
        let seed = self.beliefs.seed;
        let history = self.store.history();
        for pair in history.windows(2) {
            let [old, new] = pair else { continue };
            let step = u64::from(old.nonce != new.nonce);
            assert_eq!(new.epoch, old.epoch + step, "seed {seed}: {old:?} became {new:?}");
        }
        for (epoch, nonce) in &*self.beliefs.taken.lock().unwrap() {
            let is_written = history.iter().any(|info| (info.epoch, info.nonce) == (*epoch, *nonce));
            assert!(is_written, "seed {seed}: nobody gave epoch {epoch}");
        }
    }
}

/// Three hosts take, release, crash, boot and stop at any time, and answers get lost, come late, or
/// their requests twice: no two processes hold the volume in the same epoch, epochs grow by one
/// with each holder, a lost lease is never validated, a process knows whether it released the
/// volume, and none loses it that answers.
#[test]
fn one_process_holds_the_volume_in_an_epoch() {
    for seed in 0..1000 {
        run(async {
            let mut schedule = Schedule::new(seed).await;
            let steps = async {
                for _ in 0..40 {
                    schedule.step().await;
                }
                schedule.finish().await;
            };
            timeout(Duration::from_secs(3600), steps).await.unwrap_or_else(|_| panic!("seed {seed}: no end"));
        });
    }
}

/// A holder that runs is asked before it is taken over: it is taken over only if it does not answer
/// for 15 seconds.
#[test]
fn a_holder_is_taken_over_after_its_time() {
    run(async {
        let world = World::new().await;
        let (_, held) = world.held().await;
        let start = Instant::now();
        let other = world.beta.start();
        let taken = world.take(&other.takeover(), &other).await.unwrap();
        assert!(start.elapsed() >= PATIENCE, "taken over after {:?}", start.elapsed());
        assert!(start.elapsed() <= PATIENCE + SECOND, "{:?}", start.elapsed());
        assert_eq!(taken.epoch(), 2);
        assert_eq!(world.store.current().took, Some(Took { from: held.nonce(), how: How::Unanswered }));
    });
}

/// Whatever becomes of the answers, a taker knows whether it holds the volume, and a holder whether
/// it released it.
#[test]
fn lost_answers_are_found_out() {
    run(async {
        for fault in [Fault::Before, Fault::After, Fault::Again(SECOND)] {
            let world = World::new().await;
            let bucket = world.store.bucket();
            // Taken from free.
            world.store.fail_puts(&[fault]);
            let process = world.alpha.start();
            let held = world.take(&process.request(), &process).await.expect("it holds the volume");
            assert_eq!((held.epoch(), world.store.current().nonce), (1, held.nonce()));
            // A claim, and its answer.
            world.store.fail_puts(&[fault, fault]);
            let kept = keep(&held);
            let other = world.beta.start();
            let error = world.take(&other.takeover(), &other).await.unwrap_err();
            assert_words(&error, ErrorKind::Busy, &["answered", "alive"]);
            // Taken over.
            kept.abort();
            world.store.fail_puts(&[Fault::None, fault]);
            let taken = world.take(&other.takeover(), &other).await.expect("it holds the volume");
            assert_eq!((taken.epoch(), world.store.current().nonce), (2, taken.nonce()));
            // Released.
            world.store.fail_puts(&[fault]);
            taken.release().await.expect("it released the volume");
            assert_eq!(Lease::read(&bucket).await.unwrap().unwrap().state, State::Free);
        }
    });
}

/// What a process asks for that has a journal with this number.
fn with_journal(process: &Arc<Running>, id: u8) -> Request {
    let journal = ("/journal".to_owned(), Nonce::from_bytes([id; 16]));
    Request { journal: Some(journal), ..process.request() }
}

/// A journal may have what the bucket has not: nobody takes the volume without it who does not name
/// its host.
#[test]
fn a_journal_is_given_up_by_name_only() {
    run(async {
        let world = World::new().await;
        let process = world.alpha.start();
        let held = world.take(&with_journal(&process, 1), &process).await.unwrap();
        let other = world.beta.start();
        let words = ["host alpha has a journal (/journal)", "mount the volume on there", "-o abandon=alpha"];
        for abandon in [None, Some("beta"), Some("alph"), Some("")] {
            let request = Request { abandon: abandon.map(str::to_owned), ..other.takeover() };
            let taken = world.take(&request, &other).await;
            let error = taken.expect_err("a journal is given up without its name");
            assert_words(&error, ErrorKind::Busy, &words);
            assert_eq!(world.store.current().claim, None, "the holder was asked in vain");
        }
        // Another journal is not this one, whatever its host is called.
        let request = Request { takeover: true, ..with_journal(&other, 2) };
        assert_words(&world.take(&request, &other).await.unwrap_err(), ErrorKind::Busy, &words);
        let request = Request { abandon: Some("alpha".to_owned()), ..other.takeover() };
        let taken = world.take(&request, &other).await.unwrap();
        assert_eq!(world.store.current().journal, None);
        taken.release().await.unwrap();
        held.validate().await.unwrap_err();
    });
}

/// The next program of a process goes on with the lease of the one before; not with one that another
/// process has taken meanwhile, be it released again.
#[test]
fn the_next_program_of_a_process_has_its_lease_and_no_other() {
    run(async {
        let world = World::new().await;
        let (process, held) = world.held().await;
        let resumed = |held: &Held| Request { resumed: Some(held.nonce()), ..process.request() };
        let next = world.take(&resumed(&held), &process).await.unwrap();
        assert!(next.epoch() > held.epoch());
        // It could not serve: the program before finds it given up.
        next.give_up();
        let held = world.take(&resumed(&held), &process).await.unwrap();
        let other = world.beta.start();
        let taken = world.take(&other.takeover(), &other).await.unwrap();
        let refused = "taken over meanwhile";
        for is_released in [false, true] {
            if is_released {
                taken.release().await.unwrap();
            }
            let error = world.take(&resumed(&held), &process).await.map(drop).expect_err(refused);
            assert_words(&error, ErrorKind::Busy, &["it was taken from this process"]);
        }
    });
}

/// A server that was taken over from another one dies before it has said its number to its keeper: the
/// next has the lease by the journal, whose lock the keeper has. One that lives is not passed over.
#[test]
fn a_server_follows_one_that_has_told_nobody_its_number() {
    run(async {
        let world = World::new().await;
        let first = world.alpha.start();
        let held = world.take(&with_journal(&first, 1), &first).await.unwrap();
        let resumed =
            |process: &Arc<Running>| Request { resumed: Some(held.nonce()), ..with_journal(process, 1) };
        first.kill();
        let untold = world.alpha.start();
        let _never_said = world.take(&resumed(&untold), &untold).await.unwrap();
        let next = world.alpha.start();
        let refused = world.take(&resumed(&next), &next).await.map(drop);
        assert_words(&refused.expect_err("it lives"), ErrorKind::Busy, &["it was taken from this process"]);
        untold.kill();
        // With another journal it is another mount's.
        let other = Request { resumed: Some(held.nonce()), ..with_journal(&next, 2) };
        assert!(world.take(&other, &next).await.is_err(), "a mount with another journal has it");
        world.take(&resumed(&next), &next).await.expect("nobody can follow a server that died early");
    });
}

#[cfg(shuttle)]
#[test]
fn a_lease_that_is_not_asked_well_is_caught() {
    use sync::mutant::assert_caught;
    let test = "lease::schedules::one_process_holds_the_volume_in_an_epoch";
    assert_caught(test, &["lease-epoch-not-raised"], "two processes hold the volume in epoch");
    let test = "lease::schedules::a_holder_is_taken_over_after_its_time";
    assert_caught(test, &["lease-claim-not-waited-for"], "taken over after");
    let test = "lease::schedules::lost_answers_are_found_out";
    assert_caught(test, &["lease-nonce-not-read-back"], "it holds the volume");
    let test = "lease::schedules::a_journal_is_given_up_by_name_only";
    assert_caught(test, &["takeover-ignores-the-journal"], "a journal is given up without its name");
    let test = "lease::schedules::the_next_program_of_a_process_has_its_lease_and_no_other";
    assert_caught(test, &["lease-resumed-of-others"], "taken over meanwhile");
    let test = "lease::schedules::a_server_follows_one_that_has_told_nobody_its_number";
    assert_caught(test, &["lease-of-a-dead-server-refused"], "nobody can follow a server that died early");
}
