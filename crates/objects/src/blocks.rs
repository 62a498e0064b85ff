//! Blocks of objects that were read, in memory: each is fetched once for all readers that wait for
//! it.
//!
//! Objects do not change once they are there, so a block is known by its object and its number in
//! it. A block is in one of three states: not here; **claimed**, by one caller who fetches it while
//! the others wait for that caller; or here, as it is in the bucket: encoded, and encrypted where
//! the volume is. A claim has a run of blocks, which come one by one: each is here as soon as it has
//! come, and those who wait for it do not wait for the others. What is here is not checked: decoding
//! does that, and gives up ([`Blocks::forget`]) what it finds damaged.
//!
//! # Bounds
//! [`BYTES_MAX`] for what is here. Of these, [`AHEAD_BYTES_MAX`] for what nobody has asked for yet:
//! read-ahead reserves its bytes before it fetches, and does without what it does not get. What
//! nobody asks for in [`UNREAD_AGE`], and what nobody asks for again in [`AGE_MAX`], goes. What a
//! reader in sequence has passed goes, but for the last [`PASSED_MAX`] blocks: the kernel has it, and
//! the memory is used again for what comes.
//!
//! Lock order: `state`, then that of [`crate::buffers`], and not held across a request.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lru::LruCache;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::buffers::{self, BUFFER_LEN};
use crate::rows::Object;

/// Bytes of an object in a block; the last one of an object is shorter.
pub(crate) const BLOCK: u64 = BLOCK_LEN as u64;
pub(crate) const BLOCK_LEN: usize = BUFFER_LEN;
/// Memory for blocks, of a volume.
const BYTES_MAX: u64 = 96 << 20;
/// Memory for blocks that are read ahead and that nobody has asked for, of a volume.
pub(crate) const AHEAD_BYTES_MAX: u64 = 64 << 20;
/// Blocks that are read ahead and not asked for go after this time.
const UNREAD_AGE: Duration = Duration::from_secs(10);
/// Blocks that nobody asks for again go after this time.
const AGE_MAX: Duration = Duration::from_secs(60);
/// Blocks that a reader in sequence has passed, of a volume: the kernel's next request may come before
/// the one before it.
const PASSED_MAX: usize = 32;
/// How often old blocks are looked for while there are some.
const SWEEP: Duration = Duration::from_secs(5);

/// A block: its object, and its number there.
pub(crate) type Key = (Object, u32);

#[derive(Debug)]
struct Block {
    bytes: Bytes,
    used: Instant,
    /// It was read ahead, and nobody has asked for it.
    is_unread: bool,
    /// A reader in sequence has passed it.
    is_passed: bool,
}

/// A block that is being fetched.
#[derive(Debug)]
struct Claimed {
    claim: u64,
    /// What read-ahead has reserved for it.
    reserved: u64,
    /// Dropped when the block is here, or given up.
    done: watch::Sender<()>,
}

#[derive(Debug)]
struct State {
    /// The order is that of `used`.
    here: LruCache<Key, Block>,
    bytes: u64,
    claimed: HashMap<Key, Claimed>,
    /// Claims so far.
    claims: u64,
    /// What readers in sequence have passed, the first first; some may be gone.
    passed: VecDeque<Key>,
    /// Bytes that read-ahead has reserved, and those of blocks that are unread.
    ahead: u64,
    is_swept: bool,
}

impl State {
    fn remove(&mut self, key: Key) {
        if let Some(block) = self.here.pop(&key) {
            self.account_removed(&block);
        }
    }

    fn account_removed(&mut self, block: &Block) {
        let len = block.bytes.len() as u64;
        self.bytes -= len;
        if block.is_unread {
            self.ahead -= len;
        }
    }

    fn put(&mut self, key: Key, bytes: Bytes, is_unread: bool) {
        let len = bytes.len() as u64;
        self.remove(key);
        self.bytes += len;
        if is_unread {
            self.ahead += len;
        }
        self.here.put(key, Block { bytes, used: Instant::now(), is_unread, is_passed: false });
        while self.bytes > BYTES_MAX {
            let Some((_, oldest)) = self.here.pop_lru() else { break };
            self.account_removed(&oldest);
        }
    }

