//! The protocol between readers and grace periods, under loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p watertight-rcu --release --test loom_gp`
#![cfg(loom)]

use std::sync::Arc;
use std::time::Duration;

use loom::cell::UnsafeCell;
use sync::atomic::{AtomicUsize, Ordering};
use sync::mutant::{assert_caught, is_on};
use sync::thread;
use watertight_rcu::gp::{Counters, GracePeriods, Reader, Unlocked};
use watertight_rcu::ticks::GpTick;

/// Two values of which one is published; a thread that knows that no reader is left may write the
/// other.
struct Shared {
    gp: GracePeriods,
    current: AtomicUsize,
    values: [UnsafeCell<usize>; 2],
}

impl Shared {
    #[allow(clippy::arc_with_non_send_sync, reason = "that threads share it rightly is what loom looks at")]
    fn new(gp: GracePeriods) -> Arc<Self> {
        Arc::new(Self { gp, current: AtomicUsize::new(0), values: [UnsafeCell::new(7), UnsafeCell::new(7)] })
    }

    /// Loom objects if the value is written meanwhile.
    fn read(&self, reader: &Reader) {
        GracePeriods::read_lock(reader);
        self.read_inside();
        if GracePeriods::read_unlock(reader) != Unlocked::Done {
            self.gp.wake_gp();
        }
    }

    fn read_inside(&self) {
        // ORDERING: Acquire, as `RcuCell::load`.
        let current = self.current.load(Ordering::Acquire);
        self.values[current].with(|value| {
            // SAFETY: the model checks that it holds.
            assert_eq!(unsafe { *value }, 7);
        });
    }

    /// One read by a thread that registers before it, and unregisters after it.
    fn read_once(&self) {
        let reader = Reader::new("comes and goes".into());
        if !is_on("rcu-join-late") {
            self.gp.register(Arc::clone(&reader));
        }
        GracePeriods::read_lock(&reader);
        if is_on("rcu-part-inside") {
            self.gp.unregister(&reader);
        }
        self.read_inside();
        if is_on("rcu-join-late") {
            self.gp.register(Arc::clone(&reader));
        }
        if GracePeriods::read_unlock(&reader) != Unlocked::Done {
            self.gp.wake_gp();
        }
        self.gp.unregister(&reader);
    }

    /// Frees the value that was published first: no reader may be there any more.
    fn free_first(&self) {
        self.values[0].with_mut(|value| {
            // SAFETY: the model checks that it holds.
            unsafe { *value = 0 };
        });
    }

    fn unpublish(&self) {
        // ORDERING: AcqRel, as `RcuCell::replace`.
        self.current.swap(1, Ordering::AcqRel);
    }
}

fn reader(shared: &Arc<Shared>, sections: usize) -> thread::JoinHandle<()> {
    let reader = shared.gp.new_reader("reader".into());
    let shared = Arc::clone(shared);
    thread::spawn(move || (0..sections).for_each(|_| shared.read(&reader)))
}

#[test]
fn nobody_reads_what_was_freed() {
    frees_beside_a_reader(GracePeriods::new);
}

/// What a reader may still see is not freed without membarrier(2) either, where readers have full
/// fences; nor does a waiter sleep for ever.
#[test]
fn nobody_reads_what_was_freed_without_membarrier() {
    frees_beside_a_reader(GracePeriods::fenced);
}

fn frees_beside_a_reader(gp: fn(u64) -> GracePeriods) {
    loom::model(move || {
        let shared = Shared::new(gp(u64::MAX - 1));
        let reader = reader(&shared, 2);
        if is_on("rcu-cookie-before-unpublish") {
            let cookie = shared.gp.get_state();
            shared.unpublish();
            shared.gp.wait_for(cookie, &Counters::default());
        } else {
            shared.unpublish();
            shared.gp.wait_for(shared.gp.get_state(), &Counters::default());
        }
        shared.free_first();
        reader.join().expect("the reader ends");
    });
}

