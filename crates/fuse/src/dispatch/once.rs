//! Requests that must not be executed twice: those that make, remove or move names.
//!
//! Before the store is asked, the journal says so; after that it has the outcome. The kernel sends the
//! request again if its answer was not given:
//!
//! | the journal says | the request |
//! |---|---|
//! | nothing | is executed |
//! | its outcome | is answered with that |
//! | that the store was asked | was executed if the store shows it (below), else it is executed |
//!
//! While the kernel waits for the answer it keeps the directories locked, so that nobody else has made or
//! removed the names, and it has looked for them before: a name that is to be made was not there, one that
//! is to be removed was.
//!
//! | the request | was executed if |
//! |---|---|
//! | makes a name | the name is there |
//! | links | the name is there, of that file |
//! | removes a name | the name is not there |
//! | moves a name | it is not there any more; where two are exchanged, the other one has its object |
//! | opens, creates | the journal has an opening by this request; a file that was made and not opened is opened |
//!
//! All other requests say the same at each time: a write has its offset, a size is set and not added to.

#[cfg(all(test, shuttle))]
mod schedules;

use std::ffi::OsStr;

use recovery::{Journal, OpenRecord, Phase, RequestRecord, Slot};
use rustix::io::Errno;
use store::{Entry, RenameFlags};
use volume::{NodeId, Volume};

use crate::protocol::errno;

/// The journal's part for the request in hand.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Once<'a> {
    journal: Option<(&'a Journal, Slot)>,
    /// How far a server before has come.
    before: Phase,
    is_resent: bool,
}

impl<'a> Once<'a> {
    pub(super) fn new(
        journal: Option<&'a Journal>,
        slot: Option<Slot>,
        before: Option<RequestRecord>,
    ) -> Self {
        let is_resent = before.is_some();
        Self { journal: journal.zip(slot), before: before.unwrap_or_default().phase, is_resent }
    }

    fn set(&self, phase: Phase) {
        if let Some((journal, slot)) = self.journal {
            journal.set_phase(slot, phase);
        }
    }

    /// What a server before has opened for this request.
    pub(super) fn opened(&self) -> Option<OpenRecord> {
        let (journal, _) = self.journal.filter(|_| self.is_resent)?;
        journal.opened_before()
    }

    /// Executes; notes an intent with `found`, and the outcome with what `done` makes of it.
    fn execute<T>(
        &self,
        found: u64,
        run: impl FnOnce() -> volume::Result<T>,
        done: impl FnOnce(&T) -> u64,
    ) -> Result<T, Errno> {
        self.set(Phase::Intent(found));
        let result = run().map_err(|error| errno::of(&error));
        match &result {
            Ok(value) => self.set(Phase::Done(done(value))),
            Err(error) => self.set(Phase::Failed(error.raw_os_error().unsigned_abs())),
        }
        result
    }

    /// Makes the entry `name`; `is_it` says whether one that is found is what the request makes.
    pub(super) fn make(
        &self,
        (volume, dir, name): (&Volume, NodeId, &OsStr),
        is_it: impl Fn(&Entry) -> bool,
        run: impl FnOnce() -> volume::Result<Entry>,
    ) -> Result<Entry, Errno> {
        match self.before {
            Phase::Begun => {}
            Phase::Done(node) => {
                return entry_of(volume, store::ObjectId(node)).map_err(|error| errno::of(&error));
            }
            Phase::Failed(errno) => return Err(failed(errno)),
            Phase::Intent(_) => {
                if let Some(entry) = found(volume, dir, name, is_it) {
                    return Ok(entry);
                }
            }
        }
        self.execute(0, run, |entry| entry.id.0)
    }

    /// Makes a file and opens it; its opening is the outcome, or the error.
    pub(super) fn create<T>(
        &self,
        (volume, dir, name): (&Volume, NodeId, &OsStr),
        reopen: impl FnOnce(Entry) -> volume::Result<T>,
        run: impl FnOnce() -> volume::Result<T>,
    ) -> Result<T, Errno> {
        let is_file = |entry: &Entry| entry.attr.kind == store::FileType::Regular;
        let made = match self.before {
            Phase::Failed(errno) => return Err(failed(errno)),
            Phase::Intent(_) => found(volume, dir, name, is_file),
            Phase::Begun | Phase::Done(_) => None,
        };
        let opened = match made {
            Some(entry) => reopen(entry),
            None => {
                self.set(Phase::Intent(0));
                run()
            }
        };
        opened.map_err(|error| {
            let errno = errno::of(&error);
            self.set(Phase::Failed(errno.raw_os_error().unsigned_abs()));
            errno
        })
    }

    /// Removes the entry `name`.
    pub(super) fn remove(
        &self,
        (volume, dir, name): (&Volume, NodeId, &OsStr),
        run: impl FnOnce() -> volume::Result<()>,
    ) -> Result<(), Errno> {
        match self.before {
            Phase::Begun => {}
            Phase::Done(_) => return Ok(()),
            Phase::Failed(errno) => return Err(failed(errno)),
            Phase::Intent(_) if is_missing(volume, dir, name) => return Ok(()),
            Phase::Intent(_) => {}
        }
        self.execute(0, run, |()| 0)
    }

