//! Names of a directory in the order of their hashes.
//!
//! A place in this order is a hash: it means the same in every opening of the directory, in every
//! process, and whatever was made or removed meanwhile. So the kernel may remember such a listing, and
//! go on in any opening where it does not.
//!
//! The engine has names in the order of their bytes. So while a directory is open for listing, a
//! [`Part`] of its names is kept in memory, shared by its openings: those whose hashes are in a range.
//! Of a directory of up to [`NAMES_MAX`] names that is all of them. A larger one is read from its
//! beginning for each part: such a directory is listed in the order of names ([`crate::open_dir`]),
//! unless the kernel was told that it may remember its listing, and it has grown since.
//!
//! A part is always true: it is read a piece at a time with the directory's inode locked, and each
//! change of its names ([`DirNames::changing`]), which is made under that lock, is made in the part as
//! well. Names behind those that were read come with a later piece.
//!
//! # Equal hashes
//! A place says: names whose hash is this or larger come next. Between two names with one hash it is that
//! hash: the opening goes on behind the one that it has listed last, and another opening lists both again.
//! One of 2^61 pairs of names has equal hashes.
//!
//! # Lock order
//! `Listing::turn`, then the inode's state, then `DirNames`, then `Listing::part`, which is a leaf. A
//! sink is called with `turn` and `part` held.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::hash::Hasher as _;
use std::ops::{Bound, Range};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use siphasher::sip::SipHasher13;
use store::Result;
use sync::mutant::is_on;
use tokio::sync::{Mutex as AsyncMutex, MutexGuard as AsyncGuard};

use crate::rows::{self, EntryRow, entry_key};

/// The most names of a directory that is listed in this order.
pub(crate) const NAMES_MAX: usize = if cfg!(test) { 64 } else { 1 << 16 };
/// Names that are read at a time, and that an opening reads to find out how many there are.
pub(crate) const PIECE: usize = if cfg!(test) { 8 } else { 4096 };
/// Names that all parts of a volume have together before each has few.
const ALL_NAMES: usize = 4 * NAMES_MAX;
/// The most names of a part then.
const FEW_NAMES: usize = if cfg!(test) { 8 } else { 1024 };
/// Tells places of this order from those that count names.
const MARK: u64 = 1 << 62;

/// A place in a listing: names whose hash is this or larger come next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct HashPlace(u64);

impl HashPlace {
    pub(crate) const START: Self = Self(0);
    /// No name's hash is this.
    const END: Self = Self(MARK - 1);

    /// The place that an offset stands for, if it is one of this order.
    pub(crate) fn of_offset(offset: u64) -> Option<Self> {
        (offset & !Self::END.0 == MARK).then_some(Self(offset & Self::END.0))
    }

    pub(crate) fn offset(self) -> u64 {
        MARK | self.0
    }

    fn of_name(name: &OsStr) -> Self {
        let mut hasher = SipHasher13::new();
        hasher.write(name.as_bytes());
        // Even: the place behind a name is not that of a name whose hash is larger by one.
        Self(hasher.finish() >> 3 << 1)
    }

    /// Behind all names with this hash.
    fn behind(self) -> Self {
        Self(self.0 + 1)
    }
}

/// A change of one name.
#[derive(Debug)]
pub(crate) struct NameChange<'a> {
    pub(crate) name: &'a OsStr,
    pub(crate) was_there: bool,
    pub(crate) now: Option<EntryRow>,
}

impl<'a> NameChange<'a> {
    /// A name that was not there.
    pub(crate) fn made(name: &'a OsStr, entry: EntryRow) -> Self {
        Self { name, was_there: false, now: Some(entry) }
    }

    pub(crate) fn removed(name: &'a OsStr) -> Self {
        Self { name, was_there: true, now: None }
    }

    /// How many names there are then of so many.
    fn count(&self, before: usize) -> usize {
        (before + usize::from(self.now.is_some())).saturating_sub(self.was_there.into())
    }
}

/// How many names a directory has.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    #[default]
    Unknown,
    Exactly(usize),
    /// More than [`NAMES_MAX`], when they were counted.
    Many,
}

/// What is known of the names of a directory in use.
#[derive(Debug, Default)]
pub(crate) struct DirNames(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    count: Count,
    listing: Weak<Listing>,
}

impl DirNames {
    /// The directory is new.
    pub(crate) fn none_yet(&self) {
        self.0.lock().count = Count::Exactly(0);
    }

    pub(crate) fn count(&self) -> Count {
        self.0.lock().count
    }

    /// So many names were counted, with its inode locked.
    pub(crate) fn set_count(&self, count: usize) {
        self.0.lock().count = Count::Exactly(count);
    }

    /// There are more than [`NAMES_MAX`].
    pub(crate) fn set_many(&self) {
        self.0.lock().count = Count::Many;
    }