/// What a reader may still see is not freed, by who polls, beside somebody else's grace period;
/// numbers wrap around, and no waiter sleeps for ever.
#[test]
fn who_polls_frees_no_earlier() {
    loom::model(|| {
        let shared = Shared::new(GracePeriods::new(u64::MAX - 1));
        let reader = reader(&shared, 1);
        let other = {
            let shared = Arc::clone(&shared);
            // Another thread's grace period, which may have begun before the cookie was taken.
            thread::spawn(move || {
                shared.gp.wait_for(shared.gp.get_state(), &Counters::default());
            })
        };
        let early = is_on("rcu-cookie-before-unpublish").then(|| shared.gp.get_state());
        shared.unpublish();
        let cookie = early.unwrap_or_else(|| shared.gp.get_state());
        if shared.gp.poll_state(cookie) {
            shared.free_first();
        }
        other.join().expect("the other ends");
        if shared.gp.poll_state(cookie) {
            shared.free_first();
        }
        reader.join().expect("the reader ends");
    });
}

/// A thread whose place becomes known beside somebody else's grace period, reads, and goes, reads
/// nothing that was freed.
#[test]
fn who_joins_or_parts_meanwhile_reads_nothing_freed() {
    joins_or_parts_beside(&[]);
}

/// A registration beside a grace period that scans twice, because there is one reader already.
#[test]
fn who_joins_or_parts_between_two_looks_reads_nothing_freed() {
    joins_or_parts_beside(&["idle"]);
}

fn joins_or_parts_beside(others: &'static [&'static str]) {
    loom::model(move || {
        let shared = Shared::new(GracePeriods::new(u64::MAX - 1));
        for name in others {
            shared.gp.new_reader((*name).to_owned());
        }
        let comes_and_goes = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.read_once())
        };
        let other = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || {
                shared.gp.wait_for(shared.gp.get_state(), &Counters::default());
            })
        };
        shared.unpublish();
        let cookie = shared.gp.get_state();
        other.join().expect("the other ends");
        if shared.gp.poll_state(cookie) {
            shared.free_first();
        }
        comes_and_goes.join().expect("the reader ends");
    });
}

/// A thread that waits for the tick is woken by a grace period that serves it: models have no time,
/// so that the tick never comes.
#[test]
fn who_waits_for_the_tick_is_told() {
    loom::model(|| {
        let shared = Shared::new(GracePeriods::new(0));
        let ticks = Arc::new(GpTick::new(Duration::ZERO, Duration::from_secs(1 << 30)));
        let cookie = shared.gp.get_state();
        let other = {
            let (shared, ticks) = (Arc::clone(&shared), Arc::clone(&ticks));
            thread::spawn(move || {
                shared.gp.wait_for(shared.gp.get_state(), &Counters::default());
                ticks.on_grace_period();
            })
        };
        ticks.wait(&shared.gp, cookie);
        shared.gp.wait_for(cookie, &Counters::default());
        assert!(shared.gp.poll_state(cookie));
        other.join().expect("the other ends");
    });
}

/// Runs the tests above with one part of the protocol changed, which the named test must object to.
/// In processes of their own, because a model that fails may take its process down.
#[test]
fn each_mutant_is_caught() {
    const RACE: &str = "Causality violation";
    assert_caught(
        "who_polls_frees_no_earlier",
        &[
            "rcu-no-light-fence",
            "rcu-no-heavy-fence",
            "rcu-no-fence-before-cookie",
            "rcu-cookie-before-unpublish",
            "rcu-compare-without-wrap",
        ],
        RACE,
    );
    assert_caught(
        "who_polls_frees_no_earlier",
        &[
            "rcu-no-light-fence-on-leaving",
            "rcu-no-heavy-fence-before-sleep",
            "rcu-late-reader-untold",
            "rcu-leaving-unchanged",
            "rcu-number-after-look",
        ],
        "deadlock",
    );
    assert_caught("nobody_reads_what_was_freed_without_membarrier", &["rcu-no-fence"], RACE);
    assert_caught("nobody_reads_what_was_freed_without_membarrier", &["rcu-no-fence-on-leaving"], "deadlock");
    assert_caught(
        "who_waits_for_the_tick_is_told",
        &["rcu-poll-inverted", "rcu-no-sleeper-fence", "rcu-sleeper-untold"],
        "deadlock",
    );
    assert_caught(
        "who_joins_or_parts_meanwhile_reads_nothing_freed",
        &["rcu-join-late", "rcu-part-inside"],
        RACE,
    );
}
