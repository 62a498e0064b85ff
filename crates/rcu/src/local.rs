//! Which slot of a domain is this thread's.
//!
//! A thread gets a slot at its first read section in a domain, and gives it back when it ends. Nothing is
//! registered by hand. The slot used last is remembered in a cell without a destructor, so that entering costs
//! one comparison.
//!
//! # Who keeps a slot alive
//! The thread's entry in `LOCAL` holds it; the remembered pointer is to a slot of such an entry, and is taken
//! back before an entry goes. Domains' numbers are never used again, so that a number that matches is that of
//! the living domain behind the `&Domain`.
//!
//! # The end of a thread
//! `LOCAL`'s destructor gives the slots back. Destructors of other thread-locals that run later, and read, get a
//! slot of their own for that one section (`Place::is_temporary`). A section that is still open when `LOCAL`
//! goes keeps its slot in the same way.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use crate::domain::Inner;
use crate::gate::Slot;
use crate::queue::Sender;

/// A thread's place in a domain.
#[derive(Debug)]
pub(crate) struct Place {
    /// What grace periods look at.
    pub(crate) slot: Arc<Slot>,
    /// Sections that are open, one inside the other.
    nest: Cell<usize>,
    /// The thread's callbacks, once there was one.
    sender: RefCell<Option<Sender>>,
    /// Nobody remembers it: the last section's end gives it back.
    is_temporary: Cell<bool>,
}

#[derive(Debug)]
struct Entry {
    inner: Weak<Inner>,
    place: NonNull<Place>,
}

/// This thread's places, by the numbers of their domains: there may be thousands.
#[derive(Debug)]
struct Local {
    places: BTreeMap<u64, Entry>,
    /// Those in domains that are gone are looked for when there are so many.
    sweep_at: usize,
}

sync::thread_local! {
    static LAST: Cell<(u64, Option<NonNull<Place>>)> = const { Cell::new((0, None)) };
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { places: BTreeMap::new(), sweep_at: 16 }) };
}

/// This thread's place in the domain with this number, which the caller keeps alive.
#[inline]
pub(crate) fn place(domain: u64, inner: &Arc<Inner>) -> NonNull<Place> {
    match LAST.with(Cell::get) {
        (last, Some(place)) if last == domain => place,
        _ => find(domain, inner),
    }
}

#[cold]
fn find(domain: u64, inner: &Arc<Inner>) -> NonNull<Place> {
    let found = LOCAL.try_with(|local| {
        let mut local = local.borrow_mut();
        if let Some(entry) = local.places.get(&domain) {
            return entry.place;
        }
        if local.places.len() >= local.sweep_at {
            local.forget_the_dead();
        }
        let place = join(inner, false);
        local.places.insert(domain, Entry { inner: Arc::downgrade(inner), place });
        place
    });
    match found {
        Ok(place) => {
            remember((domain, Some(place)));
            place
        }
        // The thread is ending.
        Err(_) => join(inner, true),
    }
}

/// Does nothing where the thread is ending: nobody looks there any more.
fn remember(place: (u64, Option<NonNull<Place>>)) {
    let _ = LAST.try_with(|last| last.set(place));
}

/// Makes a place; `give_back` or `LOCAL` frees it.
fn join(inner: &Arc<Inner>, is_temporary: bool) -> NonNull<Place> {
    let slot = Slot::new(name_of_this_thread());
    inner.gate.join(Arc::clone(&slot));
    let place =
        Place { slot, nest: Cell::new(0), sender: RefCell::new(None), is_temporary: Cell::new(is_temporary) };
    NonNull::from(Box::leak(Box::new(place)))
}

fn name_of_this_thread() -> String {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("unnamed");
    if cfg!(miri) {
        // It has no such call.
        return name.to_owned();
    }
    format!("{name} ({})", rustix::thread::gettid())
}

