//! What is done on either side.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::samples::Samples;

/// How large the file is.
const FILE_BYTES: usize = 64 << 20;
const LARGE: usize = 1 << 20;
const SMALL: usize = 4 << 10;

/// One kind of operation.
pub(super) struct Work {
    pub(super) name: &'static str,
    /// What each moves, if that is what counts.
    pub(super) bytes: usize,
    /// The operation of this number.
    step: fn(&mut Side, usize) -> io::Result<()>,
    /// Whether what it wrote is made durable at the end of a slice, in its time.
    writes: bool,
}

pub(super) const WORKS: &[Work] = &[
    Work { name: "write 1 MiB in order", bytes: LARGE, step: |side, n| side.write(LARGE, n), writes: true },
    Work { name: "read 1 MiB in order", bytes: LARGE, step: |side, n| side.read(LARGE, n), writes: false },
    Work {
        name: "write 4 KiB anywhere",
        bytes: 0,
        step: |side, n| side.write(SMALL, anywhere(n)),
        writes: true,
    },
    Work { name: "  … with fdatasync", bytes: 0, step: durable, writes: true },
    Work {
        name: "read 4 KiB anywhere",
        bytes: 0,
        step: |side, n| side.read(SMALL, anywhere(n)),
        writes: false,
    },
    Work { name: "stat", bytes: 0, step: |side, _| fs::metadata(&side.path).map(drop), writes: false },
    Work { name: "create and unlink", bytes: 0, step: create, writes: false },
];

/// A directory, and the file that is used there.
#[derive(Debug)]
pub(super) struct Side {
    path: PathBuf,
    file: File,
    buffer: Vec<u8>,
}

impl Side {
    /// With a file that is written once, so that nobody's first slice pays for that.
    pub(super) fn new(directory: &Path) -> crate::problem::Result<Self> {
        let make = || {
            let path = directory.join("file");
            let file = File::options().read(true).write(true).create_new(true).open(&path)?;
            let mut side = Self { path, file, buffer: vec![0x5a; LARGE] };
            for n in 0..FILE_BYTES / LARGE {
                side.write(LARGE, n)?;
            }
            side.file.sync_all().map(|()| side)
        };
        make().map_err(|error: io::Error| {
            crate::problem::Problem::failure(format!("{}: a file of 64 MiB: {error}", directory.display()))
        })
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
            if now - begun >= slice {
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
        self.file.write_all_at(&self.buffer[..bytes], at(bytes, number))
    }

    fn read(&mut self, bytes: usize, number: usize) -> io::Result<()> {
        self.file.read_exact_at(&mut self.buffer[..bytes], at(bytes, number))
    }
}

fn durable(side: &mut Side, number: usize) -> io::Result<()> {
    side.write(SMALL, anywhere(number))?;
    side.file.sync_data()
}

fn create(side: &mut Side, _: usize) -> io::Result<()> {
    let path = side.path.with_extension("new");
    drop(File::create_new(&path)?);
    fs::remove_file(path)
}

/// The place of the `number`th piece of so many bytes, round and round.
fn at(bytes: usize, number: usize) -> u64 {
    (number * bytes % FILE_BYTES) as u64
}

/// Numbers that jump about, the same in each run.
const fn anywhere(number: usize) -> usize {
    (number.wrapping_mul(0x9e37_79b1) >> 7) % (FILE_BYTES / SMALL)
}
