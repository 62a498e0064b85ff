//! Syncs beside stalls, under many schedules, with mutants that the same test catches.
//!
//! `RUSTFLAGS="--cfg shuttle" cargo test -p watertight-fuse --lib schedules`

use sync::atomic::{AtomicBool, AtomicU64, Ordering};
use sync::{model, mutant};

use super::*;

/// A store that may not answer until the test lets it.
#[derive(Debug, Default)]
struct Model {
    number: u64,
    hangs: bool,
    answers: WakeEvent,
    is_known: AtomicBool,
    is_aborted: AtomicBool,
    /// Its next sync fails.
    fails: AtomicBool,
    /// The bytes that were written, and how many of them are durable.
    written: AtomicU64,
    durable: AtomicU64,
}

impl SyncTarget for Model {
    fn number(&self) -> u64 {
        self.number
    }

    fn sync(&self, _by: &CgroupPath, _cancel: &Cancel) -> Result<()> {
        // ORDERING: SeqCst throughout: shuttle knows no other.
        let written = self.written.load(Ordering::SeqCst);
        if self.hangs {
            self.answers.wait(None);
            // From then on.
            self.answers.set();
        }
        thread::yield_now();
        if self.fails.swap(false, Ordering::SeqCst) {
            return Err(Error::Writeback(ErrorKind::NoSpace));
        }
        self.durable.fetch_max(written, Ordering::SeqCst);
        Ok(())
    }

    fn skip_reason(&self) -> Option<Skipped> {
        let is_aborted = self.is_aborted.load(Ordering::SeqCst).then_some(Skipped::Aborted);
        is_aborted.or_else(|| self.is_known.load(Ordering::SeqCst).then_some(Skipped::Stalled))
    }

    /// All of its data is root's.
    fn has_unsynced_of(&self, by: &CgroupPath) -> bool {
        let durable = self.durable.load(Ordering::SeqCst);
        *by == CgroupPath::root() && self.written.load(Ordering::SeqCst) > durable
    }
}

/// Who syncs a mountpoint is not held up by a volume that stalls meanwhile, and is told that its
/// data is not durable; a store that hangs holds one thread.
#[test]
fn who_syncs_is_not_held_up_by_a_stall() {
    model::check(|| {
        let syncs = Arc::<SyncAll>::default();
        let well = Arc::new(Model { number: 1, written: AtomicU64::new(1), ..Model::default() });
        let hung = Arc::new(Model { number: 2, hangs: true, written: AtomicU64::new(1), ..Model::default() });
        let looks = {
            let (syncs, hung) = (Arc::clone(&syncs), Arc::clone(&hung));
            thread::spawn(move || {
                hung.is_known.store(true, Ordering::SeqCst);
                syncs.skip_stalled();
            })
        };
        let both: [Arc<dyn SyncTarget>; 2] = [Arc::clone(&hung) as Arc<_>, Arc::clone(&well) as Arc<_>];
        // Two callers, and one store that hangs: it holds one thread at most.
        let other = {
            let (syncs, both) = (Arc::clone(&syncs), both.clone());
            thread::spawn(move || {
                let synced = syncs.sync(&CgroupPath::root(), &both, &Cancel::default(), || Ok(()));
                (synced.skipped.len(), synced.into_result().is_err())
            })
        };
        let synced = syncs.sync(&CgroupPath::root(), &both, &Cancel::default(), || Ok(()));
        assert_eq!(synced.result, Ok(()));
        assert!(synced.is_own_skipped, "success was told, but the data is not durable");
        let skipped: Vec<u64> = synced.skipped.iter().map(|one| one.number()).collect();
        assert_eq!(skipped, [2], "the one that hangs was not left out");
        assert_eq!(well.durable.load(Ordering::SeqCst), 1, "the other one is not durable");
        assert_eq!(other.join().unwrap(), (1, true));
        looks.join().unwrap();
        let hanging = syncs.state.lock().stuck;
        assert!(hanging <= 1, "{hanging} threads for one store");
        hung.answers.set();
        let far = Instant::now() + Duration::from_secs(3600);
        assert_eq!(syncs.end(far), 0);
        let state = syncs.state.lock();
        assert!(state.stuck == 0 && state.queue.is_empty() && state.runs.is_empty(), "{state:?}");
    });
}

#[test]
fn a_stall_that_is_missed_is_caught() {
    let test = "sync_all::schedules::who_syncs_is_not_held_up_by_a_stall";
    mutant::assert_caught(test, &["syncs-looks-first", "syncs-known-untold"], "deadlock");
    mutant::assert_caught(test, &["syncs-left-out-untold"], "success was told");
}

