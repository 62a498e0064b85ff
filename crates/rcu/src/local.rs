//! The calling thread's reader in a domain, and its callbacks there.
//!
//! A thread is registered at its first read section or callback in a domain, and unregistered when
//! it ends; callers do nothing for it. The last registration is cached in cells without
//! destructors, so that entering a section costs one comparison.
//!
//! # What keeps a registration alive
//! The thread's entry in `LOCAL` owns it. The cached pointers are to such a registration, and are
//! cleared before it is dropped. A registration holds its domain weakly, so that the domain's
//! address is not used again while the registration is there: an address that matches is that of
//! the living domain behind the `&Domain`.
//!
//! # The end of a thread
//! `LOCAL`'s destructor unregisters the thread. Destructors of other thread-locals may run later,
//! and begin sections or queue callbacks: each of these gets a reader or a list of its own
//! (`Reader::make_temporary`). A section that is still open when `LOCAL` is dropped keeps its
//! reader in the same way.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::BTreeMap;
use std::ptr::{NonNull, null};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use sync::mutant::is_on;

use crate::callback_list::Producer;
use crate::gp::Reader;
use crate::inner::Inner;

/// A thread's registration in a domain.
#[derive(Debug)]
struct Registration {
    inner: Weak<Inner>,
    /// The entry that grace periods scan, once there was a section: a thread that only queues
    /// callbacks is no reader.
    reader: OnceCell<Arc<Reader>>,
    /// The thread's callbacks, once there was one.
    producer: RefCell<Option<Producer>>,
}

impl Registration {
    #[inline]
    fn with_producer<T>(&self, inner: &Inner, put_in: impl FnOnce(&mut Producer) -> T) -> T {
        put_in(self.producer.borrow_mut().get_or_insert_with(|| inner.callbacks.register()))
    }

    fn is_inside(&self) -> bool {
        self.reader.get().is_some_and(|reader| reader.is_inside())
    }
}

/// This thread's registrations, by the addresses of their domains: there may be thousands.
#[derive(Debug)]
struct Local {
    registrations: BTreeMap<usize, Rc<Registration>>,
    /// Those in domains that are gone are looked for when there are so many.
    sweep_at: usize,
}

/// A domain, and what this thread has there; both null at first.
struct Cached<T> {
    inner: *const Inner,
    value: *const T,
}

impl<T> Cached<T> {
    const NONE: Self = Self { inner: null(), value: null() };
}

impl<T> Clone for Cached<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Cached<T> {}

sync::thread_local! {
    /// The reader of the last section.
    static LAST: Cell<Cached<Reader>> = const { Cell::new(Cached::NONE) };
    /// The reader in the default domain, once it was used: there is nothing to compare.
    static DEFAULT: Cell<*const Reader> = const { Cell::new(null()) };
    /// The registration of the last call.
    static LAST_CALL: Cell<Cached<Registration>> = const { Cell::new(Cached::NONE) };
    static LOCAL: RefCell<Local> = const { RefCell::new(Local { registrations: BTreeMap::new(), sweep_at: 16 }) };
}

/// This thread's reader in a domain, which the caller keeps alive. It lives until the thread ends,
/// or its last section does if that is later.
#[inline]
pub(crate) fn reader(inner: &Inner) -> NonNull<Reader> {
    let last = LAST.with(Cell::get);
    if std::ptr::eq(last.inner, inner) {
        // SAFETY: beside a domain's address there is that of a reader.
        return unsafe { NonNull::new_unchecked(last.value.cast_mut()) };
    }
    reader_of_another(inner)
}

#[cold]
fn reader_of_another(inner: &Inner) -> NonNull<Reader> {
    let reader = match find(inner) {
        Some(registration) => {
            let value = Arc::as_ptr(registration.reader.get_or_init(|| register(inner)));
            LAST.with(|last| last.set(Cached { inner, value }));
            value
        }
        None => {
            let reader = register(inner);
            reader.make_temporary();
            // The section's end takes it back.
            Arc::into_raw(reader)
        }
    };
    // SAFETY: never null.
    unsafe { NonNull::new_unchecked(reader.cast_mut()) }
}

/// This thread's reader in the default domain, `global`. It lives as that of [`reader`] does.
#[inline]
pub(crate) fn default_reader(global: impl FnOnce() -> &'static Inner) -> NonNull<Reader> {
    NonNull::new(DEFAULT.with(Cell::get).cast_mut()).unwrap_or_else(|| find_default_reader(global()))
}

#[cold]
fn find_default_reader(inner: &Inner) -> NonNull<Reader> {
    let reader = reader(inner);
    // Not while the thread is ending.
    if std::ptr::eq(LAST.with(Cell::get).inner, inner) {
        DEFAULT.with(|default| default.set(reader.as_ptr()));
    }
    reader
}

