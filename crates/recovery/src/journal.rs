//! What the kernel knows of a server, written down as the server answers.
//!
//! The journal is a memory file of fixed size: slots for nodes, for openings and for requests. It
//! stays when the server dies, since the keeper holds it, and the next server reads it.
//!
//! # Always whole
//! A slot's first word says whether it counts. It is stored last when a record is made and first when
//! it ends; all other words of a record are written while it does not count, or are valid at each
//! value (a node's look-ups, a request's phase). The server dies between two instructions, after which
//! all its stores are seen; the compiler keeps their order for Release.
//!
//! # Which way it errs
//! A node is noted before the answer that gives it to the kernel, and its look-ups before that, too.
//! So a server that dies in between leaves a look-up too many, never one too few: the node may stay
//! known until the mount ends. FORGETs that it had read and not counted do the same: the kernel does
//! not send them again.
//!
//! # Requests
//! Each thread has a slot for the request in its hands, by the kernel's number. For one that must not be
//! executed twice, the slot says how far it came: before the store was asked ([`Phase::Intent`]), or
//! with its outcome. The kernel sends again exactly those that were not answered. Those of a server that
//! died are *orphans* until the next one reads them again, takes their phase, and goes on with it.
//!
//! # Lock order
//! `Free` locks are leaves.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use sync::Mutex;
use sync::atomic::Ordering;

use crate::sys::Words;

/// Which format it has.
const FORMAT: u64 = 0x5754_5245_434f_0001;
/// Nodes at most: those that the kernel knows at a time.
pub const NODES_MAX: usize = 1 << 20;
/// Open files and directories at most.
pub const OPENS_MAX: usize = 1 << 18;
/// Requests in hand at most, and as many orphans.
pub const REQUESTS_MAX: usize = 1 << 13;
/// The longest handle (`MAX_HANDLE_SZ`).
pub const HANDLE_BYTES_MAX: usize = 128;

const HEADER: usize = 512;
const NODE: usize = 24;
const OPEN: usize = 8;
const REQUEST: usize = 8;
const NODES_AT: usize = HEADER;
const OPENS_AT: usize = NODES_AT + NODES_MAX * NODE;
const REQUESTS_AT: usize = OPENS_AT + OPENS_MAX * OPEN;
const WORDS: usize = REQUESTS_AT + REQUESTS_MAX * REQUEST;

/// Words of the header.
const IS_OFF: usize = 1;
const NEXT_NUMBER: usize = 2;
const SERVERS: usize = 3;
const NODES_USED: usize = 4;
const OPENS_USED: usize = 5;

/// The kernel marks a request that it sends again by this bit of its number.
pub const RESENT: u64 = 1 << 63;

/// How the host's kernel finds an object again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeKey {
    /// The object's number on its file system.
    pub ino: u64,
    /// Its kind, as a number that the store knows.
    pub kind: u32,
    /// Its generation, if one was handed out.
    pub generation: Option<u32>,
    /// The type of its file handle, and its bytes.
    pub handle: (i32, Vec<u8>),
}

/// A node that the kernel knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRecord {
    /// Its number.
    pub id: u64,
    /// The look-ups that the kernel has.
    pub lookups: u64,
    /// How to find it.
    pub key: NodeKey,
}

/// What is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenKind {
    /// A file.
    File,
    /// A directory.
    Dir,
}

/// Something open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenRecord {
    /// What.
    pub kind: OpenKind,
    /// The number that the kernel has.
    pub handle: u64,
    /// The node.
    pub node: u64,
    /// How it was opened.
    pub flags: u32,
    /// A user that is not root can have mapped it through this opening.
    pub is_foreign_mapper: bool,
    /// The thread that opened it.
    pub opener_pid: u32,
    /// The request that did, by the kernel's number.
    pub request: u64,
}

/// How far a request came that must not be executed twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Phase {
    /// Nothing was done.
    #[default]
    Begun,
    /// The store was asked, or is about to be; with what was found before.
    Intent(u64),
    /// It was done; with the node that it made, if it did.
    Done(u64),
    /// It failed with this error's number.
    Failed(u32),
}

/// A request that a server had in its hands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestRecord {
    /// How far it came.
    pub phase: Phase,
    /// How many servers have died with it in their hands.
    pub crashes: u64,
}

