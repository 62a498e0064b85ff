//! An [`Arc`] that points to its value itself, not to the counts before it: entering a section
//! compares this pointer, and computes no address.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::inner::Inner;

/// A counted reference to a domain.
#[derive(Debug)]
pub(crate) struct Handle(NonNull<Inner>);

// SAFETY: as `Arc<Inner>`, which this is; the assertion below says that it may.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

const _: () = {
    const fn goes_to_other_threads<T: Send + Sync>() {}
    goes_to_other_threads::<Arc<Inner>>();
};

impl Handle {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        // SAFETY: an Arc's pointer is never null.
        Self(unsafe { NonNull::new_unchecked(Arc::into_raw(inner).cast_mut()) })
    }

    /// Whether both are the same domain.
    #[inline]
    pub(crate) fn is(&self, inner: &Inner) -> bool {
        std::ptr::eq(self.0.as_ptr(), inner)
    }
}

impl Deref for Handle {
    type Target = Inner;

    #[inline]
    fn deref(&self) -> &Inner {
        // SAFETY: this handle's count keeps it alive.
        unsafe { self.0.as_ref() }
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        // SAFETY: made by `Arc::into_raw`, and alive.
        unsafe { Arc::increment_strong_count(self.0.as_ptr()) };
        Self(self.0)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by `Arc::into_raw`; the count is this handle's.
        drop(unsafe { Arc::from_raw(self.0.as_ptr()) });
    }
}
