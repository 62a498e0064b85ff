//! What the kernel knows of a server, written down as the server answers.
//!
//! The journal is a memory of fixed size: slots for nodes, for openings and for requests. It stays
//! when the server dies, since the keeper holds it, and the next server reads it.
//!
//! ```text
//! journal    the memory, its slots, and what a server before has left
//! ├─ nodes     a node, and how often the kernel has looked it up
//! ├─ opens     an opening, and the request that made it
//! ├─ places    how far an open directory was listed
//! ├─ requests  a thread's request, and how far it came
//! └─ record    what they are for their users
//! ```
//!
//! # Always whole
//! A slot's first word says whether it counts. It is stored last when a record is made and first when
//! it ends; all other words of a record are written while it does not count, or are valid at each
//! value (a node's look-ups, a request's phase). The server dies between two stores, and all those
//! before are there then: see [`Memory`]. `fuse::dispatch::once::schedules` tries this: it ends a server at
//! each of its stores.
//!
//! # Which way it errs
//! A node is noted before the answer that gives it to the kernel, and its look-ups before that, too.
//! So a server that dies in between leaves a look-up too many, never one too few: the node may stay
//! known until the mount ends. FORGETs that it had read and not counted do the same: the kernel does
//! not send them again.
//!
//! # Requests
//! Each thread has a slot for the request in its hands, by the kernel's number. For one that must not
//! be executed twice, the slot says how far it came: before the store was asked ([`Phase::Intent`]),
//! or with its outcome. The kernel sends again exactly those that were not answered. Those of a server
//! that died are *orphans* until the next one reads them again, takes their phase, and goes on with it.
//!
//! # Lock order
//! `orphans`, then `requests`; the others are leaves. A slot belongs to one thread, or to one node or opening, whose lock its
//! user holds; so no two threads store to one slot.

mod nodes;
mod opens;
mod places;
mod record;
mod requests;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use sync::Mutex;

use crate::memory::{Memory, MemoryFile};
pub use places::Place;
pub use record::{NodeKey, NodeRecord, OpenKind, OpenRecord, Phase, RequestRecord, Slot};

/// Which format it has.
const FORMAT: u64 = 0x5754_5245_434f_0004;
/// Nodes at most: those that the kernel knows at a time. It has sixteen gigabytes of its own for so many; the
/// journal takes memory only for slots that were used, 192 bytes each.
pub const NODES_MAX: usize = 1 << 24;
/// Open files and directories at most.
pub const OPENS_MAX: usize = 1 << 20;
/// Requests in hand at most, and as many orphans.
pub const REQUESTS_MAX: usize = if cfg!(shuttle) { 16 } else { 1 << 13 };
/// The longest handle (`MAX_HANDLE_SZ`).
pub const HANDLE_BYTES_MAX: usize = 128;
/// The longest name of a directory's entry.
pub const NAME_BYTES_MAX: usize = 255;

const HEADER: usize = 512;
const NODE: usize = 24;
const OPEN: usize = 8;
const REQUEST: usize = 8;
const PLACE: usize = 72;
const NODES_AT: usize = HEADER;
const OPENS_AT: usize = NODES_AT + NODES_MAX * NODE;
const REQUESTS_AT: usize = OPENS_AT + OPENS_MAX * OPEN;
const PLACES_AT: usize = REQUESTS_AT + REQUESTS_MAX * REQUEST;
const WORDS: usize = PLACES_AT + OPENS_MAX * PLACE;

/// Words of the header.
const IS_OFF: usize = 1;
const NEXT_NUMBER: usize = 2;
const SERVERS: usize = 3;
const NODES_USED: usize = 4;
const OPENS_USED: usize = 5;
const DEATHS: usize = 6;

/// The kernel marks a request that it sends again by this bit of its number.
pub const RESENT: u64 = 1 << 63;

/// The node that the kernel knows without a look-up.
const ROOT: u64 = 1;

/// How the server before this one has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LastEnd {
    /// Another process has killed it.
    Killed,
    /// It has crashed by itself.
    Crashed,
    /// It has left its place to a server of another program: this one.
    Upgraded,
    /// It was one of another program, and could not serve: this is the program before.
    GivenBack,
    /// It could not begin to serve, and is tried again.
    Unready,
}

/// Slots that are free: those that were given back, and all from `next` on.
#[derive(Debug, Default)]
struct Free {
    next: usize,
    back: Vec<u32>,
}

impl Free {
    fn take(&mut self, max: usize) -> Option<(Slot, bool)> {
        if let Some(slot) = self.back.pop() {
            return Some((Slot(slot), false));
        }
        let slot = u32::try_from(self.next).ok().filter(|_| self.next < max)?;
        self.next += 1;
        Some((Slot(slot), true))
    }
}

/// The lower half of a word.
fn low(word: u64) -> u32 {
    u32::try_from(word & u64::from(u32::MAX)).unwrap_or(0)
}

/// The journal of one mount.
#[derive(Debug)]
pub struct Journal {
    memory: Arc<dyn Memory>,
    /// The memory, if it is a file.
    file: Option<Arc<MemoryFile>>,
    nodes: Mutex<Free>,
    opens: Mutex<Free>,
    requests: Mutex<Free>,
    /// By the kernel's number, without the mark: those of the server before.
    orphans: Mutex<HashMap<u64, Slot>>,
    /// By the number of the request that made it: what that server had open.
    opened: Mutex<HashMap<u64, OpenRecord>>,
}

sync::thread_local! {
    static REQUEST_IN_HAND: Cell<u64> = const { Cell::new(0) };
}

