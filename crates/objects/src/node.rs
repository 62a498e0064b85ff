//! Inodes in use: what is referenced is in memory.
//!
//! A [`Pin`] is a reference that ends by itself; references that the volume holds are counted with
//! them. The state of an inode is protected by its own lock, which is held across the engine's
//! calls on that inode, never across an upload. Several are locked in the order of their numbers.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use store::{Error, ErrorKind, Result};
use sync::mutant::is_on;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

use crate::awaitable::Awaitable;
use crate::listing::DirNames;
use crate::pieces::Pieces;
use crate::rows::{InodeRow, Kind, inode_to_bytes};
use crate::tree::Tree;
use crate::xattr_sizes::XattrSizes;

/// An inode in use.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) ino: u64,
    pub(crate) state: Arc<AsyncMutex<Option<State>>>,
    /// The size that its user was promised last without being counted ([`crate::quotas`]).
    pub(crate) accepted: Arc<AtomicU64>,
    /// Whose data it is that is written now ([`store::File::charge_to`]).
    pub(crate) tenant: AtomicU64,
    /// How many rounds of its data have ended.
    pub(crate) ended: Awaitable,
    /// How many of them somebody waits for.
    awaited: Awaitable,
    /// Of a directory, what is known of its names.
    pub(crate) names: DirNames,
    /// The directory and the name by which it was found or made last: for a person to read.
    name: Mutex<Option<(u64, OsString)>>,
}

impl Node {
    /// It has this name.
    pub(crate) fn named(&self, dir: u64, name: &OsStr) {
        *self.name.lock() = Some((dir, name.to_owned()));
    }

    /// Somebody waits for its first `rounds` rounds.
    pub(crate) fn wait_begins(&self, rounds: u64) {
        self.awaited.raise(rounds);
    }

    /// Returns when somebody waits for the round.
    pub(crate) async fn wait_until_awaited(&self, round: u64) {
        self.awaited.wait_for(round + 1).await;
    }

    /// A name that it had.
    pub(crate) fn last_name(&self) -> Option<(u64, OsString)> {
        self.name.lock().clone()
    }
}

/// The state of an inode.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) row: InodeRow,
    /// The size that the engine may know: what lies beyond has no extents yet.
    pub(crate) stored_size: u64,
    pub(crate) pieces: Pieces,
    /// Has no name, and may get its first.
    pub(crate) is_tmpfile: bool,
    /// A truncation has taken a part of what lies behind the size, and not the rest.
    pub(crate) is_cut_in_part: bool,
    /// The sizes of its extended attributes, once they have been counted.
    pub(crate) xattr_sizes: Option<XattrSizes>,
    /// The project that it counts for; none: it does not count yet ([`crate::quotas`]).
    pub(crate) project: Option<u64>,
    /// The bytes that are counted in the project's usage.
    pub(crate) counted: u64,
    /// The bytes that are charged: those counted, or what was accepted or promised since.
    pub(crate) charge: u64,
    /// The size that was promised without being counted: [`Node::accepted`].
    pub(crate) accepted: Arc<AtomicU64>,
}

impl State {
    /// That of an inode with this row.
    pub(crate) fn new(row: InodeRow, project: Option<u64>, accepted: Arc<AtomicU64>) -> Self {
        let (pieces, stored_size) = (Pieces::default(), row.size);
        let counted = if row.kind == Kind::Regular { row.size } else { 0 };
        Self {
            row,
            stored_size,
            pieces,
            is_tmpfile: false,
            is_cut_in_part: false,
            xattr_sizes: None,
            project,
            counted,
            charge: counted,
            accepted,
        }
    }

    /// The row for the engine.
    pub(crate) fn stored(&self) -> bytes::Bytes {
        let size = if is_on("size-before-its-extents") { self.row.size } else { self.stored_size };
        if size == self.row.size {
            inode_to_bytes(&self.row, self.project)
        } else {
            inode_to_bytes(&InodeRow { size, ..self.row.clone() }, self.project)
        }
    }
}

