//! A file that the daemon serves, for a loop device to stand on.
//!
//! Purpose: the kernel's writes to the device come here, and the kernel waits for the answer;
//! module `sync_page` says what for. The file is in a FUSE mount of its own, which is at no path:
//! only the loop device has it, and it goes with that. Tools show its path there for the device.
//!
//! The file has no content: a write is only noticed, a read returns zeros. Nodes are numbered along
//! its path: the root, the directories, the file.
//!
//! # A process that is killed
//! If its descriptor of the device is the last one, closing it writes the device's dirty page, and waits
//! for this file's server: the process itself, which answers no more. The write fails when the
//! connection's descriptor is closed. Linux closes a dying process's files one after the other, those
//! with the highest numbers first (since 4.3: `close_files` lists them as task work, which runs last in,
//! first out). So the device's descriptor gets a number below the connection's
//! ([`SyncDevice::open_device`]).

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::io::{DupFlags, Errno};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};
use zerocopy::IntoBytes as _;

use super::error::open_device;
use crate::buffer::Buffer;
use crate::device::Dev;
use crate::handshake::agree;
use crate::protocol::abi::{Attr, AttrOut, EntryOut, OpenOut, ROOT_ID, StatFsOut, WriteOut};
use crate::protocol::decode::{self, Agreed, Op};
use crate::protocol::init::{Mode, Wishes};
use crate::threads::spawn;

/// Called for each write; returns the answer to the kernel.
pub(crate) type OnWrite = Box<dyn Fn() -> Result<(), Errno> + Send + Sync>;

/// The kernel need not ask again.
const FOR_EVER: u64 = u64::MAX >> 1;

/// The file, while it is in use.
#[derive(Debug)]
pub(crate) struct SyncDevice {
    on_write: Arc<OnceLock<Handler>>,
    ended: Receiver<()>,
    /// Has a lower number than the connection, and stands for the device until that is opened.
    below: Option<OwnedFd>,
    /// SYNCFS is to be refused.
    pub(crate) is_only_way: bool,
}

struct Handler(OnWrite);

impl std::fmt::Debug for Handler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handler").finish_non_exhaustive()
    }
}

impl SyncDevice {
    /// Serves a file of `bytes` bytes that is called `label`, by a thread that ends with its last
    /// user.
    ///
    /// # Errors
    /// The kernel's refusals.
    pub(super) fn new(label: &str, bytes: u64, is_only_way: bool) -> io::Result<(Self, File)> {
        let below = OwnedFd::from(File::open("/dev/null")?);
        let dev = open_device().map_err(io::Error::other)?;
        // Another thread may have closed a lower one in between.
        let dev = rustix::io::fcntl_dupfd_cloexec(&dev, below.as_raw_fd() + 1)?;
        let fs = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
        let number = dev.as_raw_fd().to_string();
        for (key, value) in
            [("fd", number.as_str()), ("rootmode", "40700"), ("user_id", "0"), ("group_id", "0")]
        {
            rustix::mount::fsconfig_set_string(fs.as_fd(), key, value)?;
        }
        rustix::mount::fsconfig_set_string(fs.as_fd(), "source", "watertight")?;
        rustix::mount::fsconfig_create(fs.as_fd())?;
        let (on_write, (ending, ended)) = (Arc::new(OnceLock::new()), channel());
        let served = DeviceFile { path: path_of(label), bytes };
        let path = served.path.join("/");
        let this = Self { on_write: Arc::clone(&on_write), ended, below: Some(below), is_only_way };
        spawn("wt-fuse-device", move || {
            if let Err(error) = serve(&Dev::new(dev), &served, &on_write) {
                tracing::error!(%error, "serving the mount's device failed");
            }
            drop(ending);
        })?;
        let flags = MountAttrFlags::empty();
        let mount = rustix::mount::fsmount(fs.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)?;
        let path = format!("/proc/self/fd/{}/{path}", mount.as_raw_fd());
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        // A loop device takes the length that the kernel knows.
        if file.metadata()?.len() != bytes {
            return Err(io::Error::other("the kernel does not know the file's length"));
        }
        Ok((this, file))
    }

