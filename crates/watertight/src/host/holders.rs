//! The holders that keep a mount busy, or its file system in use: processes, mounts inside it or in
//! other namespaces, loop devices over its files.
//!
//! Nothing here makes a request to the mount's own server (`statx` asks only for what the kernel
//! knows itself), so a server that hangs cannot hang the search, and a server can search for the
//! holders of its own mount. Calls that may hang because of other servers and processes run on
//! threads that the search does not wait for. A read of an entry of `/proc` holds it for that
//! moment, so that another user's umount(2) may fail meanwhile: search only when there is a reason
//! to.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};
use sync::Mutex;

use crate::host::mountinfo::{Device, Mount, MountTable};
use crate::host::pods::{self, Pod, Pods};
use crate::term::shown::Name;

/// How long a search takes at most.
#[derive(Debug, Clone, Copy)]
struct Times {
    /// All of it: far longer than it is where nothing hangs.
    search_max: Duration,
    /// No process may be done for so long before another thread takes over.
    hangs: Duration,
    /// The last processes hang when for so long no thread has made progress in them: not by one
    /// descriptor.
    last_ones: Duration,
}

const TIMES: Times = Times {
    search_max: Duration::from_secs(5),
    hangs: Duration::from_millis(50),
    last_ones: Duration::from_millis(500),
};

/// Threads that may search at once in this process: each that hangs is kept until it hangs no more.
const SEARCHES_MAX: usize = 32;
static SEARCHES: Searches = Searches(AtomicUsize::new(0));

/// How many holders a list for a person names.
const NAMED_MAX: usize = 8;

/// The way in which a mount is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HoldKind {
    /// An open file or directory.
    OpenFile,
    /// A working directory.
    WorkingDirectory,
    /// A root directory (chroot).
    Root,
    /// The program that runs.
    Program,
    /// A file mapped into memory.
    Mapping,
    /// Another mount inside.
    Mount,
    /// The volume itself, mounted in another place.
    Bind,
    /// A bind mount in the process's own mount namespace, which this one does not see.
    Namespace,
    /// A loop device over a file.
    LoopDevice,
}

impl fmt::Display for HoldKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OpenFile => "open",
            Self::WorkingDirectory => "working directory",
            Self::Root => "root directory",
            Self::Program => "program",
            Self::Mapping => "mapped",
            Self::Mount => "mounted inside",
            Self::Bind => "also mounted at",
            Self::Namespace => "mounted in its own namespace",
            Self::LoopDevice => "loop device over",
        })
    }
}

/// One thing that keeps a mount busy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The process; none for mounts and loop devices.
    pub pid: Option<u32>,
    /// The process's name, the mounted file system's type, or the loop device.
    pub name: Name,
    /// The way.
    pub how: HoldKind,
    /// The file, directory or mountpoint.
    pub file: Name,
    /// Whether it holds the very mount that was asked for, and not only its file system by way of
    /// another mount.
    pub direct: bool,
    /// The Kubernetes pod that it is of, where that was asked for and is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Pod>,
}

impl Holder {
    /// A mount that is inside.
    #[must_use]
    pub fn mount(inner: &Mount) -> Self {
        let file = Name::of(&inner.mountpoint);
        Self {
            pid: None,
            name: inner.fstype.clone().into(),
            how: HoldKind::Mount,
            file,
            direct: true,
            pod: None,
        }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{} (pid {pid}), {}: {}", self.name, self.how, self.file)?,
            None => write!(f, "{} {} ({})", self.how, self.file, self.name)?,
        }
        self.pod.as_ref().map_or(Ok(()), |pod| write!(f, " [{pod}]"))
    }
}

/// Everything found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders {
    /// The holders, by pid.
    pub found: Vec<Holder>,
    /// Processes that this user may not look into, and those of `hung`.
    pub unseen: u64,
    /// Processes that were not looked into because they hang, or because the search had no more
    /// time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hung: Vec<u32>,
}

impl Holders {
    /// Those that hold the very mount that was asked for.
    pub fn direct(&self) -> impl Iterator<Item = &Holder> {
        self.found.iter().filter(|holder| holder.direct)
    }

    /// With the pods that the processes are of.
    #[must_use]
    pub fn with_pods(mut self) -> Self {
        let pids: Vec<u32> = self.found.iter().filter_map(|holder| holder.pid).collect();
        let cgroups: Vec<String> = pids.into_iter().flat_map(pods::cgroups_of).collect();
        let known = Pods::of_cgroups(cgroups.iter().map(String::as_str));
        for holder in &mut self.found {
            holder.pod = holder.pid.and_then(|pid| known.of_process(pid));
        }
        self
    }

