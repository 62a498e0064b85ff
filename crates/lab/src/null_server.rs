//! The floor: a plain FUSE server on the `fuser` crate that keeps names and attributes in memory
//! and throws data away. Two threads with cloned descriptors, writes of up to 1 MiB, no spinning,
//! no kernel write-back, every request answered (FLUSH and FSYNC too), reads give zeros.
//!
//! It runs in a process of its own, `lab null-server MOUNTPOINT`, prints `ready` on standard output
//! when it is mounted and ends when it is unmounted. It is a yardstick, not a file system: no hard
//! links, no extended attributes, no renames.
//!
//! Locking: one mutex over all names; a request holds it while it makes its answer, never while it
//! sends.

use fuser::{
    Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, KernelConfig,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request, Session, TimeOrNow, WriteFlags,
};
use std::collections::{BTreeMap, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime};
use sync::Mutex;

/// The first argument that makes this executable the server.
pub(crate) const COMMAND: &str = "null-server";

const THREADS: usize = 2;
const WRITE_BYTES_MAX: u32 = 1 << 20;
const TTL: Duration = Duration::from_secs(1);

/// Serves until unmounted.
pub(crate) fn main(mountpoint: Option<OsString>) -> ExitCode {
    let Some(mountpoint) = mountpoint else {
        eprintln!("lab {COMMAND}: no mountpoint given");
        return ExitCode::from(2);
    };
    match serve(Path::new(&mountpoint)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lab {COMMAND}: cannot serve {}: {error}", Path::new(&mountpoint).display());
            ExitCode::FAILURE
        }
    }
}

fn serve(mountpoint: &Path) -> std::io::Result<()> {
    let mut config = Config::default();
    config.mount_options = vec![MountOption::FSName("lab-null".to_owned()), MountOption::DefaultPermissions];
    config.n_threads = Some(THREADS);
    config.clone_fd = true;
    let session = Session::new(NullServer::new(), mountpoint, &config)?;
    let mut out = std::io::stdout();
    writeln!(out, "ready")?;
    out.flush()?;
    session.run()
}

#[derive(Debug)]
struct Node {
    attr: FileAttr,
    /// The names of a directory.
    children: BTreeMap<OsString, u64>,
    parent: u64,
}

/// All names; protected by the mutex of [`NullServer`].
#[derive(Debug)]
struct Names {
    nodes: HashMap<u64, Node>,
    last: u64,
}

#[derive(Debug)]
struct NullServer {
    names: Mutex<Names>,
    /// The content that every read returns; immutable.
    zeros: Vec<u8>,
}

