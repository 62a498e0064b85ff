//! Moves of cache lines between processors, counted in software: `--cfg lines`.
//!
//! Every operation on an atomic of this crate is recorded in a table of the copies of each line,
//! which follows the processors' own protocol (MESI): a load by a processor without a copy is a
//! move, and so is a store by one that does not have the only copy. A read-modify-write is a store,
//! also one that fails. An atomic counts at its real address, so that atomics that share a line are
//! counted as they are. Other memory is not counted.
//!
//! A thread that has [`enter`](Machine::enter)ed is on a processor, mostly alone; other threads are
//! on none and count nothing. Either the table deals out turns, one operation each, by a seed
//! ([`Pace::Turns`]: as many processors as one likes, all equally quick, the same moves in each run
//! where memory lies the same), or the threads run freely ([`Pace::Free`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{self as plain, Ordering};
use std::thread::Thread;

use parking_lot::{Condvar, Mutex};

/// Bytes that move together.
const LINE: usize = 64;
/// No thread's turn.
const NOBODY: usize = usize::MAX;

/// How the threads take turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// One operation at a time; the seed chooses the thread.
    Turns {
        /// Where the choices begin.
        seed: u64,
    },
    /// As the threads run.
    Free,
}

/// Processors, and their copies of lines.
#[derive(Debug)]
pub struct Machine {
    pace: Pace,
    turn: plain::AtomicUsize,
    state: Mutex<State>,
    all_here: Condvar,
}

#[derive(Debug)]
struct State {
    random: u64,
    threads: Vec<Option<Thread>>,
    /// The processor of each thread.
    processor_of: Vec<usize>,
    missing: usize,
    lines: HashMap<usize, Copies>,
    counts: Vec<Counts>,
}

/// The processors that have a copy of a line.
#[derive(Debug, Default)]
struct Copies {
    holders: Vec<usize>,
}

/// A thread's operations since the count began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations on atomics.
    pub operations: u64,
    /// Lines that its processor had to get for it, or to take from others.
    pub moves: u64,
}

thread_local! {
    static SEAT: RefCell<Option<(Arc<Machine>, usize)>> = const { RefCell::new(None) };
}

#[derive(Clone, Copy)]
enum Access {
    Load,
    Store,
}

impl Machine {
    /// A machine with so many processors, each with a thread of its own.
    #[must_use]
    pub fn new(processors: usize, pace: Pace) -> Arc<Self> {
        Self::with_threads((0..processors).collect(), pace)
    }

    /// A machine whose threads are on these processors; several may be on one.
    #[must_use]
    pub fn with_threads(processor_of: Vec<usize>, pace: Pace) -> Arc<Self> {
        let threads = processor_of.len();
        let random = match pace {
            Pace::Turns { seed } => seed,
            Pace::Free => 0,
        };
        Arc::new(Self {
            pace,
            turn: plain::AtomicUsize::new(NOBODY),
            state: Mutex::new(State {
                random,
                threads: vec![None; threads],
                processor_of,
                missing: threads,
                lines: HashMap::new(),
                counts: vec![Counts::default(); threads],
            }),
            all_here: Condvar::new(),
        })
    }

    /// Runs `work` as thread number `processor`. With a processor for each thread, that is the
    /// number of the processor. `work` begins when all threads are there.
    pub fn enter<T>(self: &Arc<Self>, processor: usize, work: impl FnOnce() -> T) -> T {
        let mut state = self.state.lock();
        state.threads[processor] = Some(std::thread::current());
        state.missing -= 1;
        if state.missing == 0 {
            // ORDERING: SeqCst here and below: the turn itself is not measured.
            self.turn.store(0, Ordering::SeqCst);
            self.all_here.notify_all();
        }
        while state.missing > 0 {
            self.all_here.wait(&mut state);
        }
        drop(state);
        self.wait_for_turn(processor);
        SEAT.with(|seat| *seat.borrow_mut() = Some((Arc::clone(self), processor)));
        let result = work();
        SEAT.with(|seat| seat.borrow_mut().take());
        let mut state = self.state.lock();
        state.threads[processor] = None;
        let next = self.hand_over(&mut state);
        drop(state);
        wake(next);
        result
    }

    /// Resets the counts, but not the copies of lines.
    pub fn begin_count(&self) {
        self.state.lock().counts.fill(Counts::default());
    }

    /// The counts of each thread.
    #[must_use]
    pub fn counts(&self) -> Vec<Counts> {
        self.state.lock().counts.clone()
    }

    fn wait_for_turn(&self, processor: usize) {
        while self.pace != Pace::Free && self.turn.load(Ordering::SeqCst) != processor {
            std::thread::park();
        }
    }

    /// Chooses the next thread, which the caller wakes without the lock: the waking thread is
    /// preempted then, and must not have it.
    fn hand_over(&self, state: &mut State) -> Option<Thread> {
        if self.pace == Pace::Free {
            return None;
        }
        let here: Vec<usize> = (0..state.threads.len()).filter(|&at| state.threads[at].is_some()).collect();
        if here.is_empty() {
            self.turn.store(NOBODY, Ordering::SeqCst);
            return None;
        }
        // Knuth's MMIX generator: the upper bits are good enough for turns.
        state.random =
            state.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let next = here[usize::try_from(state.random >> 33).unwrap_or(0) % here.len()];
        self.turn.store(next, Ordering::SeqCst);
        state.threads[next].clone()
    }

