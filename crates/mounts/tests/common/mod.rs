//! A superblock for tests: names from a list, its answers from memory or not, its end watched.
#![allow(dead_code, reason = "not every test uses all of it")]
#![allow(clippy::unwrap_used, reason = "a test that meets an error fails")]

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::ThreadId;

use sync::{Condvar, Mutex};
use watertight_mounts::teardown::Teardown;
use watertight_mounts::{
    Error, FoundInode, Inode, Kind, Namespace, Options, Result, Superblock, SuperblockRef,
};

/// Opens once, for every thread.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    is_open: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub(crate) fn open(&self) {
        *self.is_open.lock() = true;
        self.changed.notify_all();
    }

    pub(crate) fn pass(&self) {
        let mut is_open = self.is_open.lock();
        while !*is_open {
            self.changed.wait(&mut is_open);
        }
    }
}

/// A place in the code where each thread stops until it may go on.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    pub(crate) is_reached: Gate,
    pub(crate) may_leave: Gate,
}

impl Stop {
    fn stop(&self) {
        self.is_reached.open();
        self.may_leave.pass();
    }
}

/// A medium that one superblock has at a time.
#[derive(Debug, Default)]
pub(crate) struct Medium {
    is_taken: AtomicBool,
    /// The data that was written to it.
    pub(crate) content: Mutex<Vec<u32>>,
}

#[derive(Debug, Default)]
pub(crate) struct Fs {
    entries: HashMap<(Inode, OsString), FoundInode>,
    parents: HashMap<Inode, Inode>,
    links: HashMap<Inode, PathBuf>,
    /// Answers in read sections.
    is_cached: bool,
    shutdowns: AtomicUsize,
    ended_by: Mutex<Option<ThreadId>>,
    /// Shutdown waits for it.
    pub(crate) hangs: Option<Gate>,
    /// Set when a shutdown has begun to wait.
    pub(crate) is_hanging: Gate,
    /// Look-ups with a reference stop here.
    pub(crate) in_lookup: Option<Stop>,
    /// Flushes stop here.
    pub(crate) in_flush: Option<Stop>,
    flushes: AtomicUsize,
    medium: Option<Arc<Medium>>,
    unwritten: Mutex<Vec<u32>>,
    /// Uses with a reference that are under way, and whether one was beside the end.
    inside: AtomicUsize,
    pub(crate) used_after_end: AtomicUsize,
}

impl Fs {
    /// With these paths; `a -> b` is a symbolic link, a path that ends in a slash a directory.
    pub(crate) fn new(paths: &[&str]) -> Self {
        let mut fs = Self { is_cached: true, ..Self::default() };
        let mut last = Inode::ROOT.0;
        for path in paths {
            let (path, target) = path.split_once(" -> ").map_or((*path, None), |(a, b)| (a, Some(b)));
            let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
            let mut dir = Inode::ROOT;
            for (n, name) in names.iter().enumerate() {
                let is_last = n + 1 == names.len();
                let kind = match target {
                    Some(_) if is_last => Kind::Symlink,
                    None if is_last && !path.ends_with('/') => Kind::Other,
                    _ => Kind::Directory,
                };
                let entry = *fs.entries.entry((dir, OsString::from(name))).or_insert_with(|| {
                    last += 1;
                    FoundInode { inode: Inode(last), kind }
                });
                fs.parents.insert(entry.inode, dir);
                if let (Some(target), true) = (target, is_last) {
                    fs.links.insert(entry.inode, PathBuf::from(target));
                }
                dir = entry.inode;
            }
        }
        fs
    }

    /// A superblock that walks have to wait for.
    pub(crate) fn uncached(mut self) -> Self {
        self.is_cached = false;
        self
    }

    /// A superblock whose shutdown hangs.
    pub(crate) fn hanging(mut self) -> Self {
        self.hangs = Some(Gate::default());
        self
    }

    /// A superblock whose look-ups stop.
    pub(crate) fn stopping_in_lookup(mut self) -> Self {
        self.in_lookup = Some(Stop::default());
        self.uncached()
    }

