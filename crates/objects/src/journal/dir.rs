//! A journal's files in a directory of this host: `DIR/VOLUME/`, which one process has locked.
//!
//! `DIR` belongs to root or to this process's user, and nobody else writes there; no link is
//! followed below it. Its file `id` is the journal's identity, and what is locked.

use std::collections::HashMap;
use std::fs::File;
use std::io::ErrorKind as IoKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use parking_lot::Mutex;
use rustix::fs::{self as sys, AtFlags, FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use store::{Error, ErrorKind, Result};

use super::Identity;
use super::disk::Disk;
use crate::uuid::Uuid;

const ID: &str = "id";
const ID_MAGIC: &[u8; 8] = b"WTjrnl1\n";
/// Magic, volume, journal, crc.
const ID_BYTES: usize = 8 + 16 + 16 + 4;
/// Files that are listed: far more than a journal has.
const FILES_MAX: usize = 1 << 20;
/// Zeros that are written behind small records. Room that was only allocated has to be marked as written
/// with each fdatasync, a write of the file system's own journal that takes as long as the record's.
/// (File systems that copy on write gain nothing, and lose the room.)
const ZEROED: usize = 64 << 10;
static ZEROS: [u8; ZEROED] = [0; ZEROED];

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct DirDisk {
    parent: Arc<OwnedFd>,
    dir: Arc<OwnedFd>,
    /// The directory of this volume.
    path: PathBuf,
    name: String,
    lock: Mutex<Option<Arc<OwnedFd>>>,
    files: Mutex<HashMap<u64, Arc<JournalFile>>>,
}

/// A file of the journal.
#[derive(Debug)]
struct JournalFile {
    file: File,
    /// The bytes that it was given, if it is written in place.
    room: u64,
    /// Everything before this was written, if only as zeros.
    written: Mutex<u64>,
}

impl DirDisk {
    /// Opens the journal of a volume in `path`, or makes one, and locks it. It blocks. `held`: the lock,
    /// if it is this process's already, by another one that has died.
    ///
    /// # Errors
    /// `AccessDenied`, `NotFound`, `Invalid`: `path` is no directory for it. `Busy`: another
    /// process has it. `Io`: its identity is damaged, or the disk is.
    pub(crate) fn open(
        path: &Path,
        volume: Uuid,
        held: Option<Arc<OwnedFd>>,
    ) -> Result<(Arc<Self>, Identity)> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = |path: &Path, errno: Errno| failed_at(path, errno);
        let parent = sys::open(path, flags, Mode::empty()).map_err(|errno| match errno {
            Errno::NOENT => {
                let why = format!(
                    "{}: there is no such directory for the journal: make it first, on a disk of this host (mkdir -m 700)",
                    path.display()
                );
                Error::with(ErrorKind::NotFound, "journal", why)
            }
            _ => at(path, errno),
        })?;
        check_owner(&parent, path)?;
        warn_of_memory(&parent, path);
        let name = volume.to_string();
        let path = path.join(&name);
        match sys::mkdirat(&parent, &name, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(at(&path, errno)),
        }
        let dir = sys::openat(&parent, &name, flags, Mode::empty()).map_err(|errno| at(&path, errno))?;
        check_owner(&dir, &path)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let id_path = path.join(ID);
        let lock = sys::openat(&dir, ID, flags, Mode::from_raw_mode(0o600));
        let lock = lock.map_err(|errno| at(&id_path, errno))?;
        let lock = match held {
            Some(held) if is_same(&held, &lock).map_err(|errno| at(&id_path, errno))? => held,
            _ => Arc::new(lock),
        };
        match sys::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => {
                let why = format!(
                    "another process of this host uses the journal {}: unmount the volume there, or end that process",
                    path.display()
                );
                return Err(Error::with(ErrorKind::Busy, "journal", why));
            }
            Err(errno) => return Err(at(&id_path, errno)),
        }
        let disk = Self {
            parent: Arc::new(parent),
            dir: Arc::new(dir),
            path,
            name,
            lock: Mutex::new(None),
            files: Mutex::default(),
        };
        let identity = disk.identity(&lock, volume.to_bytes())?;
        // The process that made them may have crashed before they were durable, and the lease will name
        // this journal.
        sys::fsync(&lock).map_err(|errno| at(&id_path, errno))?;
        sys::fsync(&*disk.dir).map_err(|errno| at(&disk.path, errno))?;
        sys::fsync(&*disk.parent).map_err(|errno| at(&disk.path, errno))?;
        *disk.lock.lock() = Some(lock);
        Ok((Arc::new(disk), identity))
    }

    /// Reads its identity, or gives it one.
    fn identity(&self, id: &OwnedFd, volume: [u8; 16]) -> Result<Identity> {
        let path = self.path.join(ID);
        let failed = |error: std::io::Error| failed(&path, &error);
        let file = File::from(id.try_clone().map_err(failed)?);
        // From its beginning: the opening may have been read by another process.
        let mut bytes = vec![0; ID_BYTES + 1];
        let len = file.read_at(&mut bytes, 0).map_err(failed)?;
        bytes.truncate(len);
        if let Some(identity) = parse_id(&bytes) {
            if identity.volume != volume {
                let why = format!("{} is another volume's: it was copied here", path.display());
                return Err(Error::with(ErrorKind::Invalid, "journal", why));
            }
            return Ok(identity);
        }
        // A crash may have come before it was written: then there is nothing else.
        if !numbers(&self.dir, &self.path)?.is_empty() {
            let why = format!(
                "{} is damaged, and files of the journal are there: put it back as it was",
                path.display()
            );
            return Err(Error::with(ErrorKind::Io, "journal", why));
        }
        let mut journal = [0; 16];
        crate::crypto::random(&mut journal);
        let identity = Identity { volume, id: journal };
        file.set_len(0).map_err(failed)?;
        file.write_all_at(&id_bytes(identity), 0).map_err(failed)?;
        Ok(identity)
    }

    fn file(&self, number: u64) -> Result<Arc<JournalFile>> {
        if let Some(file) = self.files.lock().get(&number) {
            return Ok(Arc::clone(file));
        }
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let name = name(number);
        let file = sys::openat(&*self.dir, &*name, flags, Mode::empty());
        let file = File::from(file.map_err(|errno| failed_at(&self.path.join(&name), errno))?);
        let file = Arc::new(JournalFile { file, room: 0, written: Mutex::default() });
        self.files.lock().insert(number, Arc::clone(&file));
        Ok(file)
    }
}

