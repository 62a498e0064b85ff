//! rcu-walk: a path walked in a read section, without touching any count.
//!
//! Analogous to Linux's walk with `LOOKUP_RCU`. Where it cannot go on in the section,
//! [`try_to_unlazy`] makes it a ref-walk.

use std::path::Path;
use std::sync::Arc;

use rcu::Guard;
use sync::mutant::is_on;

use super::path::{Base, FinalSymlink, PathCursor};
use super::ref_walk::{RefCursor, not_a_directory};
use super::step::{Changed, MountLookup, RcuCursor, check, cross_down, cross_up};
use crate::error::{Error, Result};
use crate::mount::{Mount, MountRef};
use crate::protocol::MountLock;
use crate::superblock::{FoundInode, Inode, Kind};
use crate::tree::Ns;

/// Attempts before a ref-walk: that one costs more, and unmounts wait for its references.
const RCU_WALKS: usize = 4;

/// The tree, read in a section.
struct RcuLookup<'g> {
    ns: &'g Ns,
    guard: &'g Guard<'g>,
}

impl<'g> MountLookup for RcuLookup<'g> {
    type Mount = &'g Arc<Mount>;

    #[inline]
    fn child(&self, mount: Self::Mount, at: Inode) -> Option<Self::Mount> {
        self.ns.by_mountpoint.find((mount.id.0, at.0), self.guard)
    }

    #[inline]
    fn parent(&self, mount: Self::Mount) -> Option<(Self::Mount, Inode)> {
        mount.parent.load(self.guard).as_ref().map(|parent| (&parent.mount, parent.at))
    }

    #[inline]
    fn root(&self, mount: Self::Mount) -> Inode {
        mount.root
    }
}

/// Why an rcu-walk ended without a result.
pub(super) enum RcuEnd {
    Err(Error),
    /// Start again. The reference must be dropped outside of the section.
    Restart(#[allow(dead_code, reason = "only kept for its drop")] Option<MountRef>),
    /// A ref-walk goes on from here.
    Unlazy(MountRef, Inode, Kind),
}

/// The result of an rcu-walk.
pub(super) enum RcuWalk<'p, T> {
    Done(T),
    /// A ref-walk goes on: from here, or from the beginning.
    Unlazied(Option<(RefCursor, PathCursor<'p>)>),
}

type RcuResult<T> = std::result::Result<T, RcuEnd>;

impl From<Changed> for RcuEnd {
    fn from(Changed: Changed) -> Self {
        Self::Restart(None)
    }
}

impl Ns {
    /// Walks in sections as often as mounts change meanwhile, within reason, and calls `take` on
    /// the result in the section.
    pub(super) fn walk_rcu<'p, T>(
        &self,
        base: Base<'_>,
        path: &'p Path,
        last: FinalSymlink,
        take: impl Fn(RcuCursor<&Arc<Mount>>, Kind, u64) -> RcuResult<T>,
    ) -> Result<RcuWalk<'p, T>> {
        for _ in 0..RCU_WALKS {
            let mut rest = PathCursor::new(path);
            let end = {
                let seq = self.core.lock.read_seqbegin();
                let guard = self.core.domain.read();
                let found = self.walk_rcu_once(&guard, seq, base, &mut rest, last);
                match found.and_then(|(at, kind)| take(at, kind, seq)) {
                    Ok(found) => return Ok(RcuWalk::Done(found)),
                    Err(end) => end,
                }
            };
            match end {
                RcuEnd::Err(error) => return Err(error),
                RcuEnd::Restart(_) => self.core.counters.restarts.add(1),
                RcuEnd::Unlazy(on, inode, kind) => {
                    let is_base = matches!(base, Base::Ref(pin) if Arc::ptr_eq(pin.arc(), on.mount()));
                    return Ok(RcuWalk::Unlazied(Some((RefCursor { on, inode, kind, is_base }, rest))));
                }
            }
        }
        Ok(RcuWalk::Unlazied(None))
    }

