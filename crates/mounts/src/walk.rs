//! Walking a path.
//!
//! First in a read section, without touching any count: names that the superblocks know from
//! memory, mounts from the namespace's tables, the sequence checked after each step ([`step`]). The
//! result is a place, which needs nothing more, or a reference, for which the last mount is
//! legitimized.
//!
//! A superblock that would have to wait ends the first part: the walk takes a reference on the
//! mount that it is on, leaves the section, and goes on with one reference at a time. If mounts
//! changed meanwhile it starts again, after some attempts with references from the beginning. So no
//! walk waits in a section, and a walk that waits keeps one mount, which is the one it waits for.

mod path;
pub mod step;

use std::path::Path;
use std::sync::Arc;

use rcu::Guard;
use sync::mutant::is_on;

use crate::error::{Error, Holder, Result};
use crate::mount::{Mount, MountId, Passing, Pin};
use crate::namespace::Ns;
use crate::protocol::{Legitimized, MountLock};
use crate::superblock::{Entry, Inode, Kind, Super};
use path::Rest;
use step::{At, Changed, View, check, cross_down, cross_up};

/// Attempts in sections before a walk goes on with references: these cost it more, and unmounts
/// wait for them.
const SECTIONS: usize = 4;

/// Attempts to get a reference before changes are kept away for one.
const ATTEMPTS: usize = 8;

/// A place in a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// The mount.
    pub mount: MountId,
    /// The inode in its superblock.
    pub inode: Inode,
}

/// Where a walk begins.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a> {
    /// At the namespace's root.
    Root,
    /// At a place that is kept. The mount may have left the namespace.
    Pin(&'a Pin),
    /// At a place that was found before.
    Place(Place),
}

impl<'a> From<&'a Pin> for Start<'a> {
    fn from(pin: &'a Pin) -> Self {
        Self::Pin(pin)
    }
}

impl From<Place> for Start<'_> {
    fn from(place: Place) -> Self {
        Self::Place(place)
    }
}

/// What to do with a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Last {
    /// Go where it leads.
    #[default]
    Follow,
    /// End on it.
    Keep,
}

/// The tree, read in a section.
struct InSection<'g> {
    ns: &'g Ns,
    guard: &'g Guard<'g>,
}

impl<'g> View for InSection<'g> {
    type Mount = &'g Arc<Mount>;

