//! Volumes that are in the session already: one more place for them, whether they have any or not.
//!
//! A volume that was detached while something of it was open is in no place and goes on. Attached
//! again it is the same volume: its open files, its cache and its errors are seen through the new
//! place. The lock of its superblock ([`mounts::SuperblockRef`]) decides whether it still goes on: either a
//! mount of it is made before the last hold is dropped, or it has ended and cannot be attached any
//! more.
//!
//! A place that was found is kept as an [`Attached`]: later operations on it act on that mount,
//! whatever else has been attached under the same path meanwhile.

use std::path::Path;
use std::sync::Arc;

use mounts::{Umount, VfsPath};
use volume::NodeId;

use super::change::{Attached, Detach, TreeError, first, tell};
use super::clones::View;
use super::spot::NodeRef;
use super::wire::Tag;
use super::{Tagged, Tree};
use crate::dev::Dev;

impl Tree {
    /// Attaches a volume of this session to one more directory; every process that looks there sees
    /// it when the call returns.
    ///
    /// `AlreadyThere` where it is what the path leads to, `Ended` where it has ended, is ending, or
    /// was given up.
    pub(crate) fn attach_again(
        &self,
        dev: &Dev,
        at: (&View, &Path),
        attached: &Attached,
    ) -> Result<Attached, TreeError> {
        let (spot, namespace) = (self.walk(at)?, &at.0.namespace);
        let (Some(place), Some(name)) = (spot.place(), spot.name.clone()) else {
            return Err(TreeError::IsRoot);
        };
        let ended = || TreeError::Tree(mounts::Error::Ended);
        let known = self.state.lock().snapshot.tagged(attached.volume).map(Arc::clone);
        let served = known.filter(|files| !files.served.is_ending()).ok_or_else(ended)?;
        let (served, superblock) = (Arc::clone(&served.served), attached.superblock.clone());
        let tag = self.new_tag()?;
        let mounted = || {
            // No process takes the directory's name away meanwhile.
            let below = Arc::clone(&spot.node.served);
            let _names = below.names.write();
            self.still_there(&spot, at.1)?;
            served.is_seen_through(tag);
            if self.has_clones() {
                // A path may lead to it in a clone before that is registered.
                served.is_seen_through(attached.volume);
            }
            let made = namespace.attach_all(place, "", &superblock)?;
            let volume = (Arc::clone(&served), superblock.clone());
            let tagged = Tagged::of_mount(tag, (first(&made), NodeId::ROOT), volume, namespace);
            self.note((tagged, NodeRef::root_of(&served)), (spot.on, spot.node), &name);
            Ok(made)
        };
        let made = mounted().inspect_err(|_: &TreeError| {
            served.is_not_seen_through(tag);
            served.is_not_seen_through(attached.volume);
        })?;
        tell(dev, &name, None);
        self.catch_up(dev, first(&made));
        self.note_copies(dev, &made);
        served.is_not_seen_through(attached.volume);
        let again = Attached { mount: first(&made), volume: attached.volume, superblock };
        if served.is_ending() {
            // It was given up beside this call, which found it in one place at most: no path is to
            // lead there.
            drop(self.detach_attached(dev, &again, Detach::Lazy, |_| {}));
            return Err(ended());
        }
        Ok(again)
    }

    /// The volume that is attached uppermost at a path. Keeps nothing of the path.
    pub(crate) fn found_at(&self, at: (&View, &Path)) -> Result<Attached, TreeError> {
        let place = self.attached_at(at)?;
        let found = self.tagged_mount(place.mount);
        let none = || TreeError::NotAttached(at.1.display().to_string());
        let tagged = found.ok_or_else(none)?;
        Ok(Attached { mount: place.mount, volume: tagged.served.tag, superblock: tagged.superblock.clone() })
    }

    /// Detaches a volume that was found or attached, wherever it was moved to; no store is asked
    /// for the way there. `NotAttached` where it has left.
    pub(crate) fn detach_attached(
        &self,
        dev: &Dev,
        attached: &Attached,
        how: Detach,
        mut on_given_up: impl FnMut(Tag),
    ) -> Result<(), TreeError> {
        let gone = || TreeError::NotAttached("its place any more".to_owned());
        let tagged = self.tagged_mount(attached.mount).ok_or_else(gone)?;
        let place = VfsPath { mount: attached.mount, inode: mounts::Inode(tagged.root.0) };
        match self.umount(dev, &tagged.namespace, place, how.flags(), &mut on_given_up) {
            Err(TreeError::Tree(mounts::Error::NotHere)) => Err(gone()),
            result => result,
        }
    }
}

impl Detach {
    pub(super) fn flags(self) -> Umount {
        match self {
            Self::Sync => Umount::empty(),
            Self::Lazy => Umount::DETACH,
            Self::Force => Umount::DETACH | Umount::FORCE,
        }
    }
}