/// A slot of the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot(u32);

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
    memory: Words,
    file: OwnedFd,
    nodes: Mutex<Free>,
    opens: Mutex<Free>,
    requests: Mutex<Free>,
    /// By the kernel's number, without the mark: those of the server before.
    orphans: Mutex<HashMap<u64, Slot>>,
    /// By the number of the request that made it: what that server had open.
    opened: Mutex<HashMap<u64, OpenRecord>>,
}

thread_local! {
    static REQUEST_IN_HAND: Cell<u64> = const { Cell::new(0) };
}

/// The request that the calling thread has in its hands, by the kernel's number; 0: none.
#[must_use]
pub fn request_in_hand() -> u64 {
    REQUEST_IN_HAND.get()
}

impl Journal {
    /// An empty one.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create() -> io::Result<Self> {
        let file = memfd_create("watertight-journal", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (WORDS * size_of::<u64>()) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let journal = Self::over(file)?;
        journal.set(0, FORMAT);
        Ok(journal)
    }

    /// The journal of a server that has died. Each request that it had in its hands counts one crash
    /// more, if `is_crash`: it was not killed by another process.
    ///
    /// # Errors
    /// When it is none.
    pub fn recover(file: OwnedFd, is_crash: bool) -> io::Result<Self> {
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let journal = Self::over(file)?;
        if journal.get(0) != FORMAT || !seals.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no journal of this format"));
        }
        journal.set(SERVERS, journal.get(SERVERS) + 1);
        let find_free = |at: usize, len: usize, used: usize| Free {
            next: used,
            back: (0..used)
                .rev()
                .filter(|slot| journal.get(at + slot * len) == 0)
                .filter_map(|slot| u32::try_from(slot).ok())
                .collect(),
        };
        *journal.nodes.lock() = find_free(NODES_AT, NODE, journal.used(NODES_USED, NODES_MAX));
        *journal.opens.lock() = find_free(OPENS_AT, OPEN, journal.used(OPENS_USED, OPENS_MAX));
        *journal.requests.lock() = find_free(REQUESTS_AT, REQUEST, REQUESTS_MAX);
        journal.find_orphans(is_crash);
        let opens = journal.opens().into_iter().map(|(_, open)| (open.request, open));
        *journal.opened.lock() = opens.collect();
        Ok(journal)
    }

    fn over(file: OwnedFd) -> io::Result<Self> {
        let memory = Words::map(file.as_fd(), WORDS)?;
        let (nodes, opens, requests, orphans, opened) = Default::default();
        Ok(Self { memory, file, nodes, opens, requests, orphans, opened })
    }

    fn find_orphans(&self, is_crash: bool) {
        let mut orphans = self.orphans.lock();
        for slot in 0..REQUESTS_MAX {
            let at = REQUESTS_AT + slot * REQUEST;
            let unique = self.get(at);
            let Some(number) = u32::try_from(slot).ok().filter(|_| unique != 0) else { continue };
            if self.get(at + 4) == 0 {
                // The server had it in its hands; else it had not read it again.
                self.set(at + 3, self.get(at + 3) + u64::from(is_crash));
                self.set(at + 4, 1);
            }
            // A server that took over an orphan has made its copy valid before this one ended.
            if let Some(twice) = orphans.insert(unique & !RESENT, Slot(number)) {
                let is_newer = self.request(twice).crashes > self.request(Slot(number)).crashes;
                let [kept, gone] = if is_newer { [twice.0, number] } else { [number, twice.0] };
                orphans.insert(unique & !RESENT, Slot(kept));
                self.set(REQUESTS_AT + gone as usize * REQUEST, 0);
                self.requests.lock().back.push(gone);
            }
        }
    }

    /// The memory file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Which server this is: 0 is the first.
    #[must_use]
    pub fn servers(&self) -> u64 {
        self.get(SERVERS)
    }

    /// Whether it has everything: if not, no server can go on from it.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.get(IS_OFF) == 0
    }

    /// Something could not be noted.
    fn turn_off(&self) {
        self.set(IS_OFF, 1);
    }

    fn get(&self, at: usize) -> u64 {
        // ORDERING: Acquire, pairs with `set`.
        self.memory.words().get(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn set(&self, at: usize, value: u64) {
        if let Some(word) = self.memory.words().get(at) {
            // ORDERING: Release: what was stored before it is there when this value is. See the
            // module, *Always whole*.
            word.store(value, Ordering::Release);
        }
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

/// Nodes.
impl Journal {
    /// Notes a node with so many look-ups. `None` where there is no room, or no key: the journal is not
    /// complete any more then.
    #[must_use]
    pub fn add_node(&self, id: u64, lookups: u64, key: Option<&NodeKey>) -> Option<Slot> {
        let Some(key) = key.filter(|key| key.handle.1.len() <= HANDLE_BYTES_MAX) else {
            self.turn_off();
            return None;
        };
        let slot = self.take(&self.nodes, NODES_MAX, NODES_USED)?;
        let at = NODES_AT + slot.0 as usize * NODE;
        let (kind, bytes) = &key.handle;
        self.set(at + 1, lookups);
        self.set(at + 2, id);
        self.set(at + 3, key.ino);
        self.set(at + 4, u64::from(key.kind));
        self.set(at + 5, key.generation.map_or(u64::MAX, u64::from));
        self.set(at + 6, u64::from(kind.cast_unsigned()) | (bytes.len() as u64) << 32);
        for (n, part) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.set(at + 7 + n, u64::from_le_bytes(word));
        }
        self.set(at, 1);
        Some(slot)
    }

    /// The look-ups that the kernel has from now on.
    pub fn set_lookups(&self, slot: Slot, lookups: u64) {
        self.set(NODES_AT + slot.0 as usize * NODE + 1, lookups);
    }

    /// The kernel has forgotten the node.
    pub fn remove_node(&self, slot: Slot) {
        self.set(NODES_AT + slot.0 as usize * NODE, 0);
        self.nodes.lock().back.push(slot.0);
    }

    /// All that the kernel has look-ups of.
    #[must_use]
    pub fn nodes(&self) -> Vec<(Slot, NodeRecord)> {
        let used = u32::try_from(self.used(NODES_USED, NODES_MAX)).unwrap_or(0);
        (0..used).filter_map(|slot| Some((Slot(slot), self.node(slot)?))).collect()
    }

    fn node(&self, slot: u32) -> Option<NodeRecord> {
        let at = NODES_AT + slot as usize * NODE;
        let (is_used, lookups) = (self.get(at) != 0, self.get(at + 1));
        if !is_used || lookups == 0 {
            return None;
        }
        let handle = self.get(at + 6);
        let (kind, len) = (low(handle), usize::try_from(handle >> 32).unwrap_or(0).min(HANDLE_BYTES_MAX));
        let mut bytes: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|n| self.get(at + 7 + n).to_le_bytes()).collect();
        bytes.truncate(len);
        let key = NodeKey {
            ino: self.get(at + 3),
            kind: u32::try_from(self.get(at + 4)).unwrap_or(u32::MAX),
            generation: u32::try_from(self.get(at + 5)).ok(),
            handle: (kind.cast_signed(), bytes),
        };
        Some(NodeRecord { id: self.get(at + 2), lookups, key })
    }
}

/// What is open.
impl Journal {
    /// Notes an opening. `None` where there is no room: the journal is not complete any more then.
    #[must_use]
    pub fn add_open(&self, record: &OpenRecord) -> Option<Slot> {
        let slot = self.take(&self.opens, OPENS_MAX, OPENS_USED)?;
        let at = OPENS_AT + slot.0 as usize * OPEN;
        self.set(at + 1, record.handle);
        self.set(at + 2, record.node);
        self.set(at + 3, u64::from(record.flags) | u64::from(record.is_foreign_mapper) << 32);
        self.set(at + 4, u64::from(record.opener_pid));
        self.set(at + 5, record.request & !RESENT);
        if let Some(next) = self.memory.words().get(NEXT_NUMBER) {
            // ORDERING: as in `set`.
            next.fetch_max(record.handle + 1, Ordering::AcqRel);
        }
        self.set(at, if record.kind == OpenKind::File { 1 } else { 2 });
        Some(slot)
    }

    /// It was closed.
    pub fn remove_open(&self, slot: Slot) {
        self.set(OPENS_AT + slot.0 as usize * OPEN, 0);
        self.opens.lock().back.push(slot.0);
    }

    /// All that is open.
    #[must_use]
    pub fn opens(&self) -> Vec<(Slot, OpenRecord)> {
        let used = u32::try_from(self.used(OPENS_USED, OPENS_MAX)).unwrap_or(0);
        (0..used).filter_map(|slot| Some((Slot(slot), self.open(slot)?))).collect()
    }

    /// What the request in the calling thread's hands has opened already, for a server before.
    #[must_use]
    pub fn opened_before(&self) -> Option<OpenRecord> {
        self.opened.lock().remove(&request_in_hand())
    }

    /// The number that the next opening gets: none that was open has it.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.get(NEXT_NUMBER).max(1)
    }

    fn open(&self, slot: u32) -> Option<OpenRecord> {
        let at = OPENS_AT + slot as usize * OPEN;
        let kind = match self.get(at) {
            1 => OpenKind::File,
            2 => OpenKind::Dir,
            _ => return None,
        };
        let flags = self.get(at + 3);
        Some(OpenRecord {
            kind,
            handle: self.get(at + 1),
            node: self.get(at + 2),
            flags: low(flags),
            is_foreign_mapper: flags >> 32 != 0,
            opener_pid: low(self.get(at + 4)),
            request: self.get(at + 5),
        })
    }
}

