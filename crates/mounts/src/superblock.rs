//! Superblocks: the things that are mounted. Analogous to Linux's `struct super_block`.
//!
//! A superblock has names and inodes of its own; this crate knows neither its data nor where that
//! is stored. It may be mounted on several mountpoints; it is shut down when the last of its mounts
//! is gone.

use std::ffi::OsStr;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use sync::{Condvar, Mutex};

use crate::error::{Error, Result};

/// A superblock's own number for a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Inode(pub u64);

impl Inode {
    /// The root's number in most superblocks.
    pub const ROOT: Self = Self(1);
}

/// The kind of an inode, as far as a walk has to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Names can be looked up in it.
    Directory,
    /// Leads elsewhere.
    Symlink,
    /// The end of a path.
    Other,
}

/// The inode that a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundInode {
    /// The inode.
    pub inode: Inode,
    /// Its kind.
    pub kind: Kind,
}

/// A thing that can be mounted.
///
/// The methods that end in `_rcu` are called in a read section, without a reference: they must not
/// wait, take no lock that is held for long, and return `None` where they would have to. They may
/// be called beside and after [`shutdown`](Self::shutdown); results from then are thrown away, as
/// the walk finds that the mount is gone. The caller of any other method has a reference, and calls
/// none after `shutdown` has begun.
///
/// A superblock without names can be mounted, too: walks find nothing in it.
pub trait Superblock: Send + Sync + fmt::Debug + 'static {
    /// Its root directory.
    fn root(&self) -> Inode {
        Inode::ROOT
    }

    /// The entry `name` of `dir`; `name` is never `.` or `..`. May wait.
    ///
    /// # Errors
    /// [`Error::NoEntry`], and errors of the superblock's own.
    fn lookup(&self, dir: Inode, name: &OsStr) -> Result<FoundInode> {
        let _ = dir;
        Err(Error::NoEntry { name: name.to_string_lossy().into_owned() })
    }

    /// Like [`lookup`](Self::lookup), from memory; `None`: unknown.
    fn lookup_rcu(&self, dir: Inode, name: &OsStr) -> Option<Result<FoundInode>> {
        let _ = (dir, name);
        None
    }

    /// The directory that `dir`, not the root, is in. May wait.
    ///
    /// # Errors
    /// Errors of the superblock's own.
    fn parent(&self, dir: Inode) -> Result<Inode> {
        let _ = dir;
        Ok(self.root())
    }

    /// Like [`parent`](Self::parent), from memory; `None`: unknown.
    fn parent_rcu(&self, dir: Inode) -> Option<Inode> {
        let _ = dir;
        None
    }

    /// Where a symbolic link leads. May wait.
    ///
    /// # Errors
    /// Errors of the superblock's own.
    fn read_link(&self, link: Inode) -> Result<PathBuf> {
        let _ = link;
        Err(Error::Failed { what: "there are no symbolic links".into() })
    }

    /// Like [`read_link`](Self::read_link), from memory; `None`: unknown.
    fn read_link_rcu(&self, link: Inode) -> Option<Result<PathBuf>> {
        let _ = link;
        None
    }

    /// Whether `inode` is `dir`, or below it. Called with the lock of the tree held: must not wait.
    /// If the answer is not known it is no: then a mount there is not propagated to mounts that
    /// show only `dir`.
    fn is_below(&self, inode: Inode, dir: Inode) -> bool {
        let mut at = inode;
        // A tree that is deeper than this is taken for one that goes in circles.
        for _ in 0..4096 {
            if at == dir {
                return true;
            }
            if at == self.root() {
                return false;
            }
            match self.parent_rcu(at) {
                Some(parent) => at = parent,
                None => return false,
            }
        }
        false
    }

    /// The last mounts are being taken away, and the unmount has to wait until walks have left:
    /// slow work can be done meanwhile. These walks may still use the superblock.
    /// [`shutdown`](Self::shutdown) follows, and reports failures. Only called where
    /// [`may_wait`](Self::may_wait) returns `true`.
    fn flush(&self) {}

    /// An unmount with force: callers that wait for the medium should get an error.
    fn force(&self) {}

    /// Whether [`shutdown`](Self::shutdown) may have to wait, for a medium say. Several such
    /// superblocks that go together are shut down by several threads; those that never wait are not
    /// worth a thread.
    fn may_wait(&self) -> bool {
        true
    }

    /// Called once, when the last mount is gone: write everything, then release the medium.
    fn shutdown(&self);
}

/// A superblock, the number of its mounts, and its other users. Clones are the same one.
#[derive(Debug, Clone)]
pub struct SuperblockRef(Arc<SuperblockInner>);

#[derive(Debug)]
struct SuperblockInner {
    superblock: Arc<dyn Superblock>,
    state: Mutex<State>,
    active_ref_dropped: Condvar,
}

#[derive(Debug, Default)]
struct State {
    mounts: usize,
    /// Open files, say: through any of its mounts.
    active_refs: usize,
    /// Counts active references that began: an expiry mark is older than the last one, or not.
    activations: u64,
    was_mounted: bool,
    /// Its last mounts are being taken away synchronously: no new active reference is given.
    is_closed: bool,
    is_ended: bool,
}