    #[inline]
    fn child(&self, mount: Self::Mount, at: Inode) -> Option<Self::Mount> {
        self.ns.by_place.find((mount.id.0, at.0), self.guard)
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

/// Why the walk in a section ended without a result.
enum Stop {
    Err(Error),
    /// Start again. The reference must be dropped outside of the section.
    Again(#[allow(dead_code, reason = "only kept for its drop")] Option<Passing>),
    /// Go on with references from here.
    Leave(Passing, Inode, Kind),
}

/// The result of the part in sections.
enum Found<'p, T> {
    Done(T),
    /// On with references: from here, or from the beginning.
    GoOn(Option<(Here, Rest<'p>)>),
}

impl From<Changed> for Stop {
    fn from(Changed: Changed) -> Self {
        Self::Again(None)
    }
}

/// The position of a walk outside of sections.
struct Here {
    on: Passing,
    inode: Inode,
    kind: Kind,
    /// It began on this mount, and may stay there although that has left the namespace.
    is_at_start: bool,
}

impl Here {
    /// Whether the walk came to a mount that has left the namespace: its results, errors too, may
    /// never have been right for the path.
    fn is_astray(&self) -> bool {
        !self.is_at_start && self.on.mount().refs.flags() != 0
    }
}

impl Ns {
    /// The place that a path leads to, without keeping it.
    pub(crate) fn resolve(&self, start: Start<'_>, path: &Path, last: Last) -> Result<(Place, Kind)> {
        let place = |at: At<&Arc<Mount>>, kind, _| Ok((Place { mount: at.mount.id, inode: at.inode }, kind));
        let begun = match self.in_sections(start, path, last, place)? {
            Found::Done(found) => return Ok(found),
            Found::GoOn(begun) => begun,
        };
        let here = self.with_references(begun, start, path, last)?;
        Ok((Place { mount: here.on.mount().id, inode: here.inode }, here.kind))
    }

    /// The place that a path leads to, pinned.
    pub(crate) fn pin(&self, start: Start<'_>, path: &Path, last: Last, holder: &Holder) -> Result<Pin> {
        loop {
            let here = self.reach(start, path, last)?;
            // Refused: a synchronous unmount has it, and the path leads elsewhere by now.
            if let Some(pin) = here.on.pin(here.inode, holder.clone()) {
                return Ok(pin);
            }
        }
    }

    /// Calls `look` on the place that a path leads to, with a passing reference meanwhile.
    pub(crate) fn visit<T>(
        &self,
        start: Start<'_>,
        path: &Path,
        last: Last,
        look: impl FnOnce(&Super, Inode, Kind) -> T,
    ) -> Result<T> {
        let here = self.reach(start, path, last)?;
        Ok(look(&here.on.mount().superblock, here.inode, here.kind))
    }

    /// The place that a path leads to, with a passing reference.
    fn reach(&self, start: Start<'_>, path: &Path, last: Last) -> Result<Here> {
        let keep = |at: At<&Arc<Mount>>, kind, seq| {
            own(at.mount, seq).map(|on| Here { on, inode: at.inode, kind, is_at_start: false })
        };
        match self.in_sections(start, path, last, keep)? {
            Found::Done(here) => Ok(here),
            Found::GoOn(begun) => self.with_references(begun, start, path, last),
        }
    }

    /// Walks in sections as often as mounts change meanwhile, within reason, and calls `take` on
    /// the result in the section.
    fn in_sections<'p, T>(
        &self,
        start: Start<'_>,
        path: &'p Path,
        last: Last,
        take: impl Fn(At<&Arc<Mount>>, Kind, u64) -> std::result::Result<T, Stop>,
    ) -> Result<Found<'p, T>> {
        for _ in 0..SECTIONS {
            let mut rest = Rest::new(path);
            let stop = {
                let seq = self.home.lock.sample();
                let guard = self.home.domain.read();
                let found = self.in_section(&guard, seq, start, &mut rest, last);
                match found.and_then(|(at, kind)| take(at, kind, seq)) {
                    Ok(found) => return Ok(Found::Done(found)),
                    Err(stop) => stop,
                }
            };
            match stop {
                Stop::Err(error) => return Err(error),
                Stop::Again(_) => self.counters.restarts.add(1),
                Stop::Leave(on, inode, kind) => {
                    let is_at_start = matches!(start, Start::Pin(pin) if Arc::ptr_eq(pin.arc(), on.mount()));
                    return Ok(Found::GoOn(Some((Here { on, inode, kind, is_at_start }, rest))));
                }
            }
        }
        Ok(Found::GoOn(None))
    }

    /// Walks in the caller's section, begun with `seq`.
    fn in_section<'g>(
        &'g self,
        guard: &'g Guard<'g>,
        seq: u64,
        start: Start<'g>,
        rest: &mut Rest<'_>,
        last: Last,
    ) -> std::result::Result<(At<&'g Arc<Mount>>, Kind), Stop> {
        let (view, lock) = (InSection { ns: self, guard }, &self.home.lock);
        let (mut at, mut kind) = self.begin(&view, seq, start)?;
        while let Some(part) = rest.peek() {
            let superblock = at.mount.superblock.superblock();
            let name = rest.name(part);
            // Only at the beginning of a walk: the crossing to the root has checked the sequence.
            if kind != Kind::Directory {
                return Err(Stop::Err(not_a_directory(rest, part)));
            }
            if name == ".." {
                let up = cross_up(&view, lock, seq, at)?;
                if up.inode == up.mount.root {
                    // On nothing: `..` stays.
                    at = up;
                } else {
                    let Some(inode) = up.mount.superblock.superblock().parent_rcu(up.inode) else {
                        return Err(out_of_section(at, kind, seq));
                    };
                    at = cross_down(&view, lock, seq, At { mount: up.mount, inode })?;
                }
                kind = Kind::Directory;
                rest.take(part);
                continue;
            }
            let Entry { inode, kind: found } = match superblock.lookup_rcu(at.inode, name) {
                None => return Err(out_of_section(at, kind, seq)),
                Some(Err(error)) => return Err(fail(lock, seq, Early::Lookup, error)),
                Some(Ok(entry)) => entry,
            };
            if found == Kind::Symlink && (last == Last::Follow || rest.goes_on_after(part)) {
                let Some(target) = superblock.read_link_rcu(inode) else {
                    return Err(out_of_section(at, kind, seq));
                };
                rest.take(part);
                let target = target.map_err(|error| fail(lock, seq, Early::ReadLink, error))?;
                if rest.follow(target).map_err(|error| fail(lock, seq, Early::TooManyLinks, error))? {
                    (at, kind) = self.begin(&view, seq, Start::Root)?;
                } else if !is_on("mounts-no-recheck-after-link") {
                    // A link to `.` may be the last step: no crossing follows that would check.
                    check(lock, seq)?;
                }
                continue;
            }
            rest.take(part);
            let on = at.mount;
            at = cross_down(&view, lock, seq, At { mount: on, inode })?;
            kind = if Arc::ptr_eq(on, at.mount) { found } else { at.mount.kind };
            // The crossing has checked the sequence, and nothing was read since.
            if kind != Kind::Directory && rest.goes_on() {
                return Err(Stop::Err(not_a_directory(rest, part)));
            }
        }
        Ok((at, kind))
    }

    fn begin<'g>(
        &'g self,
        view: &InSection<'g>,
        seq: u64,
        start: Start<'g>,
    ) -> std::result::Result<(At<&'g Arc<Mount>>, Kind), Stop> {
        let lock = &self.home.lock;
        let (mount, inode) = match start {
            Start::Root => {
                let root = self.root.load(view.guard).as_ref();
                check(lock, seq)?;
                let root = root.ok_or(Stop::Err(Error::NotHere))?;
                let at = cross_down(view, lock, seq, At { mount: root, inode: root.root })?;
                return Ok((at, at.mount.kind));
            }
            Start::Pin(pin) if !self.is_home_of(pin) => return Err(Stop::Err(Error::NotHere)),
            Start::Pin(pin) => (pin.arc(), pin.inode()),
            Start::Place(place) => {
                let found = self.by_id.find((place.mount.0, 0), view.guard);
                check(lock, seq)?;
                (found.ok_or(Stop::Err(Error::NotHere))?, place.inode)
            }
        };
        Ok((At { mount, inode }, Kind::Directory))
    }

