//! A bare FUSE server with one file, `f`, for questions to the kernel: it records the kernel's
//! requests and when it answered them. One thread reads and answers; further behaviour is set in
//! [`Asked`].

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use fuse::abi::{
    AttrOut, EntryOut, InHeader, InitFlags, InitIn, InitOut, Opcode, OutHeader, StatFsOut, WriteOut,
};
use fuse::decode::{self, Agreed, Op};
use fuse::mount::Wanted;
use fuse::{Mount, MountOptions, Uring};
use rustix::ioctl::{self, Setter};
use sync::Mutex;
use zerocopy::IntoBytes as _;

/// `FUSE_DEV_IOC_CLONE`.
const IOC_CLONE: ioctl::Opcode = ioctl::opcode::read::<u32>(229, 0);
/// `FUSE_NOTIFY_RESEND`.
const NOTIFY_RESEND: i32 = 7;
/// `FUSE_UNIQUE_RESEND`: set in the number of a request that comes once more.
const UNIQUE_RESEND: u64 = 1 << 63;

/// The node of `f`.
pub(super) const FILE: u64 = 2;

/// The behaviour of a server.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The type of the mount.
    pub(super) wanted: Wanted,
    /// The flags that it agrees to, where the kernel offers them.
    pub(super) flags: InitFlags,
    /// It holds the answer to these back, and for how long.
    pub(super) held: Option<(Opcode, Duration)>,
    /// It serves by a second opening of the device that is tied to the connection, and reads
    /// nothing from the first.
    pub(super) by_clone: bool,
    /// It does not answer the first LOOKUP, and asks the kernel to send unanswered requests once
    /// more.
    pub(super) resend: bool,
}

impl Asked {
    /// Nothing particular.
    pub(super) const fn of(wanted: Wanted) -> Self {
        let flags = InitFlags::BIG_WRITES.union(InitFlags::MAX_PAGES).union(InitFlags::ASYNC_READ);
        Self { wanted, flags, held: None, by_clone: false, resend: false }
    }
}

/// One request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Its operation.
    pub(super) op: Opcode,
    /// Its node.
    pub(super) node: u64,
    /// It was a LOOKUP of `.`: the kernel asks for a node by its number.
    pub(super) by_number: bool,
    /// It had come before.
    pub(super) is_resent: bool,
    /// Just before it was answered.
    pub(super) answered: Instant,
}

/// The server's records.
#[derive(Debug, Default)]
pub(super) struct Log {
    /// The kernel's offer in INIT.
    pub(super) offer: Option<InitIn>,
    /// In the order of arrival.
    pub(super) requests: Vec<Seen>,
    /// The kernel's answer to the notification.
    pub(super) resend: Option<Result<(), String>>,
}

/// See the module. Dropped, it is unmounted.
#[derive(Debug)]
pub(super) struct Server {
    log: Arc<Mutex<Log>>,
    mount: Option<Mount>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Mounts at a directory.
    pub(super) fn mount(at: &Path, asked: Asked) -> anyhow::Result<Self> {
        let mut options = MountOptions::new(at);
        options.wanted = asked.wanted;
        options.uring = Uring::Off;
        let mut mount = Mount::new(&options)?;
        let first = mount.take_fd().context("a connection")?;
        let devices = if asked.by_clone { Devices::cloned(first)? } else { Devices { first, second: None } };
        let log = Arc::<Mutex<Log>>::default();
        let noted = Arc::clone(&log);
        let serve = move || serve(&devices, asked, &noted);
        let thread = std::thread::Builder::new().name("host-server".to_owned()).spawn(serve);
        Ok(Self { log, mount: Some(mount), thread: Some(thread.context("no thread")?) })
    }

