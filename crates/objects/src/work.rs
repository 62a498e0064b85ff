//! What is under way in a volume and may use objects that no row names any more, or none names yet.
//!
//! It is a grace period: an object that was garbage when [`Work::next`] was asked is used by nobody
//! once everything has ended that began before.

use std::collections::BTreeSet;

use parking_lot::Mutex;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Work(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// Something under way, until it is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay<'a> {
    work: &'a Work,
    number: u64,
}

impl Work {
    /// Begins something: what it looks up from here on, and what it makes, stays until it ends.
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        let mut inner = self.0.lock();
        let number = inner.next;
        inner.next += 1;
        inner.under_way.insert(number);
        UnderWay { work: self, number }
    }

    /// The number of what begins next.
    pub(crate) fn next(&self) -> u64 {
        self.0.lock().next
    }

    /// The number of the oldest that is under way, or of what begins next: everything before has
    /// ended.
    pub(crate) fn oldest(&self) -> u64 {
        let inner = self.0.lock();
        inner.under_way.first().copied().unwrap_or(inner.next)
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.work.0.lock().under_way.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_began_before_is_waited_for_and_what_began_later_is_not() {
        let work = Work::default();
        let first = work.begin();
        let at = work.next();
        assert!(work.oldest() < at);
        let later = work.begin();
        drop(first);
        assert_eq!(work.oldest(), at, "what began later is not waited for");
        assert!(work.oldest() < work.next());
        drop(later);
        assert_eq!(work.oldest(), work.next());
    }
}