/// A state that is locked.
#[derive(Debug)]
pub(crate) struct Locked(OwnedMutexGuard<Option<State>>);

impl std::ops::Deref for Locked {
    type Target = State;

    fn deref(&self) -> &State {
        self.0.as_ref().expect("loaded before it was handed out")
    }
}

impl Locked {
    /// Takes the state out, and keeps the lock: the next to lock it reads the row anew.
    pub(crate) fn take(mut self) -> (State, OwnedMutexGuard<Option<State>>) {
        (self.0.take().expect("loaded before it was handed out"), self.0)
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut State {
        self.0.as_mut().expect("loaded before it was handed out")
    }
}

#[derive(Debug)]
struct Slot {
    node: Arc<Node>,
    /// References that the volume has.
    kept: u64,
    /// Pins.
    pinned: u64,
}

/// The inodes in use, by number.
#[derive(Debug, Default)]
pub(crate) struct Nodes(Mutex<HashMap<u64, Slot>>);

impl Nodes {
    fn pin(&self, ino: u64) -> Arc<Node> {
        let mut table = self.0.lock();
        let slot = table.entry(ino).or_insert_with(|| {
            let state = Arc::new(AsyncMutex::new(None));
            Slot {
                node: Arc::new(Node {
                    ino,
                    state,
                    accepted: Arc::default(),
                    tenant: AtomicU64::default(),
                    ended: Awaitable::default(),
                    awaited: Awaitable::default(),
                    names: DirNames::default(),
                    name: Mutex::default(),
                }),
                kept: 0,
                pinned: 0,
            }
        });
        slot.pinned += 1;
        Arc::clone(&slot.node)
    }

    /// A pin becomes a reference of the volume's.
    fn keep(&self, ino: u64) {
        if let Some(slot) = self.0.lock().get_mut(&ino) {
            slot.pinned = slot.pinned.saturating_sub(1);
            slot.kept += 1;
        }
    }

    /// The volume has so many references, which it got from the program before.
    pub(crate) fn take_over(&self, ino: u64, references: u64) {
        self.pin(ino);
        if let Some(slot) = self.0.lock().get_mut(&ino) {
            slot.pinned -= 1;
            slot.kept += references;
        }
    }

    /// The references that the volume has.
    pub(crate) fn kept(&self) -> Vec<(Arc<Node>, u64)> {
        let table = self.0.lock();
        table.values().filter(|slot| slot.kept > 0).map(|slot| (Arc::clone(&slot.node), slot.kept)).collect()
    }

    /// One that is in use already.
    fn pin_used(&self, ino: u64) -> Option<Arc<Node>> {
        let mut table = self.0.lock();
        let slot = table.get_mut(&ino)?;
        slot.pinned += 1;
        Some(Arc::clone(&slot.node))
    }

    /// Whether anybody has a reference on it.
    pub(crate) fn is_used(&self, ino: u64) -> bool {
        self.0.lock().contains_key(&ino)
    }

    /// All of them.
    pub(crate) fn used(&self) -> std::collections::BTreeSet<u64> {
        self.0.lock().keys().copied().collect()
    }

    /// Gives references of the volume's and pins back; returns the inode if those were the last.
    fn release(&self, ino: u64, kept: u64, pinned: u64) -> Option<Arc<Node>> {
        let mut table = self.0.lock();
        let slot = table.get_mut(&ino)?;
        slot.kept = slot.kept.saturating_sub(kept);
        slot.pinned = slot.pinned.saturating_sub(pinned);
        if slot.kept + slot.pinned > 0 {
            return None;
        }
        table.remove(&ino).map(|slot| slot.node)
    }
}

/// A reference on an inode.
#[derive(Debug)]
pub(crate) struct Pin {
    tree: Arc<Tree>,
    node: Option<Arc<Node>>,
}

impl std::ops::Deref for Pin {
    type Target = Node;

