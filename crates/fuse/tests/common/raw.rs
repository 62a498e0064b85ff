//! A bare server with one file that records the kernel's requests, for facts about the kernel
//! itself.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use watertight_fuse::abi::{
    AttrOut, EntryOut, InHeader, InitFlags, InitOut, Opcode, OutHeader, StatFsOut, WriteIn, WriteInFlags,
    WriteOut,
};
use watertight_fuse::decode::{self, Agreed, Op};
use watertight_fuse::mount::Wanted;
use watertight_fuse::{Mount, MountOptions};
use zerocopy::IntoBytes as _;

/// The fields of one request that the tests look at.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    pub op: Opcode,
    pub pid: u32,
    pub write_flags: u32,
    pub fsync_flags: u32,
}

/// See the module.
pub struct RawServer {
    pub seen: Arc<Mutex<Vec<Seen>>>,
    thread: Option<JoinHandle<()>>,
    mount: Option<Mount>,
}

const FILE: u64 = 2;

impl RawServer {
    /// Mounts; `None` (with a line on stderr) where this host does not let us.
    pub fn mount(at: &Path, wanted: Wanted, flags: InitFlags) -> Option<Self> {
        let mut options = MountOptions::new(at);
        options.wanted = wanted;
        let mut mount = match Mount::new(&options) {
            Ok(mount) => mount,
            Err(error) => {
                super::skipped(&error.to_string());
                return None;
            }
        };
        let fd = mount.take_fd().unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let thread = std::thread::spawn(move || serve(&fd, flags, &log));
        Some(Self { seen, thread: Some(thread), mount: Some(mount) })
    }

    /// Requests of this kind so far.
    pub fn of(&self, op: Opcode) -> Vec<Seen> {
        self.seen.lock().unwrap().iter().filter(|seen| seen.op == op).copied().collect()
    }
}

impl Drop for RawServer {
    fn drop(&mut self) {
        self.mount.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(fd: &OwnedFd, flags: InitFlags, seen: &Mutex<Vec<Seen>>) {
    let mut buffer = vec![0; (1 << 20) + 4096];
    while let Ok(len) = rustix::io::read(fd, &mut buffer[..]) {
        let (header, body) = decode::header(&buffer[..len]).unwrap();
        let op = decode::operation(&header, body, Agreed::default()).unwrap();
        let mut entry = Seen {
            op: Opcode::from_number(header.opcode).unwrap(),
            pid: header.pid,
            write_flags: 0,
            fsync_flags: 0,
        };
        match op {
            Op::Write { arg, .. } => entry.write_flags = arg.write_flags,
            Op::FSync(arg) => entry.fsync_flags = arg.fsync_flags,
            _ => {}
        }
        seen.lock().unwrap().push(entry);
        answer(fd, &header, op, flags);
    }
}

fn attr(node: u64) -> watertight_fuse::abi::Attr {
    let (mode, size) = if node == FILE { (0o100_644, 8192) } else { (0o040_755, 0) };
    watertight_fuse::abi::Attr { ino: node, mode, size, nlink: 1, blksize: 4096, ..Default::default() }
}

fn answer(fd: &OwnedFd, header: &InHeader, op: Op<'_>, flags: InitFlags) {
    let zeros = [0; 8192];
    let attr_out = AttrOut { attr_valid: 3600, attr: attr(header.nodeid), ..Default::default() };
    let entry = EntryOut {
        nodeid: FILE,
        entry_valid: 3600,
        attr_valid: 3600,
        attr: attr(FILE),
        ..Default::default()
    };
    let init = InitOut {
        major: 7,
        minor: 31,
        max_readahead: 1 << 17,
        flags: u32::try_from(flags.bits()).unwrap(),
        max_write: 1 << 20,
        max_background: 12,
        congestion_threshold: 9,
        time_gran: 1,
        max_pages: 256,
        ..Default::default()
    };
    let statfs = StatFsOut { namelen: 255, frsize: 4096, bsize: 4096, ..Default::default() };
    let written;
    let body: Result<&[u8], i32> = match op {
        Op::Init(_) => Ok(init.as_bytes()),
        Op::Lookup { name } if name == "f" => Ok(entry.as_bytes()),
        Op::Lookup { .. } => Err(libc::ENOENT),
        Op::GetAttr(_) | Op::SetAttr(_) => Ok(attr_out.as_bytes()),
        Op::Open(_) | Op::OpenDir(_) => Ok(ANY_HANDLE),
        Op::Read(arg) => Ok(&zeros[..8192usize.saturating_sub(usize::try_from(arg.offset).unwrap())]),
        Op::Write { arg: WriteIn { size, .. }, .. } => {
            written = WriteOut { size, padding: 0 };
            Ok(written.as_bytes())
        }
        Op::StatFs => Ok(statfs.as_bytes()),
        Op::Flush(_) | Op::FSync(_) | Op::Release(_) | Op::ReleaseDir(_) | Op::SyncFs | Op::Destroy => {
            Ok(&[])
        }
        Op::ReadDir(_) => Ok(&[]),
        Op::GetXattr { .. } => Err(libc::ENODATA),
        Op::Forget(_) | Op::BatchForget(_) | Op::Interrupt(_) => return,
        _ => Err(libc::ENOSYS),
    };
    let (error, body) = match body {
        Ok(body) => (0, body),
        Err(errno) => (-errno, &[][..]),
    };
    let len = u32::try_from(size_of::<OutHeader>() + body.len()).unwrap();
    let out = OutHeader { len, error, unique: header.unique };
    let _ = rustix::io::write(fd, &[out.as_bytes(), body].concat());
}

/// An open file's number does not matter here.
const ANY_HANDLE: &[u8] = &[0; 16];

/// Whether these flags say that the kernel writes its own dirty pages.
pub fn is_from_cache(seen: &Seen) -> bool {
    WriteInFlags::from_bits_retain(seen.write_flags).contains(WriteInFlags::CACHE)
}