    /// Those that hold something at `path` or below it.
    #[must_use]
    pub fn below(mut self, path: &Path) -> Self {
        self.found.retain(|holder| Path::new(&holder.file).starts_with(path));
        self
    }

    /// A line each, the first eight, for a person; a line of its own if none was found.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.found.iter().take(NAMED_MAX).map(Holder::to_string).collect();
        if self.found.len() > NAMED_MAX {
            lines.push(format!("and {} more", self.found.len() - NAMED_MAX));
        }
        if let Some(first) = self.hung.first() {
            let more = match self.hung.len() - 1 {
                0 => String::new(),
                n => format!(" and {n} more"),
            };
            lines.push(format!("not looked into, because it hangs: pid {first}{more}"));
        }
        if self.found.is_empty() {
            lines.push(if self.unseen > 0 {
                "a process that cannot be looked into: another user's, or one that hangs".to_owned()
            } else {
                "something in the kernel, or a process in another namespace".to_owned()
            });
        }
        lines
    }
}

/// Searches the host for holders of `mount`, which need not have a path any more; for five seconds
/// at most. Processes that hang hold up nothing else, and are named.
///
/// # Errors
/// Those of reading `/proc`, and of making a thread.
pub fn of(mount: &Mount) -> io::Result<Holders> {
    of_others_than(0, mount)
}

/// Like [`of`], without this process: a process that serves the mount has nothing open in it, but
/// many other files.
///
/// # Errors
/// As [`of`].
pub fn of_served(mount: &Mount) -> io::Result<Holders> {
    of_others_than(std::process::id(), mount)
}

fn of_others_than(own: u32, mount: &Mount) -> io::Result<Holders> {
    let pids = fs::read_dir("/proc")?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut holders = among(pids.filter(|pid| *pid != own).collect(), mount)?;
    holders.found.append(&mut mounts(mount).found);
    loop_devices(mount, &MountTable::read(), &mut holders);
    Ok(holders)
}

/// The processes of the threads that opened a file, if each of them still holds something of
/// `mount`, at `path` or below: then the host need not be searched, however many processes it has.
/// `None`: it must be searched. Processes that got a file from one of them (fork(2), a socket) are
/// not named.
#[must_use]
pub fn of_openers(openers: &[u32], mount: &Mount, path: &Path) -> Option<Holders> {
    let pids: BTreeSet<u32> = openers.iter().map(|tid| process_of(*tid)).collect::<Option<_>>()?;
    let mut holders = among(pids.iter().copied().collect(), mount).ok()?.below(path);
    let found: BTreeSet<u32> = holders.found.iter().filter_map(|holder| holder.pid).collect();
    if pids.is_empty() || found != pids {
        return None;
    }
    holders.found.append(&mut mounts(mount).below(path).found);
    Some(holders)
}

/// The process of a thread that lives.
fn process_of(tid: u32) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The holders of `mount` among these processes.
fn among(pids: Vec<u32>, mount: &Mount) -> io::Result<Holders> {
    let of_one = {
        let mount = mount.clone();
        let seen = Mutex::new(BTreeSet::from_iter(fs::read_link("/proc/self/ns/mnt")));
        let devices = MountTable::read().iter().map(|other| (other.id, Device::of(other))).collect();
        move |pid: u32, beats: &Beats| {
            let mut holders = Holders::default();
            let dir = Path::new("/proc").join(pid.to_string());
            let process = Process { pid, dir, mount: &mount, devices: &devices, beats };
            process.search(&mut holders);
            process.namespace(&seen, &mut holders);
            holders
        }
    };
    let mut holders = SEARCHES.in_time(pids, of_one, TIMES)?;
    holders.found.sort_by_key(|holder| holder.pid);
    Ok(holders)
}

/// Searches the host for holders of the file system `device`, to which no path needs to lead.
///
/// # Errors
/// Those of reading `/proc`.
pub fn of_device(device: Device) -> io::Result<Holders> {
    if let Some(mount) = MountTable::read().of_device(device).next() {
        return of(mount);
    }
    let Device { major, minor } = device;
    // A mount that is none of the table's.
    of(&Mount { id: u64::MAX, parent: u64::MAX, major, minor, ..Mount::default() })
}

/// How many threads search.
struct Searches(AtomicUsize);