/// Finds or makes this thread's registration; `None`: the thread is ending.
fn find(inner: &Inner) -> Option<Rc<Registration>> {
    let address = std::ptr::from_ref(inner).addr();
    let found = LOCAL.try_with(|local| {
        let mut local = local.borrow_mut();
        if !local.registrations.contains_key(&address) && local.registrations.len() >= local.sweep_at {
            local.sweep();
        }
        let make = || {
            Rc::new(Registration {
                inner: inner.this.clone(),
                reader: OnceCell::new(),
                producer: RefCell::new(None),
            })
        };
        Rc::clone(local.registrations.entry(address).or_insert_with(make))
    });
    found.ok()
}

/// Clears the cached pointers. Does nothing where the thread is ending: they are not used any more.
fn clear_cache() {
    let _ = LAST.try_with(|last| last.set(Cached::NONE));
    let _ = LAST_CALL.try_with(|last| last.set(Cached::NONE));
}

/// A reader of the calling thread's.
fn register(inner: &Inner) -> Arc<Reader> {
    inner.gp.new_reader(name_of_this_thread())
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

/// Calls `put_in` with this thread's end of its queue, and returns the result.
#[inline]
pub(crate) fn with_producer<T>(inner: &Inner, put_in: impl FnOnce(&mut Producer) -> T) -> T {
    let last = LAST_CALL.with(Cell::get);
    if std::ptr::eq(last.inner, inner) {
        // SAFETY: remembered: this thread's, and alive until `LOCAL` goes.
        return unsafe { &*last.value }.with_producer(inner, put_in);
    }
    with_producer_of_another(inner, put_in)
}

#[cold]
fn with_producer_of_another<T>(inner: &Inner, put_in: impl FnOnce(&mut Producer) -> T) -> T {
    if let Some(registration) = find(inner) {
        LAST_CALL.with(|last| last.set(Cached { inner, value: Rc::as_ptr(&registration) }));
        return registration.with_producer(inner, put_in);
    }
    let mut producer = inner.callbacks.register();
    let result = put_in(&mut producer);
    inner.callbacks.unregister(producer);
    result
}

/// Whether the thread may wait for callbacks: it is in no section of any domain, and not ending. (A
/// callback of this domain may wait for a grace period of the other one.)
pub(crate) fn may_wait(inner: &Inner) -> bool {
    if is_on("rcu-waits-in-section-of-another") {
        return !is_inside(inner) && LOCAL.try_with(|_| ()).is_ok();
    }
    LOCAL
        .try_with(|local| !local.borrow().registrations.values().any(|registration| registration.is_inside()))
        .unwrap_or(false)
}

/// Whether the calling thread is in a section of this domain.
pub(crate) fn is_inside(inner: &Inner) -> bool {
    let last = LAST.with(Cell::get);
    if std::ptr::eq(last.inner, inner) {
        // SAFETY: remembered: this thread's, and alive until `LOCAL` goes.
        return unsafe { &*last.value }.is_inside();
    }
    let address = std::ptr::from_ref(inner).addr();
    let is_inside = |local: &RefCell<Local>| {
        local.borrow().registrations.get(&address).is_some_and(|registration| registration.is_inside())
    };
    // While the thread ends each section has a reader of its own.
    LOCAL.try_with(is_inside).unwrap_or_else(|_| inner.gp.has_inside(std::thread::current().id()))
}

/// Ends the life of a temporary reader after its last section.
///
/// # Safety
/// `reader` is temporary, its last section has ended, and the caller does not use it again.
#[cold]
pub(crate) unsafe fn end_temporary(inner: &Inner, reader: NonNull<Reader>) {
    // SAFETY: as the caller promises; its count was left behind when it became temporary.
    let reader = unsafe { Arc::from_raw(reader.as_ptr()) };
    inner.gp.unregister(&reader);
}

impl Local {
    /// Drops registrations in domains that are gone. Guards borrow their domain, so that none is
    /// open.
    fn sweep(&mut self) {
        clear_cache();
        self.registrations.retain(|_, registration| registration.inner.strong_count() > 0);
        self.sweep_at = 16.max(self.registrations.len() * 2);
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        clear_cache();
        let _ = DEFAULT.try_with(|default| default.set(null()));
        for registration in std::mem::take(&mut self.registrations).into_values() {
            let Registration { inner, reader, producer } =
                Rc::into_inner(registration).expect("this is its only owner");
            // Otherwise the domain is gone, and with it what the thread was registered in.
            let Some(inner) = inner.upgrade() else { continue };
            if let Some(producer) = producer.into_inner() {
                inner.callbacks.unregister(producer);
            }
            let Some(reader) = reader.into_inner() else { continue };
            if reader.is_inside() {
                // Its guard is in another thread-local, and ends it.
                reader.make_temporary();
                let _ = Arc::into_raw(reader);
            } else {
                inner.gp.unregister(&reader);
            }
        }
    }
}