    /// It had many names, and may have few by now.
    pub(crate) fn may_be_few(&self) {
        let mut known = self.0.lock();
        if known.count == Count::Many {
            known.count = Count::Unknown;
        }
    }

    /// What its openings share.
    pub(crate) fn listing(&self, room: &Arc<ListingRoom>) -> Arc<Listing> {
        let mut known = self.0.lock();
        known.listing.upgrade().unwrap_or_else(|| {
            let listing = Arc::new(Listing::new(Arc::clone(room)));
            known.listing = Arc::downgrade(&listing);
            listing
        })
    }

    /// A change of its names begins, with its inode locked until that has ended.
    pub(crate) fn changing(&self) -> Changing<'_> {
        Changing(Some(self))
    }

    fn changed(&self, change: &NameChange<'_>) {
        let mut known = self.0.lock();
        let listing = known.listing.upgrade();
        if let Count::Exactly(count) = &mut known.count {
            *count = change.count(*count);
        }
        if let Some(listing) = listing {
            listing.part.lock().change(change);
        }
    }

    fn forget(&self) {
        let mut known = self.0.lock();
        known.count = Count::Unknown;
        if let Some(listing) = known.listing.upgrade() {
            listing.part.lock().begin(HashPlace::START);
        }
    }
}

/// A change of a directory's names. If it is dropped before its end, nothing is known of them any more.
#[derive(Debug)]
#[must_use]
pub(crate) struct Changing<'a>(Option<&'a DirNames>);

impl Changing<'_> {
    /// The engine has the change.
    pub(crate) fn end(mut self, change: &NameChange<'_>) {
        if let Some(names) = self.0.take() {
            names.changed(change);
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        if let Some(names) = self.0.take() {
            names.forget();
        }
    }
}

/// How many names all parts of a volume have.
#[derive(Debug, Default)]
pub(crate) struct ListingRoom(AtomicUsize);

impl ListingRoom {
    /// A part that had so many names has so many now; says how many it may have.
    fn resize(&self, before: usize, now: usize) -> usize {
        // ORDERING: Relaxed, a figure: parts that grow together may pass the bound by a piece each.
        let all = self.0.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
        if all.wrapping_add(now).wrapping_sub(before) > ALL_NAMES { FEW_NAMES } else { NAMES_MAX }
    }
}

/// What the openings of a directory share.
#[derive(Debug)]
pub(crate) struct Listing {
    part: Mutex<Part>,
    /// Held by the thread that reads a part, until it has listed from it.
    turn: AsyncMutex<()>,
}

/// How far a part gave what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Given {
    /// The sink has refused a name, or there is none any more.
    All,
    /// Names from here on are not there.
    Until(HashPlace),
}

/// What an opening listed last where the next name has the same hash.
pub(crate) type Twin = Option<(HashPlace, OsString)>;

impl Listing {
    fn new(room: Arc<ListingRoom>) -> Self {
        Self { part: Mutex::new(Part::new(room)), turn: AsyncMutex::default() }
    }

    pub(crate) async fn turn(&self) -> AsyncGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Gives the names behind `place` that are in memory, with the place behind each.
    pub(crate) fn give(
        &self,
        place: HashPlace,
        twin: &mut Twin,
        sink: &mut dyn FnMut(&OsStr, EntryRow, HashPlace) -> bool,
    ) -> Given {
        self.part.lock().give(place, twin, sink)
    }

    /// What is to be read of the directory `dir` for the names that follow `place`, of which no more than
    /// `max` are read. Until it is added, with [`Listing::add`], the directory's inode is locked.
    pub(crate) fn to_read(&self, dir: u64, place: HashPlace, max: usize) -> ToRead {
        let mut part = self.part.lock();
        part.begin_unless_at(place);
        match part.rest(dir) {
            None => ToRead::Nothing,
            Some(_) if part.seen >= max => ToRead::NoMore,
            Some(range) => ToRead::Rows(range),
        }
    }

    /// Adds the rows that were to be read; says how many names there are when these were the last.
    pub(crate) fn add(&self, rows: &[(Bytes, Bytes)]) -> Result<Option<usize>> {
        self.part.lock().add(rows)
    }

    /// Gives up the names that are in memory.
    pub(crate) fn clear(&self) {
        self.part.lock().begin(HashPlace::START);
    }
}

/// What is to be read for a part.
#[derive(Debug)]
pub(crate) enum ToRead {
    /// All names are there.
    Nothing,
    /// As many were read as may be.
    NoMore,
    /// [`PIECE`] of these rows at most.
    Rows(Range<Vec<u8>>),
}

/// How far a directory was read for a part, in the order of names.
#[derive(Debug, PartialEq, Eq)]
enum Read {
    UpTo(OsString),
    All,
}

