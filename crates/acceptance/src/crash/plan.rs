//! What the writer does.

use crate::rng::Rng;

/// One step. Files are numbered from 1 and never again: a name may come to another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Makes the file under the name.
    Create {
        /// The new file's number.
        file: u64,
        /// Its name.
        name: u64,
    },
    /// Writes words to the file, at their place.
    Write {
        /// The name of the file.
        name: u64,
        /// The first word.
        place: u64,
        /// How many.
        words: u64,
        /// Which write this is.
        generation: u64,
        /// By what means.
        how: How,
    },
    /// fsync(2), or fdatasync(2).
    Fsync {
        /// The name of the file.
        name: u64,
        /// Whether fdatasync.
        data_only: bool,
    },
    /// syncfs(2).
    Sync,
    /// A new file, written, synced, renamed over the name, the directory synced.
    Replace {
        /// The new file's number.
        file: u64,
        /// The name it takes over.
        name: u64,
        /// How many words it has.
        words: u64,
        /// Which write this is.
        generation: u64,
    },
    /// unlink(2), the directory synced.
    Unlink {
        /// The name.
        name: u64,
    },
    /// ftruncate(2) and fsync(2).
    Truncate {
        /// The name of the file.
        name: u64,
        /// How many words remain.
        words: u64,
    },
}

/// How words get into a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// pwrite(2).
    Plain,
    /// pwrite(2) through a descriptor with O_SYNC.
    Synchronous,
    /// A shared mapping and msync(2).
    Mapped,
}

/// Words in the longest file.
const WORDS_MAX: u64 = 48 << 10;
const NAMES: usize = 6;
const GENERATIONS: u64 = 4000;

/// The steps of one round.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The round, which is in every word.
    pub round: u64,
    rng: Rng,
    can_sync: bool,
    next_file: u64,
    next_generation: u64,
    /// Which names exist, with the words of the file as the writer left it.
    sizes: [Option<u64>; NAMES],
}

impl Plan {
    /// The steps that `seed` gives for `round`; without `can_sync` none needs syncfs(2).
    #[must_use]
    pub fn new(round: u64, seed: u64, can_sync: bool) -> Self {
        let rng = Rng::new(seed ^ round << 32);
        Self { round, rng, can_sync, next_file: 1, next_generation: 1, sizes: [None; NAMES] }
    }

    fn write(&mut self, name: u64, size: u64) -> Step {
        let how = match self.rng.below(8) {
            0 => How::Synchronous,
            1 if size > 0 => How::Mapped,
            _ => How::Plain,
        };
        // A mapping reaches as far as the file.
        let limit = if how == How::Mapped { size } else { WORDS_MAX };
        let place = match self.rng.below(4) {
            0 if size < limit => size,
            1 => 0,
            _ => self.rng.below(limit.min(size + 600)),
        };
        let longest = if self.rng.below(5) == 0 { 24 << 10 } else { 1500 };
        let words = (1 + self.rng.below(longest)).min(limit - place);
        self.sizes[slot(name)] = Some(size.max(place + words));
        Step::Write { name, place, words, generation: self.generation(), how }
    }

    fn generation(&mut self) -> u64 {
        self.next_generation += 1;
        self.next_generation - 1
    }

    fn file(&mut self) -> u64 {
        self.next_file += 1;
        self.next_file - 1
    }

    fn create(&mut self, name: u64) -> Step {
        self.sizes[slot(name)] = Some(0);
        Step::Create { file: self.file(), name }
    }

    fn replace(&mut self, name: u64) -> Step {
        let words = 1 + self.rng.below(12_000);
        self.sizes[slot(name)] = Some(words);
        Step::Replace { file: self.file(), name, words, generation: self.generation() }
    }
}

impl Iterator for Plan {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        if self.next_generation >= GENERATIONS || self.next_file >= GENERATIONS {
            return None;
        }
        let name = self.rng.below(NAMES as u64);
        let Some(size) = self.sizes[slot(name)] else {
            return Some(if self.rng.below(3) == 0 { self.replace(name) } else { self.create(name) });
        };
        Some(match self.rng.below(100) {
            0..55 => self.write(name, size),
            55..75 => Step::Fsync { name, data_only: self.rng.below(3) == 0 },
            75..79 if self.can_sync => Step::Sync,
            75..90 => self.replace(name),
            90..95 => {
                self.sizes[slot(name)] = None;
                Step::Unlink { name }
            }
            _ => {
                let words = self.rng.below(size + 1);
                self.sizes[slot(name)] = Some(words);
                Step::Truncate { name, words }
            }
        })
    }
}

fn slot(name: u64) -> usize {
    usize::try_from(name).expect("below the number of names")
}