/// Counts the descriptors and the like that the threads of one search have examined.
#[derive(Debug, Default)]
struct Beats(AtomicU64);

impl Beats {
    fn beat(&self) {
        // ORDERING: Relaxed, a count that publishes nothing.
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        // ORDERING: Relaxed, as in `beat`.
        self.0.load(Ordering::Relaxed)
    }
}

/// The part that the threads of one search share.
struct Search<F> {
    queue: Mutex<VecDeque<u32>>,
    beats: Beats,
    look: F,
}

/// A search that is under way.
struct UnderWay(&'static Searches);

impl Searches {
    /// Looks into these processes. The search of a process may have to wait for a server that
    /// hangs, where the process itself does, or for a lock of the process's. So other threads
    /// search; when one hangs, another takes over the rest. In the end the rest is unseen, and so
    /// are processes whose search hangs when all others are done; so are all where [`SEARCHES_MAX`]
    /// hang already.
    fn in_time(
        &'static self,
        pids: Vec<u32>,
        look: impl Fn(u32, &Beats) -> Holders + Send + Sync + 'static,
        times: Times,
    ) -> io::Result<Holders> {
        let Times { search_max, hangs, last_ones } = times;
        let mut holders = Holders::default();
        let mut left: BTreeSet<u32> = pids.iter().copied().collect();
        let search = Arc::new(Search { queue: Mutex::new(pids.into()), beats: Beats::default(), look });
        let (tell, told) = channel();
        let begun = Instant::now();
        let (mut last, mut beats) = (begun, 0);
        self.add(&search, &tell)?;
        while !left.is_empty() && begun.elapsed() < search_max {
            let pause = hangs.min(search_max.saturating_sub(begun.elapsed()));
            if let Ok((pid, mut one)) = told.recv_timeout(pause) {
                let Holders { unseen, .. } = one;
                left.remove(&pid);
                holders.found.append(&mut one.found);
                holders.unseen += unseen;
                last = Instant::now();
                continue;
            }
            let is_helped = !search.queue.lock().is_empty() && self.add(&search, &tell)?;
            let now = search.beats.count();
            if now != beats {
                (last, beats) = (Instant::now(), now);
            }
            if !is_helped && last.elapsed() >= last_ones {
                break;
            }
        }
        // Threads that hang do nothing more when they hang no longer.
        search.queue.lock().clear();
        holders.unseen += left.len() as u64;
        holders.hung = left.into_iter().collect();
        Ok(holders)
    }

    /// Adds a thread that looks into processes; no, if there are too many.
    fn add(
        &'static self,
        search: &Arc<Search<impl Fn(u32, &Beats) -> Holders + Send + Sync + 'static>>,
        tell: &Sender<(u32, Holders)>,
    ) -> io::Result<bool> {
        let Some(under_way) = self.begin() else { return Ok(false) };
        let (search, tell) = (Arc::clone(search), tell.clone());
        let all = move || {
            let _until_it_ends = under_way;
            loop {
                let Some(pid) = search.queue.lock().pop_front() else { return };
                if tell.send((pid, (search.look)(pid, &search.beats))).is_err() {
                    return;
                }
            }
        };
        thread::Builder::new().name("holders".to_owned()).spawn(all).map(|_| true)
    }

    fn begin(&'static self) -> Option<UnderWay> {
        let more = |now: usize| (now < SEARCHES_MAX).then_some(now + 1);
        // ORDERING: Relaxed, a count that publishes nothing.
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok().map(|_| UnderWay(self))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        // ORDERING: Relaxed, as in `begin`.
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Process<'a> {
    pid: u32,
    dir: PathBuf,
    mount: &'a Mount,
    /// The devices of the mounts of this process's own namespace, by the mounts' numbers.
    devices: &'a HashMap<u64, Device>,
    beats: &'a Beats,
}

impl Process<'_> {
    fn search(&self, holders: &mut Holders) {
        let fds = match fs::read_dir(self.dir.join("fd")) {
            Ok(fds) => fds,
            Err(error) => {
                holders.unseen += u64::from(error.kind() == io::ErrorKind::PermissionDenied);
                return;
            }
        };
        for (link, how) in
            [("cwd", HoldKind::WorkingDirectory), ("root", HoldKind::Root), ("exe", HoldKind::Program)]
        {
            self.beats.beat();
            self.look(&self.dir.join(link), how, holders);
        }
        for fd in fds.flatten() {
            self.beats.beat();
            if self.may_be_inside(&fd.file_name()) {
                self.look(&fd.path(), HoldKind::OpenFile, holders);
            }
        }
        self.mappings(holders);
    }

    /// Whether the file system is mounted in this process's namespace, if that was not `seen`: no
    /// unmount elsewhere ends it there.
    fn namespace(&self, seen: &Mutex<BTreeSet<PathBuf>>, holders: &mut Holders) {
        let Ok(namespace) = fs::read_link(self.dir.join("ns/mnt")) else { return };
        let is_new = seen.lock().insert(namespace);
        if is_new {
            let there = Mount::all_of(&self.dir).into_iter();
            for other in there.filter(|other| Device::of(other) == Device::of(self.mount)) {
                let path = Name::of(&other.mountpoint);
                self.add(HoldKind::Namespace, path, false, holders);
            }
        }
    }

    /// Whether the file that is open under this number may be in the mount, as far as the kernel
    /// knows without looking at the file: most are elsewhere, and their servers may hang.
    fn may_be_inside(&self, fd: &OsStr) -> bool {
        let Ok(info) = fs::read_to_string(self.dir.join("fdinfo").join(fd)) else { return true };
        let number = info.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok());
        let device = number.and_then(|number: u64| self.devices.get(&number));
        device.is_none_or(|device| *device == Device::of(self.mount))
    }

    /// Whether the magic link `link` leads into the mount.
    fn look(&self, link: &Path, how: HoldKind, holders: &mut Holders) {
        // An empty mask and DONT_SYNC: the answer is the kernel's own, its server is not asked.
        let Ok(stat) = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()) else { return };
        let device = Device { major: stat.stx_dev_major, minor: stat.stx_dev_minor };
        if device != Device::of(self.mount) {
            return;
        }
        let file = fs::read_link(link).map_or_else(|_| "?".into(), Name::of);
        self.add(how, file, stat.stx_mnt_id == self.mount.id, holders);
    }

    fn mappings(&self, holders: &mut Holders) {
        let Ok(maps) = fs::read(self.dir.join("maps")) else { return };
        let maps = String::from_utf8_lossy(&maps);
        let mut last = "";
        for line in maps.lines() {
            // ADDRESSES PERMISSIONS OFFSET MAJOR:MINOR INODE   PATH
            let mut fields = line.splitn(6, ' ');
            let device = fields.nth(3).and_then(Device::parse_hex);
            if device != Some(Device::of(self.mount)) {
                continue;
            }
            let file = fields.nth(1).unwrap_or("").trim_start();
            if file != last {
                let known = holders.found.iter().any(|h| h.pid == Some(self.pid) && h.file == file);
                if !known {
                    self.add(HoldKind::Mapping, file.into(), true, holders);
                }
                last = file;
            }
        }
    }

    fn add(&self, how: HoldKind, file: Name, direct: bool, holders: &mut Holders) {
        let name = fs::read(self.dir.join("comm")).map_or_else(
            |_| "?".into(),
            |comm| Name::of(OsStr::from_bytes(comm.strip_suffix(b"\n").unwrap_or(&comm))),
        );
        holders.found.push(Holder { pid: Some(self.pid), name, how, file, direct, pod: None });
    }
}

