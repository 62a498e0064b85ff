//! A store for tests that calls a function before and after each call: to hang, to fail, to panic,
//! to count, and to make a race happen.

use std::sync::{Arc, RwLock};

use crate::around::{Around, AroundStore};
use crate::{Result, Store};

/// When the hook is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum At {
    /// Nothing was done yet; an error is the call's.
    Before,
    /// It was done; an error is the call's all the same.
    After,
}

type Hook = Box<dyn Fn(At, &'static str) -> Result<()> + Send + Sync>;

/// The function, if there is one.
#[derive(Default)]
pub struct Hooks(RwLock<Option<Arc<Hook>>>);

/// Another store, and a function that is called with each of its calls, by name.
pub type HookStore = AroundStore<Hooks>;

impl Hooks {
    /// Cloned, so that a hook may wait for other calls.
    fn get(&self) -> Option<Arc<Hook>> {
        self.0.read().expect("no panic under the lock").clone()
    }
}

impl std::fmt::Debug for Hooks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hooks").finish_non_exhaustive()
    }
}

impl Around for Hooks {
    fn call<T>(&self, op: &'static str, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let Some(hook) = self.get() else { return work() };
        hook(At::Before, op)?;
        let result = work();
        hook(At::After, op)?;
        result
    }

    /// An error of the hook has no meaning here.
    fn tell<T>(&self, op: &'static str, work: impl FnOnce() -> T) -> T {
        let hook = self.get();
        let tell = |at| {
            if let Some(hook) = &hook {
                let _no_result = hook(at, op);
            }
        };
        tell(At::Before);
        let result = work();
        tell(At::After);
        result
    }
}

impl AroundStore<Hooks> {
    /// Calls no function yet.
    #[must_use]
    pub fn new(inner: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self { inner, around: Arc::default() })
    }

    /// Calls `hook` from now on. An error that it gives is the call's.
    ///
    /// # Panics
    /// If a thread panicked while it set a hook.
    pub fn hook(&self, hook: impl Fn(At, &'static str) -> Result<()> + Send + Sync + 'static) {
        *self.around.0.write().expect("no panic under the lock") = Some(Arc::new(Box::new(hook)));
    }
}
