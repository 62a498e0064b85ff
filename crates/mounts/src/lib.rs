//! Mounts and namespaces over a superblock.
//!
//! A [`Mount`] is a superblock at a place of a [`Namespace`]. Whoever uses a mount pins it. Taking it out
//! of its namespace ends in the superblock's shutdown, and **who runs it matters**: a synchronous
//! [`Namespace::umount_root`] runs it itself and returns after it; after a lazy one with users it is run by the
//! one who drops the last pin, before that drop returns. No queue and no other thread is involved, so that
//! a superblock that hangs holds up nobody else.
//!
//! A namespace holds one mount so far, its root; walks, subtrees and propagation build on this.
//!
//! Lock order: `Namespace::root`, then `Mount::state`. Superblocks are shut down with neither held.

#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use sync::Mutex;

/// What is mounted.
pub trait Superblock: Send + Sync + fmt::Debug {
    /// Called once, when the last mount is gone: write everything, then give the medium free.
    fn shutdown(&self);
}

/// Why a mount or an unmount was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Somebody uses the mount (EBUSY).
    #[error("mount is in use by {pins} user(s)")]
    Busy {
        /// How many pins there are.
        pins: usize,
    },
    /// Nothing is mounted (EINVAL).
    #[error("nothing is mounted here")]
    NotMounted,
    /// Something is mounted already (EBUSY).
    #[error("something is mounted here already")]
    Occupied,
}

/// How to unmount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Umount {
    /// Refuse while somebody uses the mount.
    Sync,
    /// Leave the namespace now; the last user's drop shuts down.
    Lazy,
}

/// A superblock at a place of a namespace.
pub struct Mount {
    superblock: Arc<dyn Superblock>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    pins: usize,
    /// The mount left its namespace (`MNT_UMOUNT`).
    umounted: bool,
    /// The final clean-up has begun; whoever set it runs it (`MNT_DOOMED`).
    doomed: bool,
}

/// Keeps a mount alive.
#[derive(Debug)]
pub struct Pin(Arc<Mount>);

/// A tree of mounts; so far its root.
#[derive(Debug, Default)]
pub struct Namespace {
    root: Mutex<Option<Arc<Mount>>>,
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Mount {
    /// What is mounted.
    #[must_use]
    pub fn superblock(&self) -> &Arc<dyn Superblock> {
        &self.superblock
    }
}

impl Namespace {
    /// Mounts `superblock` as the root.
    ///
    /// # Errors
    /// [`Error::Occupied`] when there is a root.
    pub fn mount_root(&self, superblock: Arc<dyn Superblock>) -> Result<(), Error> {
        let mut root = self.root.lock();
        if root.is_some() {
            return Err(Error::Occupied);
        }
        *root = Some(Arc::new(Mount { superblock, state: Mutex::default() }));
        Ok(())
    }

    /// Pins the root mount.
    ///
    /// # Errors
    /// [`Error::NotMounted`] when there is none (any more).
    pub fn pin_root(&self) -> Result<Pin, Error> {
        let root = self.root.lock();
        let mount = root.as_ref().ok_or(Error::NotMounted)?;
        mount.state.lock().pins += 1;
        Ok(Pin(Arc::clone(mount)))
    }

    /// Takes the root mount out of the namespace. On return of [`Umount::Sync`] the superblock is shut
    /// down; so it is for [`Umount::Lazy`] when nobody had pinned the mount.
    ///
    /// # Errors
    /// [`Error::NotMounted`], and [`Error::Busy`] for a synchronous unmount of a pinned mount.
    pub fn umount_root(&self, how: Umount) -> Result<(), Error> {
        let (mount, last) = {
            let mut root = self.root.lock();
            let mount = Arc::clone(root.as_ref().ok_or(Error::NotMounted)?);
            let mut state = mount.state.lock();
            if how == Umount::Sync && state.pins > 0 {
                return Err(Error::Busy { pins: state.pins });
            }
            state.umounted = true;
            let last = state.pins == 0;
            state.doomed = last;
            drop(state);
            *root = None;
            (mount, last)
        };
        if last {
            mount.superblock.shutdown();
        }
        Ok(())
    }
}

impl Pin {
    /// The mount.
    #[must_use]
    pub fn mount(&self) -> &Mount {
        &self.0
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        let last = {
            let mut state = self.0.state.lock();
            state.pins -= 1;
            let last = state.umounted && state.pins == 0 && !state.doomed;
            state.doomed |= last;
            last
        };
        if last {
            self.0.superblock.shutdown();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sync::Counter;

    #[derive(Debug, Default)]
    struct Sb(Counter);

    impl Superblock for Sb {
        fn shutdown(&self) {
            self.0.add(1);
        }
    }

    fn mounted() -> (Namespace, Arc<Sb>) {
        let (namespace, sb) = (Namespace::default(), Arc::new(Sb::default()));
        namespace.mount_root(Arc::clone(&sb) as _).unwrap();
        (namespace, sb)
    }

    #[test]
    fn a_synchronous_unmount_has_shut_down_on_return() {
        let (namespace, sb) = mounted();
        assert_eq!(namespace.mount_root(Arc::clone(&sb) as _), Err(Error::Occupied));
        namespace.umount_root(Umount::Sync).unwrap();
        assert_eq!(sb.0.get(), 1);
        assert_eq!(namespace.umount_root(Umount::Sync), Err(Error::NotMounted));
    }

    #[test]
    fn a_pinned_mount_is_busy() {
        let (namespace, sb) = mounted();
        let pin = namespace.pin_root().unwrap();
        assert_eq!(namespace.umount_root(Umount::Sync), Err(Error::Busy { pins: 1 }));
        drop(pin);
        assert_eq!(sb.0.get(), 0);
        namespace.umount_root(Umount::Sync).unwrap();
        assert_eq!(sb.0.get(), 1);
    }

    #[test]
    fn the_last_user_of_a_lazily_unmounted_mount_shuts_down() {
        let (namespace, sb) = mounted();
        let (a, b) = (namespace.pin_root().unwrap(), namespace.pin_root().unwrap());
        namespace.umount_root(Umount::Lazy).unwrap();
        assert!(namespace.pin_root().is_err());
        drop(a);
        assert_eq!(sb.0.get(), 0);
        drop(b);
        assert_eq!(sb.0.get(), 1);
    }
}