fn new_attr(ino: u64, kind: FileType, perm: u16, uid: u32, gid: u32) -> FileAttr {
    let now = SystemTime::now();
    FileAttr {
        ino: INodeNo(ino),
        size: 0,
        blocks: 0,
        atime: now,
        mtime: now,
        ctime: now,
        crtime: now,
        kind,
        perm,
        nlink: if kind == FileType::Directory { 2 } else { 1 },
        uid,
        gid,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The permission bits of a mode.
fn permission(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).unwrap_or(0)
}

impl Names {
    fn child(&self, parent: u64, name: &OsStr) -> Result<u64, Errno> {
        let parent = self.nodes.get(&parent).ok_or(Errno::ENOENT)?;
        parent.children.get(name).copied().ok_or(Errno::ENOENT)
    }

    fn add(
        &mut self,
        request: &Request,
        parent: u64,
        name: &OsStr,
        kind: FileType,
        perm: u16,
    ) -> Result<FileAttr, Errno> {
        let ino = self.last + 1;
        let directory = self.nodes.get_mut(&parent).ok_or(Errno::ENOENT)?;
        if directory.children.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        directory.children.insert(name.to_owned(), ino);
        let attr = new_attr(ino, kind, perm, request.uid(), request.gid());
        self.nodes.insert(ino, Node { attr, children: BTreeMap::new(), parent });
        self.last = ino;
        Ok(attr)
    }

    /// Takes a name away; the node stays until the kernel forgets it (it may be open).
    fn remove(&mut self, parent: u64, name: &OsStr, is_dir: bool) -> Result<(), Errno> {
        let ino = self.child(parent, name)?;
        let node = self.nodes.get_mut(&ino).ok_or(Errno::ENOENT)?;
        match (node.attr.kind == FileType::Directory, is_dir) {
            (true, false) => return Err(Errno::EISDIR),
            (false, true) => return Err(Errno::ENOTDIR),
            (true, true) if !node.children.is_empty() => return Err(Errno::ENOTEMPTY),
            _ => node.attr.nlink = 0,
        }
        self.nodes.get_mut(&parent).ok_or(Errno::ENOENT)?.children.remove(name);
        Ok(())
    }
}

impl NullServer {
    fn new() -> Self {
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        let root = u64::from(INodeNo::ROOT);
        let attr = new_attr(root, FileType::Directory, 0o755, uid, gid);
        let node = Node { attr, children: BTreeMap::new(), parent: root };
        Self {
            names: Mutex::new(Names { nodes: HashMap::from([(root, node)]), last: root }),
            zeros: vec![0; WRITE_BYTES_MAX as usize],
        }
    }

    fn attr(&self, ino: u64) -> Result<FileAttr, Errno> {
        self.names.lock().nodes.get(&ino).map(|node| node.attr).ok_or(Errno::ENOENT)
    }
}

fn entry(reply: ReplyEntry, attr: Result<FileAttr, Errno>) {
    match attr {
        Ok(attr) => reply.entry(&TTL, &attr, Generation(0)),
        Err(error) => reply.error(error),
    }
}

fn empty(reply: ReplyEmpty, done: Result<(), Errno>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn time(given: TimeOrNow) -> SystemTime {
    match given {
        TimeOrNow::SpecificTime(time) => time,
        TimeOrNow::Now => SystemTime::now(),
    }
}

impl Filesystem for NullServer {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> std::io::Result<()> {
        config.set_max_write(WRITE_BYTES_MAX).map(drop).map_err(|nearest| {
            std::io::Error::other(format!("max_write 1 MiB refused, nearest is {nearest}"))
        })
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let found = {
            let names = self.names.lock();
            let ino = names.child(parent.into(), name);
            ino.and_then(|ino| names.nodes.get(&ino).map(|node| node.attr).ok_or(Errno::ENOENT))
        };
        entry(reply, found);
    }

    fn forget(&self, _request: &Request, ino: INodeNo, _count: u64) {
        let mut names = self.names.lock();
        if names.nodes.get(&ino.into()).is_some_and(|node| node.attr.nlink == 0) {
            names.nodes.remove(&ino.into());
        }
    }

    fn getattr(&self, _request: &Request, ino: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attr(ino.into()) {
            Ok(attr) => reply.attr(&TTL, &attr),
            Err(error) => reply.error(error),
        }
    }

    fn setattr(
        &self,
        _request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changed = {
            let mut names = self.names.lock();
            names.nodes.get_mut(&ino.into()).map(|node| {
                let attr = &mut node.attr;
                attr.perm = mode.map_or(attr.perm, permission);
                attr.uid = uid.unwrap_or(attr.uid);
                attr.gid = gid.unwrap_or(attr.gid);
                attr.size = size.unwrap_or(attr.size);
                attr.atime = atime.map_or(attr.atime, time);
                attr.mtime = mtime.map_or(attr.mtime, time);
                *attr
            })
        };
        match changed {
            Some(attr) => reply.attr(&TTL, &attr),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let perm = permission(mode & !umask);
        let made = self.names.lock().add(request, parent.into(), name, FileType::Directory, perm);
        entry(reply, made);
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.names.lock().remove(parent.into(), name, false);
        empty(reply, done);
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let done = self.names.lock().remove(parent.into(), name, true);
        empty(reply, done);
    }

    fn open(&self, _request: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let perm = permission(mode & !umask);
        let made = self.names.lock().add(request, parent.into(), name, FileType::RegularFile, perm);
        match made {
            Ok(attr) => reply.created(&TTL, &attr, Generation(0), FileHandle(0), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.attr(ino.into()) {
            Ok(attr) => {
                let left = usize::try_from(attr.size.saturating_sub(offset)).unwrap_or(usize::MAX);
                reply.data(&self.zeros[..left.min(size as usize).min(self.zeros.len())]);
            }
            Err(error) => reply.error(error),
        }
    }

    fn write(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some(node) = self.names.lock().nodes.get_mut(&ino.into()) {
            node.attr.size = node.attr.size.max(offset + data.len() as u64);
            node.attr.blocks = node.attr.size.div_ceil(512);
        }
        reply.written(u32::try_from(data.len()).unwrap_or(u32::MAX));
    }

    fn flush(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsync(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        _ino: INodeNo,
        _handle: FileHandle,
        _data_only: bool,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    fn readdir(
        &self,
        _request: &Request,
        ino: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed: Vec<(u64, FileType, OsString)> = {
            let names = self.names.lock();
            let Some(directory) = names.nodes.get(&ino.into()) else {
                drop(names);
                return reply.error(Errno::ENOENT);
            };
            let dots = [(ino.into(), ".".into()), (directory.parent, "..".into())];
            let children = directory.children.iter().map(|(name, &ino)| (ino, name.clone()));
            let kind = |ino: u64| names.nodes.get(&ino).map_or(FileType::RegularFile, |node| node.attr.kind);
            dots.into_iter().chain(children).map(|(ino, name)| (ino, kind(ino), name)).collect()
        };
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (next, (ino, kind, name)) in (1..).zip(listed).skip(skipped) {
            if reply.add(INodeNo(ino), next, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const BLOCKS: u64 = 1 << 28;
        reply.statfs(BLOCKS, BLOCKS, BLOCKS, BLOCKS, BLOCKS, 4096, 255, 4096);
    }
}
