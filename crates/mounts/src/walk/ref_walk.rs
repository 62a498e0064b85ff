//! ref-walk: a path walked with one counted reference at a time, which may wait for superblocks.

use std::path::Path;
use std::sync::Arc;

use rcu::Guard;

use super::path::{Base, Component, FinalSymlink, PathCursor};
use crate::error::{Error, Result};
use crate::mount::{Mount, MountRef, PathRef};
use crate::superblock::{Inode, Kind};
use crate::tree::Ns;

/// Attempts to get a reference before changes are kept away for one.
const ATTEMPTS: usize = 8;

/// The position of a ref-walk.
pub(super) struct RefCursor {
    pub(super) on: MountRef,
    pub(super) inode: Inode,
    pub(super) kind: Kind,
    /// It began on this mount, and may stay there although that has left the namespace.
    pub(super) is_base: bool,
}

impl RefCursor {
    /// Whether the walk came to a mount that has left the namespace: its results, errors too, may
    /// never have been right for the path.
    fn is_stale(&self) -> bool {
        !self.is_base && self.on.mount().refs.flags() != 0
    }
}

pub(super) fn not_a_directory(rest: &PathCursor<'_>, component: Component) -> Error {
    Error::NotDirectory { name: rest.name(component).to_string_lossy().into_owned() }
}

impl Ns {
    pub(super) fn is_ns_of(&self, pin: &PathRef) -> bool {
        Arc::ptr_eq(&pin.arc().core, &self.core)
    }

    /// Walks with references, as often as it comes to a mount that has left.
    pub(super) fn walk_ref(
        &self,
        unlazied: Option<(RefCursor, PathCursor<'_>)>,
        base: Base<'_>,
        path: &Path,
        last: FinalSymlink,
    ) -> Result<RefCursor> {
        self.core.counters.ref_walks.add(1);
        let mut unlazied = unlazied;
        loop {
            let (mut cursor, mut rest) = match unlazied.take() {
                Some(unlazied) => unlazied,
                None => (self.path_init_ref(base)?, PathCursor::new(path)),
            };
            let result = self.walk_ref_once(&mut cursor, &mut rest, last);
            // Each round, a mount has left the namespace: it does not go on for ever.
            if !cursor.is_stale() {
                return result.map(|()| cursor);
            }
            self.core.counters.restarts.add(1);
        }
    }

    fn walk_ref_once(
        &self,
        cursor: &mut RefCursor,
        rest: &mut PathCursor<'_>,
        last: FinalSymlink,
    ) -> Result<()> {
        while let Some(component) = rest.peek() {
            if cursor.kind != Kind::Directory {
                return Err(not_a_directory(rest, component));
            }
            if rest.name(component) == ".." {
                self.follow_dotdot(cursor)?;
                rest.advance(component);
                continue;
            }
            let superblock = cursor.on.mount().superblock.superblock();
            let entry = superblock.lookup(cursor.inode, rest.name(component))?;
            if entry.kind == Kind::Symlink && (last == FinalSymlink::Follow || rest.has_more_after(component))
            {
                let target = superblock.read_link(entry.inode)?;
                rest.advance(component);
                if rest.push_link(target)? {
                    if cursor.is_stale() {
                        return Ok(());
                    }
                    *cursor = self.path_init_ref(Base::Root)?;
                }
                continue;
            }
            rest.advance(component);
            (cursor.inode, cursor.kind) = (entry.inode, entry.kind);
            self.traverse_mounts(cursor);
            if cursor.kind != Kind::Directory && rest.has_more() {
                return Err(not_a_directory(rest, component));
            }
        }
        Ok(())
    }

    fn path_init_ref(&self, base: Base<'_>) -> Result<RefCursor> {
        let at = |on: MountRef, inode, is_base| RefCursor { on, inode, kind: Kind::Directory, is_base };
        match base {
            Base::Ref(pin) if !self.is_ns_of(pin) => Err(Error::NotHere),
            Base::Ref(pin) => Ok(at(MountRef::mntget(pin.arc()), pin.inode(), true)),
            Base::Path(place) => {
                let find = |guard: &'_ Guard<'_>| {
                    self.by_id.find((place.mount.0, 0), guard).map(|mount| (Arc::clone(mount), place.inode))
                };
                let (on, inode) = self.lookup_mnt(find).ok_or(Error::NotHere)?;
                Ok(at(on, inode, false))
            }
            Base::Root => {
                let find = |guard: &'_ Guard<'_>| {
                    self.root.load(guard).as_ref().map(|mount| (Arc::clone(mount), mount.root))
                };
                let (on, inode) = self.lookup_mnt(find).ok_or(Error::NotHere)?;
                let mut cursor = at(on, inode, false);
                self.traverse_mounts(&mut cursor);
                Ok(cursor)
            }
        }
    }

    /// A reference on the mount that `find` finds; none, if there was nothing at a moment of the
    /// call.
    fn lookup_mnt(
        &self,
        find: impl Fn(&Guard<'_>) -> Option<(Arc<Mount>, Inode)>,
    ) -> Option<(MountRef, Inode)> {
        let lock = &self.core.lock;
        for _ in 0..ATTEMPTS {
            let seq = lock.read_seqbegin();
            let guard = self.core.domain.read();
            let Some((mount, inode)) = find(&guard) else {
                if lock.is_unchanged(seq) {
                    return None;
                }
                continue;
            };
            let found = mount.legitimize_mnt(seq);
            drop(guard);
            if let Ok(on) = found {
                return Some((on, inode));
            }
        }
        // Changes come too fast: keep them away. The namespace holds the mounts in the tables until
        // they change.
        let _held = lock.read_seqlock_excl();
        let (mount, inode) = find(&self.core.domain.read())?;
        Some((MountRef::mntget(&mount), inode))
    }

    fn traverse_mounts(&self, cursor: &mut RefCursor) {
        let mut on = cursor.on.mount().id;
        while let Some((mount, inode)) = self.lookup_mnt(|guard| {
            self.by_mountpoint
                .find((on.0, cursor.inode.0), guard)
                .map(|mount| (Arc::clone(mount), mount.root))
        }) {
            cursor.kind = mount.mount().kind;
            on = mount.mount().id;
            (cursor.on, cursor.inode, cursor.is_base) = (mount, inode, false);
        }
    }

    fn follow_dotdot(&self, cursor: &mut RefCursor) -> Result<()> {
        loop {
            let on = Arc::clone(cursor.on.mount());
            if cursor.inode != on.root {
                cursor.inode = on.superblock.superblock().parent(cursor.inode)?;
                break;
            }
            let find = |guard: &'_ Guard<'_>| {
                on.parent.load(guard).as_ref().map(|parent| (Arc::clone(&parent.mount), parent.at))
            };
            match self.lookup_mnt(find) {
                Some((mount, inode)) => (cursor.on, cursor.inode, cursor.is_base) = (mount, inode, false),
                None => return Ok(()),
            }
        }
        cursor.kind = Kind::Directory;
        self.traverse_mounts(cursor);
        Ok(())
    }
}
