//! Operations done for real, in a directory.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, SeekFrom, Timespec, Timestamps,
    Uid, XattrFlags,
};
use rustix::io::Errno as Code;

use super::files::size;
use super::op::{Allocate, How, P, Rename, SetX, fill_bytes, path, target, xattr_name};
use super::{Errno, Op, Outcome, SLOTS, Value};
use crate::sys::{Aligned, Mapping};

/// A directory and the files that are open in it.
#[derive(Debug)]
pub struct Real {
    root: PathBuf,
    slots: [Option<Opened>; SLOTS],
}

#[derive(Debug)]
struct Opened {
    file: File,
    direct: bool,
}

type Res = Result<Value, Code>;

impl Real {
    /// Works in `root`, an empty directory.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), slots: Default::default() }
    }

    /// The file that `slot` has open.
    #[must_use]
    pub fn open_file(&self, slot: usize) -> Option<&File> {
        self.slots[slot].as_ref().map(|o| &o.file)
    }

    /// Closes every file.
    pub fn close_all(&mut self) {
        self.slots = Default::default();
    }

    /// Does `op`, which the model could do; remounts are the caller's.
    pub fn apply(&mut self, op: &Op) -> Outcome {
        self.attempt(op).map_err(|e| Errno(e.raw_os_error()))
    }

    fn attempt(&mut self, op: &Op) -> Res {
        match *op {
            Op::Open { slot, path, how } => self.open(slot, path, how),
            Op::Tmpfile { slot, dir } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let fd = rustix::fs::open(self.at(dir), flags, Mode::from_raw_mode(0o644))?;
                self.slots[slot] = Some(Opened { file: File::from(fd), direct: false });
                Ok(Value::Done)
            }
            Op::Close { slot } => {
                self.slots[slot] = None;
                Ok(Value::Done)
            }
            Op::Read { .. } | Op::MapRead { .. } => self.read(op),
            Op::Write { .. } | Op::MapWrite { .. } | Op::Copy { .. } => self.write(op),
            Op::FTruncate { slot, len } => done(rustix::fs::ftruncate(self.file(slot), len)),
            Op::Truncate { path, len } => done(truncate(&self.at(path), len)),
            Op::Allocate { slot, how, at, len } => {
                done(rustix::fs::fallocate(self.file(slot), allocate_flags(how), at, len))
            }
            Op::SeekHole { slot, at } => self.seek_hole(slot, at),
            Op::Fsync { slot, data_only: true } => done(rustix::fs::fdatasync(self.file(slot))),
            Op::Fsync { slot, data_only: false } => done(rustix::fs::fsync(self.file(slot))),
            Op::SyncAll => {
                let dir = File::open(&self.root).map_err(code)?;
                done(rustix::fs::syncfs(dir))
            }
            Op::Remount => Ok(Value::Done),
            _ => self.names(op),
        }
    }

    fn names(&self, op: &Op) -> Res {
        done(match *op {
            Op::Mkdir { path, perm } => rustix::fs::mkdir(self.at(path), Mode::from_raw_mode(perm)),
            Op::Rmdir { path } => rustix::fs::rmdir(self.at(path)),
            Op::Unlink { path } => rustix::fs::unlink(self.at(path)),
            Op::Symlink { path, target: t } => rustix::fs::symlink(target(t), self.at(path)),
            Op::Fifo { path } => {
                rustix::fs::mknodat(CWD, self.at(path), FileType::Fifo, Mode::from_raw_mode(0o644), 0)
            }
            Op::Link { from, to } => {
                rustix::fs::linkat(CWD, self.at(from), CWD, self.at(to), AtFlags::empty())
            }
            Op::LinkSlot { slot, to } => {
                use std::os::fd::AsRawFd as _;
                let proc = format!("/proc/self/fd/{}", self.file(slot).as_raw_fd());
                rustix::fs::linkat(CWD, proc, CWD, self.at(to), AtFlags::SYMLINK_FOLLOW)
            }
            Op::Rename { from, to, how } => {
                let flags = match how {
                    Rename::Replace => RenameFlags::empty(),
                    Rename::NoReplace => RenameFlags::NOREPLACE,
                    Rename::Exchange => RenameFlags::EXCHANGE,
                };
                rustix::fs::renameat_with(CWD, self.at(from), CWD, self.at(to), flags)
            }
            Op::Chmod { path, perm } => rustix::fs::chmod(self.at(path), Mode::from_raw_mode(perm)),
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
                rustix::fs::chownat(CWD, self.at(path), uid, gid, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::SetTimes { path, secs, nanos } => {
                let time = Timespec { tv_sec: secs, tv_nsec: nanos.into() };
                let times = Timestamps { last_access: time, last_modification: time };
                rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW)
            }
            Op::SetXattr { path, name, len, fill, how } => {
                let flags = match how {
                    SetX::Any => XattrFlags::empty(),
                    SetX::Create => XattrFlags::CREATE,
                    SetX::Replace => XattrFlags::REPLACE,
                };
                rustix::fs::lsetxattr(self.at(path), xattr_name(name), &fill_bytes(fill, len), flags)
            }
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(self.at(path), xattr_name(name)),
            _ => unreachable!("{op:?} is handled elsewhere"),
        })
    }

    fn open(&mut self, slot: usize, path: P, how: How) -> Res {
        let mut flags = libc::O_NOFOLLOW;
        if how.append {
            flags |= libc::O_APPEND;
        }
        if how.direct {
            flags |= libc::O_DIRECT;
        }
        if how.create {
            flags |= libc::O_CREAT;
        }
        if how.exclusive {
            flags |= libc::O_EXCL;
        }
        if how.truncate {
            flags |= libc::O_TRUNC;
        }
        // All by flags: `std` refuses some combinations that the kernel takes.
        let flags = OFlags::from_bits_retain(flags.unsigned_abs()) | OFlags::RDWR | OFlags::CLOEXEC;
        let fd = rustix::fs::open(self.at(path), flags, Mode::from_raw_mode(0o644))?;
        self.slots[slot] = Some(Opened { file: File::from(fd), direct: how.direct });
        Ok(Value::Done)
    }

    fn read(&self, op: &Op) -> Res {
        match *op {
            Op::Read { slot, at, len } if self.is_direct(slot) => {
                let (at, len) = (at / 4096 * 4096, len.div_ceil(4096) * 4096);
                let mut buf = Aligned::zeroed(len);
                let n = read_all(self.file(slot), buf.get_mut(), at)?;
                Ok(Value::Bytes(buf.get()[..n].to_vec()))
            }
            Op::Read { slot, at, len } => {
                let mut buf = vec![0; len];
                let n = read_all(self.file(slot), &mut buf, at)?;
                buf.truncate(n);
                Ok(Value::Bytes(buf))
            }
            Op::MapRead { slot, at, len } => {
                let (map, have) = self.map(slot)?;
                let at = size(at).min(have);
                Ok(Value::Bytes(map.read(at, len.min(have - at))))
            }
            _ => unreachable!("{op:?} does not read"),
        }
    }

    fn write(&self, op: &Op) -> Res {
        match *op {
            Op::Write { slot, at, len, fill } if self.is_direct(slot) => {
                let (at, len) = (at / 4096 * 4096, len.div_ceil(4096) * 4096);
                let data = Aligned::new(&fill_bytes(fill, len));
                self.file(slot).write_all_at(data.get(), at).map_err(code)?;
                Ok(Value::Count(len as u64))
            }
            Op::Write { slot, at, len, fill } => {
                // With O_APPEND the offset does not count: pwrite(2) of Linux appends.
                self.file(slot).write_all_at(&fill_bytes(fill, len), at).map_err(code)?;
                Ok(Value::Count(len as u64))
            }
            Op::MapWrite { slot, at, len, fill } => {
                let (map, have) = self.map(slot)?;
                let len = len.min(have - size(at));
                map.write(size(at), &fill_bytes(fill, len));
                map.sync().map_err(code)?;
                Ok(Value::Done)
            }
            Op::Copy { from, at, to, to_at, len } => {
                let (mut at, mut to_at, mut total) = (at, to_at, 0);
                // No further than the source was long: a copy onto the file's own end makes more of
                // it.
                let have = self.file(from).metadata().map_err(code)?.len().saturating_sub(at);
                let len = len.min(size(have));
                // The call may do a part only.
                loop {
                    let left = len - size(total);
                    let (source, target) = (self.file(from), self.file(to));
                    let n =
                        rustix::fs::copy_file_range(source, Some(&mut at), target, Some(&mut to_at), left)?;
                    total += n as u64;
                    if n == 0 || size(total) >= len {
                        return Ok(Value::Count(total));
                    }
                }
            }
            _ => unreachable!("{op:?} does not write"),
        }
    }

    /// What lseek(2) calls a hole must read as zeros, and must begin and end in order.
    fn seek_hole(&self, slot: usize, at: u64) -> Res {
        let file = self.file(slot);
        let len = file.metadata().map_err(code)?.len();
        let seek = |how| match rustix::fs::seek(file, how) {
            Err(Code::NXIO) => Ok(len),
            other => other,
        };
        let hole = seek(SeekFrom::Hole(at))?;
        assert!(hole >= at.min(len) && hole <= len, "SEEK_HOLE({at}) gave {hole} of {len} bytes");
        let data = seek(SeekFrom::Data(at))?;
        assert!(data >= at.min(len) && data <= len, "SEEK_DATA({at}) gave {data} of {len} bytes");
        if at < data {
            let mut buf = vec![1; size(data - at)];
            read_all(file, &mut buf, at)?;
            assert!(buf.iter().all(|b| *b == 0), "SEEK_DATA({at}) skips data before {data}");
        }
        Ok(Value::Done)
    }

    fn map(&self, slot: usize) -> Result<(Mapping, usize), Code> {
        let file = self.file(slot);
        let len = size(file.metadata().map_err(code)?.len());
        Ok((Mapping::new(file, len).map_err(code)?, len))
    }

    fn at(&self, p: P) -> PathBuf {
        self.root.join(path(p))
    }

    fn file(&self, slot: usize) -> &File {
        &self.slots[slot].as_ref().expect("the model has it open").file
    }

    fn is_direct(&self, slot: usize) -> bool {
        self.slots[slot].as_ref().is_some_and(|o| o.direct)
    }
}