    /// What to do about a block that somebody wants.
    fn find(&mut self, key: Key) -> Option<Found> {
        if let Some(block) = self.here.get_mut(&key) {
            block.used = Instant::now();
            if std::mem::take(&mut block.is_unread) {
                self.ahead -= block.bytes.len() as u64;
            }
            return Some(Found::Here(block.bytes.clone()));
        }
        self.claimed.get(&key).map(|claimed| Found::Claimed(claimed.done.subscribe()))
    }

    /// Ends a claim of a block, unless another caller's has taken its place since. Who waits for it is
    /// woken when what this returns is dropped.
    fn end_claim(&mut self, key: Key, claim: u64) -> Option<Claimed> {
        self.claimed.get(&key).filter(|claimed| claimed.claim == claim)?;
        let ended = self.claimed.remove(&key)?;
        self.ahead -= ended.reserved;
        Some(ended)
    }

    fn is_absent(&self, key: Key) -> bool {
        !self.here.contains(&key) && !self.claimed.contains_key(&key)
    }

    /// Takes out what is too old.
    fn sweep(&mut self) {
        let now = Instant::now();
        while let Some((_, oldest)) = self.here.peek_lru()
            && now.duration_since(oldest.used) >= AGE_MAX
            && let Some((_, oldest)) = self.here.pop_lru()
        {
            self.account_removed(&oldest);
        }
        let is_old = |block: &Block| block.is_unread && now.duration_since(block.used) >= UNREAD_AGE;
        let unread: Vec<Key> =
            self.here.iter().filter(|(_, block)| is_old(block)).map(|(key, _)| *key).collect();
        unread.into_iter().for_each(|key| self.remove(key));
    }
}

/// A block that is here, or that another caller fetches.
#[derive(Debug)]
enum Found {
    Here(Bytes),
    Claimed(watch::Receiver<()>),
}

/// Blocks of a range, as they were found.
#[derive(Debug, Default)]
pub(crate) struct Lookup {
    pub(crate) here: Vec<(Key, Bytes)>,
    /// Others fetch these, in order, a receiver for each: to be looked up again when it has ended.
    pub(crate) awaited: Vec<watch::Receiver<()>>,
    /// For the caller to fetch, each a run of blocks of one object.
    pub(crate) claims: Vec<Claim>,
}

/// The blocks of a volume that are in memory.
#[derive(Debug)]
pub(crate) struct Blocks(Mutex<State>);

impl Default for Blocks {
    fn default() -> Self {
        let (here, claimed) = (LruCache::unbounded(), HashMap::new());
        Self(Mutex::new(State {
            here,
            bytes: 0,
            claimed,
            claims: 0,
            passed: VecDeque::new(),
            ahead: 0,
            is_swept: false,
        }))
    }
}

/// The blocks that hold these bytes of an object.
pub(crate) fn blocks_of(range: &Range<u64>) -> Range<u32> {
    let number = |block: u64| u32::try_from(block).unwrap_or(u32::MAX);
    number(range.start / BLOCK)..number(range.end.div_ceil(BLOCK))
}

/// The bytes of a run of blocks in their object, if that is so long.
pub(crate) fn bytes_of(run: &Range<u32>) -> Range<u64> {
    u64::from(run.start) * BLOCK..u64::from(run.end) * BLOCK
}

/// The blocks of what was fetched from the block `first` on, each in memory of its own: they leave
/// one by one.
pub(crate) fn split(object: Object, first: u32, fetched: &[u8]) -> Vec<(Key, Bytes)> {
    (first..)
        .map(|number| (object, number))
        .zip(fetched.chunks(BLOCK_LEN).map(Bytes::copy_from_slice))
        .collect()
}