impl JournalFile {
    /// Writes at an offset; with `is_synced` all that was written is on the disk then.
    fn write(&self, at: u64, parts: &[Bytes], is_synced: bool) -> std::io::Result<()> {
        let mut end = at;
        for part in parts {
            self.file.write_all_at(part, end)?;
            end += part.len() as u64;
        }
        let mut written = self.written.lock();
        let room = usize::try_from(self.room.saturating_sub(end)).unwrap_or(usize::MAX);
        if is_synced && end > *written && end - at < ZEROED as u64 {
            let zeros = &ZEROS[..room.min(ZEROED)];
            // The record is whole without them: on a disk that is full, the next record says so.
            let zeroed = self.file.write_all_at(zeros, end);
            end += zeroed.map_or(0, |()| zeros.len() as u64);
        }
        *written = end.max(*written);
        drop(written);
        if is_synced { self.file.sync_data() } else { Ok(()) }
    }
}

/// Runs what blocks on a thread for that.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(Error::with(ErrorKind::Io, "journal", error.to_string())),
    }
}

#[async_trait]
impl Disk for DirDisk {
    async fn files(&self) -> Result<Vec<u64>> {
        let (dir, path) = (Arc::clone(&self.dir), self.path.clone());
        blocking(move || numbers(&dir, &path)).await
    }