impl State {
    /// Ends it with its last user; returns whether the caller has to shut the superblock down.
    fn end_if_unused(&mut self) -> bool {
        let ends = self.was_mounted && self.mounts == 0 && self.active_refs == 0 && !self.is_ended;
        self.is_ended |= ends;
        ends
    }
}

/// Uses a superblock, through any of its mounts: an open file. Analogous to a reference counted in
/// Linux's `s_active`.
///
/// A synchronous unmount that would take its last mount is refused; after a lazy one, and after the
/// end of the namespace, the drop of the last one shuts the superblock down before it returns.
#[derive(Debug)]
pub struct ActiveRef(SuperblockRef);

impl Drop for ActiveRef {
    fn drop(&mut self) {
        let ends = {
            let mut state = self.0.0.state.lock();
            state.active_refs -= 1;
            state.end_if_unused()
        };
        self.0.0.active_ref_dropped.notify_all();
        if ends {
            self.0.0.superblock.shutdown();
        }
    }
}

impl SuperblockRef {
    /// A superblock that is not mounted yet. There must be only one `SuperblockRef` for each
    /// superblock: the last of *its* mounts ends in the shutdown.
    #[must_use]
    pub fn new(superblock: Arc<dyn Superblock>) -> Self {
        Self(Arc::new(SuperblockInner {
            superblock,
            state: Mutex::new(State::default()),
            active_ref_dropped: Condvar::new(),
        }))
    }

    /// A superblock that was in use before, in another program say: it has these active references,
    /// and no mount yet. With none it is one that is not mounted yet.
    #[must_use]
    pub fn resume(superblock: Arc<dyn Superblock>, active_refs: usize) -> (Self, Vec<ActiveRef>) {
        let this = Self::new(superblock);
        {
            let mut state = this.0.state.lock();
            state.active_refs = active_refs;
            state.activations = active_refs as u64;
            state.was_mounted = active_refs > 0;
        }
        let refs = (0..active_refs).map(|_| ActiveRef(this.clone())).collect();
        (this, refs)
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Arc<dyn Superblock> {
        &self.0.superblock
    }

    /// The number of its mounts.
    #[must_use]
    pub fn mounts(&self) -> usize {
        self.0.state.lock().mounts
    }

    /// The number of [`ActiveRef`]s.
    #[must_use]
    pub fn active_refs(&self) -> usize {
        self.0.state.lock().active_refs
    }

    /// Keeps it active as long as the reference is kept.
    ///
    /// # Errors
    /// [`Error::Ended`] if it has no mount (any more), or its last one is being unmounted.
    pub fn get_active(&self) -> Result<ActiveRef> {
        let mut state = self.0.state.lock();
        if state.is_closed || state.mounts == 0 {
            return Err(Error::Ended);
        }
        state.active_refs += 1;
        state.activations += 1;
        Ok(ActiveRef(self.clone()))
    }

    /// The number of active references that were given so far.
    pub(crate) fn activations(&self) -> u64 {
        self.0.state.lock().activations
    }

    /// Waits until there is no active reference, or `until`; returns whether there is none.
    #[must_use]
    pub fn wait_inactive(&self, until: Instant) -> bool {
        let mut state = self.0.state.lock();
        while state.active_refs > 0 {
            if self.0.active_ref_dropped.wait_until(&mut state, until) {
                return state.active_refs == 0;
            }
        }
        true
    }

    /// A synchronous unmount is about to take `leaving` mounts. If these are all, there may be no
    /// active reference, and no new one is given. Otherwise returns how many there are.
    pub(crate) fn close(&self, leaving: usize) -> std::result::Result<(), usize> {
        let mut state = self.0.state.lock();
        if leaving < state.mounts {
            return Ok(());
        }
        if state.active_refs > 0 {
            return Err(state.active_refs);
        }
        state.is_closed = true;
        Ok(())
    }

    /// It stays mounted after all.
    pub(crate) fn reopen(&self) {
        self.0.state.lock().is_closed = false;
    }

    /// Whether the two are one superblock.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// One mount more. A superblock that only active references keep can be mounted again: these
    /// go on.
    pub(crate) fn grab(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        let is_over = state.was_mounted && state.mounts == 0 && state.active_refs == 0;
        if state.is_ended || state.is_closed || is_over {
            return Err(Error::Ended);
        }
        state.mounts += 1;
        state.was_mounted = true;
        Ok(())
    }

    /// Whether these many mounts are all that it has, and there is no active reference.
    pub(crate) fn is_about_to_end(&self, leaving: usize) -> bool {
        let state = self.0.state.lock();
        state.mounts == leaving && state.active_refs == 0
    }

    /// A number that all clones share, and nothing else.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// One mount less that was never made.
    pub(crate) fn release_unused(&self) {
        let mut state = self.0.state.lock();
        state.mounts -= 1;
        // A superblock with an earlier active reference had been mounted before.
        state.was_mounted = state.mounts > 0 || state.activations > 0;
    }

    /// One mount less; the last one shuts down, unless there is an active reference.
    pub(crate) fn release(&self) {
        if let Some(superblock) = self.put() {
            superblock.shutdown();
        }
    }

    /// One mount less; a caller that gets the superblock has to shut it down.
    #[must_use]
    pub(crate) fn put(&self) -> Option<Arc<dyn Superblock>> {
        let mut state = self.0.state.lock();
        state.mounts -= 1;
        state.end_if_unused().then(|| Arc::clone(&self.0.superblock))
    }
}
