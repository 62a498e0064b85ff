//! A turn for each volume and each target path: the calls about one take turns, and none waits for
//! another's.
//!
//! A call that needs the turns of a target path and of a staging path (or a base) takes the target's
//! first, waits a short time for the other, and does nothing there that waits for a store; what
//! unmounts may. None takes more than these two.
//!
//! The table's lock is a leaf, held for a look-up. A call keeps its entry alive until its work has
//! ended, also where its caller is gone: so the next call about the same finds the same turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::tonic::Code;
use sync::Mutex;
use tokio::time::Instant;

use super::failure::{Failure, Result};
use crate::containers::turns::{Turn, Turns};

/// Entries that may be: some for each volume of a node.
const ENTRIES_MAX: usize = 20_000;
/// From so many on, those that nobody uses are removed.
const CROWDED: usize = 1_000;

#[derive(Debug, Default)]
struct Entry {
    turns: Turns,
    /// How work ended whose caller was gone, where that is to be told once.
    untold: Mutex<Option<Failure>>,
}

/// The turn of a key, until it is dropped; the call that has it may take another's as well.
#[derive(Debug)]
pub(super) struct Taken {
    _turn: Turn,
    /// Stays in the table as long.
    _entry: Arc<Entry>,
    what: &'static str,
    until: Instant,
}

impl Taken {
    /// Has another's turn waited for no longer than this.
    pub(super) fn within(self, patience: Duration) -> Self {
        Self { until: self.until.min(Instant::now() + patience), ..self }
    }
}

/// The turns, by their keys.
#[derive(Debug, Default)]
pub(super) struct Locks {
    table: Mutex<BTreeMap<String, Arc<Entry>>>,
}

impl Locks {
    fn entry(&self, key: &str) -> Result<Arc<Entry>> {
        let mut table = self.table.lock();
        if let Some(entry) = table.get(key) {
            return Ok(Arc::clone(entry));
        }
        if table.len() >= CROWDED {
            table.retain(|_, entry| Arc::strong_count(entry) > 1 || entry.untold.lock().is_some());
        }
        if table.len() >= ENTRIES_MAX {
            return Err(Failure::new(Code::ResourceExhausted, "too many calls are under way; ask again"));
        }
        let entry = Arc::new(Entry::default());
        table.insert(key.to_owned(), Arc::clone(&entry));
        Ok(entry)
    }

    /// Waits for the turn of `key`.
    pub(super) async fn take(&self, key: &str, what: &'static str, patience: Duration) -> Result<Taken> {
        let (entry, until) = (self.entry(key)?, Instant::now() + patience);
        let turn = entry.turns.take(what, until).await?;
        Ok(Taken { _turn: turn, _entry: entry, what, until })
    }

    /// As [`call`](Self::call), in the turn that is taken and in that of `key`.
    pub(super) async fn call_too<T: Send + 'static>(
        &self,
        taken: Taken,
        key: &str,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (what, left) = (taken.what, taken.until.saturating_duration_since(Instant::now()));
        let in_both = move || {
            let _taken = taken;
            work()
        };
        self.call(key, what, left, in_both).await
    }

    /// Does `work` in the turn of `key`, on a thread of its own. Where that takes longer than the
    /// caller waits, it goes on.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        key: &str,
        what: &'static str,
        patience: Duration,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let entry = self.entry(key)?;
        let kept = Arc::clone(&entry);
        let in_turn = move || {
            if let Some(untold) = kept.untold.lock().take() {
                return (Err(untold), false);
            }
            let done = work();
            if let Err(failure) = &done
                && failure.code == Code::DataLoss
            {
                *kept.untold.lock() = Some(failure.clone());
                return (done, true);
            }
            (done, false)
        };
        let (done, is_told_now) = entry.turns.call(what, patience, in_turn).await?;
        if is_told_now {
            drop(entry.untold.lock().take());
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;
    use crate::containers::turns::tests::run;

    const LONG: Duration = Duration::from_secs(60);

    /// Work that ends when the test sends to it.
    fn held_up() -> (Sender<()>, impl FnOnce() -> Result<()> + Send + 'static) {
        let (go, wait) = channel();
        let work = move || {
            wait.recv().unwrap();
            Ok(())
        };
        (go, work)
    }

    #[test]
    fn a_loss_that_nobody_waited_for_is_told_once() {
        run(async {
            let locks = Locks::default();
            let (go, wait) = channel::<()>();
            let lost = || Failure::new(Code::DataLoss, "lost");
            let work = move || {
                wait.recv().unwrap();
                Err::<(), _>(lost())
            };
            let late = locks.call("a", "unmounting", Duration::from_millis(10), work).await.unwrap_err();
            assert_eq!(late.code, Code::Aborted);
            // Others do not wait for it.
            assert_eq!(locks.call("b", "unmounting", LONG, || Ok(1)).await, Ok(1));
            go.send(()).unwrap();
            let told = locks.call("a", "unmounting", LONG, || Ok(())).await;
            assert_eq!(told, Err(lost()));
            assert_eq!(locks.call("a", "unmounting", LONG, || Ok(2)).await, Ok(2));
            // One that was answered is not told again.
            assert_eq!(locks.call("a", "unmounting", LONG, move || Err::<(), _>(lost())).await, Err(lost()));
            assert_eq!(locks.call("a", "unmounting", LONG, || Ok(3)).await, Ok(3));
        });
    }

    #[test]
    fn a_call_that_goes_on_keeps_both_of_its_turns() {
        run(async {
            let locks = Locks::default();
            let (go, work) = held_up();
            let short = Duration::from_millis(10);
            let taken = locks.take("target", "mounting", short).await.unwrap();
            let late = locks.call_too(taken, "staging", work).await.unwrap_err();
            assert_eq!(late.code, Code::Aborted);
            for key in ["target", "staging"] {
                assert_eq!(locks.call(key, "x", short, || Ok(())).await.unwrap_err().code, Code::Aborted);
            }
            go.send(()).unwrap();
            for key in ["target", "staging"] {
                assert_eq!(locks.call(key, "x", LONG, || Ok(())).await, Ok(()));
            }
            // One that does not get the second in time gives the first back.
            let _staging = locks.take("staging", "mounting", LONG).await.unwrap();
            let taken = locks.take("target", "mounting", LONG).await.unwrap();
            assert!(locks.call_too(taken.within(short), "staging", || Ok(())).await.is_err());
            assert_eq!(locks.call("target", "x", LONG, || Ok(())).await, Ok(()));
        });
    }

    #[test]
    fn a_turn_stays_while_its_work_goes_on() {
        run(async {
            let locks = Locks::default();
            let (go, work) = held_up();
            let late = locks.call("a", "mounting", Duration::from_millis(10), work).await;
            assert_eq!(late.unwrap_err().code, Code::Aborted);
            for n in 0..CROWDED + 10 {
                assert_eq!(locks.call(&n.to_string(), "x", LONG, || Ok(())).await, Ok(()));
            }
            assert!(locks.table.lock().len() <= CROWDED, "nobody uses most of them");
            let waits = locks.call("a", "mounting", Duration::from_millis(10), || Ok(())).await;
            assert_eq!(waits.unwrap_err().code, Code::Aborted);
            go.send(()).unwrap();
        });
    }
}