impl Blocks {
    /// Looks blocks up, in order and each once, and claims those that nobody has. A run of claimed
    /// blocks is `run_max` long at most; gaps in it of up to `gap_max` blocks, which nobody wants
    /// now, are fetched with it.
    pub(crate) fn look_up(self: &Arc<Self>, wanted: &[Key], run_max: u32, gap_max: u32) -> Lookup {
        let mut lookup = Lookup::default();
        let mut runs: Vec<(Object, Range<u32>)> = Vec::new();
        let mut state = self.0.lock();
        for &(object, number) in wanted {
            match state.find((object, number)) {
                Some(Found::Here(bytes)) => lookup.here.push(((object, number), bytes)),
                Some(Found::Claimed(claimed)) => lookup.awaited.push(claimed),
                None => {
                    let last = runs.last_mut().filter(|(of, run)| {
                        *of == object
                            && number >= run.end
                            && number - run.end <= gap_max
                            && number - run.start < run_max
                            && (run.end..number).all(|gap| state.is_absent((object, gap)))
                    });
                    match last {
                        Some((_, run)) => run.end = number + 1,
                        None => runs.push((object, number..number + 1)),
                    }
                }
            }
        }
        // What continues blocks that are here already gets as many more.
        if let Some((object, run)) = runs.last_mut() {
            let is_here = |state: &State, number: u32| state.here.contains(&(*object, number));
            let before = (0..run.start).rev().take_while(|&number| is_here(&state, number));
            let more = u32::try_from(before.take(run_max as usize).count()).unwrap_or(0);
            let behind = (run.end..run.start.saturating_add(run_max)).take(more as usize);
            run.end += u32::try_from(behind.take_while(|&number| state.is_absent((*object, number))).count())
                .unwrap_or(0);
        }
        for (object, run) in runs {
            let is_wanted = |number: &u32| wanted.contains(&(object, *number));
            let wanted = run.clone().filter(is_wanted).collect();
            lookup.claims.push(self.claim(&mut state, object, run, Some(wanted)));
        }
        lookup
    }

    /// Claims those blocks of a run that nobody has, to be read ahead. What is reserved for a block is
    /// what it takes when it has come; those that nothing is left for count from then on.
    pub(crate) fn claim_ahead(
        self: &Arc<Self>,
        object: Object,
        run: Range<u32>,
        mut reserved: Reserved,
    ) -> Vec<Claim> {
        let mut state = self.0.lock();
        let mut claims = Vec::new();
        let mut number = run.start;
        while number < run.end {
            let absent = (number..run.end).take_while(|&number| state.is_absent((object, number))).count();
            let end = number + u32::try_from(absent).unwrap_or(0);
            if end > number {
                claims.push(self.claim(&mut state, object, number..end, None));
                for number in number..end {
                    if let Some(claimed) = state.claimed.get_mut(&(object, number)) {
                        claimed.reserved = reserved.bytes.min(BLOCK);
                        reserved.bytes -= claimed.reserved;
                    }
                }
            }
            number = end + 1;
        }
        drop(state);
        claims
    }

    /// Whether a run has blocks that nobody has.
    pub(crate) fn is_missing(&self, object: Object, run: Range<u32>) -> bool {
        let state = self.0.lock();
        run.into_iter().any(|number| state.is_absent((object, number)))
    }

    fn claim(
        self: &Arc<Self>,
        state: &mut State,
        object: Object,
        run: Range<u32>,
        wanted: Option<Vec<u32>>,
    ) -> Claim {
        state.claims += 1;
        let claim = state.claims;
        for number in run.clone() {
            state
                .claimed
                .insert((object, number), Claimed { claim, reserved: 0, done: watch::Sender::new(()) });
        }
        Claim { blocks: Arc::clone(self), number: claim, object, run, wanted }
    }

    /// Reserves bytes for read-ahead; returns how many, `bytes` at most.
    pub(crate) fn reserve(self: &Arc<Self>, bytes: u64) -> Reserved {
        let mut state = self.0.lock();
        let granted = bytes.min(AHEAD_BYTES_MAX.saturating_sub(state.ahead));
        state.ahead += granted;
        Reserved { blocks: Arc::clone(self), bytes: granted }
    }

