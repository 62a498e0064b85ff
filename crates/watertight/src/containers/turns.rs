//! The calls for one volume, one after another, each with a deadline.
//!
//! A call waits for its turn no longer than its deadline: one that has not begun by then never
//! begins, and its caller may ask again. One that has begun goes on without its caller, on a thread
//! of its own, and keeps the turn to its end: so the next call finds what it did. Volumes share
//! nothing here, so none waits for another.

use std::sync::Arc;
use std::time::Duration;

use sync::Mutex;
use tokio::time::{Instant, timeout_at};

/// The turn at one volume.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// Fair: its waiters get it in the order in which they came.
    turn: Arc<tokio::sync::Mutex<()>>,
    doing: Arc<Mutex<Option<&'static str>>>,
}

/// Why there is no result in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Late {
    /// An earlier call has the turn; what it does.
    #[error("{0} has begun earlier and is not done yet; ask again")]
    Waits(&'static str),
    /// It has begun and goes on; what it does.
    #[error("{0} is not done yet, and goes on in the background; the next call finds its result")]
    GoesOn(&'static str),
    /// It has ended by a defect of this program.
    #[error("{0} ended by a defect of this program, which its log names")]
    Panicked(&'static str),
}

impl Turns {
    /// What is being done.
    pub(super) fn doing(&self) -> Option<&'static str> {
        *self.doing.lock()
    }

    /// Does `work`, called `what`, in its turn.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        what: &'static str,
        patience: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Late> {
        let until = Instant::now() + patience;
        let turn = self.take(what, until).await?;
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            work()
        });
        match timeout_at(until, task).await {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(_)) => Err(Late::Panicked(what)),
            Err(_) => Err(Late::GoesOn(what)),
        }
    }

    /// Waits for the turn, and takes it for `what`.
    pub(super) async fn take(&self, what: &'static str, until: Instant) -> Result<Turn, Late> {
        let turn = timeout_at(until, Arc::clone(&self.turn).lock_owned()).await;
        let turn = turn.map_err(|_| Late::Waits(self.doing().unwrap_or("another call")))?;
        Ok(Turn { _doing: Doing::begin(Arc::clone(&self.doing), what), _turn: turn })
    }
}

/// The turn, until it is dropped. Its parts are dropped in their order, by a panic too: nothing is
/// being done before the next has its turn.
#[derive(Debug)]
pub(super) struct Turn {
    _doing: Doing,
    _turn: tokio::sync::OwnedMutexGuard<()>,
}

#[derive(Debug)]
struct Doing(Arc<Mutex<Option<&'static str>>>);

impl Doing {
    fn begin(doing: Arc<Mutex<Option<&'static str>>>, what: &'static str) -> Self {
        *doing.lock() = Some(what);
        Self(doing)
    }
}

impl Drop for Doing {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    pub(in crate::containers) fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn a_late_call_goes_on_and_the_next_finds_what_it_did() {
        run(a_late_call());
    }

    async fn a_late_call() {
        let (turns, value) = (Turns::default(), Arc::new(Mutex::new(0)));
        let (go, wait) = channel::<()>();
        let written = Arc::clone(&value);
        let work = move || {
            wait.recv().unwrap();
            *written.lock() = 7;
        };
        let late = turns.call("mounting", Duration::from_millis(20), work).await;
        assert_eq!(late, Err(Late::GoesOn("mounting")));
        // It has the turn: a call that does not get it in time never begins.
        let written = Arc::clone(&value);
        let never = move || *written.lock() = 1;
        assert_eq!(turns.call("b", Duration::from_millis(20), never).await, Err(Late::Waits("mounting")));
        go.send(()).unwrap();
        let read = Arc::clone(&value);
        assert_eq!(turns.call("reading", LONG, move || *read.lock()).await, Ok(7));
        assert_eq!(turns.doing(), None);
        // Another volume's turn is another.
        assert_eq!(Turns::default().call("c", LONG, || 3).await, Ok(3));
    }

    #[test]
    fn a_call_that_panics_gives_its_turn_back() {
        run(a_call_that_panics());
    }

    async fn a_call_that_panics() {
        let turns = Turns::default();
        let failed = turns.call("mounting", LONG, || panic!("of a test")).await;
        assert_eq!(failed, Err::<(), _>(Late::Panicked("mounting")));
        assert_eq!(turns.call("reading", LONG, || 1).await, Ok(1));
    }
}