    /// Moves a name to another one.
    pub(super) fn rename(
        &self,
        volume: &Volume,
        (dir, name): (NodeId, &OsStr),
        (new_dir, new_name): (NodeId, &OsStr),
        flags: RenameFlags,
        run: impl FnOnce() -> volume::Result<()>,
    ) -> Result<(), Errno> {
        let id_at = |dir, name| {
            let entry = volume.lookup(dir, name).ok()?;
            volume.forget(entry.id, 1);
            Some(entry.id.0)
        };
        // Only where something is left under the old name.
        let leaves_one = flags.intersects(RenameFlags::EXCHANGE | RenameFlags::WHITEOUT);
        let before = match self.before {
            Phase::Begun if leaves_one && self.journal.is_some() => id_at(dir, name).unwrap_or(0),
            Phase::Begun => 0,
            Phase::Done(_) => return Ok(()),
            Phase::Failed(errno) => return Err(failed(errno)),
            Phase::Intent(id) if leaves_one && id_at(new_dir, new_name) == Some(id) => return Ok(()),
            Phase::Intent(_) if !leaves_one && is_missing(volume, dir, name) => return Ok(()),
            Phase::Intent(id) => id,
        };
        self.execute(before, run, |()| 0)
    }

    /// Sets or removes something that a second attempt finds changed; `is_done` says whether the store
    /// shows that it was. Then `finish` does what belongs to it, and may be done again.
    pub(super) fn change(
        &self,
        is_done: impl FnOnce() -> bool,
        finish: impl FnOnce() -> volume::Result<()>,
        run: impl FnOnce() -> volume::Result<()>,
    ) -> Result<(), Errno> {
        match self.before {
            Phase::Begun => {}
            Phase::Done(_) => return Ok(()),
            Phase::Failed(errno) => return Err(failed(errno)),
            Phase::Intent(_) if is_done() => return self.execute(0, finish, |()| 0),
            Phase::Intent(_) => {}
        }
        self.execute(0, run, |()| 0)
    }

    /// Whether the kernel has sent the request before.
    pub(super) fn is_resent(&self) -> bool {
        self.is_resent
    }

    /// Whether there is a journal.
    pub(super) fn is_noted(&self) -> bool {
        self.journal.is_some()
    }
}

fn failed(errno: u32) -> Errno {
    Errno::from_raw_os_error(i32::try_from(errno).unwrap_or(libc::EIO))
}

/// The entry of a node whose look-up was noted by the server before.
pub(super) fn entry_of(volume: &Volume, node: NodeId) -> volume::Result<Entry> {
    let entry = volume.look_up_again(node)?;
    volume.forget(node, 1);
    Ok(entry)
}

/// The entry with a look-up, if it is there and what was wanted.
fn found(volume: &Volume, dir: NodeId, name: &OsStr, is_it: impl Fn(&Entry) -> bool) -> Option<Entry> {
    let entry = volume.lookup(dir, name).ok()?;
    if is_it(&entry) {
        return Some(entry);
    }
    volume.forget(entry.id, 1);
    None
}

fn is_missing(volume: &Volume, dir: NodeId, name: &OsStr) -> bool {
    match volume.lookup(dir, name) {
        Ok(entry) => {
            volume.forget(entry.id, 1);
            false
        }
        Err(error) => errno::of(&error) == Errno::NOENT,
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::cell::Cell;
    use std::sync::Arc;

    use recovery::journal::RESENT;
    use store::{Creator, MemStore, Name, Store as _};
    use volume::Options;

    use super::*;

    const ROOT: NodeId = NodeId::ROOT;

    /// A request that a server has in its hands; the next one finds how far it came.
    struct Server {
        journal: Journal,
        slot: Slot,
        before: Option<RequestRecord>,
    }

    impl Server {
        fn new(journal: Journal, unique: u64) -> Self {
            let slot = journal.add_thread().expect("a slot");
            let before = journal.begin(slot, unique);
            Self { journal, slot, before }
        }

        fn once(&self) -> Once<'_> {
            Once::new(Some(&self.journal), Some(self.slot), self.before)
        }

        /// The one that follows.
        fn next(self) -> Self {
            let file = self.journal.file().expect("a file").try_clone_to_owned().expect("a copy");
            Self::new(Journal::recover(file, recovery::LastEnd::Killed).expect("it is whole"), 8 | RESENT)
        }
    }

    fn volume_over(store: &Arc<MemStore>) -> Arc<Volume> {
        let options = Options { flushers: 0, ..Options::default() };
        Volume::new(Arc::clone(store) as _, options).expect("a volume")
    }

    #[test]
    fn a_file_that_another_process_has_made_is_not_the_callers() {
        let store = MemStore::new(1 << 20);
        let volume = volume_over(&store);
        let name = OsStr::new("there");
        let creator = Creator { uid: 0, gid: 0, umask: 0 };
        let made = store.create(ROOT, Name::new(name).expect("a name"), 0o644, creator);
        made.expect("another process makes it");
        let first = Server::new(Journal::create().expect("a journal"), 8);
        let exists = || Err(store::Error::new(store::ErrorKind::Exists, "create").into());
        let created = first.once().create((&volume, ROOT, name), |_| Ok(()), exists);
        assert_eq!(created, Err(Errno::EXIST));
        let next = first.next();
        let created = next.once().create((&volume, ROOT, name), |_| Ok(()), || Ok(()));
        assert_eq!(created, Err(Errno::EXIST), "it was opened");
    }

    #[test]
    fn what_belongs_to_a_change_is_done_where_the_server_died_before_it() {
        let first = Server::new(Journal::create().expect("a journal"), 8);
        // It dies when it has changed the store.
        first.once().set(Phase::Intent(0));
        let next = first.next();
        let finished = Cell::new(0);
        let finish = || {
            finished.set(finished.get() + 1);
            Ok(())
        };
        let again = || panic!("it was changed already");
        assert_eq!(next.once().change(|| true, finish, again), Ok(()));
        assert_eq!(finished.get(), 1);
        // The outcome is noted.
        let last = next.next();
        let not = || panic!("it was done");
        assert_eq!(last.once().change(|| true, not, not), Ok(()));
    }
}
