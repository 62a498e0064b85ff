//! The clients: threads that make one system call after another on a mount and time each.
//!
//! A thread's operations follow one another without a pause; an operation's duration reaches from
//! the end of the one before to its own end. The threads of a slice start together at a barrier.
//! The rate is the sum of the threads' rates, each over its own measured time.

use super::sizes::Sizes;
use crate::random::Random;
use crate::stats::Histogram;
use anyhow::Context as _;
use rustix::fs::{
    Advice, AtFlags, Mode, OFlags, StatxFlags, fadvise, fdatasync, fsync, openat, statx, unlinkat,
};
use rustix::io::{pread, pwrite};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Bytes of a small transfer.
pub(crate) const SMALL: usize = 4 << 10;
/// Bytes of a large transfer.
pub(crate) const LARGE: usize = 1 << 20;
/// The file that is written from start to end, and removed after each slice.
pub(crate) const SEQUENTIAL: &str = "sequential";
/// Most clients of a scenario; as many files are laid out.
const CLIENTS_MAX: usize = 2;

/// One client.
pub(crate) trait Client: Send {
    /// One operation.
    fn step(&mut self) -> io::Result<()>;

    /// Called before each operation; returns whether it did something, which is then not measured.
    fn prepare(&mut self) -> io::Result<bool> {
        Ok(false)
    }
}

/// How long to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) warm_up: Duration,
    pub(crate) slice: Duration,
}

/// The work of the clients of a slice.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Operations a second, all clients together.
    pub(crate) per_second: f64,
    /// Their durations.
    pub(crate) latency: Histogram,
    /// Operations, those of the warm-up too.
    pub(crate) operations: u64,
}

/// Runs the clients side by side.
///
/// # Errors
/// The first error of a client.
pub(crate) fn run<C: Client>(clients: Vec<C>, timing: Timing) -> anyhow::Result<Work> {
    let barrier = Barrier::new(clients.len());
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = clients
            .into_iter()
            .map(|mut client| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    one(&mut client, timing)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a client does not panic")).collect::<Vec<_>>()
    });
    let mut work = Work::default();
    for result in results {
        let (latency, busy, warm_up) = result?;
        work.operations += warm_up + latency.count();
        work.per_second += latency.count() as f64 / busy.as_secs_f64();
        work.latency.merge(&latency);
    }
    Ok(work)
}

/// The durations of a client's measured operations, the time they took together, and the number of
/// operations before them.
fn one(client: &mut impl Client, timing: Timing) -> io::Result<(Histogram, Duration, u64)> {
    let (mut latency, mut warm_up) = (Histogram::default(), 0);
    let warm = Instant::now() + timing.warm_up;
    while Instant::now() < warm {
        client.prepare()?;
        client.step()?;
        warm_up += 1;
    }
    let mut busy = Duration::ZERO;
    let mut last = Instant::now();
    while busy < timing.slice {
        if client.prepare()? {
            last = Instant::now();
        }
        client.step()?;
        let now = Instant::now();
        let took = now - last;
        latency.add(took);
        busy += took;
        last = now;
    }
    Ok((latency, busy, warm_up))
}

/// Bytes that do not compress and are not zero.
pub(crate) fn filler(len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    Random::new(len as u64).fill(&mut bytes);
    bytes
}

fn whole(done: usize, asked: usize) -> io::Result<()> {
    if done == asked {
        return Ok(());
    }
    Err(io::Error::other(format!("{done} bytes instead of {asked}")))
}

/// The name of a client's laid-out file.
fn laid_out(client: usize) -> String {
    format!("laid-out.{client}")
}

