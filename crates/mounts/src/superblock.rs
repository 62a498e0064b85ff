//! What is mounted.
//!
//! A superblock has names and inodes of its own; this crate knows neither its data nor where it
//! rests. It may be mounted at several places; when the last of its mounts is gone it is shut down.

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
    /// What most superblocks call their root.
    pub const ROOT: Self = Self(1);
}

/// What a walk has to know of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Names can be looked up in it.
    Directory,
    /// Leads elsewhere.
    Symlink,
    /// The end of a path.
    Other,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The inode.
    pub inode: Inode,
    /// What it is.
    pub kind: Kind,
}

/// What is mounted.
///
/// The methods that end in `_rcu` are called in a read section, without a reference: they must not
/// wait, take no lock that is held for long, and say `None` where they would have to. They may be
/// called beside and after [`shutdown`](Self::shutdown); what they say then is thrown away, as the
/// walk finds that the mount is gone. All others are called by who has a reference, and never after
/// `shutdown` has begun.
///
/// A superblock without names can be mounted, too: nothing is found in it.
pub trait Superblock: Send + Sync + fmt::Debug + 'static {
    /// Its root directory.
    fn root(&self) -> Inode {
        Inode::ROOT
    }

    /// What `name` is in `dir`; never asked for `.` and `..`. May wait.
    ///
    /// # Errors
    /// [`Error::NoEntry`], and whatever it has to report.
    fn lookup(&self, dir: Inode, name: &OsStr) -> Result<Entry> {
        let _ = dir;
        Err(Error::NoEntry { name: name.to_string_lossy().into_owned() })
    }

    /// The same from memory; `None`: unknown.
    fn lookup_rcu(&self, dir: Inode, name: &OsStr) -> Option<Result<Entry>> {
        let _ = (dir, name);
        None
    }

    /// The directory that `dir`, not the root, is in. May wait.
    ///
    /// # Errors
    /// Whatever it has to report.
    fn parent(&self, dir: Inode) -> Result<Inode> {
        let _ = dir;
        Ok(self.root())
    }

    /// The same from memory; `None`: unknown.
    fn parent_rcu(&self, dir: Inode) -> Option<Inode> {
        let _ = dir;
        None
    }

    /// Where a symbolic link leads. May wait.
    ///
    /// # Errors
    /// Whatever it has to report.
    fn read_link(&self, link: Inode) -> Result<PathBuf> {
        let _ = link;
        Err(Error::Failed { what: "there are no symbolic links".into() })
    }

    /// The same from memory; `None`: unknown.
    fn read_link_rcu(&self, link: Inode) -> Option<Result<PathBuf>> {
        let _ = link;
        None
    }

    /// Whether `inode` is `dir`, or below it. Called with the lock of the tree held: must not wait.
    /// What is not known is no: then a mount there is not propagated to those who see only `dir`.
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
    /// what takes time can be done meanwhile. These walks may still use the superblock;
    /// [`shutdown`](Self::shutdown) follows, and is who reports what failed. Only called where
    /// [`may_wait`](Self::may_wait) says so.
    fn flush(&self) {}

    /// An unmount with force: whoever waits for the medium should get an error.
    fn force(&self) {}

    /// Whether [`shutdown`](Self::shutdown) may have to wait, for a medium say. Several such
    /// superblocks that go together are shut down by several threads; those that never wait are not
    /// worth a thread.
    fn may_wait(&self) -> bool {
        true
    }

    /// Called once, when the last mount is gone: write everything, then give the medium free.
    fn shutdown(&self);
}

/// A superblock, how many mounts it has, and who uses it beside them. Clones are the same one.
#[derive(Debug, Clone)]
pub struct Super(Arc<Active>);

#[derive(Debug)]
struct Active {
    superblock: Arc<dyn Superblock>,
    state: Mutex<State>,
    fewer_holds: Condvar,
}

#[derive(Debug, Default)]
struct State {
    mounts: usize,
    /// Open files, say: through whichever mount.
    holds: usize,
    /// Counts holds that began: an expiry mark is older than the last one, or not.
    uses: u64,
    was_mounted: bool,
    /// Its last mounts are being taken away synchronously: nobody is let in.
    is_closed: bool,
    is_ended: bool,
}

impl State {
    /// Whether the caller has to shut the superblock down.
    fn ends(&mut self) -> bool {
        let ends = self.was_mounted && self.mounts == 0 && self.holds == 0 && !self.is_ended;
        self.is_ended |= ends;
        ends
    }
}