/// Requests.
impl Journal {
    /// A slot for the requests of one thread.
    #[must_use]
    pub fn add_thread(&self) -> Option<Slot> {
        let slot = self.requests.lock().take(REQUESTS_MAX).map(|(slot, _)| slot);
        if slot.is_none() {
            self.turn_off();
        }
        slot
    }

    /// The thread has ended.
    pub fn remove_thread(&self, slot: Slot) {
        self.end(slot);
        self.requests.lock().back.push(slot.0);
    }

    /// The thread has this request in its hands. For one that the kernel has sent again: how far it
    /// came.
    pub fn begin(&self, slot: Slot, unique: u64) -> Option<RequestRecord> {
        REQUEST_IN_HAND.set(unique & !RESENT);
        let at = REQUESTS_AT + slot.0 as usize * REQUEST;
        let orphan =
            if unique & RESENT != 0 { self.orphans.lock().remove(&(unique & !RESENT)) } else { None };
        let record = orphan.map(|orphan| self.request(orphan)).unwrap_or_default();
        self.set_phase(slot, record.phase);
        self.set(at + 3, record.crashes);
        self.set(at + 4, 0);
        self.set(at, unique);
        if let Some(orphan) = orphan {
            self.set(REQUESTS_AT + orphan.0 as usize * REQUEST, 0);
            self.requests.lock().back.push(orphan.0);
        }
        (unique & RESENT != 0).then_some(record)
    }