/// The mounts that hold `mount`: those inside it, and other mounts of its file system except those
/// that an unmount takes along. Disturbs no other process.
#[must_use]
pub fn mounts(mount: &Mount) -> Holders {
    let table = MountTable::read();
    let mut holders = Holders::default();
    holders.found.extend(table.on(mount).map(Holder::mount));
    let others = table.others(mount).filter(|other| !table.may_go_along(mount, other));
    holders.found.extend(others.map(|other| Holder {
        pid: None,
        name: other.fstype.clone().into(),
        how: HoldKind::Bind,
        file: Name::of(&other.mountpoint),
        direct: true,
        pod: None,
    }));
    holders
}

fn loop_devices(mount: &Mount, table: &MountTable, holders: &mut Holders) {
    let Ok(devices) = fs::read_dir("/sys/block") else { return };
    for device in devices.flatten() {
        let Ok(backing) = fs::read_to_string(device.path().join("loop/backing_file")) else { continue };
        let backing = backing.trim_end_matches('\n');
        if table.containing(Path::new(backing)).is_some_and(|m| m.id == mount.id) {
            holders.found.push(Holder {
                pid: None,
                name: Name::of(Path::new("/dev").join(device.file_name())),
                how: HoldKind::LoopDevice,
                file: backing.into(),
                direct: true,
                pod: None,
            });
        }
    }
}

#[cfg(test)]
mod tests;