    pub(crate) fn is_home_of(&self, pin: &Pin) -> bool {
        Arc::ptr_eq(&pin.arc().home, &self.home)
    }
}

/// An answer of a superblock that ends a walk in a section.
#[derive(Debug, Clone, Copy)]
enum Early {
    Lookup,
    ReadLink,
    TooManyLinks,
}

impl Early {
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
fn fail(lock: &MountLock, seq: u64, early: Early, error: Error) -> Stop {
    if is_on(early.mutant()) {
        return Stop::Err(error);
    }
    check(lock, seq).map_or_else(Stop::from, |()| Stop::Err(error))
}

/// Takes a reference on the mount that a walk is on.
fn own(mount: &Arc<Mount>, seq: u64) -> std::result::Result<Passing, Stop> {
    match mount.legitimize(seq) {
        Legitimized::Held => Ok(Passing::new(Arc::clone(mount))),
        Legitimized::Changed => Err(Stop::Again(None)),
        Legitimized::MustPut => Err(Stop::Again(Some(Passing::new(Arc::clone(mount))))),
    }
}

fn out_of_section(at: At<&Arc<Mount>>, kind: Kind, seq: u64) -> Stop {
    match own(at.mount, seq) {
        Ok(on) => Stop::Leave(on, at.inode, kind),
        Err(stop) => stop,
    }
}

fn not_a_directory(rest: &Rest<'_>, part: path::Part) -> Error {
    Error::NotDirectory { name: rest.name(part).to_string_lossy().into_owned() }
}

/// The part with references.
impl Ns {
    fn with_references(
        &self,
        begun: Option<(Here, Rest<'_>)>,
        start: Start<'_>,
        path: &Path,
        last: Last,
    ) -> Result<Here> {
        self.counters.with_references.add(1);
        let mut begun = begun;
        loop {
            let (mut here, mut rest) = match begun.take() {
                Some(begun) => begun,
                None => (self.begin_with_reference(start)?, Rest::new(path)),
            };
            let result = self.go_on(&mut here, &mut rest, last);
            // Each round, a mount has left the namespace: it does not go on for ever.
            if !here.is_astray() {
                return result.map(|()| here);
            }
            self.counters.restarts.add(1);
        }
    }

    fn go_on(&self, here: &mut Here, rest: &mut Rest<'_>, last: Last) -> Result<()> {
        while let Some(part) = rest.peek() {
            if here.kind != Kind::Directory {
                return Err(not_a_directory(rest, part));
            }
            if rest.name(part) == ".." {
                self.up(here)?;
                rest.take(part);
                continue;
            }
            let superblock = here.on.mount().superblock.superblock();
            let entry = superblock.lookup(here.inode, rest.name(part))?;
            if entry.kind == Kind::Symlink && (last == Last::Follow || rest.goes_on_after(part)) {
                let target = superblock.read_link(entry.inode)?;
                rest.take(part);
                if rest.follow(target)? {
                    if here.is_astray() {
                        return Ok(());
                    }
                    *here = self.begin_with_reference(Start::Root)?;
                }
                continue;
            }
            rest.take(part);
            (here.inode, here.kind) = (entry.inode, entry.kind);
            self.down(here);
            if here.kind != Kind::Directory && rest.goes_on() {
                return Err(not_a_directory(rest, part));
            }
        }
        Ok(())
    }

    fn begin_with_reference(&self, start: Start<'_>) -> Result<Here> {
        let at = |on: Passing, inode, is_at_start| Here { on, inode, kind: Kind::Directory, is_at_start };
        match start {
            Start::Pin(pin) if !self.is_home_of(pin) => Err(Error::NotHere),
            Start::Pin(pin) => Ok(at(Passing::beside(pin.arc()), pin.inode(), true)),
            Start::Place(place) => {
                let find = |guard: &'_ Guard<'_>| {
                    self.by_id.find((place.mount.0, 0), guard).map(|mount| (Arc::clone(mount), place.inode))
                };
                let (on, inode) = self.reference(find).ok_or(Error::NotHere)?;
                Ok(at(on, inode, false))
            }
            Start::Root => {
                let find = |guard: &'_ Guard<'_>| {
                    self.root.load(guard).as_ref().map(|mount| (Arc::clone(mount), mount.root))
                };
                let (on, inode) = self.reference(find).ok_or(Error::NotHere)?;
                let mut here = at(on, inode, false);
                self.down(&mut here);
                Ok(here)
            }
        }
    }

    /// A reference on the mount that `find` finds; none, if there was nothing at a moment of the
    /// call.
    fn reference(
        &self,
        find: impl Fn(&Guard<'_>) -> Option<(Arc<Mount>, Inode)>,
    ) -> Option<(Passing, Inode)> {
        let lock = &self.home.lock;
        for _ in 0..ATTEMPTS {
            let seq = lock.sample();
            let guard = self.home.domain.read();
            let Some((mount, inode)) = find(&guard) else {
                if lock.is_unchanged(seq) {
                    return None;
                }
                continue;
            };
            let found = own(&mount, seq);
            drop(guard);
            if let Ok(on) = found {
                return Some((on, inode));
            }
        }
        // Changes come too fast: keep them away. The namespace holds the mounts in the tables until
        // they change.
        let _held = lock.hold();
        let (mount, inode) = find(&self.home.domain.read())?;
        Some((Passing::beside(&mount), inode))
    }

    fn down(&self, here: &mut Here) {
        let mut on = here.on.mount().id;
        while let Some((mount, inode)) = self.reference(|guard| {
            self.by_place.find((on.0, here.inode.0), guard).map(|mount| (Arc::clone(mount), mount.root))
        }) {
            here.kind = mount.mount().kind;
            on = mount.mount().id;
            (here.on, here.inode, here.is_at_start) = (mount, inode, false);
        }
    }

    fn up(&self, here: &mut Here) -> Result<()> {
        loop {
            let on = Arc::clone(here.on.mount());
            if here.inode != on.root {
                here.inode = on.superblock.superblock().parent(here.inode)?;
                break;
            }
            let find = |guard: &'_ Guard<'_>| {
                on.parent.load(guard).as_ref().map(|parent| (Arc::clone(&parent.mount), parent.at))
            };
            match self.reference(find) {
                Some((mount, inode)) => (here.on, here.inode, here.is_at_start) = (mount, inode, false),
                None => return Ok(()),
            }
        }
        here.kind = Kind::Directory;
        self.down(here);
        Ok(())
    }
}
