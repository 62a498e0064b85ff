//! Who keeps a mount busy, or its file system in use: processes, mounts inside it or in other namespaces, loop devices over its files.
//!
//! Nothing here makes a request to the mount's own server (`statx` is asked for nothing but what the
//! kernel knows itself), so a server that hangs cannot hang the search, and a server can search for
//! the holders of its own mount. What is looked at in `/proc` is held for that moment, so that somebody
//! else's umount(2) may fail meanwhile: look only when there is a reason to.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use crate::mountinfo::{Device, Mount, MountTable};

/// How long a search may take: far longer than it does where nothing hangs.
const SEARCH_MAX: Duration = Duration::from_secs(5);

/// Searches that may be under way at once in this process: each that hangs keeps its thread until it hangs no more.
const SEARCHES_MAX: usize = 8;
static SEARCHES: Searches = Searches(AtomicUsize::new(0));

/// How many holders a list for a person names.
const NAMED_MAX: usize = 8;

/// In what way a mount is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
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
    /// The same in the process's own mount namespace, which this one does not see.
    Namespace,
    /// A loop device over a file.
    LoopDevice,
}

impl fmt::Display for How {
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
    pub name: String,
    /// In what way.
    pub how: How,
    /// Which file, directory or mountpoint.
    pub file: String,
    /// Whether it holds the very mount that was asked for, and not only its file system by way of another mount.
    pub direct: bool,
}

impl Holder {
    /// A mount that is inside.
    #[must_use]
    pub fn mount(inner: &Mount) -> Self {
        let file = inner.mountpoint.to_string_lossy().into_owned();
        Self { pid: None, name: inner.fstype.clone(), how: How::Mount, file, direct: true }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "{} (pid {pid}), {}: {}", self.name, self.how, self.file),
            None => write!(f, "{} {} ({})", self.how, self.file, self.name),
        }
    }
}

/// Everything found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holders {
    /// Who holds, by pid.
    pub found: Vec<Holder>,
    /// Processes that this user may not look into.
    pub unseen: u64,
}

impl Holders {
    /// Those that hold the very mount that was asked for.
    pub fn direct(&self) -> impl Iterator<Item = &Holder> {
        self.found.iter().filter(|holder| holder.direct)
    }

    /// Those that hold something at `path` or below it.
    #[must_use]
    pub fn below(mut self, path: &Path) -> Self {
        self.found.retain(|holder| Path::new(&holder.file).starts_with(path));
        self
    }

    /// A line each, the first eight, for a person; says so when nobody was found.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.found.iter().take(NAMED_MAX).map(Holder::to_string).collect();
        if self.found.len() > NAMED_MAX {
            lines.push(format!("and {} more", self.found.len() - NAMED_MAX));
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

/// Searches the host for what holds `mount`, which need not have a path any more; for five seconds at most.
///
/// # Errors
/// Those of reading `/proc`, and of making a thread.
pub fn of(mount: &Mount) -> io::Result<Holders> {
    let dirs = fs::read_dir("/proc")?.flatten().filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, entry.path()))
    });
    let dirs: Vec<(u32, PathBuf)> = dirs.collect();
    let of_one = {
        let mount = mount.clone();
        let seen = RefCell::new(BTreeSet::from_iter(fs::read_link("/proc/self/ns/mnt")));
        move |(pid, dir)| {
            let mut holders = Holders::default();
            let process = Process { pid, dir, mount: &mount };
            process.search(&mut holders);
            process.namespace(&mut seen.borrow_mut(), &mut holders);
            holders
        }
    };
    let mut holders = SEARCHES.in_time(dirs, of_one, SEARCH_MAX)?;
    holders.found.sort_by_key(|holder| holder.pid);
    holders.found.append(&mut mounts(mount).found);
    loop_devices(mount, &MountTable::read(), &mut holders);
    Ok(holders)
}

/// Searches the host for what holds the file system `device`, to which no path needs to lead.
///
/// # Errors
/// Those of reading `/proc`.
pub fn of_device(device: Device) -> io::Result<Holders> {
    if let Some(mount) = MountTable::read().of_device(device).next() {
        return of(mount);
    }
    let Device { major, minor } = device;
    // A mount that is none of the table's.
    let (mountpoint, fstype, source) = Default::default();
    of(&Mount { id: u64::MAX, parent: u64::MAX, major, minor, mountpoint, fstype, source, owner: None })
}

/// How many searches are under way.
struct Searches(AtomicUsize);

