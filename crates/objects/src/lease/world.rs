//! What the tests begin with.

use std::sync::Arc;
use std::time::Duration;

use store::{Error, ErrorKind};
use tokio::task::JoinHandle;

use super::double::{FaultyStore, Machine, Running};
use super::{Created, Held, Host, Lease, Request};

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// A volume that is free, and two machines.
pub(super) struct World {
    pub(super) store: Arc<FaultyStore>,
    pub(super) alpha: Arc<Machine>,
    pub(super) beta: Arc<Machine>,
}

impl World {
    pub(super) async fn new() -> Self {
        let store = Arc::<FaultyStore>::default();
        assert_eq!(Lease::create_free(&store.bucket()).await.unwrap(), Created::New);
        store.take_counts();
        Self { store, alpha: Machine::new("alpha"), beta: Machine::new("beta") }
    }

    pub(super) async fn take(&self, request: &Request, process: &Arc<Running>) -> store::Result<Arc<Held>> {
        let host = Arc::clone(process) as Arc<dyn Host>;
        Lease::take(&self.store.bucket(), request, host).await.map(Arc::new)
    }

    /// A process on the machine `alpha` that holds the volume.
    pub(super) async fn held(&self) -> (Arc<Running>, Arc<Held>) {
        let process = self.alpha.start();
        let held = self.take(&process.request(), &process).await.unwrap();
        (process, held)
    }
}

pub(super) fn keep(held: &Arc<Held>) -> JoinHandle<()> {
    tokio::spawn(Arc::clone(held).keep())
}

#[track_caller]
pub(super) fn assert_words(error: &Error, kind: ErrorKind, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}
