//! Facts that a FUSE server asks of the kernel ([`Server`]).

use std::ffi::CStr;
use std::fs::File;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use fuse::abi::{InitFlags, Opcode};
use fuse::mount::Wanted;
use fuse::{Mount, MountOptions, Session, SessionOptions, Transport, Uring};
use tempfile::TempDir;
use volume::Volume;

use super::super::server::{Asked, FILE, Server};
use super::{Found, is, no, yes};

/// How long an answer is held back. The measurements compare which of two things came first: a slow
/// machine changes nothing.
const HELD: Duration = Duration::from_millis(400);
/// Far longer than anything takes.
const LONG: Duration = Duration::from_secs(60);

fn served(asked: Asked) -> anyhow::Result<(TempDir, Server)> {
    let dir = tempfile::tempdir()?;
    let server = Server::mount(dir.path(), asked)?;
    // So INIT has been answered.
    std::fs::metadata(dir.path()).context("stat(2) of the mountpoint")?;
    Ok((dir, server))
}

/// Makes a call that may never return while the kernel waits for an answer.
fn within<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let (sender, receiver) = mpsc::channel();
    let call = move || {
        // Failure: the caller does not wait any more.
        let _late = sender.send(call());
    };
    std::thread::Builder::new().name("host-call".to_owned()).spawn(call).ok()?;
    receiver.recv_timeout(LONG).ok()
}

pub(super) fn protocol() -> anyhow::Result<Found> {
    let (_dir, server) = served(Asked::of(Wanted::Auto))?;
    let (major, minor, flags) = server.offer().context("no INIT came")?;
    is(format!("{major}.{minor}"), format!("flags {:#x}", flags.bits()))
}

pub(super) fn fuseblk() -> anyhow::Result<Found> {
    match served(Asked::of(Wanted::FuseBlk)) {
        Ok(_served) => yes("mounted on a loop device"),
        Err(error) => no(format!("{error:#}")),
    }
}

pub(super) fn destroy_on_fuseblk() -> anyhow::Result<Found> {
    destroy(Wanted::FuseBlk)
}

pub(super) fn destroy_on_fuse() -> anyhow::Result<Found> {
    destroy(Wanted::Fuse)
}

fn destroy(wanted: Wanted) -> anyhow::Result<Found> {
    let (dir, server) = served(Asked { held: Some((Opcode::Destroy, HELD)), ..Asked::of(wanted) })?;
    let from = Instant::now();
    let (requests, returned) = server.unmount(dir.path())?;
    let destroy = requests.iter().find(|seen| seen.op == Opcode::Destroy);
    came_before("DESTROY", destroy.map(|seen| seen.answered), from, returned)
}

/// Whether a request came, and was answered before the call that sent it returned.
fn came_before(
    request: &str,
    answered: Option<Instant>,
    from: Instant,
    returned: Instant,
) -> anyhow::Result<Found> {
    let after = |at: Instant| at.saturating_duration_since(from).as_millis();
    let took = after(returned);
    match answered {
        None => no(format!("no {request} came; the call took {took} ms")),
        Some(answered) if returned < answered => {
            no(format!("the call took {took} ms, and {request} was answered after {} ms", after(answered)))
        }
        Some(answered) => {
            yes(format!("{request} was answered after {} ms, and the call took {took} ms", after(answered)))
        }
    }
}

pub(super) fn syncfs_on_fuseblk() -> anyhow::Result<Found> {
    sync(Wanted::FuseBlk, false)
}

pub(super) fn sync_on_fuseblk() -> anyhow::Result<Found> {
    sync(Wanted::FuseBlk, true)
}

pub(super) fn syncfs_on_fuse() -> anyhow::Result<Found> {
    sync(Wanted::Fuse, false)
}

/// syncfs(2), or sync(2) of the whole host. That is the program `sync`, which can be left behind if
/// another file system hangs in it.
fn sync(wanted: Wanted, is_whole: bool) -> anyhow::Result<Found> {
    let (dir, server) = served(Asked { held: Some((Opcode::SyncFs, HELD)), ..Asked::of(wanted) })?;
    let root = File::open(dir.path())?;
    let from = Instant::now();
    let returned = within(move || -> anyhow::Result<Instant> {
        if is_whole {
            Command::new("sync").stdin(Stdio::null()).status().context("sync")?;
        } else {
            rustix::fs::syncfs(&root).context("syncfs(2)")?;
        }
        Ok(Instant::now())
    });
    let Some(returned) = returned else {
        server.abort();
        bail!("the call did not return within {} s", LONG.as_secs())
    };
    let syncfs = server.of(Opcode::SyncFs).first().map(|seen| seen.answered);
    came_before("SYNCFS", syncfs, from, returned?)
}

