//! Pointers that live as long as a guard.

use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use sync::mutant::is_on;

use crate::domain::{Domain, Guard};
use crate::seq::Cookie;
use crate::work::Work;

/// A value that is replaced while others read it.
///
/// A cell that is dropped leaves its value to the domain, as a replaced one, and waits as a dropped
/// [`Retired`] may.
///
/// A loaded reference does not outlive the guard:
/// ```compile_fail,E0505
/// # use watertight_rcu::{Domain, RcuCell};
/// let domain = Domain::new();
/// let cell = RcuCell::new(&domain, 1);
/// let guard = domain.read();
/// let value = cell.load(&guard);
/// drop(guard);
/// assert_eq!(*value, 1);
/// ```
/// and a cell goes to another thread only if its value may be looked at from several:
/// ```compile_fail,E0277
/// # use watertight_rcu::{Domain, RcuCell};
/// let cell = RcuCell::new(&Domain::new(), std::cell::Cell::new(1));
/// std::thread::spawn(move || drop(cell));
/// ```
pub struct RcuCell<T: Send + 'static> {
    domain: Domain,
    current: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

// SAFETY: the cell owns its value, and hands it to other threads when it is replaced and freed
// there. `Sync` as well: references to the value live as long as a guard, not as long as a borrow
// of the cell, so that they may be on the thread that the cell leaves.
unsafe impl<T: Send + Sync + 'static> Send for RcuCell<T> {}
// SAFETY: several threads get `&T` at a time, and any of them may replace the value and take the
// old one.
unsafe impl<T: Send + Sync + 'static> Sync for RcuCell<T> {}

/// A replaced value. Readers may still see it, until a grace period has passed.
///
/// When it is dropped, the domain frees it after a grace period. The drop may wait, as
/// [`Domain::call`] does: for room, if too many callbacks wait already. So drop it after the locks
/// that a reader or a callback of the domain may want.
#[must_use = "dropped, it is freed by the domain's worker"]
pub struct Retired<T: Send + 'static> {
    value: ManuallyDrop<Raw<T>>,
    domain: Domain,
    cookie: Cookie,
}

struct Raw<T>(NonNull<T>);

// SAFETY: it is an owned box of which readers may have shared references.
unsafe impl<T: Send> Send for Raw<T> {}

impl<T> Raw<T> {
    /// # Safety
    /// No reader sees the value any more, and this is the only call.
    unsafe fn into_box(self) -> Box<T> {
        // SAFETY: made of a box; the caller promises that it is ours alone.
        unsafe { Box::from_raw(self.0.as_ptr()) }
    }
}

impl<T: Send + 'static> RcuCell<T> {
    /// A cell whose value is protected by `domain`.
    #[must_use]
    pub fn new(domain: &Domain, value: T) -> Self {
        let current = AtomicPtr::new(Box::into_raw(Box::new(value)));
        Self { domain: domain.clone(), current, owns: PhantomData }
    }

    /// The value, for as long as the section lasts.
    ///
    /// # Panics
    /// If `guard` is of another domain: it would protect nothing here.
    #[inline]
    pub fn load<'g>(&self, guard: &'g Guard<'_>) -> &'g T {
        assert!(guard.is_of(&self.domain), "a guard of another domain");
        // ORDERING: Acquire, pairs with the release in `replace`: the value's contents.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: never null; freed only after a grace period that begins after it was replaced or
        // the cell was dropped, and so ends after this section.
        unsafe { &*current }
    }

    /// Reads the value in a section of its own: the fastest way, because there is no guard that
    /// could be of another domain.
    #[inline]
    pub fn with<R>(&self, read: impl FnOnce(&T) -> R) -> R {
        let _section = self.domain.read();
        // ORDERING: Acquire, as in `load`.
        let current = self.current.load(Ordering::Acquire);
        // SAFETY: as in `load`; the section ends after `read`.
        read(unsafe { &*current })
    }

    /// Publishes a new value, and returns the old one.
    pub fn replace(&self, value: T) -> Retired<T> {
        let new = Box::into_raw(Box::new(value));
        let early = is_on("rcu-cookie-before-unpublish").then(|| self.domain.get_state());
        if early.is_some() {
            // The swap is no step of the models: the mutant makes one.
            sync::thread::yield_now();
        }
        // ORDERING: AcqRel: the new contents are published, and the old ones are read by the thread
        // that frees them. Before the cookie by the fence in `get_state`.
        let old = self.current.swap(new, Ordering::AcqRel);
        Retired::new(old, &self.domain, early.unwrap_or_else(|| self.domain.get_state()))
    }

    /// Publishes a new value and lets the domain free the old one. May wait, as a dropped
    /// [`Retired`] may: under a lock call [`replace`](Self::replace), and drop its result after
    /// unlocking.
    pub fn publish(&self, value: T) {
        drop(self.replace(value));
    }

    /// The domain that protects the value.
    #[must_use]
    pub fn domain(&self) -> &Domain {
        &self.domain
    }
}

impl<T: Send + 'static> Drop for RcuCell<T> {
    fn drop(&mut self) {
        // References from `load` live as long as their guards, which may be longer than the cell.
        // ORDERING: Relaxed, no other thread has the cell.
        drop(Retired::new(self.current.load(Ordering::Relaxed), &self.domain, self.domain.get_state()));
    }
}

impl<T: Send + 'static> Retired<T> {
    /// `old` is the pointer of a cell that does not have it any more; `cookie` was taken since.
    fn new(old: *mut T, domain: &Domain, cookie: Cookie) -> Self {
        // SAFETY: a cell's pointer is never null.
        let value = ManuallyDrop::new(Raw(unsafe { NonNull::new_unchecked(old) }));
        Self { value, cookie, domain: domain.clone() }
    }

    /// Waits for a grace period, expedited, and returns the value.
    ///
    /// # Panics
    /// In a read section of the domain; the value is then freed by the domain.
    #[must_use]
    pub fn wait(self) -> T {
        self.domain.cond_synchronize_expedited(self.cookie);
        let mut this = ManuallyDrop::new(self);
        // SAFETY: taken once, the destructor does not run.
        let value = unsafe { ManuallyDrop::take(&mut this.value) };
        // SAFETY: as above; the domain is not used again.
        drop(unsafe { std::ptr::read(&raw const this.domain) });
        // SAFETY: the grace period has passed.
        *unsafe { value.into_box() }
    }

    /// Whether [`wait`](Self::wait) would return at once.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.domain.poll_state(self.cookie)
    }
}

impl<T: Send + 'static> Drop for Retired<T> {
    fn drop(&mut self) {
        // SAFETY: taken once, here.
        let value = unsafe { ManuallyDrop::take(&mut self.value) };
        if self.is_free() || is_on("rcu-free-at-once") {
            // SAFETY: the grace period has passed.
            drop(unsafe { value.into_box() });
            return;
        }
        // SAFETY: made of a box; it runs after a grace period, and until then only readers may see
        // it.
        self.domain.queue(unsafe { Work::drop_raw(value.0.as_ptr()) });
    }
}

impl<T: Send + 'static> fmt::Debug for RcuCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RcuCell").finish_non_exhaustive()
    }
}

impl<T: Send + 'static> fmt::Debug for Retired<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retired").field("is_free", &self.is_free()).finish_non_exhaustive()
    }
}
