//! A lock of readers and one writer in one word, as parking_lot's where no thread sleeps: a reader
//! adds itself and takes itself away again, a writer keeps new ones out and waits for those that
//! are in. The word is counted.

use parking_lot::lock_api;
use sync::atomic::{AtomicUsize, Ordering};

pub(crate) type RwLock<T> = lock_api::RwLock<Word, T>;
pub(crate) type RwLockReadGuard<'a, T> = lock_api::RwLockReadGuard<'a, Word, T>;

const WRITER: usize = 1;
const READER: usize = 2;

#[derive(Debug)]
pub(crate) struct Word(AtomicUsize);

// SAFETY: readers are counted while there is no writer, and the writer's bit is set while there is
// no reader.
unsafe impl lock_api::RawRwLock for Word {
    #[allow(clippy::declare_interior_mutable_const, reason = "as lock_api wants it")]
    const INIT: Self = Self(AtomicUsize::new(0));
    type GuardMarker = lock_api::GuardSend;

    fn lock_shared(&self) {
        while !self.try_lock_shared() {
            std::hint::spin_loop();
        }
    }

    fn try_lock_shared(&self) -> bool {
        // ORDERING: Acquire, pairs with the releases below.
        let now = self.0.load(Ordering::Relaxed);
        now & WRITER == 0
            && self.0.compare_exchange(now, now + READER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock_shared(&self) {
        self.0.fetch_sub(READER, Ordering::Release);
    }

    fn lock_exclusive(&self) {
        // First no reader comes any more, then the present ones leave.
        while self.0.load(Ordering::Relaxed) & WRITER != 0
            || self.0.fetch_or(WRITER, Ordering::Acquire) & WRITER != 0
        {
            std::hint::spin_loop();
        }
        while self.0.load(Ordering::Acquire) != WRITER {
            std::hint::spin_loop();
        }
    }

    fn try_lock_exclusive(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
            && self.0.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    unsafe fn unlock_exclusive(&self) {
        self.0.fetch_and(!WRITER, Ordering::Release);
    }
}