/// Takes a place out of its domain and frees it.
///
/// # Safety
/// `place` came from [`join`], nobody uses it any more, and its last section has ended.
unsafe fn give_back(inner: &Inner, place: NonNull<Place>) {
    // SAFETY: a leaked box, by the caller's promise used by nobody else.
    let place = unsafe { Box::from_raw(place.as_ptr()) };
    inner.gate.part(&place.slot);
    if let Some(sender) = place.sender.into_inner() {
        inner.callbacks.part(sender);
    }
}

/// Calls `use_place` with this thread's place in a domain.
#[inline]
pub(crate) fn with_place(domain: u64, inner: &Arc<Inner>, use_place: impl FnOnce(&Place)) {
    let place = place(domain, inner);
    // SAFETY: this thread's, and alive until the thread or its last section ends.
    let used = unsafe { place.as_ref() };
    use_place(used);
    if used.is_temporary() && !used.is_inside() {
        // SAFETY: made for this call, and not used again.
        unsafe { end_temporary(inner, place) };
    }
}

impl Place {
    /// Counts a section; says whether it is the outermost.
    #[inline]
    pub(crate) fn open(&self) -> bool {
        let nest = self.nest.get();
        self.nest.set(nest + 1);
        nest == 0
    }

    /// Counts a section's end; says whether it was the outermost.
    #[inline]
    pub(crate) fn close(&self) -> bool {
        let nest = self.nest.get() - 1;
        self.nest.set(nest);
        nest == 0
    }

    /// The end at which callbacks are put in.
    #[inline]
    pub(crate) fn with_sender<T>(
        &self,
        join: impl FnOnce() -> Sender,
        put_in: impl FnOnce(&mut Sender) -> T,
    ) -> T {
        put_in(self.sender.borrow_mut().get_or_insert_with(join))
    }

    /// Whether a section is open.
    pub(crate) fn is_inside(&self) -> bool {
        self.nest.get() > 0
    }

    #[inline]
    pub(crate) fn is_temporary(&self) -> bool {
        self.is_temporary.get()
    }
}

/// Whether the calling thread is in a section of this domain.
pub(crate) fn is_inside(domain: u64) -> bool {
    let look = |local: &RefCell<Local>| {
        let local = local.borrow();
        let entry = local.places.get(&domain);
        // SAFETY: the entry keeps its place alive, and only this thread touches it.
        entry.is_some_and(|entry| unsafe { entry.place.as_ref() }.is_inside())
    };
    LOCAL.try_with(look).unwrap_or(false)
}

/// Ends the life of a temporary place after its last section.
///
/// # Safety
/// `place` is temporary, its last section has ended, and the caller does not use it again.
#[cold]
pub(crate) unsafe fn end_temporary(inner: &Inner, place: NonNull<Place>) {
    // SAFETY: as the caller promises; no entry holds a temporary place.
    unsafe { give_back(inner, place) };
}

impl Local {
    /// Frees places in domains that are gone. The remembered place is of a living one, or is never asked for again.
    fn forget_the_dead(&mut self) {
        remember((0, None));
        self.places.retain(|_, entry| {
            let is_alive = entry.inner.strong_count() > 0;
            if !is_alive {
                // SAFETY: made by `join`; guards borrow their domain, so that none is left; the remembered pointer
                // was taken back above.
                drop(unsafe { Box::from_raw(entry.place.as_ptr()) });
            }
            is_alive
        });
        self.sweep_at = 16.max(self.places.len() * 2);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        remember((0, None));
        for entry in std::mem::take(&mut self.places).into_values() {
            // SAFETY: the entry kept it alive until here.
            let place = unsafe { entry.place.as_ref() };
            if place.is_inside() {
                // Its guard is in another thread-local, and ends it.
                place.is_temporary.set(true);
            } else if let Some(inner) = entry.inner.upgrade() {
                // SAFETY: made by `join`, outside of sections, and not remembered any more.
                unsafe { give_back(&inner, entry.place) };
            } else {
                // SAFETY: as above; the domain is gone, so that there is nothing to part from.
                drop(unsafe { Box::from_raw(entry.place.as_ptr()) });
            }
        }
    }
}
