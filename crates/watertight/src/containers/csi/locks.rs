//! A turn for each volume and each target path: the calls about one take turns, and none waits for
//! another's.
//!
//! The table's lock is a leaf, held for a look-up. A call keeps its entry alive until its work has
//! ended, also where its caller is gone: so the next call about the same finds the same turn.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use csi_proto::tonic::Code;
use sync::Mutex;

use super::failure::{Failure, Result};
use crate::containers::turns::Turns;

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
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
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
    fn a_turn_stays_while_its_work_goes_on() {
        run(async {
            let locks = Locks::default();
            let (go, wait) = channel::<()>();
            let work = move || {
                wait.recv().unwrap();
                Ok(())
            };
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