/// The request that the calling thread has in its hands, by the kernel's number; 0: none.
#[must_use]
pub fn request_in_hand() -> u64 {
    REQUEST_IN_HAND.with(Cell::get)
}

impl Journal {
    /// An empty one in a memory file.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create() -> io::Result<Self> {
        Ok(Self::in_file(Arc::new(MemoryFile::create(WORDS)?)).begun())
    }

    /// An empty one in a memory of zeros.
    #[must_use]
    pub fn create_in(memory: Arc<dyn Memory>) -> Self {
        Self::over(memory).begun()
    }

    /// The journal of a server that has `ended` so. Each request that it had in its hands counts one crash
    /// more if it has crashed.
    ///
    /// # Errors
    /// When it is none.
    pub fn recover(file: OwnedFd, ended: LastEnd) -> io::Result<Self> {
        Self::in_file(Arc::new(MemoryFile::over(file, WORDS)?)).resumed(ended)
    }

    /// As [`recover`](Self::recover), in this memory.
    ///
    /// # Errors
    /// When it is none.
    pub fn recover_in(memory: Arc<dyn Memory>, ended: LastEnd) -> io::Result<Self> {
        Self::over(memory).resumed(ended)
    }

    fn in_file(file: Arc<MemoryFile>) -> Self {
        Self { file: Some(Arc::clone(&file)), ..Self::over(file) }
    }

    fn over(memory: Arc<dyn Memory>) -> Self {
        let (nodes, opens, requests, orphans, opened) = Default::default();
        Self { memory, file: None, nodes, opens, requests, orphans, opened }
    }

    fn begun(self) -> Self {
        self.set(0, FORMAT);
        self
    }

    fn resumed(self, ended: LastEnd) -> io::Result<Self> {
        if self.get(0) != FORMAT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no journal of this format"));
        }
        self.set(SERVERS, self.get(SERVERS) + 1);
        if matches!(ended, LastEnd::Killed | LastEnd::Crashed) {
            self.set(DEATHS, self.get(DEATHS) + 1);
        }
        self.remove_useless();
        let find_free = |at: usize, len: usize, used: usize| Free {
            next: used,
            back: (0..used)
                .rev()
                .filter(|slot| self.get(at + slot * len) == 0)
                .filter_map(|slot| u32::try_from(slot).ok())
                .collect(),
        };
        *self.nodes.lock() = find_free(NODES_AT, NODE, self.used(NODES_USED, NODES_MAX));
        *self.opens.lock() = find_free(OPENS_AT, OPEN, self.used(OPENS_USED, OPENS_MAX));
        *self.requests.lock() = find_free(REQUESTS_AT, REQUEST, REQUESTS_MAX);
        self.find_orphans(ended == LastEnd::Crashed);
        let opens = self.opens().into_iter().map(|(_, open)| (open.request, open));
        *self.opened.lock() = opens.collect();
        Ok(self)
    }

    /// Ends records of which nothing follows: nodes that the kernel had given back and that are not
    /// open, and openings of nodes that are not there. The server died before it ended them.
    fn remove_useless(&self) {
        let looked_up: HashSet<u64> =
            self.nodes().into_iter().filter(|(_, node)| node.lookups > 0).map(|(_, node)| node.id).collect();
        let mut open: HashSet<u64> = self.opens().into_iter().map(|(_, open)| open.node).collect();
        let mut known = HashSet::from([ROOT]);
        for (slot, node) in self.nodes() {
            let is_needed = node.lookups > 0 || (!looked_up.contains(&node.id) && open.remove(&node.id));
            if is_needed {
                known.insert(node.id);
            } else {
                self.set(NODES_AT + slot.0 as usize * NODE, 0);
            }
        }
        for (slot, open) in self.opens() {
            if !known.contains(&open.node) {
                self.set(OPENS_AT + slot.0 as usize * OPEN, 0);
            }
        }
    }

    /// The memory file, if it is in one.
    #[must_use]
    pub fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(|file| file.file())
    }

    /// Which server this is: 0 is the first.
    #[must_use]
    pub fn servers(&self) -> u64 {
        self.get(SERVERS)
    }

    /// How many servers have died before this one.
    #[must_use]
    pub fn deaths(&self) -> u64 {
        self.get(DEATHS)
    }

    /// Whether it has everything: if not, no server can go on from it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.get(IS_OFF) == 0
    }

    /// Something could not be noted: no server can go on from it any more.
    pub fn turn_off(&self) {
        self.set(IS_OFF, 1);
    }

    fn get(&self, at: usize) -> u64 {
        self.memory.load(at)
    }

    fn set(&self, at: usize, value: u64) {
        self.memory.store(at, value);
    }

    /// Puts bytes into as many words as they take.
    fn set_bytes(&self, at: usize, bytes: &[u8]) {
        for (n, part) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.set(at + n, u64::from_le_bytes(word));
        }
    }

    /// So many bytes, as [`set_bytes`](Self::set_bytes) put them.
    fn bytes(&self, at: usize, len: usize) -> Vec<u8> {
        let words = (at..).take(len.div_ceil(8));
        let mut bytes: Vec<u8> = words.flat_map(|at| self.get(at).to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }

    fn used(&self, word: usize, max: usize) -> usize {
        usize::try_from(self.get(word)).unwrap_or(max).min(max)
    }

    /// A slot that does not count yet.
    fn take(&self, free: &Mutex<Free>, max: usize, used: usize) -> Option<Slot> {
        let mut free = free.lock();
        let Some((slot, is_first_use)) = free.take(max) else {
            drop(free);
            self.turn_off();
            return None;
        };
        if is_first_use {
            self.set(used, free.next as u64);
        }
        Some(slot)
    }
}
