//! A namespace and where the kernel shows it.

use std::ffi::OsString;
use std::fmt;
use std::sync::Arc;

use mounts::Namespace;
use sync::Mutex;
use sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::mount_node::MountNode;

/// Called once, when a clone has no user any more.
pub(crate) type OnUnused = Box<dyn FnOnce() + Send>;

/// A namespace and where the kernel shows it.
pub(crate) struct NamespaceView {
    pub(crate) namespace: Arc<Namespace>,
    pub(crate) root: Arc<MountNode>,
    /// The name in the root directory of the file system; empty for the first view.
    pub(crate) name: OsString,
    pub(super) is_shown: AtomicBool,
    lookups: AtomicU64,
    /// It had no user any more when it was handed over.
    pub(super) was_unused: bool,
    /// None: no callback was set, or it was called.
    on_unused: Mutex<Option<OnUnused>>,
}

impl fmt::Debug for NamespaceView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NamespaceView").field("name", &self.name).finish_non_exhaustive()
    }
}

impl NamespaceView {
    pub(super) fn new(namespace: Arc<Namespace>, root: Arc<MountNode>, name: OsString) -> Self {
        let (is_shown, lookups) = (AtomicBool::new(true), AtomicU64::new(0));
        let (was_unused, on_unused) = (false, Mutex::default());
        Self { namespace, root, name, is_shown, lookups, was_unused, on_unused }
    }

    /// As the program before had it: shown or not, and so many look-ups of its root that the kernel
    /// has.
    pub(super) fn resumed(self, is_shown: bool, lookups: u64) -> Self {
        let (is_shown, was_unused) = (AtomicBool::new(is_shown), lookups == 0);
        Self { is_shown, lookups: AtomicU64::new(lookups), was_unused, ..self }
    }

    /// The look-ups of its root that the kernel has.
    pub(super) fn lookups(&self) -> u64 {
        // ORDERING: Relaxed, no request is under way.
        self.lookups.load(Ordering::Relaxed)
    }

    /// Whether a mountpoint may still lead there.
    pub(crate) fn is_shown(&self) -> bool {
        // ORDERING: Relaxed, see `MountTree::release`.
        self.is_shown.load(Ordering::Relaxed)
    }

    /// The kernel is about to learn of the root.
    pub(crate) fn looked_up(&self) {
        // ORDERING: AcqRel here and in `drop_lookups`: the thread that counts the last look-up down
        // comes after all that counted up.
        self.lookups.fetch_add(1, Ordering::AcqRel);
    }

    /// The kernel has dropped `n` look-ups of the root: says whether these were the last.
    pub(super) fn drop_lookups(&self, n: u64) -> bool {
        // ORDERING: AcqRel, see `looked_up`.
        self.lookups.fetch_sub(n, Ordering::AcqRel) == n
    }

    /// See [`MountTree::when_unused`](super::mount_tree::MountTree::when_unused).
    pub(super) fn when_unused(&self, on_unused: OnUnused) {
        *self.on_unused.lock() = Some(on_unused);
    }

    /// The callback, to be called once.
    pub(super) fn take_on_unused(&self) -> Option<OnUnused> {
        self.on_unused.lock().take()
    }
}