    /// Walks in the caller's section, begun with `seq`.
    fn walk_rcu_once<'g>(
        &'g self,
        guard: &'g Guard<'g>,
        seq: u64,
        base: Base<'g>,
        rest: &mut PathCursor<'_>,
        last: FinalSymlink,
    ) -> RcuResult<(RcuCursor<&'g Arc<Mount>>, Kind)> {
        let (view, lock) = (RcuLookup { ns: self, guard }, &self.core.lock);
        let (mut at, mut kind) = self.path_init_rcu(&view, seq, base)?;
        while let Some(component) = rest.peek() {
            let superblock = at.mount.superblock.superblock();
            let name = rest.name(component);
            // Only at the beginning of a walk: the crossing to the root has checked the sequence.
            if kind != Kind::Directory {
                return Err(RcuEnd::Err(not_a_directory(rest, component)));
            }
            if name == ".." {
                let up = cross_up(&view, lock, seq, at)?;
                if up.inode == up.mount.root {
                    // On nothing: `..` stays.
                    at = up;
                } else {
                    let Some(inode) = up.mount.superblock.superblock().parent_rcu(up.inode) else {
                        return Err(try_to_unlazy(at, kind, seq));
                    };
                    at = cross_down(&view, lock, seq, RcuCursor { mount: up.mount, inode })?;
                }
                kind = Kind::Directory;
                rest.advance(component);
                continue;
            }
            let FoundInode { inode, kind: found } = match superblock.lookup_rcu(at.inode, name) {
                None => return Err(try_to_unlazy(at, kind, seq)),
                Some(Err(error)) => return Err(fail(lock, seq, FailedCall::Lookup, error)),
                Some(Ok(entry)) => entry,
            };
            if found == Kind::Symlink && (last == FinalSymlink::Follow || rest.has_more_after(component)) {
                let Some(target) = superblock.read_link_rcu(inode) else {
                    return Err(try_to_unlazy(at, kind, seq));
                };
                rest.advance(component);
                let target = target.map_err(|error| fail(lock, seq, FailedCall::ReadLink, error))?;
                if rest.push_link(target).map_err(|error| fail(lock, seq, FailedCall::TooManyLinks, error))? {
                    (at, kind) = self.path_init_rcu(&view, seq, Base::Root)?;
                } else if !is_on("mounts-no-recheck-after-link") {
                    // A link to `.` may be the last step: no crossing follows that would check.
                    check(lock, seq)?;
                }
                continue;
            }
            rest.advance(component);
            let on = at.mount;
            at = cross_down(&view, lock, seq, RcuCursor { mount: on, inode })?;
            kind = if Arc::ptr_eq(on, at.mount) { found } else { at.mount.kind };
            // The crossing has checked the sequence, and nothing was read since.
            if kind != Kind::Directory && rest.has_more() {
                return Err(RcuEnd::Err(not_a_directory(rest, component)));
            }
        }
        Ok((at, kind))
    }

    fn path_init_rcu<'g>(
        &'g self,
        view: &RcuLookup<'g>,
        seq: u64,
        base: Base<'g>,
    ) -> RcuResult<(RcuCursor<&'g Arc<Mount>>, Kind)> {
        let lock = &self.core.lock;
        let (mount, inode) = match base {
            Base::Root => {
                let root = self.root.load(view.guard).as_ref();
                check(lock, seq)?;
                let root = root.ok_or(RcuEnd::Err(Error::NotHere))?;
                let at = cross_down(view, lock, seq, RcuCursor { mount: root, inode: root.root })?;
                return Ok((at, at.mount.kind));
            }
            Base::Ref(pin) if !self.is_ns_of(pin) => return Err(RcuEnd::Err(Error::NotHere)),
            Base::Ref(pin) => (pin.arc(), pin.inode()),
            Base::Path(place) => {
                let found = self.by_id.find((place.mount.0, 0), view.guard);
                check(lock, seq)?;
                (found.ok_or(RcuEnd::Err(Error::NotHere))?, place.inode)
            }
        };
        Ok((RcuCursor { mount, inode }, Kind::Directory))
    }
}

/// An answer of a superblock that ends a walk in a section.
#[derive(Debug, Clone, Copy)]
enum FailedCall {
    Lookup,
    ReadLink,
    TooManyLinks,
}

impl FailedCall {
    /// The mutant that reports the answer unchecked.
    fn mutant(self) -> &'static str {
        match self {
            Self::Lookup => "mounts-no-recheck-before-lookup-error",
            Self::ReadLink => "mounts-no-recheck-before-link-error",
            Self::TooManyLinks => "mounts-no-recheck-before-too-many-links",
        }
    }
}

/// Ends a walk with an error that follows from an answer of a superblock. The answer may have come
/// after its mount was covered, moved or unmounted: the error counts only if mounts did not change
/// since the walk began.
#[cold]
fn fail(lock: &MountLock, seq: u64, call: FailedCall, error: Error) -> RcuEnd {
    if is_on(call.mutant()) {
        return RcuEnd::Err(error);
    }
    check(lock, seq).map_or_else(RcuEnd::from, |()| RcuEnd::Err(error))
}

/// Leaves the rcu-walk for a ref-walk, with a reference on the mount that the walk is on.
fn try_to_unlazy(at: RcuCursor<&Arc<Mount>>, kind: Kind, seq: u64) -> RcuEnd {
    at.mount.legitimize_mnt(seq).map_or_else(RcuEnd::Restart, |on| RcuEnd::Unlazy(on, at.inode, kind))
}
