//! The end of cgroups, and their renaming (which version 1 allows, within one parent).
//!
//! A thread reads inotify events of the parents' directories: the kernel reports each mkdir, rmdir
//! and rename there. Where inotify is not available, or not for so many directories, the thread
//! checks every cgroup that is watched twice a second.
//!
//! A cgroup is watched from its parent's watch on: `add` makes that first and looks for the cgroup
//! again afterwards. So a cgroup that goes in between is not taken for one that exists, and one
//! that goes later is reported.
//!
//! Lock order: `Inner::state`, then the callback's locks: the callback is called with `state` held,
//! so that events come in order, also with [`Watch::add`].

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use sync::atomic::{AtomicBool, Ordering};
use sync::{Mutex, thread};

use crate::background_close::BackgroundClose;
use crate::{CgroupId, Found, Hierarchy};

/// The interval of polls where no event reports a cgroup's end.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// A change of a watched cgroup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CgroupEvent {
    /// It was removed.
    Removed(CgroupId),
    /// It has another name.
    Renamed(CgroupId, OsString),
}

/// Watches cgroups until it is dropped.
#[derive(Debug)]
pub struct Watch {
    inner: Arc<Inner>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Inner {
    tree: Hierarchy,
    report: Box<dyn Fn(CgroupEvent) + Send + Sync>,
    inotify: Option<BackgroundClose>,
    /// Becomes readable when `stopping` or `must_poll` is set.
    wake: OwnedFd,
    stopping: AtomicBool,
    /// Not every cgroup has a watch: the thread has to poll.
    must_poll: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    known: HashMap<CgroupId, Location>,
    by_location: HashMap<Location, CgroupId>,
    /// Directories with a watch, in both directions.
    by_watch: HashMap<i32, CgroupId>,
    watch_of: HashMap<CgroupId, i32>,
}

/// The location of a cgroup: its parent, and its name there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Location {
    parent: CgroupId,
    name: OsString,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("tree", &self.tree).field("state", &self.state).finish_non_exhaustive()
    }
}

impl Watch {
    /// Calls `report` for changes of cgroups of `tree`, once they were [added](Self::add). It must
    /// not call this watch. The thread logs in the caller's span.
    ///
    /// # Errors
    /// When the host gives no descriptor or no thread.
    pub fn start(
        tree: Hierarchy,
        report: impl Fn(CgroupEvent) + Send + Sync + 'static,
    ) -> std::io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK);
        if let Err(error) = &inotify {
            tracing::warn!(%error, "no inotify: polling for removed cgroups twice a second");
        }
        let inner = Arc::new(Inner {
            tree,
            report: Box::new(report),
            must_poll: AtomicBool::new(inotify.is_err()),
            inotify: inotify.ok().map(BackgroundClose::new),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            stopping: AtomicBool::new(false),
            state: Mutex::default(),
        });
        let thread = {
            let inner = Arc::clone(&inner);
            let builder = thread::Builder::new().name("wt-cgroups".to_owned()).stack_size(256 << 10);
            let span = tracing::Span::current();
            builder.spawn(move || span.in_scope(|| inner.serve()))?
        };
        Ok(Self { inner, thread: Some(thread) })
    }

    /// Watches a cgroup and those above it; calls `made` for each that was not watched, from above,
    /// with its parent's number and its name. `false` if the cgroup does not exist any more.
    pub fn add(&self, found: &Found, mut made: impl FnMut(CgroupId, CgroupId, &OsStr)) -> bool {
        let inner = &*self.inner;
        let mut state = inner.state.lock();
        let mut at = inner.tree.mountpoint().to_owned();
        let mut parent = CgroupId::ROOT;
        for (id, name) in &found.chain {
            let location = Location { parent, name: name.clone() };
            let before = state.by_location.get(&location).copied();
            if before != Some(*id) {
                inner.watch_directory(&mut state, parent, &at);
                if inner.tree.id_at(&at.join(name)) != Some(*id) || state.known.contains_key(id) {
                    // Gone, or renamed, which an event is about to report.
                    return false;
                }
                if let Some(before) = before {
                    state.forget(before);
                    (inner.report)(CgroupEvent::Removed(before));
                }
                state.insert(*id, location);
                made(*id, parent, name);
            }
            at.push(name);
            parent = *id;
        }
        true
    }

    /// The number of cgroups that are watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.state.lock().known.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // ORDERING: Relaxed, the thread loads it after it has read from `wake`.
        self.inner.stopping.store(true, Ordering::Relaxed);
        self.inner.wake();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}

impl Inner {
    fn serve(&self) {
        while self.wait() {
            if let Some(inotify) = &self.inotify {
                self.read_events(inotify);
            }
            // ORDERING: Relaxed, as `stopping`.
            if self.must_poll.load(Ordering::Relaxed) {
                self.poll_all();
            }
        }
    }