    fn deref(&self) -> &Node {
        self.node.as_ref().expect("until it is dropped")
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        Self { tree: Arc::clone(&self.tree), node: Some(self.tree.nodes.pin(self.ino)) }
    }
}

impl Pin {
    /// Turns it into a reference that [`Tree::forget`] gives back.
    pub(crate) fn keep(mut self) {
        if let Some(node) = self.node.take() {
            self.tree.nodes.keep(node.ino);
        }
    }

    /// Locks the state, if it is in memory and no other call has it.
    pub(crate) fn try_lock(&self) -> Option<Locked> {
        let state = Arc::clone(&self.state).try_lock_owned().ok()?;
        state.is_some().then_some(Locked(state))
    }

    /// Locks the state, which is in memory, unless others change it.
    pub(crate) async fn lock(&self) -> Result<Locked> {
        let mut state = Arc::clone(&self.state).lock_owned().await;
        if state.is_none() || self.tree.engine.followed().is_some() {
            let (row, project) = self.tree.load(self.ino).await?;
            *state = Some(State::new(row, project, Arc::clone(&self.accepted)));
        }
        Ok(Locked(state))
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Some(node) = self.node.take() {
            self.tree.release(node.ino, 0, 1);
        }
    }
}

impl Tree {
    /// A reference on an inode that has a row.
    pub(crate) fn pin(self: &Arc<Self>, ino: u64) -> Pin {
        Pin { tree: Arc::clone(self), node: Some(self.nodes.pin(ino)) }
    }

    /// A reference on an inode that its caller has one on.
    pub(crate) fn pin_used(self: &Arc<Self>, ino: u64, op: &'static str) -> Result<Pin> {
        if ino == store::ObjectId::ROOT.0 {
            return Ok(self.pin(ino));
        }
        let node = self.nodes.pin_used(ino).ok_or_else(|| Error::new(ErrorKind::Stale, op))?;
        Ok(Pin { tree: Arc::clone(self), node: Some(node) })
    }

    /// A reference on an inode that is new.
    pub(crate) async fn pin_new(self: &Arc<Self>, ino: u64, new: State) -> (Pin, Locked) {
        let pin = self.pin(ino);
        let mut state = Arc::clone(&pin.state).lock_owned().await;
        *state = Some(State { accepted: Arc::clone(&pin.accepted), ..new });
        (pin, Locked(state))
    }

    /// Gives references back. An inode without names and references is removed.
    pub(crate) fn forget(self: &Arc<Self>, ino: u64, n: u64) {
        self.release(ino, n, 0);
    }

    fn release(self: &Arc<Self>, ino: u64, kept: u64, pinned: u64) {
        let Some(node) = self.nodes.release(ino, kept, pinned) else { return };
        // Nobody else can have it.
        let is_gone = node.state.try_lock().is_ok_and(|mut state| {
            let Some(state) = state.as_mut() else { return false };
            state.take_back(&self.quotas);
            state.row.nlink == 0
        });
        if is_gone {
            let tree = Arc::clone(self);
            self.runtime.spawn(async move { tree.reap(ino).await });
        }
    }
}

/// The states of several inodes, locked in the order of their numbers, each once.
pub(crate) struct LockedNodes(Vec<(u64, Locked)>);

impl LockedNodes {
    pub(crate) async fn lock(pins: &[&Pin]) -> Result<Self> {
        let mut sorted: Vec<&Pin> = pins.to_vec();
        sorted.sort_by_key(|pin| pin.ino);
        sorted.dedup_by_key(|pin| pin.ino);
        let mut locked = Vec::with_capacity(sorted.len());
        for pin in sorted {
            locked.push((pin.ino, pin.lock().await?));
        }
        Ok(Self(locked))
    }

    /// The state of one of them.
    pub(crate) fn of(&mut self, ino: u64) -> &mut State {
        let found = self.0.iter_mut().find(|(locked, _)| *locked == ino);
        &mut found.expect("it was locked with the others").1
    }
}
