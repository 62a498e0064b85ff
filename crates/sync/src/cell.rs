//! A cell that the model checker watches.

#[cfg(loom)]
pub use loom::cell::UnsafeCell;

#[cfg(not(loom))]
pub use plain::UnsafeCell;

#[cfg(not(loom))]
mod plain {
    /// Memory that several threads access, one at a time by a protocol of theirs. Loom reports two
    /// accesses at once.
    #[derive(Debug, Default)]
    #[repr(transparent)]
    pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

    impl<T> UnsafeCell<T> {
        /// A new one.
        pub const fn new(value: T) -> Self {
            Self(std::cell::UnsafeCell::new(value))
        }

        /// Gives `f` a pointer to read from while it runs.
        #[inline]
        pub fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
            f(self.0.get())
        }

        /// Gives `f` a pointer to write to while it runs.
        #[inline]
        pub fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
            f(self.0.get())
        }
    }
}