pub(super) fn uring() -> anyhow::Result<Found> {
    let dir = tempfile::tempdir()?;
    let volume = Volume::new(store::MemStore::new(1 << 24), volume::Options::default())?;
    let mut options = MountOptions::new(dir.path());
    options.uring = Uring::On;
    let mount = Mount::new(&options)?;
    let session = match Session::new(Arc::clone(&volume), mount, SessionOptions::default()) {
        Ok(session) => session,
        Err(error) => {
            volume.shutdown();
            return no(error.to_string());
        }
    };
    let view = session.view();
    let thread = std::thread::Builder::new().name("host-session".to_owned());
    let thread = thread.spawn(move || session.run()).context("no thread")?;
    let file = dir.path().join("f");
    let used = within(move || {
        std::fs::write(&file, "over it")?;
        std::fs::read(&file)
    });
    let transport = view.transport();
    rustix::mount::unmount(dir.path(), rustix::mount::UnmountFlags::DETACH).context("umount2(2)")?;
    let _ended = thread.join();
    volume.shutdown();
    match (transport, used) {
        (Transport::Uring, Some(Ok(read))) if read == b"over it" => {
            yes("a file was written and read over it")
        }
        (Transport::Uring, used) => bail!("agreed, but a file could not be written and read: {used:?}"),
        (Transport::Readers { reason }, _) => no(reason),
    }
}

/// A volume over a directory, in which nothing is due for an hour: which data is on the store when
/// a sync returns?
pub(super) fn syncs_wait() -> anyhow::Result<Found> {
    fuse::mount::will_serve();
    let dir = tempfile::tempdir()?;
    let (mountpoint, stored) = (dir.path().join("mnt"), dir.path().join("store"));
    std::fs::create_dir(&mountpoint)?;
    std::fs::create_dir(&stored)?;
    let store = store::open(&format!("dir:{}", stored.display())).context("the store")?;
    let volume =
        Volume::new(store, volume::Options { dirty_after: 60 * LONG, ..volume::Options::default() })?;
    let ending = Arc::clone(&volume);
    let options = SessionOptions {
        on_destroy: Box::new(move || {
            ending.shutdown();
        }),
        ..SessionOptions::default()
    };
    let session = Session::new(Arc::clone(&volume), Mount::new(&MountOptions::new(&mountpoint))?, options)?;
    let view = session.view();
    let thread = std::thread::Builder::new().name("host-session".to_owned());
    let thread = thread.spawn(move || session.run()).context("no thread")?;
    let is_durable = |args: &[&std::ffi::OsStr], text: &str| -> anyhow::Result<bool> {
        std::fs::write(mountpoint.join("f"), text)?;
        let mut sync = Command::new("sync");
        sync.args(args).stdout(Stdio::null());
        match within(move || sync.status()) {
            Some(Ok(status)) if status.success() => Ok(std::fs::read_to_string(stored.join("f"))? == text),
            sync => bail!("sync(1): {sync:?}"),
        }
    };
    let syncfs = is_durable(&["-f".as_ref(), mountpoint.as_os_str()], "by syncfs");
    let sync = is_durable(&[], "by sync");
    let callers = view.knows_who_syncs();
    rustix::mount::unmount(&mountpoint, rustix::mount::UnmountFlags::DETACH).context("umount2(2)")?;
    let _ended = thread.join();
    match (syncfs?, sync?) {
        (true, true) if callers => yes("both, by SYNCFS: each by the policy of its caller's cgroup"),
        (true, true) => {
            yes("both, by a page of the mount's device: each caller waits for the data of all cgroups")
        }
        (syncfs, sync) => no(format!("on the store after syncfs(2): {syncfs}; after sync(2): {sync}")),
    }
}

pub(super) fn cloned() -> anyhow::Result<Found> {
    let dir = tempfile::tempdir()?;
    let server = match Server::mount(dir.path(), Asked { by_clone: true, ..Asked::of(Wanted::Auto) }) {
        Ok(server) => server,
        Err(error) if format!("{error:#}").contains("FUSE_DEV_IOC_CLONE") => return no(format!("{error:#}")),
        Err(error) => return Err(error),
    };
    let file = dir.path().join("f");
    match within(move || std::fs::read(file)) {
        Some(Ok(_)) => yes(format!("{} requests were served by it", server.log(|log| log.requests.len()))),
        Some(Err(error)) => no(error.to_string()),
        None => {
            server.abort();
            bail!("no request came by it within {} s", LONG.as_secs())
        }
    }
}