    /// How far the thread's request has come.
    pub fn set_phase(&self, slot: Slot, phase: Phase) {
        let at = REQUESTS_AT + slot.0 as usize * REQUEST;
        let (number, value) = match phase {
            Phase::Begun => (0, 0),
            Phase::Intent(value) => (1, value),
            Phase::Done(value) => (2, value),
            Phase::Failed(errno) => (3, u64::from(errno)),
        };
        // The value of an outcome goes to another word than that of an intent, which stays valid
        // until the outcome is.
        self.set(at + if number == 1 { 5 } else { 2 }, value);
        self.set(at + 1, number);
    }

    /// The thread's request was answered.
    pub fn end(&self, slot: Slot) {
        REQUEST_IN_HAND.set(0);
        self.set(REQUESTS_AT + slot.0 as usize * REQUEST, 0);
    }

    /// All requests were read that the kernel has sent again: the orphans that are left were answered.
    pub fn drop_orphans(&self) {
        self.opened.lock().clear();
        for (_, orphan) in self.orphans.lock().drain() {
            self.set(REQUESTS_AT + orphan.0 as usize * REQUEST, 0);
            self.requests.lock().back.push(orphan.0);
        }
    }

    fn request(&self, slot: Slot) -> RequestRecord {
        let at = REQUESTS_AT + slot.0 as usize * REQUEST;
        let phase = match self.get(at + 1) {
            1 => Phase::Intent(self.get(at + 5)),
            2 => Phase::Done(self.get(at + 2)),
            3 => Phase::Failed(u32::try_from(self.get(at + 2)).unwrap_or(0)),
            _ => Phase::Begun,
        };
        RequestRecord { phase, crashes: self.get(at + 3) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(ino: u64) -> NodeKey {
        NodeKey { ino, kind: 3, generation: Some(7), handle: (-2, (0..13).collect()) }
    }

    fn again(journal: Journal) -> Journal {
        let file = journal.file().try_clone_to_owned().unwrap();
        drop(journal);
        Journal::recover(file, true).unwrap()
    }

    fn opened(handle: u64) -> OpenRecord {
        OpenRecord {
            kind: OpenKind::File,
            handle,
            node: 10,
            flags: 3,
            is_foreign_mapper: true,
            opener_pid: 9,
            request: 44,
        }
    }

    #[test]
    fn what_was_noted_is_there_for_the_next_server() {
        let journal = Journal::create().unwrap();
        let one = journal.add_node(10, 1, Some(&key(10))).unwrap();
        let two = journal.add_node(11, 1, Some(&key(11))).unwrap();
        journal.set_lookups(one, 5);
        let file = journal.add_open(&opened(8)).unwrap();
        let dir = journal.add_open(&OpenRecord { kind: OpenKind::Dir, ..opened(9) }).unwrap();
        journal.remove_open(file);
        let journal = again(journal);
        assert_eq!(journal.servers(), 1);
        let nodes = journal.nodes();
        assert_eq!(nodes[0], (one, NodeRecord { id: 10, lookups: 5, key: key(10) }));
        assert_eq!((nodes.len(), journal.opens().len(), journal.next_number()), (2, 1, 10));
        assert_eq!(journal.opens()[0].0, dir);
        journal.remove_node(two);
        assert_eq!(journal.add_node(12, 1, Some(&key(12))), Some(two), "slots are used again");
        assert_eq!(journal.add_open(&opened(12)), Some(file));
        assert!(journal.is_complete());
        assert!(journal.add_node(13, 1, None).is_none() && !journal.is_complete());
    }

    #[test]
    fn a_request_goes_on_where_the_server_before_has_left_it() {
        let mut journal = Journal::create().unwrap();
        let slot = journal.add_thread().unwrap();
        assert_eq!(journal.begin(slot, 100), None);
        assert_eq!(request_in_hand(), 100);
        journal.set_phase(slot, Phase::Intent(6));
        for crashes in 1..=3 {
            journal = again(journal);
            let thread = journal.add_thread().unwrap();
            let phase = if crashes == 3 { Phase::Done(77) } else { Phase::Intent(6) };
            assert_eq!(journal.begin(thread, 100 | RESENT), Some(RequestRecord { phase, crashes }));
            if crashes == 2 {
                journal.set_phase(thread, Phase::Done(77));
            }
            if crashes == 3 {
                journal.end(thread);
            }
        }
        let journal = again(journal);
        let thread = journal.add_thread().unwrap();
        assert_eq!(journal.begin(thread, 100 | RESENT), Some(RequestRecord::default()), "it was answered");
    }

    #[test]
    fn a_request_that_was_not_read_again_counts_no_second_crash() {
        let journal = Journal::create().unwrap();
        let slot = journal.add_thread().unwrap();
        journal.begin(slot, 100);
        let journal = again(again(journal));
        let thread = journal.add_thread().unwrap();
        assert_eq!(journal.begin(thread, 100 | RESENT).unwrap().crashes, 1);
        let journal = again(journal);
        journal.drop_orphans();
        let journal = again(journal);
        let thread = journal.add_thread().unwrap();
        assert_eq!(journal.begin(thread, 100 | RESENT).unwrap(), RequestRecord::default());
    }

    #[test]
    fn another_file_is_no_journal() {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let short = memfd_create("test", flags).unwrap();
        assert!(Journal::recover(short, true).is_err());
        let zeros = memfd_create("test", flags).unwrap();
        ftruncate(&zeros, (WORDS * 8) as u64).unwrap();
        assert!(Journal::recover(zeros, true).is_err());
    }
}