/// The names of a directory whose hashes are in a range.
#[derive(Debug)]
struct Part {
    room: Arc<ListingRoom>,
    from: HashPlace,
    /// Where it ends; behind all hashes: it has all names from its beginning on.
    to: HashPlace,
    names: BTreeMap<(HashPlace, OsString), EntryRow>,
    read: Read,
    /// How many of the names that were read the directory has, in this part or not.
    seen: usize,
}

impl Part {
    fn new(room: Arc<ListingRoom>) -> Self {
        let (from, to, read) = (HashPlace::START, HashPlace::END, Read::UpTo(OsString::new()));
        Self { room, from, to, names: BTreeMap::new(), read, seen: 0 }
    }

    fn has(&self, place: HashPlace) -> bool {
        self.from <= place && (place < self.to || self.to == HashPlace::END)
    }

    fn begin(&mut self, place: HashPlace) {
        self.room.resize(self.names.len(), 0);
        self.names.clear();
        (self.from, self.to, self.read, self.seen) = (place, HashPlace::END, Read::UpTo(OsString::new()), 0);
    }

    fn begin_unless_at(&mut self, place: HashPlace) {
        if !self.has(place) {
            self.begin(place);
        }
    }

    /// The rows that are not read yet; `None`: all are.
    fn rest(&self, dir: u64) -> Option<Range<Vec<u8>>> {
        let Read::UpTo(name) = &self.read else { return None };
        let mut range = rows::keys_of(b'D', dir);
        if !name.is_empty() {
            range.start = entry_key(dir, name);
            range.start.push(0);
        }
        Some(range)
    }

    /// Adds the rows that come next; says how many names there are when these were the last.
    fn add(&mut self, rows: &[(Bytes, Bytes)]) -> Result<Option<usize>> {
        for (key, row) in rows {
            let name = OsStr::from_bytes(rows::rest_of(key));
            self.insert(name, rows::from_bytes(row, "a directory entry")?);
        }
        self.seen += rows.len();
        self.read = match rows.last() {
            Some((last, _)) if rows.len() == PIECE => {
                Read::UpTo(OsStr::from_bytes(rows::rest_of(last)).to_owned())
            }
            _ => Read::All,
        };
        Ok((self.read == Read::All).then_some(self.seen))
    }

    fn change(&mut self, change: &NameChange<'_>) {
        if is_on("listing-misses-changes") {
            return;
        }
        let is_read = match &self.read {
            Read::UpTo(last) => change.name <= last.as_os_str(),
            Read::All => true,
        };
        if !is_read {
            return;
        }
        self.seen = change.count(self.seen);
        match change.now {
            Some(entry) => self.insert(change.name, entry),
            None => {
                let key = (HashPlace::of_name(change.name), change.name.to_owned());
                if self.names.remove(&key).is_some() {
                    self.room.resize(1, 0);
                }
            }
        }
    }

    fn insert(&mut self, name: &OsStr, entry: EntryRow) {
        self.insert_at(HashPlace::of_name(name), name, entry);
    }

    fn insert_at(&mut self, hash: HashPlace, name: &OsStr, entry: EntryRow) {
        if !self.has(hash) || self.names.insert((hash, name.to_owned()), entry).is_some() {
            return;
        }
        if self.names.len() <= self.room.resize(0, 1) {
            return;
        }
        // Names with the last hash of all go, unless there is no other.
        let first = self.names.first_key_value().map(|(key, _)| key.0);
        let Some(last) = self.names.last_key_value().map(|(key, _)| key.0) else { return };
        if first < Some(last) {
            let gone = self.names.split_off(&(last, OsString::new()));
            self.room.resize(gone.len(), 0);
            self.to = last;
        }
    }

    fn give(
        &self,
        place: HashPlace,
        twin: &mut Twin,
        sink: &mut dyn FnMut(&OsStr, EntryRow, HashPlace) -> bool,
    ) -> Given {
        if self.read != Read::All || !self.has(place) {
            return Given::Until(place);
        }
        let from = match twin {
            Some((before, name)) if *before == place => Bound::Excluded((place, name.clone())),
            _ => Bound::Included((place, OsString::new())),
        };
        let mut names = self.names.range((from, Bound::Unbounded)).peekable();
        while let Some(((hash, name), entry)) = names.next() {
            let has_twin = names.peek().is_some_and(|((next, _), _)| next == hash);
            if !sink(name, *entry, if has_twin { *hash } else { hash.behind() }) {
                return Given::All;
            }
            *twin = has_twin.then(|| (*hash, name.clone()));
        }
        if self.to == HashPlace::END { Given::All } else { Given::Until(self.to) }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.room.resize(self.names.len(), 0);
    }
}

#[cfg(test)]
mod schedules;