pub(super) fn killpriv() -> anyhow::Result<Found> {
    const WRITES: u64 = 20;
    let mut asked = Asked::of(Wanted::Auto);
    asked.flags |= InitFlags::HANDLE_KILLPRIV_V2;
    let (dir, server) = served(asked)?;
    let file = File::options().write(true).open(dir.path().join("f"))?;
    for n in 0..WRITES {
        file.write_all_at(b"x", n)?;
    }
    let asked = server.of(Opcode::GetXattr).len();
    let (_, _, offered) = server.offer().context("no INIT came")?;
    let seen = format!("{asked} GETXATTR for {WRITES} writes");
    match (offered.contains(InitFlags::HANDLE_KILLPRIV_V2), asked) {
        (false, _) => no(format!("not offered; {seen}")),
        (true, 0..=1) => yes(seen),
        (true, _) => no(format!("agreed to, but {seen}")),
    }
}

pub(super) fn expire() -> anyhow::Result<Found> {
    let (_dir, server) = served(Asked::of(Wanted::Auto))?;
    let (_, _, offered) = server.offer().context("no INIT came")?;
    if offered.contains(InitFlags::HAS_EXPIRE_ONLY) { yes("offered") } else { no("not offered") }
}

pub(super) fn resend() -> anyhow::Result<Found> {
    let mut asked = Asked { resend: true, ..Asked::of(Wanted::Auto) };
    asked.flags |= InitFlags::HAS_RESEND;
    let (dir, server) = served(asked)?;
    let file = dir.path().join("f");
    let looked = within(move || std::fs::metadata(file).map(drop));
    if looked.is_none() {
        server.abort();
    }
    match (server.log(|log| log.resend.clone()), looked) {
        (Some(Err(error)), _) => no(format!("the notification was refused: {error}")),
        (Some(Ok(())), Some(Ok(()))) if server.of(Opcode::Lookup).iter().any(|seen| seen.is_resent) => {
            yes("a request that was not answered came again, marked so")
        }
        (Some(Ok(())), looked) => bail!("the notification was taken, and then: {looked:?}"),
        (None, _) => bail!("no LOOKUP came"),
    }
}

pub(super) fn export() -> anyhow::Result<Found> {
    let mut asked = Asked::of(Wanted::Auto);
    asked.flags |= InitFlags::EXPORT_SUPPORT;
    let (dir, server) = served(asked)?;
    let root = File::open(dir.path())?;
    let handle = match Handle::of(&root, c"f") {
        Ok(handle) => handle,
        Err(error) => return no(format!("name_to_handle_at(2): {error}")),
    };
    let before = server.of(Opcode::Lookup).len();
    forget(&server)?;
    if let Err(error) = handle.open(&root) {
        return no(format!("open_by_handle_at(2): {error}"));
    }
    let lookups = server.of(Opcode::Lookup);
    if lookups.iter().skip(before).any(|seen| seen.by_number && seen.node == FILE) {
        yes("the kernel had forgotten the file, asked for it by its number, and opened it")
    } else {
        bail!("it was opened, but the kernel asked for nothing")
    }
}

/// Makes the kernel forget the file: it drops unused names and inodes until FORGET has come.
fn forget(server: &Server) -> anyhow::Result<()> {
    let until = Instant::now() + LONG;
    let is_forgotten = || !server.of(Opcode::Forget).is_empty() || !server.of(Opcode::BatchForget).is_empty();
    while !is_forgotten() {
        std::fs::write("/proc/sys/vm/drop_caches", "2").context("/proc/sys/vm/drop_caches")?;
        if Instant::now() > until {
            bail!("the kernel does not forget the file")
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// A file handle of name_to_handle_at(2).
#[repr(C)]
struct Handle {
    bytes: u32,
    kind: i32,
    handle: [u8; 128],
}

impl Handle {
    fn of(dir: &File, name: &CStr) -> std::io::Result<Self> {
        let mut handle = Self { bytes: 128, kind: 0, handle: [0; 128] };
        let (mut mount, name) = (0i32, name.as_ptr());
        let (to, mount) = (&raw mut handle, &raw mut mount);
        // SAFETY: `handle` is laid out as struct file_handle with room for `bytes` bytes, `name`
        // ends with a NUL, and `mount` is an int.
        let said = unsafe { libc::syscall(libc::SYS_name_to_handle_at, dir.as_raw_fd(), name, to, mount, 0) };
        if said == 0 { Ok(handle) } else { Err(std::io::Error::last_os_error()) }
    }

    fn open(&self, of: &File) -> std::io::Result<OwnedFd> {
        let (handle, flags) = (&raw const *self, libc::O_RDONLY | libc::O_CLOEXEC);
        // SAFETY: the kernel filled the `handle`, and this only reads it.
        let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, of.as_raw_fd(), handle, flags) };
        let fd = i32::try_from(fd).unwrap_or(-1);
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made it, and nothing else has its number.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }
}
