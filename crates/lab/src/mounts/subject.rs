//! The subjects: a place on which something is mounted again and again.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mounts::{Base, Error, FinalSymlink, Namespace, Options, Umount};
use rcu::DomainOptions;

use super::names::Names;
use super::strategy::{Engine, Strategy, teardown};

/// The tick of a real-time kernel's normal grace periods.
const RT_TICK: Duration = Duration::from_millis(20);

/// A place that walks go through.
pub(crate) trait Subject: Send + Sync {
    /// Mounts something there.
    ///
    /// # Errors
    /// Words for the table.
    fn attach(&self) -> Result<(), String>;

    /// Unmounts it; returns the time of the call. Tries again while it is busy.
    ///
    /// # Errors
    /// Words for the table.
    fn umount(&self, is_lazy: bool) -> Result<Duration, String>;

    /// One walk to a file on it, or to the place of that file. It takes a reference there, and
    /// gives it back.
    fn walk(&self);

    /// One walk to a file on another mount.
    fn walk_elsewhere(&self);

    /// Ends everything that was begun, outside of the measured time.
    fn settle(&self) {}
}

/// Our crate with one of the strategies.
pub(crate) struct Ours {
    pub(crate) ns: Namespace,
    pub(crate) strategy: Option<Arc<Strategy>>,
}

/// How a namespace of this engine is made.
pub(crate) fn options(engine: Engine) -> Options {
    let tick = if engine == Engine::Expedited { DomainOptions::default().tick } else { RT_TICK };
    Options { domain: DomainOptions { tick, ..DomainOptions::default() }, ..Options::default() }
}

impl Ours {
    /// A namespace with something on `m1` that stays.
    pub(crate) fn new(variant: &str, engine: Engine) -> Self {
        let options = options(engine);
        let (teardown, strategy) = teardown(variant, engine, &options.domain);
        let (_, root) = Names::mountable();
        let ns = Namespace::with_teardown(&root, options, teardown).expect("a new superblock");
        let (_, stays) = Names::mountable();
        ns.attach(Base::Root, "m1", &stays).expect("nothing is there");
        Self { ns, strategy }
    }

    /// Whether an unmount has reached its strategy's wait for walks, other than by grace periods.
    pub(crate) fn is_waiting_for_walkers(&self) -> bool {
        self.strategy.as_ref().is_some_and(|strategy| strategy.is_waiting())
    }

    /// A whole walk: it takes a reference, and gives it back.
    fn visit(&self, path: &str) {
        let walk = || self.ns.visit(Base::Root, path, FinalSymlink::Follow, |_, inode, _| inode);
        let _ = self.legitimizing(|| self.counted(|| std::hint::black_box(walk())));
    }

    /// A walk that takes a reference.
    pub(crate) fn legitimizing<T>(&self, walk: impl FnOnce() -> T) -> T {
        match &self.strategy {
            Some(strategy) => strategy.legitimizing(walk),
            None => walk(),
        }
    }

    /// A walk.
    pub(crate) fn counted<T>(&self, walk: impl FnOnce() -> T) -> T {
        match &self.strategy {
            Some(strategy) => strategy.counted(walk),
            None => walk(),
        }
    }
}

impl Subject for Ours {
    fn attach(&self) -> Result<(), String> {
        let (_, volume) = Names::mountable();
        self.ns.attach(Base::Root, "m0", &volume).map(drop).map_err(|error| format!("failed: {error}"))
    }

    fn umount(&self, is_lazy: bool) -> Result<Duration, String> {
        let flags = if is_lazy { Umount::DETACH } else { Umount::empty() };
        let begun = Instant::now();
        loop {
            match self.ns.umount(Base::Root, "m0", flags) {
                Ok(()) => return Ok(begun.elapsed()),
                Err(Error::Busy(_)) => {}
                Err(error) => return Err(format!("failed: {error}")),
            }
        }
    }

    fn walk(&self) {
        self.visit("m0/d/f");
    }

    fn walk_elsewhere(&self) {
        self.visit("m1/d/f");
    }

    fn settle(&self) {
        if let Some(strategy) = &self.strategy {
            strategy.settle();
        }
        self.ns.domain().barrier();
    }
}
