//! Which slot of a domain is this thread's.
//!
//! A thread gets a place at its first read section or call in a domain, and gives it back when it ends. Nothing is
//! registered by hand. What was used last is remembered in cells without destructors, so that entering costs
//! one comparison.
//!
//! # Who keeps a place alive
//! The thread's entry in `LOCAL` holds it; the remembered pointers are to such a place, and are taken back before it
//! goes. A place holds its domain weakly, so that the domain's address is not used again while the place is there: an
//! address that matches is that of the living domain behind the `&Domain`.
//!
//! # The end of a thread
//! `LOCAL`'s destructor gives the places back. Destructors of other thread-locals that run later, and read or call, get
//! a slot or a queue of their own for that one section or call (`Slot::is_temporary`). A section that is still open when
//! `LOCAL` goes keeps its slot in the same way.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ptr::{NonNull, null};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use sync::mutant::is_on;

use crate::domain::{Domain, Inner};
use crate::gate::Slot;
use crate::queue::Sender;

/// A thread's place in a domain.
#[derive(Debug)]
struct Place {
    inner: Weak<Inner>,
    /// What grace periods look at, once there was a section: who only calls is no reader.
    slot: OnceCell<Arc<Slot>>,
    /// The thread's callbacks, once there was one.
    sender: RefCell<Option<Sender>>,
}

impl Place {
    #[inline]
    fn with_sender<T>(&self, inner: &Inner, put_in: impl FnOnce(&mut Sender) -> T) -> T {
        put_in(self.sender.borrow_mut().get_or_insert_with(|| inner.callbacks.join()))
    }

    fn is_inside(&self) -> bool {
        self.slot.get().is_some_and(|slot| slot.is_inside())
    }
}

/// This thread's places, by the addresses of their domains: there may be thousands.
#[derive(Debug)]
struct Local {
    places: BTreeMap<usize, Rc<Place>>,
    /// Those in domains that are gone are looked for when there are so many.
    sweep_at: usize,
}

/// A domain, and what this thread has there; both null at first.
struct Last<T> {
    inner: *const Inner,
    own: *const T,
}

impl<T> Last<T> {
    const NONE: Self = Self { inner: null(), own: null() };
}

impl<T> Clone for Last<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Last<T> {}

sync::thread_local! {
    /// The slot of the last section.
    static LAST: Cell<Last<Slot>> = const { Cell::new(Last::NONE) };
    /// The slot in the default domain, once it was used: there is nothing to compare.
    static DEFAULT: Cell<*const Slot> = const { Cell::new(null()) };
    /// The place of the last call.
    static LAST_CALL: Cell<Last<Place>> = const { Cell::new(Last::NONE) };
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { places: BTreeMap::new(), sweep_at: 16 }) };
}

/// This thread's slot in a domain, which the caller keeps alive. It lives until the thread ends, or its last section
/// does if that is later.
#[inline]
pub(crate) fn slot(inner: &Inner) -> NonNull<Slot> {
    let last = LAST.with(Cell::get);
    if std::ptr::eq(last.inner, inner) {
        // SAFETY: beside a domain's address there is that of a slot.
        return unsafe { NonNull::new_unchecked(last.own.cast_mut()) };
    }
    slot_of_another(inner)
}

#[cold]
fn slot_of_another(inner: &Inner) -> NonNull<Slot> {
    let slot = match find(inner) {
        Some(place) => {
            let own = Arc::as_ptr(place.slot.get_or_init(|| join(inner)));
            LAST.with(|last| last.set(Last { inner, own }));
            own
        }
        None => {
            let slot = join(inner);
            slot.make_temporary();
            // The section's end takes it back.
            Arc::into_raw(slot)
        }
    };
    // SAFETY: never null.
    unsafe { NonNull::new_unchecked(slot.cast_mut()) }
}

/// This thread's slot in the default domain. It lives as that of [`slot`] does.
#[inline]
pub(crate) fn default_slot() -> NonNull<Slot> {
    NonNull::new(DEFAULT.with(Cell::get).cast_mut()).unwrap_or_else(find_default_slot)
}

#[cold]
fn find_default_slot() -> NonNull<Slot> {
    let inner: &Inner = &Domain::global().inner;
    let slot = slot(inner);
    // Not while the thread is ending.
    if std::ptr::eq(LAST.with(Cell::get).inner, inner) {
        DEFAULT.with(|default| default.set(slot.as_ptr()));
    }
    slot
}

