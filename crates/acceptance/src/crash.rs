//! A writer whose every byte says where it belongs, and the check after its crash.
//!
//! A [`Plan`] is a sequence of steps on the files of one directory that a seed repeats. The writer
//! runs it and says after each step that it is done; the checker, told how many were done, works
//! out what must be there and what may be there.
//!
//! Every 8 aligned bytes that are written are one word: the round, the file, the generation of the
//! write and the word's place in the file. So a word of another file, of another place, of an older
//! generation than was synced, or torn, is seen as what it is.
//!
//! | step | after it was acknowledged | if it was under way |
//! |---|---|---|
//! | create, write | may be there | may be there in part |
//! | fsync, fdatasync, sync | all that was written to the file (to all files) is there | nothing changes |
//! | synchronous write, mapped write with msync | is there | may be there in part |
//! | replace (write, fsync, rename, fsync of the directory) | the new file is there, whole | the old or the new one, whole |
//! | unlink with fsync of the directory | is gone | is there or not |
//! | truncate with fsync | has that size | has the old or the new size |

mod check;
mod plan;
mod writer;

pub use check::check;
pub use plan::{Plan, Step};
pub use writer::{Writer, write_steps};

/// A word: which round, file, generation and place it belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// The round (16 bits).
    pub round: u64,
    /// The file (12 bits), counted from 1: a zero word is a hole.
    pub file: u64,
    /// The write (12 bits).
    pub generation: u64,
    /// The index of the word in the file (24 bits).
    pub place: u64,
}

impl Word {
    /// Its eight bytes as a number.
    #[must_use]
    pub fn pack(self) -> u64 {
        debug_assert!(self.round < 1 << 16 && self.file < 1 << 12);
        debug_assert!(self.generation < 1 << 12 && self.place < 1 << 24);
        self.round << 48 | self.file << 36 | self.generation << 24 | self.place
    }

    /// The word of these eight bytes.
    #[must_use]
    pub fn unpack(word: u64) -> Self {
        Self {
            round: word >> 48,
            file: word >> 36 & 0xfff,
            generation: word >> 24 & 0xfff,
            place: word & 0xff_ffff,
        }
    }
}

/// The bytes of a write of `words` words at word `place`.
#[must_use]
pub fn pattern(round: u64, file: u64, generation: u64, place: u64, words: u64) -> Vec<u8> {
    (place..place + words)
        .flat_map(|place| Word { round, file, generation, place }.pack().to_le_bytes())
        .collect()
}