    fn note(&self, processor: usize, address: usize, access: Access) {
        let mut state = loop {
            // Sleeping would change which threads meet, unless there are turns.
            if self.pace != Pace::Free {
                break self.state.lock();
            }
            if let Some(state) = self.state.try_lock() {
                break state;
            }
            std::hint::spin_loop();
        };
        let holder = state.processor_of[processor];
        let is_move = state.lines.entry(address / LINE).or_default().touch(holder, access);
        let counts = &mut state.counts[processor];
        counts.operations += 1;
        counts.moves += u64::from(is_move);
        let next = self.hand_over(&mut state);
        drop(state);
        wake(next);
        self.wait_for_turn(processor);
    }
}

impl Copies {
    /// Records an access; returns whether the line has to move.
    fn touch(&mut self, processor: usize, access: Access) -> bool {
        let has_it = self.holders.contains(&processor);
        match access {
            Access::Load if has_it => false,
            Access::Load => {
                self.holders.push(processor);
                true
            }
            Access::Store => {
                let is_alone = has_it && self.holders.len() == 1;
                self.holders.clear();
                self.holders.push(processor);
                !is_alone
            }
        }
    }
}

fn wake(thread: Option<Thread>) {
    if let Some(thread) = thread {
        thread.unpark();
    }
}

/// Records an operation that was just done.
fn note<T>(at: &T, access: Access) {
    // Destructors of thread-locals come here as well.
    let seat = SEAT.try_with(|seat| seat.borrow().clone()).ok().flatten();
    if let Some((machine, processor)) = seat {
        machine.note(processor, std::ptr::from_ref(at).addr(), access);
    }
}

macro_rules! counted {
    ($($name:ident, $type:ty;)*) => {$(
        /// As `std`'s, and counted.
        #[derive(Debug, Default)]
        #[repr(transparent)]
        pub struct $name(plain::$name);

        #[allow(missing_docs, reason = "as of std")]
        impl $name {
            #[must_use]
            pub const fn new(value: $type) -> Self {
                Self(plain::$name::new(value))
            }

            #[must_use]
            pub fn into_inner(self) -> $type {
                self.0.into_inner()
            }

            pub fn get_mut(&mut self) -> &mut $type {
                self.0.get_mut()
            }

            pub fn load(&self, order: Ordering) -> $type {
                let result = self.0.load(order);
                note(self, Access::Load);
                result
            }

            pub fn store(&self, value: $type, order: Ordering) {
                self.0.store(value, order);
                note(self, Access::Store);
            }

            pub fn compare_exchange(
                &self,
                current: $type,
                new: $type,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$type, $type> {
                let result = self.0.compare_exchange(current, new, success, failure);
                note(self, Access::Store);
                result
            }

            pub fn compare_exchange_weak(
                &self,
                current: $type,
                new: $type,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$type, $type> {
                self.compare_exchange(current, new, success, failure)
            }

            pub fn fetch_update(
                &self,
                success: Ordering,
                failure: Ordering,
                mut update: impl FnMut($type) -> Option<$type>,
            ) -> Result<$type, $type> {
                let mut now = self.load(failure);
                while let Some(next) = update(now) {
                    match self.compare_exchange(now, next, success, failure) {
                        Ok(before) => return Ok(before),
                        Err(other) => now = other,
                    }
                }
                Err(now)
            }

            counted!(@rmw $type: swap fetch_or fetch_and);
        }
    )*};
    (@rmw $type:ty: $($method:ident)*) => {$(
        pub fn $method(&self, value: $type, order: Ordering) -> $type {
            let result = self.0.$method(value, order);
            note(self, Access::Store);
            result
        }
    )*};
    (@numbers $($name:ident, $type:ty;)*) => {$(
        #[allow(missing_docs, reason = "as of std")]
        impl $name {
            counted!(@rmw $type: fetch_add fetch_sub fetch_max fetch_min fetch_xor);
        }
    )*};
}

counted! { AtomicBool, bool; AtomicU8, u8; AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize; }
counted! { @numbers AtomicU8, u8; AtomicU32, u32; AtomicU64, u64; AtomicUsize, usize; }

#[cfg(test)]
mod tests {
    use super::{AtomicU64, Machine, Ordering, Pace};

    /// A line that two threads write in turn moves each time; a line that both read never does.
    #[test]
    fn what_moves_is_counted() {
        let machine = Machine::new(2, Pace::Turns { seed: 1 });
        let (shared, read) = (Box::new(AtomicU64::new(0)), Box::new([const { AtomicU64::new(0) }; 64]));
        std::thread::scope(|scope| {
            for processor in 0..2 {
                let (machine, shared, read) = (&machine, &shared, &read);
                scope.spawn(move || {
                    machine.enter(processor, || {
                        for _ in 0..100 {
                            // ORDERING: Relaxed, only counted.
                            shared.fetch_add(1, Ordering::Relaxed);
                            read[32].load(Ordering::Relaxed);
                        }
                    });
                });
            }
        });
        let counts = machine.counts();
        assert_eq!(shared.load(Ordering::Relaxed), 200);
        let (operations, moves) =
            counts.iter().fold((0, 0), |sum, one| (sum.0 + one.operations, sum.1 + one.moves));
        assert_eq!(operations, 400);
        // Each thread begins without both lines; after that only the written one moves, at most
        // once for each write.
        assert!((4..=202).contains(&moves), "{moves}");
        let alone = Machine::new(1, Pace::Free);
        alone.enter(0, || (0..100).for_each(|_| _ = shared.fetch_add(1, Ordering::Relaxed)));
        assert_eq!(alone.counts()[0].moves, 1);
    }
}
