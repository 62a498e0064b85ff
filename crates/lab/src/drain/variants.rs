//! Other ways in which switchers and an unmount can synchronise: slower than the product's, or
//! wrong.
//!
//! They live here and in the tests of `writeback`, which share this file, and run on the same
//! engine, with the same workers, grace periods and callbacks.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use writeback::{Domain, Drain, DrainStrategy, OwnSwitches, PerSuperblock, SbPin, SharedState, Unmounting};

/// A callback between the preparation of a switch and its queueing.
#[derive(Clone, Default)]
pub(crate) struct DelayPoint(Option<Arc<dyn Fn() + Send + Sync>>);

impl DelayPoint {
    #[allow(dead_code, reason = "not everybody who shares this file waits in between")]
    pub(crate) fn new(hook: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    pub(crate) fn call(&self) {
        if let Some(hook) = &self.0 {
            hook();
        }
    }
}

impl fmt::Debug for DelayPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Between").field(&self.0.is_some()).finish()
    }
}

/// Looks at `SB_ACTIVE` and pins nothing.
fn look(superblock: &Drain) -> Result<Option<SbPin>, Unmounting> {
    if superblock.is_active() { Ok(None) } else { Err(Unmounting) }
}

/// A drain that checks whether a switch is in flight closes the superblock first; a switcher counts
/// itself first. One of the two sees the other.
fn counted_before() {
    // ORDERING: SeqCst, pairs with the fence in `Drain::close`.
    fence(Ordering::SeqCst);
}

/// `base`: if any switch is in flight anywhere, wait for all callbacks and for the queue of
/// switches. **Wrong**: a switcher that has read `SB_ACTIVE` and has not queued yet is missed.
#[derive(Debug, Default)]
pub(crate) struct Base {
    pub(crate) delay_point: DelayPoint,
}

impl DrainStrategy for Base {
    fn pin(&self, superblock: &Drain) -> Result<Option<SbPin>, Unmounting> {
        look(superblock)
    }

    fn delay_point(&self) {
        self.delay_point.call();
    }

    fn drain(&self, superblock: &Drain, _: &dyn OwnSwitches, shared: &dyn SharedState) {
        superblock.close();
        if shared.in_flight() > 0 {
            shared.domain().barrier();
            shared.flush();
        }
    }
}

/// `race`: switchers check, prepare and queue in a read section; if any switch is in flight
/// anywhere, unmount waits for a grace period, for all callbacks, and for the queue. A switch is
/// counted before its switcher reads `SB_ACTIVE`.
#[derive(Debug, Default)]
pub(crate) struct Race {
    pub(crate) delay_point: DelayPoint,
}

impl DrainStrategy for Race {
    fn section(&self, domain: &Domain, steps: &mut dyn FnMut()) {
        let _section = domain.read();
        counted_before();
        steps();
    }

    fn pin(&self, superblock: &Drain) -> Result<Option<SbPin>, Unmounting> {
        look(superblock)
    }

    fn delay_point(&self) {
        self.delay_point.call();
    }

    fn drain(&self, superblock: &Drain, _: &dyn OwnSwitches, shared: &dyn SharedState) {
        superblock.close();
        if shared.in_flight() > 0 {
            shared.domain().synchronize();
            shared.domain().barrier();
            shared.flush();
        }
    }
}

/// `rmbarrier`: as `race` without waiting for callbacks. **Wrong** where switches are queued by a
/// callback.
#[derive(Debug, Default)]
pub(crate) struct RmBarrier {
    pub(crate) delay_point: DelayPoint,
    pub(crate) is_deferred: bool,
}

impl DrainStrategy for RmBarrier {
    fn section(&self, domain: &Domain, steps: &mut dyn FnMut()) {
        let _section = domain.read();
        counted_before();
        steps();
    }

    fn pin(&self, superblock: &Drain) -> Result<Option<SbPin>, Unmounting> {
        look(superblock)
    }

    fn delay_point(&self) {
        self.delay_point.call();
    }

    fn is_deferred(&self) -> bool {
        self.is_deferred
    }

    fn drain(&self, superblock: &Drain, _: &dyn OwnSwitches, shared: &dyn SharedState) {
        superblock.close();
        if shared.in_flight() > 0 {
            shared.domain().synchronize();
            shared.flush();
        }
    }
}

/// `persb-fifo`: as `persb` was at first. Each superblock has its own count, but its switches wait
/// for their turn in the queue of all, and only then for a grace period: right, and held up by each
/// neighbour that has switches.
#[derive(Debug, Default)]
pub(crate) struct PersbFifo;

impl DrainStrategy for PersbFifo {
    fn pin(&self, superblock: &Drain) -> Result<Option<SbPin>, Unmounting> {
        PerSuperblock.pin(superblock)
    }

    fn waits_in_turn(&self) -> bool {
        true
    }

    fn drain(&self, superblock: &Drain, _: &dyn OwnSwitches, _: &dyn SharedState) {
        superblock.drain();
    }
}