fn done(result: Result<(), Code>) -> Res {
    result.map(|()| Value::Done)
}

fn code(e: std::io::Error) -> Code {
    Code::from_io_error(&e).unwrap_or(Code::IO)
}

fn allocate_flags(how: Allocate) -> FallocateFlags {
    match how {
        Allocate::Extend => FallocateFlags::empty(),
        Allocate::KeepSize => FallocateFlags::KEEP_SIZE,
        Allocate::PunchHole => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        Allocate::ZeroRange => FallocateFlags::ZERO_RANGE,
        Allocate::ZeroRangeKeepSize => FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE,
    }
}

/// truncate(2) itself: it follows links, and opens nothing.
fn truncate(path: &Path, len: u64) -> Result<(), Code> {
    use std::os::unix::ffi::OsStrExt as _;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Code::INVAL)?;
    let len = i64::try_from(len).map_err(|_| Code::FBIG)?;
    // SAFETY: `path` is a NUL-terminated string that outlives the call.
    if unsafe { libc::truncate(path.as_ptr(), len) } == 0 {
        Ok(())
    } else {
        Err(code(std::io::Error::last_os_error()))
    }
}

/// Reads until `buf` is full or the file ends.
fn read_all(file: &File, buf: &mut [u8], at: u64) -> Result<usize, Code> {
    let mut have = 0;
    while have < buf.len() {
        match rustix::io::pread(file.as_fd(), &mut buf[have..], at + have as u64) {
            Ok(0) => break,
            Ok(n) => have += n,
            Err(Code::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(have)
}