    /// A reader in sequence has passed these blocks, which hold nothing else.
    pub(crate) fn pass(&self, object: Object, run: Range<u32>) {
        let mut gone = Vec::new();
        let mut state = self.0.lock();
        for number in run {
            let key = (object, number);
            if let Some(block) = state.here.peek_mut(&key)
                && !std::mem::replace(&mut block.is_passed, true)
            {
                state.passed.push_back(key);
            }
        }
        while state.passed.len() > PASSED_MAX
            && let Some(key) = state.passed.pop_front()
        {
            if state.here.peek(&key).is_some_and(|block| block.is_passed)
                && let Some(block) = state.here.pop(&key)
            {
                state.account_removed(&block);
                gone.push(block);
            }
        }
        drop(state);
    }

    /// Keeps a block that is in the bucket since a moment ago.
    pub(crate) fn keep(self: &Arc<Self>, key: Key, bytes: Bytes) {
        let mut state = self.0.lock();
        state.put(key, bytes, false);
        self.sweep_while_there_are(&mut state);
    }

    /// Gives up blocks that are damaged.
    pub(crate) fn forget(&self, object: Object, run: Range<u32>) {
        let mut state = self.0.lock();
        run.for_each(|number| state.remove((object, number)));
    }

    fn sweep_while_there_are(self: &Arc<Self>, state: &mut State) {
        if !state.here.is_empty() && !std::mem::replace(&mut state.is_swept, true) {
            self.sweep_later();
        }
    }

    /// Gives up old blocks from now on, as long as there are blocks.
    fn sweep_later(self: &Arc<Self>) {
        let blocks = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                let Some(blocks) = blocks.upgrade() else { return };
                let mut state = blocks.0.lock();
                state.sweep();
                if state.here.is_empty() {
                    state.is_swept = false;
                    state.passed = VecDeque::new();
                    buffers::release();
                    return;
                }
            }
        });
    }

    #[cfg(test)]
    fn figures(&self) -> (u64, u64, usize) {
        let state = self.0.lock();
        (state.bytes, state.ahead, state.claimed.len())
    }
}

/// Bytes that read-ahead may fetch, until they are dropped.
#[derive(Debug)]
pub(crate) struct Reserved {
    blocks: Arc<Blocks>,
    pub(crate) bytes: u64,
}

impl Reserved {
    /// Takes a part of it.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        Self { blocks: Arc::clone(&self.blocks), bytes }
    }

    /// Adds all of `more`, of the same volume.
    pub(crate) fn add(&mut self, mut more: Self) {
        self.bytes += std::mem::take(&mut more.bytes);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.blocks.0.lock().ahead -= self.bytes;
    }
}

/// A run of blocks that one caller fetches. Those who wait for a block of it look again when that is
/// filled, or the claim dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    blocks: Arc<Blocks>,
    number: u64,
    object: Object,
    run: Range<u32>,
    /// Those that somebody waits for; none: it is read ahead, all of it.
    wanted: Option<Vec<u32>>,
}

impl Claim {
    pub(crate) fn object(&self) -> Object {
        self.object
    }

    /// Its numbers.
    pub(crate) fn run(&self) -> Range<u32> {
        self.run.clone()
    }

    /// Whether somebody waits for one of these, or they are to be read ahead.
    pub(crate) fn is_wanted(&self, run: &Range<u32>) -> bool {
        self.wanted.as_ref().is_none_or(|wanted| wanted.iter().any(|number| run.contains(number)))
    }

    /// Whether nobody waits for it.
    pub(crate) fn is_ahead(&self) -> bool {
        self.wanted.is_none()
    }

    /// Fills blocks of it: they are here, and not claimed any more.
    pub(crate) fn fill(&self, filled: &[(Key, Bytes)]) {
        let mut ended = Vec::with_capacity(filled.len());
        let mut state = self.blocks.0.lock();
        for (key, bytes) in filled {
            state.put(*key, bytes.clone(), self.is_ahead());
            ended.extend(state.end_claim(*key, self.number));
        }
        self.blocks.sweep_while_there_are(&mut state);
        drop(state);
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.blocks.0.lock();
        let keys = self.run.clone().map(|number| (self.object, number));
        let ended: Vec<_> = keys.filter_map(|key| state.end_claim(key, self.number)).collect();
        drop(state);
        drop(ended);
    }
}

#[cfg(test)]
mod tests;