/// Writes the files that the scenarios use, one for each client, onto the store.
///
/// # Errors
/// If a call fails.
pub(crate) fn lay_out(root: &Path, sizes: &Sizes) -> anyhow::Result<()> {
    for client in 0..CLIENTS_MAX {
        write_file(&root.join(laid_out(client)), sizes.random_bytes).map(drop)?;
        let directory = root.join(format!("client.{client}"));
        std::fs::create_dir(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    }
    // Memory that is touched for the first time is slow: no target's first slice pays for that.
    write_file(&root.join(SEQUENTIAL), sizes.sequential_bytes)?;
    std::fs::remove_file(root.join(SEQUENTIAL)).context("unlink")
}

/// Writes a file from start to end in large pieces; the time from the first write to the end of
/// close. After that, and not in that time, it is synced: nothing of it is written back in
/// another's slice.
///
/// # Errors
/// If a call fails.
pub(crate) fn write_file(path: &Path, bytes: u64) -> anyhow::Result<Duration> {
    let buffer = filler(LARGE);
    let file = File::options().create(true).truncate(true).write(true).open(path).context("open")?;
    let again = File::open(path).context("open for sync")?;
    let start = Instant::now();
    for offset in (0..bytes).step_by(LARGE) {
        let done = pwrite(&file, &buffer, offset).context("write")?;
        whole(done, LARGE)?;
    }
    drop(file);
    let took = start.elapsed();
    fsync(&again).context("fsync")?;
    Ok(took)
}

/// A client that transfers small pieces at random places of its laid-out file.
#[derive(Debug)]
pub(crate) struct Writer {
    file: File,
    buffer: Vec<u8>,
    random: Random,
    pieces: u64,
    syncs: bool,
}

impl Writer {
    /// The writer of number `client`; `syncs` makes an operation a write and an fdatasync.
    ///
    /// # Errors
    /// If its file cannot be opened.
    pub(crate) fn open(root: &Path, client: usize, sizes: &Sizes, syncs: bool) -> anyhow::Result<Self> {
        let file = File::options().write(true).open(root.join(laid_out(client))).context("open")?;
        Ok(Self {
            file,
            buffer: filler(SMALL),
            random: Random::new(client as u64 + 1),
            pieces: sizes.random_bytes / SMALL as u64,
            syncs,
        })
    }
}

impl Client for Writer {
    fn step(&mut self) -> io::Result<()> {
        let offset = self.random.next() % self.pieces * SMALL as u64;
        whole(pwrite(&self.file, &self.buffer, offset)?, SMALL)?;
        if self.syncs {
            fdatasync(&self.file)?;
        }
        Ok(())
    }
}

/// Syncs the laid-out files, so that nothing of them is written back in another target's slice.
///
/// # Errors
/// If a call fails.
pub(crate) fn settle(root: &Path) -> anyhow::Result<()> {
    for client in 0..CLIENTS_MAX {
        fsync(File::open(root.join(laid_out(client))).context("open")?).context("fsync")?;
    }
    Ok(())
}

/// A client that reads its laid-out file piece by piece, each piece once between two drops of the
/// kernel's cache of that file (where it is dropped: on a native file system the cache is the
/// store's).
#[derive(Debug)]
pub(crate) struct Reader {
    file: File,
    buffer: Vec<u8>,
    /// Offsets in pieces, in the order in which they are read.
    order: Vec<u32>,
    next: usize,
    drops_cache: bool,
}

impl Reader {
    /// Reads from start to end in large pieces, with the kernel's read-ahead.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(crate) fn sequential(root: &Path, sizes: &Sizes, drops_cache: bool) -> anyhow::Result<Self> {
        Self::open(root, sizes, LARGE, drops_cache)
    }

    /// Reads small pieces in random order, without read-ahead.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(crate) fn random(root: &Path, sizes: &Sizes, drops_cache: bool) -> anyhow::Result<Self> {
        let mut reader = Self::open(root, sizes, SMALL, drops_cache)?;
        fadvise(&reader.file, 0, None, Advice::Random).context("fadvise")?;
        let mut random = Random::new(1);
        for last in (1..reader.order.len()).rev() {
            let other = usize::try_from(random.next() % (last as u64 + 1)).unwrap_or(0);
            reader.order.swap(last, other);
        }
        Ok(reader)
    }

    fn open(root: &Path, sizes: &Sizes, piece: usize, drops_cache: bool) -> anyhow::Result<Self> {
        let file = File::open(root.join(laid_out(0))).context("open")?;
        let pieces =
            u32::try_from(sizes.random_bytes / piece as u64).context("a file with too many pieces")?;
        let order: Vec<u32> = (0..pieces).collect();
        let next = order.len();
        Ok(Self { file, buffer: vec![0; piece], order, next, drops_cache })
    }
}

impl Client for Reader {
    fn prepare(&mut self) -> io::Result<bool> {
        if self.next < self.order.len() {
            return Ok(false);
        }
        self.next = 0;
        if self.drops_cache {
            fadvise(&self.file, 0, None, Advice::DontNeed)?;
        }
        Ok(true)
    }

    fn step(&mut self) -> io::Result<()> {
        let offset = u64::from(self.order[self.next]) * self.buffer.len() as u64;
        self.next += 1;
        whole(pread(&self.file, &mut self.buffer[..], offset)?, self.buffer.len())
    }
}

/// A client that asks for the attributes of its file, past the kernel's cache.
#[derive(Debug)]
pub(crate) struct Asker {
    root: File,
    name: CString,
}

impl Asker {
    /// The asker of number `client`.
    ///
    /// # Errors
    /// If the root cannot be opened.
    pub(crate) fn open(root: &Path, client: usize) -> anyhow::Result<Self> {
        Ok(Self { root: File::open(root).context("open")?, name: CString::new(laid_out(client))? })
    }
}

impl Client for Asker {
    fn step(&mut self) -> io::Result<()> {
        statx(&self.root, self.name.as_c_str(), AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS)?;
        Ok(())
    }
}