    /// Opens the device that stands on the file for writing, once: see the module's head for its number.
    ///
    /// # Errors
    /// The kernel's refusals; the second time.
    pub(crate) fn open_device(&mut self, device: &Path) -> io::Result<File> {
        let mut below = self.below.take().ok_or_else(|| io::Error::other("it is open already"))?;
        let open = OpenOptions::new().write(true).open(device)?;
        rustix::io::dup3(&open, &mut below, DupFlags::CLOEXEC)?;
        Ok(File::from(below))
    }

    /// From now on `handler` is called for each write; earlier writes are answered at once.
    pub(crate) fn on_write(&self, handler: OnWrite) {
        let _only_the_first_counts = self.on_write.set(Handler(handler));
    }

    /// Waits until the file's last user is gone; at most `longest`.
    pub(crate) fn wait(&self, longest: Duration) {
        // An error means that the thread has ended.
        let _gone_or_too_long = self.ended.recv_timeout(longest);
    }
}

/// The file in service.
#[derive(Debug)]
struct DeviceFile {
    path: Vec<String>,
    bytes: u64,
}

impl DeviceFile {
    fn attr(&self, node: u64) -> Attr {
        let is_file = node == ROOT_ID + self.path.len() as u64;
        let (mode, nlink, size) =
            if is_file { (libc::S_IFREG | 0o600, 1, self.bytes) } else { (libc::S_IFDIR | 0o700, 2, 0) };
        Attr { ino: node, size, mode, nlink, blksize: 4096, ..Attr::default() }
    }
}

/// The parts of a label, as names of directories and a file.
fn path_of(label: &str) -> Vec<String> {
    /// The limits of a path.
    const PARTS_MAX: usize = 16;
    const PART_MAX: usize = 48;
    let is_name = |part: &&str| !matches!(*part, "" | "." | "..");
    let cut = |part: &str| part.chars().filter(|c| *c != '\0').take(PART_MAX).collect::<String>();
    let mut path: Vec<String> = label.split('/').filter(is_name).take(PARTS_MAX).map(cut).collect();
    path.retain(|part| !part.is_empty());
    if path.is_empty() {
        path.push("watertight".to_owned());
    }
    path
}