/// The error of a run whose volume was left out goes to the cgroup that had asked, and to no other.
#[test]
fn a_late_error_is_told_to_whose_it_is() {
    model::check(|| {
        let (a, b): (CgroupPath, CgroupPath) = ("/a".parse().unwrap(), "/b".parse().unwrap());
        let syncs = Arc::<SyncAll>::default();
        let hung = Arc::new(Model { hangs: true, fails: AtomicBool::new(true), ..Model::default() });
        let target: [Arc<dyn SyncTarget>; 1] = [Arc::clone(&hung) as Arc<_>];
        let sync = |by| syncs.sync(by, &target, &Cancel::default(), || Ok(()));
        let looks = {
            let (syncs, hung) = (Arc::clone(&syncs), Arc::clone(&hung));
            thread::spawn(move || {
                hung.is_known.store(true, Ordering::SeqCst);
                syncs.skip_stalled();
            })
        };
        let first = sync(&a);
        looks.join().unwrap();
        assert!(first.skipped.len() == 1 && first.into_result().is_ok(), "it has nothing there");
        hung.is_known.store(false, Ordering::SeqCst);
        hung.answers.set();
        assert_eq!(syncs.end(Instant::now() + Duration::from_secs(3600)), 0);
        // It was left out before its run had begun, or the run has failed.
        let has_failed = !hung.fails.swap(false, Ordering::SeqCst);
        assert!(sync(&b).into_result().is_ok(), "somebody else's error was told");
        assert_eq!(sync(&a).into_result().is_err(), has_failed, "its own error was not told");
        assert!(sync(&a).into_result().is_ok(), "it was told twice");
    });
}

#[test]
fn a_late_error_that_is_told_to_another_is_caught() {
    let test = "sync_all::schedules::a_late_error_is_told_to_whose_it_is";
    mutant::assert_caught(test, &["syncs-late-error-anybodys"], "somebody else's error was told");
}

/// Who syncs after a volume was given up hears nothing of it: its store does not answer, one syncs
/// beside that, and one comes later.
#[test]
fn who_syncs_after_a_volume_was_given_up_hears_nothing_of_it() {
    model::check(|| {
        let syncs = Arc::<SyncAll>::default();
        let hung = Arc::new(Model { number: 1, hangs: true, ..Model::default() });
        let sync = {
            let (syncs, one) = (Arc::clone(&syncs), Arc::clone(&hung));
            move || {
                let target: [Arc<dyn SyncTarget>; 1] = [Arc::clone(&one) as Arc<_>];
                syncs.sync(&CgroupPath::root(), &target, &Cancel::default(), || Ok(())).result
            }
        };
        let beside = thread::spawn(sync.clone());
        hung.is_aborted.store(true, Ordering::SeqCst);
        syncs.abort(1);
        assert_eq!(sync(), Ok(()), "a later sync was told of it");
        // It waited for what is lost now, or came later.
        assert!(matches!(beside.join().unwrap(), Ok(()) | Err(Error::Released)));
        hung.answers.set();
        assert_eq!(syncs.end(Instant::now() + Duration::from_secs(3600)), 0);
    });
}

#[test]
fn a_loss_that_is_told_for_ever_is_caught() {
    let test = "sync_all::schedules::who_syncs_after_a_volume_was_given_up_hears_nothing_of_it";
    mutant::assert_caught(test, &["syncs-told-for-ever"], "a later sync was told of it");
}

/// Data that was written before a sync began is durable when it returns, whatever other threads
/// sync.
#[test]
fn a_sync_covers_what_was_written_before_it() {
    model::check(|| {
        let syncs = Arc::<SyncAll>::default();
        let one = Arc::new(Model::default());
        let write_and_sync = {
            let (syncs, one) = (Arc::clone(&syncs), Arc::clone(&one));
            move || {
                let written = one.written.fetch_add(1, Ordering::SeqCst) + 1;
                let target: [Arc<dyn SyncTarget>; 1] = [Arc::clone(&one) as Arc<_>];
                let synced = syncs.sync(&CgroupPath::root(), &target, &Cancel::default(), || Ok(()));
                assert!(synced.result.is_ok() && synced.skipped.is_empty());
                let durable = one.durable.load(Ordering::SeqCst);
                assert!(durable >= written, "a sync returned before its data was durable");
            }
        };
        let others: Vec<_> = (0..2).map(|_| thread::spawn(write_and_sync.clone())).collect();
        write_and_sync();
        others.into_iter().for_each(|other| other.join().unwrap());
    });
}

#[test]
fn a_sync_that_joins_an_older_one_is_caught() {
    let test = "sync_all::schedules::a_sync_covers_what_was_written_before_it";
    mutant::assert_caught(test, &["syncs-joins-late"], "before its data was durable");
}