/// A client that makes a file and takes it away, in a directory of its own, under ever new names.
#[derive(Debug)]
pub(crate) struct Maker {
    directory: File,
    made: u64,
}

impl Maker {
    /// The maker of number `client`.
    ///
    /// # Errors
    /// If its directory cannot be opened.
    pub(crate) fn open(root: &Path, client: usize) -> anyhow::Result<Self> {
        Ok(Self { directory: File::open(root.join(format!("client.{client}"))).context("open")?, made: 0 })
    }
}

/// `f` and the number, in a buffer on the stack.
fn numbered(number: u64, buffer: &mut [u8; 24]) -> &CStr {
    let mut rest = number;
    let mut at = buffer.len() - 1;
    buffer[at] = 0;
    loop {
        at -= 1;
        // A digit is one byte.
        buffer[at] = b'0' + u8::try_from(rest % 10).unwrap_or(0);
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    at -= 1;
    buffer[at] = b'f';
    CStr::from_bytes_with_nul(&buffer[at..]).unwrap_or(c"f")
}

impl Client for Maker {
    fn step(&mut self) -> io::Result<()> {
        let mut buffer = [0; 24];
        let name = numbered(self.made, &mut buffer);
        self.made += 1;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file: OwnedFd = openat(&self.directory, name, flags, Mode::from_raw_mode(0o644))?;
        drop(file);
        unlinkat(&self.directory, name, AtFlags::empty())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt as _;

    fn small() -> Sizes {
        Sizes {
            runs: 1,
            slice: Duration::from_millis(5),
            warm_up: Duration::ZERO,
            sequential_bytes: 2 << 20,
            random_bytes: 2 << 20,
            tar_files: 1,
            git_files: 1,
        }
    }

    fn laid_out_tree() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        lay_out(root.path(), &small()).unwrap();
        root
    }

    const TIMING: Timing = Timing { warm_up: Duration::from_millis(1), slice: Duration::from_millis(5) };

    #[test]
    fn every_client_works_and_is_counted() {
        let root = laid_out_tree();
        let (root, sizes) = (root.path(), small());
        let check = |work: Work| {
            assert!(work.latency.count() > 0 && work.per_second > 0.0 && work.per_second.is_finite());
        };
        check(run((0..2).map(|c| Writer::open(root, c, &sizes, c == 1).unwrap()).collect(), TIMING).unwrap());
        check(run(vec![Reader::sequential(root, &sizes, true).unwrap()], TIMING).unwrap());
        check(run(vec![Reader::random(root, &sizes, false).unwrap()], TIMING).unwrap());
        check(run((0..2).map(|c| Asker::open(root, c).unwrap()).collect(), TIMING).unwrap());
        check(run((0..2).map(|c| Maker::open(root, c).unwrap()).collect(), TIMING).unwrap());
        settle(root).unwrap();
        assert_eq!(std::fs::read_dir(root.join("client.0")).unwrap().count(), 0, "files are left");
    }

    #[test]
    fn a_random_reader_reads_each_piece_once_before_it_begins_again() {
        let root = laid_out_tree();
        let mut reader = Reader::random(root.path(), &small(), false).unwrap();
        let mut order = reader.order.clone();
        assert!(order.windows(2).any(|pair| pair[0] > pair[1]), "not shuffled");
        order.sort_unstable();
        assert!(order.iter().copied().eq(0..512), "not each piece once");
        assert!(reader.prepare().unwrap());
        for _ in 0..512 {
            assert!(!reader.prepare().unwrap());
            reader.step().unwrap();
        }
        assert!(reader.prepare().unwrap());
    }

    #[test]
    fn the_first_error_of_a_client_is_the_error_of_the_slice() {
        let root = laid_out_tree();
        let clients = vec![Maker::open(root.path(), 0).unwrap(), Maker::open(root.path(), 1).unwrap()];
        std::fs::write(root.path().join("client.1/f0"), "in the way").unwrap();
        let error = run(clients, TIMING).unwrap_err();
        assert!(error.to_string().contains("exists"), "{error}");
    }

    #[test]
    fn a_written_file_is_as_long_as_asked_and_not_of_zeros() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        assert!(write_file(&path, 3 << 20).unwrap() > Duration::ZERO);
        assert_eq!(path.metadata().unwrap().size(), 3 << 20);
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.chunks(SMALL).all(|piece| piece.iter().any(|&b| b != 0)));
    }

    #[test]
    fn numbered_names_are_names() {
        let mut buffer = [0; 24];
        assert_eq!(numbered(0, &mut buffer), c"f0");
        assert_eq!(numbered(1_234, &mut buffer), c"f1234");
        assert_eq!(numbered(u64::MAX, &mut buffer), c"f18446744073709551615");
    }
}