/// Finds or makes this thread's place; `None`: the thread is ending.
fn find(inner: &Inner) -> Option<Rc<Place>> {
    let address = std::ptr::from_ref(inner).addr();
    let found = LOCAL.try_with(|local| {
        let mut local = local.borrow_mut();
        if !local.places.contains_key(&address) && local.places.len() >= local.sweep_at {
            local.forget_the_dead();
        }
        let make = || {
            Rc::new(Place { inner: inner.this.clone(), slot: OnceCell::new(), sender: RefCell::new(None) })
        };
        Rc::clone(local.places.entry(address).or_insert_with(make))
    });
    found.ok()
}

/// Forgets what was remembered. Does nothing where the thread is ending: nobody looks there any more.
fn forget_the_last() {
    let _ = LAST.try_with(|last| last.set(Last::NONE));
    let _ = LAST_CALL.try_with(|last| last.set(Last::NONE));
}

/// A slot of the calling thread's.
fn join(inner: &Inner) -> Arc<Slot> {
    inner.gate.new_slot(name_of_this_thread())
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

/// Calls `put_in` with this thread's end of its queue, and gives what that gives.
#[inline]
pub(crate) fn with_sender<T>(inner: &Inner, put_in: impl FnOnce(&mut Sender) -> T) -> T {
    let last = LAST_CALL.with(Cell::get);
    if std::ptr::eq(last.inner, inner) {
        // SAFETY: remembered: this thread's, and alive until `LOCAL` goes.
        return unsafe { &*last.own }.with_sender(inner, put_in);
    }
    with_sender_of_another(inner, put_in)
}

#[cold]
fn with_sender_of_another<T>(inner: &Inner, put_in: impl FnOnce(&mut Sender) -> T) -> T {
    if let Some(place) = find(inner) {
        LAST_CALL.with(|last| last.set(Last { inner, own: Rc::as_ptr(&place) }));
        return place.with_sender(inner, put_in);
    }
    let mut sender = inner.callbacks.join();
    let result = put_in(&mut sender);
    inner.callbacks.part(sender);
    result
}

/// Whether the thread may wait for callbacks: it is in no section, of whichever domain, and not ending.
/// (A callback of this domain may wait for a grace period of the other one.)
pub(crate) fn may_wait(inner: &Inner) -> bool {
    if is_on("rcu-waits-in-section-of-another") {
        return !is_inside(inner) && LOCAL.try_with(|_| ()).is_ok();
    }
    LOCAL.try_with(|local| !local.borrow().places.values().any(|place| place.is_inside())).unwrap_or(false)
}

/// Whether the calling thread is in a section of this domain.
pub(crate) fn is_inside(inner: &Inner) -> bool {
    let last = LAST.with(Cell::get);
    if std::ptr::eq(last.inner, inner) {
        // SAFETY: remembered: this thread's, and alive until `LOCAL` goes.
        return unsafe { &*last.own }.is_inside();
    }
    let address = std::ptr::from_ref(inner).addr();
    let look =
        |local: &RefCell<Local>| local.borrow().places.get(&address).is_some_and(|place| place.is_inside());
    // While the thread ends each section has a place of its own.
    LOCAL.try_with(look).unwrap_or_else(|_| inner.gate.has_inside(std::thread::current().id()))
}

/// Ends the life of a temporary slot after its last section.
///
/// # Safety
/// `slot` is temporary, its last section has ended, and the caller does not use it again.
#[cold]
pub(crate) unsafe fn end_temporary(inner: &Inner, slot: NonNull<Slot>) {
    // SAFETY: as the caller promises; who made it temporary left its count behind.
    let slot = unsafe { Arc::from_raw(slot.as_ptr()) };
    inner.gate.part(&slot);
}

impl Local {
    /// Frees places in domains that are gone. Guards borrow their domain, so that none is left.
    fn forget_the_dead(&mut self) {
        forget_the_last();
        self.places.retain(|_, place| place.inner.strong_count() > 0);
        self.sweep_at = 16.max(self.places.len() * 2);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        forget_the_last();
        let _ = DEFAULT.try_with(|default| default.set(null()));
        for place in std::mem::take(&mut self.places).into_values() {
            let Place { inner, slot, sender } = Rc::into_inner(place).expect("nobody else holds it");
            // Else the domain is gone, and there is nothing to part from.
            let Some(inner) = inner.upgrade() else { continue };
            if let Some(sender) = sender.into_inner() {
                inner.callbacks.part(sender);
            }
            let Some(slot) = slot.into_inner() else { continue };
            if slot.is_inside() {
                // Its guard is in another thread-local, and ends it.
                slot.make_temporary();
                let _ = Arc::into_raw(slot);
            } else {
                inner.gate.part(&slot);
            }
        }
    }
}
