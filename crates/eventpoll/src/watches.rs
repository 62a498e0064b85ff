//! How many sources may be watched.

use sync::atomic::{AtomicUsize, Ordering};

use crate::{Error, Result};

/// A limit of watched sources, for one eventpoll or for several.
#[derive(Debug)]
pub struct Watches {
    max: usize,
    used: AtomicUsize,
}

impl Default for Watches {
    fn default() -> Self {
        Self::new(usize::MAX)
    }
}

impl Watches {
    /// At most `max` of them.
    #[must_use]
    pub fn new(max: usize) -> Self {
        Self { max, used: AtomicUsize::new(0) }
    }

    /// The number of sources that are watched.
    #[must_use]
    pub fn used(&self) -> usize {
        // ORDERING: Relaxed, a number alone.
        self.used.load(Ordering::Relaxed)
    }

    pub(crate) fn take(&self) -> Result<()> {
        // ORDERING: Relaxed here and below, a number alone.
        let is_room = |used: usize| (used < self.max).then(|| used + 1);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, is_room);
        taken.map(|_| ()).map_err(|_| Error::WatchLimit { max: self.max })
    }

    pub(crate) fn give(&self, count: usize) {
        self.used.fetch_sub(count, Ordering::Relaxed);
    }
}
