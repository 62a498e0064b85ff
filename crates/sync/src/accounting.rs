//! Time accounting of a request: what the thread that serves it waits for.
//!
//! A thread [opens](open) an account when it begins to serve a request, and [closes](close) it when
//! it is through. Code in between [spends](spend_on) time on one of the [`Part`]s. A part within
//! another one interrupts it, so that each moment counts once. Without an account nothing is
//! measured: a thread that serves no request reads no clock.
//!
//! Work that other threads do for the request is not in its account.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::Activity;
pub use crate::activity::Part;

/// The number of parts.
const PARTS: usize = 3;

/// The times of one account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spent([Duration; PARTS]);

impl Spent {
    /// The time that was spent on a part.
    #[must_use]
    pub const fn on(&self, part: Part) -> Duration {
        self.0[part as usize]
    }
}

/// Time is spent on a part until this is dropped.
#[derive(Debug)]
#[must_use]
pub struct Spending {
    /// The part before; none where there is no account.
    interrupted: Option<Option<Part>>,
    /// It belongs to its thread.
    _thread: PhantomData<*const ()>,
}

#[cfg(not(any(loom, shuttle)))]
mod of_thread {
    use std::cell::{Cell, RefCell};
    use std::sync::Arc;

    use super::{Activity, Duration, Instant, PARTS, Part, Spent};

    struct Account {
        is_open: Cell<bool>,
        part: Cell<Option<Part>>,
        since: Cell<Option<Instant>>,
        spent: Cell<Spent>,
        /// Shows other threads what the request is at.
        activity: RefCell<Option<Arc<Activity>>>,
    }

    std::thread_local! {
        static ACCOUNT: Account = const {
            Account {
                is_open: Cell::new(false),
                part: Cell::new(None),
                since: Cell::new(None),
                spent: Cell::new(Spent([Duration::ZERO; PARTS])),
                activity: RefCell::new(None),
            }
        };
    }

    pub(super) fn open(activity: &Arc<Activity>) {
        close();
        ACCOUNT.with(|account| {
            account.is_open.set(true);
            let mut own = account.activity.borrow_mut();
            // A thread seldom serves for another one's.
            if !own.as_ref().is_some_and(|own| Arc::ptr_eq(own, activity)) {
                *own = Some(Arc::clone(activity));
            }
        });
    }

    pub(super) fn close() -> Spent {
        ACCOUNT.with(|account| {
            account.is_open.set(false);
            account.part.set(None);
            account.spent.take()
        })
    }

    /// Calls `change` with the activity of the account, if there is one.
    pub(super) fn with_activity(change: impl FnOnce(&Activity)) {
        ACCOUNT.with(|account| {
            if account.is_open.get()
                && let Some(activity) = &*account.activity.borrow()
            {
                change(activity);
            }
        });
    }

    pub(super) fn is_open() -> bool {
        ACCOUNT.with(|account| account.is_open.get())
    }

    /// Ends the part in hand and begins another one; returns the one that was ended.
    pub(super) fn switch(part: Option<Part>, now: Instant) -> Option<Part> {
        ACCOUNT.with(|account| {
            let before = account.part.replace(part);
            let since = account.since.replace(Some(now));
            if let (Some(before), Some(since)) = (before, since) {
                let mut spent = account.spent.get();
                spent.0[before as usize] += now.saturating_duration_since(since);
                account.spent.set(spent);
            }
            if let Some(activity) = &*account.activity.borrow() {
                let spent = account.spent.get();
                activity.set_part(
                    part,
                    now,
                    part.map_or_else(|| spent.0.iter().sum(), |part| spent.on(part)),
                );
            }
            before
        })
    }
}

/// Models have no accounts: no schedule depends on the time.
#[cfg(any(loom, shuttle))]
mod of_thread {
    use std::sync::Arc;

    use super::{Activity, Instant, Part, Spent};

    pub(super) fn open(_activity: &Arc<Activity>) {}

    pub(super) fn close() -> Spent {
        Spent::default()
    }

    pub(super) fn with_activity(_change: impl FnOnce(&Activity)) {}

    pub(super) fn is_open() -> bool {
        false
    }

    pub(super) fn switch(_part: Option<Part>, _now: Instant) -> Option<Part> {
        None
    }
}

/// Opens the calling thread's account, for a request that began then and shows by `activity` what
/// it is at.
pub fn open(activity: &Arc<Activity>, begun: Instant) {
    activity.begin(begun);
    of_thread::open(activity);
}

/// The calling thread, which [spends](spend_on) time on [`Part::Limit`], waits for this limit of
/// this cgroup.
pub fn wait_for_limit(cgroup: String, limit: &'static str) {
    of_thread::with_activity(|activity| {
        activity.set_limit(Some(crate::LimitAhead { cgroup, limit, until: None, bytes: None }));
    });
}

/// How long the limit that the calling thread waits for lets it wait, and how many bytes have to
/// pass before, as far as they are known.
pub fn expect(until: Option<Instant>, bytes: Option<u64>) {
    of_thread::with_activity(|activity| activity.update_limit(until, bytes));
}

/// Closes the calling thread's account, and returns what was spent since it was opened.
#[must_use]
pub fn close() -> Spent {
    of_thread::close()
}

/// Spends the calling thread's time on `part`.
pub fn spend_on(part: Part) -> Spending {
    spend(part, Instant::now)
}

/// Spends the calling thread's time on `part`, from `now` on.
pub fn spend_on_since(part: Part, now: Instant) -> Spending {
    spend(part, || now)
}

fn spend(part: Part, now: impl FnOnce() -> Instant) -> Spending {
    let interrupted = of_thread::is_open().then(|| of_thread::switch(Some(part), now()));
    Spending { interrupted, _thread: PhantomData }
}

impl Drop for Spending {
    fn drop(&mut self) {
        if let Some(before) = self.interrupted
            && of_thread::is_open()
        {
            of_thread::switch(before, Instant::now());
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// Spends time until the clock has moved.
    fn wait() {
        let begun = Instant::now();
        while Instant::now().duration_since(begun) < Duration::from_micros(200) {
            std::hint::spin_loop();
        }
    }

    fn begin() {
        open(&Arc::default(), Instant::now());
    }

    #[test]
    fn each_moment_counts_once_for_the_innermost_part() {
        let begun = Instant::now();
        begin();
        let limit = spend_on(Part::Limit);
        wait();
        let store = spend_on(Part::Store);
        wait();
        drop(store);
        drop(limit);
        let inside = begun.elapsed();
        wait();
        let spent = close();
        let (limit, store) = (spent.on(Part::Limit), spent.on(Part::Store));
        let least = Duration::from_micros(200);
        assert!(limit >= least && store >= least && limit + store <= inside, "{spent:?} in {inside:?}");
        assert_eq!(spent.on(Part::Cache), Duration::ZERO);
    }

    #[test]
    fn a_thread_without_an_account_has_no_times() {
        drop(spend_on(Part::Store));
        begin();
        assert_eq!(close(), Spent::default());
        let left = spend_on(Part::Store);
        begin();
        drop(left);
        assert_eq!(close(), Spent::default(), "it began before the account");
    }

    #[test]
    fn an_account_that_was_closed_is_empty_when_it_is_opened_again() {
        begin();
        let spending = spend_on(Part::Cache);
        wait();
        drop(spending);
        assert!(close().on(Part::Cache) > Duration::ZERO);
        begin();
        assert_eq!(close(), Spent::default());
    }
}