    async fn create(&self, number: u64, header: Bytes, room: u64) -> Result<()> {
        let (dir, path) = (Arc::clone(&self.dir), self.path.join(name(number)));
        let file = blocking(move || {
            let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let file = sys::openat(&*dir, &*name(number), flags, Mode::from_raw_mode(0o600));
            let file = File::from(file.map_err(|errno| failed_at(&path, errno))?);
            let made = || -> std::io::Result<()> {
                match sys::fallocate(&file, FallocateFlags::empty(), 0, room) {
                    // Where it is not known, a full disk is found out later.
                    Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => {}
                    Err(errno) => return Err(errno.into()),
                }
                file.write_all_at(&header, 0)?;
                file.sync_all()?;
                Ok(sys::fsync(&*dir)?)
            };
            if let Err(error) = made() {
                // The next try makes it again; one that stays is an error then.
                let _removed = sys::unlinkat(&*dir, &*name(number), AtFlags::empty());
                return Err(failed(&path, &error));
            }
            Ok(file)
        });
        let file = file.await?;
        let room = if copies_on_write(&file) { 0 } else { room };
        let file = JournalFile { file, room, written: Mutex::default() };
        self.files.lock().insert(number, Arc::new(file));
        Ok(())
    }

    async fn write(&self, number: u64, at: u64, parts: Vec<Bytes>, is_synced: bool) -> Result<()> {
        let (file, path) = (self.file(number)?, self.path.join(name(number)));
        blocking(move || file.write(at, &parts, is_synced).map_err(|error| failed(&path, &error))).await
    }

    async fn read(&self, number: u64, at: u64, len: u64) -> Result<Bytes> {
        let (file, path) = (self.file(number)?, self.path.join(name(number)));
        blocking(move || {
            let read = || -> std::io::Result<Bytes> {
                let there = file.file.metadata()?.len().saturating_sub(at).min(len);
                let mut bytes = BytesMut::zeroed(usize::try_from(there).unwrap_or(usize::MAX));
                file.file.read_exact_at(&mut bytes, at)?;
                Ok(bytes.freeze())
            };
            read().map_err(|error| failed(&path, &error))
        })
        .await
    }

    async fn remove(&self, number: u64) -> Result<()> {
        self.files.lock().remove(&number);
        let (dir, path) = (Arc::clone(&self.dir), self.path.join(name(number)));
        blocking(move || {
            match sys::unlinkat(&*dir, &*name(number), AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(failed_at(&path, errno)),
            }
            sys::fsync(&*dir).map_err(|errno| failed_at(&path, errno))
        })
        .await
    }

    async fn set_aside(&self, word: &str) -> Result<String> {
        let files = self.files().await?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let aside = format!("{}.{word}-{time}", self.name);
        let (parent, dir) = (Arc::clone(&self.parent), Arc::clone(&self.dir));
        let (from, to) = (self.path.clone(), self.path.with_file_name(&aside));
        self.files.lock().clear();
        // The identity stays where it is: the lease names it.
        blocking(move || {
            let moved = || -> rustix::io::Result<()> {
                sys::mkdirat(&*parent, &*aside, Mode::from_raw_mode(0o700))?;
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let to = sys::openat(&*parent, &*aside, flags, Mode::empty())?;
                sys::fsync(&*parent)?;
                // From behind: what a crash leaves is the beginning of a journal, which can be read.
                for number in files.into_iter().rev() {
                    sys::renameat(&*dir, &*name(number), &to, &*name(number))?;
                }
                sys::fsync(&to)?;
                sys::fsync(&*dir)
            };
            moved().map_err(|errno| failed_at(&from, errno))
        })
        .await?;
        Ok(to.display().to_string())
    }

    fn lock(&self) -> Option<Arc<OwnedFd>> {
        self.lock.lock().clone()
    }

