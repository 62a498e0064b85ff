//! How switchers and an unmount synchronise.
//!
//! There is one right way here, [`PerSuperblock`]. The trait lets the lab and the tests run other
//! ways, which are slower or wrong, on the same engine. A device gets its way when it is made, and
//! the product makes none with another.

use crate::switch::domain::Domain;
use crate::switch::drain::{Drain, OwnSwitches, SbPin};

/// How switchers and an unmount synchronise.
pub trait DrainStrategy: Send + Sync + std::fmt::Debug + 'static {
    /// Runs `steps`: the read of `SB_ACTIVE`, the preparation of a switch, its queueing.
    fn section(&self, domain: &Domain, steps: &mut dyn FnMut()) {
        let _ = domain;
        steps();
    }

    /// Keeps the superblock there for one switch; an error if it is being unmounted.
    ///
    /// # Errors
    /// [`Unmounting`].
    fn pin(&self, superblock: &Drain) -> Result<Option<SbPin>, Unmounting>;

    /// Called between the preparation of a switch and its queueing.
    fn delay_point(&self) {}

    /// Whether a switch is queued by a callback, after a grace period, instead of directly.
    fn is_deferred(&self) -> bool {
        false
    }

    /// Whether a switch waits for a grace period that begins when the turn of its superblock comes,
    /// instead of the first one after it was queued.
    fn waits_in_turn(&self) -> bool {
        false
    }

    /// Unmount's wait: when it returns, no switch of the superblock is under way.
    fn drain(&self, superblock: &Drain, own: &dyn OwnSwitches, others: &dyn SharedState);
}

/// The superblock is being unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unmounting;

/// The shared state of all superblocks, which an unmount should not wait for.
pub trait SharedState {
    /// The read sections.
    fn domain(&self) -> &Domain;

    /// Switches in flight, of all superblocks.
    fn in_flight(&self) -> usize;

    /// Returns when every switch that was queued before the call has been done.
    fn flush(&self);
}

/// Each superblock has its own count (`persb`): unmount makes its own switches, or waits for the
/// workers that make them, and for nothing else.
#[derive(Debug, Clone, Copy, Default)]
pub struct PerSuperblock;

impl DrainStrategy for PerSuperblock {
    fn pin(&self, superblock: &Drain) -> Result<Option<SbPin>, Unmounting> {
        superblock.pin().map(Some).ok_or(Unmounting)
    }

    fn drain(&self, superblock: &Drain, own: &dyn OwnSwitches, _: &dyn SharedState) {
        superblock.drain_with(own);
    }
}
