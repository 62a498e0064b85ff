//! Walking a path, analogous to Linux's fs/namei.c. What its `nameidata` is there are the cursors
//! here.
//!
//! First comes the *rcu-walk*, in a read section, without touching any count: names that the
//! superblocks know from memory, mounts from the namespace's tables, the sequence checked after
//! each step ([`step`]). The result is a path, which needs nothing more, or a reference, for which
//! the last mount is legitimized.
//!
//! A superblock that would have to wait ends the rcu-walk: `try_to_unlazy` takes a reference on the
//! mount that the walk is on, and the walk leaves the section and goes on as a *ref-walk*, with one
//! reference at a time. If mounts changed meanwhile it starts again, after some attempts as a
//! ref-walk from the beginning. So no walk waits in a section, and a walk that waits keeps one
//! mount, which is the one it waits for.

mod path;
mod rcu_walk;
mod ref_walk;
pub mod step;

use std::sync::Arc;

use crate::error::{Holder, Result};
use crate::mount::{Mount, PathRef, VfsPath};
use crate::superblock::{Inode, Kind, SuperblockRef};
use crate::tree::Ns;
pub use path::{Base, FinalSymlink};
use rcu_walk::{RcuEnd, RcuWalk};
use ref_walk::RefCursor;
use step::RcuCursor;

impl Ns {
    /// The place that a path leads to, without keeping it.
    pub(crate) fn resolve(
        &self,
        base: Base<'_>,
        path: &std::path::Path,
        last: FinalSymlink,
    ) -> Result<(VfsPath, Kind)> {
        let place =
            |at: RcuCursor<&Arc<Mount>>, kind, _| Ok((VfsPath { mount: at.mount.id, inode: at.inode }, kind));
        let unlazied = match self.walk_rcu(base, path, last, place)? {
            RcuWalk::Done(found) => return Ok(found),
            RcuWalk::Unlazied(unlazied) => unlazied,
        };
        let cursor = self.walk_ref(unlazied, base, path, last)?;
        Ok((VfsPath { mount: cursor.on.mount().id, inode: cursor.inode }, cursor.kind))
    }

    /// The place that a path leads to, pinned.
    pub(crate) fn pin(
        &self,
        base: Base<'_>,
        path: &std::path::Path,
        last: FinalSymlink,
        holder: &Holder,
    ) -> Result<PathRef> {
        loop {
            let cursor = self.resolve_ref(base, path, last)?;
            // Refused: a synchronous unmount has it, and the path leads elsewhere by now.
            if let Some(pin) = cursor.on.pin(cursor.inode, holder.clone()) {
                return Ok(pin);
            }
        }
    }

    /// Calls `look` on the place that a path leads to, with a passing reference meanwhile.
    pub(crate) fn visit<T>(
        &self,
        base: Base<'_>,
        path: &std::path::Path,
        last: FinalSymlink,
        look: impl FnOnce(&SuperblockRef, Inode, Kind) -> T,
    ) -> Result<T> {
        let cursor = self.resolve_ref(base, path, last)?;
        Ok(look(&cursor.on.mount().superblock, cursor.inode, cursor.kind))
    }

    /// The place that a path leads to, with a passing reference.
    fn resolve_ref(&self, base: Base<'_>, path: &std::path::Path, last: FinalSymlink) -> Result<RefCursor> {
        let keep = |at: RcuCursor<&Arc<Mount>>, kind, seq| {
            Ok(RefCursor {
                on: at.mount.legitimize_mnt(seq).map_err(RcuEnd::Restart)?,
                inode: at.inode,
                kind,
                is_base: false,
            })
        };
        match self.walk_rcu(base, path, last, keep)? {
            RcuWalk::Done(cursor) => Ok(cursor),
            RcuWalk::Unlazied(unlazied) => self.walk_ref(unlazied, base, path, last),
        }
    }
}