/// One of them.
struct UnderWay(&'static Searches);

impl Searches {
    /// Looks into these processes, one after the other. What the kernel says of a process may have to wait for a server
    /// that hangs, where the process itself does: another thread waits, and after `limit` the rest is unseen. So is
    /// all where [`SEARCHES_MAX`] hang already.
    fn in_time<P: Send + 'static>(
        &'static self,
        processes: Vec<P>,
        look: impl Fn(P) -> Holders + Send + 'static,
        limit: Duration,
    ) -> io::Result<Holders> {
        let mut holders = Holders { found: Vec::new(), unseen: processes.len() as u64 };
        let Some(under_way) = self.begin() else { return Ok(holders) };
        let (tell, told) = channel();
        let all = move || {
            let _until_it_ends = under_way;
            let _nobody_listens = processes.into_iter().try_for_each(|process| tell.send(look(process)));
        };
        thread::Builder::new().name("holders".to_owned()).spawn(all)?;
        let until = Instant::now() + limit;
        while let Ok(mut one) = told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            holders.found.append(&mut one.found);
            holders.unseen -= 1;
            holders.unseen += one.unseen;
        }
        Ok(holders)
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
        for (link, how) in [("cwd", How::WorkingDirectory), ("root", How::Root), ("exe", How::Program)] {
            self.look(&self.dir.join(link), how, holders);
        }
        for fd in fds.flatten() {
            self.look(&fd.path(), How::OpenFile, holders);
        }
        self.mappings(holders);
    }

    /// Whether the file system is mounted in this process's namespace, if that was not `seen`: no unmount elsewhere ends it there.
    fn namespace(&self, seen: &mut BTreeSet<PathBuf>, holders: &mut Holders) {
        let Ok(namespace) = fs::read_link(self.dir.join("ns/mnt")) else { return };
        if seen.insert(namespace) {
            let there = Mount::all_of(&self.dir).into_iter();
            for other in there.filter(|other| Device::of(other) == Device::of(self.mount)) {
                let path = other.mountpoint.to_string_lossy().into_owned();
                self.add(How::Namespace, path, false, holders);
            }
        }
    }

    /// Whether the magic link `link` leads into the mount.
    fn look(&self, link: &Path, how: How, holders: &mut Holders) {
        // An empty mask and DONT_SYNC: the answer is the kernel's own, its server is not asked.
        let Ok(stat) = statx(CWD, link, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()) else { return };
        let device = Device { major: stat.stx_dev_major, minor: stat.stx_dev_minor };
        if device != Device::of(self.mount) {
            return;
        }
        let file =
            fs::read_link(link).map_or_else(|_| "?".to_owned(), |path| path.to_string_lossy().into_owned());
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
                    self.add(How::Mapping, file.to_owned(), true, holders);
                }
                last = file;
            }
        }
    }

    fn add(&self, how: How, file: String, direct: bool, holders: &mut Holders) {
        let name = fs::read(self.dir.join("comm"))
            .map_or_else(|_| "?".to_owned(), |comm| String::from_utf8_lossy(&comm).trim_end().to_owned());
        holders.found.push(Holder { pid: Some(self.pid), name, how, file, direct });
    }
}

/// The mounts that hold `mount`: those inside it, and other mounts of its file system. Disturbs nobody.
#[must_use]
pub fn mounts(mount: &Mount) -> Holders {
    let table = MountTable::read();
    let mut holders = Holders::default();
    holders.found.extend(table.on(mount).map(Holder::mount));
    let others = table.of_device(Device::of(mount)).filter(|other| !other.is_same(mount));
    holders.found.extend(others.map(|other| Holder {
        pid: None,
        name: other.fstype.clone(),
        how: How::Bind,
        file: other.mountpoint.to_string_lossy().into_owned(),
        direct: true,
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
                name: format!("/dev/{}", device.file_name().to_string_lossy()),
                how: How::LoopDevice,
                file: backing.to_owned(),
                direct: true,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn mount_of(path: &Path) -> Mount {
        let device = fs::metadata(path).unwrap().dev();
        let device = Device { major: rustix::fs::major(device), minor: rustix::fs::minor(device) };
        let stat = statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::empty()).unwrap();
        MountTable::read()
            .of_device(device)
            .find(|mount| mount.id == stat.stx_mnt_id)
            .cloned()
            .expect("the mount of an existing path")
    }

    #[test]
    fn an_open_file_names_this_process() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("held");
        let file = fs::File::create(&path).unwrap();
        let mine = |holders: &Holders| {
            holders.direct().any(|h| {
                h.pid == Some(std::process::id()) && h.how == How::OpenFile && Path::new(&h.file) == path
            })
        };
        let mount = mount_of(&path);
        assert!(mine(&of(&mount).unwrap()));
        drop(file);
        assert!(!mine(&of(&mount).unwrap()));
    }

    #[test]
    fn a_process_that_hangs_ends_the_search_and_so_many_searches_hang_at_most() {
        static SEARCHES: Searches = Searches(AtomicUsize::new(0));
        let (end, hangs) = channel::<()>();
        let hangs = std::sync::Arc::new(std::sync::Mutex::new(hangs));
        let search = |pids: Vec<u32>, limit: Duration| {
            let hangs = std::sync::Arc::clone(&hangs);
            let look = move |pid: u32| {
                if pid == 2 {
                    let _hung = hangs.lock().unwrap().recv();
                }
                let (how, file) = (How::OpenFile, "/mnt/x".to_owned());
                let holder = Holder { pid: Some(pid), name: "sleep".to_owned(), how, file, direct: true };
                Holders { found: vec![holder], unseen: 0 }
            };
            SEARCHES.in_time(pids, look, limit).unwrap()
        };
        for _ in 0..SEARCHES_MAX {
            let holders = search(vec![1, 2, 3], Duration::from_millis(50));
            assert!(holders.found.iter().all(|holder| holder.pid == Some(1)), "{holders:?}");
            assert_eq!(holders.found.len() as u64 + holders.unseen, 3);
        }
        assert_eq!(search(vec![1, 3], SEARCH_MAX).unseen, 2, "all hang, and another began");
        drop(end);
        while search(vec![1, 3], SEARCH_MAX).found.len() < 2 {
            thread::yield_now();
        }
    }

    #[test]
    fn lists_for_people_are_short() {
        let holder = |pid| Holder {
            pid: Some(pid),
            name: "sleep".to_owned(),
            how: How::WorkingDirectory,
            file: "/mnt/x".to_owned(),
            direct: true,
        };
        let holders = Holders { found: (1..=10).map(holder).collect(), unseen: 0 };
        let lines = holders.lines();
        assert_eq!(lines.len(), 9);
        assert_eq!(lines[0], "sleep (pid 1), working directory: /mnt/x");
        assert_eq!(lines[8], "and 2 more");
        assert_eq!(Holders { found: vec![], unseen: 3 }.lines().len(), 1);
    }
}