    /// Waits for events, or for the next check; `false` at the end.
    fn wait(&self) -> bool {
        let mut fds = vec![PollFd::new(&self.wake, PollFlags::IN)];
        fds.extend(self.inotify.iter().map(|fd| PollFd::new(fd, PollFlags::IN)));
        // ORDERING: Relaxed, as `stopping`.
        let timeout = self.must_poll.load(Ordering::Relaxed).then_some(&POLL_INTERVAL);
        if let Err(error) = poll(&mut fds, timeout)
            && error != rustix::io::Errno::INTR
        {
            tracing::error!(%error, "removed cgroups are not noticed any more");
            return false;
        }
        let _nothing_there = rustix::io::read(&self.wake, &mut [0; 8]);
        // ORDERING: Relaxed, see `drop`.
        !self.stopping.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        // It fails where the thread has been woken so often that it will not sleep.
        let _full = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }

    fn read_events(&self, inotify: &BackgroundClose) {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = inotify::Reader::new(inotify, &mut buffer);
        let mut moving = HashMap::new();
        while let Ok(event) = reader.next() {
            let flags = event.events();
            let mut state = self.state.lock();
            if flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                drop(state);
                self.poll_all();
                continue;
            }
            let Some(parent) = state.by_watch.get(&event.wd()).copied() else { continue };
            if flags.contains(ReadFlags::IGNORED) {
                state.by_watch.remove(&event.wd());
                state.watch_of.remove(&parent);
                continue;
            }
            let Some(name) = event.file_name() else { continue };
            let location = Location { parent, name: OsStr::from_bytes(name.to_bytes()).to_owned() };
            if flags.contains(ReadFlags::MOVED_TO) {
                if let Some(id) = moving.remove(&event.cookie()) {
                    self.rename(&mut state, id, location);
                }
            } else if let Some(id) = state.by_location.get(&location).copied() {
                if flags.contains(ReadFlags::MOVED_FROM) {
                    moving.insert(event.cookie(), id);
                } else {
                    self.poll(&mut state, id);
                }
            }
        }
        // The other half of a renaming came too late: looks for the cgroup.
        let mut state = self.state.lock();
        for id in moving.into_values() {
            self.poll(&mut state, id);
        }
    }

    fn poll_all(&self) {
        let mut state = self.state.lock();
        let all: Vec<CgroupId> = state.known.keys().copied().collect();
        for id in all {
            self.poll(&mut state, id);
        }
    }

    /// Reports a cgroup that is not at its known location.
    fn poll(&self, state: &mut State, id: CgroupId) {
        let Some(location) = state.known.get(&id).cloned() else { return };
        let parent = self.path(state, location.parent);
        if self.tree.id_at(&parent.join(&location.name)) == Some(id) {
            return;
        }
        let entries = std::fs::read_dir(&parent).into_iter().flatten().flatten();
        let mut names = entries.map(|entry| entry.file_name());
        match names.find(|name| self.tree.id_at(&parent.join(name)) == Some(id)) {
            Some(name) => self.rename(state, id, Location { parent: location.parent, name }),
            None => {
                state.forget(id);
                (self.report)(CgroupEvent::Removed(id));
            }
        }
    }

    fn rename(&self, state: &mut State, id: CgroupId, location: Location) {
        let name = location.name.clone();
        state.forget_location(id);
        state.insert(id, location);
        (self.report)(CgroupEvent::Renamed(id, name));
    }

    fn path(&self, state: &State, mut id: CgroupId) -> PathBuf {
        let mut names = Vec::new();
        while let Some(location) = state.known.get(&id) {
            names.push(&location.name);
            id = location.parent;
        }
        let mut path = self.tree.mountpoint().to_owned();
        path.extend(names.into_iter().rev());
        path
    }

    fn watch_directory(&self, state: &mut State, id: CgroupId, path: &std::path::Path) {
        if state.watch_of.contains_key(&id) {
            return;
        }
        let flags = WatchFlags::DELETE | WatchFlags::MOVED_FROM | WatchFlags::MOVED_TO | WatchFlags::ONLYDIR;
        match self.inotify.as_ref().map(|inotify| inotify::add_watch(inotify, path, flags)) {
            Some(Ok(watch)) => {
                state.by_watch.insert(watch, id);
                state.watch_of.insert(id, watch);
            }
            // The caller finds that the directory is gone.
            Some(Err(rustix::io::Errno::NOENT)) => {}
            // ORDERING: Relaxed, as `stopping`.
            Some(Err(error)) if !self.must_poll.swap(true, Ordering::Relaxed) => {
                tracing::warn!(%error, "cannot watch every cgroup: polling for removed ones twice a second");
                self.wake();
            }
            Some(Err(_)) | None => {}
        }
    }
}

impl State {
    fn insert(&mut self, id: CgroupId, location: Location) {
        self.by_location.insert(location.clone(), id);
        self.known.insert(id, location);
    }

    fn forget(&mut self, id: CgroupId) {
        self.forget_location(id);
        self.known.remove(&id);
    }

    /// Another cgroup may have the location by now.
    fn forget_location(&mut self, id: CgroupId) {
        if let Some(location) = self.known.get(&id)
            && self.by_location.get(location) == Some(&id)
        {
            self.by_location.remove(location);
        }
    }
}

#[cfg(test)]
#[path = "watch_tests.rs"]
mod tests;
