//! Numbers of grace periods.
//!
//! A number is odd, so that 0 is none ([`crate::gp`]). Numbers wrap around, so that they are
//! compared by their distance: of two that are less than half the range apart, the later is the one
//! that the other reaches by counting up.

use sync::mutant;

/// A grace period that will have passed after everything that the taker of the cookie did before.
///
/// A cookie is of use to the domain that gave it only, and for 2^62 grace periods.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[must_use]
pub struct Cookie(pub(crate) u64);

/// The number after `seq`.
pub(crate) const fn next(seq: u64) -> u64 {
    seq.wrapping_add(2)
}

/// Whether `seq` is `than` or later.
pub(crate) fn is_at_least(seq: u64, than: u64) -> bool {
    if mutant::is_on("rcu-compare-without-wrap") {
        return seq >= than;
    }
    // Less than half the range ahead.
    seq.wrapping_sub(than) < 1 << 63
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_order_goes_around() {
        for at in [0, 2, 1 << 62, (1 << 63) - 2, 1 << 63, u64::MAX - 3, u64::MAX - 1] {
            assert!(is_at_least(at, at));
            assert!(is_at_least(next(at), at));
            assert!(!is_at_least(at, next(at)));
            assert!(is_at_least(at.wrapping_add(1 << 62), at));
            assert!(!is_at_least(at, at.wrapping_add(1 << 62)));
        }
    }
}