fn serve(dev: &Dev, file: &DeviceFile, on_write: &OnceLock<Handler>) -> io::Result<()> {
    let wishes = Wishes {
        mode: Mode::WriteThrough,
        max_background: 16,
        max_readahead: 0,
        page_bytes: u32::try_from(rustix::param::page_size()).unwrap_or(4096),
        resend: false,
        uring: false,
    };
    let agreed = agree(dev, &wishes).map_err(io::Error::other)?.agreed;
    let mut buffer = Buffer::new()?;
    loop {
        let len = match dev.read(buffer.space()) {
            Ok(len) => len,
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => continue,
            // The last user is gone, or it was cut.
            Err(Errno::NODEV | Errno::CONNABORTED) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let answered = answer(dev, &mut buffer, len, agreed, file, on_write);
        match answered {
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn answer(
    dev: &Dev,
    buffer: &mut Buffer,
    len: usize,
    agreed: Agreed,
    file: &DeviceFile,
    on_write: &OnceLock<Handler>,
) -> Result<(), Errno> {
    let Ok((header, body)) = decode::header(buffer.message(len)) else { return Err(Errno::PROTO) };
    let unique = header.unique;
    let Ok(op) = decode::operation(&header, body, agreed) else {
        return dev.answer(unique, Err(Errno::IO));
    };
    match op {
        Op::GetAttr(_) | Op::SetAttr(_) => {
            let attr = file.attr(header.nodeid);
            let out = AttrOut { attr_valid: FOR_EVER, attr, ..AttrOut::default() };
            dev.answer(unique, Ok([out.as_bytes(), &[]]))
        }
        // Only this process looks names up, and only those of the file's path.
        Op::Lookup { .. } => {
            let nodeid = header.nodeid + 1;
            let (entry_valid, attr_valid) = (FOR_EVER, FOR_EVER);
            let attr = file.attr(nodeid);
            let out = EntryOut { nodeid, entry_valid, attr_valid, attr, ..EntryOut::default() };
            dev.answer(unique, Ok([out.as_bytes(), &[]]))
        }
        Op::Open(_) => dev.answer(unique, Ok([OpenOut::default().as_bytes(), &[]])),
        Op::Write { arg, .. } => match on_write.get().map_or(Ok(()), |Handler(heard)| heard()) {
            Ok(()) => dev.answer(unique, Ok([WriteOut { size: arg.size, padding: 0 }.as_bytes(), &[]])),
            Err(errno) => dev.answer(unique, Err(errno)),
        },
        Op::Read(arg) => {
            let left = usize::try_from(file.bytes.saturating_sub(arg.offset)).unwrap_or(usize::MAX);
            let data = buffer.data();
            let len = left.min(data.len()).min(usize::try_from(arg.size).unwrap_or(usize::MAX));
            data[..len].fill(0);
            dev.answer(unique, Ok([&data[..len], &[]]))
        }
        Op::StatFs => dev.answer(unique, Ok([StatFsOut::default().as_bytes(), &[]])),
        Op::Flush(_) | Op::FSync(_) | Op::Release(_) | Op::Destroy => dev.answer(unique, Ok([&[], &[]])),
        // The kernel waits for no answer to these.
        Op::Forget(_) | Op::BatchForget(_) | Op::Interrupt(_) => Ok(()),
        _ => dev.answer(unique, Err(Errno::NOSYS)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};
    use std::time::Instant;

    use super::*;

    /// Set for the process that is killed.
    const KILLED: &str = "WATERTIGHT_TEST_SYNC_DEVICE";

    /// Not a test: dirties a page of a device that nobody else uses, and waits to be killed.
    #[test]
    fn process_that_is_killed() {
        if std::env::var_os(KILLED).is_none() {
            return;
        }
        let (mut served, file) = SyncDevice::new("killed", super::super::loopdev::BYTES, true).unwrap();
        let device = super::super::loopdev::LoopDevice::over(file.as_fd()).unwrap();
        let open = served.open_device(device.path()).unwrap();
        drop((device, file));
        std::os::unix::fs::FileExt::write_all_at(&open, &[0; 4096], 0).unwrap();
        println!("dirty");
        loop {
            std::thread::park();
        }
    }

    #[test]
    fn a_process_that_is_killed_ends_though_its_device_has_a_dirty_page() {
        if !rustix::process::geteuid().is_root()
            || open_device().is_err()
            || !Path::new("/dev/loop0").exists()
        {
            return testing::skipped("this needs root, /dev/fuse and a loop device");
        }
        let name = "mount::sync_device::tests::process_that_is_killed";
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(KILLED, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.map(Result::unwrap).any(|line| line.contains("dirty")));
        child.kill().unwrap();
        // It ends at once, or never.
        let until = Instant::now() + Duration::from_secs(60);
        while child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "process {} waits for itself", child.id());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn any_label_becomes_a_path() {
        assert_eq!(path_of("dir:/srv/data"), ["dir:", "srv", "data"]);
        assert_eq!(path_of("../a//./b\0"), ["a", "b"]);
        assert_eq!(path_of("/"), ["watertight"]);
        assert_eq!(path_of("\0"), ["watertight"]);
        let long = path_of(&"\u{e9}".repeat(5000));
        assert_eq!((long.len(), long[0].len()), (1, 96));
        assert_eq!(path_of(&"a/".repeat(5000)).len(), 16);
    }
}