    /// A superblock whose flushes stop.
    pub(crate) fn stopping_in_flush(mut self) -> Self {
        self.in_flush = Some(Stop::default());
        self
    }

    /// One on a medium, which must be free.
    pub(crate) fn on(mut self, medium: &Arc<Medium>) -> Self {
        assert!(!medium.is_taken.swap(true, Ordering::SeqCst), "the medium is not free");
        self.medium = Some(Arc::clone(medium));
        self
    }

    pub(crate) fn mountable(self) -> (Arc<Self>, SuperblockRef) {
        let fs = Arc::new(self);
        (Arc::clone(&fs), SuperblockRef::new(fs))
    }

    pub(crate) fn write(&self, value: u32) {
        self.unwritten.lock().push(value);
    }

    pub(crate) fn shutdowns(&self) -> usize {
        self.shutdowns.load(Ordering::SeqCst)
    }

    pub(crate) fn flushes(&self) -> usize {
        self.flushes.load(Ordering::SeqCst)
    }

    pub(crate) fn ended_by(&self) -> Option<ThreadId> {
        *self.ended_by.lock()
    }

    fn find(&self, dir: Inode, name: &OsStr) -> Result<FoundInode> {
        let missing = || Error::NoEntry { name: name.to_string_lossy().into_owned() };
        self.entries.get(&(dir, name.to_owned())).copied().ok_or_else(missing)
    }

    fn use_it(&self) {
        self.inside.fetch_add(1, Ordering::SeqCst);
        if self.shutdowns() > 0 {
            self.used_after_end.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn leave(&self) {
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Superblock for Fs {
    fn lookup(&self, dir: Inode, name: &OsStr) -> Result<FoundInode> {
        self.use_it();
        if let Some(stop) = &self.in_lookup {
            stop.stop();
        }
        let found = self.find(dir, name);
        self.leave();
        found
    }

    fn lookup_rcu(&self, dir: Inode, name: &OsStr) -> Option<Result<FoundInode>> {
        self.is_cached.then(|| self.find(dir, name))
    }

    fn parent(&self, dir: Inode) -> Result<Inode> {
        Ok(self.parents[&dir])
    }

    fn parent_rcu(&self, dir: Inode) -> Option<Inode> {
        self.is_cached.then(|| self.parents[&dir])
    }

    fn read_link(&self, link: Inode) -> Result<PathBuf> {
        Ok(self.links[&link].clone())
    }

    fn read_link_rcu(&self, link: Inode) -> Option<Result<PathBuf>> {
        self.is_cached.then(|| self.read_link(link))
    }

    fn may_wait(&self) -> bool {
        self.hangs.is_some() || self.in_flush.is_some()
    }

    fn flush(&self) {
        self.flushes.fetch_add(1, Ordering::SeqCst);
        assert_eq!(self.shutdowns(), 0, "flushed after its end");
        if let Some(stop) = &self.in_flush {
            stop.stop();
        }
    }

    fn shutdown(&self) {
        if let Some(gate) = &self.hangs {
            self.is_hanging.open();
            gate.pass();
        }
        if self.inside.load(Ordering::SeqCst) > 0 {
            self.used_after_end.fetch_add(1, Ordering::SeqCst);
        }
        self.shutdowns.fetch_add(1, Ordering::SeqCst);
        *self.ended_by.lock() = Some(std::thread::current().id());
        if let Some(medium) = &self.medium {
            medium.content.lock().append(&mut self.unwritten.lock());
            medium.is_taken.store(false, Ordering::SeqCst);
        }
    }
}

/// A namespace whose root has these paths.
pub(crate) fn namespace(paths: &[&str]) -> (Namespace, Arc<Fs>) {
    let (fs, root) = Fs::new(paths).mountable();
    (Namespace::new(&root, Options::default()).unwrap(), fs)
}

/// A namespace whose mounts are ended in another way than the default.
pub(crate) fn namespace_ended_by(root: &SuperblockRef, teardown: Arc<dyn Teardown>) -> Namespace {
    Namespace::with_teardown(root, Options::default(), teardown).unwrap()
}
