//! The memory that a journal is in: words, each of which is stored as a whole.
//!
//! In production it is a memory file, which the keeper holds as well ([`MemoryFile`]). Tests take a
//! memory of their own, which notes each store and ends the server at one of them.

use std::fmt;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fcntl_get_seals, ftruncate, memfd_create};

use crate::sys::Words;

/// Words that outlive the server. A server may end between any two stores, and all those before it
/// are there then.
pub trait Memory: fmt::Debug + Send + Sync {
    /// The word at this place; 0 where there is none.
    fn load(&self, at: usize) -> u64;
    /// Stores a word, after all that the calling thread has stored before.
    fn store(&self, at: usize, value: u64);
    /// Stores a word if it is larger than what is there, in one step.
    fn raise(&self, at: usize, value: u64);
}

/// A memory file of fixed size, mapped.
#[derive(Debug)]
pub struct MemoryFile {
    words: Words,
    file: OwnedFd,
}

impl MemoryFile {
    /// An empty one of so many words.
    ///
    /// # Errors
    /// The kernel's.
    pub fn create(words: usize) -> io::Result<Self> {
        let file = memfd_create("watertight-journal", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        ftruncate(&file, (words * size_of::<u64>()) as u64)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Self::over(file, words)
    }

    /// The one of a server before.
    ///
    /// # Errors
    /// When it is none of so many words.
    pub fn over(file: OwnedFd, words: usize) -> io::Result<Self> {
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it can be made shorter"));
        }
        Ok(Self { words: Words::map(file.as_fd(), words)?, file })
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Memory for MemoryFile {
    fn load(&self, at: usize) -> u64 {
        // ORDERING: Acquire, pairs with `store`.
        self.words.words().get(at).map_or(0, |word| word.load(Ordering::Acquire))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.words.words().get(at) {
            // ORDERING: Release: neither the compiler nor the processor puts this store before one that
            // the thread has made earlier, so that the next server finds those if it finds this one.
            word.store(value, Ordering::Release);
        }
    }

    fn raise(&self, at: usize, value: u64) {
        if let Some(word) = self.words.words().get(at) {
            // ORDERING: AcqRel, as in `load` and `store`.
            word.fetch_max(value, Ordering::AcqRel);
        }
    }
}
