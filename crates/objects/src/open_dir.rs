//! Open directories.
//!
//! A directory is listed in one of two orders, and a place says which: by the hashes of names
//! ([`crate::listing`]), where a place means the same in every opening, or, where there are too many of
//! them, by the names ([`counted`]), where a place is the opening's own.
//!
//! An opening whose listing the kernel may remember lists by hashes for as long as it is open; others
//! find out each time when they begin. Every opening knows the places of both.

mod counted;
mod fill;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::Arc;

use parking_lot::Mutex;
use store::{Dir, DirEntry, FileType, Kept, OpenDirState, Result};
use tokio::runtime::Handle;

pub(crate) use counted::Names;
use counted::{DOTS, LIST_BATCH, NameBatch};

use crate::listing::{Given, HashPlace, Listing, NAMES_MAX, PIECE, Twin};
use crate::node::Pin;
use crate::rows::{self, EntryRow, entry_key};
use crate::tree::Tree;
use crate::wait::{read, wait};

/// An open directory.
#[derive(Debug)]
pub(crate) struct BucketDir {
    tree: Arc<Tree>,
    pin: Pin,
    runtime: Handle,
    /// Its places are those of all openings.
    is_by_hash: bool,
    listing: Arc<Listing>,
    twin: Mutex<Twin>,
    names: Mutex<Names>,
}

impl BucketDir {
    /// A new opening.
    pub(crate) fn open(tree: Arc<Tree>, pin: Pin, runtime: Handle) -> Result<Self> {
        let mut dir = Self::with(tree, pin, runtime, None);
        dir.is_by_hash = dir.is_few(PIECE)?;
        Ok(dir)
    }

    /// An opening of another program or process, which counts names if it has `names`.
    pub(crate) fn with(tree: Arc<Tree>, pin: Pin, runtime: Handle, names: Option<Names>) -> Self {
        let is_by_hash = names.is_none() && tree.engine.followed().is_none();
        let (listing, twin) = (pin.names.listing(&tree.listing_room), Mutex::default());
        Self { tree, pin, runtime, is_by_hash, listing, twin, names: Mutex::new(names.unwrap_or_default()) }
    }

    fn read<F: Future>(&self, future: F) -> F::Output {
        read(&self.tree, &self.runtime, self.pin.ino, future)
    }

    /// Whether the directory has few names, as far as `max` of them tell. Names that others change are
    /// not followed in memory.
    fn is_few(&self, max: usize) -> Result<bool> {
        Ok(self.tree.engine.followed().is_none()
            && self.read(fill::is_few(&self.listing, &self.tree, &self.pin, max))?)
    }

    fn list_by_hash(&self, mut place: HashPlace, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let mut twin = self.twin.lock();
        let mut give = |name: &OsStr, entry: EntryRow, next: HashPlace| {
            let (name, kind) = (name.to_owned(), Some(entry.kind.into()));
            sink(DirEntry { name, ino: entry.ino, kind, next: next.offset() })
        };
        loop {
            let Given::Until(next) = self.listing.give(place, &mut twin, &mut give) else { return Ok(()) };
            let _turn = wait(&self.runtime, self.listing.turn());
            self.read(fill::fill(&self.listing, &self.tree, &self.pin, next, usize::MAX))?;
            // With the turn, so that another opening that reads another part does not come in between.
            match self.listing.give(next, &mut twin, &mut give) {
                Given::All => return Ok(()),
                Given::Until(next) => place = next,
            }
        }
    }

    fn batch(&self, number: usize) -> Result<NameBatch> {
        let after = {
            let names = self.names.lock();
            if let Some(batch) = names.kept(number) {
                return Ok(batch);
            }
            match number.checked_sub(1) {
                None => names.begin.1.clone(),
                Some(before) => match names.lasts.get(before) {
                    Some(last) => Some(last.clone()),
                    // A short batch is the last.
                    None => return Ok(Arc::default()),
                },
            }
        };
        let mut range = rows::keys_of(b'D', self.pin.ino);
        if let Some(after) = after {
            range.start = entry_key(self.pin.ino, &after);
            range.start.push(0);
        }
        let scan = self.tree.engine.scan(range, LIST_BATCH);
        let rows = self.read(scan)?;
        let batch: Result<Vec<_>> = rows
            .iter()
            .map(|(key, row)| {
                let name = OsString::from_vec(rows::rest_of(key).to_vec());
                Ok((name, rows::from_bytes(row, "a directory entry")?))
            })
            .collect();
        let batch = Arc::new(batch?);
        self.names.lock().keep(number, &batch);
        Ok(batch)
    }

    fn list_by_name(&self, at: usize, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let (begin, known) = {
            let mut names = self.names.lock();
            names.begin_for(at);
            (names.begin.0, names.lasts.len())
        };
        let mut at = at - begin;
        // Batches before it: this opening may be asked for a place of another one's, or of another
        // server's.
        for number in known..at / LIST_BATCH {
            if self.batch(number)?.len() < LIST_BATCH {
                return Ok(());
            }
        }
        loop {
            let batch = self.batch(at / LIST_BATCH)?;
            let rest = batch.get(at % LIST_BATCH..).unwrap_or_default();
            if rest.is_empty() {
                // It may have had more when they were counted.
                if begin + at <= NAMES_MAX / 2 {
                    self.pin.names.may_be_few();
                }
                return Ok(());
            }
            for (name, entry) in rest {
                at += 1;
                let (name, kind) = (name.clone(), Some(entry.kind.into()));
                if !sink(DirEntry { name, ino: entry.ino, kind, next: (begin + at) as u64 + DOTS }) {
                    return Ok(());
                }
            }
        }
    }
}

impl Dir for BucketDir {
    fn shares_places(&self) -> bool {
        self.is_by_hash
    }

    fn hand_over(&self, _kept: &mut Kept) -> Result<OpenDirState> {
        // Of one by hashes there is nothing to say.
        let listed = if self.is_by_hash { Ok(String::new()) } else { self.names.lock().to_text() };
        listed.map(OpenDirState::Listed)
    }

    fn list(&self, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        if let Some(place) = HashPlace::of_offset(offset) {
            return self.list_by_hash(place, sink);
        }
        if offset >= DOTS {
            let at = usize::try_from(offset - DOTS).unwrap_or(usize::MAX);
            return self.list_by_name(at, sink);
        }
        let is_by_hash = self.is_by_hash || self.is_few(NAMES_MAX)?;
        if offset == 0 {
            *self.names.lock() = Names::default();
        }
        let dir = |name: &str, ino: u64, next: u64| DirEntry {
            name: name.into(),
            ino,
            kind: Some(FileType::Directory),
            next,
        };
        if offset == 0 && !sink(dir(".", self.pin.ino, 1)) {
            return Ok(());
        }
        let parent = self.read(self.pin.lock())?.row.parent;
        let behind = if is_by_hash { HashPlace::START.offset() } else { DOTS };
        if !sink(dir("..", parent, behind)) {
            return Ok(());
        }
        if is_by_hash { self.list_by_hash(HashPlace::START, sink) } else { self.list_by_name(0, sink) }
    }
}
