//! One callback, in four machine words.
//!
//! A small closure lies in the words themselves; a larger one in a box. A box that is to be dropped
//! is two steps: its value is dropped (`Work::run`) by the domain's worker, as a closure is run.
//! Its memory is given back (`Work::free`) apart from that, by the thread that it came from where
//! that is still there: allocators are several times slower where one thread takes memory and
//! another gives it back.

use std::alloc::{Layout, dealloc};
use std::marker::PhantomData;
use std::mem::{MaybeUninit, align_of, size_of};

/// Three words: a closure of a pointer and a fat pointer fits.
type Data = MaybeUninit<[usize; 3]>;

/// A closure to run, or a box to drop and to free. Forgotten unless it is run and freed.
#[derive(Debug)]
pub struct Work {
    how: &'static How,
    data: Data,
}

/// The meaning of the words of a [`Work`].
#[derive(Debug)]
struct How {
    run: unsafe fn(&mut Data),
    free: Option<unsafe fn(&mut Data)>,
}

// SAFETY: made of a closure or a box that is `Send`.
unsafe impl Send for Work {}

impl Work {
    /// Calls `work`.
    #[inline]
    pub fn call<F: FnOnce() + Send + 'static>(work: F) -> Self {
        if size_of::<F>() > size_of::<Data>() || align_of::<F>() > align_of::<Data>() {
            return Self::call(boxed(work));
        }
        let mut data = Data::uninit();
        // SAFETY: it fits, as was just asked.
        unsafe { data.as_mut_ptr().cast::<F>().write(work) };
        Self { how: Closure::<F>::HOW, data }
    }

    /// Drops the value, and frees the box.
    #[inline]
    pub fn drop_box<T: Send + 'static>(value: Box<T>) -> Self {
        // SAFETY: ours alone.
        unsafe { Self::drop_raw(Box::into_raw(value)) }
    }

    /// As [`drop_box`](Self::drop_box), for a box that readers may still see until this runs.
    ///
    /// # Safety
    /// `value` was made of a box. When this runs no other thread uses it.
    #[inline]
    pub unsafe fn drop_raw<T: Send + 'static>(value: *mut T) -> Self {
        let mut data = Data::uninit();
        // SAFETY: a pointer fits.
        unsafe { data.as_mut_ptr().cast::<*mut T>().write(value) };
        Self { how: Boxed::<T>::HOW, data }
    }

    /// Runs it.
    ///
    /// # Safety
    /// Not called before.
    pub(crate) unsafe fn run(&mut self) {
        // SAFETY: `how` and `data` were made for each other, and this is the only call.
        unsafe { (self.how.run)(&mut self.data) };
    }

    /// Gives its memory back.
    ///
    /// # Safety
    /// It has run, and this was not called before.
    pub(crate) unsafe fn free(&mut self) {
        if let Some(free) = self.how.free {
            // SAFETY: as the caller promises.
            unsafe { free(&mut self.data) };
        }
    }
}

/// Puts a large closure into a box. Not generic over its result, so that `call` ends with this one.
fn boxed<F: FnOnce() + Send + 'static>(work: F) -> Box<dyn FnOnce() + Send> {
    Box::new(work)
}

struct Closure<F>(PhantomData<F>);

impl<F: FnOnce()> Closure<F> {
    const HOW: &'static How = &How { run: Self::run, free: None };

    unsafe fn run(data: &mut Data) {
        // SAFETY: an `F` was written there, and is taken once.
        let work = unsafe { data.as_mut_ptr().cast::<F>().read() };
        work();
    }
}

struct Boxed<T>(PhantomData<T>);

impl<T> Boxed<T> {
    const HOW: &'static How = &How { run: Self::run, free: Some(Self::free) };

    /// # Safety
    /// `data` is that of a box.
    unsafe fn pointer(data: &mut Data) -> *mut T {
        // SAFETY: as the caller promises, a pointer was written there.
        unsafe { data.as_mut_ptr().cast::<*mut T>().read() }
    }

    unsafe fn run(data: &mut Data) {
        // SAFETY: the value of a box that is ours alone, dropped once.
        unsafe { Self::pointer(data).drop_in_place() };
    }

    unsafe fn free(data: &mut Data) {
        if size_of::<T>() > 0 {
            // SAFETY: the memory of a box whose value has been dropped, freed once.
            unsafe { dealloc(Self::pointer(data).cast(), Layout::new::<T>()) };
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn finish(mut work: Work) {
        // SAFETY: once each, in this order.
        unsafe {
            work.run();
            work.free();
        }
    }

    #[test]
    fn closures_of_all_sizes_run_once() {
        let counted = Arc::new(());
        let (small, large) = (Arc::clone(&counted), [(); 9].map(|()| Arc::clone(&counted)));
        #[repr(align(64))]
        struct Aligned(Arc<()>);
        let aligned = Aligned(Arc::clone(&counted));
        let works = [
            Work::call(|| ()),
            Work::call(move || drop(small)),
            Work::call(move || drop(large)),
            Work::call(move || assert_eq!(Arc::strong_count(&{ aligned }.0), 2)),
        ];
        assert_eq!(Arc::strong_count(&counted), 12);
        works.into_iter().for_each(finish);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn boxes_are_dropped_and_freed() {
        let counted = Arc::new(());
        finish(Work::drop_box(Box::new(Arc::clone(&counted))));
        finish(Work::drop_box(Box::new((Arc::clone(&counted), [7_u8; 1000]))));
        finish(Work::drop_box(Box::new(())));
        assert_eq!(Arc::strong_count(&counted), 1);
    }
}
