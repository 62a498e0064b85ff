//! Which slot of a domain is this thread's.
//!
//! A thread gets a place at its first read section or call in a domain, and gives it back when it ends. Nothing is
//! registered by hand. The place used last is remembered in a cell without a destructor, so that entering costs
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

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::ptr::{NonNull, null};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use crate::domain::{Domain, Inner};
use crate::gate::Slot;
use crate::queue::Sender;

/// A thread's place in a domain.
#[derive(Debug)]
struct Place {
    inner: Weak<Inner>,
    /// What grace periods look at.
    slot: Arc<Slot>,
    /// The thread's callbacks, once there was one.
    sender: RefCell<Option<Sender>>,
}

impl Place {
    #[inline]
    fn with_sender<T>(&self, inner: &Inner, put_in: impl FnOnce(&mut Sender) -> T) -> T {
        put_in(self.sender.borrow_mut().get_or_insert_with(|| inner.callbacks.join()))
    }
}

/// This thread's places, by the addresses of their domains: there may be thousands.
#[derive(Debug)]
struct Local {
    places: BTreeMap<usize, Rc<Place>>,
    /// Those in domains that are gone are looked for when there are so many.
    sweep_at: usize,
}

/// The place used last.
#[derive(Clone, Copy)]
struct Last {
    inner: *const Inner,
    /// Of this place.
    slot: *const Slot,
    place: *const Place,
}

impl Last {
    const NONE: Self = Self { inner: null(), slot: null(), place: null() };
}

sync::thread_local! {
    static LAST: Cell<Last> = const { Cell::new(Last::NONE) };
    /// The place in the default domain, once it was used: there is nothing to compare.
    static DEFAULT: Cell<Last> = const { Cell::new(Last::NONE) };
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { places: BTreeMap::new(), sweep_at: 16 }) };
}

/// This thread's slot in a domain, which the caller keeps alive. It lives until the thread ends, or its last section
/// does if that is later.
#[inline]
pub(crate) fn slot(inner: &Inner) -> NonNull<Slot> {
    let last = LAST.with(Cell::get);
    if last.inner == std::ptr::from_ref(inner) {
        // SAFETY: beside a domain's address there is that of a slot.
        return unsafe { NonNull::new_unchecked(last.slot.cast_mut()) };
    }
    slot_of_another(inner)
}

#[cold]
fn slot_of_another(inner: &Inner) -> NonNull<Slot> {
    let slot = match find(inner) {
        // SAFETY: as in `slot`.
        Some(last) => return unsafe { NonNull::new_unchecked(last.slot.cast_mut()) },
        None => join(inner),
    };
    slot.make_temporary();
    // SAFETY: never null. The section's end takes it back.
    unsafe { NonNull::new_unchecked(Arc::into_raw(slot).cast_mut()) }
}

/// The default domain, and this thread's slot there.
#[inline]
pub(crate) fn default_slot() -> (&'static Inner, NonNull<Slot>) {
    let last = DEFAULT.with(Cell::get);
    if last.slot.is_null() {
        return find_default_slot();
    }
    // SAFETY: the default domain is never dropped; not null, as was just asked.
    unsafe { (&*last.inner, NonNull::new_unchecked(last.slot.cast_mut())) }
}

#[cold]
fn find_default_slot() -> (&'static Inner, NonNull<Slot>) {
    let inner: &'static Inner = &Domain::global().inner;
    let slot = slot_of_another(inner);
    let last = LAST.with(Cell::get);
    if std::ptr::eq(last.inner, inner) {
        DEFAULT.with(|default| default.set(last));
    }
    (inner, slot)
}

/// Finds or makes this thread's place, and remembers it; `None`: the thread is ending.
fn find(inner: &Inner) -> Option<Last> {
    let address = std::ptr::from_ref(inner);
    let found = LOCAL.try_with(|local| {
        let mut local = local.borrow_mut();
        if !local.places.contains_key(&address.addr()) && local.places.len() >= local.sweep_at {
            local.forget_the_dead();
        }
        let place = local.places.entry(address.addr()).or_insert_with(|| {
            Rc::new(Place { inner: inner.this.clone(), slot: join(inner), sender: RefCell::new(None) })
        });
        Last { inner: address, slot: Arc::as_ptr(&place.slot), place: Rc::as_ptr(place) }
    });
    let found = found.ok()?;
    remember(found);
    Some(found)
}

/// Does nothing where the thread is ending: nobody looks there any more.
fn remember(last: Last) {
    let _ = LAST.try_with(|remembered| remembered.set(last));
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
    let last = LAST.with(Cell::get);
    if std::ptr::eq(last.inner, inner) {
        // SAFETY: remembered: this thread's, and alive until `LOCAL` goes.
        return unsafe { &*last.place }.with_sender(inner, put_in);
    }
    with_sender_of_another(inner, put_in)
}

#[cold]
fn with_sender_of_another<T>(inner: &Inner, put_in: impl FnOnce(&mut Sender) -> T) -> T {
    if let Some(found) = find(inner) {
        // SAFETY: just found: this thread's, and alive until `LOCAL` goes.
        return unsafe { &*found.place }.with_sender(inner, put_in);
    }
    let mut sender = inner.callbacks.join();
    let result = put_in(&mut sender);
    inner.callbacks.part(sender);
    result
}

/// Whether the thread may wait for callbacks of this domain: it is neither in a section of it nor ending.
pub(crate) fn may_wait(inner: &Inner) -> bool {
    !is_inside(inner) && LOCAL.try_with(|_| ()).is_ok()
}

/// Whether the calling thread is in a section of this domain.
pub(crate) fn is_inside(inner: &Inner) -> bool {
    let address = std::ptr::from_ref(inner);
    let last = LAST.with(Cell::get);
    if last.inner == address {
        // SAFETY: remembered: this thread's, and alive until `LOCAL` goes.
        return unsafe { &*last.slot }.is_inside();
    }
    let look = |local: &RefCell<Local>| {
        local.borrow().places.get(&address.addr()).is_some_and(|place| place.slot.is_inside())
    };
    LOCAL.try_with(look).unwrap_or(false)
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
        remember(Last::NONE);
        self.places.retain(|_, place| place.inner.strong_count() > 0);
        self.sweep_at = 16.max(self.places.len() * 2);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        remember(Last::NONE);
        let _ = DEFAULT.try_with(|default| default.set(Last::NONE));
        for place in std::mem::take(&mut self.places).into_values() {
            let Place { inner, slot, sender } = Rc::into_inner(place).expect("nobody else holds it");
            // Else the domain is gone, and there is nothing to part from.
            let Some(inner) = inner.upgrade() else { continue };
            if let Some(sender) = sender.into_inner() {
                inner.callbacks.part(sender);
            }
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
