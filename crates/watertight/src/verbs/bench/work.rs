//! The work on either side.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::samples::Samples;

use crate::term::shown::Show as _;

/// How large the file is, unless that takes too long.
pub(super) const FILE_BYTES: usize = 64 << 20;
const LARGE: usize = 1 << 20;
const SMALL: usize = 4 << 10;
/// At the end of a slice, so many times the data that is durable within a part of a slice may be
/// owed.
const OWED: usize = 4;

/// One kind of operation.
pub(super) struct Work {
    pub(super) name: &'static str,
    /// Whether bytes count: it goes through the file in pieces.
    pub(super) in_order: bool,
    /// The operation of this number.
    step: fn(&mut Side, usize) -> io::Result<()>,
    /// Whether its data is made durable at the end of a slice, in its time.
    writes: bool,
    /// Whether it waits for no limit and is charged all the same: the next work pays for it.
    owes: bool,
}

pub(super) const WORKS: &[Work] = &[
    Work {
        name: "write in order",
        in_order: true,
        step: |side, n| side.write(side.piece(), n),
        writes: true,
        owes: false,
    },
    Work {
        name: "read in order",
        in_order: true,
        step: |side, n| side.read(side.piece(), n),
        writes: false,
        owes: false,
    },
    Work { name: "write 4 KiB anywhere", in_order: false, step: written_anywhere, writes: true, owes: false },
    Work { name: "  … with fdatasync", in_order: false, step: durable, writes: true, owes: false },
    Work {
        name: "read 4 KiB anywhere",
        in_order: false,
        step: |side, n| side.read(SMALL, side.anywhere(n)),
        writes: false,
        owes: false,
    },
    Work {
        name: "stat",
        in_order: false,
        step: |side, _| fs::metadata(&side.path).map(drop),
        writes: false,
        owes: false,
    },
    Work { name: "create and unlink", in_order: false, step: create, writes: false, owes: true },
];

/// A directory, and the file that is used there.
#[derive(Debug)]
pub(super) struct Side {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
    /// How large it is: never more is dirty.
    file_bytes: usize,
    /// After how many small writes they are made durable.
    small_writes: usize,
}

impl Side {
    /// With a file that is written before, so that no side's first slice pays for that: of `most`
    /// bytes, or as many as are durable within a part of a slice.
    pub(super) fn new(directory: &Path, most: usize, slice: Duration) -> crate::term::problem::Result<Self> {
        let make = || {
            let path = directory.join("file");
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            let buffer = vec![0x5a; LARGE];
            let mut side = Self { path, file, buffer, file_bytes: most, small_writes: 1 };
            let pieces = largest(most / SMALL, slice, |pieces| {
                let mut left = pieces * SMALL;
                while left > 0 {
                    let bytes = left.min(LARGE);
                    left -= bytes;
                    side.file.write_all_at(&side.buffer[..bytes], left as u64)?;
                }
                side.file.sync_all()
            })?;
            side.file_bytes = pieces * SMALL;
            Ok(side)
        };
        make().map_err(|error: io::Error| {
            crate::term::problem::Problem::failure(format!("{}: its file: {error}", directory.shown()))
        })
    }

    /// How large its file is.
    pub(super) const fn file_bytes(&self) -> usize {
        self.file_bytes
    }

    /// The bytes of one sequential read or write.
    pub(super) fn piece(&self) -> usize {
        LARGE.min(self.file_bytes)
    }

    /// Keeps only so much of its file, and finds out how many small writes are durable within a
    /// part of a slice: to a slow store they may take far longer than as many bytes in order.
    pub(super) fn prepare(&mut self, bytes: usize, slice: Duration) -> io::Result<()> {
        self.file.set_len(bytes as u64)?;
        self.file_bytes = bytes;
        self.small_writes = largest(bytes / SMALL, slice, |writes| {
            (0..writes).try_for_each(|number| written_anywhere(self, number))?;
            self.file.sync_data()
        })?;
        Ok(())
    }