    fn unlock(&self) {
        drop(self.lock.lock().take());
    }
}

/// Whether both are openings of one file.
fn is_same(one: &OwnedFd, other: &OwnedFd) -> rustix::io::Result<bool> {
    let identity = |fd: &OwnedFd| sys::fstat(fd).map(|stat| (stat.st_dev, stat.st_ino));
    Ok(identity(one)? == identity(other)?)
}

fn name(number: u64) -> String {
    format!("{number:016x}")
}

/// The numbers of the files that are there.
fn numbers(dir: &OwnedFd, path: &Path) -> Result<Vec<u64>> {
    let failed = |errno| failed_at(path, errno);
    let mut numbers = Vec::new();
    for entry in sys::Dir::read_from(dir).map_err(failed)?.take(FILES_MAX) {
        let entry = entry.map_err(failed)?;
        let Ok(text) = entry.file_name().to_str() else { continue };
        if let Ok(number) = u64::from_str_radix(text, 16)
            && name(number) == text
        {
            numbers.push(number);
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Refuses a directory in which other users may change something.
fn check_owner(dir: impl AsFd, path: &Path) -> Result<()> {
    let stat = sys::fstat(dir).map_err(|errno| failed_at(path, errno))?;
    let (own, shown) = (rustix::process::geteuid().as_raw(), path.display());
    let why = if stat.st_uid != 0 && stat.st_uid != own {
        format!("the journal's directory {shown} belongs to user {}: make one of your own", stat.st_uid)
    } else if stat.st_mode & 0o022 != 0 {
        format!("other users may write in the journal's directory {shown}: chmod go-w {shown}")
    } else {
        return Ok(());
    };
    Err(Error::with(ErrorKind::AccessDenied, "journal", why))
}

/// Says so if a loss of power takes what is there.
fn warn_of_memory(dir: impl AsFd, path: &Path) {
    const TMPFS: u64 = 0x0102_1994;
    const RAMFS: u64 = 0x8584_58f6;
    if matches!(file_system_of(dir), Some(TMPFS | RAMFS)) {
        tracing::warn!(
            "the journal's directory {} is in memory: the host's crash loses what only the journal has; give one on a disk",
            path.display()
        );
    }
}

/// Whether what is written again gets another place.
fn copies_on_write(file: impl AsFd) -> bool {
    const BTRFS: u64 = 0x9123_683e;
    const BCACHEFS: u64 = 0xca45_1a4e;
    const ZFS: u64 = 0x2fc1_2fc1;
    matches!(file_system_of(file), Some(BTRFS | BCACHEFS | ZFS))
}

/// The kernel's number for the kind of a file system.
fn file_system_of(file: impl AsFd) -> Option<u64> {
    sys::fstatfs(file).ok().and_then(|found| u64::try_from(found.f_type).ok())
}

fn id_bytes(identity: Identity) -> Bytes {
    let mut out = BytesMut::with_capacity(ID_BYTES);
    out.put_slice(ID_MAGIC);
    out.put_slice(&identity.volume);
    out.put_slice(&identity.id);
    let sum = super::format::sum_of(&[out.clone().freeze()]);
    out.put_u32(sum);
    out.freeze()
}

fn parse_id(bytes: &[u8]) -> Option<Identity> {
    let identity =
        Identity { volume: bytes.get(8..24)?.try_into().ok()?, id: bytes.get(24..40)?.try_into().ok()? };
    (*id_bytes(identity) == *bytes).then_some(identity)
}

fn failed_at(path: &Path, errno: Errno) -> Error {
    failed(path, &errno.into())
}

fn failed(path: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        IoKind::NotFound => ErrorKind::NotFound,
        IoKind::NotADirectory => ErrorKind::NotDirectory,
        IoKind::PermissionDenied => ErrorKind::AccessDenied,
        IoKind::StorageFull | IoKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Io,
    };
    Error::with(kind, "journal", format!("{}: {error}", path.display()))
}
