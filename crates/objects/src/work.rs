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

    /// Whether everything has ended that began before `number`.
    pub(crate) fn has_ended_before(&self, number: u64) -> bool {
        self.0.lock().under_way.first().is_none_or(|first| *first >= number)
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
        assert!(!work.has_ended_before(at));
        let later = work.begin();
        drop(first);
        assert!(work.has_ended_before(at), "what began later is not waited for");
        assert!(!work.has_ended_before(work.next()));
        drop(later);
        assert!(work.has_ended_before(work.next()));
    }
}
