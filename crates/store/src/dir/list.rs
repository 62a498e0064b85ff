//! Listing a directory of the host.
//!
//! The kernel's own cookies (`d_off`) are the offsets, so that they stay right while entries come
//! and go. A listing that goes on where it stopped is served from the buffer of the last system
//! call; another offset seeks.
//!
//! Lock order: `DirDir::position` comes first; it is held while the host lists and while the sink
//! is called, which must call nothing of this store. It is one opening's, so that no other waits
//! for it.

use std::ffi::OsStr;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use rustix::fs::SeekFrom;
use sync::Mutex;

use super::{errno, sys};
use crate::{Dir, DirEntry, FileType, Result};

const BUFFER_BYTES: usize = 32 * 1024;
/// Where the name begins in `struct linux_dirent64`.
const NAME_AT: usize = 19;

/// An open directory.
pub(crate) struct DirDir {
    fd: OwnedFd,
    /// The inode number that `..` of the store's root shows.
    root_ino: Option<u64>,
    /// Held while a listing goes on: it protects the descriptor's position too.
    position: Mutex<Position>,
}

impl fmt::Debug for DirDir {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirDir").field("fd", &self.fd).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Position {
    buf: Vec<u8>,
    /// The part of `buf` that is still to be listed.
    from: usize,
    to: usize,
    /// The offset of the entry at `from`.
    offset: u64,
}

impl DirDir {
    pub(crate) fn new(fd: OwnedFd, root_ino: Option<u64>) -> Self {
        Self { fd, root_ino, position: Mutex::new(Position::default()) }
    }
}

impl Dir for DirDir {
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd.as_fd())
    }

    fn list(&self, offset: u64, sink: &mut dyn FnMut(DirEntry) -> bool) -> Result<()> {
        let op = "list";
        let mut position = self.position.lock();
        let position = &mut *position;
        // A listing from the start is always new: rewinddir(3) shows entries that came since.
        if offset != position.offset || (offset == 0 && position.to > 0) {
            // The cookie is opaque and may use all 64 bits; the kernel takes it back unchanged.
            rustix::fs::seek(&self.fd, SeekFrom::Start(offset)).map_err(errno::failed(op))?;
            (position.from, position.to, position.offset) = (0, 0, offset);
        }
        loop {
            if position.from >= position.to {
                if position.buf.is_empty() {
                    position.buf.resize(BUFFER_BYTES, 0);
                }
                position.to = sys::getdents(self.fd.as_fd(), &mut position.buf).map_err(errno::failed(op))?;
                position.from = 0;
                if position.to == 0 {
                    return Ok(());
                }
            }
            let Some((mut entry, len)) = parse(&position.buf[position.from..position.to]) else {
                position.to = 0;
                return Err(crate::Error::new(crate::ErrorKind::Io, op));
            };
            if let Some(ino) = self.root_ino
                && entry.name == OsStr::new("..")
            {
                entry.ino = ino;
            }
            let next = entry.next;
            if !sink(entry) {
                return Ok(());
            }
            position.from += len;
            position.offset = next;
        }
    }
}

/// The first entry of `bytes`, and its length.
fn parse(bytes: &[u8]) -> Option<(DirEntry, usize)> {
    let ino = u64::from_ne_bytes(bytes.get(0..8)?.try_into().ok()?);
    let next = u64::from_ne_bytes(bytes.get(8..16)?.try_into().ok()?);
    let len = usize::from(u16::from_ne_bytes(bytes.get(16..18)?.try_into().ok()?));
    let kind = *bytes.get(18)?;
    let name = bytes.get(NAME_AT..len)?;
    let end = name.iter().position(|&b| b == 0)?;
    let name = OsStr::from_bytes(&name[..end]).to_owned();
    Some((DirEntry { name, ino, kind: file_type(kind), next }, len))
}

fn file_type(d_type: u8) -> Option<FileType> {
    Some(match d_type {
        libc::DT_REG => FileType::Regular,
        libc::DT_DIR => FileType::Directory,
        libc::DT_LNK => FileType::Symlink,
        libc::DT_FIFO => FileType::Fifo,
        libc::DT_SOCK => FileType::Socket,
        libc::DT_CHR => FileType::CharDevice,
        libc::DT_BLK => FileType::BlockDevice,
        _ => return None,
    })
}