/// Uses a superblock, through whichever of its mounts: an open file.
///
/// A synchronous unmount that would take its last mount is refused; after a lazy one, and after the
/// end of the namespace, the drop of the last hold shuts the superblock down before it returns.
#[derive(Debug)]
pub struct Hold(Super);

impl Drop for Hold {
    fn drop(&mut self) {
        let ends = {
            let mut state = self.0.0.state.lock();
            state.holds -= 1;
            state.ends()
        };
        self.0.0.fewer_holds.notify_all();
        if ends {
            self.0.0.superblock.shutdown();
        }
    }
}

impl Super {
    /// One that is not mounted yet. There must be only one for each superblock: the last of *its*
    /// mounts ends in the shutdown.
    #[must_use]
    pub fn new(superblock: Arc<dyn Superblock>) -> Self {
        Self(Arc::new(Active {
            superblock,
            state: Mutex::new(State::default()),
            fewer_holds: Condvar::new(),
        }))
    }

    /// The superblock.
    #[must_use]
    pub fn superblock(&self) -> &Arc<dyn Superblock> {
        &self.0.superblock
    }

    /// How many mounts it has.
    #[must_use]
    pub fn mounts(&self) -> usize {
        self.0.state.lock().mounts
    }

    /// How many [`Hold`]s there are.
    #[must_use]
    pub fn holds(&self) -> usize {
        self.0.state.lock().holds
    }

    /// Uses it as long as the hold is kept.
    ///
    /// # Errors
    /// [`Error::Ended`] if it has no mount (any more), or its last one is being unmounted.
    pub fn hold(&self) -> Result<Hold> {
        let mut state = self.0.state.lock();
        if state.is_closed || state.mounts == 0 {
            return Err(Error::Ended);
        }
        state.holds += 1;
        state.uses += 1;
        Ok(Hold(self.clone()))
    }

    /// How many holds there were so far.
    pub(crate) fn uses(&self) -> u64 {
        self.0.state.lock().uses
    }

    /// Waits until nobody holds it, or `until`; says whether nobody does.
    #[must_use]
    pub fn wait_unheld(&self, until: Instant) -> bool {
        let mut state = self.0.state.lock();
        while state.holds > 0 {
            if self.0.fewer_holds.wait_until(&mut state, until) {
                return state.holds == 0;
            }
        }
        true
    }

    /// A synchronous unmount is about to take `leaving` mounts: if these are all, nobody may hold
    /// it, and nobody is let in any more. Otherwise says how many do.
    pub(crate) fn close(&self, leaving: usize) -> std::result::Result<(), usize> {
        let mut state = self.0.state.lock();
        if leaving < state.mounts {
            return Ok(());
        }
        if state.holds > 0 {
            return Err(state.holds);
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

    /// One mount more. A superblock that only holds keep can be mounted again: the holds go on.
    pub(crate) fn grab(&self) -> Result<()> {
        let mut state = self.0.state.lock();
        let is_over = state.was_mounted && state.mounts == 0 && state.holds == 0;
        if state.is_ended || state.is_closed || is_over {
            return Err(Error::Ended);
        }
        state.mounts += 1;
        state.was_mounted = true;
        Ok(())
    }

    /// Whether these many mounts are all that it has, and nobody holds it.
    pub(crate) fn is_about_to_end(&self, leaving: usize) -> bool {
        let state = self.0.state.lock();
        state.mounts == leaving && state.holds == 0
    }

    /// The same for all clones, and for nothing else.
    pub(crate) fn address(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    /// One mount less that never came to be.
    pub(crate) fn release_unused(&self) {
        let mut state = self.0.state.lock();
        state.mounts -= 1;
        // One that was ever held had been mounted before.
        state.was_mounted = state.mounts > 0 || state.uses > 0;
    }

    /// One mount less; the last one shuts down, unless somebody holds the superblock.
    pub(crate) fn release(&self) {
        if let Some(superblock) = self.put() {
            superblock.shutdown();
        }
    }

    /// The same; whoever gets the superblock has to shut it down.
    #[must_use]
    pub(crate) fn put(&self) -> Option<Arc<dyn Superblock>> {
        let mut state = self.0.state.lock();
        state.mounts -= 1;
        state.ends().then(|| Arc::clone(&self.0.superblock))
    }
}