    /// The records so far.
    pub(super) fn log<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&self.log.lock())
    }

    /// The requests of a kind so far.
    pub(super) fn of(&self, op: Opcode) -> Vec<Seen> {
        self.log(|log| log.requests.iter().filter(|seen| seen.op == op).copied().collect())
    }

    /// The kernel's offer, once there is one.
    pub(super) fn offer(&self) -> Option<(u32, u32, InitFlags)> {
        let flags = |offer: &InitIn| {
            InitFlags::from_bits_retain(u64::from(offer.flags) | (u64::from(offer.flags2) << 32))
        };
        self.log(|log| log.offer.as_ref().map(|offer| (offer.major, offer.minor, flags(offer))))
    }

    /// Unmounts by umount2(2) without flags, and returns the records and when the call returned.
    pub(super) fn unmount(mut self, at: &Path) -> anyhow::Result<(Vec<Seen>, Instant)> {
        rustix::mount::unmount(at, rustix::mount::UnmountFlags::empty()).context("umount2(2)")?;
        let returned = Instant::now();
        self.end();
        Ok((self.log(|log| log.requests.clone()), returned))
    }

    /// Cuts the connection, for a call that hangs in it.
    pub(super) fn abort(&self) {
        if let Some(mount) = &self.mount {
            // Failure: it has ended.
            let _ended = mount.abort();
        }
    }

    fn end(&mut self) {
        drop(self.mount.take());
        if let Some(thread) = self.thread.take() {
            // It panics on a request that it cannot read, which is then missing in the log.
            let _panicked = thread.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The openings of the device that belong to one connection.
#[derive(Debug)]
struct Devices {
    first: OwnedFd,
    second: Option<OwnedFd>,
}

impl Devices {
    fn cloned(first: OwnedFd) -> anyhow::Result<Self> {
        let second = File::options().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
        let number = u32::try_from(first.as_raw_fd()).context("a descriptor")?;
        // SAFETY: FUSE_DEV_IOC_CLONE takes a pointer to a u32 that it only reads, as Setter passes
        // it.
        unsafe { ioctl::ioctl(second.as_fd(), Setter::<IOC_CLONE, u32>::new(number)) }
            .context("FUSE_DEV_IOC_CLONE")?;
        Ok(Self { first, second: Some(second.into()) })
    }

    fn serving(&self) -> BorrowedFd<'_> {
        self.second.as_ref().unwrap_or(&self.first).as_fd()
    }
}

fn serve(devices: &Devices, asked: Asked, log: &Mutex<Log>) {
    let fd = devices.serving();
    let mut buffer = vec![0; (1 << 20) + 4096];
    let mut is_to_be_resent = asked.resend;
    while let Ok(len) = rustix::io::read(fd, &mut buffer[..]) {
        let Ok((header, body)) = decode::header(&buffer[..len]) else { return };
        let (Ok(op), Some(opcode)) =
            (decode::operation(&header, body, Agreed::default()), Opcode::from_number(header.opcode))
        else {
            reply(fd, header.unique, Err(libc::ENOSYS));
            continue;
        };
        if let Op::Init(offer) = op {
            log.lock().offer = Some(offer);
        }
        if is_to_be_resent && opcode == Opcode::Lookup {
            is_to_be_resent = false;
            let out = OutHeader { len: size_of_u32::<OutHeader>(), error: NOTIFY_RESEND, unique: 0 };
            let said = rustix::io::write(fd, out.as_bytes()).map(drop).map_err(|error| error.to_string());
            let is_taken = said.is_ok();
            log.lock().resend = Some(said);
            if is_taken {
                continue;
            }
        }
        if let Some((_, time)) = asked.held.filter(|(held, _)| *held == opcode) {
            std::thread::sleep(time);
        }
        log.lock().requests.push(Seen {
            op: opcode,
            node: header.nodeid,
            by_number: matches!(op, Op::Lookup { name } if name == "."),
            is_resent: header.unique & UNIQUE_RESEND != 0,
            answered: Instant::now(),
        });
        answer(fd, &header, op, asked.flags);
    }
}

fn attr(node: u64) -> fuse::abi::Attr {
    let (mode, size) = if node == FILE { (0o100_644, 8192) } else { (0o040_755, 0) };
    fuse::abi::Attr { ino: node, mode, size, nlink: 1, blksize: 4096, ..Default::default() }
}

fn answer(fd: BorrowedFd<'_>, header: &InHeader, op: Op<'_>, flags: InitFlags) {
    let attr_out = AttrOut { attr_valid: 3600, attr: attr(header.nodeid), ..Default::default() };
    let entry = |node| EntryOut {
        nodeid: node,
        generation: 1,
        entry_valid: 3600,
        attr_valid: 3600,
        attr: attr(node),
        ..Default::default()
    };
    let body: Result<Vec<u8>, i32> = match op {
        Op::Init(offer) => Ok(init(&offer, flags).as_bytes().to_vec()),
        Op::Lookup { name } if name == "f" => Ok(entry(FILE).as_bytes().to_vec()),
        Op::Lookup { name } if name == "." => Ok(entry(header.nodeid).as_bytes().to_vec()),
        Op::Lookup { .. } => Err(libc::ENOENT),
        Op::GetAttr(_) | Op::SetAttr(_) => Ok(attr_out.as_bytes().to_vec()),
        // An open file's number does not matter here.
        Op::Open(_) | Op::OpenDir(_) => Ok(vec![0; 16]),
        Op::Read(_) => Ok(vec![0; 8192]),
        Op::Write { arg, .. } => Ok(WriteOut { size: arg.size, padding: 0 }.as_bytes().to_vec()),
        Op::StatFs => Ok(StatFsOut { namelen: 255, frsize: 4096, bsize: 4096, ..Default::default() }
            .as_bytes()
            .to_vec()),
        Op::Flush(_)
        | Op::FSync(_)
        | Op::Release(_)
        | Op::ReleaseDir(_)
        | Op::SyncFs
        | Op::Destroy
        | Op::ReadDir(_) => Ok(Vec::new()),
        Op::GetXattr { .. } => Err(libc::ENODATA),
        Op::Forget(_) | Op::BatchForget(_) | Op::Interrupt(_) => return,
        _ => Err(libc::ENOSYS),
    };
    reply(fd, header.unique, body);
}

fn init(offer: &InitIn, flags: InitFlags) -> InitOut {
    let offered = u64::from(offer.flags) | (u64::from(offer.flags2) << 32);
    let mut agreed = flags & InitFlags::from_bits_retain(offered);
    // Bits above the 31st are checked with this one only.
    if agreed.bits() >> 32 != 0 {
        agreed |= InitFlags::INIT_EXT;
    }
    let half = |bits: u64| u32::try_from(bits & u64::from(u32::MAX)).unwrap_or_default();
    InitOut {
        major: 7,
        minor: offer.minor.min(fuse::abi::KERNEL_MINOR_VERSION),
        max_readahead: 1 << 17,
        flags: half(agreed.bits()),
        flags2: half(agreed.bits() >> 32),
        max_write: 1 << 20,
        max_background: 12,
        congestion_threshold: 9,
        time_gran: 1,
        max_pages: 256,
        ..Default::default()
    }
}

fn reply(fd: BorrowedFd<'_>, unique: u64, body: Result<Vec<u8>, i32>) {
    let (error, body) = body.map_or_else(|errno| (-errno, Vec::new()), |body| (0, body));
    let len = size_of_u32::<OutHeader>() + u32::try_from(body.len()).unwrap_or_default();
    let out = OutHeader { len, error, unique };
    // Failure: the caller is gone.
    let _gone = rustix::io::write(fd, &[out.as_bytes(), &body].concat());
}

fn size_of_u32<T>() -> u32 {
    u32::try_from(size_of::<T>()).unwrap_or(u32::MAX)
}