    /// Does it again and again, for so long.
    pub(super) fn run(&mut self, work: &Work, slice: Duration, samples: &mut Samples) -> io::Result<()> {
        let begun = Instant::now();
        let mut before = begun;
        for number in 0.. {
            (work.step)(self, number)?;
            let now = Instant::now();
            samples.add(now - before);
            before = now;
            // Otherwise the rest at the end may take far longer than the slice.
            if work.writes && !work.in_order && (number + 1) % self.small_writes == 0 && !self.holds_all() {
                self.file.sync_data()?;
                before = Instant::now();
            }
            let is_slow = self.file_bytes < FILE_BYTES;
            let owes_enough = work.owes && is_slow && number >= OWED * self.small_writes;
            if now - begun >= slice || owes_enough {
                break;
            }
        }
        if work.writes {
            self.file.sync_data()?;
        }
        samples.end_slice(begun.elapsed());
        Ok(())
    }

    fn write(&mut self, bytes: usize, number: usize) -> io::Result<()> {
        self.file.write_all_at(&self.buffer[..bytes], self.at(bytes, number))
    }

    fn read(&mut self, bytes: usize, number: usize) -> io::Result<()> {
        let at = self.at(bytes, number);
        self.file.read_exact_at(&mut self.buffer[..bytes], at)
    }

    /// Whether all of its file may be dirty in small pieces.
    const fn holds_all(&self) -> bool {
        self.small_writes >= self.file_bytes / SMALL
    }

    /// The place of the `number`th piece of so many bytes, round and round.
    const fn at(&self, bytes: usize, number: usize) -> u64 {
        (number * bytes % self.file_bytes) as u64
    }

    /// Numbers that jump about, equal in each run.
    const fn anywhere(&self, number: usize) -> usize {
        (number.wrapping_mul(0x9e37_79b1) >> 7) % (self.file_bytes / SMALL)
    }
}

/// Does twice as much each time, from 1 to `most`, until that takes a quarter of a slice: nor does
/// all of it take much longer than a slice, or as much once more.
fn largest(
    most: usize,
    slice: Duration,
    mut durably: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<usize> {
    let mut much = 1;
    loop {
        let begun = Instant::now();
        durably(much)?;
        if much >= most || begun.elapsed() >= slice / 4 {
            return Ok(much);
        }
        much = (much * 2).min(most);
    }
}

fn written_anywhere(side: &mut Side, number: usize) -> io::Result<()> {
    side.write(SMALL, side.anywhere(number))
}

fn durable(side: &mut Side, number: usize) -> io::Result<()> {
    written_anywhere(side, number)?;
    side.file.sync_data()
}

fn create(side: &mut Side, _: usize) -> io::Result<()> {
    let path = side.path.with_extension("new");
    drop(File::create_new(&path)?);
    fs::remove_file(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store that takes so long for each piece: the figure counts, not the clock.
    fn pieces(most: usize, each: Duration) -> (usize, usize) {
        let mut all = 0;
        let found = largest(most, Duration::from_millis(40), |much| {
            all += much;
            let until = Instant::now() + each * u32::try_from(much).unwrap();
            while Instant::now() < until {}
            Ok(())
        });
        (found.unwrap(), all)
    }

    #[test]
    fn a_slow_store_is_given_less() {
        // 10 ms are 4 pieces at most; a slow machine only finds fewer.
        let (found, all) = pieces(1000, Duration::from_micros(2500));
        assert!(found <= 4 && all < 2 * found, "{found} of {all}");
        // Each takes longer than its part of a slice: one, or nothing would be measured.
        assert_eq!(pieces(1000, Duration::from_millis(20)), (1, 1));
        assert_eq!(largest(1, Duration::ZERO, |_| Ok(())).unwrap(), 1);
        // Never more than the most, also where that is no power of two.
        assert_eq!(largest(1000, Duration::MAX, |_| Ok(())).unwrap(), 1000);
    }
}
